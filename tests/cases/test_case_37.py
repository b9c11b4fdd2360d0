"""An array in pinned host memory could not be indexed: the index constants lay on the device.

https://github.com/jax-ml/jax/issues/34041
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mutarray as mu
from tests.cases.support import KINDS, P, named, same_sharding

pytestmark = pytest.mark.core

kinds = pytest.mark.parametrize("kind", KINDS)
memories = pytest.mark.parametrize("memory", ["pinned_host", "unpinned_host"])
runs = pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
X = np.arange(24.0, dtype=np.float32).reshape(8, 3)


def host(kind: str, memory: str) -> mu.MutableArray:
    s = named(kind, {"d": 4}, "d", memory_kind=memory)
    return mu.mutable_array(jax.device_put(jnp.asarray(X), s))


def stays(m: mu.MutableArray, kind: str, memory: str) -> bool:
    kinds = {m.sharding.memory_kind, m[...].sharding.memory_kind}
    kinds |= {shard.data.sharding.memory_kind for shard in m.addressable_shards}
    return kinds == {memory} and same_sharding(m, named(kind, {"d": 4}, "d", memory_kind=memory))


@kinds
@memories
def test_read_write_read(kind: str, memory: str) -> None:
    m = host(kind, memory)
    assert m.sharding.memory_kind == memory
    assert m[2].tolist() == [6, 7, 8]
    m[2] = 0.0
    assert m.sharding.memory_kind == memory and m[2].tolist() == [0, 0, 0]
    wanted = X.copy()
    wanted[2] = 0
    np.testing.assert_array_equal(m[...], wanted)
    assert stays(m, kind, memory)


INDICES: list[Any] = [
    (3, 1),
    -1,
    slice(1, 7),
    slice(None, None, -2),
    (slice(2, 4), slice(0, 2)),
    [5, 0],
    (np.array([1, 7]), np.array([2, 0])),
    X % 2 == 0,
    (None, 3),
    ...,
    slice(0, 0),
]


@pytest.mark.parametrize(
    ("kind", "memory"),
    [("auto", "pinned_host"), ("explicit", "pinned_host"), ("auto", "unpinned_host")],
)
@runs
def test_every_form(kind: str, memory: str, run: Any) -> None:
    m, x = host(kind, memory), X.copy()
    for k, index in enumerate(INDICES):
        got = run(lambda m, index=index: m[index])(m)
        np.testing.assert_array_equal(got, x[index], err_msg=str(index))
        x[index] = 100 + k
        run(lambda m, index=index, k=k: m.__setitem__(index, 100.0 + k))(m)
        np.testing.assert_array_equal(m[...], x, err_msg=str(index))
        assert stays(m, kind, memory)
        m[...] = X
        x = X.copy()


@kinds
@memories
def test_a_read_can_be_computed_with(kind: str, memory: str) -> None:
    """What is read in part lies in device memory, whole snapshots where the array lies."""
    m = host(kind, memory)
    assert m[2].sharding.memory_kind == "device"
    np.testing.assert_array_equal(m[2] + m[3], X[2] + X[3])
    np.testing.assert_array_equal(jnp.sin(m[1:3]), jnp.sin(X[1:3]))
    np.testing.assert_array_equal(np.asarray(m), X)


@kinds
@memories
def test_values_from_host_memory_and_back(kind: str, memory: str) -> None:
    m, row = host(kind, memory), jax.device_put(jnp.ones(3), jax.devices()[0])
    place = jax.NamedSharding(named(kind, {"d": 4}).mesh, P(), memory_kind=memory)
    m[1] = jax.device_put(row, place)
    m[2:4] = m[6:8]
    k = mu.mutable_array(jnp.zeros((8, 3)), named(kind, {"d": 4}, "d"))
    k[...] = m[...]
    wanted = X.copy()
    wanted[1], wanted[2:4] = 1, X[6:8]
    np.testing.assert_array_equal(m[...], wanted)
    np.testing.assert_array_equal(k[...], wanted)
    assert stays(m, kind, memory) and k.sharding.memory_kind == "device"


@kinds
@memories
def test_snapshots_and_their_views_never_change(kind: str, memory: str) -> None:
    m = host(kind, memory)
    snapshot = m[...]
    views = [np.asarray(snapshot), *(np.asarray(s.data) for s in snapshot.addressable_shards)]
    copies = [view.copy() for view in views]
    m[0] = -1.0
    jax.jit(lambda m: m.__setitem__(..., m[...] + 1))(m)
    m[7] = -2.0
    for view, copy in zip(views, copies, strict=True):
        np.testing.assert_array_equal(view, copy)
    np.testing.assert_array_equal(snapshot, X)
    assert stays(m, kind, memory)


@kinds
@memories
@pytest.mark.parametrize("make", [mu.zeros, mu.ones, mu.empty])
def test_born_in_host_memory(kind: str, memory: str, make: Any) -> None:
    s = named(kind, {"d": 4}, "d", memory_kind=memory)
    m = make((8, 3), sharding=s)
    assert stays(m, kind, memory)
    m[3, 1] = 5
    assert float(m[3, 1]) == 5 and stays(m, kind, memory)
