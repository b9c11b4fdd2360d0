"""Gradients through in-place writes to sharded arrays equal those of `.at[]`, in double precision.

Each pair is one function, with a mutable array that is made inside and with JAX's functional
updates of an array on one device. Its arguments are differentiated: contents and written values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding

import mutarray as mu
from tests.cases.support import on_mesh
from tests.support import KINDS, P, mesh

SHAPE = (8, 6)
X = np.linspace(-1.5, 2, 48).reshape(SHAPE)
V = np.linspace(0.5, 1.7, 18).reshape(3, 6)
K = np.int32(3)
ZERO = np.int32(0)
AT = np.array([6, 1, 3], np.int32)

pytestmark = pytest.mark.core


@pytest.fixture(autouse=True)
def _double_precision() -> Iterator[None]:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def sharding(kind: str) -> NamedSharding:
    return NamedSharding(mesh((4, 2), "ij", KINDS[kind]), P("i", "j"))


def placed(kind: str) -> tuple[jax.Array, jax.Array]:
    """The contents and the value.

    On an explicit mesh they are split alike: JAX 0.12 fails to add up the gradients of a value that
    meets both split and whole arrays, ``grad(lambda x, v: (x * v).sum() + v.sum())``.
    """
    s = sharding(kind)
    v = NamedSharding(s.mesh, P(None, "j" if kind == "explicit" else None))
    return jax.device_put(X, s), jax.device_put(V, v)


Function = Callable[..., Any]

# (m, v, k, at): the array, a value, a start and an index array; the last two are traced. What is
# read on the way is returned; of functional updates, what has become of the array as well.


def part(v: Any, index: Any) -> Any:
    """Some of a value; on an explicit mesh, JAX's own indexing refuses."""
    return mu.mutable_array(v)[index]


def windows(m: Any, v: Any, k: Any, at: Any) -> Any:
    m[mu.ds(k, 3)] = jnp.sin(v)
    m[mu.ds(k - 2, 3), mu.ds(k, 2)] *= part(v, np.s_[:, :2])
    read = m[mu.ds(k + 4, 3)]  # moved back into the array
    m[0] = 3.0
    return (read**2).sum()


def windows_at(y: Any, v: Any, k: Any, at: Any) -> Any:
    y = lax.dynamic_update_slice(y, jnp.sin(v), (k, ZERO))
    part = lax.dynamic_slice(y, (k - 2, k), (3, 2)) * v[:, :2]
    y = lax.dynamic_update_slice(y, part, (k - 2, k))
    read = lax.dynamic_slice(y, (k + 4, ZERO), (3, 6))
    return y.at[0].set(3.0), (read**2).sum()


def rows(m: Any, v: Any, k: Any, at: Any) -> Any:
    old = m[k]
    m[k] = old * part(v, 0)
    m[k + 1] = m[k] * m[2]
    m[:, k] = part(v, (0, 0)) * m[:, 0]
    m[k, 0] = part(v, (1, 1)) ** 2
    return old.sum() * m[7, k]


def rows_at(y: Any, v: Any, k: Any, at: Any) -> Any:
    old = y[k]
    y = y.at[k].set(old * v[0])
    y = y.at[k + 1].set(y[k] * y[2])
    y = y.at[:, k].set(v[0, 0] * y[:, 0])
    y = y.at[k, 0].set(v[1, 1] ** 2)
    return y, old.sum() * y[7, k]


def index_arrays(m: Any, v: Any, k: Any, at: Any) -> Any:
    picked = m[at]
    m[at] = v * picked
    m[at - 1, jnp.minimum(at, 5)] = part(v, np.s_[0, :3])
    m.add_at((slice(None), at[1:]), part(v, np.s_[0, :2]))
    points = m[at, at % 6]
    return (points**2).sum() + (picked * v).sum()


def index_arrays_at(y: Any, v: Any, k: Any, at: Any) -> Any:
    picked = y[at]
    y = y.at[at].set(v * picked)
    y = y.at[at - 1, jnp.minimum(at, 5)].set(v[0, :3])
    y = y.at[:, at[1:]].add(v[0, :2])
    return y, (y[at, at % 6] ** 2).sum() + (picked * v).sum()


def duplicates(m: Any, v: Any, k: Any, at: Any) -> Any:
    same = jnp.stack([k, k, k + 2])
    m[same] = v  # the last one wins, so the first has no gradient
    m.add_at(same, v * 2)
    m.add_at(same - 20, v * 7)  # out of range: dropped
    return m[same].sum()


def duplicates_at(y: Any, v: Any, k: Any, at: Any) -> Any:
    same = jnp.stack([k, k, k + 2])
    y = y.at[same[1:]].set(v[1:])
    y = y.at[same].add(v * 2)
    return y, y[same].sum()


def overwrites(m: Any, v: Any, k: Any, at: Any) -> Any:
    m[1:6:2] = v * m[0]
    m[::-1] = m[...] * 2
    m[2:] = m[:-2]
    m[...] = m[...] * m[k, 1]
    m[4:7] = v
    return mu.swap(m, mu.ds(k, 3), v * v).sum()


def overwrites_at(y: Any, v: Any, k: Any, at: Any) -> Any:
    y = y.at[1:6:2].set(v * y[0])
    y = y[::-1] * 2
    y = y.at[2:].set(y[:-2])
    y = y * y[k, 1]
    y = y.at[4:7].set(v)
    old = lax.dynamic_slice(y, (k, ZERO), (3, 6))
    return lax.dynamic_update_slice(y, v * v, (k, ZERO)), old.sum()


