"""The short way for the commonest eager operations: boxes, and scalars written by a mask.

It says what `select`, `plan` and the eager engine would say, without the detour through objects
that can say more, and hands anything else back to them: whoever calls it goes the long way when it
returns ``None``. A test holds both ways equal.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, Sharding

from mutarray import _buffers, _jaxapi
from mutarray._boxes import Box, box_of
from mutarray._layout import Layout, Shard, layout_of, spec_where_divisible, split_axes
from mutarray._types import Launch


def value_of(value: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """A value that needs no check, as a kernel takes it; or ``None``.

    Args:
        value: what the user gave.
        shape: the box's.
        dtype: the array's.
    """
    kind = type(value)
    if kind is float:
        if dtype.kind != "f":
            return None
        return value if dtype.itemsize >= 4 else np.array(value, dtype)
    if kind is int:
        return value if dtype.kind in "fi" and -128 <= value < 128 else None
    if isinstance(value, np.ndarray):
        return value if value.dtype == dtype and value.shape == shape else None
    if isinstance(value, np.generic):
        return value if value.dtype == dtype else None
    return None


def launches(layout: Layout, index: Any, value: Any, dtype: Any) -> list[Launch] | None:
    """The launches that write a value that needs no check where an index points; or ``None``.

    Args:
        layout: of the array.
        index: what the user wrote between the brackets.
        value: what is to be written.
        dtype: the array's.
    """
    element = _element(layout, index)
    if element is not None:
        shards, at = element
        value = value_of(value, (), dtype)
        if value is None:
            return None
        write = _writer((1,) * len(layout.shape))
        return [(shard.device, write, (value, at)) for shard in shards]
    if type(index) is np.ndarray and index.dtype == np.bool_:
        return _masked(layout, index, value_of(value, (), dtype))
    box = box_of(layout, index, covered=True)
    if box is None:
        return None
    value = value_of(value, box.shape, dtype)
    return None if value is None else _boxed(layout, box, value)


def _element(layout: Layout, index: Any) -> tuple[tuple[Shard, ...], int] | None:
    """Who holds the element that integers name, and which of their block's elements it is."""
    if type(index) is not tuple or len(index) != len(layout.shape) or not _is_packed(layout):
        return None
    at = 0
    block: list[int] = []
    for i, n, length in zip(index, layout.shape, layout.block_shape, strict=True):
        if type(i) is not int:
            return None
        if i < 0:
            i += n
        if not 0 <= i < n:
            return None
        place, i = divmod(i, length)
        block.append(place)
        at = at * length + i
    return layout.owners[tuple(block)], at


@functools.lru_cache(maxsize=1024)
def _is_packed(layout: Layout) -> bool:
    """Whether one 32-bit operand says where in a block something begins.

    Each operand costs some 3 µs on a CPU.
    """
    return math.prod(layout.block_shape) < 1 << 31


def _boxed(layout: Layout, box: Box, value: Any) -> list[Launch]:
    """The launches that write to a box a value that `value_of` gave.

    A value that is an array is cut by views; JAX copies what it is given before a launch returns.
    """
    is_array = isinstance(value, np.ndarray) and value.ndim > 0
    packed = _is_packed(layout)
    out: list[Launch] = []
    for shards, cut, starts, sizes in box.pieces:
        part = value[cut] if is_array and cut is not None else value
        if packed:
            at = 0
            for start, length in zip(starts, layout.block_shape, strict=True):
                at = at * length + start
            operands = (part, at)
        else:
            operands = (part, *starts)
        write = _writer(sizes)
        for shard in shards:
            out.append((shard.device, write, operands))
    return out


_DENSE = 256
"""One `True` in so many elements makes it worth while to go through a block whole."""


def _masked(layout: Layout, mask: np.ndarray, value: Any) -> list[Launch] | None:
    """The launches that write a scalar where a mask of the array's shape is ``True``.

    Without a list of positions, which has eight bytes or more for each; if there are so few that
    this is less than the mask, it is left to the long way.
    """
    if value is None or mask.shape != layout.shape:
        return None
    parts = {
        block: mask[tuple(slice(*ends) for ends in shards[0].box)]
        for block, shards in layout.owners.items()
    }
    counts = {block: int(np.count_nonzero(part)) for block, part in parts.items()}
    if sum(counts.values()) * _DENSE < mask.size:
        return None
    return [
        (shard.device, _masker, (parts[block], value))
        for block, shards in layout.owners.items()
        if counts[block]
        for shard in shards
    ]


def _write_masked(block: jax.Array, mask: jax.Array, value: Any) -> jax.Array:
    return jnp.where(mask, jnp.asarray(value, block.dtype), block)


