"""An array that nobody placed goes where others are; one that somebody placed stays, as in JAX."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import mutarray as mu
from mutarray._jaxapi import make_single_device_sharding
from tests.support import KINDS, mesh

pytestmark = pytest.mark.core

P = PartitionSpec
HOME = make_single_device_sharding(jax.devices()[0])
LOOSE: dict[str, Callable[[], Any]] = {
    "zeros": lambda: mu.zeros(8),
    "ones": lambda: mu.ones(8),
    "full": lambda: mu.full(8, 2.0),
    "empty": lambda: mu.empty(8),
    "numpy": lambda: mu.mutable_array(np.ones(8, np.float32)),
    "list": lambda: mu.mutable_array([1.0] * 8),
    "jax": lambda: mu.mutable_array(jnp.ones(8)),
    "donated": lambda: mu.mutable_array(jnp.ones(8), donate=True),
    "mutable": lambda: mu.mutable_array(mu.ones(8)),
    "like jax": lambda: mu.ones_like(jnp.zeros(8)),
    "like mutable": lambda: mu.zeros_like(mu.ones(8)),
    "copy": lambda: mu.ones(8).copy(),
    "deepcopy": lambda: copy.deepcopy(mu.ones(8)),
}
FIXED: dict[str, Callable[[], Any]] = {
    "zeros": lambda: mu.zeros(8, sharding=HOME),
    "numpy": lambda: mu.mutable_array(np.ones(8, np.float32), HOME),
    "jax": lambda: mu.mutable_array(jax.device_put(jnp.ones(8), HOME)),
    "mutable": lambda: mu.mutable_array(mu.ones(8, sharding=HOME)),
    "sharding given": lambda: mu.mutable_array(jnp.ones(8), HOME),
    "like": lambda: mu.ones_like(mu.zeros(8, sharding=HOME)),
    "copy": lambda: mu.ones(8, sharding=HOME).copy(),
}


def split(kind: str = "auto") -> jax.Array:
    return jax.device_put(jnp.arange(8.0), NamedSharding(mesh((8,), "d", KINDS[kind]), P("d")))


def reads(m: Any) -> list[jax.Array]:
    return [m[...], m[2], m[1:5], m[::-2], m[[1, 1]], mu.get(m, 3), mu.swap(m, 0, 1.0), m.copy()[0]]


@pytest.mark.parametrize("name", LOOSE)
def test_what_nobody_placed_goes_along(name: str) -> None:
    m = LOOSE[name]()
    s = split()
    assert not m.committed and not any(read.committed for read in reads(m))
    assert (m + s).sharding == s.sharding and (s * m).sharding == s.sharding
    jax.jit(lambda m: m.__setitem__(1, 5.0))(m)
    m[2] = jax.device_put(6.0, jax.devices()[3])
    m[3:5] = s[3:5]
    m += s
    m.sort()
    assert not m.committed and not any(read.committed for read in reads(m))
    assert jax.jit(jnp.add)(s, m[...]).sharding == s.sharding
    assert m.sharding == HOME
    assert not mu.freeze(m).committed


@pytest.mark.parametrize("name", FIXED)
def test_what_somebody_placed_stays(name: str) -> None:
    m = FIXED[name]()
    assert m.committed and all(read.committed for read in reads(m))
    with pytest.raises(ValueError, match="incompatible devices"):
        m + split()
    m[0] = 1.0
    assert mu.freeze(m).committed


@pytest.mark.parametrize("kind", KINDS)
def test_with_mutable_arrays_on_either_side(kind: str) -> None:
    s = split(kind)
    m, k = mu.mutable_array(s), mu.ones(8)
    assert (m + k).sharding == (k + m).sharding == s.sharding
    np.testing.assert_array_equal(m + k, np.arange(8.0) + 1)
    np.testing.assert_array_equal(jax.jit(jnp.add)(m[...], k[...]), np.arange(8.0) + 1)
    with pytest.raises(ValueError, match="incompatible devices"):  # as for a jax.Ref
        jax.jit(lambda m, k: m[...] + k[...])(m, k)


@pytest.mark.parametrize("name", LOOSE)
@pytest.mark.parametrize("jit", [jax.jit, mu.jit], ids=["jax.jit", "mu.jit"])
def test_first_written_in_a_program(name: str, jit: Any) -> None:
    m, closed_over = LOOSE[name](), LOOSE[name]()

    @jit
    def write(m: Any) -> None:
        m[1] = 5.0
        closed_over[2] = 6.0

    write(m)
    with pytest.raises(IndexError), mu.transaction(m, closed_over):
        m[1] = closed_over[2] = m[99] = 9.0
    write(m)
    assert float(m[1]) == 5.0 and float(closed_over[2]) == 6.0
    assert not m.committed and not m[...].committed


def test_other_kinds() -> None:
    keys = mu.mutable_array(jax.random.split(jax.random.key(0), 8))
    assert not keys[...].committed and not keys[1].committed
    for m in (mu.zeros((0, 3)), mu.mutable_array(3.0)):
        assert not m[...].committed
    placed = mu.ones(8)
    placed.reshard(HOME)
    assert placed.committed and placed[0].committed
    assert split().committed and mu.mutable_array(split())[0].committed
