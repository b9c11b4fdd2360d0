"""Trees of mutable arrays: values, mutable, freeze, assign, map_inplace."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

import mutarray as mu
from mutarray import _jaxapi
from mutarray._jaxapi import is_single_device_sharding, make_single_device_sharding
from tests.support import KINDS, P, mesh

pytestmark = pytest.mark.core

kinds = pytest.mark.parametrize("kind", KINDS)
X = np.arange(32, dtype=np.float32).reshape(8, 4)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    weight: Any
    bias: Any
    name: str = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass
class Unknown:
    weight: Any


class Moments(NamedTuple):
    count: Any
    first: Any


def home(kind: str = "auto", spec: Any = P("i", "j")) -> NamedSharding:
    return NamedSharding(mesh((4, 2), "ij", KINDS[kind]), spec)


def arrays(kind: str = "auto") -> dict[str, Any]:
    return {
        "layer": Layer(jax.device_put(X, home(kind)), jnp.zeros(4), "first"),
        "moments": (Moments(jnp.zeros((), jnp.int32), jax.device_put(X, home(kind, P("i")))), None),
        "host": np.arange(3, dtype=np.int32),
        "rate": 0.1,
        "fn": jnp.sin,
    }


def leaves(tree: Any) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, mu.MutableArray))


def equal(one: Any, other: Any) -> None:
    one, other = leaves(one), leaves(other)
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        if isinstance(a, (np.ndarray, jax.Array, mu.MutableArray)):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
            assert a.dtype == b.dtype
        else:
            assert a is b


@kinds
def test_there_and_back(kind: str) -> None:
    tree = arrays(kind)
    state = mu.mutable(tree)
    assert isinstance(state["layer"], Layer) and state["layer"].name == "first"
    assert state["rate"] == 0.1 and state["fn"] is jnp.sin
    assert sum(isinstance(x, mu.MutableArray) for x in leaves(state)) == 5
    equal(mu.values(state), tree)
    assert jax.tree.structure(mu.values(state)) == jax.tree.structure(tree)
    state["layer"].weight[0] = 9
    np.testing.assert_array_equal(tree["layer"].weight, X)
    assert state["layer"].weight.sharding == home(kind)
    frozen = mu.freeze(state)
    assert float(np.asarray(frozen["layer"].weight)[0, 0]) == 9 and frozen["fn"] is jnp.sin
    with pytest.raises(mu.errors.SpentError):
        state["layer"].weight[0]
    again = mu.mutable(mu.mutable(frozen))
    assert mu.mutable(again)["layer"].weight is again["layer"].weight


@kinds
def test_where_they_live(kind: str) -> None:
    state = mu.mutable(arrays(kind))
    # What JAX may still place goes with the others, so that one program can take them all.
    assert state["moments"][0].count.sharding == home(kind, P())
    assert state["layer"].bias.sharding == state["host"].sharding == home(kind, P())
    assert state["moments"][0].first.sharding == home(kind, P("i"))

    @mu.jit
    def step(state: Any) -> None:
        state["moments"][0].count[...] += 1
        state["layer"].bias += state["layer"].weight[0, 0]

    step({"layer": state["layer"], "moments": state["moments"]})
    assert int(state["moments"][0].count) == 1
    alone = mu.mutable({"a": jnp.zeros(2), "b": np.zeros(3)})
    assert is_single_device_sharding(alone["a"].sharding)
    placed = mu.mutable({"a": X, "b": {"c": X, "d": jnp.zeros(3)}}, {"a": home(), "b": None})
    assert placed["a"].sharding == home() and placed["b"]["c"].sharding != home()
    rows = home(kind, P("i"))
    everywhere = mu.mutable([X, jnp.zeros(8)], rows)
    assert [m.sharding for m in everywhere] == [rows, rows]


def test_one_array_in_two_places_of_a_tree() -> None:
    x = jnp.ones(3)
    state = mu.mutable({"in": x, "out": x})
    assert state["in"] is state["out"]
    frozen = mu.freeze(state)
    assert frozen["in"] is frozen["out"]


def test_donation_takes_the_buffers() -> None:
    x, y = jax.device_put(X, home()), jax.device_put(X, home())
    where = [b.unsafe_buffer_pointer() for b in _jaxapi.blocks(x)]
    view = y[...]  # on another array
    state = mu.mutable({"x": x, "y": y}, {"x": None, "y": home(spec=P("i"))}, donate=True)
    assert x.is_deleted() and not y.is_deleted() and view.shape == X.shape
    cell = state["x"]._cell
    assert [b.unsafe_buffer_pointer() for b in _jaxapi.blocks(cell.array())] == where
    live = jax.device_put(X, home())
    with pytest.raises(mu.errors.DonationError, match="deleted already"):
        mu.mutable([live, x], donate=True)
    assert not live.is_deleted()


def test_bad_trees() -> None:
    with pytest.raises(mu.errors.BadValueError, match=r"\['u'\] is a Unknown.*register_dataclass"):
        mu.mutable({"u": Unknown(jnp.zeros(3))})
    bad = {"a": jnp.zeros(8), "b": [jnp.zeros(7)]}
    with pytest.raises(mu.errors.IndivisibleError, match=r"\['b'\]\[0\]: .*7"):
        mu.mutable(bad, home(spec=P("i")))
    with pytest.raises(mu.errors.NotMutableError):
        mu.freeze({"a": jnp.zeros(3)})
    assert mu.freeze(()) == () and mu.values({}) == {} and mu.mutable(None) is None
    m = mu.zeros(2)
    mu.freeze(m)
    k = mu.zeros(2)
    with pytest.raises(mu.errors.SpentError):
        mu.freeze([k, m])
    assert k[...].tolist() == [0, 0]


# assign ------------------------------------------------------------------------------------------


@kinds
def test_assign(kind: str) -> None:
    state, new = mu.mutable(arrays(kind)), arrays(kind)
    homes = [x.sharding for x in leaves(state) if isinstance(x, mu.MutableArray)]
    new["layer"] = Layer(X * 2, jnp.ones(4), "first")  # NumPy, one device, split otherwise
    moved = jax.device_put(X * 3, home(kind, P(None, "j")))
    new["moments"] = (Moments(7, moved), None)
    new["host"] = mu.mutable_array(np.array([1, 2, 5]))
    mu.assign(state, new)
    equal(
        mu.values(state) | {"moments": None},
        new | {"moments": None, "host": np.array([1, 2, 5], state["host"].dtype)},
    )
    assert int(state["moments"][0].count) == 7
    np.testing.assert_array_equal(state["moments"][0].first[...], X * 3)
    assert [x.sharding for x in leaves(state) if isinstance(x, mu.MutableArray)] == homes
    moved_again = np.asarray(moved)
    state["moments"][0].first[0] = 0
    np.testing.assert_array_equal(moved_again, X * 3)
    mu.assign(state["layer"].weight, X)
    np.testing.assert_array_equal(state["layer"].weight[...], X)


@pytest.mark.parametrize(
    ("new", "error", "text"),
    [
        ({"a": X, "b": [np.zeros(3)]}, mu.errors.ShapeError, r"\['b'\]\[0\]: .*\(3,\).*\(2,\)"),
        ({"a": X, "b": [np.zeros(2, complex)]}, mu.errors.CastError, r"\['b'\]\[0\]: .*complex"),
        ({"a": X, "b": ["text"]}, mu.errors.BadValueError, r"\['b'\]\[0\]: "),
        ({"a": X}, mu.errors.BadValueError, r"another structure: it lacks .*\['b'\]"),
        ({"a": X, "b": [X], "c": 1}, mu.errors.BadValueError, r"has .*\['c'\].* in excess"),
        ({"a": X, "b": (np.zeros(2),)}, mu.errors.BadValueError, r"another structure"),
    ],
)
def test_assign_is_all_or_nothing(new: Any, error: Any, text: str) -> None:
    state = {"a": mu.mutable_array(X + 1, home()), "b": [mu.zeros(2)]}
    with pytest.raises(error, match=text):
        mu.assign(state, new)
    np.testing.assert_array_equal(state["a"][...], X + 1)
    assert state["b"][0][...].tolist() == [0, 0]


def test_assign_to_what_is_not_mutable() -> None:
    state = {"m": mu.zeros(2), "x": jnp.zeros(2), "n": 3}
    with pytest.raises(mu.errors.NotMutableError, match=r"\['x'\] .*mutarray\.mutable"):
        mu.assign(state, state)
    del state["x"]
    with pytest.raises(mu.errors.BadValueError, match=r"\['n'\] is 3 .* and 4"):
        mu.assign(state, {"m": np.ones(2), "n": 4})
    mu.assign(state, {"m": np.ones(2), "n": 3})
    assert state["m"][...].tolist() == [1, 1]


def test_assign_over_several_sets_of_devices() -> None:
    a, b = (
        mu.mutable_array(X, home()),
        mu.zeros(3, sharding=make_single_device_sharding(jax.devices()[5])),
    )
    mu.assign([a, b], [X + 1, np.ones(3)])
    np.testing.assert_array_equal(a[...], X + 1)
    assert b[...].tolist() == [1, 1, 1] and b.devices() == {jax.devices()[5]}


@pytest.mark.parametrize("jit", [jax.jit, mu.jit], ids=["jax.jit", "mu.jit"])
@kinds
def test_in_a_trace(kind: str, jit: Any) -> None:
    state = mu.mutable({"a": jax.device_put(X, home(kind)), "b": jax.device_put(X, home(kind))})

    @jit
    def step(state: Any, x: Any) -> Any:
        before = mu.values(state)
        mu.assign(state, {"a": x, "b": before["a"]})
        mu.map_inplace(jnp.add, state, before)
        new = mu.mutable({"c": before["a"]})
        new["c"][0] = 1
        return mu.freeze(new)["c"]

    out = step(state, X * 3)
    np.testing.assert_array_equal(state["a"][...], X * 4)
    np.testing.assert_array_equal(state["b"][...], X * 2)
    np.testing.assert_array_equal(np.asarray(out)[1:], X[1:])


# map_inplace -------------------------------------------------------------------------------------


@kinds
def test_map_inplace(kind: str) -> None:
    state = mu.mutable({"w": jax.device_put(X, home(kind)), "b": [jnp.ones(4)], "n": None})
    mu.map_inplace(jnp.negative, state)
    np.testing.assert_array_equal(state["w"][...], -X)
    other = {"w": X, "b": [mu.mutable_array(np.ones(4), state["b"][0].sharding)], "n": None}
    mu.map_inplace(lambda m, k, x: m + k * x, state, other, {"w": 2.0, "b": [3.0], "n": None})
    np.testing.assert_array_equal(state["w"][...], X)
    assert state["b"][0][...].tolist() == [2] * 4 and state["w"].sharding == home(kind)


def test_map_inplace_that_fails() -> None:
    state = {"w": mu.mutable_array(X), "b": [mu.ones(4)]}
    with pytest.raises(mu.errors.ShapeError, match=r"\['b'\]\[0\]: .*\(\).*\(4,\)"):
        mu.map_inplace(lambda x: x if x.ndim == 2 else x.sum(), state)
    with pytest.raises(mu.errors.CastError, match=r"\['b'\]\[0\]: "):
        mu.map_inplace(lambda x: x * 1j, {"b": state["b"]})
    with pytest.raises(mu.errors.BadValueError, match="another structure"):
        mu.map_inplace(jnp.add, state, {"w": X})
    with pytest.raises(mu.errors.NotMutableError, match=r"\['x'\]"):
        mu.map_inplace(jnp.negative, {"x": X})
    np.testing.assert_array_equal(state["w"][...], X)
    assert state["b"][0][...].tolist() == [1] * 4


def test_map_inplace_is_one_program() -> None:
    traces = []

    def double(x: Any) -> Any:
        traces.append(x.shape)
        return x * 2

    state = {"w": mu.mutable_array(X, home()), "b": mu.mutable_array(X, home())}
    for _ in range(3):
        mu.map_inplace(double, state)
    assert traces == [X.shape] * 2
    np.testing.assert_array_equal(state["b"][...], X * 8)
