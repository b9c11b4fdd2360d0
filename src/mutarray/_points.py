"""Points: gather, scatter, and what becomes of a position that is named more than once.

An assignment keeps the last occurrence. A function of the user's is applied in rounds, of which the
k-th has each k-th occurrence: within a round all positions differ, so that a read, a call and a
write of all its points are as good as one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mutarray._form import Form

_SCATTERS: dict[str, Callable[..., jax.Array]] = {
    "set": lax.scatter,
    "add": lax.scatter_add,
    "multiply": lax.scatter_mul,
    "min": lax.scatter_min,
    "max": lax.scatter_max,
}


def gather(sub: jax.Array, form: Form, positions: list[jax.Array]) -> jax.Array:
    """One window for each point, of which a position out of range is moved until it fits."""
    dims = form.point_dims
    return lax.gather(
        sub,
        jnp.stack(positions, axis=-1),
        lax.GatherDimensionNumbers(
            offset_dims=tuple(range(1, 1 + len(form.spans))),
            collapsed_slice_dims=dims,
            start_index_map=dims,
        ),
        slice_sizes=tuple(1 if d in dims else n for d, n in enumerate(sub.shape)),
        mode="clip",
    )


def scatter(
    sub: jax.Array,
    form: Form,
    positions: list[jax.Array],
    core: jax.Array,
    op: str,
    unique: bool,
    starts: Sequence[Any] = (),
) -> jax.Array:
    """Windows written to, or combined with, the points; those out of range are dropped.

    With ``starts`` the windows begin there along the spans, rather than at 0.
    """
    first = positions[0]
    along = [jnp.broadcast_to(jnp.asarray(s, first.dtype), first.shape) for s in starts]
    return _SCATTERS[op](
        sub,
        jnp.stack([*positions, *along], axis=-1),
        core,
        lax.ScatterDimensionNumbers(
            update_window_dims=tuple(range(1, core.ndim)),
            inserted_window_dims=form.point_dims,
            scatter_dims_to_operand_dims=form.point_dims + (form.span_dims if along else ()),
        ),
        unique_indices=unique,
        mode="drop",
    )


def last_of_each(positions: list[jax.Array]) -> jax.Array:
    """Which points are not overwritten by a later point at the same position.

    One stable sort of the points, so it costs what is written, whatever the array's size.
    """
    count = positions[0].shape[0]
    order = jnp.arange(count, dtype=jnp.int32)
    *keys, order = lax.sort((*positions, order), num_keys=len(positions) + 1)
    differs = [k[1:] != k[:-1] for k in keys]
    last = jnp.concatenate([jnp.any(jnp.stack(differs), axis=0), jnp.ones(1, bool)])
    return jnp.zeros(count, bool).at[order].set(last, unique_indices=True)


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
