"""The cell: what owns, or stands for, the contents of one mutable array.

The only place where a buffer is replaced, shared or given up. There are four kinds:

* `BufferCell` owns real buffers. Outside of traces it is read and written directly. In a trace it
  is used through its *door*, a ``jax.Ref`` whose buffer is whatever the cell lends.
* `RefCell` stands for the Ref that a trace received in place of a cell.
* `ValueCell` is an array made inside a trace. While only that trace uses it, it is nothing but the
  current value, so gradients and ``vmap`` see plain functional code; when an inner trace (the body
  of a loop, a nested ``jit``) asks for it, it becomes a Ref of the trace that it was made in.
* `OpaqueCell` carries whatever else a tree transformation puts in a leaf's place.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import jax
from jax.sharding import Sharding

from mutarray import _eager, _jaxapi
from mutarray._traced import Home
from mutarray.errors import SpentError, TraceError


class BufferCell:
    """Owns the buffers of one array.

    The array object that JAX works with is private: JAX replaces the buffers inside it. What users
    get are aliases of it; after the first one the buffers count as shared, and whoever is about to
    write in place copies them first.
    """

    def __init__(self, array: jax.Array, sharding: Sharding):
        self._array: jax.Array | None = array
        self._shared = False
        self._lent: jax.Array | None = None
        self._door: Any = None
        self._spent = ""
        self._source = _jaxapi.here()
        self.handle: weakref.ref[Any] | None = None
        self.lock = threading.RLock()
        self.home = Home(array.shape, sharding)
        self.shape = array.shape
        self.dtype = array.dtype

    @property
    def sharding(self) -> Sharding:
        """The sharding, one object for the array's life."""
        assert self.home.sharding is not None
        return self.home.sharding

    @property
    def made_at(self) -> str:
        """Where in the user's code it was made."""
        return _jaxapi.summarize(self._source)

    def array(self) -> jax.Array:
        """The contents; not to be handed out, and not to be kept beyond one operation."""
        self._settle()
        array = self._live()
        if array.is_deleted():
            raise SpentError(
                "this mutable array's buffers were donated to a call that did not finish, and its "
                "contents are lost: make it anew from a checkpoint or a snapshot"
            )
        return array

    def _live(self) -> jax.Array:
        if self._array is None:
            raise SpentError(self._spent)
        return self._array

    def snapshot(self) -> jax.Array:
        """An immutable array with the contents, which shares the buffers until the next write."""
        with self.lock:
            alias = _jaxapi.alias(self.array(), self.sharding)
            self._shared = True
            return alias

    def replace(self, array: jax.Array) -> None:
        """Puts new contents, laid out by the cell's sharding, in the place of the old."""
        self._array = array
        self._shared = False

    def give_up(self, reason: str) -> jax.Array:
        """The contents under an array of the caller's; the cell is spent."""
        with self.lock:
            alias = _jaxapi.alias(self.array(), self.sharding)
            self._array, self._spent = None, reason
            return alias

    # The door --------------------------------------------------------------------------------

    def ref(self) -> Any:
        """The Ref that stands for this cell in traces; always the same object."""
        with self.lock:
            array = self.array()
            if self._door is None:
                self._door = _jaxapi.make_door(array, self)
            return self._door

    def lend(self) -> jax.Array:
        """An array in device memory that JAX may donate, and whose buffers it replaces."""
        with self.lock:
            work = _eager.compute_sharding(self.sharding)
            if work is not self.sharding:
                return self._lend_copy(work)
            if self._shared:
                self.replace(_eager.copy(self.array(), self.sharding))
            return self._live()

    def _lend_copy(self, work: Sharding) -> jax.Array:
        """For arrays in host memory: a copy on the devices, brought home at the next use.

        JAX 0.9 cannot compile a Ref in host memory for several CPU devices, and later versions
        move the whole array to the device all the same.
        """
        lent = self._lent
        if lent is None:
            lent = self._lent = jax.device_put(self._live(), work, may_alias=False)
        return lent

    def _settle(self) -> None:
        """Brings a lent copy home; drops one that was donated to a call that failed."""
        with self.lock:
            lent, self._lent = self._lent, None
            if lent is not None and not lent.is_deleted():
                self.replace(jax.device_put(lent, self.sharding, may_alias=False))

    def traced_value(self) -> jax.Array:
        """The contents, inside a trace."""
        _refuse_in_shard_map()
        return self.ref()[...]

    def traced_replace(self, value: jax.Array) -> None:
        """New contents, inside a trace."""
        _refuse_in_shard_map()
        self.ref()[...] = value


