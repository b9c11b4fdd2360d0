"""`MutableArray`: properties and dunders, each a line that delegates."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn, Self, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from mutarray import _apply, _inplace, _numpy, _ops, _pickled, _repr, _trace_cells
from mutarray._cell import BufferCell
from mutarray._handle import cell_of
from mutarray._methods import Methods
from mutarray._trace_cells import Cell, OpaqueCell
from mutarray._types import ArrayLike, Index
from mutarray.errors import NoAtError


class MutableArray(Methods):
    """A NumPy array that you can write to, laid over a mesh of devices.

    Made by `mutable_array`, `zeros` and their kin, not by calling the class. Reads give immutable
    ``jax.Array``s, writes go in place, and only `reshard` changes the sharding. It is a pytree
    node, so it passes through ``jax.jit`` and the other transformations, as an argument or by
    closure.

    Example:
        >>> import jax.numpy as jnp, mutarray as mu
        >>> m = mu.mutable_array(jnp.arange(6).reshape(2, 3))
        >>> m[1, ::-1] = 7
        >>> m[...]
        Array([[0, 1, 2],
               [7, 7, 7]], dtype=int32)
    """

    __slots__ = ()

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
    def dtype(self) -> np.dtype[Any]:
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
        """Where the array lives; one object for its whole life, or until `reshard`.

        Inside a trace, for an array that was made there without ``sharding=``, it is what the type
        of its value says: on auto meshes that is nothing.
        """
        return _ops.sharding(cell_of(self))

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

    def fill(self, value: ArrayLike) -> None:
        """Writes one scalar to all elements.

        Args:
            value: a scalar that casts to the dtype by ``same_kind``.

        Raises:
            CastError: the value does not cast.
            BroadcastError: the value is no scalar.

        Example:
            >>> import mutarray as mu
            >>> m = mu.zeros(3)
            >>> m.fill(2)
            >>> m[...]
            Array([2., 2., 2.], dtype=float32)
        """
        _ops.put(cell_of(self), ..., value)

    def add_at(self, idx: Index, value: ArrayLike) -> None:
        """Adds ``value`` where ``idx`` points; an element named twice gets both (``np.add.at``).

        Args:
            idx: a NumPy index.
            value: broadcasts to the shape of ``m[idx]`` and casts by ``same_kind``.

        Raises:
            OutOfBoundsError: a known integer is out of range.
            BroadcastError: the value does not broadcast.
            CastError: the value does not cast.

        Example:
            >>> import mutarray as mu
            >>> m = mu.ones(3)
            >>> m.add_at([0, 0, 2], 1.0)
            >>> m[...]
            Array([3., 1., 2.], dtype=float32)
        """
        _ops.put(cell_of(self), idx, value, op="add")

    def multiply_at(self, idx: Index, value: ArrayLike) -> None:
        """Multiplies where ``idx`` points; as `add_at` (``np.multiply.at``)."""
        _ops.put(cell_of(self), idx, value, op="multiply")

    def min_at(self, idx: Index, value: ArrayLike) -> None:
        """Takes the lesser of old and new where ``idx`` points (``np.minimum.at``)."""
        _ops.put(cell_of(self), idx, value, op="min")

    def max_at(self, idx: Index, value: ArrayLike) -> None:
        """Takes the greater of old and new where ``idx`` points (``np.maximum.at``)."""
        _ops.put(cell_of(self), idx, value, op="max")

    @overload
    def apply_at(self, fn: Callable[[jax.Array], Any], idx: Index) -> None: ...
    @overload
    def apply_at(
        self, fn: Callable[[jax.Array, jax.Array], Any], idx: Index, value: ArrayLike
    ) -> None: ...
    def apply_at(self, fn: Callable[..., Any], idx: Index, value: ArrayLike | None = None) -> None:
        """Applies a function where ``idx`` points: ``ufunc.at`` for any elementwise function.

        ``m[i] = fn(m[i])``, or ``fn(m[i], v)`` with a value, for one named element after the other:
        an element that is named twice gets it twice. The program is kept under ``fn``: pass the
        same function again, not a new ``lambda`` each time.

        Args:
            fn: an elementwise function that JAX can trace, of one argument or of two.
            idx: a NumPy index.
            value: the second argument; broadcasts to the shape of ``m[idx]``.

        Raises:
            OutOfBoundsError: a known integer is out of range.
            BroadcastError: the value does not broadcast.
            CastError: what ``fn`` gives does not cast to the dtype by ``same_kind``.
            BadValueError: ``fn`` is not elementwise.

        Example:
            >>> import jax.numpy as jnp, mutarray as mu
            >>> m = mu.mutable_array(jnp.array([-3.0, 3.0, 5.0]))
            >>> m.apply_at(jnp.negative, [0, 2, 2])
            >>> m.apply_at(jnp.hypot, slice(0, 2), 4.0)
            >>> m[...]
            Array([5., 5., 5.], dtype=float32)
        """
        _apply.apply_at(cell_of(self), fn, idx, value)

    def __jax_array__(self) -> jax.Array:
        return _ops.get(cell_of(self), ...)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        # Unless a copy is asked for, it may be a view of a snapshot, which is read-only.
        return np.asarray(_ops.get(cell_of(self), ...), dtype=dtype, copy=copy)

    __array_priority__ = 100  # as that of jax.Array

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return _numpy.call_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _numpy.call_function(func, types, args, kwargs)

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        return jnp.zeros(0).__array_namespace__(api_version=api_version)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return _numpy.exported(self).__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _numpy.exported(self).__dlpack_device__()  # pyright: ignore

    def reshard(self, sharding: Sharding) -> None:
        """Lays the array out by another sharding, in place: other devices, spec or memory kind.

        A device needs no more memory meanwhile than for its old block, its new one, and a part of
        that. Snapshots stay where and what they are. If it fails, nothing has changed. Functions
        compiled for the old sharding compile anew when the array is next passed to them; one that
        closed over it gets a copy in the old place in each call. In `mutarray.no_gather` it is
        allowed: what it touches is the whole array.

        Args:
            sharding: from now on ``m.sharding``, this very object.

        Raises:
            BadShardingError: ``sharding`` is no sharding, or has too many dimensions.
            IndivisibleError: it splits an axis unevenly.
            TraceError: inside of a trace, where nothing can move.

        Example:
            >>> import jax, mutarray as mu
            >>> from jax.sharding import NamedSharding, PartitionSpec as P
            >>> m = mu.zeros((8, 4))
            >>> s = NamedSharding(jax.make_mesh((4,), ('d',)), P('d'))
            >>> m.reshard(s)
            >>> m.sharding is s, m.addressable_shards[3].index
            (True, (slice(6, 8, None), slice(None, None, None)))
        """
        _ops.reshard(cell_of(self), sharding)

    def copy(self) -> MutableArray:
        """A new mutable array with the same contents and the same sharding.

        Example:
            >>> import mutarray as mu
            >>> m = mu.zeros(2)
            >>> k = m.copy()
            >>> k[0] = 1
            >>> m[...], k[...]
            (Array([0., 0.], dtype=float32), Array([1., 0.], dtype=float32))
        """
        return wrap(_ops.duplicate(cell_of(self)))

    def __copy__(self) -> MutableArray:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> MutableArray:
        return self.copy()

    def __reduce__(self) -> Any:
        return _unpickle, (_pickled.dump(cell_of(self)),)

    def __iadd__(self, other: ArrayLike) -> Self:
        _ops.update(cell_of(self), jnp.add, other)
        return self

    def __isub__(self, other: ArrayLike) -> Self:
        _ops.update(cell_of(self), jnp.subtract, other)
        return self

    def __imul__(self, other: ArrayLike) -> Self:
        _ops.update(cell_of(self), jnp.multiply, other)
        return self

    def __itruediv__(self, other: ArrayLike) -> Self:
        _ops.update(cell_of(self), jnp.true_divide, other)
        return self

    def __ifloordiv__(self, other: ArrayLike) -> Self:
        _ops.update(cell_of(self), jnp.floor_divide, other)
        return self

    def __imod__(self, other: ArrayLike) -> Self:
        _ops.update(cell_of(self), jnp.remainder, other)
        return self

    def __ipow__(self, other: ArrayLike) -> Self:
        _ops.update(cell_of(self), jnp.power, other)
        return self

    def __imatmul__(self, other: ArrayLike) -> Self:
        _inplace.matmul(cell_of(self), other)
        return self

    def __iand__(self, other: ArrayLike) -> Self:
        _ops.update(cell_of(self), jnp.bitwise_and, other)
        return self

    def __ior__(self, other: ArrayLike) -> Self:
        _ops.update(cell_of(self), jnp.bitwise_or, other)
        return self

    def __ixor__(self, other: ArrayLike) -> Self:
        _ops.update(cell_of(self), jnp.bitwise_xor, other)
        return self

    def __ilshift__(self, other: ArrayLike) -> Self:
        _ops.update(cell_of(self), jnp.left_shift, other)
        return self

    def __irshift__(self, other: ArrayLike) -> Self:
        _ops.update(cell_of(self), jnp.right_shift, other)
        return self

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


def _unpickle(state: Any) -> MutableArray:
    return wrap(_pickled.load(state))


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
        return f"<mutable array{made}: {mend}; mutarray.jit takes it twice, and returns it>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Leaf)

    def __hash__(self) -> int:
        return hash(_Leaf)


def _flatten(m: MutableArray) -> tuple[tuple[Any], Any]:
    child, home = _trace_cells.flatten(m._cell)
    return (child,), home


def _flatten_with_keys(m: MutableArray) -> tuple[tuple[tuple[_Leaf, Any]], Any]:
    child, home = _trace_cells.flatten(m._cell)
    return ((_Leaf(m._cell), child),), home


def _unflatten(home: Any, children: Any) -> MutableArray:
    return wrap(_trace_cells.unflatten(home, children[0]))


jax.tree_util.register_pytree_with_keys(MutableArray, _flatten_with_keys, _unflatten, _flatten)
