"""The compiled engine for immutable arrays: reads and writes that gather nothing.

For code that stays functional. ``set`` and ``add`` give a new array, as ``x.at[idx].set(v)`` does;
inside a ``jax.jit`` that donates ``x`` they work in place. Index, values, duplicates and what is
out of range follow the rules of mutable arrays, and the sharding is kept.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import NamedSharding, Sharding

from mutarray import _buffers, _cast, _frames, _general, _jaxapi, _ops, _traced
from mutarray._form import Selection
from mutarray._frames import Home
from mutarray._layout import check_sharding
from mutarray._select import select
from mutarray._types import ArrayLike, Index, Mode
from mutarray.errors import BadValueError


def get(
    x: jax.Array,
    idx: Index = ...,
    *,
    sharding: Sharding | None = None,
    mode: Mode | None = None,
    wrap_negative_indices: bool = True,
    fill_value: ArrayLike | None = None,
) -> jax.Array:
    """What ``x[idx]`` gives, by a sum of what its owners hold: the array itself is not moved.

    Args:
        x: the array.
        idx: a NumPy index; windows with a traced start are made by `mutarray.ds`.
        sharding: how ``x`` is laid out. It is known outside of ``jit`` and on explicit meshes; on
            an auto mesh inside of ``jit`` it has to be given, or XLA decides what is gathered.
        mode: what to do with indices out of range, as for `mutarray.get`.
        wrap_negative_indices: whether negative indices count from the end.
        fill_value: the element for indices out of range under ``mode='fill'``.

    Returns:
        The elements; an axis that is taken whole is split as in ``x``, one that is taken in part is
        where its length divides.

    Raises:
        OutOfBoundsError: a known integer is out of range and ``mode`` is ``None``.
        BadIndexError: ``idx`` is no NumPy index.
        BadShardingError: ``sharding`` is no sharding.
        IndivisibleError: ``sharding`` splits an axis of ``x`` unevenly.

    Example:
        >>> import jax.numpy as jnp, mutarray as mu
        >>> mu.functional.get(jnp.arange(6), [1, -1])
        Array([1, 5], dtype=int32)
    """
    x, home = _homed(x, sharding)
    selection = select(x.shape, idx, writing=False, mode=mode, wrap=wrap_negative_indices)
    fill = None if fill_value is None else _cast.as_value(fill_value)
    if fill is not None:
        _cast.check_cast(fill, x.dtype)
    if _runs_now(x, selection):
        assert home.sharding is not None
        return _general.read(x, home.sharding, selection, fill)
    return _traced.read(x, home, selection, fill)


def set(
    x: jax.Array,
    idx: Index,
    value: ArrayLike,
    *,
    sharding: Sharding | None = None,
    mode: Mode | None = None,
    wrap_negative_indices: bool = True,
    unique_indices: bool = False,
) -> jax.Array:
    """A new array with ``value`` where ``idx`` points; the last of duplicates wins.

    Args:
        x: the array, which is left as it is.
        idx: a NumPy index; windows with a traced start are made by `mutarray.ds`.
        value: broadcasts to the shape of ``x[idx]`` and casts to ``x.dtype`` by ``same_kind``.
        sharding: how ``x`` is laid out, as for `get`; the result has it too.
        mode: what to do with indices out of range, as for `mutarray.set`.
        wrap_negative_indices: whether negative indices count from the end.
        unique_indices: a promise that no element is named twice.

    Returns:
        An array with the shape, dtype and sharding of ``x``.

    Raises:
        OutOfBoundsError: a known integer is out of range and ``mode`` is ``None``.
        BadIndexError: ``idx`` is no NumPy index.
        BroadcastError: the value does not broadcast.
        CastError: the value does not cast.
        BadShardingError: ``sharding`` is no sharding.
        IndivisibleError: ``sharding`` splits an axis of ``x`` unevenly.

    Example:
        >>> import jax.numpy as jnp, mutarray as mu
        >>> mu.functional.set(jnp.zeros(4), slice(None, None, 2), 1)
        Array([1., 0., 1., 0.], dtype=float32)
    """
    return _written(x, idx, value, sharding, mode, wrap_negative_indices, unique_indices, "set")


def add(
    x: jax.Array,
    idx: Index,
    value: ArrayLike,
    *,
    sharding: Sharding | None = None,
    mode: Mode | None = None,
    wrap_negative_indices: bool = True,
) -> jax.Array:
    """A new array with ``value`` added where ``idx`` points; an element named twice gets both.

    Args:
        x: the array, which is left as it is.
        idx: a NumPy index; windows with a traced start are made by `mutarray.ds`.
        value: as for `set`.
        sharding: how ``x`` is laid out, as for `get`; the result has it too.
        mode: as for `set`.
        wrap_negative_indices: whether negative indices count from the end.

    Returns:
        An array with the shape, dtype and sharding of ``x``.

    Raises:
        OutOfBoundsError: a known integer is out of range and ``mode`` is ``None``.
        BadIndexError: ``idx`` is no NumPy index.
        BroadcastError: the value does not broadcast.
        CastError: the value does not cast, or ``x`` holds PRNG keys.
        BadShardingError: ``sharding`` is no sharding.
        IndivisibleError: ``sharding`` splits an axis of ``x`` unevenly.

    Example:
        >>> import jax.numpy as jnp, mutarray as mu
        >>> mu.functional.add(jnp.zeros(3), [0, 2, 0], 1.0)
        Array([2., 0., 1.], dtype=float32)
    """
    return _written(x, idx, value, sharding, mode, wrap_negative_indices, False, "add")


def _written(
    x: jax.Array,
    idx: Index,
    value: Any,
    sharding: Sharding | None,
    mode: str | None,
    wrap: bool,
    unique: bool,
    op: str,
) -> jax.Array:
    x, home = _homed(x, sharding)
    selection = select(x.shape, idx, writing=True, mode=mode, wrap=wrap, unique=unique)
    value = _ops.checked(x.dtype, selection, value, op)
    if 0 in selection.form.result_shape:
        return x
    if _runs_now(x, selection) and not _jaxapi.is_tracer(value):
        assert home.sharding is not None
        return _general.write(x, home.sharding, selection, value, op)
    return _traced.write(x, home, selection, _ops.cast_to(value, x.dtype), op)


def _homed(x: Any, sharding: Sharding | None) -> tuple[jax.Array, Home]:
    """The array, laid out by ``sharding`` if it is given, and where it lives."""
    if not isinstance(x, jax.Array):
        raise BadValueError(
            f"mutarray.functional works on a jax.Array, got {type(x).__name__}: convert it with "
            "jnp.asarray, or for a MutableArray use m[idx] and m[idx] = value"
        )
    if sharding is not None:
        check_sharding(x.shape, sharding)
    if _jaxapi.is_tracer(x):
        return (x if sharding is None else _frames.place(x, sharding)), Home(x.shape, sharding)
    if sharding is None:
        sharding = x.sharding
    elif sharding != x.sharding:
        x = _buffers.put(x, sharding)
    return x, Home(x.shape, sharding if isinstance(sharding, NamedSharding) else x.sharding)


def _runs_now(x: jax.Array, selection: Selection) -> bool:
    return not _jaxapi.is_tracer(x) and not _jaxapi.in_trace() and selection.is_known


def __dir__() -> list[str]:
    return ["add", "get", "set"]
