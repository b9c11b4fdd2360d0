"""get / set / swap / accumulate / freeze: select → engine → cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from mutarray import (
    _boxes,
    _buffers,
    _cast,
    _eager,
    _frames,
    _general,
    _jaxapi,
    _masked,
    _quick,
    _traced,
)
from mutarray._cell import BufferCell
from mutarray._combine import Op, is_function
from mutarray._form import Selection
from mutarray._layout import check_sharding
from mutarray._select import select
from mutarray._trace_cells import Cell, ValueCell
from mutarray._types import Index
from mutarray.errors import BadShardingError, BroadcastError, CastError, SpentError, TraceError


def _is_eager(cell: Cell) -> bool:
    return isinstance(cell, BufferCell) and not _jaxapi.in_trace()


def get(
    cell: Cell,
    index: Index,
    mode: str | None = None,
    wrap: bool = True,
    fill: Any = None,
    out_sharding: Any = None,
) -> jax.Array:
    """What ``index`` takes from the array; a read of all of it outside a trace is a snapshot."""
    if _jaxapi.sees_mesh():
        return _jaxapi.without_mesh(get)(cell, index, mode, wrap, fill, out_sharding)
    if mode is None and wrap and fill is None and out_sharding is None:
        value = _get_quickly(cell, index)
        if value is not None:
            return value
    selection = select(cell.shape, index, writing=False, mode=mode, wrap=wrap)
    if fill is not None:
        fill = _cast.as_value(fill)
        _cast.check_cast(fill, cell.dtype)
    out = _out_sharding(out_sharding, cell, selection)
    if not _is_eager(cell):
        return _traced.read(
            cell.traced_value(), cell.home, selection, fill, out and out.spec, cell.reads
        )
    assert isinstance(cell, BufferCell)
    with cell.lock:
        if selection.form.is_whole:
            whole = cell.snapshot()
            return whole if out is None else _buffers.put(whole, out)
        place = cell.place
        if (place.is_local or place.memory) and out is None:
            return cell.loose(_eager.read(cell.block, place.layout, selection, place.work, fill))
        value = _general.read(cell.array(), cell.sharding, selection, fill, out)
        return value if out is not None else cell.loose(value)


def _get_quickly(cell: Cell, index: Index) -> jax.Array | None:
    """A box; ``None`` where the index names none."""
    if not isinstance(cell, BufferCell) or not (place := cell.place).is_local or _jaxapi.in_trace():
        return None
    box = _boxes.box_of(place.layout, index, covered=False)
    if box is None:
        return None
    with cell.lock:
        if cell.place is not place:  # another thread has moved it
            return None
        value = _quick.read(cell.block, place.layout, place.sharding, box)
    return value if value is None or place.fixed else cell.loose(value)


def _out_sharding(given: Any, cell: Cell, selection: Selection) -> Any:
    """``out_sharding=`` as a sharding of the result; a bare spec is meant on the array's mesh."""
    if given is None:
        return None
    if isinstance(given, PartitionSpec):
        home = cell.sharding
        if not isinstance(home, NamedSharding):
            raise BadShardingError(
                f"out_sharding={given} is a bare spec, and the array lives on no mesh "
                f"({home or 'none is known in this trace'}): pass NamedSharding(mesh, {given})"
            )
        given = NamedSharding(home.mesh, given)
    check_sharding(selection.form.result_shape, given)
    if not isinstance(given, NamedSharding) and not _is_eager(cell):
        raise BadShardingError(
            f"out_sharding={given} inside of a trace must be a NamedSharding or a PartitionSpec"
        )
    return given


def put(
    cell: Cell,
    index: Index,
    value: Any,
    mode: str | None = None,
    wrap: bool = True,
    unique: bool = False,
    op: Op = "set",
) -> None:
    """Writes ``value`` where ``index`` points, or combines it with what is there."""
    if _jaxapi.sees_mesh():
        return _jaxapi.without_mesh(put)(cell, index, value, mode, wrap, unique, op)
    if op == "set" and mode is None and wrap and _put_quickly(cell, index, value):
        return
    selection = _mask_on_devices(cell, index, value)
    if selection is None:
        selection = select(cell.shape, index, writing=True, mode=mode, wrap=wrap, unique=unique)
    write(cell, selection, checked(cell.dtype, selection, value, op), op)


