"""The scenario of the bug report that mutarray answers (JAX issue 26338).

A sharded array became mutable and lost its sharding: eagerly all of it came to lie on one device,
while under ``jax.jit`` it stayed where it was. Here both are run, and the third thing that the
report speaks of: a mutable array cannot be returned from ``jax.jit``.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import NamedSharding, Sharding
from jax.sharding import PartitionSpec as P

import mutarray as mu
from mutarray.demo.checks import Check
from mutarray.demo.devices import make_mesh


@dataclass(frozen=True)
class Report:
    """What the scenario showed.

    Attributes:
        before: The sharding of the immutable array.
        after: The sharding of what is read from the mutable one.
        picture_before: The immutable array's shards as ``jax.jit`` sees them.
        picture_after: The same of what is read from the mutable array inside ``jax.jit``.
        refusal: What is said when a mutable array is returned from ``jax.jit``, or None where
            nothing was said.
        checks: What had to hold.
    """

    before: Sharding
    after: Sharding
    picture_before: str
    picture_after: str
    refusal: str | None
    checks: list[Check]


def run(devices: Sequence[jax.Device]) -> Report:
    """Runs the scenario on a 2×2 mesh, or on the part of it that the devices allow."""
    mesh = make_mesh(devices, (2, 2), ("i", "j"))
    sharding = NamedSharding(mesh, P("i", "j"))
    zeros = np.zeros(mesh.devices.shape, np.int32)
    array = jax.make_array_from_callback(zeros.shape, sharding, lambda index: zeros[index])

    mutable = mu.mutable_array(array)
    read = mutable[...].sharding
    mutable[0, 0] = 7
    picture_before, picture_after = _pictures(array)
    refusal = _refusal(array)
    return Report(
        before=array.sharding,
        after=read,
        picture_before=picture_before,
        picture_after=picture_after,
        refusal=refusal,
        checks=[
            Check("the mutable array has the sharding of the array", read == array.sharding),
            Check(
                f"and its memory kind, {array.sharding.memory_kind}",
                read.memory_kind == array.sharding.memory_kind,
            ),
            Check(
                "a write changes the element and leaves the sharding",
                int(mutable[0, 0]) == 7 and mutable[...].sharding == array.sharding,
            ),
            Check("the array that it was made from is unchanged", int(array[0, 0]) == 0),
            Check(
                "under jax.jit both pictures are the same",
                bool(picture_before) and picture_before == picture_after,
            ),
            Check("returning one from jax.jit is refused with a ValueError", refusal is not None),
        ],
    )


def _pictures(array: jax.Array) -> tuple[str, str]:
    """Draws the shards of the array and of its mutable copy from inside a ``jax.jit``."""

    @jax.jit
    def draw(array):
        jax.debug.visualize_array_sharding(array, use_color=False)
        mutable = mu.mutable_array(array)
        jax.debug.visualize_array_sharding(mutable[...], use_color=False)

    # JAX draws while it compiles, straight to standard output.
    drawn = io.StringIO()
    with contextlib.redirect_stdout(drawn):
        jax.block_until_ready(draw(array))
        jax.effects_barrier()
    lines = drawn.getvalue().splitlines()
    half = len(lines) // 2
    return "\n".join(lines[:half]), "\n".join(lines[half:])


def _refusal(array: jax.Array) -> str | None:
    @jax.jit
    def returns_one(array):
        return mu.mutable_array(array)

    try:
        returns_one(array)
    except ValueError as error:
        return str(error)
    return None
