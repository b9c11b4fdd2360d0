"""Constructors from arrays, and what all constructors share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from mutarray import _buffers, _cast, _frames, _jaxapi, _ops
from mutarray._array import MutableArray, cell_of, wrap
from mutarray._cell import BufferCell
from mutarray._layout import check_sharding
from mutarray._trace_cells import ValueCell
from mutarray._types import ArrayLike
from mutarray.errors import DonationError


def mutable_array(
    x: ArrayLike | MutableArray, sharding: Sharding | None = None, *, donate: bool = False
) -> MutableArray:
    """A mutable array with the contents of ``x``, in the same place.

    Args:
        x: a ``jax.Array`` with any sharding, a NumPy array, a number or a nested sequence of
            numbers, of any dtype that JAX has, PRNG keys included. It stays alive and never
            changes.
        sharding: where the array shall live; by default where ``x`` lives, memory kind and order of
            dimensions included.
        donate: whether to take over the buffers of ``x`` instead of copying them; ``x`` is deleted.
            Buffers that another array shares (a snapshot, a shard of ``x``) are copied all the
            same, since nothing else may be deleted.

    Returns:
        The mutable array. Its ``sharding`` is the very object that was given, or that ``x`` has.

    Raises:
        BadValueError: nothing that an array can be made of.
        BadShardingError: ``sharding`` is no sharding, or has more dimensions than ``x``.
        IndivisibleError: the sharding splits an axis unevenly.
        DonationError: ``donate=True``, and ``x`` is no live ``jax.Array`` of that sharding.

    Example:
        >>> import jax, jax.numpy as jnp, mutarray as mu
        >>> from jax.sharding import NamedSharding, PartitionSpec as P
        >>> mesh = jax.make_mesh((4, 2), ('i', 'j'))
        >>> s = NamedSharding(mesh, P('i', 'j'))
        >>> m = mu.mutable_array(jax.device_put(jnp.ones((8, 8)), s))
        >>> m[3] = 0.0
        >>> m.sharding is s, m[...].sharding == s
        (True, True)
    """
    if donate:
        _check_donation(x, sharding)
    given = sharding
    if isinstance(x, MutableArray):
        cell = cell_of(x)
        sharding = cell.sharding if sharding is None else sharding
        x = _ops.snapshot(cell)
    elif _jaxapi.is_ref(x):
        x = x[...]  # pyright: ignore
    value = as_array(x)
    if sharding is not None:
        check_sharding(np.shape(value), sharding)
    if _jaxapi.in_trace():
        return made_in_trace(value, sharding)
    fixed = given is not None or (isinstance(value, jax.Array) and value.committed)
    if isinstance(value, jax.Array) and sharding in (None, value.sharding):
        home = value.sharding if sharding is None else sharding
        array = _buffers.take_over(value, home) if donate else _buffers.copy(value, home)
        return own(array, home, fixed)
    if sharding is None:
        array = jnp.array(value)
        return own(_buffers.copy(array, array.sharding), array.sharding, fixed)
    return own(_put(value, sharding), sharding)


def as_array(x: Any) -> Any:
    """A JAX or NumPy array, of a dtype that JAX has, and not weak."""
    value = _cast.as_value(x)
    if isinstance(value, jax.Array):
        weak = getattr(value, "weak_type", False)  # keys have no such attribute
        return jnp.asarray(value, value.dtype) if weak else value
    array = np.asarray(value)
    kind = jnp.result_type(x if array is x else array)
    if not isinstance(x, (np.ndarray, np.generic)) and _cast.kind(kind) in (1, 2):
        for extreme in (array.min(initial=0), array.max(initial=0)):
            _cast.check_cast(int(extreme), kind)  # as in JAX, Python integers must fit
    return array.astype(jax.dtypes.canonicalize_dtype(kind))


def _check_donation(x: Any, sharding: Sharding | None) -> None:
    why = None
    if not isinstance(x, jax.Array) or _jaxapi.is_tracer(x):
        why = f"{type(x).__name__} is no concrete jax.Array"
    elif x.is_deleted():
        why = "the array has been deleted already"
    elif sharding is not None and sharding != x.sharding:
        why = f"its sharding {x.sharding} is not the one asked for, {sharding}"
    if why is not None:
        raise DonationError(
            f"donate=True takes over buffers as they are, and {why}: leave donate out, and the "
            "contents are copied"
        )


def _put(value: Any, sharding: Sharding) -> jax.Array:
    """Values under a sharding, in buffers of their own; each device gets only its part."""
    if isinstance(value, jax.Array):
        return _buffers.put_apart(value, sharding)
    return _buffers.from_blocks(value.shape, sharding, lambda index: value[index])


def own(array: jax.Array, sharding: Sharding, fixed: bool = True) -> MutableArray:
    """The mutable array that from now on owns the buffers of ``array``.

    Args:
        array: the contents.
        sharding: where they live.
        fixed: whether the user said so; if not, what is read may go where other arrays are.
    """
    return wrap(BufferCell(array, sharding, fixed))


def made_in_trace(value: Any, sharding: Sharding | None) -> MutableArray:
    """The mutable array of a value inside a trace."""
    known = isinstance(value, jax.Array) and not _jaxapi.is_tracer(value)
    if sharding is None and known and value.committed:  # else JAX may still choose the devices
        sharding = value.sharding
    value = jnp.asarray(value)
    if sharding is not None:
        value = _frames.place(value, sharding)
    return wrap(ValueCell(value, sharding))