def _refuse_in_shard_map(axes: frozenset[str] = frozenset()) -> None:
    """JAX has no meaning for a Ref that a ``shard_map`` body closes over, and may crash on it.

    Args:
        axes: the manual axes where the Ref was made or passed in.
    """
    if _jaxapi.manual_axes() != axes:
        raise TraceError(
            "a mutable array from outside is used inside of a shard_map body: pass it in as an "
            "argument, with the spec of its sharding in in_specs; the body then gets its own block"
        )


class RefCell:
    """Stands for a Ref inside a trace."""

    def __init__(self, ref: Any, home: Home):
        self._ref = ref
        self._axes = _jaxapi.manual_axes()
        self.home = home

    @property
    def shape(self) -> tuple[int, ...]:
        return self._ref.shape

    @property
    def dtype(self) -> Any:
        return self._ref.dtype

    @property
    def sharding(self) -> Sharding | None:
        return self.home.sharding if self.home.shape == self.shape else None

    def ref(self) -> Any:
        return self._ref

    def traced_value(self) -> jax.Array:
        _refuse_in_shard_map(self._axes)
        return self._ref[...]

    def traced_replace(self, value: jax.Array) -> None:
        _refuse_in_shard_map(self._axes)
        _jaxapi.write_whole(self._ref, value)

    def give_up(self, reason: str) -> jax.Array:
        value = self.traced_value()
        self._ref = _Spent(reason)
        return value


class _Spent:
    """Takes the place of a Ref that was frozen inside a trace."""

    def __init__(self, reason: str):
        self._reason = reason

    def __getattr__(self, name: str) -> Any:
        raise SpentError(self._reason)

    def __getitem__(self, index: Any) -> Any:
        raise SpentError(self._reason)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise SpentError(self._reason)


class ValueCell:
    """An array that was made inside a trace."""

    def __init__(self, value: jax.Array, sharding: Sharding | None):
        self._value: Any = value
        self._trace = _jaxapi.current_trace()
        self._axes = _jaxapi.manual_axes()
        self._source = _jaxapi.here()
        self._ref: Any = None
        self.shape = value.shape
        self.dtype = value.dtype
        self.home = Home(value.shape, sharding)

    @property
    def sharding(self) -> Sharding | None:
        return self.home.sharding

    @property
    def made_at(self) -> str:
        """Where in the user's code it was made."""
        return _jaxapi.summarize(self._source)

    def ref(self) -> Any:
        """The Ref of the trace that it was made in, from now on what holds the contents."""
        if self._ref is None:
            try:
                self._ref = _jaxapi.new_ref(self._value, self._trace, self._source)
            except Exception as error:
                raise TraceError(
                    f"the mutable array made at {self.made_at} is used in an inner function (a "
                    "loop body, a nested jit), and the trace that it was made in has no Refs: put "
                    "a jax.jit around the outermost transformation, for example "
                    "jax.jit(jax.shard_map(...))"
                ) from error
            self._value = None
        return self._ref

    def _is_local(self) -> bool:
        return self._ref is None and _jaxapi.current_trace() is self._trace

    def traced_value(self) -> jax.Array:
        if self._is_local():
            return self._value
        _refuse_in_shard_map(self._axes)
        return self.ref()[...]

    def traced_replace(self, value: jax.Array) -> None:
        if self._is_local():
            self._value = value
        else:
            _refuse_in_shard_map(self._axes)
            _jaxapi.write_whole(self.ref(), value)

    def give_up(self, reason: str) -> jax.Array:
        value = self.traced_value()
        self._ref = _Spent(reason)
        return value


class OpaqueCell:
    """Carries what a tree transformation put in the place of the Ref."""

    def __init__(self, child: Any, home: Home):
        self.child = child
        self.home = home

    def ref(self) -> Any:
        return self.child


Cell = BufferCell | RefCell | ValueCell


def flatten(cell: Cell | OpaqueCell) -> tuple[Any, Home]:
    """The one child of the pytree node of an array, and its static part."""
    return cell.ref(), cell.home


def unflatten(home: Home, child: Any) -> Cell | OpaqueCell:
    """The cell for a child that JAX gives back, whatever it is."""
    lender = _jaxapi.lender_of(child)
    if lender is not None:
        return lender
    if _jaxapi.is_ref(child):
        return RefCell(child, home)
    return OpaqueCell(child, home)
