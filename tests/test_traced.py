"""The owner-computes engine gives what the general engine gives: bit by bit, on every layout."""

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
from jax.sharding import AxisType, Mesh, NamedSharding

import mutarray as mu
from mutarray import _gather, _traced
from mutarray._frames import Home
from mutarray._select import select
from tests.support import KINDS, P, indices, layouts, numpy_take
from tests.test_parity import split_index

pytestmark = pytest.mark.core

# Each example compiles some programs for eight devices; MUTARRAY_DEEP=1 draws far more.
DEPTH = 100 if os.environ.get("MUTARRAY_DEEP") == "1" else 1

LAYOUTS = {
    (kind, name): pair
    for kind in KINDS
    for name, pair in layouts(KINDS[kind]).items()
    if name in ("rows on 8", "4x2", "4x2, both on one", "2x2x2")
}


def _more_layouts() -> dict[tuple[str, str], Any]:
    """Meshes with an axis of each kind, and with axes of size 1."""
    devices = np.array(jax.devices())
    auto, explicit = AxisType.Auto, AxisType.Explicit
    mixed = Mesh(devices.reshape(4, 2), ("i", "j"), axis_types=(auto, explicit))
    found = {
        ("mixed", "4x2"): ((8, 6), NamedSharding(mixed, P("i", "j"))),
        ("mixed", "2x4"): ((8, 4), NamedSharding(mixed, P("j", "i"))),
        ("mixed", "one axis"): ((8, 3), NamedSharding(mixed, P("i"))),
    }
    for kind, axis_type in KINDS.items():
        ones = Mesh(devices.reshape(8, 1), ("i", "j"), axis_types=(axis_type,) * 2)
        found[kind, "8x1"] = (8, 6), NamedSharding(ones, P("i", "j"))
        found[kind, "1x8"] = (3, 8), NamedSharding(ones, P("j", "i"))
    return found


LAYOUTS |= _more_layouts()
every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
DTYPES = [np.float32, np.int32, np.bool_, jnp.bfloat16, np.complex64]

# What a read must not change: signs of zeros, and what a NaN carries.
ODD = np.array([0x80000000, 0x7FC01234, 0xFFC00001, 0x7F800000, 0x00000001], np.uint32)


