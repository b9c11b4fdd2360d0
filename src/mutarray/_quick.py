"""The short way for the commonest eager operations: a box of one block, by integers and slices.

It says what `select`, `plan` and the eager engine would say, without the detour through objects
that can say more, and hands anything else back to them: whoever calls it goes the long way when it
returns ``None``. A test holds both ways equal.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, Sharding

from mutarray import _buffers
from mutarray._layout import Layout, Shard, layout_of, spec_where_divisible, split_axes


class Box(NamedTuple):
    """A box inside one block.

    Attributes:
        shards: the devices that hold the block.
        starts: where the box begins in the block.
        sizes: how long it is in each dimension.
        shape: the same without the dimensions that integers took away.
        sources: the dimensions that are left.
    """

    shards: tuple[Shard, ...]
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    shape: tuple[int, ...]
    sources: tuple[int, ...]


def box_of(layout: Layout, index: Any) -> Box | None:
    """The box that an index of in-range integers and slices of step 1 names; or ``None``."""
    if type(index) is not tuple:
        index = (index,)
    lengths = layout.block_shape
    if len(index) > len(lengths):
        return None
    starts: list[int] = []
    sizes: list[int] = []
    shape: list[int] = []
    sources: list[int] = []
    block: list[int] = []
    for axis, length in enumerate(lengths):
        n = layout.shape[axis]
        if axis >= len(index):
            start, size = 0, n
            shape.append(n)
            sources.append(axis)
        else:
            entry = index[axis]
            if type(entry) is int:
                start, size = (entry + n if entry < 0 else entry), 1
                if not 0 <= start < n:
                    return None
            elif type(entry) is slice and entry.step is None:
                try:
                    start, stop, _ = entry.indices(n)
                except Exception:  # a traced bound, say: the long way tells what is wrong
                    return None
                size = stop - start
                if size <= 0:
                    return None
                shape.append(size)
                sources.append(axis)
            else:
                return None
        at, first = divmod(start, length)
        if first + size > length:
            return None
        block.append(at)
        starts.append(first)
        sizes.append(size)
    shards = layout.owners[tuple(block)]
    return Box(shards, tuple(starts), tuple(sizes), tuple(shape), tuple(sources))


def value_of(value: Any, box: Box, dtype: Any) -> Any:
    """A value that needs no check, as a kernel takes it; or ``None``."""
    kind = type(value)
    if kind is float:
        if dtype.kind != "f":
            return None
        return value if dtype.itemsize >= 4 else np.array(value, dtype)
    if kind is int:
        return value if dtype.kind in "fi" and -128 <= value < 128 else None
    if isinstance(value, np.ndarray) and value.dtype == dtype and value.shape == box.shape:
        return value
    return None


@functools.lru_cache(maxsize=4096)
def writer(sizes: tuple[int, ...]) -> Callable[..., jax.Array]:
    """Writes a scalar, or an array with as many elements, to a box of these sizes."""

    def write_box(block: jax.Array, value: Any, *starts: Any) -> jax.Array:
        value = jnp.asarray(value, block.dtype)
        value = value.reshape(sizes) if value.ndim else jnp.broadcast_to(value, sizes)
        if sizes == block.shape:
            return value
        return jax.lax.dynamic_update_slice(block, value, starts)

    return jax.jit(write_box, donate_argnums=0, keep_unused=True)


@functools.lru_cache(maxsize=4096)
def reader(sizes: tuple[int, ...], shape: tuple[int, ...]) -> Callable[..., jax.Array]:
    """Reads a box of these sizes, in this shape."""

    def read_box(block: jax.Array, *starts: Any) -> jax.Array:
        return jnp.copy(jax.lax.dynamic_slice(block, starts, sizes).reshape(shape))

    return jax.jit(read_box)


class Out(NamedTuple):
    """Where a read goes, if every device gets all of it."""

    sharding: Sharding
    devices: list[jax.Device]


@functools.lru_cache(maxsize=1024)
def replicated_out(
    sharding: Sharding, shape: tuple[int, ...], sources: tuple[int, ...], ndim: int
) -> Out | None:
    """Where a read of this shape goes; ``None`` where it would be split."""
    if not isinstance(sharding, NamedSharding):
        return Out(sharding, list(sharding.device_set))
    axes = split_axes(sharding, ndim)
    spec = spec_where_divisible(shape, tuple(axes[d] for d in sources), dict(sharding.mesh.shape))
    if any(names is not None for names in spec):
        return None
    out = NamedSharding(sharding.mesh, spec)
    return Out(out, [shard.device for shard in layout_of(shape, out).shards])


def read(held: Callable[[jax.Device], jax.Array], sharding: Sharding, box: Box) -> jax.Array | None:
    """A box in the sharding that the long way names; ``None`` where that would split it.

    A read of the whole array is left to the long way too: it is a snapshot there, without a copy.
    """
    if len(box.shards[0].box) and box.sizes == tuple(hi - lo for lo, hi in box.shards[0].box):
        return None
    out = replicated_out(sharding, box.shape, box.sources, len(box.sizes))
    if out is None:
        return None
    block = held(box.shards[0].device)
    one = reader(box.sizes, box.shape)(block, *box.starts)
    if len(out.devices) == 1:
        return one
    ones = [one] * len(out.devices)
    return _buffers.spread(box.shape, block.dtype, out.sharding, ones, out.devices)
