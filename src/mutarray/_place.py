"""The place of a mutable array: its sharding, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jax.sharding import NamedSharding, Sharding

from mutarray import _buffers, _jaxapi
from mutarray._cast import is_key
from mutarray._frames import Home
from mutarray._layout import Layout, layout_of
from mutarray._types import Shape


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where an array lives, and how the eager engine can work on it there.

    Never changed: an array that moves gets another one. So whoever has looked at a place without
    the cell's lock knows under the lock, by ``is``, whether what was seen still holds.

    Attributes:
        home: shape and sharding, as a trace knows them.
        sharding: the sharding, the very object that the user gave.
        layout: the sharding as a grid of blocks.
        work: the same layout in device memory; `sharding` itself where that is so.
        is_local: whether the eager engine can work there, shard by shard, in device memory.
        memory: the kind of host memory in which it can work there; else ``None``.
        fixed: whether the user said where; otherwise JAX may bring what is read to other devices.
    """

    home: Home
    sharding: Sharding
    layout: Layout
    work: Sharding
    is_local: bool
    memory: str | None
    fixed: bool


def place_of(
    shape: Shape, dtype: Any, sharding: Sharding, in_c_order: bool, fixed: bool = True
) -> Place:
    """The place of an array.

    Args:
        shape: the array's.
        dtype: the array's.
        sharding: where it lives.
        in_c_order: whether its dimensions lie in memory in C's order.
        fixed: whether the user said where.

    Raises:
        IndivisibleError: an axis would be split unevenly.
        BadShardingError: it is no sharding, or has more dimensions than the array.
    """
    layout = layout_of(shape, sharding)
    work = _buffers.compute_sharding(sharding)
    fits = (
        (isinstance(sharding, NamedSharding) or _jaxapi.is_single_device_sharding(sharding))
        and layout.fully_addressable
        and not is_key(dtype)
        and in_c_order
        and 0 not in shape
    )
    is_local = fits and work is sharding
    memory = _buffers.host_memory(sharding) if fits and not is_local else None
    fixed = fixed or len(layout.shards) > 1
    return Place(Home(shape, sharding), sharding, layout, work, is_local, memory, fixed)
