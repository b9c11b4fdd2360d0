"""The short way for the commonest eager operations: boxes, by integers and slices of step 1.

It says what `select`, `plan` and the eager engine would say, without the detour through objects
that can say more, and hands anything else back to them: whoever calls it goes the long way when it
returns ``None``. A test holds both ways equal.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, Sharding

from mutarray import _buffers, _jaxapi
from mutarray._layout import Layout, Shard, layout_of, spec_where_divisible, split_axes
from mutarray._plan import covers
from mutarray._types import Launch


class Piece(NamedTuple):
    """The part of a box that lies in one block.

    Attributes:
        shards: the devices that hold the block.
        cut: which part of the box it is, as the user sees the box; ``None``: all of it.
        starts: where it begins in the block.
        sizes: how long it is in each dimension.
    """

    shards: tuple[Shard, ...]
    cut: tuple[slice, ...] | None
    starts: tuple[int, ...]
    sizes: tuple[int, ...]


class Box(NamedTuple):
    """What an index of integers and slices of step 1 names.

    Attributes:
        pieces: its parts, block by block.
        shape: its shape, without the dimensions that integers took away.
        sources: the dimensions that are left.
    """

    pieces: Sequence[Piece]
    shape: tuple[int, ...]
    sources: tuple[int, ...]


def box_of(layout: Layout, index: Any, covered: bool) -> Box | None:
    """The box that an index of in-range integers and slices of step 1 names; or ``None``.

    Args:
        layout: of the array.
        index: what the user wrote between the brackets.
        covered: whether pieces that end at a border get lengths that are powers of two, with some
            elements in two pieces, so that there are few lengths; otherwise no two overlap.
    """
    if type(index) is not tuple:
        index = (index,)
    given = len(index)
    if given > len(layout.shape):
        return None
    lows: list[int] = []
    starts: list[int] = []
    sizes: list[int] = []  # in one block
    shape: list[int] = []
    sources: list[int] = []
    place: list[int | None] = []
    crosses = False
    for axis, n in enumerate(layout.shape):
        entry = index[axis] if axis < given else _ALL
        if type(entry) is int:
            low, size = (entry + n if entry < 0 else entry), 1
            if not 0 <= low < n:
                return None
        elif type(entry) is slice and entry.step is None:
            try:
                low, high, _ = entry.indices(n)
            except Exception:  # a traced bound, say: the long way tells what is wrong
                return None
            size = high - low
            if size <= 0:
                return None
            shape.append(size)
            sources.append(axis)
        else:
            return None
        length = layout.block_shape[axis]
        at, start = divmod(low, length)
        lows.append(low)
        starts.append(start)
        if start + size <= length:
            place.append(at)
            sizes.append(size)
        else:
            crosses = crosses or size != n
            place.append(None)
            sizes.append(size if crosses else length)
    kept = tuple(sources)
    if crosses:
        return Box(_crossing(layout, lows, shape, kept, covered), tuple(shape), kept)
    first, size = tuple(starts), tuple(sizes)
    owners = _owners(layout, tuple(place), kept)
    return Box([Piece(shards, cut, first, size) for shards, cut in owners], tuple(shape), kept)


_ALL = slice(None)


@functools.lru_cache(maxsize=4096)
def _owners(
    layout: Layout, place: tuple[int | None, ...], sources: tuple[int, ...]
) -> list[tuple[tuple[Shard, ...], tuple[slice, ...] | None]]:
    """The blocks of a box that lies in one block along each dimension, or takes it whole.

    Args:
        layout: of the array.
        place: for each dimension the block; ``None`` where the dimension is taken whole.
        sources: the dimensions that integers have not taken away.

    Returns:
        Who holds each block, and the part of the box that it gets.
    """
    if None not in place:
        return [(layout.owners[place], None)]  # pyright: ignore[reportArgumentType]
    along = [range(c) if p is None else (p,) for p, c in zip(place, layout.counts, strict=True)]
    out: list[tuple[tuple[Shard, ...], tuple[slice, ...] | None]] = []
    for block in itertools.product(*along):
        low = [b * length for b, length in zip(block, layout.block_shape, strict=True)]
        cut = tuple(
            slice(low[d], low[d] + layout.block_shape[d]) if place[d] is None else _ALL
            for d in sources
        )
        out.append((layout.owners[block], cut))
    return out


def _crossing(
    layout: Layout, lows: list[int], shape: list[int], sources: tuple[int, ...], covered: bool
) -> list[Piece]:
    """The pieces of a box that crosses a border somewhere."""
    sizes = dict(zip(sources, shape, strict=True))
    along = [
        _windows(low, low + sizes.get(d, 1), layout.block_shape[d], covered)
        for d, low in enumerate(lows)
    ]
    return [
        Piece(
            layout.owners[tuple(window[0] for window in windows)],
            tuple(slice(windows[d][3], windows[d][3] + windows[d][2]) for d in sources),
            tuple(window[1] for window in windows),
            tuple(window[2] for window in windows),
        )
        for windows in itertools.product(*along)
    ]


def _windows(low: int, high: int, length: int, covered: bool) -> list[tuple[int, int, int, int]]:
    """The parts of a range in blocks: block, start in the block, size, start in the range."""
    out: list[tuple[int, int, int, int]] = []
    for block in range(low // length, (high - 1) // length + 1):
        first, end = max(low, block * length), min(high, (block + 1) * length)
        size = end - first
        as_it_is = not covered or size in (length, high - low)
        for ahead, part in [(0, size)] if as_it_is else covers(size):
            at = first + ahead
            out.append((block, at - block * length, part, at - low))
    return out


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


def launches(layout: Layout, box: Box, value: Any) -> list[Launch]:
    """The launches that write a value that `value_of` gave to a box.

    A value that is an array is cut by views; JAX copies what it is given before a launch returns.
    """
    is_array = isinstance(value, np.ndarray) and value.ndim > 0
    packed = math.prod(layout.block_shape) < 1 << 31
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


def _unpacked(starts: Sequence[Any], shape: tuple[int, ...]) -> Sequence[Any]:
    """Starts in each dimension from one that counts elements: each operand costs 3 µs."""
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
        return one
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
