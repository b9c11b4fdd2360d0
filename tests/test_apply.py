"""`apply_at`: NumPy's ``ufunc.at`` for any function, one named element after the other."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding

import mutarray as mu
from mutarray._array import cell_of
from mutarray._plan import plan
from mutarray._rounds import most_often, rank_of_each
from mutarray._select import select
from tests.support import KINDS, P, indices, layouts, mesh, numpy_take

runs = pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])

UNARY: dict[Any, Any] = {jnp.negative: np.negative, jnp.square: np.square}
BINARY: dict[Any, Any] = {jnp.subtract: np.subtract, jnp.maximum: np.maximum}


def on_4x2(spec: P = P("i", "j"), memory: str | None = None) -> tuple[mu.MutableArray, Any]:
    x = np.arange(128, dtype=np.float32).reshape(16, 8)
    return mu.mutable_array(x, NamedSharding(mesh((4, 2), "ij"), spec, memory_kind=memory)), x


def pointers(m: mu.MutableArray) -> dict[int, int]:
    cell = cell_of(m)
    return {
        s.device.id: cell.block(s.device).unsafe_buffer_pointer() for s in cell.place.layout.shards
    }


# Values ------------------------------------------------------------------------------------------


@runs
@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("auto", "one device"),
        ("auto", "4x2"),
        ("explicit", "2x2x2"),
        ("auto", "4x2, both on one"),
        ("auto", "scalar"),
        ("auto", "empty"),
    ],
)
@settings(max_examples=5)
@given(data=st.data())
def test_parity(run: Any, kind: str, place: str, data: Any) -> None:
    shape, sharding = layouts(KINDS[kind])[place]
    x = (np.arange(np.prod(shape)) % 5 - 2).astype(np.int32).reshape(shape)
    m = mu.mutable_array(x, sharding)
    index = data.draw(indices(shape).filter(lambda i: numpy_take(x, i)[1] is None))
    fn = data.draw(st.sampled_from(list(UNARY)))
    run(lambda m: m.apply_at(fn, index))(m)
    UNARY[fn].at(x, index)
    np.testing.assert_array_equal(m[...], x)
    fn = data.draw(st.sampled_from(list(BINARY)))
    value = (np.arange(np.size(x[index])) % 3).astype(np.int32).reshape(np.shape(x[index]))
    run(lambda m, v: m.apply_at(fn, index, v))(m, value)
    BINARY[fn].at(x, index, value)
    np.testing.assert_array_equal(m[...], x)
    assert m.sharding is sharding


@runs
@pytest.mark.parametrize("spec", [P("i", "j"), P()], ids=str)
def test_an_element_that_is_named_twice_gets_it_twice(run: Any, spec: P) -> None:
    m, x = on_4x2(spec)
    index = np.array([3, 9, 3, 15, 3, 9])
    value = np.arange(6, dtype=np.float32)[:, None]
    run(lambda m, v: m.apply_at(jnp.hypot, index, v))(m, value)
    np.hypot.at(x, index, value)
    np.testing.assert_allclose(m[...], x, rtol=1e-6)
    run(lambda m: m.apply_at(jnp.abs, (index, 2)))(m)
    run(lambda m: m.apply_at(lambda x: x * 2 + 1, (index, [1, 1, 1, 2, 1, 1])))(m)
    for i, j in zip(index, [1, 1, 1, 2, 1, 1], strict=True):
        x[i, j] = x[i, j] * 2 + 1
    np.testing.assert_allclose(m[...], x, rtol=1e-6)


def test_traced_indices_and_masks() -> None:
    m, x = on_4x2()
    apply = jax.jit(lambda m, i, v: m.apply_at(lambda a, b: a * 2 - b, i, v))
    index, value = np.array([3, 9, 3, 99, -1, 3]), np.arange(48, dtype=np.float32).reshape(6, 8)
    apply(m, index, value)
    for i, v in zip(index, value, strict=True):
        if i < 16:
            x[i] = x[i] * 2 - v
    np.testing.assert_array_equal(m[...], x)
    for k in (5, -2, 16):  # out of range: dropped
        apply(m, k, 1.0)
        if k < 16:
            x[k] = x[k] * 2 - 1
    mask = x % 3 == 0
    apply(m, mask, 4.0)
    x[mask] = x[mask] * 2 - 4
    np.testing.assert_array_equal(m[...], x)
    jax.jit(lambda m, k: m.apply_at(jnp.negative, mu.ds(k, 3)))(m, 14)
    x[13:16] *= -1
    np.testing.assert_array_equal(m[...], x)


def test_scans_and_gradients() -> None:
    def loss(v: jax.Array) -> jax.Array:
        m = mu.mutable_array(jnp.ones(4))
        m.apply_at(lambda a, b: a * b, np.array([1, 1, 3]), v)
        m.apply_at(jnp.sin, slice(0, 2))
        return m[...].sum()

    def plain(v: jax.Array) -> jax.Array:
        return jnp.sin(1.0) + jnp.sin(v[0] * v[1]) + 1.0 + v[2]

    v = jnp.array([2.0, 3.0, 5.0])
    np.testing.assert_allclose(jax.jit(loss)(v), plain(v), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(v), jax.grad(plain)(v), rtol=1e-5)
    m = mu.zeros(4)

    def body(_: None, k: jax.Array) -> tuple[None, None]:
        m.apply_at(lambda x: x * 2 + 1, k[None])
        return None, None

    jax.jit(lambda k: jax.lax.scan(body, None, k))(jnp.array([0, 2, 2, 2]))
    assert m[...].tolist() == [1, 0, 7, 0]


@pytest.mark.parametrize("memory", ["pinned_host", "unpinned_host"])
def test_in_host_memory(memory: str) -> None:
    m, x = on_4x2(memory=memory)
    for index in [(3, 1), slice(2, 11, 2), np.array([3, 9, 3]), x % 3 == 0]:
        m.apply_at(jnp.subtract, index, 2)
        np.subtract.at(x, index, 2)
        np.testing.assert_array_equal(m[...], x)
    assert m[...].sharding.memory_kind == memory


def test_a_value_keeps_its_dtype_on_the_way_into_the_function() -> None:
    seen: list[Any] = []

    def fn(a: Any, b: Any) -> Any:
        seen.append((a.dtype, b.dtype))
        return jnp.where(b, -a, a) if b.dtype == jnp.bool_ else a + b

    m = mu.mutable_array(jnp.arange(6, dtype=jnp.bfloat16))
    m.apply_at(fn, slice(0, 4), np.array([True, False, True, True]))
    m.apply_at(fn, [0, 0, 5], jnp.array([1, 2, 3], jnp.int8))
    m.apply_at(fn, ..., 1)
    assert np.asarray(m[...]).astype(float).tolist() == [4, 2, -1, -2, 5, 9]
    assert set(seen) == {
        (m.dtype, jnp.dtype(jnp.bool_)),
        (m.dtype, jnp.dtype(jnp.int8)),
        (m.dtype, m.dtype),
    }


# Where it runs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [(5, 3), slice(3, 6), [0, 9, 4], [2, 2]], ids=str)
@pytest.mark.parametrize("spec", [P("i", "j"), P()], ids=str)
def test_it_stays_in_place_and_on_the_touched_shards(spec: P, index: Any) -> None:
    m, _ = on_4x2(spec)
    m.apply_at(jnp.negative, index)
    cell, before = cell_of(m), pointers(m)
    blocks = {s.device: cell.block(s.device) for s in cell.place.layout.shards}
    m.apply_at(jnp.negative, index)
    assert pointers(m) == before
    touched = {
        s.device for s in plan(select(m.shape, index, writing=True), cell.place.layout).touched
    }
    assert {d for d, block in blocks.items() if block.is_deleted()} == touched


def test_snapshots_stay() -> None:
    m, x = on_4x2()
    held, before = m[...], x.copy()
    m.apply_at(jnp.negative, [1, 1, 5])
    m.apply_at(jnp.square, ...)
    np.testing.assert_array_equal(held, before)
    np.negative.at(x, [1, 1, 5])
    np.testing.assert_array_equal(m[...], np.square(x))


def test_the_same_function_is_traced_once_for_each_block() -> None:
    m, traced = on_4x2(P("i"))[0], []

    def fn(a: Any) -> Any:
        traced.append(1)
        return a + 1

    m.apply_at(fn, [0, 0])
    m.apply_at(fn, [1, 2])
    once = len(traced)
    for k in range(2, 14, 4):
        m.apply_at(fn, [k, k])
    assert len(traced) - once <= 2 * 3, "the check before each call, and at most once a program"


# Failures ----------------------------------------------------------------------------------------


def broken(a: Any) -> Any:
    raise ZeroDivisionError


def broken_on_blocks(a: Any) -> Any:
    if a.shape == (2, 3):
        return a
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ((jnp.negative, (16, 0)), IndexError),
        ((jnp.negative, [0, 99]), IndexError),
        ((jnp.add, slice(3, 9), np.ones(3)), ValueError),
        ((jnp.add, slice(3, 9), 1j), mu.errors.CastError),
        ((lambda x: x.astype(complex), slice(3, 9)), mu.errors.CastError),
        ((jnp.sum, slice(3, 9)), mu.errors.BadValueError),
        ((lambda x: (x, x), slice(3, 9)), mu.errors.BadValueError),
        ((broken, slice(3, 9)), ZeroDivisionError),
        ((broken_on_blocks, slice(3, 9)), ZeroDivisionError),
        ((broken_on_blocks, ...), ZeroDivisionError),
        ((jnp.negative, slice(3, 9), 1.0), TypeError),
        ((jnp.add, slice(3, 9), object()), TypeError),
    ],
)
@pytest.mark.parametrize("memory", [None, "pinned_host"])
def test_bad_input_leaves_the_array_as_it_was(args: Any, error: type, memory: Any) -> None:
    m, x = on_4x2(memory=memory)
    where = pointers(m)
    with pytest.raises(error):
        m.apply_at(*args)
    assert pointers(m) == where
    np.testing.assert_array_equal(m[...], x)


def test_an_int_array_takes_no_floats() -> None:
    m = mu.mutable_array(jnp.arange(4))
    with pytest.raises(mu.errors.CastError, match="same_kind"):
        m.apply_at(jnp.sqrt, 1)
    with pytest.raises(mu.errors.CastError):
        m.apply_at(jnp.add, 1, 2.5)
    with pytest.raises(mu.errors.CastError, match="keys"):
        mu.mutable_array(jax.random.split(jax.random.key(0), 3)).apply_at(jnp.negative, 1)
    assert m[...].tolist() == [0, 1, 2, 3]


# Rounds ------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=8, max_size=8))
def test_ranks(points: list[tuple[int, int]]) -> None:
    columns = [np.array(p, np.int32) for p in zip(*points, strict=True)]
    wanted = [points[:k].count(p) for k, p in enumerate(points)]
    assert rank_of_each([jnp.asarray(c) for c in columns]).tolist() == wanted
    assert most_often(columns) == max(wanted) + 1
