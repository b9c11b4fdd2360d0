"""What JAX's own functions do with a mutable array, or with a tree that holds one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mutarray as mu
from mutarray._jaxapi import make_single_device_sharding
from tests.support import KINDS, layouts

kinds = pytest.mark.parametrize("kind", KINDS)


def made(kind: str) -> tuple[np.ndarray, mu.MutableArray]:
    shape, sharding = layouts(KINDS[kind])["4x2"]
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return x, mu.mutable_array(x, sharding)


def is_mutable(x: Any) -> bool:
    return isinstance(x, mu.MutableArray)


@pytest.mark.core
@kinds
def test_as_an_array(kind: str) -> None:
    x, m = made(kind)
    for array in (jnp.asarray(m), jnp.array(m), m.__jax_array__()):
        assert isinstance(array, jax.Array) and array.sharding == m.sharding
        np.testing.assert_array_equal(array, x)
    np.testing.assert_allclose(jnp.sin(m), np.sin(x), rtol=1e-5)
    np.testing.assert_array_equal(jnp.where(m > 3, m, 0), np.where(x > 3, x, 0))
    np.testing.assert_array_equal(jax.jit(jnp.negative)(m), -x)
    np.testing.assert_array_equal(jax.device_put(m[...], jax.devices()[3]), x)
    np.testing.assert_array_equal(jnp.ones(x.shape[1]) + m, x + 1)


@pytest.mark.core
@kinds
def test_trees(kind: str) -> None:
    x, m = made(kind)
    tree = {"m": m, "b": jnp.ones(2)}
    assert jax.tree.structure(tree) == jax.tree.structure({"m": made(kind)[1], "b": 0})
    values = jax.tree.map(lambda a: a[...], tree, is_leaf=is_mutable)
    np.testing.assert_array_equal(values["m"], x)
    same = jax.tree.map(lambda a: a, tree)
    assert same["m"] is m
    doubled = jax.tree.map(lambda a: a * 2, tree, is_leaf=is_mutable)
    np.testing.assert_array_equal(doubled["m"], x * 2)
    assert jax.block_until_ready(tree)["m"] is m
    leaves, treedef = jax.tree.flatten(tree, is_leaf=is_mutable)
    assert any(leaf is m for leaf in leaves) and jax.tree.unflatten(treedef, leaves)["m"] is m


@pytest.mark.core
@kinds
def test_shapes(kind: str) -> None:
    _, m = made(kind)
    assert jax.eval_shape(lambda m: m[0], m).shape == (6,)
    assert jax.eval_shape(lambda m: m.sum(axis=0), m).dtype == m.dtype
    like = jax.ShapeDtypeStruct(m.shape, m.dtype, sharding=m.sharding)
    assert like.sharding == m.sharding
    assert jax.typeof(m[...]).shape == m.shape


@pytest.mark.core
@kinds
def test_what_jax_does_not_allow(kind: str) -> None:
    """The README says so; if JAX comes to allow one of these, it should say that."""
    x, m = made(kind)
    for call in (
        lambda: jax.device_put(m, make_single_device_sharding(jax.devices()[0])),
        lambda: jax.tree.map(jnp.sin, m),
        lambda: jax.typeof(m),
        lambda: jax.lax.add(m, m),
        lambda: jax.eval_shape(lambda m: m, m),
    ):
        with pytest.raises((TypeError, ValueError, AssertionError)):
            call()
    np.testing.assert_array_equal(m, x)
