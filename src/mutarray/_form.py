"""The canonical form of an index: `Span`, `Points`, `Form` and `Selection`.

A selection's elements have a canonical order, the *core*: the axes of the broadcast index arrays
first, then one axis for each span, in the order of the array's dimensions and ascending. The result
that a user sees differs from it by a flip (negative steps), a move of the points axes and a reshape
(dropped integers, ``None``); `Form` says which.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from mutarray._types import Operand, Shape


class Span(NamedTuple):
    """Evenly spaced positions along one dimension, from a start that is an operand.

    Attributes:
        size: how many.
        step: how far apart, at least 1.
        flip: whether the user meets them in descending order.
        rule: ``'exact'``: the start is known to fit. ``'window'``: it is moved until all fit.
            ``'loose'``: positions out of range are not written, or read as the fill value.
        wrap: whether a negative start still has to be wrapped.
    """

    size: int
    step: int = 1
    flip: bool = False
    rule: str = "exact"
    wrap: bool = False

    @property
    def extent(self) -> int:
        """How many positions lie between the first and the last, both included."""
        return (self.size - 1) * self.step + 1 if self.size else 0


class Points(NamedTuple):
    """Positions along one dimension from an index array, which is an operand.

    Attributes:
        wrap: whether negative entries still have to be wrapped.
    """

    wrap: bool = False


@dataclass(frozen=True, slots=True)
class Form:
    """What of a selection is known when a program is compiled; the key of the compile cache.

    Attributes:
        shape: the shape of the array that is indexed.
        dims: for each of its dimensions, a `Span` or `Points`.
        points_shape: the shape to which the index arrays broadcast; ``None`` without any.
        points_at: how many spans come before the points axes in the result.
        result_shape: the shape that the user sees.
        sources: for each axis of the result the dimension that it comes from; ``None`` for the axes
            of ``None`` and of index arrays.
        rule: ``'exact'``, ``'clip'`` or ``'drop'``: what happens to index arrays out of range.
        mask_dims: the dimensions under a traced mask, which are whole spans; ``None`` without one.
        unique: the user's word that no position occurs twice.
    """

    shape: Shape
    dims: tuple[Span | Points, ...]
    points_shape: Shape | None
    points_at: int
    result_shape: Shape
    sources: tuple[int | None, ...]
    rule: str = "exact"
    mask_dims: tuple[int, ...] | None = None
    unique: bool = False

    @property
    def span_dims(self) -> tuple[int, ...]:
        """The dimensions that have a span."""
        return tuple(d for d, dim in enumerate(self.dims) if isinstance(dim, Span))

    @property
    def point_dims(self) -> tuple[int, ...]:
        """The dimensions that have an index array."""
        return tuple(d for d, dim in enumerate(self.dims) if isinstance(dim, Points))

    @property
    def spans(self) -> tuple[Span, ...]:
        """The spans, in the order of the array's dimensions."""
        return tuple(dim for dim in self.dims if isinstance(dim, Span))

    @property
    def core_shape(self) -> Shape:
        """The shape of the selected elements in canonical order."""
        return (self.points_shape or ()) + tuple(
            1 if self.mask_dims is not None and d in self.mask_dims else span.size
            for d, span in zip(self.span_dims, self.spans, strict=True)
        )

    @property
    def count(self) -> int:
        """How many elements are named; with a traced mask, how many may be."""
        masked = (self.shape[d] for d in self.mask_dims or ())
        return math.prod(self.core_shape) * math.prod(masked)

    @property
    def is_whole(self) -> bool:
        """Whether the selection is the array itself, element by element in order."""
        return (
            self.points_shape is None
            and self.mask_dims is None
            and self.sources == tuple(range(len(self.shape)))
            and all(s == Span(n) for s, n in zip(self.dims, self.shape, strict=True))
        )


@dataclass(frozen=True, slots=True)
class Selection:
    """A `Form` with its operands.

    Attributes:
        form: the static part.
        starts: for each span its start; an ``int`` where it is known on the host.
        points: for each dimension with an index array that array, not yet broadcast; a NumPy array
            where it is known on the host.
        mask: the traced mask, over ``form.mask_dims``.
    """

    form: Form
    starts: tuple[Operand, ...] = ()
    points: tuple[Operand, ...] = ()
    mask: Any = None

    @property
    def is_known(self) -> bool:
        """Whether everything is known on the host, so that a `Plan` can be made."""
        return self.mask is None and not any(
            not isinstance(x, (int, np.ndarray)) for x in (*self.starts, *self.points)
        )


def with_trailing(selection: Selection, trailing: Shape) -> Selection:
    """The same selection of an array with more dimensions behind, all taken whole.

    PRNG keys are written and read as the integers that they are made of, which have such a
    dimension.
    """
    form = selection.form
    form = replace(
        form,
        shape=form.shape + trailing,
        dims=form.dims + tuple(Span(n) for n in trailing),
        result_shape=form.result_shape + trailing,
        sources=form.sources + tuple(range(len(form.shape), len(form.shape) + len(trailing))),
    )
    return replace(selection, form=form, starts=selection.starts + (0,) * len(trailing))
