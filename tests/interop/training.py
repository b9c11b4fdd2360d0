"""A training step in place, held against the donated functional step: values and memory."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

import mutarray as mu
from tests import hlo
from tests.support import P, mesh

SIZE = 64


def place(tree: Any) -> Any:
    """The tree on a 4×2 mesh, matrices and vectors split along their last dimension."""
    m = mesh((4, 2), "ij")
    return jax.tree.map(
        lambda x: jax.device_put(
            x, NamedSharding(m, P(*[None] * (x.ndim - 1), "j") if x.ndim else P())
        ),
        tree,
    )


def batch() -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, SIZE)).astype(np.float32)
    return jax.device_put((x, np.sin(x)), NamedSharding(mesh((4, 2), "ij"), P("i")))


def bytes_per_device(tree: Any) -> int:
    return sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(tree))


def check(step: Any, functional: Any, state: Any, steps: int = 3) -> None:
    """Trains both ways from one state, and compares.

    Args:
        step: a `mu.jit` of a mutable state and a batch, which gives the loss.
        functional: a function of a state and a batch, which gives the new state and the loss.
        state: of immutable arrays; it survives.
        steps: how many to make.
    """
    start = place(jax.tree.map(jax.numpy.copy, state))
    shardings = jax.tree.map(lambda x: x.sharding, start)
    held = bytes_per_device(start)
    mutable = mu.mutable(start)
    donated = jax.jit(functional, donate_argnums=0, out_shardings=(shardings, None))
    x, y = batch()

    mine = step.lower(mutable, x, y).compile()
    plain = donated.lower(start, x, y).compile()
    # Every byte of the state is overwritten where it is, and nothing else comes out but the loss
    # and the list of the results.
    assert hlo.aliased(mine) == held
    results = len(jax.tree.leaves(start)) + 1
    assert mine.memory_analysis().output_size_in_bytes - held <= 4 + 8 * results
    assert hlo.temporary(mine) <= hlo.temporary(plain) + 256

    before = {id(m) for m in jax.tree.leaves(mutable, is_leaf=_is_mutable)}
    losses, others = [], []
    for _ in range(steps):
        losses.append(float(step(mutable, x, y)))
        start, loss = donated(start, x, y)
        others.append(float(loss))
    np.testing.assert_allclose(losses, others, rtol=1e-5)
    assert losses[-1] < losses[0]
    assert before == {id(m) for m in jax.tree.leaves(mutable, is_leaf=_is_mutable)}
    got = mu.values(mutable)
    assert jax.tree.map(lambda x: x.sharding, got) == shardings
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(start), strict=True):
        if jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def _is_mutable(x: Any) -> bool:
    return isinstance(x, mu.MutableArray)