_masker = jax.jit(_write_masked, donate_argnums=0, keep_unused=True)


def _unpacked(starts: Sequence[Any], shape: tuple[int, ...]) -> Sequence[Any]:
    """Starts in each dimension from one that counts elements."""
    if len(starts) == len(shape):
        return starts
    (at,) = starts
    out: list[Any] = []
    for length in reversed(shape):
        out.insert(0, at % length)
        at = at // length
    return out


@functools.lru_cache(maxsize=4096)
def _writer(sizes: tuple[int, ...]) -> Callable[..., jax.Array]:
    """Writes a scalar, or an array with as many elements, to a box of these sizes."""

    def write_box(block: jax.Array, value: Any, *starts: Any) -> jax.Array:
        value = jnp.asarray(value, block.dtype)
        value = value.reshape(sizes) if value.ndim else jnp.broadcast_to(value, sizes)
        if sizes == block.shape:
            return value
        return jax.lax.dynamic_update_slice(block, value, _unpacked(starts, block.shape))

    return jax.jit(write_box, donate_argnums=0, keep_unused=True)


@functools.lru_cache(maxsize=4096)
def _reader(sizes: tuple[int, ...], shape: tuple[int, ...]) -> Callable[..., jax.Array]:
    """Reads a box of these sizes, in this shape."""

    def read_box(block: jax.Array, *starts: Any) -> jax.Array:
        return jnp.copy(jax.lax.dynamic_slice(block, starts, sizes).reshape(shape))

    return jax.jit(read_box)


class Out(NamedTuple):
    """Where a read goes.

    Attributes:
        sharding: of the result.
        devices: its devices.
        cuts: which part of the result each device gets; ``None``: each gets all of it.
        on_host: whether the devices compute from the memory of the host.
    """

    sharding: Sharding
    devices: list[jax.Device]
    cuts: list[tuple[slice, ...]] | None
    on_host: bool


@functools.lru_cache(maxsize=1024)
def _out(sharding: Sharding, shape: tuple[int, ...], sources: tuple[int, ...], ndim: int) -> Out:
    """Where a read of this shape goes."""
    out = sharding
    if isinstance(sharding, NamedSharding):
        axes = split_axes(sharding, ndim)
        kept = tuple(axes[d] for d in sources)
        spec = spec_where_divisible(shape, kept, dict(sharding.mesh.shape))
        out = NamedSharding(sharding.mesh, spec)
    result = layout_of(shape, out)
    cuts = None
    if len(result.owners) > 1:
        cuts = [tuple(slice(*ends) for ends in shard.box) for shard in result.shards]
    devices = [shard.device for shard in result.shards]
    return Out(out, devices, cuts, devices[0].platform == "cpu")


def read(
    held: Callable[[jax.Device], jax.Array], layout: Layout, sharding: Sharding, box: Box
) -> jax.Array | None:
    """A box in the sharding that the long way names; ``None`` where that is left to the long way.

    A read of the whole array is: there it is a snapshot, without a copy.
    """
    if box.shape == layout.shape:
        return None
    out = _out(sharding, box.shape, box.sources, len(layout.shape))
    if len(out.devices) > 1 and out.on_host:
        return _read_on_host(held, box, out)
    if len(box.pieces) > 1 or out.cuts is not None:
        return None
    piece = box.pieces[0]
    block = held(piece.shards[0].device)
    if piece.sizes == block.shape:
        return None
    one = _reader(piece.sizes, box.shape)(block, *piece.starts)
    if len(out.devices) == 1:
        return _buffers.laid_out(one, out.sharding)
    ones = [one] * len(out.devices)
    return _buffers.spread(box.shape, block.dtype, out.sharding, ones, out.devices)


def _read_on_host(held: Callable[[jax.Device], jax.Array], box: Box, out: Out) -> jax.Array:
    """Copies a box out of the blocks, without a program, and gives each device its part.

    Faster than programs and moves between CPU devices. A view is gone when its piece is copied:
    as long as there is one, XLA copies the block rather than donating it.
    """
    whole: Any = None
    for shards, cut, starts, sizes in box.pieces:
        view = _jaxapi.host_view(held(shards[0].device))
        part = view[
            tuple(
                slice(start, start + size) if d in box.sources else start
                for d, (start, size) in enumerate(zip(starts, sizes, strict=True))
            )
        ]
        if cut is None:
            whole = np.array(part)
        else:
            whole = np.empty(box.shape, view.dtype) if whole is None else whole
            whole[cut] = part
    parts = [whole] * len(out.devices) if out.cuts is None else [whole[cut] for cut in out.cuts]
    return _jaxapi.batched_device_put(box.shape, whole.dtype, out.sharding, parts, out.devices)
