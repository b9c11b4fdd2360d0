"""A fresh sharding object for each call made every decode step miss the C++ fast path.

https://github.com/sgl-project/sglang-jax/issues/1452, https://github.com/jax-ml/jax/issues/39089
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mutarray as mu
from tests.cases.support import KINDS, rows
from tests.counting import counted_compiles, counted_misses

pytestmark = pytest.mark.core

kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
def test_no_miss_after_the_first_calls(kind: str) -> None:
    m = mu.mutable_array(jax.device_put(jnp.zeros((16, 4)), rows(kind)))
    f = mu.jit(lambda m, i: m.__setitem__(i, 1.0))
    f(m, 0)
    f(m, 1)
    with counted_compiles() as compiles, counted_misses() as misses:
        for i in range(20):
            f(m, i % 16)
    assert misses == [] and compiles == []
    assert m.sharding is m.sharding and m.sharding == rows(kind)
    np.testing.assert_array_equal(m[...], np.ones((16, 4)))


@kinds
def test_an_equal_sharding_is_as_good_as_the_same(kind: str) -> None:
    f = mu.jit(lambda m, i: m.__setitem__(i, 1.0))
    f(mu.zeros((16, 4), sharding=rows(kind)), 0)
    m = mu.zeros((16, 4), sharding=rows(kind))
    with counted_compiles() as compiles, counted_misses() as misses:
        for i in range(4):
            f(m, i)
    assert misses == [] and compiles == []


@kinds
def test_keys_and_a_decode_step(kind: str) -> None:
    """What a step gives goes into the next one, keys included."""
    cache = mu.zeros((16, 4), sharding=rows(kind))
    keys = mu.mutable_array(jax.random.split(jax.random.key(0), 4))
    cache.reshard(keys.sharding)
    traces = []

    @mu.jit
    def step(cache: Any, keys: Any, i: Any) -> Any:
        traces.append(1)
        keys[0] = jax.random.split(keys[0], 1)[0]
        cache[i] = jax.random.normal(keys[0], (4,))
        return i + 1

    i = step(cache, keys, step(cache, keys, jnp.int32(0)))  # i is on the mesh from now on
    with counted_compiles() as compiles:
        for _ in range(5):
            i = step(cache, keys, i)
    assert traces == [1] and compiles == [] and int(i) == 7


@kinds
def test_plain_jit_does_not_compile_again(kind: str) -> None:
    """With a Ref among its arguments ``jax.jit`` is never on the fast path, but traces once."""
    m = mu.mutable_array(jax.device_put(jnp.zeros((16, 4)), rows(kind)))
    traces = []
    f = jax.jit(lambda m, i: traces.append(1) or m.__setitem__(i, 1.0))
    f(m, 0)
    f(m, 1)
    with counted_compiles() as compiles:
        for i in range(20):
            f(m, i % 16)
    assert traces == [1] and compiles == []
