"""eager = traced = NumPy, for reads and writes, on every layout, auto and explicit."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mutarray as mu
from tests.support import KINDS, indices, layouts, numpy_take

pytestmark = pytest.mark.core

# Each example compiles up to ten programs for eight devices; MUTARRAY_DEEP=1 draws far more.
DEPTH = 100 if os.environ.get("MUTARRAY_DEEP") == "1" else 1

LAYOUTS = {(kind, name): pair for kind in KINDS for name, pair in layouts(KINDS[kind]).items()}


def start(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    return (x % 2 == 0) if dtype is bool else x.astype(dtype)


@st.composite
def values(draw: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """A value that broadcasts to ``shape``: a scalar, a NumPy or a JAX array, also too long."""
    form = draw(st.sampled_from(["scalar", "full", "ones", "trimmed", "longer"]))
    if form == "scalar":
        return dtype(3)
    given = list(shape)
    if form == "ones":
        given = [1 if draw(st.booleans()) else n for n in given]
    elif form == "trimmed":
        given = given[draw(st.integers(0, len(given))) :]
    elif form == "longer":
        given = [1, 1, *given]
    value = (np.arange(np.prod(given, dtype=int)).reshape(given) % 100 + 100).astype(dtype)
    return jnp.asarray(value) if draw(st.booleans()) else value


def split_index(index: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The parts of an index that may be traced, and how to put it together again."""
    entries = index if isinstance(index, tuple) else (index,)

    def traceable(e: Any) -> bool:
        if isinstance(e, np.ndarray):
            return e.dtype != bool
        return isinstance(e, (int, np.integer)) and not isinstance(e, bool)

    operands = [np.asarray(e) for e in entries if traceable(e)]

    def join(traced: list[Any]) -> Any:
        rest = iter(traced)
        return tuple(next(rest) if traceable(e) else e for e in entries)

    return operands, join


def assert_same(got: Any, wanted: np.ndarray) -> None:
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    np.testing.assert_array_equal(np.asarray(got), wanted)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda pair: f"{pair[0]}-{pair[1]}")
@settings(max_examples=3 * DEPTH)
@given(data=st.data())
def test_reads(layout: tuple[str, str], data: st.DataObject) -> None:
    shape, sharding = LAYOUTS[layout]
    x = start(shape, np.float32)
    index = data.draw(indices(shape))
    wanted, error = numpy_take(x, index)
    if error is not None:
        return
    m = mu.mutable_array(jnp.asarray(x), sharding)
    assert_same(m[index], wanted)
    assert_same(jax.jit(lambda m: m[index])(m), wanted)
    operands, join = split_index(index)
    assert_same(jax.jit(lambda m, traced: m[join(traced)])(m, operands), wanted)
    assert_same(m[...], x)
    assert m.sharding is sharding and m[...].sharding == sharding


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda pair: f"{pair[0]}-{pair[1]}")
@settings(max_examples=3 * DEPTH)
@given(data=st.data())
def test_writes(layout: tuple[str, str], data: st.DataObject) -> None:
    shape, sharding = LAYOUTS[layout]
    dtype = data.draw(st.sampled_from([np.float32, np.int32]))
    x = start(shape, dtype)
    index = data.draw(indices(shape))
    taken, error = numpy_take(x, index)
    if error is not None:
        return
    value = data.draw(values(taken.shape, dtype))
    wanted = x.copy()
    spread = np.empty(taken.shape, dtype)
    spread[...] = np.reshape(value, np.shape(value)[max(0, np.ndim(value) - taken.ndim) :])
    wanted[index] = spread
    eager, jitted, traced, added = (mu.mutable_array(jnp.asarray(x), sharding) for _ in range(4))
    eager[index] = value
    assert_same(eager[...], wanted)
    jax.jit(lambda m, v: m.__setitem__(index, v))(jitted, value)
    assert_same(jitted[...], wanted)
    operands, join = split_index(index)
    jax.jit(lambda m, t, v: m.__setitem__(join(t), v))(traced, operands, value)
    assert_same(traced[...], wanted)
    summed = x.copy()
    np.add.at(summed, index, spread)
    mu.addupdate(added, index, value)
    assert_same(added[...], summed)
    for m in (eager, jitted, traced, added):
        assert m.sharding is sharding and m[...].sharding == sharding


MASKED = [pair for pair in LAYOUTS if pair[1] not in ("empty",)]