def write(cell: Cell, selection: Selection, value: Any, op: Op) -> None:
    """Writes a checked value to a selection, or combines it with what is there."""
    if 0 in selection.form.result_shape:  # JAX 0.9 fails to compile a write to an empty array
        return
    if not _is_eager(cell):
        value = jnp.asarray(value) if is_function(op) else cast_to(value, cell.dtype)
        old = cell.traced_value()
        cell.traced_replace(_traced.write(old, cell.home, selection, value, op, cell.reads))
        return
    assert isinstance(cell, BufferCell)
    with cell.lock:
        _write(cell, selection, value, op)


def _put_quickly(cell: Cell, index: Index, value: Any) -> bool:
    """Writes a value that needs no check the short way; ``False`` where there is none."""
    if not isinstance(cell, BufferCell) or not (place := cell.place).is_local or _jaxapi.in_trace():
        return False
    launches = _quick.launches(place.layout, index, value, cell.dtype)
    if launches is None:
        return False
    with cell.lock:
        if cell.place is not place:  # another thread has moved it
            return False
        cell.run(launches)
    return True


def _mask_on_devices(cell: Cell, index: Index, value: Any) -> Selection | None:
    """The selection of a mask that stays on the devices; ``None`` where that is not the way."""
    if not isinstance(cell, BufferCell) or not cell.place.is_local or _jaxapi.in_trace():
        return None
    selection = _masked.selection(index, cell.shape, cell.sharding)
    return selection if selection is not None and _masked.fits(value) else None


def _write(cell: BufferCell, selection: Selection, value: Any, op: Op) -> None:
    place = cell.place
    if selection.mask is not None and not _masked.lies_well(selection.mask, place.sharding):
        mask = _buffers.put(selection.mask, _jaxapi.replicated(place.work))  # it has moved since
        selection = replace(selection, mask=mask)
    if not place.is_local and (place.memory is None or selection.form.is_whole):
        cell.replace(_general.write(cell.array(), cell.sharding, selection, value, op))
    elif selection.form.is_whole or selection.mask is not None:
        cell.run_whole(
            lambda old: _general.write(old, cell.sharding, selection, value, op, donate=True)
        )
    else:
        dtype = value.dtype if is_function(op) else cell.dtype
        launches = _eager.write_launches(place.layout, selection, value, dtype, op, place.memory)
        if is_function(op):  # what it raises, it raises before the first block is written
            for device, kernel, operands in launches:
                jax.eval_shape(kernel, cell.block(device), *operands)
        cell.run(launches)


@_jaxapi.without_mesh
def swap(
    cell: Cell, index: Index, value: Any, mode: str | None = None, wrap: bool = True
) -> jax.Array:
    """Writes ``value`` where ``index`` points, and returns what was there before."""
    if not _is_eager(cell):
        old = get(cell, index, mode, wrap)
        put(cell, index, value, mode, wrap)
        return old
    assert isinstance(cell, BufferCell)
    with cell.lock:
        old = get(cell, index, mode, wrap)
        put(cell, index, value, mode, wrap)
        return old


@_jaxapi.without_mesh
def update(cell: Cell, fn: Callable[..., jax.Array], value: Any) -> None:
    """Replaces each element by ``fn(old, value)``, in place."""
    value = _cast.as_value(value)
    if np.ndim(value) > len(cell.shape):  # an assignment may drop axes of length 1, and this not
        raise BroadcastError(
            f"could not broadcast input array from shape {np.shape(value)} into shape "
            f"{cell.shape}: an in-place operation adds no axes; take axes off the value, for "
            "example value[0]"
        )
    _cast.check_broadcast(value, cell.shape)
    _cast.check_range(value, cell.dtype)
    old = jax.ShapeDtypeStruct(cell.shape, cell.dtype)
    _cast.check_cast(jax.eval_shape(fn, old, value), cell.dtype, "result")
    if 0 in cell.shape:  # JAX 0.9 fails to compile it
        return
    if not _is_eager(cell):
        cell.traced_replace(_traced.update(cell.traced_value(), cell.home, fn, value))
        return
    assert isinstance(cell, BufferCell)
    with cell.lock:
        if cell.place.is_local:
            cell.run_whole(lambda x: _general.update(x, cell.sharding, fn, value, donate=True))
        else:
            cell.replace(_general.update(cell.array(), cell.sharding, fn, value, donate=False))


