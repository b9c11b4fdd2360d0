"""Operators, conversions and iteration: the oracle is what JAX does with the same values."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mutarray as mu
from tests.support import KINDS, layouts

BINARY = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod),
    *(operator.pow, divmod, operator.eq, operator.ne, operator.lt, operator.le, operator.gt),
    operator.ge,
]
BITWISE = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]
DTYPES = ["bool", "uint8", "int32", "float32", "bfloat16", "complex64"]
PLACES = [("one device", "auto"), ("4x2", "auto"), ("4x2", "explicit")]


def made(name: str, kind: str, dtype: Any) -> tuple[jax.Array, mu.MutableArray]:
    """Some values under a layout, and a mutable array with the same."""
    shape, sharding = layouts(KINDS[kind])[name]
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape) % 7 + 1
    x = jax.device_put(x.astype(jnp.dtype(dtype)), sharding)
    return x, mu.mutable_array(x)


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    """The leaves of what a function gives, or the type of what it raises."""
    try:
        return jax.tree.leaves(fn(*args))
    except Exception as error:
        return type(error)


def check_same(got: Any, wanted: Any) -> None:
    if isinstance(wanted, type):
        assert got is wanted
        return
    assert not isinstance(got, type), got
    for g, w in zip(got, wanted, strict=True):
        assert type(g) is type(w)
        if isinstance(w, jax.Array):
            assert g.dtype == w.dtype and g.weak_type == w.weak_type and g.sharding == w.sharding
        np.testing.assert_array_equal(np.asarray(g), np.asarray(w))


def other_for(kind: str, x: jax.Array, dtype: Any) -> Any:
    """An operand of a sort, beside an array."""
    values = np.asarray(x)[::-1].real.astype(jnp.dtype(dtype))
    return {
        "int": 2,
        "float": 1.5,
        "bool": True,
        "scalar": jnp.dtype(dtype).type(3),
        "row": values[0],
        "numpy": values,
        "jax": jax.device_put(values, x.sharding),
    }[kind]


@pytest.mark.core
@pytest.mark.parametrize("place", PLACES, ids=lambda place: " ".join(place))
@settings(max_examples=25)
@given(st.data())
def test_binary_operators(place: tuple[str, str], data: Any) -> None:
    """With the mutable array on either side, or on both."""
    dtype, of_other = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from(DTYPES))
    x, m = made(*place, dtype)
    op = data.draw(st.sampled_from(BINARY if dtype[0] not in "biu" else BINARY + BITWISE))
    kind = data.draw(st.sampled_from(["int", "float", "bool", "scalar", "row", "numpy", "jax"]))
    other = other_for(kind, x, of_other)
    check_same(outcome(op, m, other), outcome(op, x, other))
    # NumPy would compute on the host where it stands on the left; JAX does it here.
    left = jnp.asarray(other) if isinstance(other, (np.ndarray, np.generic)) else other
    check_same(outcome(op, other, m), outcome(op, left, x))
    check_same(outcome(op, m, m), outcome(op, x, x))
    if kind == "jax":
        check_same(outcome(op, m, mu.mutable_array(other)), outcome(op, x, other))
    np.testing.assert_array_equal(m[...], x)


@pytest.mark.core
@pytest.mark.parametrize("place", PLACES, ids=lambda place: " ".join(place))
def test_operators_in_a_trace(place: tuple[str, str]) -> None:
    x, m = made(*place, "int32")
    other = np.asarray(x)[0]

    def work(a: Any) -> list[Any]:
        return [a + other, other - a, 2**a, a < other, other == a, -a, a[0] @ a[0], divmod(a, 3)]

    check_same(outcome(jax.jit(work), m), outcome(jax.jit(work), x))
    check_same(outcome(jax.jit(lambda: work(m))), outcome(jax.jit(work), x))

    def gradient(a: Any) -> Any:
        return jax.grad(lambda w: (a * w).sum() + (w - a).sum())(2.0 * other)

    check_same(outcome(gradient, m), outcome(gradient, x))
    check_same(outcome(jax.jit(gradient), m), outcome(jax.jit(gradient), x))


@pytest.mark.core
def test_matmul() -> None:
    for place in PLACES:
        x, m = made(*place, "float32")
        y = np.ones((x.shape[1], 3), np.float32)
        z = np.ones(x.shape[0], np.float32)
        check_same(outcome(operator.matmul, m, y), outcome(operator.matmul, x, y))
        check_same(outcome(operator.matmul, z, m), outcome(operator.matmul, jnp.asarray(z), x))
        check_same(outcome(lambda a: a @ a, m), outcome(lambda a: a @ a, x))


@pytest.mark.core
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "op", [operator.neg, operator.pos, abs, operator.invert, round, lambda a: round(a, 1)]
)
def test_unary_operators(op: Any, dtype: str) -> None:
    for place in PLACES:
        x, m = made(*place, dtype)
        check_same(outcome(op, m), outcome(op, x))


def test_host_memory_computes_on_the_devices() -> None:
    shape, sharding = layouts(KINDS["auto"])["4x2"]
    host = sharding.with_memory_kind("pinned_host")
    x = np.ones(shape, np.float32)
    m = mu.mutable_array(x, host)
    for value in (m + x, x + m, m + jax.device_put(x, host), m + m, m + m.T.T):
        assert value.sharding.memory_kind == "device"
        np.testing.assert_array_equal(value, x + x)
    m @= np.eye(shape[1], dtype=np.float32)
    np.testing.assert_array_equal(m, x)
    assert m.sharding == host


def test_what_no_array_can_be_combined_with() -> None:
    m = mu.zeros(3)
    for op in (operator.add, operator.matmul, operator.lt):
        for other in ("a", object(), [1, 2, 3], None):
            with pytest.raises(TypeError, match="MutableArray"):
                op(m, other)
    assert operator.eq(m, None) is False and (m != "a") is True  # as jax.Array says
    with pytest.raises(TypeError):
        operator.eq(m, [1, 2, 3])
    with pytest.raises(TypeError):
        pow(m, 2, 3)


def test_the_other_class_decides() -> None:
    class Mine:
        __array_ufunc__ = None

        def __radd__(self, other: Any) -> str:
            return type(other).__name__

    assert mu.zeros(3) + Mine() == "MutableArray"


def test_not_hashable() -> None:
    m = mu.zeros(3)
    with pytest.raises(TypeError, match="unhashable"):
        hash(m)
    assert m[...].shape == (3,) and [k for k in [m] if k is m] == [m][:1]


# Matrix products in place ------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["vector on 8", "4x2", "2x2x2"])
def test_matmul_in_place(name: str, kind: str, traced: bool) -> None:
    x, m = made(name, kind, "float32")
    n = x.shape[-1]
    right = np.eye(n, dtype=np.float32)[::-1] * 2

    def work(m: Any, right: Any) -> None:
        m @= right

    run = jax.jit(work) if traced else work
    wanted = np.asarray(x)
    others = [right, jnp.asarray(right), mu.mutable_array(right)]
    for other in others[:2] if traced else others:  # JAX has one set of devices for a program
        run(m, other)
        wanted = wanted @ right
        np.testing.assert_array_equal(m, wanted)
    assert m.sharding == x.sharding and m[...].sharding == x.sharding


def test_matmul_in_place_keeps_shape_and_dtype() -> None:
    m = mu.ones((2, 2), "int32")
    for other, error, message in [
        (np.ones((2, 3), np.int32), ValueError, r"gives shape \(2, 3\)"),
        (np.ones(2, np.int32), ValueError, r"gives shape \(2,\)"),
        (np.ones((2, 2), np.float32), TypeError, "same_kind"),
        ("a", TypeError, "holds no numbers"),
    ]:
        with pytest.raises(error, match=message):
            m @= other
    assert m[...].tolist() == [[1, 1], [1, 1]]


# To Python ---------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.parametrize("to", [bool, int, float, complex, operator.index, str, format, np.asarray])
@pytest.mark.parametrize("value", [0, 3, True, 2.5, [1], [[2.0]], [], [1, 2]])
def test_conversions(to: Any, value: Any) -> None:
    m = mu.mutable_array(jnp.array(value))
    wanted = outcome(to, m[...])
    if to in (str, format) and (to is str or m.ndim):
        assert to(m).startswith("MutableArray(")
    else:
        check_same(outcome(to, m), wanted)


def test_format() -> None:
    m = mu.mutable_array(2.5)
    assert f"{m:.3f} {m}" == "2.500 2.5"
    with pytest.raises(TypeError, match=r"'.2f' is for one number.*\(3,\)"):
        format(mu.zeros(3), ".2f")
    seen = []
    jax.jit(lambda m: seen.append(f"{m}"))(m)
    assert seen == ["MutableArray(float32[], cpu:0, device, traced)".replace("cpu:0", seen_at(m))]
    with pytest.raises(TypeError, match="no value inside a trace"):
        jax.jit(lambda m: format(m, ".2f"))(m)


def seen_at(m: mu.MutableArray) -> str:
    return str(next(iter(m.devices())))


@pytest.mark.core
def test_iteration() -> None:
    for place in PLACES:
        x, m = made(*place, "float32")
        for got, wanted in ((list(m), list(x)), (list(reversed(m)), list(x)[::-1])):
            assert all(isinstance(row, jax.Array) for row in got)
            np.testing.assert_array_equal(np.stack(got), np.stack(wanted))
        assert 3.0 in m and 100.0 not in m and np.float32(3) in m
        a, *_ = m
        np.testing.assert_array_equal(a, x[:1][0] if place[1] == "auto" else np.asarray(x)[0])
    for ask in (iter, reversed):
        with pytest.raises(TypeError, match="0-d"):
            ask(mu.zeros(()))
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.jit(lambda m: 3.0 in m)(m)


def test_rows_come_as_they_are_in_their_turn() -> None:
    x, m = np.zeros(3, np.float32), mu.zeros(3)
    for a in (x, m):
        seen = []
        for value in a:
            seen.append(float(value))
            a[...] = 1.0
        assert seen == [0, 1, 1]


# Copies ------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda m: m.copy()])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: " ".join(place))
def test_copies(place: tuple[str, str], copied: Any) -> None:
    x, m = made(*place, "float32")
    k = copied(m)
    assert isinstance(k, mu.MutableArray) and k is not m and k.sharding is m.sharding
    k[0] = -1.0
    np.testing.assert_array_equal(m, x)
    np.testing.assert_array_equal(k[1:], x[1:] if place[1] == "auto" else np.asarray(x)[1:])
    assert float(np.asarray(k)[0, 0]) == -1

    @jax.jit
    def work(m: Any) -> Any:
        k = copied(m)
        k[0] = -2.0
        return m[...], k[...]

    same, changed = work(m)
    np.testing.assert_array_equal(same, x)
    assert float(np.asarray(changed)[0, 0]) == -2 and changed.sharding == x.sharding
    tree = copy.deepcopy({"a": [m]})
    assert tree["a"][0] is not m


def test_copies_of_keys_and_of_arrays_in_host_memory() -> None:
    keys = mu.mutable_array(jax.random.split(jax.random.key(0), 4))
    assert (keys.copy() == keys).all()
    shape, sharding = layouts(KINDS["auto"])["4x2"]
    m = mu.zeros(shape, sharding=sharding.with_memory_kind("pinned_host"))
    k = m.copy()
    k[0] = 1.0
    assert k.sharding is m.sharding and float(m.sum()) == 0 and float(k.sum()) == shape[1]
