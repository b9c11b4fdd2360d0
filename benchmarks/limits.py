"""What is counted rather than timed: memory, in a process of its own each, and compiled programs.

`python -m benchmarks.limits NAME` takes one measure and prints it as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import mutarray as mu

MIB = 1 << 20


@dataclass
class Limit:
    """One measure: what was seen, and what raw JAX or the array itself stands at."""

    measure: str
    seen: str
    against: str


def sharding() -> NamedSharding:
    """2×2 devices."""
    grid = np.array(jax.devices()[:4]).reshape(2, 2)
    mesh = Mesh(grid, ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    return NamedSharding(mesh, PartitionSpec("i", "j"))


def status(field: str) -> int:
    """A field of /proc/self/status in bytes: VmRSS (now), VmHWM (at most so far)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def pointers(m: mu.MutableArray) -> list[int]:
    """Where the blocks lie."""
    cell = m._cell
    return [cell.block(s.device).unsafe_buffer_pointer() for s in cell.place.layout.shards]


def many_writes() -> Limit:
    """1,000 writes into 1 GiB: how much the process grows."""
    n = 1 << 14
    m = mu.zeros((n, n), jnp.float32, sharding=sharding())
    row, rows = np.ones(n, np.float32), np.ones((64, n), np.float32)

    def write(k: int) -> None:
        m[k % n, k % n] = 1.0
        m[k * 7 % n] = row
        b = k * 11 % (n - 64)
        m[b : b + 64] = rows

    m[...] = 1.0  # so that every page is there
    for k in range(100):
        write(k * 97)
    before, where = status("VmRSS"), pointers(m)
    jax.block_until_ready(m[0, 0])
    for k in range(334):
        write(k)
    jax.block_until_ready(m[0, 0])
    growth = status("VmRSS") - before
    moved = sum(a != b for a, b in zip(where, pointers(m), strict=True))
    return Limit(
        "1,000 writes into 1 GiB",
        f"grows by {growth / MIB:.1f} MiB, {moved} of {len(where)} blocks moved",
        "allowed: 16 MiB, 0 moved",
    )


def born() -> Limit:
    """`mu.zeros` of 2 GiB: the peak."""
    mu.zeros((8, 8), jnp.float32, sharding=sharding())[0, 0].block_until_ready()
    before = status("VmHWM")
    m = mu.zeros((1 << 14, 1 << 15), jnp.float32, sharding=sharding())
    jax.block_until_ready(m[0, 0])
    peak = (status("VmHWM") - before) / (2048 * MIB)
    return Limit("mu.zeros of 2 GiB", f"peak {peak:.3f} of its size", "allowed: 1.05")


def count_compiles(work: Callable[[], Any]) -> int:
    """How many programs XLA compiles."""
    seen: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        work()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return len(seen)


def compiles() -> list[Limit]:
    """Programs compiled for new index values, and for eight new lengths of a slice."""
    n = 1024
    m = mu.zeros((n, n), jnp.float32, sharding=sharding())
    ref = jax.new_ref(jax.jit(lambda: jnp.zeros((n, n)), out_shardings=sharding())())

    def values(x: Any, first: int) -> None:
        for k in range(first, n - 16, 37):
            x[k, k] = 1.0
            x[k] = np.ones(n, np.float32)
            x[k : k + 16] = np.ones((16, n), np.float32)

    def lengths(x: Any) -> None:
        for size in range(20, 28):
            for k in (3, n // 2 - 7):
                x[k : k + size] = np.ones((size, n), np.float32)

    out: list[Limit] = []
    for name, work in (
        ("programs compiled for new index values", lambda x: values(x, 5)),
        ("programs compiled for eight new slice lengths", lengths),
    ):
        for x in (m, ref):
            values(x, 0)
            x[n // 2 - 8 : n // 2 + 8] = np.ones((16, n), np.float32)  # across the border
        seen = [count_compiles(lambda x=x, work=work: work(x)) for x in (m, ref)]
        out.append(Limit(name, str(seen[0]), f"jax.Ref: {seen[1]}"))
    return out


MEMORY = {"writes": many_writes, "born": born}


def run() -> list[Limit]:
    """All measures."""
    out: list[Limit] = []
    for name in MEMORY if sys.platform == "linux" else ():
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.limits", name],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ,
        )
        if done.returncode:
            out.append(Limit(name, "failed", done.stderr.strip().splitlines()[-1]))
        else:
            out.append(Limit(**json.loads(done.stdout)))
    return out + compiles()


if __name__ == "__main__":
    print(json.dumps(asdict(MEMORY[sys.argv[1]]())))
