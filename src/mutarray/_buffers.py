"""Whole arrays: where they are computed on, copied, and taken over."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from mutarray import _cast, _jaxapi
from mutarray._types import Shape


@functools.lru_cache(maxsize=256)
def _default_memory(device: jax.Device) -> str:
    return device.default_memory().kind


def compute_sharding(sharding: Sharding) -> Sharding:
    """The same layout in the memory that the devices compute from; ``sharding`` itself if it is."""
    # Not cached as a whole: a cache would give another object that is equal to this one.
    default = _default_memory(next(iter(sharding.device_set)))
    if sharding.memory_kind in (None, default):
        return sharding
    return sharding.with_memory_kind(default)


def host_memory(sharding: Sharding) -> str | None:
    """The kind of the host memory that it names, if programs can work there in place."""
    platform = next(iter(sharding.device_set)).platform
    kind = sharding.memory_kind
    return kind if kind is not None and runs_in_memory(platform, kind) else None


@functools.lru_cache(maxsize=256)
def _copier(out: Any) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(jnp.copy, out_shardings=out)


def copy(x: jax.Array, sharding: Sharding) -> jax.Array:
    """A copy with buffers of its own, in the same place, memory and order of dimensions."""
    if x.size == 0:  # JAX 0.9 fails to compile a program that gives an empty split array
        return _jaxapi.alias(x, sharding)
    if compute_sharding(sharding) is sharding:
        return _copier(_jaxapi.custom_layout(x) or sharding)(x)
    # XLA programs on host memory are not there on every backend and version: copy by shards.
    shards = [
        _from_host(np.asarray(block), block.device, sharding.memory_kind)
        for block in _jaxapi.blocks(x)
    ]
    return jax.make_array_from_single_device_arrays(x.shape, sharding, shards, dtype=x.dtype)


def committed(x: jax.Array) -> jax.Array:
    """The same, kept on its devices: to JAX, Refs are, and so is what it puts into a lent array."""
    return x if x.committed else _jaxapi.alias(x, x.sharding)


def laid_out(block: jax.Array, sharding: Sharding) -> jax.Array:
    """An array on one device, under the sharding that says so in the user's terms."""
    return block if block.sharding == sharding else _jaxapi.alias(block, sharding)


def from_blocks(shape: Shape, sharding: Sharding, block: Callable[[Any], np.ndarray]) -> jax.Array:
    """An array from the blocks of this process's devices, each made once per device."""
    shards = []
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        shards.append(_from_host(block(index), device, sharding.memory_kind))
    return jax.make_array_from_single_device_arrays(shape, sharding, shards)


def put(x: Any, place: Any, *, may_alias: bool | None = None) -> jax.Array:
    """``jax.device_put``, also for what a program computed in the host memory of a CPU.

    Args:
        x: an array of any kind.
        place: a sharding, a device, or a ``Format``.
        may_alias: as ``jax.device_put``.

    JAX 0.12.1 cannot put such an array anywhere: its CPU client refuses the memory space in the
    layout of the buffer ("Unsupported layout used for PjRt CPU buffers"). NumPy sees the memory
    anyway, so what lies there is copied block by block.
    """
    if not (isinstance(x, jax.Array) and _is_in_host_memory_of_cpu(x)):
        return jax.device_put(x, place, may_alias=may_alias)
    if _cast.is_key(x.dtype):
        numbers = put(jax.random.key_data(x), place, may_alias=may_alias)
        return jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(x))
    if isinstance(place, jax.Device):
        place = _jaxapi.make_single_device_sharding(place)
    if not isinstance(place, Sharding):  # a `Format`
        return jax.device_put(put(x, place.sharding), place, may_alias=may_alias)
    indices = place.devices_indices_map(x.shape)
    if indices == x.sharding.devices_indices_map(x.shape):
        shards = [
            _from_host(_jaxapi.host_view(block), block.device, place.memory_kind)
            for block in _jaxapi.blocks(x)
        ]
        return jax.make_array_from_single_device_arrays(x.shape, place, shards, dtype=x.dtype)
    whole = np.asarray(_jaxapi.alias(x, x.sharding))
    return from_blocks(x.shape, place, lambda index: whole[index])


def put_apart(x: jax.Array, sharding: Sharding) -> jax.Array:
    """`put`, in buffers that nothing else has, so that whoever gets the result may donate it.

    ``may_alias=False`` does not see to that: where a device holds a whole block already, as one of
    the replicas or because the array lies on it alone, ``jax.device_put`` gives the same buffer.
    """
    out = put(x, sharding)
    if out.size == 0:
        return out
    if _cast.is_key(out.dtype):
        taken = _jaxapi.pointers(jax.random.key_data(x))
        shares = not taken.isdisjoint(_jaxapi.pointers(jax.random.key_data(out)))
        return copy(out, sharding) if shares else out
    taken = _jaxapi.pointers(x)
    blocks = _jaxapi.blocks(out)
    mine = [
        copy(block, block.sharding) if block.unsafe_buffer_pointer() in taken else block
        for block in blocks
    ]
    if all(one is other for one, other in zip(mine, blocks, strict=True)):
        return out
    return jax.make_array_from_single_device_arrays(out.shape, sharding, mine, dtype=out.dtype)


