"""A compiled function that writes a closed-over mutable array failed when it was called.

https://github.com/jax-ml/jax/issues/26354, https://github.com/jax-ml/jax/pull/30613
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mutarray as mu
from tests.cases.support import KINDS, grid, rows, same_sharding

pytestmark = pytest.mark.core


def test_a_scalar_by_closure() -> None:
    m = mu.mutable_array(jnp.uint32(0))

    def f(x: Any) -> Any:
        m[()] = jnp.uint32(7)
        return x + 1

    compiled = jax.jit(f).lower(jnp.float32(4)).compile()
    assert int(m[()]) == 0, "to compile is not to run"
    assert float(compiled(jnp.float32(4))) == 5.0 and int(m[()]) == 7


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["argument", "closure"])
def test_a_sharded_array(kind: str, by: str) -> None:
    m = mu.mutable_array(jax.device_put(jnp.zeros((4, 4)), grid(kind)))

    def step(m: mu.MutableArray, i: Any) -> Any:
        old = m[i]
        m[i] += 1
        m[:, 0] = -1
        return old

    if by == "argument":
        compiled = jax.jit(step).lower(m, 0).compile()
        call = lambda i: compiled(m, i)  # noqa: E731
    else:
        compiled = jax.jit(lambda i: step(m, i)).lower(0).compile()
        call = compiled
    np.testing.assert_array_equal(m[...], np.zeros((4, 4)))
    wanted = np.zeros((4, 4))
    for i in (0, 3, 3, 1):
        np.testing.assert_array_equal(call(i), wanted[i])
        wanted[i] += 1
        wanted[:, 0] = -1
        np.testing.assert_array_equal(m[...], wanted)
        m[2, 2] += 1  # eager work between the calls is seen by the next
        wanted[2, 2] += 1
    assert same_sharding(m, grid(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_another_array_of_the_same_type(kind: str) -> None:
    a, b = (mu.mutable_array(jax.device_put(jnp.zeros(8), rows(kind))) for _ in range(2))
    compiled = jax.jit(lambda m, v: m.__setitem__(5, v)).lower(a, 1.0).compile()
    compiled(b, 3.0)
    assert float(a[5]) == 0 and float(b[5]) == 3
    snapshot = b[...]
    compiled(b, 4.0)
    assert np.asarray(snapshot)[5] == 3 and float(b[5]) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_the_program_writes_in_place(kind: str) -> None:
    """The buffers of an argument are donated: the program's output is aliased to its input."""
    m = mu.mutable_array(jax.device_put(jnp.zeros((16, 8)), rows(kind)))
    compiled = jax.jit(lambda m: m.__setitem__(..., m[...] + 1)).lower(m).compile()
    assert compiled.memory_analysis().alias_size_in_bytes >= 4 * 8 * 4
    compiled(m)
    np.testing.assert_array_equal(m[...], np.ones((16, 8)))
