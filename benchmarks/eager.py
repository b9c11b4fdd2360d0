"""Eager reads and writes against an eager `jax.Ref`, `jax.Array` and bare kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import (
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
)
from rich.console import Console

import mutarray as mu
from benchmarks.timing import Row, Step, medians
from mutarray._jaxapi import make_single_device_sharding

P = PartitionSpec


def shardings() -> dict[str, Sharding]:
    """The layouts that are measured."""
    devices = np.array(jax.devices())

    def on(shape: tuple[int, int]) -> NamedSharding:
        grid = devices[: shape[0] * shape[1]].reshape(shape)
        return NamedSharding(Mesh(grid, ("i", "j"), axis_types=(AxisType.Auto,) * 2), P("i", "j"))

    return {
        "1 device": make_single_device_sharding(devices[0]),
        "2×2": on((2, 2)),
        "4×2": on((4, 2)),
    }


class Arrays:
    """A mutable array, a Ref and an array of one size and sharding, and how to wait for each."""

    def __init__(self, size: int, sharding: Sharding):
        self.size, self.sharding = size, sharding
        self.ours = mu.zeros((size, size), jnp.float32, sharding=sharding)
        self.array = jax.jit(lambda: jnp.zeros((size, size)), out_shardings=sharding)()
        self.ref = jax.new_ref(self.array)

    def wait(self) -> None:
        """Until all writes to the mutable array are done; no snapshot, which would share it."""
        cell = self.ours._cell
        jax.block_until_ready([cell.block(shard.device) for shard in cell.place.layout.shards])


Write = tuple[str, Any, Any]
"""Name, index by round, and value."""

PEERS = {
    "m[k, k] = 1.0": 1.3e-3,
    "m[k] = row": 1.0e-3,
    "m[100 rows] = rows": 94e-3,
    "m[10:500] = 2.0": 41e-3,
    "m[mask] = 1.0": 814e-3,
    "m[k, k]": 1.2e-3,
    "add 1.0 to all": 646e-3,
}
"""cuPyNumeric 26.6.1 on 4 CPU processors, float32[8192, 8192]; see `NOTE` in `__main__`."""


def writes(arrays: Arrays, small: int) -> Iterator[Write]:
    """Name, index by round, and value of each write.

    Those with ``c`` write to ``small`` columns in the middle, so that the smaller array gets as
    many bytes as the big one, and across as many borders.
    """
    n = arrays.size
    row, rows = np.ones(n, np.float32), np.ones((64, n), np.float32)
    hundred = np.ones((100, n), np.float32)
    rng = np.random.default_rng(0)
    permutations = [np.sort(rng.permutation(n)[:100]) for _ in range(8)]
    border = n // 4 - 32
    yield "m[k, k] = 1.0", lambda k: (k, k), 1.0
    yield "m[k] = row", lambda k: k, row
    yield "m[b:b+64] = rows", lambda k: slice(border + k % 16, border + k % 16 + 64), rows
    yield "m[100 rows] = rows", lambda k: permutations[k % 8], hundred
    yield "m[10:500] = 2.0", lambda k: slice(10, 500), 2.0
    c = slice(n // 2 - small // 2, n // 2 + small // 2)
    row, rows, hundred = row[c], rows[:, c].copy(), hundred[:, c].copy()
    yield "m[k, c] = row", lambda k: (k, c), row
    yield (
        "m[b:b+64, c] = rows",
        lambda k: (slice(border + k % 16, border + k % 16 + 64), c),
        rows,
    )
    yield "m[100 rows, c] = rows", lambda k: (permutations[k % 8], c), hundred
    yield "m[10:500, c] = 2.0", lambda k: (slice(10, 500), c), 2.0
    mask = rng.random((n, n), np.float32) < 0.01
    yield "m[mask] = 1.0", lambda k: mask, 1.0


def write_row(layout: str, big: Arrays, write: Write, small: Arrays, lesser: Write) -> Row:
    """Times one write on both sizes, and raw JAX's on the big one."""

    name, index, value = write

    def ours(arrays: Arrays, write: Write) -> Step:
        def step(k: int) -> None:
            arrays.ours[write[1](k)] = write[2]
            arrays.wait()

        return step

    def by_ref(k: int) -> None:
        big.ref[index(k)] = expanded
        big.ref._refs._buf.block_until_ready()

    def by_at(k: int) -> None:
        big.array.at[index(k)].set(value).block_until_ready()

    if ", c]" in name or "mask" in name or layout == "1 device":
        steps = {"ours": ours(big, write), "small": ours(small, lesser)}
        return row_of(layout, name, steps, dict.fromkeys(steps, 10 if "mask" in name else 60))
    # A Ref does not broadcast: it gets a value of the full shape.
    shape = np.lib.stride_tricks.as_strided(np.int8(0), (big.size,) * 2, (0, 0))[index(0)].shape
    expanded = jnp.broadcast_to(jnp.asarray(value, jnp.float32), shape)
    steps = {
        "ours": ours(big, write),
        "small": ours(small, lesser),
        "jax.Ref": by_ref,
        ".at[].set": by_at,
    }
    repeats = {"ours": 60, "small": 60, "jax.Ref": 3, ".at[].set": 3}
    return row_of(layout, name, steps, repeats)


