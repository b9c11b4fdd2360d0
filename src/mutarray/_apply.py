"""``m.apply_at``: a function of the user's, applied to each element that an index names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mutarray import _cast, _jaxapi, _ops
from mutarray._select import select
from mutarray._trace_cells import Cell
from mutarray._types import Index
from mutarray.errors import BadValueError, CastError


@dataclass(frozen=True)
class _OfOne:
    """A function of the old element alone, as an `_combine.Op`.

    Two of the same function are equal, so their programs are the same.
    """

    fn: Callable[[Any], Any]

    def __call__(self, old: Any, new: Any) -> Any:
        del new
        return self.fn(old)


@dataclass(frozen=True)
class _OfTwo:
    """A function of old and new elements; hides what else a function object may be."""

    fn: Callable[[Any, Any], Any]

    def __call__(self, old: Any, new: Any) -> Any:
        return self.fn(old, new)


@_jaxapi.without_mesh
def apply_at(cell: Cell, fn: Callable[..., Any], index: Index, value: Any) -> None:
    """Replaces each element that ``index`` names by ``fn`` of it, and of ``value`` if not ``None``.

    Everything that can fail does so before anything is written.
    """
    if _cast.is_key(cell.dtype):
        raise CastError("PRNG keys are no numbers that a function applies to: write m[idx] = keys")
    selection = select(cell.shape, index, writing=True)
    op = _OfOne(fn) if value is None else _OfTwo(fn)
    value = np.False_ if value is None else _operand(value, cell.dtype)
    form = selection.form
    _cast.check_broadcast(value, form.result_shape, masked=form.mask_dims is not None)
    _check(op, cell.dtype, value.dtype)
    _ops.write(cell, selection, value, op)


def _operand(value: Any, dtype: Any) -> Any:
    """A value in the dtype in which the function gets it; Python scalars adapt to the array."""
    value = _cast.as_value(value)
    if isinstance(value, jax.Array):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        own = value.dtype
    else:
        own = jnp.result_type(dtype, value)
    return np.asarray(value).astype(jax.dtypes.canonicalize_dtype(own))


def _check(op: Callable[[Any, Any], Any], dtype: Any, of_value: Any) -> None:
    """Raises unless ``op`` is elementwise and gives what goes into ``dtype``."""
    shape = (2, 3)
    out = jax.eval_shape(
        op, jax.ShapeDtypeStruct(shape, dtype), jax.ShapeDtypeStruct(shape, of_value)
    )
    got = getattr(out, "shape", None)
    if got != shape:
        given = f"a {type(out).__name__}" if got is None else f"shape {got}"
        raise BadValueError(
            f"apply_at got a function that gives {given} for elements of shape {shape}: it must be "
            "elementwise, and give one array of the shape that it gets"
        )
    _cast.check_cast(out, dtype, "result")
