"""`m.layout()`: which device holds which part of an array.

It follows from shape and sharding, so nothing is read, moved or waited for, and what lies in other
processes is listed like the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
from jax.sharding import NamedSharding, Sharding

from mutarray import _repr, _table
from mutarray._layout import layout_of, memory_kind_of
from mutarray._trace_cells import Cell
from mutarray._types import Box
from mutarray.errors import TraceError


class LayoutRow(NamedTuple):
    """What one device holds.

    Attributes:
        device: the device.
        box: the half-open range of the array that it holds, for each axis.
        nbytes: the bytes of that.
        replica: 0 for the first device that holds this box, 1 for the second, ...
        process: the index of the process that the device belongs to.
        memory_kind: the memory of the device that it lies in.
    """

    device: jax.Device
    box: Box
    nbytes: int
    replica: int
    process: int
    memory_kind: str


@dataclass(frozen=True, repr=False)
class LayoutTable:
    """Which device holds which part of an array; prints as a table.

    Attributes:
        rows: what each device holds, in the sharding's order of devices.
    """

    rows: tuple[LayoutRow, ...]

    def __repr__(self) -> str:
        return _table.as_text(self._entries())

    def _repr_html_(self) -> str:
        return _table.as_html(self._entries())

    def _entries(self) -> list[tuple[str, ...]]:
        head = ("device", "box", "bytes", "replica", "process", "memory")
        return [head, *map(_entry, self.rows)]


def _entry(row: LayoutRow) -> tuple[str, ...]:
    return (
        f"{row.device.platform.upper()} {row.device.id}",  # as in JAX's pictures
        f"[{ranges(row.box)}]",
        _repr.show_bytes(row.nbytes),
        str(row.replica),
        str(row.process),
        row.memory_kind,
    )


def ranges(box: Box) -> str:
    """A box as one would index it."""
    return ", ".join(f"{lo}:{hi}" for lo, hi in box)


def table_of(cell: Cell) -> LayoutTable:
    """The layout of an array, as a table.

    Raises:
        TraceError: inside a trace, where it is not known.
    """
    sharding = known_sharding(cell)
    layout, memory = layout_of(cell.shape, sharding), memory_kind_of(sharding)
    nbytes = layout.block_bytes(cell.dtype)
    return LayoutTable(
        tuple(
            LayoutRow(s.device, s.box, nbytes, s.replica, s.device.process_index, memory)
            for s in layout.shards
        )
    )


def known_sharding(cell: Cell) -> Sharding:
    """The sharding over real devices, which a trace may not know.

    Raises:
        TraceError: it does not.
    """
    sharding = cell.sharding
    if sharding is None or not _has_devices(sharding):
        raise TraceError(
            f"inside this trace it is not known on which devices the array "
            f"{_repr.kind_of(cell.dtype, cell.shape)} lies: it was made there without sharding=, "
            "or is the part that a vmap or a shard_map body sees. Give sharding= where it is made, "
            "or ask outside of the trace"
        )
    return sharding


def _has_devices(sharding: Sharding) -> bool:
    """Whether the mesh is one of devices, not only of axes."""
    return not isinstance(sharding, NamedSharding) or isinstance(sharding.mesh, jax.sharding.Mesh)
