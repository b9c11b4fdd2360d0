"""Sharding → grid of shards, as host integers.

An evenly sharded array is a grid of equal blocks. A `Layout` says, for one shape and one sharding,
how long a block is along each dimension, how many there are, and which devices hold each.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec, Sharding

from mutarray import _jaxapi
from mutarray._types import Box, Shape
from mutarray.errors import BadShardingError, IndivisibleError


@dataclass(frozen=True, slots=True)
class Shard:
    """One device's block of the array.

    Attributes:
        device: the device that holds it.
        block: its place in the grid of blocks.
        box: its half-open range in each dimension.
        replica: 0 for the first device that holds this block, 1 for the second, ...
        addressable: whether this process can reach the device.
    """

    device: Any  # a `jax.Device`, which is a variable to type checkers
    block: tuple[int, ...]
    box: Box
    replica: int
    addressable: bool


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """How an array of ``shape`` lies on its devices.

    `layout_of` gives the same object again, so one is equal to itself alone, and hashes fast.

    Attributes:
        shape: the shape of the whole array.
        block_shape: the shape of every block.
        counts: the number of blocks along each dimension.
        shards: every device's block, in the sharding's order of devices.
        owners: the shards that hold a block, by its place in the grid.
    """

    shape: Shape
    block_shape: Shape
    counts: tuple[int, ...]
    shards: tuple[Shard, ...]
    owners: dict[tuple[int, ...], tuple[Shard, ...]]

    @property
    def replicas(self) -> int:
        """How many devices hold each block."""
        return len(self.shards) // max(len(self.owners), 1)

    def block_bytes(self, dtype: Any) -> int:
        """The bytes of one block."""
        return math.prod(self.block_shape) * dtype.itemsize

    @property
    def fully_addressable(self) -> bool:
        """Whether this process can reach every shard."""
        return all(shard.addressable for shard in self.shards)


@functools.lru_cache(maxsize=1024)
def layout_of(shape: Shape, sharding: Sharding) -> Layout:
    """The layout of an array of ``shape`` under ``sharding``.

    Raises:
        IndivisibleError: an axis would be split unevenly.
        BadShardingError: the sharding has more dimensions than the array.
    """
    check_sharding(shape, sharding)
    block_shape = tuple(sharding.shard_shape(shape))
    counts = tuple(n // b if b else 1 for n, b in zip(shape, block_shape, strict=True))
    process = jax.process_index()
    shards: list[Shard] = []
    owners: dict[tuple[int, ...], list[Shard]] = {}
    for device, slices in sharding.devices_indices_map(shape).items():
        box = tuple(s.indices(n)[:2] for s, n in zip(slices, shape, strict=True))
        block = tuple(lo // b if b else 0 for (lo, _), b in zip(box, block_shape, strict=True))
        held = owners.setdefault(block, [])
        shard = Shard(device, block, box, len(held), device.process_index == process)
        held.append(shard)
        shards.append(shard)
    return Layout(
        shape, block_shape, counts, tuple(shards), {k: tuple(v) for k, v in owners.items()}
    )


def check_sharding(shape: Shape, sharding: object) -> None:
    """Raises unless ``sharding`` splits an array of ``shape`` into equal parts."""
    if not isinstance(sharding, Sharding):
        raise BadShardingError(
            f"sharding={sharding!r} is a {type(sharding).__name__}, not a jax.sharding.Sharding: "
            "pass NamedSharding(mesh, P(...)) or another array's .sharding"
        )
    if isinstance(sharding, NamedSharding):
        if isinstance(sharding.mesh, AbstractMesh) and not _jaxapi.in_trace():
            raise BadShardingError(
                f"sharding= with the spec {sharding.spec} is on an AbstractMesh, which has no "
                "devices: pass NamedSharding(mesh, P(...)) with a jax.sharding.Mesh"
            )
        if len(sharding.spec) > len(shape):
            raise BadShardingError(
                f"the spec {sharding.spec} names {len(sharding.spec)} dimensions, and the array of "
                f"shape {shape} has {len(shape)}: give at most one entry for each axis"
            )
        for axis, names in enumerate(sharding.spec):
            if names is PartitionSpec.UNCONSTRAINED:
                raise BadShardingError(
                    f"the spec {sharding.spec} leaves axis {axis} unconstrained, and a mutable "
                    "array's sharding is fixed: name the mesh axes or None"
                )
            parts = _parts(sharding, names)
            if shape[axis] % parts:
                raise _indivisible(shape, axis, parts, f"mesh axes {_axes(names)!r}")
        return
    try:
        sharding.shard_shape(shape)
    except ValueError as error:
        raise IndivisibleError(
            f"an array of shape {shape} does not split evenly under {sharding}: {error}; give it "
            "lengths that the numbers of parts divide, or a sharding that leaves the axis whole"
        ) from None


def memory_kind_of(sharding: Sharding) -> str:
    """The kind of memory that it names, or that its devices take where it names none."""
    return sharding.memory_kind or next(iter(sharding.device_set)).default_memory().kind


def _axes(names: object) -> tuple[str, ...]:
    """The mesh axes of one entry of a spec."""
    if names is None:
        return ()
    return tuple(names) if isinstance(names, tuple) else (names,)  # pyright: ignore


def _parts(sharding: NamedSharding, names: object) -> int:
    return math.prod(sharding.mesh.shape[name] for name in _axes(names))


def _indivisible(shape: Shape, axis: int, parts: int, by: str) -> IndivisibleError:
    size = shape[axis]
    below = size - size % parts
    fits = f"{below + parts}" if below == 0 else f"{below} or {below + parts}"
    return IndivisibleError(
        f"axis {axis} of shape {shape} has size {size}, which {by} split {parts} ways, and {parts} "
        f"does not divide {size}: make it {fits} long, or leave axis {axis} whole, with None in "
        "the spec"
    )


def split_axes(sharding: NamedSharding, ndim: int) -> tuple[tuple[str, ...], ...]:
    """For each of ``ndim`` dimensions, the mesh axes that split it, major first."""
    spec = tuple(sharding.spec) + (None,) * (ndim - len(sharding.spec))
    return tuple(_axes(names) for names in spec)


def spec_where_divisible(
    shape: Shape, axes: tuple[tuple[str, ...] | None, ...], mesh_shape: dict[str, int]
) -> PartitionSpec:
    """The spec that splits each dimension over its axes if its length divides, else not at all.

    What is empty is not split: JAX cannot bring an empty split array to the host.
    """
    entries: list[tuple[str, ...] | str | None] = []
    for size, names in zip(shape, axes, strict=True):
        names = names or ()
        parts = math.prod(mesh_shape[name] for name in names)
        divides = names and size % parts == 0 and 0 not in shape
        entries.append((names[0] if len(names) == 1 else names) if divides else None)
    return PartitionSpec(*entries)
