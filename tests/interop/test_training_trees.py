"""Whole states of every kind of tree: mutable, values, assign, map_inplace, freeze."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx, struct
from jax.sharding import NamedSharding

import mutarray as mu
from mutarray.errors import BadValueError, ShapeError, SpentError
from tests.support import P, mesh

# Trees of immutable arrays --------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    weight: Any
    bias: Any
    name: str = dataclasses.field(default="layer", metadata={"static": True})


class Pair(NamedTuple):
    one: Any
    other: Any


@struct.dataclass
class FlaxState:
    weight: Any
    steps: Any


class Module(eqx.Module):
    weight: Any
    layers: list
    size: int = eqx.field(static=True)


class Net(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)


def _arrays():
    return jnp.arange(32.0).reshape(4, 8), jnp.arange(8.0)


def _dicts():
    weight, bias = _arrays()
    return {"encoder": {"w": weight, "b": bias}, "steps": jnp.array(3)}


def _dataclasses():
    return [Layer(*_arrays(), name="first"), Layer(*_arrays())]


def _named_tuples():
    return Pair(_arrays(), {"deep": Pair(jnp.ones(8), None)})


def _flax_dataclasses():
    return FlaxState(_arrays()[0], jnp.array(0))


def _equinox():
    weight, bias = _arrays()
    return Module(weight, [Module(bias, [], 8)], 4)


def _equinox_mlp():
    return eqx.filter(eqx.nn.MLP(4, 8, 8, 2, key=jax.random.key(0)), eqx.is_array)


def _nnx():
    return nnx.state(Net(nnx.Rngs(0)))


def _nnx_pure():
    return nnx.to_pure_dict(nnx.state(Net(nnx.Rngs(0))))


def _nnx_optimizer():
    net = Net(nnx.Rngs(0))
    return nnx.split((net, nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param)))[1]


def _optax():
    return optax.adamw(1e-2).init({"w": _arrays()[0]})


TREES = {
    make.__name__.removeprefix("_"): make
    for make in (
        _dicts,
        _dataclasses,
        _named_tuples,
        _flax_dataclasses,
        _equinox,
        _equinox_mlp,
        _nnx,
        _nnx_pure,
        _nnx_optimizer,
        _optax,
    )
}


@pytest.fixture(params=TREES.values(), ids=TREES.keys())
def tree(request):
    m = mesh((4, 2), "ij")
    made = request.param()

    def place(x):
        split = x.ndim > 0 and x.shape[-1] % 2 == 0
        return jax.device_put(x, NamedSharding(m, P(*[None] * (x.ndim - 1), "j") if split else P()))

    return jax.tree.map(place, made)


def is_mutable(x):
    return isinstance(x, mu.MutableArray)


def arrays(tree):
    return [x for x in jax.tree.leaves(tree, is_leaf=is_mutable) if is_mutable(x)]


def plain(x):
    """An array for NumPy: of a random key, what it is made of."""
    keys = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if keys else x)


def changed(x):
    """Other values of the same shape and dtype."""
    return x[...] if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x * 2 + 1


def same(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert x.sharding == y.sharding and x.dtype == y.dtype
        np.testing.assert_array_equal(plain(x), plain(y))


# What is promised of each -----------------------------------------------------------------------


def test_values_give_the_tree_back(tree):
    state = mu.mutable(tree)
    assert type(state) is type(tree)
    assert len(arrays(state)) == len(jax.tree.leaves(tree)) > 0
    same(mu.values(state), tree)


def test_assign_writes_a_tree_back(tree):
    state = mu.mutable(tree)
    handles = arrays(state)
    new = jax.tree.map(changed, tree)
    mu.assign(state, new)
    same(mu.values(state), jax.tree.map(lambda x, s: jax.device_put(x, s.sharding), new, tree))
    assert all(x is y for x, y in zip(arrays(state), handles, strict=True))


def test_assign_writes_nothing_where_a_leaf_does_not_fit(tree):
    state = mu.mutable(tree)
    leaves, treedef = jax.tree.flatten(jax.tree.map(changed, tree))
    path = jax.tree_util.keystr(jax.tree_util.tree_leaves_with_path(state, is_mutable)[-1][0])
    leaves[-1] = jnp.zeros((3, 3, 3))
    with pytest.raises(ShapeError) as caught:
        mu.assign(state, jax.tree.unflatten(treedef, leaves))
    assert str(caught.value).startswith(f"{path}: ")
    same(mu.values(state), tree)


def test_map_inplace_changes_every_array(tree):
    state = mu.mutable(tree)
    mu.map_inplace(changed, state)
    new = jax.tree.map(changed, tree)
    same(mu.values(state), jax.tree.map(lambda x, s: jax.device_put(x, s.sharding), new, tree))


def test_freeze_ends_it(tree):
    state = mu.mutable(tree)
    same(mu.freeze(state), tree)
    with pytest.raises(SpentError):
        mu.values(state)


@mu.jit
def change(state):
    old = mu.values(state)
    mu.assign(state, jax.tree.map(changed, old))
    mu.map_inplace(changed, state)
    return state, mu.mutable(old)


def test_a_compiled_step_changes_it_and_returns_it(tree):
    state = mu.mutable(tree)
    handles = arrays(state)
    returned, old = change(state)
    assert all(x is y for x, y in zip(arrays(returned), handles, strict=True))
    twice = jax.tree.map(lambda x: changed(changed(x)), tree)
    same(mu.values(state), jax.tree.map(lambda x, s: jax.device_put(x, s.sharding), twice, tree))
    assert type(old) is type(tree)
    for x, y in zip(jax.tree.leaves(mu.values(old)), jax.tree.leaves(tree), strict=True):
        np.testing.assert_array_equal(plain(x), plain(y))


# What is not a tree of arrays alone --------------------------------------------------------------


def test_an_equinox_module_with_functions_in_it():
    model = eqx.nn.MLP(4, 8, 8, 2, key=jax.random.key(0))
    state = mu.mutable(model)
    assert state.activation is model.activation
    mu.map_inplace(changed, state)
    mu.assign(state, model)
    x = jnp.ones(4)
    assert (mu.values(state)(x) == model(x)).all()
    with pytest.raises(BadValueError, match=r"\[0\]\.activation is of type .*, which is no array"):
        mu.jit(lambda m: mu.values(m)(x))(state)
    assert (mu.freeze(state)(x) == model(x)).all()


def test_a_dataclass_that_is_no_tree_is_named():
    @dataclasses.dataclass
    class Unknown:
        weight: Any

    for verb in (mu.mutable, mu.values):
        with pytest.raises(BadValueError, match=r"\['net'\] is a Unknown, .*register_dataclass"):
            verb({"net": Unknown(jnp.ones(2))})
