"""NumPy's functions and methods that change an array: `put`, `sort`, ``@=`` and their kin."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from mutarray import _buffers, _cast, _frames, _general, _jaxapi, _ops
from mutarray._cell import BufferCell
from mutarray._layout import split_axes
from mutarray._trace_cells import Cell
from mutarray.errors import (
    BadAxisError,
    BadModeError,
    BroadcastError,
    CastError,
    OutOfBoundsError,
    ShapeError,
    TracedIndexError,
)


@_jaxapi.without_mesh
def matmul(cell: Cell, other: Any) -> None:
    """Replaces the contents by their matrix product with ``other``, which must have their shape.

    Raises:
        BroadcastError: the product has another shape.
        CastError: the product does not cast to the dtype.
    """
    value = _cast.as_value(other)
    old = jax.ShapeDtypeStruct(cell.shape, cell.dtype)
    like = jax.ShapeDtypeStruct(jnp.shape(value), jnp.result_type(value))
    out = jax.eval_shape(jnp.matmul, old, like)
    if out.shape != cell.shape:
        raise BroadcastError(
            f"m @= x gives shape {out.shape} for m of shape {cell.shape} and x of shape "
            f"{like.shape}, and the array keeps its shape: write m @ x for a new array"
        )
    _cast.check_cast(out, cell.dtype, "result")
    whole = _ops.working(cell)
    typed = _jaxapi.explicit_spec(whole)
    place = None if typed is None else NamedSharding(*typed)
    _ops.put(cell, ..., jnp.matmul(whole, _near(cell, value), out_sharding=place))


def _near(cell: Cell, value: Any) -> Any:
    """A value where it can be combined with the contents: only the value moves."""
    if not isinstance(cell, BufferCell) or _jaxapi.in_trace():
        return value
    return _general.near(value, cell.place.work) if isinstance(value, jax.Array) else value


@_jaxapi.without_mesh
def along_axis(cell: Cell, axis: int, work: Callable[[jax.Array], jax.Array]) -> None:
    """Replaces the contents by what ``work`` makes of them along one axis, which is brought whole.

    Raises:
        BadAxisError: there is no such axis.
    """
    axis = _axis(cell, axis)
    if 0 in cell.shape:  # nothing to do, and JAX 0.9 fails to compile it
        return
    value, sharding = _ops.working(cell), cell.sharding
    if isinstance(sharding, NamedSharding):
        entries: list[Any] = list(split_axes(sharding, len(cell.shape)))
        if entries[axis]:
            entries[axis] = None  # JAX sorts along no axis that an explicit mesh splits
            place = NamedSharding(sharding.mesh, PartitionSpec(*entries))
            traced = _jaxapi.is_tracer(value)
            value = _frames.place(value, place) if traced else _buffers.put(value, place)
    _ops.put(cell, ..., work(value))


def partition(cell: Cell, kth: int, axis: int) -> None:
    """``jnp.partition`` in place.

    Raises:
        BadAxisError: there is no such axis, or no such position along it.
    """
    axis = _axis(cell, axis)
    n = cell.shape[axis]
    if not -n <= kth < n:
        allowed = f"allowed are {-n} to {n - 1}" if n else "it has no elements"
        raise BadAxisError(f"kth={kth} is out of bounds for axis {axis} with size {n}: {allowed}")
    along_axis(cell, axis, lambda x: jnp.partition(x, kth, axis))


def _axis(cell: Cell, axis: int) -> int:
    """An axis that the array has."""
    ndim, axis = len(cell.shape), operator.index(axis)
    if not -ndim <= axis < ndim:
        allowed = f"allowed are {-ndim} to {ndim - 1}" if ndim else "it has none"
        raise BadAxisError(
            f"axis {axis} is out of bounds for a mutable array of {ndim} axes: {allowed}"
        )
    return axis


# By positions in C order -------------------------------------------------------------------------


def put(cell: Cell, indices: Any, values: Any, mode: str = "raise") -> None:
    """``np.put``: writes at positions in C order; values that are too few begin anew.

    Raises:
        OutOfBoundsError: ``mode='raise'``, and a known position is out of range.
        BadModeError: ``mode`` is none of ``'raise'``, ``'wrap'``, ``'clip'``.
        CastError: the values do not cast to the dtype, or the positions are no integers.
    """
    if mode not in ("raise", "wrap", "clip"):
        raise BadModeError(f"mode={mode!r} must be 'raise', 'wrap' or 'clip'")
    size = int(np.prod(cell.shape, dtype=np.int64))
    positions = _cast.as_value(indices)
    values = _cast.as_value(values)
    if not _jaxapi.is_tracer(positions):
        positions = np.asarray(positions)
        if positions.size == 0:
            positions = positions.astype(np.int64)
    if _cast.kind(positions.dtype) not in (1, 2):
        raise CastError(
            f"positions must be integers, and these have dtype {positions.dtype}: cast them with "
            ".astype(int); for a mask use m[mask] = values"
        )
    positions = positions.reshape(-1)
    if isinstance(positions, np.ndarray):
        positions = _in_range(positions.astype(np.int64), size, cell, mode)
    elif mode != "raise":
        positions = positions % size if mode == "wrap" else positions.clip(0, size - 1)
    count = positions.shape[0]
    if count == 0 or np.size(values) == 0:
        return
    _write_flat(cell, positions, _repeated(values, np.arange(count)))


def _in_range(positions: np.ndarray, size: int, cell: Cell, mode: str) -> np.ndarray:
    """Positions that are known, all from 0 up to the size."""
    if mode == "wrap" and size:
        return positions % size
    if mode == "clip" and size:
        return positions.clip(0, size - 1)
    wrong = positions[(positions < -size) | (positions >= size)]
    if wrong.size:
        allowed = f"allowed are {-size} to {size - 1}" if size else "it has no elements"
        raise OutOfBoundsError(
            f"position {wrong[0]} is out of bounds for a mutable array of shape {cell.shape}: "
            f"{allowed}"
        )
    return np.where(positions < 0, positions + size, positions)


def _write_flat(cell: Cell, positions: Any, values: Any) -> None:
    """Writes one value to each position in C order."""
    if not cell.shape:
        # All that is in range is the one element. What is traced, and is not, is dropped.
        if isinstance(positions, np.ndarray):
            _ops.put(cell, (), values[-1])
        else:
            _cast.check_cast(values, cell.dtype)
            for position, value in zip(positions, values, strict=True):
                inside = (position == 0) | (position == -1)
                _ops.put(cell, (), jnp.where(inside, value, _ops.snapshot(cell)))
        return
    if isinstance(positions, np.ndarray):
        _ops.put(cell, np.unravel_index(positions, cell.shape), values)
        return
    size = int(np.prod(cell.shape, dtype=np.int64))
    inside = (positions >= -size) & (positions < size)
    index: list[Any] = []
    rest = positions % max(size, 1)
    for n in reversed(cell.shape):
        index.insert(0, rest % max(n, 1))
        rest = rest // max(n, 1)
    index[0] = jnp.where(inside, index[0], cell.shape[0])  # a write out of range is dropped
    _ops.put(cell, tuple(index), values)


def _repeated(values: Any, which: np.ndarray) -> Any:
    """``values[which]``, where values that are too few begin anew."""
    if isinstance(values, jax.Array):
        if not _jaxapi.is_tracer(values):
            values = np.asarray(values)  # few, as the positions
        elif values.size == 1:
            return jnp.broadcast_to(values.reshape(()), which.shape)
    elif not isinstance(values, (np.ndarray, np.generic)):
        return np.full(which.shape, values, jnp.result_type(values))
    return values.reshape(-1)[which % values.size]


def fill_diagonal(cell: Cell, value: Any, wrap: bool = False) -> None:
    """``np.fill_diagonal``: writes to the elements whose indices are all the same.

    Raises:
        ShapeError: the array has less than two axes, or more than two of unequal lengths.
    """
    shape = cell.shape
    if len(shape) < 2:
        raise ShapeError(
            f"a mutable array of shape {shape} has no diagonal: np.fill_diagonal takes two axes or "
            "more; to write to every element, use m.fill(value)"
        )
    if len(shape) > 2 and len(set(shape)) > 1:
        raise ShapeError(
            f"a mutable array of shape {shape} has no diagonal: more than two axes must all have "
            "the same length; with k = np.arange(min(m.shape)), write m[k, k, k] = value, with one "
            "k for each axis"
        )
    size = int(np.prod(shape, dtype=np.int64))
    step = 1 + sum(int(np.prod(shape[k:], dtype=np.int64)) for k in range(1, len(shape)))
    end = size if wrap or len(shape) > 2 else min(size, shape[1] * shape[1])
    put(cell, np.arange(0, end, step), value)


# By masks ----------------------------------------------------------------------------------------


def putmask(cell: Cell, mask: Any, values: Any) -> None:
    """``np.putmask``: where the mask is true, the value at the same position, repeated."""
    mask, values = _mask(cell, mask), _cast.as_value(values)
    if np.size(values) == 1:
        _ops.put(cell, mask, jnp.reshape(values, ()) if np.ndim(values) else values)
    elif _jaxapi.is_tracer(mask):
        _cast.check_cast(values, cell.dtype)
        size = int(np.prod(cell.shape, dtype=np.int64))
        spread = jnp.asarray(_repeated(values, np.arange(size))).reshape(cell.shape)
        copyto(cell, spread, where=mask)
    elif np.size(values):
        positions = np.flatnonzero(np.asarray(mask))
        if positions.size:
            _write_flat(cell, positions, _repeated(values, positions))


def put_along_axis(cell: Cell, indices: Any, values: Any, axis: int | None) -> None:
    """``np.put_along_axis``: along one axis, each row of ``values`` goes where its indices say.

    Raises:
        ShapeError: the indices have another number of axes than the array.
        BadAxisError: there is no such axis.
        OutOfBoundsError: an index that is known is out of range.
        CastError: the values do not cast to the dtype, or the indices are no integers.
    """
    indices = _cast.as_value(indices)
    ndim = len(cell.shape) if axis is not None else 1
    if np.ndim(indices) != ndim:
        raise ShapeError(
            f"the indices have {np.ndim(indices)} axes, and with axis={axis} they need {ndim}: "
            "add axes of length 1, which are broadcast"
        )
    if axis is None:
        put(cell, indices, values)
        return
    axis = _axis(cell, axis)
    index: list[Any] = [
        np.arange(n).reshape([-1 if k == d else 1 for k in range(ndim)])
        for d, n in enumerate(cell.shape)
    ]
    index[axis] = indices
    _ops.put(cell, tuple(index), values)


def place(cell: Cell, mask: Any, values: Any) -> None:
    """``np.place``: the first value where the mask is true first, and so on, repeated.

    Raises:
        BroadcastError: there are no values, and the mask is true somewhere.
        TracedIndexError: the mask is traced, and there is more than one value.
    """
    mask, values = _mask(cell, mask), _cast.as_value(values)
    if np.size(values) == 1:
        _ops.put(cell, mask, jnp.reshape(values, ()) if np.ndim(values) else values)
        return
    if _jaxapi.is_tracer(mask):
        raise TracedIndexError(
            f"np.place with a traced mask and {np.size(values)} values: which value goes where is "
            "not known when the program is compiled; pass one value, or use np.putmask"
        )
    positions = np.flatnonzero(np.asarray(mask))
    if positions.size and not np.size(values):
        raise BroadcastError(
            f"np.place got no values for {positions.size} positions: pass at least one value"
        )
    if positions.size:
        _write_flat(cell, positions, _repeated(values, np.arange(positions.size)))


def _mask(cell: Cell, mask: Any) -> Any:
    """A mask of the array's shape."""
    mask = _cast.as_value(mask)
    size = int(np.prod(cell.shape, dtype=np.int64))
    if np.size(mask) != size:
        raise BroadcastError(
            f"the mask has shape {np.shape(mask)}, and the array has shape {cell.shape}: they must "
            "have the same number of elements"
        )
    mask = mask if isinstance(mask, jax.Array) else np.asarray(mask)
    if mask.dtype != np.bool_:
        mask = mask != 0
    return mask if mask.shape == cell.shape else mask.reshape(cell.shape)