def _is_in_host_memory_of_cpu(x: jax.Array) -> bool:
    if _jaxapi.is_tracer(x):
        return False
    device = next(iter(x.sharding.device_set))
    kind = x.sharding.memory_kind
    return device.platform == "cpu" and kind not in (None, _default_memory(device))


def _from_host(block: np.ndarray, device: jax.Device, memory_kind: str | None) -> jax.Array:
    """A block in a buffer of its own, on a device."""
    place = _jaxapi.make_single_device_sharding(device, memory_kind=memory_kind)
    return jax.device_put(_apart(block), place, may_alias=False)


def room(shape: Shape, dtype: np.dtype) -> np.ndarray:
    """Memory for a block, at an address that makes CPU devices copy it.

    What begins at a multiple of 64 bytes they take over as it is, asked for a copy or not, and
    then XLA does not write to it in place: the next write would copy the block once more.
    """
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + 64 + dtype.itemsize, np.uint8)
    first = -memory.ctypes.data % 64 + dtype.itemsize
    return memory[first : first + size].view(dtype).reshape(shape)


def _apart(x: np.ndarray) -> np.ndarray:
    """A copy that nothing else looks at, and that CPU devices copy once more into a buffer."""
    x = np.asarray(x)
    copy = room(x.shape, x.dtype)
    copy[...] = x
    return copy


def move(x: jax.Array, device: jax.Device) -> jax.Array | np.ndarray:
    """A single-device array, where a program on ``device`` can take it."""
    if device == x.device:
        return x
    if device.platform == "cpu":  # a view, which the program's arguments are made from in no time
        return np.asarray(x)
    return put(x, device)


def spread(
    shape: Shape, dtype: Any, sharding: Sharding, blocks: list[jax.Array], devices: list[jax.Device]
) -> jax.Array:
    """An array from single-device blocks, each moved to its device if it is not there already."""
    sources: list[Any] = blocks
    if devices[0].platform == "cpu":  # between CPU devices, by way of the host is six times faster
        views = {id(block): np.asarray(block) for block in blocks}
        sources = [views[id(block)] for block in blocks]
    return _jaxapi.batched_device_put(shape, dtype, sharding, sources, devices)


_copy_block = jax.jit(jnp.copy)


def copy_block(block: jax.Array) -> jax.Array:
    """A copy of one device's block, with a buffer of its own."""
    if compute_sharding(block.sharding) is block.sharding:
        return _copy_block(block)
    return copy(block, block.sharding)


@functools.lru_cache(maxsize=256)
def _taker(sharding: Any) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda x: x, donate_argnums=0, out_shardings=sharding)


def take_over(x: jax.Array, sharding: Sharding) -> jax.Array:
    """The buffers of ``x`` under a new array, or copies of those that others share.

    ``x`` is deleted, and nothing else that a user holds.
    """
    if _jaxapi.is_shared(x):
        out = copy(x, sharding)
        _jaxapi.let_go(x)
        return out
    if compute_sharding(sharding) is sharding:
        out = _taker(_jaxapi.custom_layout(x) or sharding)(x)
        if not x.is_deleted():  # a NumPy view looks at it, and XLA made a copy
            _jaxapi.let_go(x)
        return out
    out = copy(x, sharding)
    x.delete()
    return out


@functools.lru_cache(maxsize=64)
@_jaxapi.without_mesh
def runs_in_memory(platform: str, memory_kind: str) -> bool:
    """Whether compiled programs can write to a part of an array in this memory, in place.

    Found out by trying, once: JAX 0.9 cannot on CPUs, where its programs lack
    ``annotate_device_placement``, and backends differ.
    """
    device = jax.local_devices(backend=platform)[0]
    home = _jaxapi.make_single_device_sharding(device, memory_kind=memory_kind)

    def write(x: jax.Array, at: jax.Array) -> jax.Array:
        def step(k: Any, x: jax.Array) -> jax.Array:
            old = _jaxapi.to_device_memory(jax.lax.dynamic_slice(x, [at + k], [1]))
            return jax.lax.dynamic_update_slice(x, _jaxapi.to_memory_of(old + 1, x), [at + k])

        return jax.lax.fori_loop(0, 2, step, x)

    try:
        with jax.ensure_compile_time_eval():
            x = jax.device_put(np.arange(4096, dtype=np.int32), home, may_alias=False)
            program = jax.jit(write, donate_argnums=0, out_shardings=home)
            memory = program.lower(x, np.int32(5)).compile().memory_analysis()
            out = program(x, np.int32(5))
            moved = np.flatnonzero(np.asarray(out) - np.arange(4096))
    except Exception:  # whatever a backend says that lacks it
        return False
    in_place = memory is None or memory.temp_size_in_bytes < x.nbytes
    return in_place and out.sharding == home and moved.tolist() == [5, 6]
