"""Moves an array to another sharding, block by block, through the parts that blocks share.

Compiled programs that change a sharding may bring the whole array to every device, and
``jax.device_put`` between different sets of devices brings it whole to the host. Here a device
never holds more than its old block, its new one, and one part of it that is on its way.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, Sharding

from mutarray import _buffers, _cast, _jaxapi
from mutarray._layout import Layout, Shard, layout_of
from mutarray._types import Box, Shape

Blocks = dict[jax.Device, jax.Array]
"""Single-device arrays by their devices, in the sharding's order of devices."""


def moved(
    array: jax.Array, old: Sharding, new: Sharding, shares: bool = True
) -> tuple[jax.Array, set[jax.Device]]:
    """An array under another sharding, with the same order of dimensions; the old one is left.

    Args:
        array: the array, laid out by ``old``.
        old: its sharding.
        new: one that splits it evenly.
        shares: whether a block that stays where it is may keep its buffer; otherwise it is copied.

    Returns:
        The array, and the devices on which it shares its buffers with the old one.
    """
    if _cast.is_key(array.dtype) and 0 not in array.shape:
        if _splits_as_numbers(old) and _splits_as_numbers(new):
            numbers, kept = moved(jax.random.key_data(array), old, new, shares)
            return jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(array)), kept
        return _buffers.put_apart(array, new), set()
    if 0 in array.shape:
        return _jaxapi.alias(array, new), set()
    before, after = layout_of(array.shape, old), layout_of(array.shape, new)
    if not (before.fully_addressable and after.fully_addressable):
        return _buffers.put_apart(array, new), set()
    devices = [shard.device for shard in before.shards]
    blocks = dict(zip(devices, _jaxapi.blocks(array), strict=True))
    order = _jaxapi.custom_layout(array)
    made, kept = _moved_blocks(blocks, before, after, new.memory_kind, order, shares)
    parts = list(made.values())
    out = jax.make_array_from_single_device_arrays(array.shape, new, parts, dtype=array.dtype)
    return out, kept


def _splits_as_numbers(sharding: Sharding) -> bool:
    """Whether it means the same for keys and for the numbers that they are made of."""
    return isinstance(sharding, NamedSharding) or _jaxapi.is_single_device_sharding(sharding)


def _moved_blocks(
    blocks: Blocks,
    old: Layout,
    new: Layout,
    memory_kind: str | None,
    order: Any,
    shares: bool,
) -> tuple[Blocks, set[jax.Device]]:
    """The blocks of the new layout, and the devices whose block is the old one."""
    boxes = {shard.device: shard.box for shard in old.shards}
    stays = [shard for shard in new.shards if boxes.get(shard.device) == shard.box]
    made = {shard.device: blocks[shard.device] for shard in stays}
    comes = [shard for shard in new.shards if shard.device not in made]
    if _through_host(blocks, comes):
        fresh = _assembled_on_host(blocks, old, new, comes, memory_kind)
    else:
        fresh = _assembled_on_devices(blocks, old, new, comes)
    kept: set[jax.Device] = set()
    for shard, block in itertools.chain(((s, made[s.device]) for s in stays), fresh):
        put = _in_memory(block, shard.device, memory_kind, order)
        if put is blocks.get(shard.device):
            if shares:
                kept.add(shard.device)
            else:
                put = _buffers.copy_block(put)
        made[shard.device] = put
    return {shard.device: made[shard.device] for shard in new.shards}, kept


def _through_host(blocks: Blocks, comes: list[Shard]) -> bool:
    """Whether parts lie where NumPy can see them, or that is the shortest way."""
    on_host = any(_buffers.compute_sharding(b.sharding) is not b.sharding for b in blocks.values())
    return on_host or any(d.platform == "cpu" for d in (*blocks, *(s.device for s in comes)))


def _in_memory(block: jax.Array, device: jax.Device, kind: str | None, order: Any) -> jax.Array:
    """A block in a kind of memory and an order of dimensions; the block itself if it is."""
    home = _jaxapi.make_single_device_sharding(device, memory_kind=kind)
    ordered = order is None or _jaxapi.custom_layout(block) is not None
    if ordered and block.sharding.memory_kind == home.memory_kind:
        return block
    return _buffers.put(block, _jaxapi.in_order(order, home), may_alias=False)


