"""What docs/libraries.md says of equinox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mutarray as mu
from tests.support import KINDS, layouts

SHAPE, SHARDING = layouts(KINDS["auto"])["4x2"]
X = np.linspace(0, 1, 6, dtype=np.float32)


def is_mutable(x: Any) -> bool:
    return isinstance(x, mu.MutableArray)


def values(tree: Any) -> Any:
    return jax.tree.map(lambda x: x[...] if is_mutable(x) else x, tree, is_leaf=is_mutable)


class Model(eqx.Module):
    w: Any
    b: Any

    def __call__(self, x: Any) -> jax.Array:
        return self.w @ x + self.b


def made() -> tuple[np.ndarray, Model]:
    w = np.arange(48, dtype=np.float32).reshape(SHAPE)
    return w, Model(mu.mutable_array(w, SHARDING), jnp.ones(8))


def test_modules_hold_and_call() -> None:
    w, model = made()
    for run in (lambda f: f, eqx.filter_jit, jax.jit):
        np.testing.assert_allclose(run(lambda model, x: model(x))(model, X), w @ X + 1, rtol=1e-5)

    @eqx.filter_jit
    def write(model: Model) -> Model:
        model.w[0] = 5.0
        return model  # filter_jit hands it back as the same array

    assert write(model).w is model.w
    assert float(model.w[0, 0]) == 5 and model.w[...].sharding == SHARDING
    assert eqx.filter_eval_shape(lambda model: model(X), model).shape == (8,)


def test_weights_of_a_layer_replaced() -> None:
    layer = eqx.nn.Linear(6, 8, key=jax.random.key(0))
    w, model = made()
    layer = eqx.tree_at(lambda layer: layer.weight, layer, model.w)
    assert layer.weight is model.w
    wanted = w @ X + layer.bias
    np.testing.assert_allclose(layer(X), wanted, rtol=1e-5)
    np.testing.assert_allclose(eqx.filter_jit(layer)(X), wanted, rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(layer)(jnp.stack([X, X]))[1], wanted, rtol=1e-5)
    model.w[...] = 0.0
    np.testing.assert_allclose(layer(X), layer.bias)
    assert eqx.tree_at(lambda layer: layer.weight, layer, w, is_leaf=is_mutable).weight is w


def test_filters_do_not_see_it_without_is_leaf() -> None:
    _, model = made()
    assert eqx.is_array(model.w) is False and eqx.is_array_like(model.w) is True
    lost = eqx.filter(model, eqx.is_array)
    with pytest.raises(mu.errors.NotMutableError, match="NoneType.*is_leaf"):
        lost.w[0]
    some, rest = eqx.partition(
        model, lambda x: eqx.is_array(x) or is_mutable(x), is_leaf=is_mutable
    )
    assert some.w is model.w and rest.w is None
    assert eqx.combine(some, rest, is_leaf=is_mutable).w is model.w
    some, rest = eqx.partition(model, eqx.is_array)  # apart and together again, nothing is lost
    assert eqx.combine(some, rest).w is model.w


def test_gradients_are_taken_of_values() -> None:
    _, model = made()
    by_module = eqx.filter_grad(lambda model: model(X).sum())(model)
    with pytest.raises(mu.errors.NotMutableError):  # not differentiated, as what is no array
        by_module.w[0]
    grads = eqx.filter_grad(lambda model: model(X).sum())(values(model))
    np.testing.assert_allclose(grads.w, np.broadcast_to(X, SHAPE), rtol=1e-6)
    before = np.asarray(model.w)
    model.w[...] -= 0.5 * grads.w
    np.testing.assert_allclose(model.w, before - 0.5 * np.broadcast_to(X, SHAPE), rtol=1e-6)
    assert model.w.sharding is SHARDING


def test_serialisation_writes_values(tmp_path: Path) -> None:
    """A Ref is no array to equinox: it is left out without a word, so values are written."""
    w, model = made()
    path = tmp_path / "model.eqx"
    eqx.tree_serialise_leaves(path, model)
    assert path.stat().st_size < w.nbytes  # the weights are not there
    eqx.tree_serialise_leaves(path, values(model))
    model.w[...] = 0.0
    like = eqx.filter_eval_shape(values, model)
    loaded = eqx.tree_deserialise_leaves(path, like)
    model.w[...] = loaded.w
    np.testing.assert_array_equal(model.w, w)
    assert model.w[...].sharding == SHARDING
    with pytest.raises(Exception, match="Error at leaf"):
        eqx.tree_deserialise_leaves(path, model, is_leaf=is_mutable)


def test_comparison_is_of_values() -> None:
    """``tree_equal`` compares Refs by identity: of values, it compares elements."""
    (_, one), (_, two) = made(), made()
    assert eqx.tree_equal(one, one) and not eqx.tree_equal(one, two)
    assert eqx.tree_equal(values(one), values(two))