def contents(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    n = int(np.prod(shape))
    if dtype == np.bool_:
        return (np.arange(n) % 3 == 0).reshape(shape)
    x = (np.arange(n) % 7 - 3).astype(np.float32)
    if dtype != np.int32:
        x[1::3] = np.resize(ODD, len(x[1::3])).view(np.float32)
    if dtype == np.complex64:
        return (
            (x[::-1].view(np.uint32).astype(np.uint64) << 32 | x.view(np.uint32))
            .view(np.complex64)[..., None]
            .reshape(shape)
        )
    with np.errstate(invalid="ignore"):
        return x.astype(dtype).reshape(shape)


def bits(x: Any) -> np.ndarray:
    x = np.ascontiguousarray(np.asarray(x))
    return x.view(np.uint8) if x.dtype == np.bool_ else x.view(np.dtype(f"u{min(x.itemsize, 4)}"))


def assert_same_bits(got: Any, wanted: Any) -> None:
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    np.testing.assert_array_equal(bits(got), bits(wanted))


@st.composite
def traced_indices(draw: Any, shape: tuple[int, ...]) -> tuple[Any, list[Any]]:
    """A function from operands to an index, and the operands: windows, integers, index arrays."""
    kinds = ["window", "window", "strided", "int", "points", "points", "all", "slice"]
    parts: list[Callable[[Any], Any]] = []
    operands: list[Any] = []
    count = draw(st.integers(1, 4))
    for n in shape[: draw(st.integers(1, len(shape)))]:
        kind = draw(st.sampled_from(kinds))
        start = np.int32(draw(st.integers(-n - 3, n + 2)))
        if kind == "strided" and n < 3:
            kind = "window"
        if kind == "window":
            size = draw(st.integers(1, n))
            parts.append(lambda k, size=size: mu.ds(k, size))
            operands.append(start)
        elif kind == "strided":
            parts.append(lambda k, size=(n + 1) // 2: mu.ds(k, size, 2))
            operands.append(start)
        elif kind == "int":
            parts.append(lambda k: k)
            operands.append(start)
        elif kind == "points":
            at = st.lists(st.integers(-n - 2, n + 1), min_size=count, max_size=count)
            parts.append(lambda k: k)
            operands.append(np.array(draw(at), np.int32))
        else:
            bounds = st.sampled_from([None, None, *range(n)])
            step = draw(st.sampled_from([None, -1, 2]))
            fixed = slice(None) if kind == "all" else slice(draw(bounds), draw(bounds), step)
            parts.append(lambda k, fixed=fixed: fixed)
            operands.append(np.int32(0))
    return (lambda given: tuple(part(k) for part, k in zip(parts, given, strict=True))), operands


@st.composite
def known_indices(draw: Any, shape: tuple[int, ...]) -> tuple[Any, list[Any]]:
    """Any index that NumPy takes; integers and index arrays in it are traced."""
    index = draw(indices(shape))
    if numpy_take(np.zeros(shape), index)[0] is None:
        index = ...
    operands, join = split_index(index)
    return join, operands


def any_index(shape: tuple[int, ...]) -> st.SearchStrategy[tuple[Any, list[Any]]]:
    return st.one_of(traced_indices(shape), known_indices(shape))


def engines(layout: tuple[str, str], work: Callable[..., Any], *operands: Any) -> tuple[Any, Any]:
    """What a function of an engine and operands gives with each engine, under ``jit``."""
    return tuple(jax.jit(partial(work, engine))(*operands) for engine in (_traced, _gather))


@every_layout
@settings(max_examples=4 * DEPTH)
@given(data=st.data())
def test_reads(layout: tuple[str, str], data: st.DataObject) -> None:
    shape, sharding = LAYOUTS[layout]
    dtype = data.draw(st.sampled_from(DTYPES))
    join, operands = data.draw(any_index(shape))
    mode = data.draw(st.sampled_from([None, "clip", "drop", "fill"]))
    wrap = mode is None or data.draw(st.booleans())  # without both, lists may raise
    x = jax.device_put(contents(shape, dtype), sharding)
    assert_same_bits(x, contents(shape, dtype))

    def read(engine: Any, x: Any, given: Any) -> Any:
        selection = select(shape, join(given), writing=False, mode=mode, wrap=wrap)
        return engine.read(x, Home(shape, sharding), selection)

    got, wanted = engines(layout, read, x, operands)
    assert_same_bits(got, wanted)
    assert got.sharding.is_equivalent_to(wanted.sharding, got.ndim)


VALUES = ["scalar", "full", "thin"]


def place_value(value: np.ndarray, where: str, sharding: NamedSharding) -> jax.Array:
    """A value replicated, split like the array's last axes, or otherwise; where it divides."""
    names = list(sharding.mesh.axis_names)
    if where == "as the array":
        entries = list(sharding.spec)[-value.ndim :] if value.ndim else []
    elif where == "otherwise":
        entries = names[::-1][: value.ndim]
    else:
        entries = []
    sizes = dict(sharding.mesh.shape)

    def fits(entry: Any, n: int) -> bool:
        axes = entry if isinstance(entry, tuple) else (entry,)
        return entry is not None and n % int(np.prod([sizes[a] for a in axes])) == 0

    entries += [None] * (value.ndim - len(entries))
    spec = P(*(e if fits(e, n) else None for e, n in zip(entries, value.shape, strict=True)))
    return jax.device_put(value, NamedSharding(sharding.mesh, spec))


@every_layout
@settings(max_examples=5 * DEPTH)
@given(data=st.data())
def test_writes(layout: tuple[str, str], data: st.DataObject) -> None:
    shape, sharding = LAYOUTS[layout]
    dtype = data.draw(st.sampled_from(DTYPES))
    # Min and max of complex numbers are no operations of XLA's scatters.
    ops = ["set", "set", "add", "multiply"] + (["min", "max"] if dtype != np.complex64 else [])
    op = data.draw(st.sampled_from(ops))
    join, operands = data.draw(any_index(shape))
    mode = data.draw(st.sampled_from([None, "clip", "drop"]))
    wrap = mode is None or data.draw(st.booleans())  # without both, lists may raise
    # Sums of NaNs and of floats that round depend on the order; these numbers do neither.
    x = contents(shape, dtype) if op == "set" else np.nan_to_num(contents(shape, dtype), posinf=2)
    x = jax.device_put(x.astype(dtype), sharding)
    taken = jax.eval_shape(
        lambda given: _gather.read(
            jnp.zeros(shape), Home(shape, None), select(shape, join(given), writing=False)
        ),
        operands,
    )
    form = data.draw(st.sampled_from(VALUES))
    given_shape = {"scalar": (), "full": taken.shape, "thin": taken.shape[1:]}[form]
    value = contents(given_shape, np.int32) + 2
    value = place_value(
        value.astype(dtype),
        data.draw(st.sampled_from(["replicated", "as the array", "otherwise"])),
        sharding,
    )

    def write(engine: Any, x: Any, given: Any, value: Any) -> Any:
        selection = select(shape, join(given), writing=True, mode=mode, wrap=wrap)
        return engine.write(x, Home(shape, sharding), selection, value, op)

    got, wanted = engines(layout, write, x, operands, value)
    assert_same_bits(got, wanted)
    assert got.sharding.is_equivalent_to(sharding, got.ndim)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.complex64], ids=str)