@pytest.mark.parametrize("layout", MASKED, ids=lambda pair: f"{pair[0]}-{pair[1]}")
@settings(max_examples=2 * DEPTH)
@given(data=st.data())
def test_writes_by_a_traced_mask(layout: tuple[str, str], data: st.DataObject) -> None:
    shape, sharding = LAYOUTS[layout]
    x = start(shape, np.float32)
    leading = data.draw(st.integers(0, len(shape)))
    count = int(np.prod(shape[:leading]))
    bits = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    mask = np.array(bits, bool).reshape(shape[:leading])
    tail = data.draw(indices(shape[leading:])) if leading < len(shape) else ()
    tail = tail if isinstance(tail, tuple) else (tail,)
    tail = tuple(e for e in tail if isinstance(e, (slice, int)) and not isinstance(e, bool))
    wanted = x.copy()
    wanted[(mask, *tail)] = 5
    m = mu.mutable_array(jnp.asarray(x), sharding)
    jax.jit(lambda m, mask: m.__setitem__((mask, *tail), 5.0))(m, mask)
    assert_same(m[...], wanted)
    assert m[...].sharding == sharding
    np.add.at(wanted, (mask, *tail), 2)
    jax.jit(lambda m, mask: mu.addupdate(m, (mask, *tail), 2.0))(m, mask)
    assert_same(m[...], wanted)


def model(x: np.ndarray, i: Any, mode: str | None, wrap: bool, writing: bool) -> tuple[Any, Any]:
    """What section 3 of the design says of traced indices: positions, and which of them count."""
    n = x.shape[0]
    i = np.asarray(i)
    i = np.where(i < 0, i + n, i) if wrap else i
    inside = (i >= 0) & (i < n)
    mode = mode or ("drop" if writing else "clip")
    return np.clip(i, 0, n - 1), inside if mode != "clip" else np.ones_like(inside)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [None, "clip", "drop", "fill"])
@settings(max_examples=2 * DEPTH)
@given(i=st.lists(st.integers(-20, 20), min_size=0, max_size=5), wrap=st.booleans())
def test_out_of_range_is_one_rule_on_every_layout(
    kind: str, mode: str | None, i: list[int], wrap: bool
) -> None:
    for name in ("vector on 8", "4x2", "one device"):
        shape, sharding = LAYOUTS[kind, name]
        x = start(shape, np.float32)
        forms: list[Any] = [np.asarray(i, np.int32), *(np.int32(k) for k in i[:1])]
        for idx in forms:
            rule = {"mode": mode, "wrap_negative_indices": wrap}
            read = partial(mu.get, fill_value=-1.0, **rule)
            write = partial(mu.set, value=500.0, **rule)
            at, counts = model(x, idx, mode, wrap, writing=False)
            wanted = np.where(counts.reshape(np.shape(idx) + (1,) * (x.ndim - 1)), x[at], -1)
            m = mu.mutable_array(jnp.asarray(x), sharding)
            assert_same(jax.jit(read)(m, idx), wanted.astype(np.float32))
            if mode is not None:
                assert_same(read(m, idx), wanted.astype(np.float32))
            at, counts = model(x, idx, mode, wrap, writing=True)
            wanted = x.copy()
            wanted[at[counts] if np.ndim(idx) else (at if counts else slice(0))] = 500
            jax.jit(write)(m, idx)
            assert_same(m[...], wanted)
            if mode is not None:
                m = mu.mutable_array(jnp.asarray(x), sharding)
                write(m, idx)
                assert_same(m[...], wanted)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4 * DEPTH)
@given(
    begin=st.integers(-20, 20),
    size=st.integers(0, 4),
    stride=st.integers(1, 2),
    mode=st.sampled_from([None, "clip", "drop", "fill"]),
)
def test_windows(kind: str, begin: int, size: int, stride: int, mode: str | None) -> None:
    for name in ("vector on 8", "4x2", "one device"):
        shape, sharding = LAYOUTS[kind, name]
        if shape[0] < (size - 1) * stride + 1:
            continue
        x = start(shape, np.float32)
        n, extent = shape[0], (size - 1) * stride + 1 if size else 0
        first = begin + n if begin < 0 else begin
        if mode in (None, "clip"):
            first = min(max(first, 0), n - extent)
        at = first + np.arange(size) * stride
        inside = (at >= 0) & (at < n)
        wanted = np.where(inside.reshape(-1, *[1] * (x.ndim - 1)), x[np.clip(at, 0, n - 1)], -1)

        def read(m: mu.MutableArray, i: Any) -> Any:
            return mu.get(m, mu.ds(i, size, stride), mode=mode, fill_value=-1.0)

        def write(m: mu.MutableArray, i: Any, v: Any) -> None:
            mu.set(m, mu.ds(i, size, stride), v, mode=mode)

        m = mu.mutable_array(jnp.asarray(x), sharding)
        value = np.arange(wanted.size, dtype=np.float32).reshape(wanted.shape) + 500
        assert_same(read(m, begin), wanted.astype(np.float32))
        assert_same(jax.jit(read)(m, begin), wanted.astype(np.float32))
        y = x.copy()
        y[at[inside]] = value[inside]
        write(m, begin, value)
        assert_same(m[...], y)
        k = mu.mutable_array(jnp.asarray(x), sharding)
        jax.jit(write)(k, begin, value)
        assert_same(k[...], y)
