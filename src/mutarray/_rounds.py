"""Points that are named more than once, for a function of the user's.

It is applied in rounds, of which the k-th has each k-th occurrence: within a round all positions
differ, so that a read, a call and a write of all its points are as good as one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def rank_of_each(positions: list[jax.Array]) -> jax.Array:
    """How many earlier points have the same position; one stable sort of the points."""
    count = positions[0].shape[0]
    order = jnp.arange(count, dtype=jnp.int32)
    *keys, given = lax.sort((*positions, order), num_keys=len(positions) + 1)
    differs = jnp.any(jnp.stack([k[1:] != k[:-1] for k in keys]), axis=0)
    first = lax.cummax(jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.where(differs, order[1:], 0)]))
    return jnp.zeros(count, jnp.int32).at[given].set(order - first, unique_indices=True)


def most_often(points: list[np.ndarray]) -> int:
    """How often the position is named that is named most often."""
    keys = np.stack(points, axis=1)
    return int(np.unique(keys, axis=0, return_counts=True)[1].max(initial=0))


def in_rounds(
    x: jax.Array,
    shape: tuple[int, ...],
    positions: list[jax.Array],
    known: int | None,
    step: Callable[[jax.Array, list[jax.Array]], jax.Array],
) -> jax.Array:
    """``x`` after a step for each round.

    Args:
        x: what the points point into.
        shape: the lengths of the dimensions that they index.
        positions: flat and of equal length; those out of range take part in no round.
        known: how many rounds there are, if that is known when the program is compiled. Only then
            does the loop have a gradient.
        step: takes ``x`` and the positions of one round, of which all that are in range differ, and
            gives the next ``x``. What is not in the round is out of range.
    """
    away = [jnp.asarray(n, p.dtype) for n, p in zip(shape, positions, strict=True)]
    if known == 1:
        return step(x, positions)
    inside = jnp.all(jnp.stack([p < n for p, n in zip(positions, away, strict=True)]), axis=0)
    rank = rank_of_each(positions)
    rounds: Any = known
    if known is None:
        rounds = jnp.max(jnp.where(inside, rank, -1)) + 1

    def one_round(k: Any, x: jax.Array) -> jax.Array:
        now = inside & (rank == k)
        return step(x, [jnp.where(now, p, n) for p, n in zip(positions, away, strict=True)])

    return lax.fori_loop(0, rounds, one_round, x)
