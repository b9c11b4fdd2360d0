"""How the dimensions of an array lie on a mesh, and what an index takes of each.

A dimension is in one of four ways (`Lane`):

* *all*: it is split, and taken whole, or in steps of which each block has as many; the value, or
  the result, is split like it.
* *here*: it is not split; the index applies as it is.
* *part*: it is split, and a span takes some of it. At most ``taken`` of the span's positions lie in
  a block; the device takes so many, beginning with the first that it may own, and drops those that
  lie elsewhere.
* *points*: it is split, and an index array picks from it. Positions in other blocks are dropped.

From the lanes follows how everything that goes into the ``shard_map``, or comes out, is split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.sharding import PartitionSpec

from mutarray._form import Form, Points, Span
from mutarray._types import Shape


class Lane(NamedTuple):
    """One dimension of the array on the mesh, and what an index takes of it.

    Attributes:
        way: ``'all'``, ``'here'``, ``'part'`` or ``'points'``.
        names: the mesh axes that split it.
        parts: how many blocks.
        length: of a block.
        taken: how many positions of a span a block can hold at most.
        axis: its axis in the result; ``None`` for what an integer or an index array took away.
        scatters: whether a part of it may leave a result that is split.
    """

    way: str
    names: tuple[str, ...]
    parts: int
    length: int
    taken: int
    axis: int | None
    scatters: bool = True


def lanes_of(
    form: Form, axes: Sequence[tuple[str, ...]], mesh_shape: dict[str, int]
) -> tuple[Lane, ...]:
    """The lanes of a selection of an array whose dimensions are split over ``axes``."""
    return tuple(
        _lane(dim, n, names, math.prod(mesh_shape[name] for name in names), axis)
        for dim, n, names, axis in zip(form.dims, form.shape, axes, _axes(form), strict=True)
    )


def _axes(form: Form) -> list[int | None]:
    where = {d: a for a, d in enumerate(form.sources) if d is not None}
    return [where.get(d) for d in range(len(form.dims))]


def _lane(dim: Span | Points, n: int, names: tuple[str, ...], parts: int, axis: int | None) -> Lane:
    length = n // parts
    if not names:
        return Lane("here", names, parts, length, n, axis)
    if isinstance(dim, Points):
        return Lane("points", names, parts, length, 0, axis)
    whole = dim.size * dim.step == n and length % dim.step == 0
    # An integer on a dimension of one element takes it whole too, but leaves no axis to be split.
    leaves_none = axis is None and n == 1
    if whole and dim.rule != "loose" and not leaves_none:
        return Lane("all", names, parts, length, length // dim.step, axis)
    return Lane("part", names, parts, length, min(dim.size, -(-length // dim.step)), axis)


def block_spec(lanes: Sequence[Lane], rank: int) -> PartitionSpec:
    """How the array is split; ``rank`` counts its dimensions."""
    return PartitionSpec(*(lane.names or None for lane in lanes[:rank]))


def token_spec(lanes: Sequence[Lane]) -> PartitionSpec:
    """How a token is split: each block has its own."""
    return PartitionSpec(tuple(name for lane in lanes for name in lane.names))


def mask_spec(form: Form, lanes: Sequence[Lane]) -> PartitionSpec:
    """How a traced mask is split: as the dimensions that it covers."""
    return PartitionSpec(*(lanes[d].names or None for d in form.mask_dims or ()))


def value_spec(form: Form, lanes: Sequence[Lane], shape: Shape) -> PartitionSpec:
    """How a value of ``shape``, which has no axis too many, is split before it is written."""
    entries: list[Any] = [None] * len(form.result_shape)
    for lane in lanes:
        if lane.way == "all" and lane.axis is not None:
            entries[lane.axis] = lane.names
    entries = entries[len(entries) - len(shape) :]
    sizes = form.result_shape[len(form.result_shape) - len(shape) :]
    return PartitionSpec(
        *(e if given == n else None for e, given, n in zip(entries, shape, sizes, strict=True))
    )


def result_entries(form: Form, lanes: Sequence[Lane]) -> PartitionSpec:
    """How the result of a read is split when it comes out of the ``shard_map``."""
    entries: list[Any] = [None] * len(form.result_shape)
    for d, lane in enumerate(lanes):
        if lane.axis is not None and stays_split(form, d, lane):
            entries[lane.axis] = lane.names
    return PartitionSpec(*entries)


def stays_split(form: Form, d: int, lane: Lane) -> bool:
    """Whether the result of a read is split along a dimension, as far as it shows it."""
    return lane.way == "all" or scatters(form, d, lane)


def scatters(form: Form, d: int, lane: Lane) -> bool:
    """Whether a dimension that is taken in part leaves a result that is split evenly."""
    span = form.dims[d]
    return (
        lane.way == "part"
        and lane.scatters
        and isinstance(span, Span)
        and lane.axis is not None
        and span.rule != "loose"  # what is out of range is filled in after the sum
        and span.size % lane.parts == 0
    )