PAIRS: dict[str, tuple[Function, Function]] = {
    "windows": (windows, windows_at),
    "rows": (rows, rows_at),
    "index arrays": (index_arrays, index_arrays_at),
    "duplicates": (duplicates, duplicates_at),
    "overwrites": (overwrites, overwrites_at),
}


def mutable(pair: str, s: Any) -> Function:
    def f(x: Any, v: Any, k: Any, at: Any) -> Any:
        m = mu.mutable_array(x, sharding=s)
        read = PAIRS[pair][0](m, v, k, at)
        return (m[...] ** 3).sum() + read

    return f


def functional(pair: str) -> Function:
    def f(x: Any, v: Any, k: Any, at: Any) -> Any:
        y, read = PAIRS[pair][1](x, v, k, at)
        return (y**3).sum() + read

    return f


def close(got: Any, wanted: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12), got, wanted)


def both(f: Function) -> Any:
    """Value and gradient by reverse mode, and value and tangent by forward mode."""

    def run(x: Any, v: Any, k: Any, at: Any) -> Any:
        reverse = jax.value_and_grad(f, (0, 1))(x, v, k, at)
        return reverse, jax.jvp(lambda x, v: f(x, v, k, at), (x, v), (jnp.cos(x), v))

    return jax.jit(run)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pair", PAIRS)
def test_as_with_functional_updates(pair: str, kind: str) -> None:
    wanted = both(functional(pair))(X, V, K, AT)
    s = sharding(kind)
    with on_mesh(s):
        got = both(mutable(pair, s))(*placed(kind), K, AT)
    close(got, wanted)
    gradient = got[0][1][0]
    assert gradient.dtype == np.float64
    assert kind == "auto" or gradient.sharding == s
    assert np.any(np.asarray(gradient)) and np.any(np.asarray(got[0][1][1]))


WAYS: dict[str, Callable[[Function], Function]] = {
    "vjp": lambda f: lambda x, v: jax.vjp(f, x, v)[1](2.0),
    "linearize": lambda f: lambda x, v: jax.linearize(f, x, v)[1](jnp.sin(x), v),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f), (0, 1)),
    "hessian": lambda f: lambda x, v: jax.jvp(jax.grad(f, (0, 1)), (x, v), (jnp.sin(x), v)),
    "no jit": lambda f: jax.grad(f, (0, 1)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_ways_to_differentiate(way: str, kind: str) -> None:
    """All of them through a window, a row, an index array and an overwrite."""
    s = sharding(kind)

    def f(x: Any, v: Any) -> Any:
        m = mu.mutable_array(x, sharding=s)
        m[mu.ds(K, 3)] = v * m[1]
        m.add_at(AT, jnp.sin(v))
        m[4] = 1.0
        return (m[...] ** 3).sum()

    def f_at(x: Any, v: Any) -> Any:
        y = lax.dynamic_update_slice(x, v * x[1], (K, ZERO))
        return (y.at[AT].add(jnp.sin(v)).at[4].set(1.0) ** 3).sum()

    run = (lambda f: f) if way == "no jit" else jax.jit
    wanted = run(WAYS[way](f_at))(jnp.asarray(X), jnp.asarray(V))
    with on_mesh(s):
        got = run(WAYS[way](f))(*placed(kind))
    close(got, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_a_custom_vjp(kind: str) -> None:
    """One whose both passes write in place, and one that is used between writes."""
    s = sharding(kind)

    @jax.custom_vjp
    def doubled_row(x: Any, k: Any) -> Any:
        return forward(x, k)[0]

    def forward(x: Any, k: Any) -> Any:
        m = mu.mutable_array(x, sharding=s)
        m[k] *= 2
        return m[...], k

    def backward(k: Any, g: Any) -> Any:
        m = mu.mutable_array(g, sharding=s)
        m[mu.ds(k, 1)] *= 10.0  # not 2, so that it is seen to be used
        return m[...], None

    doubled_row.defvjp(forward, backward)

    def f(x: Any, v: Any, k: Any) -> Any:
        m = mu.mutable_array(x, sharding=s)
        m[mu.ds(k, 3)] = v
        m[...] = doubled_row(m[...], k + 1)
        return (m[...] ** 2).sum()

    with on_mesh(s):
        gx, gv = jax.jit(jax.grad(f, (0, 1)))(*placed(kind), K)
    wanted = 2 * X
    wanted[3:6] = 0
    close(gx, wanted)
    close(gv, 2 * V * np.array([[1.0], [2 * 10], [1.0]]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_under_grad(kind: str) -> None:
    """The array is carried over the rounds of a scan, in which windows of it are written."""
    s = sharding(kind)

    def f(x: Any, v: Any) -> Any:
        m = mu.mutable_array(x, sharding=s)

        def body(total: Any, k: Any) -> Any:
            m[mu.ds(k, 3)] = v * m[k + 3]
            return total + m[k, 1], None

        total, _ = lax.scan(body, 0.0, jnp.arange(4))
        return total + (m[...] ** 2).sum()

    def f_at(x: Any, v: Any) -> Any:
        total = 0.0
        for k in range(4):
            x = x.at[k : k + 3].set(v * x[k + 3])
            total = total + x[k, 1]
        return total + (x**2).sum()

    wanted = jax.jit(jax.value_and_grad(f_at, (0, 1)))(X, V)
    with on_mesh(s):
        got = jax.jit(jax.value_and_grad(f, (0, 1)))(*placed(kind))
    close(got, wanted)
