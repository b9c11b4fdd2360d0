"""A mutable array made inside of an eager shard_map failed with an assertion.

https://github.com/jax-ml/jax/issues/36000, https://github.com/jax-ml/jax/pull/30340
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mutarray as mu
from tests.cases.support import KINDS, P, grid, rows, same_sharding

pytestmark = pytest.mark.core

kinds = pytest.mark.parametrize("kind", KINDS)
runs = pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
WANTED = np.arange(16.0)
WANTED[::4] = 9


def over_shards(body: Callable[..., Any], kind: str, n_args: int = 1, out: Any = P("d")) -> Any:
    mesh = rows(kind).mesh
    return jax.shard_map(body, mesh=mesh, in_specs=(P("d"),) * n_args, out_specs=out)


def vector(kind: str) -> jax.Array:
    return jax.device_put(jnp.arange(16.0), rows(kind))


@kinds
@runs
def test_made_inside(kind: str, run: Any) -> None:
    def body(x: Any) -> Any:
        m = mu.mutable_array(x)
        m[0] = 9.0
        return m[...]

    out = run(over_shards(body, kind))(vector(kind))
    np.testing.assert_array_equal(out, WANTED)
    assert out.sharding == rows(kind)


@kinds
@runs
def test_passed_in(kind: str, run: Any) -> None:
    def body(m: mu.MutableArray, x: Any) -> Any:
        m[0] = 9.0
        return m[...] + x

    m = mu.mutable_array(vector(kind))
    out = run(over_shards(body, kind, 2))(m, vector(kind))
    np.testing.assert_array_equal(m[...], WANTED)
    np.testing.assert_array_equal(out, WANTED + np.arange(16))
    assert same_sharding(m, rows(kind))


@kinds
@runs
def test_passed_in_and_nothing_returned(kind: str, run: Any) -> None:
    def body(m: mu.MutableArray) -> None:
        m[1:] = m[:-1]

    m = mu.mutable_array(vector(kind))
    run(over_shards(body, kind, out=None))(m)
    np.testing.assert_array_equal(
        m[...].reshape(4, 4), np.arange(16.0).reshape(4, 4)[:, [0, 0, 1, 2]]
    )
    assert same_sharding(m, rows(kind))


@kinds
@runs
def test_the_block_that_the_body_sees(kind: str, run: Any) -> None:
    seen: list[Any] = []

    def body(m: mu.MutableArray) -> Any:
        seen.append((m.shape, m.ndim, m.size, len(m)))
        with pytest.raises(IndexError, match="size 4"):
            m[4]
        m[[0, 3]] = jax.lax.axis_index("d") * 1.0
        return m[::-1]

    m = mu.mutable_array(vector(kind))
    out = run(over_shards(body, kind))(m)
    assert (4,) in {entry[0] for entry in seen} and all(e[0] == (4,) for e in seen)
    wanted = np.arange(16.0).reshape(4, 4)
    wanted[:, [0, 3]] = np.arange(4)[:, None]
    np.testing.assert_array_equal(m[...], wanted.ravel())
    np.testing.assert_array_equal(out, wanted[:, ::-1].ravel())


@kinds
@runs
def test_with_a_loop_in_the_body(kind: str, run: Any) -> None:
    def body(m: mu.MutableArray) -> Any:
        def step(i: Any, carry: Any) -> Any:
            m[i] = m[i - 1] + 1
            return carry

        jax.lax.fori_loop(1, 4, step, 0)
        return jax.lax.psum(m[3], "d")

    m = mu.mutable_array(vector(kind))
    out = run(over_shards(body, kind, out=P()))(m)
    np.testing.assert_array_equal(m[...], np.arange(16.0))
    assert float(out) == 3 + 7 + 11 + 15


@kinds
@runs
def test_two_dimensions_and_a_replicated_argument(kind: str, run: Any) -> None:
    def body(m: mu.MutableArray, w: mu.MutableArray) -> None:
        m[:, -1] = w[0]

    s = grid(kind)
    m = mu.mutable_array(jax.device_put(jnp.zeros((4, 4)), s))
    w = mu.mutable_array(jax.device_put(jnp.arange(1.0, 3.0), jax.NamedSharding(s.mesh, P(None))))
    # On an explicit mesh JAX 0.9 takes a spec for another one if it does not name each axis.
    run(jax.shard_map(body, mesh=s.mesh, in_specs=(P("x", "y"), P(None)), out_specs=None))(m, w)
    np.testing.assert_array_equal(m[...], [[0, 1, 0, 1]] * 4)
    assert same_sharding(m, s)


@kinds
@runs
def test_a_closure_is_refused(kind: str, run: Any) -> None:
    m = mu.mutable_array(vector(kind))
    for body in (lambda x: x + m[0], lambda x: m.__setitem__(0, 1.0) or x):
        with pytest.raises(mu.errors.TraceError, match=r"shard_map.*argument"):
            run(over_shards(body, kind))(vector(kind))
    np.testing.assert_array_equal(m[...], np.arange(16.0))


@kinds
def test_a_closure_over_what_a_jit_got_or_made_is_refused(kind: str) -> None:
    x = vector(kind)
    m = mu.mutable_array(x)

    def got(m: mu.MutableArray, x: Any) -> Any:
        return over_shards(lambda x: x + m[0], kind)(x)

    def made(x: Any) -> Any:
        k = mu.mutable_array(x)
        return over_shards(lambda x: x + k[0], kind)(x)

    def written(x: Any) -> Any:
        k = mu.mutable_array(x)
        return over_shards(lambda x: k.__setitem__(0, x[0]) or x, kind)(x)

    for call in (lambda: jax.jit(got)(m, x), lambda: jax.jit(made)(x), lambda: jax.jit(written)(x)):
        with pytest.raises(mu.errors.TraceError, match=r"shard_map.*argument"):
            call()
    np.testing.assert_array_equal(m[...], np.arange(16.0))


def test_an_eager_shard_map_without_mutable_arrays_is_left_alone() -> None:
    """It is not run under a jit: the body may still look at values."""
    seen = []
    out = over_shards(lambda x: seen.append(x) or x * 2, "auto")(vector("auto"))
    np.testing.assert_array_equal(out, np.arange(16.0) * 2)
    assert not any("DynamicJaxprTrace" in str(type(x._trace)) for x in seen)
