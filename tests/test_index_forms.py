"""Twelve forms of index, read and written, eagerly and under jit, on auto and explicit meshes.

NumPy says what is right. The array is split along both axes, so every form crosses shards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

import mutarray as mu
from tests.support import KINDS, P, mesh

pytestmark = pytest.mark.core

X = np.arange(8 * 6, dtype=np.float32).reshape(8, 6)
FORMS: dict[str, Any] = {
    "element": (3, 4),
    "row": 5,
    "slice across shards": slice(1, 7),
    "two slices": (slice(1, 6), slice(2, 5)),
    "strided": slice(1, None, 3),
    "negative step": (slice(None, None, -1), slice(4, 0, -2)),
    "integer array": np.array([7, 0, -3, 4]),
    "NumPy integers": (np.int64(-2), np.uint8(1)),
    "two index arrays": (np.array([[0, 3], [7, 2]]), np.array([5, 1])),
    "mask": X % 5 < 2,
    "with None": (None, slice(2, 4), None, 1),
    "list": [6, 1, 2],
}
WAYS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "eager": lambda f: f,
    "jit": jax.jit,
}
SPECS = {"4x2": P("i", "j"), "both on one": P(("i", "j"), None)}

forms = pytest.mark.parametrize("form", FORMS)
ways = pytest.mark.parametrize("way", WAYS)
kinds = pytest.mark.parametrize("kind", KINDS)
specs = pytest.mark.parametrize("spec", SPECS)


def array(kind: str, spec: str) -> tuple[mu.MutableArray, NamedSharding]:
    s = NamedSharding(mesh((4, 2), "ij", KINDS[kind]), SPECS[spec])
    return mu.mutable_array(jax.device_put(jnp.asarray(X), s)), s


def check(m: mu.MutableArray, s: NamedSharding, wanted: np.ndarray) -> None:
    np.testing.assert_array_equal(m[...], wanted)
    assert m.sharding is m.sharding and m.sharding == s
    assert m[...].sharding == s
    for shard in m.addressable_shards:
        assert shard.index == s.devices_indices_map(m.shape)[shard.device]
        np.testing.assert_array_equal(shard.data, wanted[shard.index])


@forms
@ways
@kinds
@specs
def test_reads(form: str, way: str, kind: str, spec: str) -> None:
    m, s = array(kind, spec)
    index, wanted = FORMS[form], X[FORMS[form]]
    got = WAYS[way](lambda m: m[index])(m)
    assert isinstance(got, jax.Array)
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)
    check(m, s, X)


@forms
@ways
@kinds
@specs
def test_writes(form: str, way: str, kind: str, spec: str) -> None:
    m, s = array(kind, spec)
    index, wanted = FORMS[form], X.copy()
    write = WAYS[way](lambda m, v: m.__setitem__(index, v))
    value = np.arange(wanted[index].size, dtype=np.float32).reshape(wanted[index].shape) + 100
    for v in (value, -1):
        wanted[index] = v
        write(m, v)
        check(m, s, wanted)


@forms
@ways
@kinds
def test_adding(form: str, way: str, kind: str) -> None:
    m, s = array(kind, "4x2")
    index, wanted = FORMS[form], X.copy()
    np.add.at(wanted, index, np.float32(3))
    WAYS[way](lambda m: mu.addupdate(m, index, 3.0))(m)
    check(m, s, wanted)


@forms
@ways
@kinds
def test_reading_while_writing(form: str, way: str, kind: str) -> None:
    """A swap gives what was there, and the right side of an assignment is read whole first."""
    m, s = array(kind, "4x2")
    index, wanted = FORMS[form], X.copy()
    old = WAYS[way](lambda m: mu.swap(m, index, m[index] * 2))(m)
    np.testing.assert_array_equal(old, X[index])
    wanted[index] = X[index] * 2
    check(m, s, wanted)


@kinds
@pytest.mark.parametrize("form", ["element", "row", "integer array", "two index arrays", "list"])
def test_with_traced_indices(form: str, kind: str) -> None:
    m, s = array(kind, "4x2")
    index = FORMS[form]
    index = tuple(map(np.asarray, index)) if isinstance(index, tuple) else np.asarray(index)
    got = jax.jit(lambda m, i: m[i])(m, index)
    np.testing.assert_array_equal(got, X[index])
    wanted = X.copy()
    wanted[index] = -7
    jax.jit(lambda m, i: m.__setitem__(i, -7.0))(m, index)
    check(m, s, wanted)
