"""Duplicate indices in one assignment: the CPU kept the last value, the GPU the first.

https://github.com/jax-ml/jax/issues/11655, https://github.com/jax-ml/jax/issues/27796
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mutarray as mu
from mutarray._jaxapi import make_single_device_sharding
from tests.cases.support import KINDS, grid, named, rows, same_sharding

pytestmark = pytest.mark.core

PLACES = {
    "one device": lambda kind: make_single_device_sharding(jax.devices()[0]),
    "4 devices": lambda kind: rows(kind),
    "replicated": lambda kind: named(kind, {"d": 4}),
}
kinds = pytest.mark.parametrize("kind", KINDS)
places = pytest.mark.parametrize("place", PLACES)
runs = pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])


def write(m: mu.MutableArray, i: Any, v: Any) -> None:
    m[i] = v


@kinds
@places
@runs
def test_the_last_one_wins(place: str, kind: str, run: Any) -> None:
    s = PLACES[place](kind)
    m = mu.mutable_array(jax.device_put(jnp.zeros(4, jnp.int32), s))
    run(write)(m, jnp.array([0, 1, 0, 2]), jnp.array([10, 11, 12, 13]))
    assert np.asarray(m[...]).tolist() == [12, 11, 13, 0]
    run(write)(m, jnp.array([3, -1, 3]), jnp.array([1, 2, 3]))
    assert int(m[3]) == 3, "3 and -1 are the same element"
    assert same_sharding(m, s)


@kinds
@places
@runs
def test_add_sums(place: str, kind: str, run: Any) -> None:
    s = PLACES[place](kind)
    m = mu.mutable_array(jax.device_put(jnp.zeros(4, jnp.int32), s))
    run(mu.addupdate)(m, jnp.array([0, 1, 0, 2, -4]), jnp.array([10, 11, 12, 13, 1]))
    assert np.asarray(m[...]).tolist() == [23, 11, 13, 0]
    assert same_sharding(m, s)


@kinds
@runs
def test_many_duplicates_in_random_order(kind: str, run: Any) -> None:
    """Large enough for a backend that scatters in parallel, or sorts unstably, to show it."""
    rng = np.random.default_rng(17)
    i, j = rng.integers(-8, 8, 2000), rng.integers(-4, 4, 2000)
    v = np.arange(2000, dtype=np.int32)
    wanted, added = np.zeros((8, 4), np.int32), np.zeros((8, 4), np.int32)
    wanted[i, j] = v
    np.add.at(added, (i, j), v)
    m = mu.mutable_array(jax.device_put(jnp.zeros((8, 4), jnp.int32), grid(kind)))
    run(lambda m, i, j, v: m.__setitem__((i, j), v))(m, i, j, v)
    np.testing.assert_array_equal(m[...], wanted)
    k = mu.mutable_array(jax.device_put(jnp.zeros((8, 4), jnp.int32), grid(kind)))
    run(lambda m, i, j, v: mu.addupdate(m, (i, j), v))(k, i, j, v)
    np.testing.assert_array_equal(k[...], added)
    assert same_sharding(m, grid(kind)) and same_sharding(k, grid(kind))


@kinds
@runs
def test_whole_rows_and_broadcast_values(kind: str, run: Any) -> None:
    m = mu.mutable_array(jax.device_put(jnp.zeros((4, 4)), grid(kind)))
    i = np.array([[2, 0], [2, 2]])
    v = np.arange(16.0, dtype=np.float32).reshape(2, 2, 4)
    run(write)(m, i, v)
    wanted = np.zeros((4, 4), np.float32)
    wanted[i] = v
    np.testing.assert_array_equal(m[...], wanted)
    run(lambda m, i, v: m.__setitem__((slice(None), i), v))(m, np.array([1, 1]), v[0, :2, :2].T[0])
    wanted[:, np.array([1, 1])] = v[0, :2, :2].T[0]
    np.testing.assert_array_equal(m[...], wanted)


@kinds
@runs
def test_a_promise_of_unique_indices_changes_nothing_when_it_is_kept(kind: str, run: Any) -> None:
    m = mu.mutable_array(jax.device_put(jnp.zeros(8, jnp.int32), rows(kind)))
    i = np.array([6, 1, -1, 0])
    run(lambda m, i, v: mu.set(m, i, v, unique_indices=True))(m, i, np.arange(1, 5, dtype=np.int32))
    np.testing.assert_array_equal(m[...], [4, 2, 0, 0, 0, 0, 1, 3])


@kinds
def test_duplicates_that_are_dropped_do_not_count(kind: str) -> None:
    """The last one in range wins, also where a later one is out of range."""
    m = mu.mutable_array(jax.device_put(jnp.zeros(4, jnp.int32), rows(kind)))
    jax.jit(write)(m, jnp.array([1, 1, 4, 9, -5]), jnp.array([1, 2, 3, 4, 5]))
    assert np.asarray(m[...]).tolist() == [0, 2, 0, 0]
    mu.set(m, [1, 9, 9, 1], np.array([1, 2, 3, 4], np.int32), mode="clip")
    assert np.asarray(m[...]).tolist() == [0, 4, 0, 3]
