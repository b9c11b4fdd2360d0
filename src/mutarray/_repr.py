"""A short and safe picture of an array in text.

Never gathers: the few values shown are fetched one by one from shards that this process can reach.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, Sharding

from mutarray import _buffers, _cast, _jaxapi
from mutarray._cell import BufferCell
from mutarray._layout import Layout, layout_of, memory_kind_of
from mutarray._trace_cells import Cell, OpaqueCell
from mutarray._types import Shape
from mutarray.errors import SpentError

_EDGE = 3
"""How many values are shown at each end."""


@_jaxapi.without_mesh
def describe(cell: Cell | OpaqueCell) -> str:
    """One line: dtype, shape, spec, mesh, memory kind and a few values."""
    if isinstance(cell, OpaqueCell):
        return f"MutableArray(<{type(cell.child).__name__}>)"
    head = heading(cell)
    if not isinstance(cell, BufferCell) or _jaxapi.in_trace():
        return f"MutableArray({head}, traced)"
    try:
        values = _values(cell)
    except SpentError:
        return f"MutableArray({head}, spent)"
    return f"MutableArray({head}, values={values})"


def heading(cell: Cell) -> str:
    """What it is and where: dtype, shape, and what is known of the sharding."""
    place = "" if cell.sharding is None else f", {describe_sharding(cell.sharding)}"
    return f"{kind_of(cell.dtype, cell.shape)}{place}"


def kind_of(dtype: Any, shape: Shape) -> str:
    """Dtype and shape, as JAX writes types."""
    name = str(dtype) if _cast.is_key(dtype) else np.dtype(dtype).name
    return f"{name}[{', '.join(map(str, shape))}]"


def describe_sharding(sharding: Sharding) -> str:
    """Spec, mesh and memory kind in few words."""
    memory = memory_kind_of(sharding)
    if isinstance(sharding, NamedSharding):
        entries = ", ".join(map(repr, sharding.spec))
        axes = ", ".join(f"{name!r}: {size}" for name, size in sharding.mesh.shape.items())
        return f"P({entries}) on Mesh({axes}), {memory}"
    if _jaxapi.is_single_device_sharding(sharding):
        return f"{next(iter(sharding.device_set))}, {memory}"
    return f"{type(sharding).__name__} on {len(sharding.device_set)} devices, {memory}"


def _values(cell: BufferCell) -> str:
    """The first and the last few values in C order; ``?`` for those of other processes."""
    size = int(np.prod(cell.shape, dtype=np.int64))
    with cell.lock:
        cell.array()  # settles what was lent, and says if there is nothing any more
        if _cast.is_key(cell.dtype):
            return "<keys>"
        few = range(size) if size <= 2 * _EDGE else [*range(_EDGE), *range(size - _EDGE, size)]
        layout = layout_of(cell.shape, cell.sharding)
        indices = (np.unravel_index(k, cell.shape) for k in few)
        shown = [_element(cell, layout, tuple(map(int, index))) for index in indices]
    if size > 2 * _EDGE:
        shown.insert(_EDGE, "...")
    return shown[0] if cell.shape == () else f"[{', '.join(shown)}]"


def _element(cell: BufferCell, layout: Layout, index: tuple[int, ...]) -> str:
    block = tuple(i // b for i, b in zip(index, layout.block_shape, strict=True))
    owner = next((s for s in layout.owners[block] if s.addressable), None)
    if owner is None:
        return "?"
    local = tuple(i - lo for i, (lo, _) in zip(index, owner.box, strict=True))
    return str(element(cell.block(owner.device), local))  # a format would make it a float64


def element(data: jax.Array, index: tuple[int, ...]) -> Any:
    """One element of a single-device array, fetched alone where it lies in device memory."""
    if _buffers.compute_sharding(data.sharding) is not data.sharding:  # host memory: a view is free
        return np.asarray(data)[index]
    starts = [np.int32(i) for i in index]
    one = jax.lax.dynamic_slice(data, starts, (1,) * data.ndim)
    return np.asarray(one).reshape(())[()]


def show_bytes(n: int) -> str:
    """Bytes in a unit that suits them."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.4g} {unit}"
    return f"{n} B"