def checked(dtype: Any, selection: Selection, value: Any, op: str) -> Any:
    """The value as a scalar or an array that casts and broadcasts; raises before any write."""
    value = _cast.as_value(value)
    _cast.check_cast(value, dtype)
    if op != "set" and _cast.is_key(dtype):
        raise CastError("PRNG keys cannot be accumulated: write them with m[idx] = keys")
    form = selection.form
    _cast.check_broadcast(value, form.result_shape, masked=form.mask_dims is not None)
    return value


def cast_to(value: Any, dtype: Any) -> jax.Array:
    if not isinstance(value, jax.Array):
        value = np.asarray(value).astype(dtype)
    return jnp.asarray(value) if value.dtype == dtype else jnp.asarray(value).astype(dtype)


@_jaxapi.without_mesh
def freeze(cell: Cell) -> jax.Array:
    """The contents, whose buffers the caller now owns; the cell is spent."""
    if isinstance(cell, BufferCell) and _jaxapi.in_trace():
        raise TraceError(
            f"the mutable array made at {cell.made_at} is from outside of the function that is "
            "being traced, and cannot be frozen there: freeze it outside, or read it, m[...]"
        )
    return cell.give_up(
        f"this mutable array of shape {cell.shape} was frozen, and its buffers belong to the array "
        "that mu.freeze returned: use that, or make it mutable again with mu.mutable_array"
    )


def snapshot(cell: Cell) -> jax.Array:
    """The contents as an immutable array."""
    return get(cell, ...)


def working(cell: Cell) -> jax.Array:
    """The contents as an immutable array in device memory, to compute with."""
    if not isinstance(cell, BufferCell) or _jaxapi.in_trace():
        return snapshot(cell)
    with cell.lock:
        work = cell.place.work
        if work is cell.sharding:
            return snapshot(cell)
        return _buffers.put_apart(cell.array(), work)


def duplicate(cell: Cell) -> Cell:
    """A cell with a copy of the contents, in the same place."""
    if _is_eager(cell):
        assert isinstance(cell, BufferCell)
        with cell.lock:
            array, place = _buffers.copy(cell.array(), cell.sharding), cell.place
            return BufferCell(array, place.sharding, place.fixed)
    value, home = cell.traced_value(), cell.sharding
    return ValueCell(value if home is None else _frames.place(value, home), home)


def reshard(cell: Cell, sharding: Sharding) -> None:
    """Lays the array out by another sharding, in place.

    Raises:
        BadShardingError: ``sharding`` is no sharding, or has more dimensions than the array.
        IndivisibleError: it splits an axis unevenly.
        TraceError: inside of a trace.
    """
    check_sharding(cell.shape, sharding)
    if not isinstance(cell, BufferCell) or _jaxapi.in_trace():
        raise TraceError(
            f"m.reshard({sharding}) inside of a trace: a compiled program cannot move its "
            "arguments. Reshard before the call; or make an array inside that lies elsewhere, with "
            "mutarray.mutable_array(m[...], sharding)"
        )
    _jaxapi.without_mesh(cell.move)(sharding)


def is_spent(cell: Cell) -> bool:
    """Whether the contents are gone."""
    try:
        if isinstance(cell, BufferCell):
            cell.array()
        else:
            cell.traced_value()
    except SpentError:
        return True
    return False


def wait(cell: Cell) -> None:
    """Returns when all writes that were begun are done; in a trace, at once."""
    if isinstance(cell, BufferCell) and not _jaxapi.in_trace():
        with cell.lock:
            pending = cell.array()
        try:
            jax.block_until_ready(pending)
        except RuntimeError:  # failed; or another thread has donated it meanwhile to a write
            saved = cell.save()
            try:
                jax.block_until_ready(saved.array)
            finally:
                cell.forget(saved)


def sharding(cell: Cell) -> Sharding:
    """The sharding; inside a trace, what is known of it."""
    return cell.sharding or jax.typeof(cell.traced_value()).sharding
