"""NumPy's protocols: ufuncs, and functions that NumPy lets others implement.

A ufunc that ``jax.numpy`` has is JAX's, in traces too. What changes an array in place changes the
mutable array in place. Everything else is NumPy's, on a copy of the values in the host's memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mutarray import _apply, _inplace, _jaxapi, _ops
from mutarray._cell import BufferCell
from mutarray._handle import Handle, cell_of, plain
from mutarray.errors import BroadcastError, ExportError

_ACCUMULATE: dict[Any, Any] = {
    np.add: "add",
    np.multiply: "multiply",
    np.minimum: "min",
    np.maximum: "max",
}

_OF_SHAPE_AND_DTYPE = frozenset(
    [
        np.shape,
        np.ndim,
        np.size,
        np.result_type,
        np.iscomplexobj,
        np.isrealobj,
        np.zeros_like,
        np.ones_like,
        np.empty_like,
        np.full_like,
    ]
)
"""Functions that ask for no values, so that none are brought to the host."""


def exported(m: Any) -> jax.Array:
    """A snapshot whose memory DLPack can describe.

    Raises:
        ExportError: the array lies on several devices, or is traced.
    """
    cell = cell_of(m)
    if not isinstance(cell, BufferCell) or _jaxapi.in_trace():
        raise ExportError(
            "a mutable array has no memory to export inside a trace: export it outside of jit"
        )
    count = len(cell.sharding.device_set)
    if count != 1:
        raise ExportError(
            f"DLPack describes the memory of one device, and this mutable array lies on {count}: "
            "export one block, m.addressable_shards[k].data, or jax.device_put(m[...], device)"
        )
    return cell.snapshot()


# Ufuncs ------------------------------------------------------------------------------------------


def call_ufunc(
    ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """``__array_ufunc__``."""
    outs = kwargs.get("out", ())
    if any(map(_is_foreign, (*inputs, *outs))):
        return NotImplemented
    if method == "at" and isinstance(inputs[0], Handle):
        return _at(ufunc, *inputs)
    fn = _counterpart(ufunc)
    ours = all(out is None or isinstance(out, Handle) for out in outs)
    if method != "__call__" or fn is None or not ours or not set(kwargs) <= {"out"}:
        return _by_numpy(getattr(ufunc, method), inputs, kwargs)
    if len(outs) == 1 and len(inputs) == 2 and inputs[0] is outs[0] and inputs[1] is not outs[0]:
        _ops.update(cell_of(outs[0]), fn, inputs[1])  # in the memory of the array
        return outs[0]
    result = fn(*map(_operand, inputs))
    if not outs:
        return result
    results = result if isinstance(result, tuple) else (result,)
    stored = [r if out is None else _store(out, r) for out, r in zip(outs, results, strict=True)]
    return stored[0] if len(stored) == 1 else tuple(stored)


def _is_foreign(x: Any) -> bool:
    """Whether another class has its own idea of what a ufunc does."""
    own = getattr(type(x), "__array_ufunc__", np.ndarray.__array_ufunc__)
    return own is not np.ndarray.__array_ufunc__ and not isinstance(x, Handle)


@functools.lru_cache(maxsize=256)
def _counterpart(ufunc: np.ufunc) -> Callable[..., Any] | None:
    """The function of ``jax.numpy`` for a ufunc of NumPy's own; ``None`` for others."""
    name = ufunc.__name__
    return getattr(jnp, name, None) if getattr(np, name, None) is ufunc else None


