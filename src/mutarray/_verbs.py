"""The verbs of ``jax.ref`` on mutable arrays: get, set, swap, addupdate."""

from __future__ import annotations

from typing import Any

import jax

from mutarray import _ops
from mutarray._array import MutableArray, cell_of
from mutarray._types import ArrayLike, Index, Mode


def get(
    m: MutableArray,
    idx: Index = ...,
    *,
    mode: Mode | None = None,
    wrap_negative_indices: bool = True,
    fill_value: ArrayLike | None = None,
    out_sharding: Any = None,
) -> jax.Array:
    """What ``m[idx]`` gives, with a say over indices out of range and over the result's sharding.

    Args:
        m: the array.
        idx: a NumPy index; windows with a traced start are made by `ds`.
        mode: what to do with indices out of range. ``None``: integers that are known raise, traced
            ones are clipped. ``'clip'``: take the nearest element. ``'drop'`` or ``'fill'``: give
            ``fill_value``.
        wrap_negative_indices: whether negative indices count from the end.
        fill_value: the element for indices out of range; as in JAX, NaN or the extreme value of the
            dtype if it is not given.
        out_sharding: the sharding of the result, or a ``PartitionSpec`` on the mesh of ``m``.

    Returns:
        An immutable array. Without ``out_sharding``, an axis that is taken whole is split as in
        ``m``, one that is taken in part is where its length divides, and is replicated otherwise.

    Raises:
        OutOfBoundsError: a known integer is out of range and ``mode`` is ``None``.
        BadIndexError: ``idx`` is no NumPy index.
        TracedIndexError: the shape of the result depends on a traced value.
        BadModeError: ``mode`` is unknown.

    Example:
        >>> import jax.numpy as jnp, mutarray as mu
        >>> m = mu.mutable_array(jnp.arange(4))
        >>> mu.get(m, jnp.array([1, 9]), mode='fill', fill_value=-1)
        Array([ 1, -1], dtype=int32)
    """
    return _ops.get(cell_of(m), idx, mode, wrap_negative_indices, fill_value, out_sharding)


def set(
    m: MutableArray,
    idx: Index,
    value: ArrayLike,
    *,
    mode: Mode | None = None,
    wrap_negative_indices: bool = True,
    unique_indices: bool = False,
) -> None:
    """``m[idx] = value``, with a say over indices out of range.

    Args:
        m: the array.
        idx: a NumPy index; windows with a traced start are made by `ds`.
        value: broadcasts to the shape of ``m[idx]`` and casts to ``m.dtype`` by ``same_kind``.
        mode: what to do with indices out of range. ``None``: integers that are known raise, traced
            ones are dropped. ``'clip'``: write to the nearest element. ``'drop'`` or ``'fill'``:
            do not write.
        wrap_negative_indices: whether negative indices count from the end.
        unique_indices: a promise that no element is named twice, which saves finding out which
            write is the last.

    Raises:
        OutOfBoundsError: a known integer is out of range and ``mode`` is ``None``.
        BadIndexError: ``idx`` is no NumPy index.
        BroadcastError: the value does not broadcast.
        CastError: the value does not cast.
        BadModeError: ``mode`` is unknown.

    Example:
        >>> import jax.numpy as jnp, mutarray as mu
        >>> slots = mu.zeros(8)
        >>> mu.set(slots, jnp.array([3, -1]), 1.0, mode='drop', wrap_negative_indices=False)
        >>> slots[...]
        Array([0., 0., 0., 1., 0., 0., 0., 0.], dtype=float32)
    """
    _ops.put(cell_of(m), idx, value, mode, wrap_negative_indices, unique_indices)


def swap(
    m: MutableArray,
    idx: Index,
    value: ArrayLike,
    *,
    mode: Mode | None = None,
    wrap_negative_indices: bool = True,
) -> jax.Array:
    """``m[idx] = value``; returns what was there before.

    Args:
        m: the array.
        idx: a NumPy index.
        value: as for `set`.
        mode: as for `get` and `set`.
        wrap_negative_indices: whether negative indices count from the end.

    Returns:
        What ``m[idx]`` gave before the write.

    Raises:
        OutOfBoundsError: a known integer is out of range and ``mode`` is ``None``.
        BroadcastError: the value does not broadcast.
        CastError: the value does not cast.

    Example:
        >>> import jax.numpy as jnp, mutarray as mu
        >>> m = mu.mutable_array(jnp.arange(3))
        >>> mu.swap(m, 1, 9)
        Array(1, dtype=int32)
    """
    return _ops.swap(cell_of(m), idx, value, mode, wrap_negative_indices)


def addupdate(
    m: MutableArray,
    idx: Index,
    value: ArrayLike,
    *,
    mode: Mode | None = None,
    wrap_negative_indices: bool = True,
) -> None:
    """Adds ``value`` where ``idx`` points; an element that is named twice gets both.

    Args:
        m: the array.
        idx: a NumPy index.
        value: as for `set`.
        mode: as for `set`.
        wrap_negative_indices: whether negative indices count from the end.

    Raises:
        OutOfBoundsError: a known integer is out of range and ``mode`` is ``None``.
        BroadcastError: the value does not broadcast.
        CastError: the value does not cast, or ``m`` holds PRNG keys.

    Example:
        >>> import mutarray as mu
        >>> m = mu.zeros(3)
        >>> mu.addupdate(m, [0, 2, 0], 1.0)
        >>> m[...]
        Array([2., 0., 1.], dtype=float32)
    """
    _ops.put(cell_of(m), idx, value, mode, wrap_negative_indices, op="add")
