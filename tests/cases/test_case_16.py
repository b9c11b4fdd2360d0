"""A padding index of -1, meant as "skip", overwrote the last live slot.

https://github.com/vllm-project/vllm/pull/43869, https://github.com/jax-ml/jax/issues/14095
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Sharding

import mutarray as mu
from mutarray._jaxapi import make_single_device_sharding
from tests.cases.support import KINDS, named, rows, same_sharding

pytestmark = pytest.mark.core

PLACES = {
    "1 device": lambda kind: make_single_device_sharding(jax.devices()[0]),
    "4 devices": lambda kind: rows(kind),
    "2 devices, replicas": lambda kind: named(kind, {"i": 2, "j": 2}, "j"),
}
place = pytest.mark.parametrize("place", PLACES)
kinds = pytest.mark.parametrize("kind", KINDS)
runs = pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
SLOTS, VALUES = np.array([3, -1, 5, -1]), np.array([1.0, 9.0, 2.0, 9.0], np.float32)


def zeros(place: str, kind: str) -> tuple[mu.MutableArray, Sharding]:
    s = PLACES[place](kind)
    return mu.mutable_array(jax.device_put(jnp.zeros(8), s)), s


@kinds
@place
@runs
def test_negative_indices_are_numpys_unless_said_otherwise(place: str, kind: str, run: Any) -> None:
    m, s = zeros(place, kind)
    run(lambda m, i, v: m.__setitem__(i, v))(m, SLOTS, VALUES)
    np.testing.assert_array_equal(m[...], [0, 0, 0, 1, 0, 2, 0, 9])
    k, _ = zeros(place, kind)
    skip = lambda m, i, v: mu.set(m, i, v, mode="drop", wrap_negative_indices=False)  # noqa: E731
    run(skip)(k, jnp.asarray(SLOTS), jnp.asarray(VALUES))
    np.testing.assert_array_equal(k[...], [0, 0, 0, 1, 0, 2, 0, 0])
    assert same_sharding(m, s) and same_sharding(k, s)


@kinds
@place
def test_what_is_known_raises(place: str, kind: str) -> None:
    """Indices 8 and more: on the host they raise, and nothing is written."""
    m, _ = zeros(place, kind)
    for bad in (8, -9, [0, 8], np.array([0, 100]), jnp.array([0, -9]), 2**40, np.uint64(2**63)):
        with pytest.raises(IndexError, match=r"out of bounds for axis 0 with size 8"):
            m[bad] = 1.0
        with pytest.raises(IndexError, match=r"out of bounds for axis 0 with size 8"):
            m[bad]
    with pytest.raises(IndexError, match="out of bounds"):
        mu.set(m, [0, -1], 1.0, wrap_negative_indices=False)
    np.testing.assert_array_equal(m[...], np.zeros(8))


@kinds
@place
def test_what_is_traced_is_dropped_when_writing_and_clipped_when_reading(
    place: str, kind: str
) -> None:
    m, s = zeros(place, kind)
    write = jax.jit(lambda m, i, v: m.__setitem__(i, v))
    write(m, jnp.array([8, 0, 1000, -8, -9]), jnp.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    np.testing.assert_array_equal(m[...], [4, 0, 0, 0, 0, 0, 0, 0])
    for i in (8, 9, -9, 2**31 - 1, -(2**31)):
        write(m, i, 7.0)
    np.testing.assert_array_equal(m[...], [4, 0, 0, 0, 0, 0, 0, 0])
    write(m, 7, 7.0)
    read = jax.jit(lambda m, i: m[i])
    np.testing.assert_array_equal(read(m, jnp.array([8, 100, -9, -100])), [7, 7, 4, 4])
    assert [float(read(m, i)) for i in (8, 100, -9, -100)] == [7, 7, 4, 4]
    assert same_sharding(m, s)


@kinds
@place
@runs
@pytest.mark.parametrize("mode", ["clip", "drop", "fill"])
def test_a_mode_is_one_rule(place: str, kind: str, run: Any, mode: str) -> None:
    m, s = zeros(place, kind)
    m[...] = np.arange(8)
    index = np.array([8, -9, 2, 1000])
    got = run(lambda m, i: mu.get(m, i, mode=mode, fill_value=-5.0))(m, index)
    np.testing.assert_array_equal(got, [7, 0, 2, 7] if mode == "clip" else [-5, -5, 2, -5])
    got = run(lambda m, i: mu.get(m, i, mode=mode))(m, index)
    np.testing.assert_array_equal(
        got, [7, 0, 2, 7] if mode == "clip" else [np.nan, np.nan, 2, np.nan]
    )
    run(lambda m, i: mu.set(m, i, 50.0, mode=mode))(m, index)
    wanted = np.arange(8)
    wanted[[7, 0, 2] if mode == "clip" else [2]] = 50
    np.testing.assert_array_equal(m[...], wanted)
    run(lambda m, i: mu.addupdate(m, i, 1.0, mode=mode))(m, index)
    np.add.at(wanted, [7, 0, 2, 7] if mode == "clip" else [2], 1)
    np.testing.assert_array_equal(m[...], wanted)
    assert same_sharding(m, s)


@kinds
def test_windows_clamp_as_a_whole(kind: str) -> None:
    """The same slot list written as a window: no part of it is dropped or doubled."""
    for name in PLACES:
        m, _ = zeros(name, kind)
        jax.jit(lambda m, i: m.__setitem__(mu.ds(i, 3), jnp.arange(1.0, 4.0)))(m, 7)
        np.testing.assert_array_equal(m[...], [0, 0, 0, 0, 0, 1, 2, 3], err_msg=name)
