"""`explain`: what an operation would touch, move and need, said before it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from mutarray import _boxes, _jaxapi, _lanes, _ops, _repr, _table, _traced
from mutarray._array import MutableArray, cell_of
from mutarray._cell import BufferCell
from mutarray._form import Form, Selection, Span
from mutarray._lanes import Lane
from mutarray._layout import Shard
from mutarray._plan import plan
from mutarray._select import select
from mutarray._trace_cells import Cell
from mutarray._types import Index, Mode


class Move(NamedTuple):
    """What crosses a wire.

    Attributes:
        what: a collective, or ``'host to device'`` or ``'device to device'``.
        axes: the mesh axes that it runs over; empty where it runs over none.
        nbytes: the bytes that one device gets, at most.
    """

    what: str
    axes: tuple[str, ...]
    nbytes: int


@dataclass(frozen=True)
class Explanation:
    """What an operation would do; prints as a table.

    Attributes:
        operation: ``'read'`` or ``'write'``, and of what.
        way: the engine that would do it.
        touched_bytes: the bytes of the elements that the index names.
        shards: the shards that hold such elements, replicas included; ``None`` where that is known
            only when the program runs.
        shard_count: how many shards the array has.
        moves: what crosses a wire.
        temporary_bytes: the memory that a device needs beside the array and the result, at most.
    """

    operation: str
    way: str
    touched_bytes: int
    shards: tuple[Shard, ...] | None
    shard_count: int
    moves: tuple[Move, ...]
    temporary_bytes: int

    @property
    def moved_bytes(self) -> int:
        """The bytes that one device gets, at most."""
        return sum(move.nbytes for move in self.moves)

    def __str__(self) -> str:
        if self.shards is None:
            shards = f"decided on the devices, of {self.shard_count}"
        else:
            names = ", ".join(str(s.device.id) for s in self.shards[:16])
            more = ", ..." if len(self.shards) > 16 else ""
            on = f" on devices {names}{more}" if self.shards else ""
            shards = f"{len(self.shards)} of {self.shard_count}{on}"
        rows = [
            ("operation", self.operation),
            ("way", self.way),
            ("touches", _repr.show_bytes(self.touched_bytes)),
            ("shards", shards),
        ]
        moves = [
            f"{move.what}{' over ' + ', '.join(move.axes) if move.axes else ''}: "
            f"{_repr.show_bytes(move.nbytes)} to each device"
            for move in self.moves
        ]
        rows += [("moves" if k == 0 else "", move) for k, move in enumerate(moves or ["nothing"])]
        rows.append(
            ("temporary memory", f"{_repr.show_bytes(self.temporary_bytes)} on each device")
        )
        return _table.as_text(rows)


def explain(
    m: MutableArray,
    idx: Index = ...,
    value: Any = None,
    *,
    compiled: bool = False,
    mode: Mode | None = None,
    wrap_negative_indices: bool = True,
) -> Explanation:
    """Says what ``m[idx]``, or with a value ``m[idx] = value``, would do; nothing is run.

    Args:
        m: the array.
        idx: a NumPy index, or one with windows.
        value: what would be written; ``None`` for a read.
        compiled: whether the operation would stand inside of a ``jit``. Inside of a trace it does.
        mode: as for `get` and `set`.
        wrap_negative_indices: as for `get` and `set`.

    Returns:
        An `Explanation`: the shards that are touched, the engine, the bytes that move on which mesh
        axes, and the temporary memory of each device. ``print`` shows it as a table.

    Raises:
        OutOfBoundsError: a known integer is out of range and ``mode`` is ``None``.
        BadIndexError: ``idx`` is no NumPy index.
        BroadcastError: the value does not broadcast.
        CastError: the value does not cast.

    Example:
        >>> import mutarray as mu
        >>> print(mu.explain(mu.zeros((8, 4)), slice(2, 5), 1.0))
        operation         write of float32[3, 4] in float32[8, 4]
        way               eager: one program on each touched block, in place
        touches           48 B
        shards            1 of 1 on devices 0
        moves             nothing
        temporary memory  0 B on each device
    """
    cell = cell_of(m)
    writing = value is not None
    selection = select(cell.shape, idx, writing=writing, mode=mode, wrap=wrap_negative_indices)
    if writing:
        value = _ops.checked(cell.dtype, selection, value, "set")
    eager = isinstance(cell, BufferCell) and not compiled and not _jaxapi.in_trace()
    how = _eagerly if eager and selection.is_known else _in_a_program
    way, moves, temporary = how(cell, selection, idx, value)
    return Explanation(
        f"{'write' if writing else 'read'} of "
        f"{_repr.kind_of(cell.dtype, selection.form.result_shape)} in "
        f"{_repr.kind_of(cell.dtype, cell.shape)}",
        way,
        selection.form.count * cell.dtype.itemsize,
        _touched(cell, selection),
        len(cell.sharding.device_set) if cell.sharding is not None else 1,
        tuple(move for move in moves if move.nbytes),
        temporary,
    )


def _touched(cell: Cell, selection: Selection) -> tuple[Shard, ...] | None:
    if isinstance(cell, BufferCell) and selection.is_known:
        return plan(selection, cell.place.layout).touched
    return None


Answer = tuple[str, list[Move], int]
"""The way, what moves, and the temporary memory."""


def _eagerly(cell: Cell, selection: Selection, idx: Index, value: Any) -> Answer:
    assert isinstance(cell, BufferCell)
    form, itemsize = selection.form, cell.dtype.itemsize
    if form.is_whole and value is None:
        return "a snapshot, which shares the buffers until the next write", [], 0
    if form.is_whole:
        return "one program on all blocks, in place", _value_moves(cell, value), 0
    if not cell.place.is_local and cell.place.memory is None:
        way, moves, temporary = _in_a_program(cell, selection, idx, value)
        if cell.place.work is not cell.sharding:
            moved = cell.place.layout.block_bytes(cell.dtype)
            moves = [Move("host to device", (), moved), *moves]
            temporary += moved
        return f"one program: {way}", moves, temporary
    if value is None:
        moved = form.count * itemsize
        return (
            "eager: one owner of each touched block",
            [Move("device to device", (), moved)],
            moved,
        )
    boxed = _boxes.box_of(cell.place.layout, idx, covered=True) is not None
    extra = 0 if boxed else _points_bytes(form)
    return "eager: one program on each touched block, in place", _value_moves(cell, value), extra


def _value_moves(cell: BufferCell, value: Any) -> list[Move]:
    """How a value comes to the devices: a scalar goes with the call."""
    if np.ndim(value) == 0:
        return []
    if not isinstance(value, jax.Array):
        return [Move("host to device", (), np.size(value) * cell.dtype.itemsize)]
    if value.sharding.device_set >= cell.sharding.device_set:
        return []
    return [Move("device to device", (), value.nbytes)]


def _points_bytes(form: Form) -> int:
    """The index arrays, as a gather or a scatter wants them."""
    return 3 * 4 * math.prod(form.points_shape or (0,)) * len(form.point_dims)


def _in_a_program(cell: Cell, selection: Selection, idx: Index, value: Any) -> Answer:
    del idx
    form, itemsize = selection.form, cell.dtype.itemsize
    if form.is_whole:
        return "all blocks as they are", [], 0
    split = _traced.split_of(jax.ShapeDtypeStruct(cell.shape, cell.dtype), cell.home)
    if split is None:
        return _without_mesh(cell, form, itemsize)
    lanes = split.lanes(form)
    nbytes = _local_bytes(form, lanes, itemsize)
    if value is not None:
        moves = [
            Move("collective-permute", lane.names, nbytes)
            for d, lane in enumerate(lanes)
            if np.ndim(value) and lane.way == "all" and _flips(form, d)
        ]
        return "compiled: each device writes what it owns", moves, nbytes + _points_bytes(form)
    moves = []
    for d, lane in enumerate(lanes):
        if _lanes.scatters(form, d, lane):
            moves.append(Move("reduce-scatter", lane.names, nbytes))
        elif lane.way == "all" and _flips(form, d):
            moves.append(Move("collective-permute", lane.names, nbytes))
    done = {name for move in moves for name in move.axes}
    summed = [n for lane in lanes if lane.way in ("part", "points") for n in lane.names]
    names = tuple(name for name in summed if name not in done)
    moves += [Move("all-reduce", names, nbytes)] if names else []
    way = "compiled: each device gives what it owns, and the sum is the result"
    return way, moves, 2 * nbytes + _points_bytes(form)


def _without_mesh(cell: Cell, form: Form, itemsize: int) -> Answer:
    nbytes = form.count * itemsize + _points_bytes(form)
    sharding = cell.sharding
    if sharding is None or sharding.is_fully_replicated or _jaxapi.manual_axes():
        return "compiled: on the device's own block", [], nbytes
    whole = math.prod(cell.shape) * itemsize
    return "general: gathers the array", [Move("all-gather", (), whole)], whole


def _flips(form: Form, d: int) -> bool:
    span = form.dims[d]
    return isinstance(span, Span) and span.flip


def _local_bytes(form: Form, lanes: Sequence[Lane], itemsize: int) -> int:
    """The selection's bytes on one device, where what is taken whole stays split."""
    count = form.count
    for lane in lanes:
        count //= lane.parts if lane.way == "all" else 1
    return count * itemsize
