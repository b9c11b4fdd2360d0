"""The gradient through an overwrite crashed, and the first mend returned a wrong one.

https://github.com/jax-ml/jax/issues/33987, https://github.com/jax-ml/jax/pull/35217
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mutarray as mu
from tests.cases.support import KINDS, on_mesh, rows

pytestmark = pytest.mark.core

runs = pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])


@runs
def test_an_overwrite_cuts_the_gradient(run: Any) -> None:
    def f(x: Any) -> Any:
        m = mu.mutable_array(x)
        m[()] = jnp.ones_like(x)
        return m[()]

    assert float(run(jax.grad(f))(3.0)) == 0.0
    value, gradient = run(jax.value_and_grad(f))(3.0)
    assert float(value) == 1.0 and float(gradient) == 0.0


@runs
def test_a_chain_of_writes(run: Any) -> None:
    def g(x: Any) -> Any:
        m = mu.mutable_array(x)
        m[0] = m[0] ** 2
        m[1] = m[0] * m[1]
        return m[...].sum()

    def with_at(x: Any) -> Any:
        x = x.at[0].set(x[0] ** 2)
        return x.at[1].set(x[0] * x[1]).sum()

    x = jnp.array([2.0, 3.0])
    assert run(jax.grad(g))(x).tolist() == [16.0, 4.0]
    assert run(jax.grad(g))(x).tolist() == jax.grad(with_at)(x).tolist()
    assert float(g(x)) == float(with_at(x)) == 16.0


# Each pair is the same function, once with a mutable array and once with JAX's functional updates.
# The first takes parts of its argument by `part`: on an explicit mesh, JAX's own indexing refuses.


def part(x: Any, index: Any) -> Any:
    return mu.mutable_array(x)[index]


def _overwrite_twice(x: Any) -> Any:
    m = mu.mutable_array(x)
    m[2:6] = m[0:4] * m[1]
    m[2] = 0.0
    m[::-3] = m[::3] + part(x, slice(None, None, 3))
    return (m[...] ** 2).sum()


def _overwrite_twice_at(x: Any) -> Any:
    y = x.at[2:6].set(x[0:4] * x[1])
    y = y.at[2].set(0.0)
    y = y.at[::-3].set(y[::3] + x[::3])
    return (y**2).sum()


def _swap(x: Any) -> Any:
    m = mu.mutable_array(x)
    old = mu.swap(m, [1, 6], part(x, slice(0, 2)) ** 2)
    m[0] = 1.0
    return (old * 3).sum() + jnp.sin(m[...]).sum()


def _swap_at(x: Any) -> Any:
    i = jnp.array([1, 6])
    return (x[i] * 3).sum() + jnp.sin(x.at[i].set(x[:2] ** 2).at[0].set(1.0)).sum()


def _accumulate(x: Any) -> Any:
    m = mu.mutable_array(jnp.zeros_like(x))
    mu.addupdate(m, [3, 3, 5], part(x, slice(0, 3)) ** 2)
    m[5] = m[5] * part(x, 7)
    return (m[...] * x).sum()


def _accumulate_at(x: Any) -> Any:
    y = jnp.zeros(8).at[jnp.array([3, 3, 5])].add(x[:3] ** 2)
    return (y.at[5].set(y[5] * x[7]) * x).sum()


def _duplicates(x: Any) -> Any:
    m = mu.mutable_array(x)
    m[jnp.array([1, 1, 4])] = part(x, slice(5, 8)) ** 2
    return (m[...] ** 2).sum()


def _duplicates_at(x: Any) -> Any:
    return (x.at[jnp.array([1, 4])].set(x[6:] ** 2) ** 2).sum()


def _whole(x: Any) -> Any:
    m = mu.mutable_array(x)
    m[...] = m[...] * 2
    m[x > 3] = 0.0
    return (m[...] * x).sum()


def _whole_at(x: Any) -> Any:
    return (jnp.where(x > 3, 0.0, x * 2) * x).sum()


def _unplaced(x: Any) -> Any:
    m = mu.zeros(8)
    m[1:4] = part(x, slice(0, 3))
    return (m[...] ** 2).sum()


def _unplaced_at(x: Any) -> Any:
    return (jnp.zeros(8).at[1:4].set(x[:3]) ** 2).sum()


PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "overwrite twice": (_overwrite_twice, _overwrite_twice_at),
    "swap": (_swap, _swap_at),
    "accumulate": (_accumulate, _accumulate_at),
    "duplicates": (_duplicates, _duplicates_at),
    "whole and mask": (_whole, _whole_at),
    "made without a place": (_unplaced, _unplaced_at),
}
X = np.arange(8, dtype=np.float32) / 2 + 1


@functools.cache
def by_functional_updates(pair: str) -> tuple[Any, Any, Any]:
    """Value, gradient, and value with tangent, of the second function of a pair."""
    functional = PAIRS[pair][1]
    value, gradient = jax.jit(jax.value_and_grad(functional))(X)
    return value, gradient, jax.jit(lambda x: jax.jvp(functional, (x,), (x,)))(X)


# Eager transformations are slow, and go by the same rules: every pair once, and one on each mesh.
WAYS: list[tuple[str, str | None, Any]] = [
    *((pair, kind, jax.jit) for pair in PAIRS for kind in (None, *KINDS)),
    *((pair, None, lambda f: f) for pair in PAIRS),
    *(("overwrite twice", kind, lambda f: f) for kind in KINDS),
]


@pytest.mark.parametrize(("pair", "kind", "run"), WAYS)
def test_as_with_functional_updates(pair: str, kind: str | None, run: Any) -> None:
    mutable = PAIRS[pair][0]
    x = jnp.asarray(X)
    wanted_value, wanted, tangent = by_functional_updates(pair)
    if kind is not None:
        x = jax.device_put(x, rows(kind))
    with on_mesh(x.sharding):
        value, gradient = run(jax.value_and_grad(mutable))(x)
        got = run(lambda x: jax.jvp(mutable, (x,), (x,)))(x)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-6)
    np.testing.assert_allclose(value, wanted_value, rtol=1e-6)
    np.testing.assert_allclose(got, tangent, rtol=1e-6)
    if kind == "explicit":
        assert gradient.sharding == x.sharding
