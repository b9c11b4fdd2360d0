"""Operators that give values, and what Python asks of a number or a sequence.

Each asks the ``jax.Array`` with the contents, so promotion and errors are JAX's, in traces too.
What changes the array, ``m += 1`` and its kin, is in `_array`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax

from mutarray import _buffers, _jaxapi, _repr
from mutarray._handle import cell_of, plain, value_of
from mutarray._signatures import Signatures


def _binary(name: str) -> Callable[[Any, Any], Any]:
    """The operator ``name`` of a ``jax.Array``, for a mutable array and anything that JAX takes."""

    def method(self: Any, other: Any) -> Any:
        operate = getattr(value_of(self), name, None)
        try:
            return NotImplemented if operate is None else operate(_operand(other))
        except TypeError:
            # JAX raises where Python would go on: its message names a type that no user wrote.
            # Not for ==, where Python would go on to compare identities, and say False.
            if name not in ("__eq__", "__ne__") and isinstance(other, (list, tuple, dict, set)):
                return NotImplemented
            raise

    return _named(method, name)


def _operand(x: Any) -> Any:
    """What a ``jax.Array`` in device memory can be combined with."""
    if isinstance(x, jax.Array) and not _jaxapi.is_tracer(x) and _jaxapi.is_on_host(x):
        return _buffers.put(x, _buffers.compute_sharding(x.sharding))
    return plain(x)


def _unary(name: str) -> Callable[[Any], Any]:
    """The operator ``name`` of a ``jax.Array``, for a mutable array."""

    def method(self: Any) -> Any:
        return getattr(value_of(self), name)()

    return _named(method, name)


def _named(method: Any, name: str) -> Any:
    method.__name__, method.__qualname__ = name, f"MutableArray.{name}"
    method.__doc__ = f"As ``jax.Array.{name}``; the result is a ``jax.Array``."
    return method


class Operators(Signatures):
    """Operators that leave the array alone."""

    __slots__ = ()

    if not TYPE_CHECKING:  # `_signatures` says the types
        __add__, __radd__ = _binary("__add__"), _binary("__radd__")
        __sub__, __rsub__ = _binary("__sub__"), _binary("__rsub__")
        __mul__, __rmul__ = _binary("__mul__"), _binary("__rmul__")
        __truediv__, __rtruediv__ = _binary("__truediv__"), _binary("__rtruediv__")
        __floordiv__, __rfloordiv__ = _binary("__floordiv__"), _binary("__rfloordiv__")
        __mod__, __rmod__ = _binary("__mod__"), _binary("__rmod__")
        __divmod__, __rdivmod__ = _binary("__divmod__"), _binary("__rdivmod__")
        __pow__, __rpow__ = _binary("__pow__"), _binary("__rpow__")
        __matmul__, __rmatmul__ = _binary("__matmul__"), _binary("__rmatmul__")
        __and__, __rand__ = _binary("__and__"), _binary("__rand__")
        __or__, __ror__ = _binary("__or__"), _binary("__ror__")
        __xor__, __rxor__ = _binary("__xor__"), _binary("__rxor__")
        __lshift__, __rlshift__ = _binary("__lshift__"), _binary("__rlshift__")
        __rshift__, __rrshift__ = _binary("__rshift__"), _binary("__rrshift__")

        __eq__, __ne__ = _binary("__eq__"), _binary("__ne__")  # elementwise, as in NumPy
        __lt__, __le__ = _binary("__lt__"), _binary("__le__")
        __gt__, __ge__ = _binary("__gt__"), _binary("__ge__")
        __hash__ = None  # what is compared by elements has no hash

        __neg__, __pos__ = _unary("__neg__"), _unary("__pos__")
        __abs__, __invert__ = _unary("__abs__"), _unary("__invert__")

        __bool__, __complex__ = _unary("__bool__"), _unary("__complex__")
        __int__, __float__ = _unary("__int__"), _unary("__float__")
        __index__ = _unary("__index__")

    def __round__(self, ndigits: int | None = None) -> jax.Array:
        value: Any = value_of(self)
        return round(value) if ndigits is None else round(value, ndigits)

    def __len__(self) -> int:
        shape = cell_of(self).shape
        if not shape:
            raise TypeError(
                "len() of unsized object: a 0-d mutable array has no length; its one element is "
                "m[()]"
            )
        return shape[0]

    def __iter__(self) -> Iterator[jax.Array]:
        # Row by row, as NumPy: a row that is written before its turn comes out as it is then.
        return _rows(self, range(_length(self)))

    def __reversed__(self) -> Iterator[jax.Array]:
        return _rows(self, reversed(range(_length(self))))

    def __contains__(self, x: Any) -> bool:
        return bool((value_of(self) == plain(x)).any())

    def __format__(self, spec: str) -> str:
        cell = cell_of(self)
        if cell.shape == () and not _jaxapi.in_trace():
            return format(value_of(self), spec)
        if spec:
            why, mend = f"has shape {cell.shape}", "format its elements one by one"
            if not cell.shape:
                why = "has no value inside a trace"
                mend = "format it outside of jit, or print it with jax.debug.print"
            raise TypeError(
                f"format {spec!r} is for one number, and this mutable array {why}: {mend}"
            )
        return _repr.describe(cell)


def _length(m: Any) -> int:
    shape = cell_of(m).shape
    if not shape:
        raise TypeError("iteration over a 0-d mutable array: its one element is m[()]")
    return shape[0]


def _rows(m: Any, positions: Any) -> Iterator[jax.Array]:
    return (m[k] for k in positions)
