"""An array as plain data and back: its values, and where they lay."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, Sharding

from mutarray import _buffers, _cast, _jaxapi
from mutarray._cell import BufferCell
from mutarray._trace_cells import Cell
from mutarray.errors import BadShardingError, TraceError

State = tuple[np.ndarray, str | None, tuple[Any, ...]]
"""Values; the PRNG of keys; platform, devices by number and whatever else makes the sharding."""


def dump(cell: Cell) -> State:
    """Values and sharding of a cell.

    Raises:
        TraceError: inside a trace, where there are no values.
        BadShardingError: other processes have some of the values, or no other process could make
            this kind of sharding.
    """
    if not isinstance(cell, BufferCell) or _jaxapi.in_trace():
        raise TraceError(
            "a mutable array has no values to pickle inside a trace: pickle it outside of jit"
        )
    if not cell.sharding.is_fully_addressable:
        raise BadShardingError(
            f"{cell.sharding} has devices of other processes, whose values cannot be pickled here: "
            "pickle the blocks of each process, m.addressable_shards"
        )
    with cell.lock:
        place = _describe(cell.sharding)
        array = cell.array()
        if _cast.is_key(cell.dtype):
            return np.array(jax.random.key_data(array)), str(jax.random.key_impl(array)), place
        return np.array(array), None, place


def load(state: State) -> BufferCell:
    """The cell of a new array, from what `dump` gave.

    Raises:
        BadShardingError: this process lacks a device that the sharding names.
    """
    values, impl, place = state
    sharding = _restore(place)
    with jax.ensure_compile_time_eval():
        if impl is not None:
            keys = jax.random.wrap_key_data(jnp.asarray(values), impl=impl)
            return BufferCell(_buffers.put_apart(keys, sharding), sharding)
        array = _buffers.from_blocks(values.shape, sharding, lambda index: values[index])
        return BufferCell(array, sharding)


def _describe(sharding: Sharding) -> tuple[Any, ...]:
    memory = sharding.memory_kind
    if isinstance(sharding, NamedSharding):
        mesh, devices = sharding.mesh, np.asarray(sharding.mesh.devices)
        ids = np.array([device.id for device in devices.flat]).reshape(devices.shape)
        platform = devices.flat[0].platform
        return platform, ids, mesh.axis_names, mesh.axis_types, sharding.spec, memory
    if _jaxapi.is_single_device_sharding(sharding):
        (device,) = sharding.device_set
        return device.platform, np.array(device.id), memory
    raise BadShardingError(
        f"a {type(sharding).__name__} cannot be pickled: give the array a NamedSharding, or pickle "
        "np.asarray(m)"
    )


def _restore(place: tuple[Any, ...]) -> Sharding:
    platform, ids, *rest = place
    try:
        there = {device.id: device for device in jax.local_devices(backend=platform)}
    except RuntimeError:  # no such backend
        there = {}
    missing = sorted({int(k) for k in ids.flat} - set(there))
    if missing:
        raise BadShardingError(
            f"this mutable array was pickled on {ids.size} {platform} devices, and this process "
            f"has {len(there)}: there is no {platform} device number {missing[0]}. Start it with "
            "as many devices, or pickle np.asarray(m) and make the array anew"
        )
    if not ids.shape and len(rest) == 1:
        return _jaxapi.make_single_device_sharding(there[int(ids)], memory_kind=rest[0])
    names, types, spec, memory = rest
    devices = np.empty(ids.shape, object)
    for index in np.ndindex(ids.shape):
        devices[index] = there[int(ids[index])]
    return NamedSharding(Mesh(devices, names, axis_types=types), spec, memory_kind=memory)
