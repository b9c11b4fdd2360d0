"""In-place arithmetic of whole arrays, and ufunc.at, against NumPy."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mutarray as mu
from tests.support import KINDS, layouts
from tests.test_eager import pointers

OPERATORS = [
    operator.iadd,
    operator.isub,
    operator.imul,
    operator.itruediv,
    operator.ifloordiv,
    operator.imod,
    operator.ipow,
]
INTEGER_OPERATORS = [
    operator.iand,
    operator.ior,
    operator.ixor,
    operator.ilshift,
    operator.irshift,
    operator.iadd,
    operator.ifloordiv,
]
LAYOUTS = ["one device", "rows on 8", "4x2", "4x2, replicated", "scalar", "empty"]


def both(shape: tuple[int, ...], sharding: Any, dtype: Any) -> tuple[np.ndarray, mu.MutableArray]:
    x = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 7 + 1).astype(dtype)
    return x, mu.mutable_array(jnp.asarray(x), sharding)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_operators(name: str, kind: str, traced: bool) -> None:
    shape, sharding = layouts(KINDS[kind])[name]
    chosen = [(op, np.float32) for op in OPERATORS] if name == "4x2" else [(operator.iadd, "f4")]
    chosen += [(op, np.int32) for op in INTEGER_OPERATORS] if name == "4x2" else []
    for op, dtype in chosen:
        x, m = both(shape, sharding, dtype)
        others: list[Any] = [2, np.full(shape[-1:], 3, dtype), jnp.full(shape, 2, dtype)]
        for other in others:
            run = jax.jit(lambda m, o, op=op: (op(m, o), None)[1]) if traced else op
            run(m, other)
            x = op(x, np.asarray(other) if isinstance(other, jax.Array) else other)
            np.testing.assert_allclose(np.asarray(m[...]), x, rtol=1e-5)
        assert m.sharding is sharding
        assert m[...].sharding == sharding
        assert m.dtype == dtype


def test_the_name_stays_bound_to_the_array() -> None:
    m = mu.zeros(4)
    same = m
    m += 1
    assert m is same
    m[1:3] += 5
    assert m[...].tolist() == [1, 6, 6, 1]


def test_in_place_where_it_lies() -> None:
    shape, sharding = layouts(KINDS["auto"])["4x2"]
    _, m = both(shape, sharding, np.float32)
    m += 1.0
    where = pointers(m)
    m += 1.0
    m *= np.float32(2)
    m.fill(3)
    assert pointers(m) == where
    held = m[...]
    m -= 1.0
    assert float(held.sum()) == 3.0 * m.size
    assert np.asarray(m[...]).tolist() == np.full(shape, 2.0).tolist()


@pytest.mark.parametrize(
    ("op", "other", "error", "message"),
    [
        (operator.itruediv, 2, TypeError, "same_kind"),
        (operator.iadd, 1.5, TypeError, "same_kind"),
        (operator.iadd, np.ones(3, np.int32), ValueError, "could not broadcast"),
        (operator.iadd, np.ones((2, 8, 6), np.int32), ValueError, "could not broadcast"),
        (operator.iadd, "x", TypeError, "holds no numbers"),
    ],
)
def test_what_does_not_fit_leaves_it_alone(
    op: Callable[..., Any], other: Any, error: Any, message: str
) -> None:
    shape, sharding = layouts(KINDS["auto"])["4x2"]
    x, m = both(shape, sharding, np.int32)
    with pytest.raises(error, match=message):
        op(m, other)
    np.testing.assert_array_equal(np.asarray(m[...]), x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", [[0, 3, 0], (slice(None), [1, 1]), 2, slice(1, 7, 2)], ids=str)
def test_at(kind: str, index: Any) -> None:
    for method, ufunc in [
        ("add_at", np.add),
        ("multiply_at", np.multiply),
        ("min_at", np.minimum),
        ("max_at", np.maximum),
    ]:
        shape, sharding = layouts(KINDS[kind])["4x2"]
        x, m = both(shape, sharding, np.float32)
        getattr(m, method)(index, 3.0)
        jax.jit(lambda m, method=method: getattr(m, method)(index, 2.0))(m)
        ufunc.at(x, index, np.float32(3))
        ufunc.at(x, index, np.float32(2))
        np.testing.assert_array_equal(np.asarray(m[...]), x)
        assert m[...].sharding == sharding
