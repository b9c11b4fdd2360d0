"""What docs/libraries.md says of Flax: Linen, NNX, and what both share."""

from __future__ import annotations

from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx, serialization
from flax.training.train_state import TrainState

import mutarray as mu
from tests.support import KINDS, layouts

SHAPE, SHARDING = layouts(KINDS["auto"])["4x2"]
EVERYWHERE = layouts(KINDS["auto"])["scalar"][1]
X = np.linspace(0, 1, 16, dtype=np.float32).reshape(2, 8)
W = np.arange(48, dtype=np.float32).reshape(SHAPE)


def is_mutable(x: Any) -> bool:
    return isinstance(x, mu.MutableArray)


def values(tree: Any) -> Any:
    return jax.tree.map(lambda x: x[...] if is_mutable(x) else x, tree, is_leaf=is_mutable)


def variables() -> dict[str, Any]:
    kernel, bias = mu.mutable_array(W, SHARDING), mu.zeros(6, sharding=EVERYWHERE)
    return {"params": {"kernel": kernel, "bias": bias}}


# Linen -------------------------------------------------------------------------------------------


def test_linen_applies() -> None:
    dense, own = linen.Dense(6), variables()
    for run in (dense.apply, jax.jit(dense.apply)):
        np.testing.assert_allclose(run(own, X), X @ W, rtol=1e-5)
    frozen = flax.core.freeze(own)
    assert frozen["params"]["kernel"] is own["params"]["kernel"]
    own["params"]["bias"][...] = 1.0
    np.testing.assert_allclose(dense.apply(frozen, X), X @ W + 1, rtol=1e-5)


def test_linen_gradients_are_taken_of_values() -> None:
    dense, own = linen.Dense(6), variables()
    with pytest.raises(ValueError, match="cotangent type Ref"):
        jax.grad(lambda own: dense.apply(own, X).sum())(own)
    grads = jax.grad(lambda own: dense.apply(own, X).sum())(values(own))
    np.testing.assert_allclose(grads["params"]["bias"], np.full(6, 2.0))
    jax.tree.map(lambda m, g: m.__isub__(0.5 * g), own, grads, is_leaf=is_mutable)
    np.testing.assert_allclose(own["params"]["bias"], np.full(6, -1.0))
    assert own["params"]["kernel"].sharding is SHARDING


class Counter(linen.Module):
    in_place: bool

    @linen.compact
    def __call__(self, x: Any) -> Any:
        count = self.variable("state", "count", lambda: jnp.zeros(()))
        if self.in_place:
            count.value += 1
        else:
            count.value = count.value + 1
        return x


def test_linen_collections_that_change() -> None:
    own = {"state": {"count": mu.zeros(())}}
    _, new = Counter(in_place=False).apply(own, X, mutable=["state"])
    assert isinstance(new["state"]["count"], jax.Array) and float(own["state"]["count"]) == 0
    own["state"]["count"][...] = new["state"]["count"]
    _, new = Counter(in_place=True).apply(own, X, mutable=["state"])
    assert new["state"]["count"] is own["state"]["count"] and float(own["state"]["count"]) == 2
    with pytest.raises(flax.errors.ModifyScopeVariableError):
        Counter(in_place=True).apply(own, X)
    assert float(own["state"]["count"]) == 3  # Python adds first and asks Linen then: give values
    with pytest.raises(flax.errors.ModifyScopeVariableError):
        Counter(in_place=True).apply(values(own), X)
    assert float(own["state"]["count"]) == 3


def test_train_state_and_serialization_work_with_values() -> None:
    own = variables()
    create = {"apply_fn": linen.Dense(6).apply, "tx": optax.sgd(0.5)}
    state = TrainState.create(params=own["params"], **create)
    assert state.params["kernel"] is own["params"]["kernel"]
    ones = jax.tree.map(jnp.ones_like, values(own)["params"])
    with pytest.raises(ValueError, match="pytree structure error"):
        state.apply_gradients(grads=ones)
    after = TrainState.create(params=values(own)["params"], **create).apply_gradients(grads=ones)
    np.testing.assert_allclose(after.params["kernel"], W - 0.5, rtol=1e-6)
    with pytest.raises(TypeError, match="can not serialize 'MutableArray'"):
        serialization.to_bytes(own)
    kept = serialization.to_bytes(values(own))
    own["params"]["kernel"][...] = 0.0
    loaded = serialization.from_bytes(values(own), kept)
    jax.tree.map(lambda m, v: m.__setitem__(..., v), own, loaded, is_leaf=is_mutable)
    np.testing.assert_array_equal(own["params"]["kernel"], W)
    assert own["params"]["kernel"][...].sharding == SHARDING


def test_dataclasses() -> None:
    @flax.struct.dataclass
    class State:
        w: Any

    own = State(w=mu.mutable_array(W, SHARDING))
    assert own.replace(w=own.w).w is own.w
    jax.jit(lambda state: state.w.__setitem__(0, 7.0))(own)
    assert float(own.w[0, 0]) == 7


# NNX ---------------------------------------------------------------------------------------------


def test_nnx_refuses_it_in_a_variable() -> None:
    m = mu.mutable_array(W, SHARDING)
    with pytest.raises(ValueError, match="Cannot pass a Ref"):
        nnx.Param(m)
    assert nnx.Param(m[...])[0, 1] == 1

    class Holds(nnx.Module):
        def __init__(self) -> None:
            self.w = m

    with pytest.raises(ValueError, match="Static attributes should not contain data"):
        Holds()


def layer() -> nnx.Linear:
    made = nnx.Linear(8, 6, rngs=nnx.Rngs(0))
    made.kernel.set_raw_value(mu.mutable_array(W, SHARDING))
    made.bias.set_raw_value(mu.zeros(6, sharding=EVERYWHERE))
    return made


def test_nnx_raw_values() -> None:
    """Set as the raw value, it is used in place; ``jax.jit`` takes it, ``nnx.jit`` cannot."""
    own = layer()
    m = own.kernel.get_raw_value()
    np.testing.assert_allclose(own(X), X @ W, rtol=1e-5)
    graph, state = nnx.split(own)
    assert nnx.merge(graph, state).kernel.get_raw_value() is m

    @jax.jit
    def step(state: Any, x: Any) -> Any:
        inside = nnx.merge(graph, state)
        inside.kernel.get_raw_value()[0] = 0.0
        return inside(x)

    wanted = W.copy()
    wanted[0] = 0
    np.testing.assert_allclose(step(state, X), X @ wanted, rtol=1e-5)
    np.testing.assert_array_equal(m, wanted)
    assert m[...].sharding == SHARDING
    with pytest.raises(ValueError, match="cannot be returned"):
        nnx.jit(lambda own, x: own(x))(own, X)
    with pytest.raises(ValueError, match="cotangent type Ref"):
        nnx.grad(lambda own: own(X).sum())(own)


def test_nnx_gradients_are_taken_of_values() -> None:
    own = layer()
    graph, state = nnx.split(own)
    plain = values(state)
    grads = jax.grad(lambda plain: nnx.merge(graph, plain)(X).sum())(plain)
    own.bias.get_raw_value()[...] -= grads["bias"][...]
    np.testing.assert_allclose(own.bias.get_raw_value(), np.full(6, -2.0))
    assert nnx.clone(own).bias.get_raw_value() is own.bias.get_raw_value()  # a clone shares it