def test_bits_that_are_not_written_stay(kind: str, dtype: Any) -> None:
    """An accumulation leaves alone what it does not name: -0.0 + 0.0 would be 0.0."""
    shape, sharding = LAYOUTS[kind, "4x2"]
    zeros = -np.zeros(shape, dtype)
    x = np.where(np.arange(6) % 2, zeros, contents(shape, dtype)).astype(dtype)
    at = np.array([1, 6, 9], np.int32)
    for op in (mu.MutableArray.add_at, mu.MutableArray.multiply_at):
        m = mu.mutable_array(x, sharding)

        def work(m: Any, k: Any, at: Any, op: Any = op) -> None:
            op(m, mu.ds(k, 3), 1)
            op(m, (at, mu.ds(k, 3)), 1)
            op(m, (at, slice(1, 4)), 1)
            op(m, (mu.ds(k, 2, 2), at[:1]), 1)

        jax.jit(work)(m, 2, at)
        named = np.zeros(shape, bool)
        named[2:5] = named[[[1], [6]], [2, 3, 4]] = named[[[1], [6]], [1, 2, 3]] = True
        named[[2, 4], 1] = True
        got = np.asarray(m[...])
        np.testing.assert_array_equal(bits(got[~named]), bits(x[~named]))


OPS = [(np.float32, op) for op in ("add", "multiply", "min", "max")]
OPS += [(np.complex64, op) for op in ("add", "multiply")]


@pytest.mark.parametrize(("dtype", "op"), OPS)
def test_what_is_not_named_keeps_its_bits(dtype: Any, op: str) -> None:
    """Also what lies in a window beside index arrays, where CPUs would take a denormal for 0."""
    shape, sharding = LAYOUTS["auto", "2x2x2"]
    x = contents(shape, dtype)
    named = np.zeros(shape, bool)
    named[0:1, [1, 1]] = True

    def write(x: jax.Array, k: Any, at: Any) -> jax.Array:
        selection = select(shape, (mu.ds(k, 1), at), writing=True)
        return _traced.write(x, Home(shape, sharding), selection, jnp.ones((), dtype), op)

    got = jax.jit(write)(jax.device_put(x, sharding), 0, np.array([1, 1]))
    assert_same_bits(np.asarray(got)[~named], x[~named])


@pytest.mark.parametrize("kind", KINDS)
def test_an_integer_takes_away_a_split_dimension_of_one_element(kind: str) -> None:
    """It takes the dimension whole, but leaves no axis that could stay split."""
    axes = Mesh(np.array(jax.devices()[:1]), ("a",), axis_types=(KINDS[kind],))
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    m = mu.mutable_array(x, NamedSharding(axes, P("a")))
    read = jax.jit(lambda m: (m[0], m[-1, 1:3], m[None, 0]))
    for got, expected in zip(read(m), (x[0], x[-1, 1:3], x[None, 0]), strict=True):
        np.testing.assert_array_equal(got, expected)
    jax.jit(lambda m: m.__setitem__(0, 7))(m)
    np.testing.assert_array_equal(m[...], np.full((1, 4), 7))
