"""Masks on the devices: nothing moves, and NumPy says what is right."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

import mutarray as mu
from mutarray import _masked
from mutarray._jaxapi import make_single_device_sharding
from tests import hlo
from tests.support import KINDS, P, layouts, mesh
from tests.test_eager import pointers

RNG = np.random.default_rng(0)
NAMES = [name for name in layouts(KINDS["auto"]) if name not in ("scalar", "empty")]


def both(shape: tuple[int, ...], sharding: Any) -> tuple[np.ndarray, mu.MutableArray]:
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    return x, mu.mutable_array(jnp.asarray(x), sharding)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_equals_numpy_and_stays_in_place(name: str, kind: str) -> None:
    shape, sharding = layouts(KINDS[kind])[name]
    for ndim in range(1, len(shape) + 1):
        mask = RNG.random(shape[:ndim]) < 0.4
        x, m = both(shape, sharding)
        split = sharding
        if isinstance(sharding, NamedSharding):
            split = NamedSharding(sharding.mesh, P(*sharding.spec[:ndim]))
        there = jax.device_put(mask, split)
        assert _masked.selection(there, shape, sharding) is not None
        where = pointers(m)
        m[there] = 7
        mu.addupdate(m, there, 1.0)
        m.max_at((there,), 3.0)
        x[mask] = 8
        np.testing.assert_array_equal(m[...], x)
        assert pointers(m) == where
        assert m.sharding is sharding and m[...].sharding == sharding


def test_nothing_moves() -> None:
    s = NamedSharding(mesh((4, 2), "ij"), P("i", "j"))
    m = mu.zeros((512, 256), sharding=s)
    for spec in (P("i", "j"), P()):
        mask = jax.device_put(np.ones(m.shape, bool), NamedSharding(s.mesh, spec))
        program = jax.jit(lambda m, mask: m.__setitem__(mask, 1.0)).lower(m, mask).compile()
        assert not hlo.collectives(program)


def test_a_snapshot_keeps_what_it_had() -> None:
    s = NamedSharding(mesh((4, 2), "ij"), P("i", "j"))
    x, m = both((8, 6), s)
    held = m[...]
    m[jax.device_put(x > 10, s)] = -1.0
    np.testing.assert_array_equal(held, x)
    assert float(m[7, 5]) == -1.0


def test_other_masks_and_values_go_by_the_host() -> None:
    s = NamedSharding(mesh((4, 2), "ij"), P("i", "j"))
    x, m = both((8, 6), s)
    mask = x % 3 == 0
    elsewhere = [
        jnp.asarray(mask),
        jax.device_put(mask, make_single_device_sharding(jax.devices()[5])),
        jax.device_put(mask, NamedSharding(s.mesh, P("j"))),
    ]
    for there in elsewhere:
        assert _masked.selection(there, m.shape, s) is None
        m[there] = 5.0
        x[mask] = 5
        np.testing.assert_array_equal(m[...], x)
    values = np.arange(mask.sum(), dtype=np.float32)
    m[jax.device_put(mask, s)] = values
    x[mask] = values
    np.testing.assert_array_equal(m[...], x)


def test_bad_input_leaves_the_array_as_it_was() -> None:
    s = NamedSharding(mesh((4, 2), "ij"), P("i", "j"))
    x, m = both((8, 6), s)
    mask = jax.device_put(x > 3, s)
    with pytest.raises(TypeError, match="same_kind"):
        m[mask] = 1j
    with pytest.raises(IndexError, match="boolean index did not match"):
        m[jax.device_put(np.ones((8, 3), bool), NamedSharding(s.mesh, P("i")))] = 1.0
    np.testing.assert_array_equal(m[...], x)
