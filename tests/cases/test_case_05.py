"""Inside of jit, the value read from an array on an explicit mesh had lost its sharding type.

https://github.com/jax-ml/jax/issues/26936, https://github.com/jax-ml/jax/pull/26979
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mutarray as mu
from tests.cases.support import P, grid, named, same_sharding

pytestmark = pytest.mark.core


def explicit(dtype: Any = jnp.int32) -> mu.MutableArray:
    x = jnp.arange(16, dtype=dtype).reshape(4, 4)
    return mu.mutable_array(jax.device_put(x, grid("explicit")))


def test_the_type_of_the_whole() -> None:
    m, seen = explicit(), []
    out = jax.jit(lambda m: seen.append(jax.typeof(m[...])) or m[...] + 1)(m)
    assert seen[0].sharding.spec == P("x", "y")
    assert seen[0].shape == (4, 4) and seen[0].dtype == jnp.int32
    assert str(seen[0]) == "int32[4@x,4@y]"
    assert out.sharding == grid("explicit")
    np.testing.assert_array_equal(out, np.arange(16).reshape(4, 4) + 1)


@pytest.mark.parametrize(
    ("index", "spec"),
    [
        ((slice(None), 1), P("x")),
        (1, P("y")),
        (slice(0, 2), P("x", "y")),
        (slice(1, 4), P(None, "y")),
        ((slice(None), np.array([3, 0])), P("x", None)),
        (np.array([3, 0]), P(None, "y")),
        ((2, 2), P()),
        ((slice(None), None), P("x", None, "y")),
        (slice(None, None, -1), P("x", "y")),
    ],
    ids=str,
)
def test_the_type_of_a_part(index: Any, spec: P) -> None:
    m, seen = explicit(), []
    out = jax.jit(lambda m: seen.append(jax.typeof(m[index])) or m[index] * 1)(m)
    wanted = np.arange(16).reshape(4, 4)[index]
    np.testing.assert_array_equal(out, wanted)
    np.testing.assert_array_equal(m[index], wanted)
    full = tuple(spec) + (None,) * (wanted.ndim - len(spec))
    assert tuple(seen[0].sharding.spec) == full
    assert out.sharding.is_equivalent_to(jax.NamedSharding(grid("explicit").mesh, spec), out.ndim)
    assert m[index].sharding.is_equivalent_to(out.sharding, out.ndim)


def test_the_type_is_kept_over_writes_and_through_inner_functions() -> None:
    m, seen = explicit(), []

    def body(i: Any, carry: Any) -> Any:
        m[i] = m[i] + 1
        seen.append(jax.typeof(m[...]))
        return carry

    def step(v: Any) -> Any:
        m[:, 1] = v
        seen.append(jax.typeof(m[...]))
        jax.lax.fori_loop(0, 4, body, 0)
        seen.append(jax.typeof(m[...]))

    jax.jit(step)(jnp.zeros(4, jnp.int32))
    assert len(seen) >= 3 and all(t.sharding.spec == P("x", "y") for t in seen)
    assert same_sharding(m, grid("explicit"))
    wanted = np.arange(16).reshape(4, 4)
    wanted[:, 1] = 0
    np.testing.assert_array_equal(m[...], wanted + 1)


def test_an_array_made_inside_has_the_type_of_its_value() -> None:
    seen = []

    def make(x: Any) -> Any:
        m = mu.mutable_array(x)
        m[0] = 0
        seen.append(jax.typeof(m[...]))
        seen.append(m.sharding.spec)
        return m[...]

    out = jax.jit(make)(explicit()[...])
    assert seen[0].sharding.spec == P("x", "y") and seen[1] == P("x", "y")
    assert out.sharding == grid("explicit")


def test_a_mesh_that_is_explicit_in_part() -> None:
    devices = np.array(jax.devices()[:4]).reshape(2, 2)
    kinds = (jax.sharding.AxisType.Explicit, jax.sharding.AxisType.Auto)
    mesh = jax.sharding.Mesh(devices, ("x", "y"), axis_types=kinds)
    s = jax.NamedSharding(mesh, P("x", "y"))
    m, seen = mu.mutable_array(np.arange(16.0, dtype=np.float32).reshape(4, 4), s), []
    m[0, 0] = 7
    out = jax.jit(lambda m: seen.append(jax.typeof(m[...])) or m[1] * 1)(m)
    jax.jit(lambda m: m.__setitem__((slice(None), 1), 5.0))(m)
    assert tuple(seen[0].sharding.spec) == ("x", None), "only explicit axes are in the type"
    np.testing.assert_array_equal(out, [4, 5, 6, 7])
    assert same_sharding(m, s)


def test_a_value_on_the_other_kind_of_mesh() -> None:
    m = explicit()
    m[1] = jax.device_put(jnp.arange(4, dtype=jnp.int32), named("auto", {"x": 2, "y": 2}, "y"))
    np.testing.assert_array_equal(m[1], np.arange(4))
    assert same_sharding(m, grid("explicit"))
