"""A window that reaches over the end was moved back on one device, and dropped on two.

https://github.com/openxla/xla/issues/49118
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import mutarray as mu
from mutarray._jaxapi import make_single_device_sharding
from tests.cases.support import KINDS, named

pytestmark = pytest.mark.core


def places(kind: str) -> list[Any]:
    two = {"x": 2}
    return [
        make_single_device_sharding(jax.devices()[0]),
        named(kind, two, None, "x"),
        named(kind, two, "x"),
        named(kind, {"x": 2, "y": 2}, "x", "y"),
        named(kind, {"x": 2, "y": 2}, None, ("x", "y")),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_moves_as_a_whole(kind: str) -> None:
    x = jnp.arange(4, dtype=jnp.int32).reshape(2, 2)
    column = jnp.full((2, 1), 99, jnp.int32)
    for s in places(kind)[:4]:
        m = mu.mutable_array(jax.device_put(x, s))
        jax.jit(lambda m, i: m.__setitem__((slice(None), mu.ds(i, 1)), column))(m, 2)
        np.testing.assert_array_equal(m[...], [[0, 99], [2, 99]])
        assert m.sharding == s


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "jit"])
def test_wherever_it_begins(kind: str, traced: bool) -> None:
    """As in `lax.dynamic_update_slice` and `lax.dynamic_slice` on one device, on every layout."""
    run = jax.jit if traced else lambda f: f
    x = np.arange(64, dtype=np.int32).reshape(8, 8)
    value = np.array([[-1, -2, -3], [-4, -5, -6]], np.int32)

    def work(m: mu.MutableArray, i: Any, j: Any) -> Any:
        before = m[mu.ds(j, 3), mu.ds(i, 2)]
        m[mu.ds(i, 2), mu.ds(j, 3)] = value
        m[mu.ds(i, 2)] += 100
        return before

    for s in places(kind):
        m, wanted = mu.mutable_array(jax.device_put(x, s)), jnp.asarray(x)
        step = run(work)
        for i, j in ((6, 7), (-1, -2), (3, 3), (100, -100), (-9, 5)):
            before = step(m, i, j)
            np.testing.assert_array_equal(before, lax.dynamic_slice(wanted, (j, i), (3, 2)))
            wanted = lax.dynamic_update_slice(wanted, value, (i, j))
            rows = lax.dynamic_slice(wanted, (i, 0), (2, 8))
            wanted = lax.dynamic_update_slice(wanted, rows + 100, (i, 0))
            np.testing.assert_array_equal(m[...], wanted)
        assert m.sharding == s


@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_index_arrays_out_of_range(kind: str) -> None:
    """Writes out of range are dropped and reads clip, whatever the number of devices."""
    x = np.arange(64, dtype=np.int32).reshape(8, 8)
    at = np.array([7, 8, -8, -9, 3], np.int32)

    def work(m: mu.MutableArray, i: Any, at: Any) -> Any:
        m[i] = -1
        m[:, i] = -2
        m[at, at] = -3
        m.add_at(at, 10)
        return m[i], m[at], m[1, at]

    for s in places(kind):
        m, wanted = mu.mutable_array(jax.device_put(x, s)), x.copy()
        row, picked, points = jax.jit(work)(m, 8, at)
        wanted[[7, 0, 3], [7, 0, 3]] = -3
        wanted[[7, 0, 3]] += 10
        np.testing.assert_array_equal(m[...], wanted)
        np.testing.assert_array_equal(row, wanted[7])
        np.testing.assert_array_equal(picked, wanted[[7, 7, 0, 0, 3]])
        np.testing.assert_array_equal(points, wanted[1, [7, 7, 0, 0, 3]])
