"""What docs/libraries.md says of optax."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mutarray as mu
from tests.support import KINDS, layouts

SHAPE, SHARDING = layouts(KINDS["auto"])["4x2"]
EVERYWHERE = layouts(KINDS["auto"])["scalar"][1]


def is_mutable(x: Any) -> bool:
    return isinstance(x, mu.MutableArray)


def values(tree: Any) -> Any:
    return jax.tree.map(lambda x: x[...] if is_mutable(x) else x, tree, is_leaf=is_mutable)


def assign(tree: Any, new: Any) -> None:
    jax.tree.map(lambda m, v: m.__setitem__(..., v), tree, new, is_leaf=is_mutable)


def mutable(tree: Any) -> Any:
    """Optax makes its counts on one device: like all that JAX combines, they go on the mesh."""
    return jax.tree.map(lambda x: mu.mutable_array(x, x.sharding if x.ndim else EVERYWHERE), tree)


def params() -> dict[str, mu.MutableArray]:
    w = np.linspace(-1, 1, 48, dtype=np.float32).reshape(SHAPE)
    return {"w": mu.mutable_array(w, SHARDING), "b": mu.ones(6, sharding=EVERYWHERE)}


def loss(p: Any, x: Any) -> jax.Array:
    return ((x @ p["w"] + p["b"]) ** 2).mean()


X = np.linspace(0, 1, 40, dtype=np.float32).reshape(5, 8)


@pytest.mark.parametrize(
    ("name", "traced"), [("sgd", False), ("adam", True), ("adamw", True)], ids=str
)
def test_parameters_and_state_in_place(name: str, traced: bool) -> None:
    """The parameters and the optimizer's state are assigned in place, as optax computes them."""
    optimizer: Any = getattr(optax, name)(0.1)
    weights = params()
    state = mutable(optimizer.init(values(weights)))

    def step(weights: Any, state: Any, x: Any) -> jax.Array:
        value, grads = jax.value_and_grad(loss)(values(weights), x)
        updates, new = optimizer.update(grads, values(state), values(weights))
        assign(state, new)
        jax.tree.map(lambda m, u: m.__iadd__(u), weights, updates, is_leaf=is_mutable)
        return value

    plain = values(weights)
    plain_state = optimizer.init(plain)
    run = jax.jit(step) if traced else step
    for _ in range(2):
        grads = jax.grad(loss)(plain, X)
        updates, plain_state = optimizer.update(grads, plain_state, plain)
        plain = optax.apply_updates(plain, updates)
        run(weights, state, X)
    for key, wanted in plain.items():
        np.testing.assert_allclose(weights[key], wanted, rtol=1e-5)
    for got, wanted in zip(
        jax.tree.leaves(values(state)), jax.tree.leaves(plain_state), strict=True
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
    assert weights["w"].sharding is SHARDING and weights["w"][...].sharding == SHARDING


def test_mutable_arrays_as_they_are() -> None:
    """What reads single arrays takes them; what maps over a tree sees the Ref inside."""
    weights = params()
    plain = values(weights)
    optimizer = optax.adamw(0.1)
    state = optimizer.init(plain)
    grads = jax.tree.map(jnp.ones_like, plain)
    updates, _ = optimizer.update(grads, state, weights)  # the tree of the gradients leads
    wanted, _ = optimizer.update(grads, state, plain)
    np.testing.assert_allclose(updates["w"], wanted["w"])
    np.testing.assert_allclose(optax.l2_loss(weights["w"]), optax.l2_loss(plain["w"]))
    averaged = optax.incremental_update(plain, weights, 0.1)
    np.testing.assert_allclose(averaged["w"], plain["w"], rtol=1e-6)
    with pytest.raises(ValueError, match="pytree structure error"):
        optax.apply_updates(weights, updates)
    with pytest.raises(AttributeError, match="'Ref' object"):
        optax.tree.norm(weights)


def test_a_state_made_of_mutable_arrays_cannot_be_used() -> None:
    """``init`` puts zeros in the place of the Refs; whoever reads one is told how to do it."""
    weights = params()
    optimizer = optax.adam(0.1)
    state = optimizer.init(weights)
    with pytest.raises(mu.errors.NotMutableError, match="is_leaf"):
        state[0].mu["w"].sum()
    with pytest.raises((TypeError, ValueError)):
        optimizer.update(jax.tree.map(jnp.ones_like, values(weights)), state, weights)
