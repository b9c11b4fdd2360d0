"""A state machine: whatever is done in whatever order, the array is NumPy's and snapshots stay."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from jax.sharding import NamedSharding

import mutarray as mu
from mutarray._jaxapi import make_single_device_sharding
from tests.support import KINDS, P, mesh

DEEP = os.environ.get("MUTARRAY_DEEP") == "1"
SHAPE = (8, 4)

# Few forms, so that most steps find their programs compiled; their values vary.
INDICES = st.one_of(
    st.tuples(st.integers(-8, 7), st.integers(-4, 3)),
    st.integers(-8, 7),
    st.integers(0, 5).map(lambda k: slice(k, k + 3)),
    st.just((slice(None, None, -2), 1)),
    st.lists(st.integers(-8, 7), min_size=3, max_size=3),
    st.just(...),
    st.just(np.arange(8) % 3 == 0),
)
VALUES = st.integers(-50, 50).map(float)
SHARDINGS = [
    NamedSharding(mesh((4, 2), "ij", KINDS["auto"]), P("i", "j")),
    NamedSharding(mesh((4, 2), "ij", KINDS["explicit"]), P("i")),
    NamedSharding(mesh((4, 2), "ij", KINDS["auto"]), P()),
    NamedSharding(mesh((4,), "d", KINDS["auto"]), P("d"), memory_kind="pinned_host"),
    make_single_device_sharding(jax.devices()[3]),
]


@jax.jit
def add_by_argument(m: mu.MutableArray, k: Any, v: Any) -> Any:
    m[k] = m[k] + v
    return m[k]


class Ownership(RuleBasedStateMachine):
    """One array, its NumPy model, and everything that was ever handed out."""

    @initialize(sharding=st.sampled_from(SHARDINGS))
    def make(self, sharding: Any) -> None:
        self.model = np.arange(32, dtype=np.float32).reshape(SHAPE)
        self.source = jax.device_put(self.model.copy(), sharding)
        self.m = mu.mutable_array(self.source)
        self.sharding = self.m.sharding
        self.held: list[tuple[Any, np.ndarray]] = [(self.source, self.model.copy())]
        m = self.m
        self.add_by_closure = jax.jit(lambda k, v: m.__setitem__(k, m[k] + v))

    @rule(index=INDICES, value=VALUES)
    def write_scalar(self, index: Any, value: float) -> None:
        self.m[index] = value
        self.model[index] = value

    @rule(index=INDICES, value=VALUES, on_device=st.booleans())
    def write_array(self, index: Any, value: float, on_device: bool) -> None:
        given = np.full(self.model[index].shape, value, np.float32)
        given += np.arange(given.size, dtype=np.float32).reshape(given.shape)
        self.model[index] = given
        if on_device:
            given = jnp.asarray(given)
            self.held.append((given, np.asarray(given).copy()))
        self.m[index] = given

    @rule(index=INDICES, value=VALUES)
    def accumulate(self, index: Any, value: float) -> None:
        mu.addupdate(self.m, index, value)
        np.add.at(self.model, index, np.float32(value))

    @rule(index=INDICES, value=VALUES)
    def exchange(self, index: Any, value: float) -> None:
        old = mu.swap(self.m, index, value)
        np.testing.assert_array_equal(np.asarray(old), self.model[index])
        self.model[index] = value

    @rule(index=INDICES)
    def read(self, index: Any) -> None:
        got = self.m[index]
        np.testing.assert_array_equal(np.asarray(got), self.model[index])
        self.held.append((got, self.model[index].copy()))

    @rule()
    def snapshot(self) -> None:
        self.held.append((self.m[...], self.model.copy()))

    @rule()
    def take_views(self) -> None:
        self.held.append((np.asarray(self.m[...]), self.model.copy()))
        for shard in self.m.addressable_shards:
            self.held.append((shard.data, self.model[shard.index].copy()))

    @rule()
    def let_go(self) -> None:
        self.held = self.held[::2]

    @rule(k=st.integers(0, 7), value=VALUES)
    def call_with_argument(self, k: int, value: float) -> None:
        row = add_by_argument(self.m, k, value)
        self.model[k] += np.float32(value)
        np.testing.assert_array_equal(np.asarray(row), self.model[k])

    @rule(k=st.integers(0, 7), value=VALUES)
    def call_with_closure(self, k: int, value: float) -> None:
        self.add_by_closure(k, value)
        self.model[k] += np.float32(value)

    @rule(bad=st.sampled_from([8, (0, 4), "x", [0, 99], (0, 0, 0)]))
    def fail_by_index(self, bad: Any) -> None:
        with pytest.raises(IndexError):
            self.m[bad] = 1.0

    @rule(bad=st.sampled_from([1j, np.ones((3, 3)), "text"]))
    def fail_by_value(self, bad: Any) -> None:
        with pytest.raises((TypeError, ValueError)):
            self.m[2:4] = bad

    @rule()
    def fail_in_a_trace(self) -> None:
        with pytest.raises(ValueError, match="cannot be returned"):
            jax.jit(lambda m: m.__setitem__(0, 7.0) or m)(self.m)

    @rule()
    def freeze(self) -> None:
        frozen = mu.freeze(self.m)
        self.held.append((frozen, self.model.copy()))
        m = self.m = mu.mutable_array(frozen)
        self.add_by_closure = jax.jit(lambda k, v: m.__setitem__(k, m[k] + v))

    @invariant()
    def nothing_held_is_deleted(self) -> None:
        # Their values are looked at in the end: a look makes a NumPy view, and XLA donates no
        # buffer that one looks at, which would hide a buffer that is shared and not known to be.
        for array, _ in getattr(self, "held", ()):
            assert not (isinstance(array, jax.Array) and array.is_deleted())

    @invariant()
    def sharding_is_the_same(self) -> None:
        assert self.m.sharding == self.sharding

    def teardown(self) -> None:
        for array, wanted in getattr(self, "held", ()):
            np.testing.assert_array_equal(np.asarray(array), wanted)
        if hasattr(self, "m"):
            np.testing.assert_array_equal(np.asarray(self.m[...]), self.model)


TestOwnership = Ownership.TestCase
TestOwnership.settings = settings(
    max_examples=400 if DEEP else 15, stateful_step_count=25, deadline=None
)
