"""Reading the whole array moved its buffer to one device.

https://github.com/jax-ml/jax/issues/26350
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mutarray as mu
from tests.cases.support import KINDS, grid, pointers, same_sharding

pytestmark = pytest.mark.core

READS: dict[str, Callable[[mu.MutableArray], Any]] = {
    "whole": lambda m: m[...],
    "row": lambda m: m[1],
    "column": lambda m: m[:, 2],
    "element": lambda m: float(m[3, 3]),
    "slice": lambda m: m[1:3],
    "array": lambda m: m[np.array([0, 3])],
    "mask": lambda m: m[np.eye(4, dtype=bool)],
    "repr": repr,
    "str": str,
    "asarray": np.asarray,
    "get": lambda m: mu.get(m, 9, mode="fill"),
    "shards": lambda m: [np.asarray(shard.data) for shard in m.addressable_shards],
    "jit": lambda m: jax.jit(lambda m: (m[1], m[:, 1]))(m),
    "sum": lambda m: jnp.sum(m[...]),
    "like": mu.zeros_like,
    "copy": mu.mutable_array,
}


def state(m: mu.MutableArray) -> tuple[Any, ...]:
    # The buffers are looked at through the same snapshot each time: asking for one is a read too.
    return m.sharding, [(s.device, s.index, s.replica_id) for s in m.addressable_shards]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("read", READS)
def test_a_read_has_no_effect(read: str, kind: str) -> None:
    m = mu.mutable_array(jax.device_put(jnp.arange(16.0).reshape(4, 4), grid(kind)))
    before, buffers = state(m), pointers(m)
    READS[read](m)
    assert state(m) == before
    if read != "jit":  # what a compiled program is given, it may give back in other buffers
        assert pointers(m) == buffers
    assert same_sharding(m, grid(kind))
    np.testing.assert_array_equal(m[...], np.arange(16.0).reshape(4, 4))


@pytest.mark.parametrize("kind", KINDS)
def test_an_axis_that_is_taken_whole_stays_split(kind: str) -> None:
    m = mu.mutable_array(jax.device_put(jnp.arange(16.0).reshape(4, 4), grid(kind)))
    for read in (lambda m, i: m[i], jax.jit(lambda m, i: m[i])):
        spec = read(m, 1).sharding.spec
        assert tuple(spec) == ("y",)
    assert tuple(m[:, 1].sharding.spec) == ("x",)
    assert tuple(m[1:3].sharding.spec) == ("x", "y"), "2 of 4 rows still divide over 2 devices"
    odd = m[1:4].sharding.spec
    assert tuple(odd) == (None, "y"), "3 rows do not: they are replicated"