def _operand(x: Any) -> Any:
    """Something that a function of ``jax.numpy`` takes."""
    if isinstance(x, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
        return x
    return plain(x) if isinstance(x, Handle) else np.asarray(x)


def _store(out: Handle, value: jax.Array) -> Any:
    """Writes a result to what was given as ``out=``, and gives that back."""
    cell = cell_of(out)
    if value.ndim > len(cell.shape):
        raise BroadcastError(
            f"out= has shape {cell.shape}, and the result has shape {value.shape}: pass an array "
            "that the result broadcasts to"
        )
    _ops.put(cell, ..., value)
    return out


def _at(ufunc: np.ufunc, m: Any, index: Any, value: Any = None) -> None:
    """``ufunc.at``: an element that is named twice gets it twice."""
    cell, op = cell_of(m), _ACCUMULATE.get(ufunc)
    if op is not None:
        _ops.put(cell, plain(index), value, op=op)
        return
    fn = _counterpart(ufunc)
    if fn is None or ufunc.nin > 2:  # NumPy lets none pass that give more than one
        raise TypeError(
            f"jax.numpy has no {ufunc.__name__} of one or two elements, as ufunc.at needs it: use "
            "m.apply_at(fn, idx, value) with a function that JAX can trace"
        )
    _apply.apply_at(cell, fn, plain(index), value)


# Functions ---------------------------------------------------------------------------------------


def call_function(func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``__array_function__``."""
    if not all(issubclass(t, (np.ndarray, Handle, jax.Array)) for t in types):
        return NotImplemented
    in_place = _IN_PLACE.get(func)
    target = args[0] if args else next(iter(kwargs.values()), None)
    if in_place is not None and isinstance(target, Handle):
        return in_place(*args, **kwargs)
    return _by_numpy(func, args, kwargs)


def _by_numpy(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What NumPy makes of the values; ``out=`` a mutable array is written when it is done."""
    outs = kwargs.get("out")
    given = outs if isinstance(outs, tuple) else (outs,)
    written = [(m, np.array(m)) for m in given if isinstance(m, Handle)]

    def buffer(out: Any) -> Any:
        return next((values for m, values in written if m is out), out)

    convert = _stand_in if func in _OF_SHAPE_AND_DTYPE else np.asarray
    new = {name: _converted(x, convert) for name, x in kwargs.items() if name != "out"}
    if "out" in kwargs:
        new["out"] = tuple(map(buffer, given)) if isinstance(outs, tuple) else buffer(outs)
    result = func(*_converted(args, convert), **new)
    for m, values in written:
        _ops.put(cell_of(m), ..., values)
    results = result if isinstance(result, tuple) else (result,)
    back = tuple(next((m for m, v in written if v is r), r) for r in results)
    return back if isinstance(result, tuple) else back[0]


def _converted(x: Any, convert: Callable[[Any], Any]) -> Any:
    """``x`` with NumPy arrays in the place of mutable arrays, also inside of lists and tuples."""
    if isinstance(x, Handle):
        return convert(x)
    if type(x) in (list, tuple):
        return type(x)(_converted(item, convert) for item in x)
    return x


def _stand_in(m: Any) -> np.ndarray:
    """An array of that shape and dtype, of one element in memory."""
    cell = cell_of(m)
    return np.broadcast_to(np.zeros((), cell.dtype), cell.shape)


def _copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None:
    _inplace.copyto(cell_of(dst), _operand(src), casting, _operand(where))


def _put(a: Any, ind: Any, v: Any, mode: str = "raise") -> None:
    _inplace.put(cell_of(a), _operand(ind), _operand(v), mode)


def _putmask(a: Any, mask: Any, values: Any) -> None:
    _inplace.putmask(cell_of(a), _operand(mask), _operand(values))


def _place(arr: Any, mask: Any, vals: Any) -> None:
    _inplace.place(cell_of(arr), _operand(mask), _operand(vals))


def _fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    _inplace.fill_diagonal(cell_of(a), _operand(val), wrap)


def _put_along_axis(arr: Any, indices: Any, values: Any, axis: int | None) -> None:
    _inplace.put_along_axis(cell_of(arr), _operand(indices), _operand(values), axis)


_IN_PLACE: dict[Any, Callable[..., None]] = {
    np.copyto: _copyto,
    np.put: _put,
    np.put_along_axis: _put_along_axis,
    np.putmask: _putmask,
    np.place: _place,
    np.fill_diagonal: _fill_diagonal,
}
