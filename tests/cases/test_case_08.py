"""Writes to a slice of a sharded array gathered it, and a scatter gave other values than unsharded.

https://github.com/jax-ml/jax/issues/23052. Nobody could tell which forms of an index gather.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mutarray as mu
from tests import hlo
from tests.cases.support import KINDS, big_collectives, grid, rows, same_sharding

pytestmark = pytest.mark.core

SHAPE = (16, 8)
FORMS: list[Any] = [slice(0, 3), slice(2, 7), 5, np.array([0, 5, 9]), (slice(None), 1)]
PLACES = {"rows": rows, "grid": grid}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("op", ["set", "add", "read"])
def test_no_form_gathers(kind: str, place: str, op: str) -> None:
    sharding = PLACES[place](kind)
    m = mu.mutable_array(jax.device_put(jnp.zeros(SHAPE), sharding))
    wanted = np.zeros(SHAPE)
    for index in FORMS:

        def work(m: mu.MutableArray, index: Any = index) -> Any:
            if op == "read":
                return m[index]
            return m.__setitem__(index, 1.0) if op == "set" else m.add_at(index, 1.0)

        compiled = jax.jit(work).lower(m).compile()
        assert not big_collectives(compiled, SHAPE), index
        if op == "read":
            np.testing.assert_array_equal(compiled(m), wanted[index])
            continue
        assert not hlo.collectives(compiled), index
        compiled(m)
        if op == "set":
            wanted[index] = 1
        else:
            np.add.at(wanted, index, 1)
        np.testing.assert_array_equal(m[...], wanted)
    assert wanted.sum() == {"set": 72, "add": 24 + 40 + 8 + 24 + 16, "read": 0}[op]
    assert same_sharding(m, sharding)


@pytest.mark.parametrize("kind", KINDS)
def test_a_time_step_of_the_fields(kind: str) -> None:
    """Slices of one field, shifted by one, are written to another: neighbours across shards."""
    s = rows(kind)
    x = np.arange(128, dtype=np.float32).reshape(SHAPE)
    e, h = (mu.mutable_array(jax.device_put(v, s)) for v in (x, x * 0 + 1))

    @jax.jit
    def step(e: mu.MutableArray, h: mu.MutableArray) -> None:
        h[:-1] += 0.5 * (e[1:] - e[:-1])
        e[1:] += 0.5 * (h[1:] - h[:-1])

    wanted_e, wanted_h = x.copy(), x * 0 + 1
    for _ in range(3):
        step(e, h)
        wanted_h[:-1] += 0.5 * (wanted_e[1:] - wanted_e[:-1])
        wanted_e[1:] += 0.5 * (wanted_h[1:] - wanted_h[:-1])
    np.testing.assert_allclose(e[...], wanted_e, rtol=1e-6)
    np.testing.assert_allclose(h[...], wanted_h, rtol=1e-6)
    assert same_sharding(e, s)
    assert same_sharding(h, s)
