"""The handle: properties, snapshots that never change, failed writes that leave no trace."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, Sharding

import mutarray as mu
from mutarray._jaxapi import make_single_device_sharding
from tests.support import KINDS, P, mesh

X = np.arange(32, dtype=np.float32).reshape(8, 4)
PLACES: dict[str, Callable[[], Sharding]] = {
    "auto": lambda: NamedSharding(mesh((4, 2), "ij"), P("i", "j")),
    "explicit": lambda: NamedSharding(mesh((4, 2), "ij", KINDS["explicit"]), P("i", "j")),
    "replicated": lambda: NamedSharding(mesh((4, 2), "ij"), P()),
    "one device": lambda: make_single_device_sharding(jax.devices()[1]),
    "host": lambda: NamedSharding(mesh((4, 2), "ij"), P("i"), memory_kind="pinned_host"),
}
places = pytest.mark.parametrize("place", PLACES)


def array(place: str = "auto") -> mu.MutableArray:
    return mu.mutable_array(X, PLACES[place]())


# Properties --------------------------------------------------------------------------------------


@places
def test_properties(place: str) -> None:
    m = array(place)
    assert m.shape == (8, 4) and m.ndim == 2 and m.size == 32 and len(m) == 8
    assert m.dtype == np.float32 and m.itemsize == 4 and m.nbytes == 128
    assert m.sharding is m.sharding and m.sharding == PLACES[place]()
    shards = m.addressable_shards
    assert {shard.device for shard in shards} == m.sharding.device_set
    for shard in shards:
        np.testing.assert_array_equal(shard.data, X[shard.index])


def test_properties_are_not_to_be_set() -> None:
    m = array()
    for name in ("shape", "dtype", "sharding", "size", "anything"):
        with pytest.raises(AttributeError):
            setattr(m, name, 1)


def test_scalars_and_empty_arrays() -> None:
    m = mu.mutable_array(3.0)
    assert m.shape == () and m.ndim == 0 and m.size == 1 and m.nbytes == 4
    with pytest.raises(TypeError, match="unsized"):
        len(m)
    m[()] = 4
    m[...] = m[()] + 1
    assert float(m[...]) == 5
    e = mu.zeros((0, 4), sharding=PLACES["auto"]())
    assert len(e) == 0 and e.size == 0 and e.nbytes == 0 and np.asarray(e).shape == (0, 4)
    e[...] = 1.0
    e[:, 2] = np.zeros(0)
    assert e[:, 1].shape == (0,)
    with pytest.raises(IndexError):
        e[0]


def test_properties_in_a_trace() -> None:
    m = array()

    def look(m: mu.MutableArray) -> Any:
        assert m.shape == (8, 4) and m.dtype == np.float32 and len(m) == 8 and m.nbytes == 128
        assert m.sharding == PLACES["auto"]()
        return m[0]

    np.testing.assert_array_equal(jax.jit(look)(m), X[0])


@places
def test_to_numpy(place: str) -> None:
    m = array(place)
    np.testing.assert_array_equal(np.asarray(m), X)
    assert np.asarray(m, dtype=np.float64).dtype == np.float64
    assert np.array(m, copy=True).flags.owndata
    np.testing.assert_array_equal(np.stack([m, m]), np.stack([X, X]))
    np.testing.assert_array_equal(np.sum(np.asarray(m), axis=0), X.sum(axis=0))
    copied = np.array(m)
    copied[:] = -1
    np.testing.assert_array_equal(m[...], X)


def test_iteration_gives_rows() -> None:
    rows = list(array())
    assert len(rows) == 8 and all(isinstance(row, jax.Array) for row in rows)
    np.testing.assert_array_equal(np.stack(rows), X)


def test_at_and_the_class_say_what_to_do_instead() -> None:
    m = array()
    with pytest.raises(AttributeError, match=r"m\[idx\] = v"):
        m.at[0].set(1.0)
    assert not hasattr(m, "at")
    with pytest.raises(mu.errors.NoAtError):
        jax.jit(lambda m: m.at[0].set(1.0))(m)
    with pytest.raises(TypeError, match="mutarray.mutable_array"):
        mu.MutableArray(X)
    for verb in (mu.get, mu.freeze, lambda x: mu.set(x, 0, 1), lambda x: mu.swap(x, 0, 1)):
        with pytest.raises(mu.errors.NotMutableError, match="ArrayImpl|ndarray|int"):
            verb(jnp.ones(3))
    with pytest.raises(mu.errors.NotMutableError, match="ndarray"):
        mu.addupdate(np.ones(3), 0, 1)


# Snapshots ---------------------------------------------------------------------------------------

WRITES: dict[str, Callable[[mu.MutableArray], Any]] = {
    "element": lambda m: m.__setitem__((0, 0), -1.0),
    "row": lambda m: m.__setitem__(1, -1.0),
    "slice": lambda m: m.__setitem__(slice(1, 7), -1.0),
    "whole": lambda m: m.__setitem__(..., -1.0),
    "whole, an array": lambda m: m.__setitem__(..., np.full_like(X, -1)),
    "index array": lambda m: m.__setitem__([0, 7, 7], -1.0),
    "mask": lambda m: m.__setitem__(X > 3, -1.0),
    "add": lambda m: mu.addupdate(m, (slice(None), 1), 5.0),
    "augmented": lambda m: m.__setitem__(slice(2, 4), m[2:4] * 2),
    "swap": lambda m: mu.swap(m, 3, 9.0),
    "jit": lambda m: jax.jit(lambda m: m.__setitem__(0, -1.0))(m),
    "jit, whole": lambda m: jax.jit(lambda m: m.__setitem__(..., m[...] + 1))(m),
    "jit, by closure": lambda m: jax.jit(lambda: m.__setitem__(0, -1.0))(),
    "scan": lambda m: jax.lax.scan(lambda c, i: (c, m.__setitem__(i, -1.0)), 0, np.arange(3)),
}


@pytest.mark.parametrize("place", ["auto", "one device", "host"])
@pytest.mark.parametrize("write", WRITES)
def test_a_snapshot_never_changes(write: str, place: str) -> None:
    """Nor does anything that was taken from one: shards, views, arrays made of its shards."""
    m = array(place)
    whole = m[...]
    kept: list[Any] = [
        whole,
        *(shard.data for shard in whole.addressable_shards),
        *(shard.data for shard in m.addressable_shards),
        np.asarray(whole),
        *(np.asarray(shard.data) for shard in whole.addressable_shards),
        jax.make_array_from_single_device_arrays(
            whole.shape, whole.sharding, [shard.data for shard in whole.addressable_shards]
        ),
        m[1],
        m[2:4],
        jnp.asarray(m),
        jax.device_put(whole, whole.sharding),
        np.asarray(m),
        mu.mutable_array(m)[...],
    ]
    before = [np.array(x) for x in kept]
    WRITES[write](m)
    second = m[...]
    changed = np.array(second)
    assert not np.array_equal(changed, X)
    WRITES["element"](m)
    WRITES["jit, whole"](m)
    for x, values in zip(kept, before, strict=True):
        np.testing.assert_array_equal(x, values)
    np.testing.assert_array_equal(second, changed)


@places
def test_snapshots_may_come_and_go(place: str) -> None:
    m, wanted, held = array(place), X.copy(), []
    for i in range(8):
        if i % 3 == 0:
            held.append((m[...], wanted.copy()))
        m[i] = wanted[i] = -i
        jax.jit(lambda m, i: m.__setitem__((i, 0), 100.0))(m, i)
        wanted[i, 0] = 100
        if i == 5:
            del held[0]
            gc.collect()
    for snapshot, values in held:
        np.testing.assert_array_equal(snapshot, values)
    np.testing.assert_array_equal(m[...], wanted)


@places
def test_a_write_of_an_own_read(place: str) -> None:
    """The right side is read whole before anything is written."""
    for run in (lambda f: f, jax.jit):
        m, wanted = array(place), X.copy()
        run(lambda m: m.__setitem__(slice(1, None), m[:-1]))(m)
        wanted[1:] = X[:-1]
        np.testing.assert_array_equal(m[...], wanted)
        run(lambda m: m.__setitem__(slice(None), m[::-1]))(m)
        np.testing.assert_array_equal(m[...], wanted[::-1])


def test_values_written_are_copied() -> None:
    m, value = array(), X.copy() + 100
    m[...] = value
    value[:] = -1
    np.testing.assert_array_equal(m[...], X + 100)
    row = jnp.arange(4.0)
    m[0] = row
    m[0, 1] = 50.0
    np.testing.assert_array_equal(row, np.arange(4.0))
    whole = jax.device_put(X, PLACES["auto"]())
    m[...] = whole
    m[0] = -1.0
    np.testing.assert_array_equal(whole, X)


# Failed writes -----------------------------------------------------------------------------------

BAD: dict[str, tuple[Callable[[Any], None], type[Exception]]] = {
    "index": (lambda m: m.__setitem__(8, 1.0), IndexError),
    "index array": (lambda m: m.__setitem__([0, -9], 1.0), IndexError),
    "too many": (lambda m: m.__setitem__((0, 0, 0), 1.0), IndexError),
    "float index": (lambda m: m.__setitem__(1.5, 1.0), IndexError),
    "mask shape": (lambda m: m.__setitem__(np.ones(7, bool), 1.0), IndexError),
    "step 0": (lambda m: m.__setitem__(slice(0, 3, 0), 1.0), ValueError),
    "shape": (lambda m: m.__setitem__(0, np.ones(3)), ValueError),
    "shape, whole": (lambda m: m.__setitem__(..., np.ones((4, 8))), ValueError),
    "window": (lambda m: m.__setitem__(mu.ds(0, 9), 1.0), ValueError),
    "cast": (lambda m: m.__setitem__(0, 1j), TypeError),
    "cast of an array": (lambda m: m.__setitem__(..., X.astype(complex)), TypeError),
    "text": (lambda m: m.__setitem__(0, "x"), TypeError),
    "None": (lambda m: m.__setitem__(0, None), TypeError),
    "mode": (lambda m: mu.set(m, 0, 1.0, mode="wrap"), ValueError),
    "swap": (lambda m: mu.swap(m, 0, np.ones(3)), ValueError),
    "add": (lambda m: mu.addupdate(m, 9, 1.0), IndexError),
    "value that raises": (lambda m: m.__setitem__(0, Raises()), ZeroDivisionError),
}


class Raises:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise ZeroDivisionError

    def __len__(self) -> int:
        raise ZeroDivisionError


@pytest.mark.parametrize("place", ["auto", "explicit", "host"])
@pytest.mark.parametrize("bad", BAD)
def test_a_failed_write_leaves_everything_bit_for_bit(bad: str, place: str) -> None:
    m = array(place)
    m[0, 0] = np.float32(np.nan)
    snapshot, before = m[...], np.asarray(m).view(np.uint32).copy()
    write, error = BAD[bad]
    expected = error if bad != "value that raises" else (ZeroDivisionError, TypeError)
    for run in (lambda f: f, jax.jit):
        with pytest.raises(expected):
            run(write)(m)
        np.testing.assert_array_equal(np.asarray(m).view(np.uint32), before)
    np.testing.assert_array_equal(np.asarray(snapshot).view(np.uint32), before)
    assert m.sharding == PLACES[place]()
    m[1] = 7.0
    assert float(m[1, 0]) == 7


def test_the_errors_are_numpys_and_mutarrays() -> None:
    m, x = array(), X.copy()
    for bad in (8, [0, -9], (0, 0, 0), 1.5, np.ones(7, bool)):
        with pytest.raises(IndexError):
            x[bad] = 1.0
        with pytest.raises(IndexError) as caught:
            m[bad] = 1.0
        assert isinstance(caught.value, mu.errors.MutarrayError)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.float16, np.complex64, np.bool_])
def test_casts_are_same_kind(dtype: Any) -> None:
    m = mu.zeros(3, dtype, sharding=make_single_device_sharding(jax.devices()[0]))
    for source in (np.bool_, np.uint8, np.int16, np.int32, np.float32, np.float64, np.complex64):
        value = np.ones(3, source)
        allowed = np.can_cast(source, dtype, "same_kind")
        for write in (
            lambda value=value: m.__setitem__(..., value),
            lambda value=value: m.__setitem__(0, value[0]),
            lambda value=value: jax.jit(lambda m, v: m.__setitem__(slice(2), v))(m, value[:2]),
        ):
            m[...] = np.zeros(3, dtype)
            if allowed:
                write()
                assert np.asarray(m).any() and m.dtype == dtype
            else:
                with pytest.raises(TypeError, match=np.dtype(source).name[:3]):
                    write()
                assert not np.asarray(m).any()


def test_python_scalars_are_weak() -> None:
    m = mu.zeros(3, jnp.bfloat16)
    m[0], m[1], m[2] = True, 2, 2.5
    np.testing.assert_array_equal(np.asarray(m).astype(float), [1, 2, 2.5])
    k = mu.zeros(3, jnp.int8)
    k[0], k[1] = True, -128
    for bad, error in (
        (1.0, TypeError),
        (1j, TypeError),
        (128, OverflowError),
        (-129, OverflowError),
    ):
        with pytest.raises(error):
            k[2] = bad
    np.testing.assert_array_equal(k[...], [1, -128, 0])
    u = mu.zeros(2, jnp.uint8)
    with pytest.raises(OverflowError):
        u[0] = -1
