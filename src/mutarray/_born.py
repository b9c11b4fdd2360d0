"""Constructors of arrays that are born in shards: never whole on one device or on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from mutarray import _buffers, _cast, _jaxapi
from mutarray._array import MutableArray, cell_of
from mutarray._cell import BufferCell
from mutarray._create import as_array, made_in_trace, own
from mutarray._layout import check_sharding, layout_of
from mutarray._types import ArrayLike, Shape
from mutarray.errors import BadValueError, ShapeError, TraceError


def full(
    shape: int | Shape,
    fill_value: ArrayLike,
    dtype: Any = None,
    *,
    sharding: Sharding | None = None,
) -> MutableArray:
    """A mutable array of one value, born in shards: it is never whole anywhere.

    Args:
        shape: the lengths of the axes.
        fill_value: a scalar.
        dtype: the dtype; by default that of ``fill_value``.
        sharding: where the array shall live; by default on JAX's default device.

    Returns:
        The mutable array.

    Raises:
        IndivisibleError: the sharding splits an axis unevenly.
        BadShardingError: ``sharding`` is no sharding, or has too many dimensions.
        BadValueError: ``fill_value`` is no scalar, or a length is no integer.
        ShapeError: a length is negative.
        CastError: ``fill_value`` does not cast to ``dtype``.

    Example:
        >>> import mutarray as mu
        >>> mu.full((2, 2), 7)[...]
        Array([[7, 7],
               [7, 7]], dtype=int32)
    """
    shape = _as_shape(shape)
    value = _cast.as_value(fill_value)
    if np.shape(value) != ():
        raise BadValueError(
            f"fill_value has shape {np.shape(value)}, and must be a scalar: for an array of values "
            "use mutarray.mutable_array(values, sharding)"
        )
    if dtype is None:
        dtype = jnp.result_type(value) if isinstance(value, jax.Array) else as_array(value).dtype
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    _cast.check_cast(value, dtype)
    if sharding is not None:
        check_sharding(shape, sharding)
    if _jaxapi.in_trace():
        return made_in_trace(jnp.full(shape, value, dtype), sharding)
    fixed = sharding is not None
    if sharding is None:
        sharding = jnp.zeros((0,) * len(shape), dtype).sharding
        check_sharding(shape, sharding)
    if _buffers.compute_sharding(sharding) is sharding and 0 not in shape:
        scalar = value if isinstance(value, jax.Array) else np.asarray(value).astype(dtype)
        return own(_filler(shape, dtype, sharding)(scalar), sharding, fixed)
    scalar = np.asarray(value).astype(dtype)
    block_shape = layout_of(shape, sharding).block_shape
    return own(
        _buffers.from_blocks(shape, sharding, lambda _: np.broadcast_to(scalar, block_shape)),
        sharding,
        fixed,
    )


@functools.lru_cache(maxsize=256)
def _filler(shape: Shape, dtype: Any, sharding: Sharding) -> Callable[[Any], jax.Array]:
    return jax.jit(lambda value: jnp.full(shape, value, dtype), out_shardings=sharding)


def _as_shape(shape: Any) -> Shape:
    lengths = shape if isinstance(shape, (tuple, list)) else (shape,)
    try:
        lengths = tuple(int(n.__index__()) for n in lengths)
    except (AttributeError, TypeError):
        raise BadValueError(
            f"shape={shape!r} of type {type(shape).__name__} is no shape: pass an integer or a "
            "tuple of integers"
        ) from None
    if any(n < 0 for n in lengths):
        axis = next(k for k, n in enumerate(lengths) if n < 0)
        raise ShapeError(
            f"shape={shape!r} has the negative length {lengths[axis]} for axis {axis}: lengths are "
            "0 or more"
        )
    return lengths


def zeros(
    shape: int | Shape, dtype: Any = None, *, sharding: Sharding | None = None
) -> MutableArray:
    """A mutable array of zeros, born in shards. See `full`.

    Args:
        shape: the lengths of the axes.
        dtype: the dtype; by default JAX's default float.
        sharding: where the array shall live; by default on JAX's default device.

    Returns:
        The mutable array.

    Raises:
        IndivisibleError: the sharding splits an axis unevenly.

    Example:
        >>> import mutarray as mu
        >>> mu.zeros(3)[...]
        Array([0., 0., 0.], dtype=float32)
    """
    return full(shape, False, _float(dtype), sharding=sharding)


def ones(
    shape: int | Shape, dtype: Any = None, *, sharding: Sharding | None = None
) -> MutableArray:
    """A mutable array of ones, born in shards. See `full`.

    Args:
        shape: the lengths of the axes.
        dtype: the dtype; by default JAX's default float.
        sharding: where the array shall live; by default on JAX's default device.

    Returns:
        The mutable array.

    Raises:
        IndivisibleError: the sharding splits an axis unevenly.

    Example:
        >>> import mutarray as mu
        >>> mu.ones(3, int)[...]
        Array([1, 1, 1], dtype=int32)
    """
    return full(shape, True, _float(dtype), sharding=sharding)


def empty(
    shape: int | Shape, dtype: Any = None, *, sharding: Sharding | None = None
) -> MutableArray:
    """A mutable array whose contents do not matter. JAX has no uninitialised memory: it is zeros.

    Args:
        shape: the lengths of the axes.
        dtype: the dtype; by default JAX's default float.
        sharding: where the array shall live; by default on JAX's default device.

    Returns:
        The mutable array.

    Raises:
        IndivisibleError: the sharding splits an axis unevenly.

    Example:
        >>> import mutarray as mu
        >>> mu.empty((2, 3)).shape
        (2, 3)
    """
    return zeros(shape, dtype, sharding=sharding)


def _float(dtype: Any) -> Any:
    return jnp.zeros(()).dtype if dtype is None else dtype


def _like(x: Any, dtype: Any, shape: Any, sharding: Any) -> tuple[Shape, Any, Any]:
    """Shape, dtype and sharding of ``x``, where they are not given."""
    value = x if isinstance(x, MutableArray) else as_array(x)
    if sharding is None and isinstance(value, (MutableArray, jax.Array)):
        if isinstance(value, MutableArray):
            cell = cell_of(value)
            chosen = not isinstance(cell, BufferCell) or cell.place.fixed
            sharding = cell.sharding if chosen else None
        elif not _jaxapi.is_tracer(value) and value.committed:
            sharding = value.sharding
    return value.shape if shape is None else shape, dtype or value.dtype, sharding


def full_like(
    x: ArrayLike | MutableArray,
    fill_value: ArrayLike,
    dtype: Any = None,
    shape: int | Shape | None = None,
    *,
    sharding: Sharding | None = None,
) -> MutableArray:
    """A mutable array of one value with the shape, dtype and sharding of ``x``. See `full`.

    Args:
        x: an array, mutable or not.
        fill_value: a scalar.
        dtype: another dtype.
        shape: another shape.
        sharding: another sharding.

    Returns:
        The mutable array.

    Raises:
        IndivisibleError: the sharding splits an axis unevenly.

    Example:
        >>> import jax.numpy as jnp, mutarray as mu
        >>> mu.full_like(jnp.ones(2), 5)[...]
        Array([5., 5.], dtype=float32)
    """
    shape, dtype, sharding = _like(x, dtype, shape, sharding)
    return full(shape, fill_value, dtype, sharding=sharding)


def zeros_like(
    x: ArrayLike | MutableArray,
    dtype: Any = None,
    shape: int | Shape | None = None,
    *,
    sharding: Sharding | None = None,
) -> MutableArray:
    """A mutable array of zeros with the shape, dtype and sharding of ``x``. See `full_like`."""
    return full_like(x, False, dtype, shape, sharding=sharding)


def ones_like(
    x: ArrayLike | MutableArray,
    dtype: Any = None,
    shape: int | Shape | None = None,
    *,
    sharding: Sharding | None = None,
) -> MutableArray:
    """A mutable array of ones with the shape, dtype and sharding of ``x``. See `full_like`."""
    return full_like(x, True, dtype, shape, sharding=sharding)


def empty_like(
    x: ArrayLike | MutableArray,
    dtype: Any = None,
    shape: int | Shape | None = None,
    *,
    sharding: Sharding | None = None,
) -> MutableArray:
    """A mutable array of zeros with the shape, dtype and sharding of ``x``. See `empty`."""
    return zeros_like(x, dtype, shape, sharding=sharding)


def from_callback(
    shape: int | Shape,
    sharding: Sharding,
    callback: Callable[[tuple[slice, ...]], ArrayLike],
    dtype: Any = None,
) -> MutableArray:
    """A mutable array whose blocks a function makes, one for each device of this process.

    Args:
        shape: the lengths of the axes.
        sharding: where the array shall live.
        callback: is given the slices of a block and returns its values; never asked for more than
            one block at once.
        dtype: the dtype; by default that of the first block.

    Returns:
        The mutable array.

    Raises:
        IndivisibleError: the sharding splits an axis unevenly.
        BroadcastError: a block has another shape than its slices say.
        CastError: a block does not cast to ``dtype``.
        TraceError: called inside of a trace, where no host function can run.

    Example:
        >>> import jax, numpy as np, mutarray as mu
        >>> from jax.sharding import NamedSharding, PartitionSpec as P
        >>> s = NamedSharding(jax.make_mesh((4,), ('d',)), P('d'))
        >>> m = mu.from_callback((8,), s, lambda index: np.arange(8.0)[index])
        >>> float(m[5])
        5.0
    """
    shape = _as_shape(shape)
    check_sharding(shape, sharding)
    if _jaxapi.in_trace():
        raise TraceError(
            "from_callback runs a function on the host, and is called inside of a trace: call it "
            "before, and pass the array in"
        )
    kind = None if dtype is None else jax.dtypes.canonicalize_dtype(dtype)

    def block(index: tuple[slice, ...]) -> np.ndarray:
        nonlocal kind
        value = as_array(callback(index))
        kind = value.dtype if kind is None else kind
        _cast.check_cast(value, kind)
        wanted = tuple(len(range(n)[s]) for n, s in zip(shape, index, strict=True))
        if value.shape != wanted:
            _cast.check_broadcast(value, wanted)
        return np.broadcast_to(np.asarray(value).astype(kind), wanted)

    return own(_buffers.from_blocks(shape, sharding, block), sharding)
