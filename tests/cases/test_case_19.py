"""Overwriting a sharded handle as a whole, inside of jit, died in the runtime.

https://github.com/jax-ml/jax/issues/26408
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mutarray as mu
from mutarray._jaxapi import make_single_device_sharding
from tests.cases.support import KINDS, grid, named, same_sharding

pytestmark = pytest.mark.core

SQUARE = {"x": 2, "y": 2}
VALUES = {
    "the same": lambda kind: grid(kind),
    "second axis": lambda kind: named(kind, SQUARE, None, "y"),
    "swapped": lambda kind: named(kind, SQUARE, "y", "x"),
    "both on one": lambda kind: named(kind, SQUARE, None, ("x", "y")),
    "replicated": lambda kind: named(kind, SQUARE),
    "uncommitted": lambda kind: None,
}
ELSEWHERE = {
    "one of the devices": lambda: make_single_device_sharding(jax.devices()[1]),
    "another device": lambda: make_single_device_sharding(jax.devices()[6]),
    "another mesh": lambda: named("auto", {"d": 4}, "d"),
    "another kind of mesh": lambda: named("explicit", {"d": 4}, "d"),
    "more devices": lambda: named("auto", {"d": 8}, None, None),
    "host memory": lambda: named("auto", SQUARE, "x", memory_kind="pinned_host"),
}


def write(a: Any, m: mu.MutableArray) -> None:
    m[...] = a


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("value", VALUES)
def test_the_arrays_own_sharding_wins(value: str, kind: str, run: Any) -> None:
    s = grid(kind)
    a = jnp.arange(16, dtype=jnp.int32).reshape(4, 4)
    place = VALUES[value](kind)
    a = a if place is None else jax.device_put(a, place)
    m = mu.mutable_array(jax.device_put(jnp.ones((4, 4), jnp.int32), s))
    run(write)(a, m)
    np.testing.assert_array_equal(m[...], a)
    assert same_sharding(m, s)
    run(write)(jnp.zeros_like(a), m)
    assert int(m[...].sum()) == 0 and same_sharding(m, s)
    m[1, 1] = 4
    assert np.asarray(a)[1, 1] == 5, "the value that was written is not the array's buffer"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", [..., 1, (slice(None), slice(1, 3)), [0, 3]], ids=str)
@pytest.mark.parametrize("place", ELSEWHERE)
def test_eagerly_a_value_may_be_anywhere(place: str, index: Any, kind: str) -> None:
    x = np.zeros((8, 8), np.float32)
    shape = x[index].shape
    value = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    where = ELSEWHERE[place]()
    if isinstance(where, jax.sharding.NamedSharding):
        fits = tuple(where.spec)[: len(shape)]
        where = where.update(spec=fits) if shape[0] % 4 == 0 else where.update(spec=())
    m = mu.mutable_array(x, grid(kind))
    m[index] = jax.device_put(value, where)
    x[index] = value
    np.testing.assert_array_equal(m[...], x)
    assert same_sharding(m, grid(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_broadcast_and_an_own_value(kind: str) -> None:
    m = mu.mutable_array(jax.device_put(jnp.ones((4, 4)), grid(kind)))
    jax.jit(lambda m: m.__setitem__(..., jnp.arange(4.0)))(m)
    np.testing.assert_array_equal(m[...], np.broadcast_to(np.arange(4.0), (4, 4)))
    jax.jit(lambda m: m.__setitem__(..., m[...].T))(m)
    np.testing.assert_array_equal(m[...], np.broadcast_to(np.arange(4.0)[:, None], (4, 4)))
    m[...] = m[::-1]
    np.testing.assert_array_equal(m[...], np.broadcast_to(np.arange(4.0)[::-1, None], (4, 4)))
    assert same_sharding(m, grid(kind))
