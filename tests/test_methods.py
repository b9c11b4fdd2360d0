"""The table of methods against jax.Array, and NumPy's methods that write."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mutarray as mu
from mutarray._methods import LEFT_OUT
from tests.support import KINDS, layouts
from tests.test_eager import pointers
from tests.test_operators import PLACES, check_same, made, outcome

places = pytest.mark.parametrize("place", PLACES, ids=lambda place: " ".join(place))

CALLS: dict[str, Any] = {
    "all": lambda a: a.all(axis=0),
    "any": lambda a: a.any(),
    "argmax": lambda a: a.argmax(axis=0),
    "argmin": lambda a: a.argmin(),
    "argpartition": lambda a: a.argpartition(2),
    "argsort": lambda a: a.argsort(axis=1),
    "astype": lambda a: a.astype(jnp.int8),
    "byteswap": lambda a: a.byteswap(),
    "choose": lambda a: a.choose([1, 2], mode="clip"),
    "clip": lambda a: a.clip(2, max=5),
    "compress": lambda a: a.compress(np.array([True, False, True]), axis=0),
    "conj": lambda a: a.conj(),
    "conjugate": lambda a: a.conjugate(),
    "cumprod": lambda a: a.cumprod(1),
    "cumsum": lambda a: a.cumsum(axis=0),
    "diagonal": lambda a: a.diagonal(1),
    "dot": lambda a: a.dot(np.ones(a.shape[1], np.float32)),
    "flatten": lambda a: a.flatten(),
    "imag": lambda a: a.imag,
    "item": lambda a: a.item(3),
    "mT": lambda a: a.mT,
    "max": lambda a: a.max(axis=1, keepdims=True),
    "mean": lambda a: a.mean(),
    "min": lambda a: a.min(0),
    "nonzero": lambda a: a.nonzero(),
    "prod": lambda a: a.prod(),
    "ptp": lambda a: a.ptp(axis=0),
    "ravel": lambda a: a.ravel(),
    "real": lambda a: a.real,
    "repeat": lambda a: a.repeat(2, axis=0),
    "reshape": lambda a: a.reshape(-1, 2),
    "round": lambda a: a.round(1),
    "searchsorted": lambda a: a.searchsorted(1),
    "squeeze": lambda a: a.squeeze(),
    "std": lambda a: a.std(0),
    "sum": lambda a: a.sum(axis=0, where=np.asarray(a) > 2),
    "swapaxes": lambda a: a.swapaxes(0, 1),
    "T": lambda a: a.T,
    "take": lambda a: a.take(np.array([1, 0]), axis=0),
    "to_device": lambda a: a.to_device(jax.devices()[2]),
    "tobytes": lambda a: a.tobytes(),
    "tolist": lambda a: a.tolist(),
    "trace": lambda a: a.trace(),
    "transpose": lambda a: a.transpose(1, 0),
    "var": lambda a: a.var(),
    "view": lambda a: a.view(jnp.int32),
}
OF_THE_PLACE = {
    *("addressable_data", "addressable_shards", "block_until_ready", "committed", "copy"),
    *("copy_to_host_async", "device", "devices", "dtype", "format", "global_shards"),
    *("is_deleted", "is_fully_addressable", "is_fully_replicated", "itemsize", "nbytes", "ndim"),
    *("shape", "sharding", "size", "sort", "at"),
}


@pytest.mark.core
def test_nothing_that_an_array_has_is_forgotten() -> None:
    """A new version of JAX that has more fails here."""
    theirs = {*dir(jax.Array), *dir(type(jnp.ones(1)))}
    theirs = {name for name in theirs if not name.startswith("_")}
    assert theirs - set(CALLS) - OF_THE_PLACE - set(LEFT_OUT) == set()
    for name in [*CALLS, *OF_THE_PLACE]:
        found = inspect.getattr_static(mu.MutableArray, name)
        assert getattr(found, "__doc__", None), name
    for name in LEFT_OUT:
        assert not hasattr(mu.zeros(3), name)


@pytest.mark.core
@places
@pytest.mark.parametrize("name", CALLS)
def test_methods(name: str, place: tuple[str, str]) -> None:
    for dtype in (
        ("float32", "complex64") if name in ("imag", "real", "conj", "T") else ("float32",)
    ):
        x, m = made(*place, dtype)
        check_same(outcome(CALLS[name], m), outcome(CALLS[name], x))
        np.testing.assert_array_equal(m, x)


@pytest.mark.core
def test_methods_in_a_trace() -> None:
    for place in PLACES:
        x, m = made(*place, "float32")

        def work(a: Any) -> Any:
            return a.sum(axis=0), a.mean(), a.T, a.astype(int), a.clip(2, 3), a.dot(a[0])

        check_same(outcome(jax.jit(work), m), outcome(jax.jit(work), x))


def test_arguments_may_be_mutable_arrays() -> None:
    x, m = made("4x2", "auto", "float32")
    check_same(outcome(lambda: m.dot(mu.mutable_array(x.T))), outcome(lambda: x.dot(x.T)))
    check_same(outcome(lambda: m.clip(min=m, max=m)), outcome(lambda: x.clip(x, x)))


def test_methods_are_documented() -> None:
    assert "axis" in inspect.signature(mu.MutableArray.sum).parameters
    assert mu.MutableArray.sum.__doc__ == "The sum of the elements; as ``jax.Array.sum``."
    assert mu.MutableArray.T.__doc__ == (
        "The elements with the axes in reverse order; as ``jax.Array.T``."
    )
    with pytest.raises(AttributeError, match="'MutableArray' object has no attribute 'summ'"):
        _ = mu.zeros(3).summ


# Where it is -------------------------------------------------------------------------------------


@pytest.mark.core
@places
def test_the_place(place: tuple[str, str]) -> None:
    x, m = made(*place, "float32")
    assert m.devices() == x.devices() and m.device == x.device and m.committed
    assert m.is_fully_addressable and m.is_fully_replicated is x.is_fully_replicated
    assert m.nbytes == x.nbytes and m.itemsize == x.itemsize and m.size == x.size
    assert m.format == x.format
    for shards, theirs in (
        (m.addressable_shards, x.addressable_shards),
        (m.global_shards, x.global_shards),
    ):
        for shard, wanted in zip(shards, theirs, strict=True):
            assert shard.device == wanted.device and shard.index == wanted.index
            np.testing.assert_array_equal(shard.data, wanted.data)
    np.testing.assert_array_equal(m.addressable_data(0), x.addressable_data(0))
    m.copy_to_host_async()
    assert m.is_deleted() is False
    frozen = mu.freeze(m)
    assert m.is_deleted() and not frozen.is_deleted()


@pytest.mark.core
def test_the_place_in_a_trace() -> None:
    _, m = made("4x2", "auto", "float32")
    seen = []

    @jax.jit
    def work(m: Any) -> None:
        seen.append((m.devices(), m.is_fully_addressable, m.is_deleted(), m.nbytes))
        assert m.block_until_ready() is m
        k = m.copy()
        mu.freeze(k)
        seen.append(k.is_deleted())

    work(m)
    assert seen == [(m.devices(), True, False, m.nbytes), True]


@pytest.mark.core
def test_waiting_makes_no_snapshot() -> None:
    """So the next write is in place."""
    m = mu.zeros((8, 6), sharding=layouts(KINDS["auto"])["4x2"][1])
    m += 1.0
    where = pointers(m)
    for _ in range(3):
        m += 1.0
        assert m.block_until_ready() is m and jax.block_until_ready(m) is not None
        m[0] = 2.0
    assert pointers(m) == where
    jax.jit(lambda m: m.__setitem__(0, 1.0))(m)
    m.block_until_ready()
    mu.freeze(m)
    with pytest.raises(mu.errors.SpentError):
        m.block_until_ready()


@pytest.mark.core
def test_snapshot() -> None:
    m = mu.zeros(3)
    before = m.snapshot()
    m[0] = 1.0
    assert isinstance(before, jax.Array) and not before.any() and m.snapshot()[0] == 1


# What writes -------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["one device", "vector on 8", "4x2", "2x2x2, whole", "empty"])
def test_sort_and_partition(name: str, kind: str, traced: bool) -> None:
    shape, sharding = layouts(KINDS[kind])[name]
    rng = np.random.default_rng(0)
    for axis in (-1, 0):
        x = rng.permutation(np.prod(shape, dtype=int)).reshape(shape).astype(np.float32)
        m, k = mu.mutable_array(x, sharding), mu.mutable_array(x, sharding)
        run = jax.jit if traced else lambda f: f
        run(lambda m, axis=axis: m.sort(axis))(m)
        np.testing.assert_array_equal(m, np.sort(x, axis))
        if x.size:
            run(lambda k, axis=axis: k.partition(1, axis))(k)
            parts = np.moveaxis(np.asarray(k), axis, 0)
            np.testing.assert_array_equal(parts[1], np.moveaxis(np.sort(x, axis), axis, 0)[1])
            assert (parts[0] <= parts[1]).all() and (parts[2:] >= parts[1]).all()
        run(lambda m: m.sort(descending=True))(m)
        np.testing.assert_array_equal(m, np.sort(np.sort(x, axis))[..., ::-1])
        assert m[...].sharding == m.sharding == sharding


def test_sort_in_host_memory_and_what_cannot_be_sorted() -> None:
    shape, sharding = layouts(KINDS["auto"])["4x2"]
    x = np.arange(48.0, dtype=np.float32)[::-1].reshape(shape)
    m = mu.mutable_array(x, sharding.with_memory_kind("pinned_host"))
    m.sort()
    np.testing.assert_array_equal(m, np.sort(x))
    for call, error, message in [
        (lambda: m.sort(2), IndexError, "axis 2 .* -2 to 1"),
        (lambda: m.partition(1, -3), IndexError, "axis -3"),
        (lambda: mu.zeros(()).sort(), IndexError, "it has none"),
        (lambda: m.sort(None), TypeError, "integer"),
        (lambda: m.partition(99), IndexError, "kth=99 .* size 6: allowed are -6 to 5"),
    ]:
        with pytest.raises(error, match=message):
            call()
    np.testing.assert_array_equal(m, np.sort(x))


@pytest.mark.core
@places
@settings(max_examples=20)
@given(st.data())
def test_put(place: tuple[str, str], data: Any) -> None:
    x, m = made(*place, "float32")
    x = np.array(x)
    mode = data.draw(st.sampled_from(["raise", "wrap", "clip"]))
    reach = 1 if mode == "raise" else 3
    positions = data.draw(
        st.lists(st.integers(-x.size * (reach > 0), reach * x.size - 1), max_size=8)
    )
    values = data.draw(st.lists(st.integers(0, 99), min_size=1, max_size=9))
    x.put(positions, values, mode)
    m.put(positions, values, mode)
    np.testing.assert_array_equal(m, x)
    if positions:
        x.put(positions, values, "wrap")
        jax.jit(lambda m, k, v: m.put(k, v, "wrap"))(m, np.array(positions), np.array(values))
        np.testing.assert_array_equal(m, x)


def test_resize_is_refused() -> None:
    m = mu.zeros((2, 3))
    for shape in ((6,), ((6,),), (3, 2)):
        with pytest.raises(mu.errors.ShapeError, match=r"\(2, 3\) cannot be resized.*resize"):
            m.resize(*shape)