# Parts -------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """What an old block and a new one have in common.

    Attributes:
        holders: the devices that hold the old block.
        source: where it is in the old block.
        target: where it is in the new one.
    """

    holders: tuple[jax.Device, ...]
    source: tuple[slice, ...]
    target: tuple[slice, ...]


def _parts(old: Layout, box: Box) -> list[_Part]:
    """The parts of the old blocks that a new block is made of."""
    along: list[list[tuple[int, slice, slice]]] = []
    for (low, high), length in zip(box, old.block_shape, strict=True):
        spans: list[tuple[int, slice, slice]] = []
        for place in range(low // length, (high - 1) // length + 1):
            first, end = max(low, place * length), min(high, (place + 1) * length)
            begin = place * length
            spans.append((place, slice(first - begin, end - begin), slice(first - low, end - low)))
        along.append(spans)
    return [
        _Part(
            tuple(shard.device for shard in old.owners[tuple(span[0] for span in spans)]),
            tuple(span[1] for span in spans),
            tuple(span[2] for span in spans),
        )
        for spans in itertools.product(*along)
    ]


def _assembled_on_host(
    blocks: Blocks, old: Layout, new: Layout, comes: list[Shard], memory_kind: str | None
) -> Iterator[tuple[Shard, jax.Array]]:
    """Yields each shard with its block, made by NumPy and copied to the device, one by one."""
    shape, dtype = new.block_shape, next(iter(blocks.values())).dtype
    wanted: dict[Box, list[Shard]] = {}
    for shard in comes:
        wanted.setdefault(shard.box, []).append(shard)
    for box, shards in wanted.items():
        whole = _buffers.room(shape, dtype)
        for part in _parts(old, box):
            whole[part.target] = _seen(blocks[part.holders[0]])[part.source]
        for shard in shards:
            home = _jaxapi.make_single_device_sharding(shard.device, memory_kind=memory_kind)
            yield shard, jax.device_put(whole, home, may_alias=False).block_until_ready()
        del whole


def _seen(block: jax.Array) -> np.ndarray:
    """The values of a block: where the host can see them, a view."""
    (device,) = block.devices()
    if device.platform == "cpu":
        return _jaxapi.host_view(block)
    return np.asarray(block)


def _assembled_on_devices(
    blocks: Blocks, old: Layout, new: Layout, comes: list[Shard]
) -> Iterable[tuple[Shard, jax.Array]]:
    """Shards with their blocks, made on the devices: each takes one part at a time from another.

    In each round a device gets its next part; they begin with different ones, so that not all ask
    the same device at once. Nothing is begun before the round before it is done, for what is
    begun has its memory already.
    """
    queues: list[list[_Part]] = []
    for k, shard in enumerate(comes):
        parts = _parts(old, shard.box)
        first = k % len(parts)
        queues.append(parts[first:] + parts[:first])
    made: list[Any] = [None] * len(comes)
    for turn in range(max(map(len, queues), default=0)):
        for k, (shard, queue) in enumerate(zip(comes, queues, strict=True)):
            if turn < len(queue):
                piece = _brought(blocks, queue[turn], shard.device, k)
                made[k] = _joined(made[k], piece, queue[turn], new.block_shape)
        jax.block_until_ready(made)
    return zip(comes, made, strict=True)


def _joined(block: jax.Array | None, piece: jax.Array, part: _Part, shape: Shape) -> jax.Array:
    """A block with one more part; the first part begins it."""
    if piece.shape == shape:
        return piece
    starts = np.asarray([span.start for span in part.target], np.int32)
    if block is None:
        return _beginner(shape)(piece, starts)
    return _continue(block, piece, starts)


def _brought(blocks: Blocks, part: _Part, device: jax.Device, turn: int) -> jax.Array:
    """A part on a device; from itself if it holds it."""
    held = part.holders
    source = device if device in held else held[turn % len(held)]
    block = blocks[source]
    sizes = tuple(span.stop - span.start for span in part.source)
    if sizes != block.shape:
        block = _cutter(sizes)(block, np.asarray([span.start for span in part.source], np.int32))
    return block if source == device else jax.device_put(block, device, may_alias=False)


@functools.lru_cache(maxsize=1024)
def _cutter(sizes: tuple[int, ...]) -> Callable[..., jax.Array]:
    return jax.jit(lambda block, starts: jax.lax.dynamic_slice(block, list(starts), sizes))


@functools.lru_cache(maxsize=1024)
def _beginner(shape: tuple[int, ...]) -> Callable[..., jax.Array]:
    """Makes a block that has one part so far."""

    def begin(piece: jax.Array, starts: jax.Array) -> jax.Array:
        whole = jnp.zeros(shape, piece.dtype)
        return jax.lax.dynamic_update_slice(whole, piece, list(starts))

    return jax.jit(begin)


def _with_part(block: jax.Array, piece: jax.Array, starts: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice(block, piece, list(starts))


_continue = jax.jit(_with_part, donate_argnums=0)