def copyto(cell: Cell, source: Any, casting: Any = "same_kind", where: Any = True) -> None:
    """``np.copyto``: writes an array, or only where a mask is true.

    Raises:
        CastError: the values do not cast to the dtype by the rule that ``casting`` names.
        BroadcastError: values or mask do not broadcast to the array's shape.
    """
    source, where = _cast.as_value(source), _cast.as_value(where)
    if casting == "unsafe":
        source = jnp.asarray(source).astype(cell.dtype)
    elif casting != "same_kind":
        given = getattr(source, "dtype", cell.dtype)  # Python scalars adapt
        if not np.can_cast(given, cell.dtype, casting):
            raise CastError(
                f"cannot write values of dtype {given} into an array of dtype {cell.dtype} under "
                f"casting={casting!r}: cast them with .astype({cell.dtype.name!r}) first, or pass "
                "casting='unsafe'"
            )
    _cast.check_cast(source, cell.dtype)
    for what in (source, where):
        _cast.check_broadcast(what, cell.shape)
    if where is True:
        _ops.put(cell, ..., source)
    elif np.ndim(source) == 0:
        mask = where if np.shape(where) == cell.shape else jnp.broadcast_to(where, cell.shape)
        _ops.put(cell, mask if cell.shape else (mask,), source)
    else:
        source = _near(cell, jnp.asarray(source).astype(cell.dtype))
        _ops.put(cell, ..., jnp.where(_near(cell, where), source, _ops.working(cell)))
