"""Creating a mutable array dropped its sharding: the wrapper lay on one device.

https://github.com/jax-ml/jax/issues/26338, https://github.com/jax-ml/jax/pull/26377
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, Sharding

import mutarray as mu
from mutarray._jaxapi import make_single_device_sharding
from tests.cases.support import KINDS, P, grid, named, same_sharding

pytestmark = pytest.mark.core

CUBE = {"a": 2, "b": 2, "c": 2}
SHARDINGS = {
    "both": lambda kind: grid(kind),
    "first": lambda kind: named(kind, {"x": 2, "y": 2}, "x"),
    "first, said in full": lambda kind: named(kind, {"x": 2, "y": 2}, "x", None),
    "second": lambda kind: named(kind, {"x": 2, "y": 2}, None, "y"),
    "swapped": lambda kind: named(kind, {"x": 2, "y": 2}, "y", "x"),
    "two on one": lambda kind: named(kind, {"x": 2, "y": 2}, ("x", "y")),
    "two on one, minor first": lambda kind: named(kind, {"x": 2, "y": 2}, ("y", "x")),
    "replicas": lambda kind: named(kind, CUBE, "c", "a"),
    "replicated": lambda kind: named(kind, {"x": 2, "y": 2}),
    "one device": lambda kind: make_single_device_sharding(jax.devices()[3]),
}


def check_all_steps(s: Sharding) -> None:
    x = jax.device_put(jnp.arange(16, dtype=jnp.int32).reshape(4, 4), s)
    m = mu.mutable_array(x)
    assert same_sharding(m, s)
    m[0, 0] = 7
    assert same_sharding(m, s)
    jax.jit(lambda m: m.__setitem__((3, 3), 9))(m)
    assert same_sharding(m, s)
    wanted = np.arange(16).reshape(4, 4)
    wanted[0, 0], wanted[3, 3] = 7, 9
    np.testing.assert_array_equal(m[...], wanted)
    assert np.asarray(m).sum() == 120 - 0 - 15 + 7 + 9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SHARDINGS)
def test_the_sharding_stays(name: str, kind: str) -> None:
    check_all_steps(SHARDINGS[name](kind))


@pytest.mark.parametrize("memory_kind", ["device", "pinned_host", "unpinned_host"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_kind_stays(kind: str, memory_kind: str) -> None:
    check_all_steps(named(kind, {"x": 2, "y": 2}, "x", "y", memory_kind=memory_kind))


def test_a_mesh_in_another_order_stays() -> None:
    mesh = grid().mesh
    turned = jax.sharding.Mesh(mesh.devices[::-1].T, ("x", "y"))
    check_all_steps(NamedSharding(turned, P("x", "y")))
