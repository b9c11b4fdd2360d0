"""`MutableArray`: properties and dunders, each a line that delegates."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn

import jax
import numpy as np
from jax.sharding import Sharding

from mutarray import _cell, _ops, _repr
from mutarray._cell import BufferCell, Cell, OpaqueCell
from mutarray._types import ArrayLike, Index
from mutarray.errors import NoAtError, NotMutableError


class MutableArray:
    """A NumPy array that you can write to, laid over a mesh of devices.

    Made by `mutable_array`, `zeros` and their kin, not by calling the class. Reads give immutable
    ``jax.Array``s, writes go in place, and the sharding never changes. It is a pytree node, so it
    passes through ``jax.jit`` and the other transformations as an argument or by closure.

    Example:
        >>> import jax.numpy as jnp, mutarray as mu
        >>> m = mu.mutable_array(jnp.arange(6).reshape(2, 3))
        >>> m[1, ::-1] = 7
        >>> m[...]
        Array([[0, 1, 2],
               [7, 7, 7]], dtype=int32)
    """

    __slots__ = ("__weakref__", "_cell")

    def __init__(self, *args: Any, **kwargs: Any):
        raise TypeError(
            "MutableArray is not made by calling it: use mutarray.mutable_array(x), or "
            "mutarray.zeros, ones, full, empty, from_callback"
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes."""
        return cell_of(self).shape

    @property
    def dtype(self) -> Any:
        """The dtype of the elements."""
        return cell_of(self).dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all elements, counted once however often they are replicated."""
        return self.size * self.itemsize

    @property
    def sharding(self) -> Sharding:
        """Where the array lives; one object for its whole life.

        Inside a trace, for an array that was made there without ``sharding=``, it is what the type
        of its value says: on auto meshes that is nothing.
        """
        return _ops.sharding(cell_of(self))

    @property
    def addressable_shards(self) -> Sequence[Any]:
        """The blocks on the devices of this process, as they are now (immutable)."""
        return _ops.snapshot(cell_of(self)).addressable_shards

    @property
    def at(self) -> NoReturn:
        """Not there: a mutable array is written in place."""
        raise NoAtError(
            "a mutable array has no .at: write in place, m[idx] = v or mutarray.addupdate(m, idx, "
            "v); for a changed copy that leaves m alone, use m[...].at[idx].set(v)"
        )

    def __getitem__(self, index: Index) -> jax.Array:
        return _ops.get(cell_of(self), index)

    def __setitem__(self, index: Index, value: ArrayLike) -> None:
        _ops.put(cell_of(self), index, value)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object: a 0-d mutable array has no length")
        return self.shape[0]

    def __jax_array__(self) -> jax.Array:
        return _ops.get(cell_of(self), ...)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy  # the values leave the devices: it is always a copy, or a view of a snapshot
        return np.asarray(_ops.get(cell_of(self), ...), dtype=dtype)

    def __repr__(self) -> str:
        return _repr.describe(self._cell)


def wrap(cell: Cell | OpaqueCell) -> MutableArray:
    """The handle of a cell; always the same one for a cell that owns buffers."""
    if isinstance(cell, BufferCell) and cell.handle is not None:
        handle = cell.handle()
        if handle is not None:
            return handle
    handle = object.__new__(MutableArray)
    handle._cell = cell
    if isinstance(cell, BufferCell):
        cell.handle = weakref.ref(handle)
    return handle


def cell_of(m: Any) -> Cell:
    """The cell of a handle.

    Raises:
        NotMutableError: ``m`` is no mutable array, or one whose Ref a tree transformation replaced.
    """
    if not isinstance(m, MutableArray):
        raise NotMutableError(
            f"expected a MutableArray, got {type(m).__name__}: make it one with "
            "mutarray.mutable_array(x)"
        )
    cell = m._cell
    if isinstance(cell, OpaqueCell):
        raise NotMutableError(
            f"this MutableArray was rebuilt by a tree transformation around a "
            f"{type(cell.child).__name__} instead of its Ref: it can be taken apart again, and "
            "nothing else"
        )
    return cell


# Pytree ------------------------------------------------------------------------------------------


class _Leaf:
    """The key of the one child; what JAX's errors show behind the name of an argument.

    JAX raises its own error for an array that is passed twice or returned from a ``jit``; the text
    that it puts there is the one place where mutarray can add how to mend it.
    """

    __slots__ = ("_cell",)

    def __init__(self, cell: Any):
        self._cell = cell

    def __str__(self) -> str:
        made = getattr(self._cell, "made_at", "")
        made = f" made at {made}" if made else ""
        mend = "return its values, m[...]"
        if isinstance(self._cell, BufferCell):  # an argument, or one that was closed over
            mend = f"pass it once, and {mend}"
        return f"<mutable array{made}: {mend}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Leaf)

    def __hash__(self) -> int:
        return hash(_Leaf)


def _flatten(m: MutableArray) -> tuple[tuple[Any], Any]:
    child, home = _cell.flatten(m._cell)
    return (child,), home


def _flatten_with_keys(m: MutableArray) -> tuple[tuple[tuple[_Leaf, Any]], Any]:
    child, home = _cell.flatten(m._cell)
    return ((_Leaf(m._cell), child),), home


def _unflatten(home: Any, children: Any) -> MutableArray:
    return wrap(_cell.unflatten(home, children[0]))


jax.tree_util.register_pytree_with_keys(MutableArray, _flatten_with_keys, _unflatten, _flatten)


# Verbs -------------------------------------------------------------------------------------------


def get(
    m: MutableArray,
    idx: Index = ...,
    *,
    mode: str | None = None,
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
    mode: str | None = None,
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
    mode: str | None = None,
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
    mode: str | None = None,
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


def freeze(m: MutableArray) -> jax.Array:
    """The contents of ``m`` as an immutable array, without a copy; ``m`` cannot be used any more.

    Args:
        m: the array.

    Returns:
        An array with the shape, dtype and sharding of ``m``, which now owns its buffers.

    Raises:
        SpentError: ``m`` was frozen before.

    Example:
        >>> import mutarray as mu
        >>> m = mu.zeros(3)
        >>> mu.freeze(m)
        Array([0., 0., 0.], dtype=float32)
        >>> m[0]
        Traceback (most recent call last):
        ...
        mutarray.errors.SpentError: this mutable array of shape (3,) was frozen, and its buffers \
belong to the array that mu.freeze returned: use that, or make it mutable again with \
mu.mutable_array
    """
    return _ops.freeze(cell_of(m))
