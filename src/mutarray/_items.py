"""The entries of an index, sorted by kind.

Reads what a user wrote between square brackets, whatever its types, into a list of `Item`. What an
entry means on a shape is `_select`'s business.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mutarray import _cast, _jaxapi
from mutarray._types import Index
from mutarray.errors import (
    BadIndexError,
    BadSliceError,
    BadWindowError,
    OutOfBoundsError,
    TracedIndexError,
)


class Item(NamedTuple):
    """One entry of an index.

    Attributes:
        kind: ``'new'``, ``'ellipsis'``, ``'slice'``, ``'window'``, ``'int'``, ``'array'``,
            ``'bool'`` (one Python or 0-d boolean) or ``'mask'``.
        value: a slice of host integers; a window; an ``int`` or a traced integer; a NumPy or a
            traced array.
        consumes: how many dimensions of the array it stands for.
    """

    kind: str
    value: Any
    consumes: int


def ds(start: Any, size: int, stride: int = 1) -> Any:
    """A window: ``size`` positions from ``start``, which may be traced.

    A slice whose start is known only when the compiled program runs. Its size is static, so the
    shape of the result is. A window that does not fit is moved as a whole until it does, as in
    `jax.lax.dynamic_slice`, whether its start is known or traced; a negative start counts from the
    end. ``mu.set(m, mu.ds(k, n), v, mode='drop')`` leaves it where it is, and writes what fits;
    ``mu.get`` with ``mode='fill'`` reads it so.

    Args:
        start: the first position, an integer or a traced integer.
        size: how many positions, a non-negative integer.
        stride: how far apart they are, at least 1.

    Returns:
        An object to be used as an entry of an index. JAX's own ``ds`` objects are taken too.

    Raises:
        BadWindowError: ``size`` or ``stride`` is no integer in its range.

    Example:
        >>> import jax.numpy as jnp, mutarray as mu
        >>> m = mu.mutable_array(jnp.arange(8))
        >>> m[mu.ds(2, 3)]
        Array([2, 3, 4], dtype=int32)
        >>> m[mu.ds(6, 3)]
        Array([5, 6, 7], dtype=int32)
    """
    for name, value, least in (("size", size, 0), ("stride", stride, 1)):
        try:
            fits = operator.index(value) >= least
        except (TypeError, jax.errors.TracerIntegerConversionError):
            fits = False
        if not fits:
            raise BadWindowError(
                f"{name}={value!r} of a window must be a Python integer of at least {least}: it "
                "decides a shape, so it cannot be traced"
            )
    return _jaxapi.Slice(start, operator.index(size), operator.index(stride))


def parse(index: Index) -> list[Item]:
    """The entries of an index, in order."""
    return [_item(entry) for entry in (index if isinstance(index, tuple) else (index,))]


def _item(entry: Any) -> Item:
    if entry is None:
        return Item("new", None, 0)
    if entry is Ellipsis:
        return Item("ellipsis", None, 0)
    if isinstance(entry, slice):
        return Item("slice", _host_slice(entry), 1)
    if isinstance(entry, _jaxapi.Slice):
        return Item("window", _host_window(entry), 1)
    if isinstance(entry, (bool, np.bool_)):
        return Item("bool", bool(entry), 0)
    if isinstance(entry, (int, np.integer)):
        return Item("int", int(entry), 1)
    array = _array(entry)
    if array.dtype == np.bool_:
        if array.ndim == 0 and isinstance(array, np.ndarray):
            return Item("bool", bool(array), 0)
        return Item("mask", array, array.ndim)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise BadIndexError(
            f"an index array of dtype {array.dtype} was given: arrays used as indices must be of "
            "integer or boolean type; cast it with .astype(int)"
        )
    if array.ndim == 0:
        return Item("int", int(array) if isinstance(array, np.ndarray) else array, 1)
    return Item("array", array, 1)


def _array(entry: Any) -> Any:
    """An index array: a NumPy array where its values are known, else the traced array."""
    if isinstance(entry, np.ndarray):
        return entry
    if not isinstance(entry, jax.Array) and hasattr(entry, "__jax_array__"):
        entry = entry.__jax_array__()
    if isinstance(entry, jax.Array):
        return entry if _jaxapi.is_tracer(entry) else _jaxapi.to_host(entry)
    if isinstance(entry, (list, range)):
        entry = list(entry)
        if any(map(_jaxapi.is_tracer, jax.tree.leaves(entry))):
            return jnp.asarray(entry)
        try:
            array = np.asarray(entry)
        except ValueError as error:
            raise BadIndexError(
                f"the list {_cast.shown(entry)} is no index array: give all its parts the same "
                "length"
            ) from error
        return array.astype(np.intp) if array.size == 0 else array
    raise BadIndexError(
        f"{_cast.shown(entry)} of type {type(entry).__name__} is no index: only integers, "
        "slices (`:`), ellipsis (`...`), None, mu.ds windows and integer or boolean arrays are "
        "valid indices"
    )


def _host_slice(entry: slice) -> slice:
    def known(x: Any) -> int | None:
        if x is None:
            return None
        if _jaxapi.is_tracer(x):
            raise TracedIndexError(
                f"the slice {entry} has a traced bound, and the bounds of a slice decide a shape: "
                "use mu.ds(start, size), whose start may be traced"
            )
        try:
            return operator.index(x)
        except TypeError:
            raise BadSliceError(
                f"the slice {entry} has the bound {x!r} of type {type(x).__name__}: bounds and "
                "step of a slice must be integers or None; convert them with int()"
            ) from None

    start, stop, step = known(entry.start), known(entry.stop), known(entry.step)
    if step == 0:
        raise BadSliceError(
            f"the slice {entry} has step 0, with which it never ends: give it a step of 1 or more, "
            "or of -1 or less"
        )
    return slice(start, stop, step)


def _host_window(window: Any) -> Any:
    """The window with an ``int`` for its start where that is known."""
    if _jaxapi.is_tracer(window.size):
        raise BadWindowError(
            "the size of a window is traced, and it decides a shape: pass a Python integer, which "
            "is known when the program is compiled"
        )
    start = window.start
    as_array = getattr(start, "__jax_array__", None)
    if as_array is not None:  # a mutable array of one integer
        start = as_array()
    if not _jaxapi.is_tracer(start):
        try:
            start = operator.index(start)
        except TypeError:
            raise BadWindowError(
                f"the start {start!r} of a window has type {type(start).__name__}: it must be an "
                "integer or a traced integer; convert it with int()"
            ) from None
    elif start.ndim or not jnp.issubdtype(start.dtype, jnp.integer):
        raise BadWindowError(
            f"the start of a window is traced, and has dtype {start.dtype} and shape "
            f"{start.shape}: it must be one integer, of shape (); cast it with .astype(int), or "
            "take one element"
        )
    return _jaxapi.Slice(start, window.size, window.stride)


def expand(items: list[Item], ndim: int) -> list[Item]:
    """The entries with one ellipsis that stands for all dimensions not named.

    Raises:
        BadIndexError: more dimensions are named than there are, or more than one ellipsis.
    """
    named = sum(item.consumes for item in items)
    if named > ndim:
        raise BadIndexError(
            f"too many indices for array: array is {ndim}-dimensional, but {named} were indexed; "
            f"name at most {ndim}"
        )
    ellipses = [i for i, item in enumerate(items) if item.kind == "ellipsis"]
    if len(ellipses) > 1:
        raise BadIndexError(
            f"an index can only have a single ellipsis ('...'), and this one has {len(ellipses)}: "
            "write ':' for each axis that another one stands for"
        )
    rest = Item("ellipsis", None, ndim - named)
    if not ellipses:
        return [*items, rest]
    at = ellipses[0]
    return [*items[:at], rest, *items[at + 1 :]]


def check_window(size: int, step: int, extent: int, axis: int, n: int) -> None:
    """Raises unless a window fits into an axis of length ``n``."""
    if size < 0 or step < 1 or extent > n:
        raise BadWindowError(
            f"a window of size {size} and stride {step} does not fit into axis {axis} of length "
            f"{n}: it spans {extent} positions; allowed are 0 to {n}, at a stride of 1 or more"
        )


def empty_axis(axis: int) -> OutOfBoundsError:
    """The error for an index into an axis without elements, whatever the mode."""
    return OutOfBoundsError(
        f"axis {axis} has size 0, so every index is out of bounds for it: select nothing from it, "
        "with an empty slice or an empty index array"
    )
