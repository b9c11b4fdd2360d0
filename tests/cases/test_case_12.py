"""https://github.com/pytorch/pytorch/issues/172350 and #170934: global indices on local shards.

An indexed write along the split axis took global positions for local ones, or paired an index and
a value whose shards hold different rows.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

import mutarray as mu
from mutarray._jaxapi import make_single_device_sharding
from tests.support import KINDS, P, mesh

pytestmark = pytest.mark.core


def placements(kind: str) -> list[Any]:
    m = mesh((4,), "d", KINDS[kind])
    return [
        NamedSharding(m, P("d")),
        NamedSharding(m, P()),
        make_single_device_sharding(jax.devices()[2]),
    ]


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index_at", range(3))
@pytest.mark.parametrize("value_at", range(3))
def test_whatever_the_shardings(kind: str, traced: bool, index_at: int, value_at: int) -> None:
    where = placements(kind)
    if traced and 2 in (index_at, value_at):
        index_at, value_at = index_at % 2, value_at % 2  # JAX takes one set of devices in a call
    i = jax.device_put(jnp.arange(4), where[index_at])
    v = jax.device_put(jnp.array([1.0, 2.0, 3.0, 4.0]), where[value_at])

    def diagonal(m: Any, i: Any, v: Any) -> None:
        m[i, i] = v

    def all_of_it(m: Any, i: Any, v: Any) -> None:
        m[i] = v

    run = jax.jit if traced else lambda f: f
    m = mu.mutable_array(jax.device_put(jnp.zeros((4, 4)), where[0]))
    run(diagonal)(m, i, v)
    np.testing.assert_array_equal(m[...], np.diag([1.0, 2.0, 3.0, 4.0]))
    w = mu.mutable_array(jax.device_put(jnp.zeros(16), where[0]))
    i = jax.device_put(jnp.arange(16), where[index_at])
    run(all_of_it)(w, i, jax.device_put(jnp.ones(16), where[value_at]))
    assert float(np.asarray(w[...]).sum()) == 16.0
    assert w.sharding == where[0]