def row_of(layout: str, name: str, steps: dict[str, Step], repeats: dict[str, int]) -> Row:
    """Takes the times and makes a row of them."""
    seen = medians(steps, {k: repeats[k] for k in steps})
    raw = {k: v for k, v in seen.items() if k not in ("ours", "small")}
    return Row(layout, name, seen["ours"], seen["small"], raw, PEERS.get(name))


def read_row(layout: str, name: str, index: Any, big: Arrays, small: Arrays) -> Row:
    """Times one read on both sizes, and raw JAX's on the big one."""
    steps: dict[str, Step] = {
        "ours": lambda k: big.ours[index(k)].block_until_ready(),
        "small": lambda k: small.ours[index(k)].block_until_ready(),
        "jax.Ref": lambda k: big.ref[index(k)].block_until_ready(),
        "jax.Array": lambda k: big.array[index(k)].block_until_ready(),
    }
    repeats = {"ours": 60, "small": 60, "jax.Ref": 3, "jax.Array": 20}
    if layout == "1 device":
        steps = {k: steps[k] for k in ("ours", "small")}
    return row_of(layout, name, steps, repeats)


def narrow_read_row(layout: str, big: Arrays, small: Arrays) -> Row:
    """A read of as many columns in the middle as the small array has, on both."""

    def step(arrays: Arrays) -> Step:
        middle, half = arrays.size // 2, small.size // 2
        c = slice(middle - half, middle + half)
        return lambda k: arrays.ours[k, c].block_until_ready()

    steps = {"ours": step(big), "small": step(small)}
    return row_of(layout, "m[k, c]", steps, dict.fromkeys(steps, 60))


def floor_row(layout: str, big: Arrays) -> Row:
    """An element write against a bare donated kernel on the shard that is touched; 100 in a row."""
    cell = big.ours._cell
    shard = cell.place.layout.shards[0]
    block = jax.device_put(np.zeros(cell.place.layout.block_shape, np.float32), shard.device)
    held = [block]

    @functools.partial(jax.jit, donate_argnums=0)
    def kernel(x: jax.Array, v: Any, i: Any, j: Any) -> jax.Array:
        return jax.lax.dynamic_update_slice(x, jnp.full((1, 1), v, x.dtype), (i, j))

    def bare(_: int) -> None:
        for k in range(100):
            held[0] = kernel(held[0], 1.0, k, k)
        held[0].block_until_ready()

    def ours(_: int) -> None:
        for k in range(100):
            big.ours[k, k] = 1.0
        cell.block(shard.device).block_until_ready()

    seen = medians({"ours": ours, "bare kernel": bare}, {"ours": 40, "bare kernel": 40})
    return Row(
        layout, "m[k, k] = 1.0, 100 times", seen["ours"], None, {"bare kernel": seen["bare kernel"]}
    )


def whole_row(layout: str, big: Arrays) -> Row:
    """Whole-array in-place arithmetic against a donated jit and NumPy."""
    add = jax.jit(lambda x: x + 1.0, donate_argnums=0, out_shardings=big.sharding)
    held = [jnp.copy(big.array)]
    host = np.zeros((big.size, big.size), np.float32)

    def ours(_: int) -> None:
        mu.addupdate(big.ours, ..., 1.0)
        big.wait()

    def donated(_: int) -> None:
        held[0] = add(held[0])
        held[0].block_until_ready()

    def numpy(_: int) -> None:
        np.add(host, 1.0, out=host)

    steps: dict[str, Step] = {"ours": ours, "donated jit": donated, "NumPy": numpy}
    seen = medians(steps, dict.fromkeys(steps, 15))
    return Row(
        layout,
        "add 1.0 to all",
        seen["ours"],
        raw={k: seen[k] for k in ("donated jit", "NumPy")},
        peer=PEERS["add 1.0 to all"],
    )


def run(size: int, small: int, console: Console) -> list[Row]:
    """All rows."""
    rows: list[Row] = []
    for layout, sharding in shardings().items():
        big, little = Arrays(size, sharding), Arrays(small, sharding)
        with console.status(f"{layout}: writes") as status:
            for write, lesser in zip(writes(big, small), writes(little, small), strict=True):
                status.update(f"{layout}: {write[0]}")
                rows.append(write_row(layout, big, write, little, lesser))
            reads: dict[str, Callable[[int], Any]] = {
                "m[k, k]": lambda k: (k, k),
                "m[k]": lambda k: k,
                "m[b:b+64]": lambda k, b=small // 4 - 32: slice(b + k % 16, b + k % 16 + 64),
            }
            for name, index in reads.items():
                status.update(f"{layout}: {name}")
                rows.append(read_row(layout, name, index, big, little))
            status.update(f"{layout}: m[k, c]")
            rows.append(narrow_read_row(layout, big, little))
            rows.append(floor_row(layout, big))
            rows.append(whole_row(layout, big))
    return rows
