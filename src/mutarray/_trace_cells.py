"""What stands for a mutable array inside a trace, or inside a tree.

* `RefCell` stands for the Ref that a trace received in place of a cell.
* `ValueCell` is an array made inside a trace. While only that trace uses it, it is nothing but the
  current value, so gradients and ``vmap`` see plain functional code; when an inner trace (the body
  of a loop, a nested ``jit``) asks for it, it becomes a Ref of the trace that it was made in.
* `ArgumentCell` stands for an argument of a `mu.jit` function: a RefCell around a Ref of its own,
  which the program replaces.
* `OpaqueCell` carries whatever else a tree transformation puts in a leaf's place.
"""

from __future__ import annotations

from typing import Any, NoReturn

import jax
from jax.sharding import Sharding

from mutarray import _jaxapi
from mutarray._cell import BufferCell, refuse_misplaced
from mutarray._frames import Home
from mutarray._order import Tokens
from mutarray.errors import SpentError, TraceError


class RefCell:
    """Stands for a Ref inside a trace."""

    def __init__(self, ref: Any, home: Home):
        self._ref = ref
        self._axes = _jaxapi.manual_axes()
        self.home = home
        self.reads = Tokens()

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
        refuse_misplaced(self._axes)
        return self._ref[...]

    def traced_replace(self, value: jax.Array) -> None:
        refuse_misplaced(self._axes)
        _jaxapi.write_whole(self._ref, value)

    def give_up(self, reason: str) -> jax.Array:
        value = self.traced_value()
        self._ref = _Spent(reason)
        return value

    def save(self) -> tuple[Any, jax.Array]:
        """What `restore` goes back to."""
        return self._ref, self.traced_value()

    def restore(self, saved: tuple[Any, jax.Array]) -> None:
        """Takes back all that was done to the array since."""
        self._ref, value = saved
        self.traced_replace(value)


class ArgumentCell(RefCell):
    """Stands for an argument of a `mu.jit` function while that is traced.

    Args:
        like: an array with the type of the contents; it is not kept.
        home: where the array lives.
        work: where programs work on it, in device memory.
        number: which argument it is.
        made_at: where in the user's code it was made.
    """

    def __init__(self, like: jax.Array, home: Home, work: Sharding, number: int, made_at: str):
        super().__init__(_jaxapi.make_door(like, self, work), home)
        self.number = number
        self.made_at = made_at

    def lend(self, work: Sharding) -> jax.Array:
        """JAX asks for contents: the function that it was an argument of has returned."""
        self.refuse()

    def refuse(self) -> NoReturn:
        """Raises, because the array is used outside of the call that it belongs to."""
        raise TraceError(
            f"the mutable array made at {self.made_at} was kept while a mutarray.jit function was "
            "traced, and is used after that, when what was kept stands for nothing: use the array "
            "that was passed to the function, or return it from there"
        )


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
        self.reads = Tokens()

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
        refuse_misplaced(self._axes)
        return self.ref()[...]

    def traced_replace(self, value: jax.Array) -> None:
        if self._is_local():
            self._value = value
        else:
            refuse_misplaced(self._axes)
            _jaxapi.write_whole(self.ref(), value)

    def give_up(self, reason: str) -> jax.Array:
        value = self.traced_value()
        self._ref = _Spent(reason)
        return value

    def save(self) -> tuple[Any, jax.Array]:
        """What `restore` goes back to."""
        return self._ref, self.traced_value()

    def restore(self, saved: tuple[Any, jax.Array]) -> None:
        """Takes back all that was done to the array since."""
        self._ref, value = saved
        self.traced_replace(value)


class OpaqueCell:
    """Carries what a tree transformation put in the place of the Ref."""

    def __init__(self, child: Any, home: Home):
        self.child = child
        self.home = home

    def ref(self) -> Any:
        return self.child


Cell = BufferCell | RefCell | ValueCell  # an ArgumentCell is a RefCell


def flatten(cell: Cell | OpaqueCell) -> tuple[Any, Home]:
    """The one child of the pytree node of an array, and its static part."""
    if not isinstance(cell, BufferCell):
        return cell.ref(), cell.home
    with cell.lock:  # or another thread may move it in between
        return cell.ref(), cell.home


def unflatten(home: Home, child: Any) -> Cell | OpaqueCell:
    """The cell for a child that JAX gives back, whatever it is."""
    lender = _jaxapi.lender_of(child)
    if lender is not None:
        return lender
    if _jaxapi.is_ref(child):
        return RefCell(child, home)
    return OpaqueCell(child, home)
