"""A small write in a loop rewrote the whole buffer: work that should be linear was quadratic.

https://github.com/jax-ml/jax/issues/40101,
https://github.com/QuantEcon/lecture-python-programming/issues/622.

Nothing is timed here: a round of the compiled loop must not go through the buffer, and its
temporary memory must not grow with it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import mutarray as mu
from mutarray._jaxapi import make_single_device_sharding
from tests import hlo
from tests.cases.support import KINDS, rows, same_sharding

pytestmark = pytest.mark.core

PLACES = [None, *KINDS]
LENGTHS = (4096, 65536)


def place(kind: str | None) -> Any:
    return make_single_device_sharding(jax.devices()[0]) if kind is None else rows(kind)


def recurrence(m: mu.MutableArray, n: int) -> None:
    """The lecture's: each element from the one before."""

    def body(t: Any, carry: Any) -> Any:
        m[t + 1] = m[t] * 0.5 + 1
        return carry

    lax.fori_loop(0, n - 1, body, 0)


def by_scan(m: mu.MutableArray, n: int) -> None:
    lax.scan(lambda c, t: (c * 0.5 + 1, m.__setitem__(t, c)), 0.0, jnp.arange(n))


def short_windows(m: mu.MutableArray, n: int) -> None:
    """256 to 480 bytes were the limit between the fast and the slow way."""

    def body(t: Any, carry: Any) -> Any:
        m[mu.ds(t, 20)] = m[mu.ds(t + 40, 20)] + 1
        m[mu.ds(t + 7, 100)] += 1
        return carry

    lax.fori_loop(0, n - 60, body, 0)


def points(m: mu.MutableArray, n: int) -> None:
    def body(t: Any, carry: Any) -> Any:
        m[jnp.stack([t, n - 1 - t])] = 1.0
        m.add_at(t, 2.0)
        return carry

    lax.fori_loop(0, n // 2, body, 0)


WORK: dict[str, Callable[[mu.MutableArray, int], None]] = {
    f.__name__: f for f in (recurrence, by_scan, short_windows, points)
}


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("name", WORK)
def test_a_round_does_not_touch_the_buffer(name: str, kind: str | None) -> None:
    temporary = []
    for n in LENGTHS:
        m = mu.mutable_array(jax.device_put(jnp.zeros(n), place(kind)))
        compiled = jax.jit(lambda m, n=n: WORK[name](m, n)).lower(m).compile()
        block = int(np.prod(m.sharding.shard_shape(m.shape))) * 4
        assert hlo.in_loops(compiled), "there is a loop to look at"
        # `by_scan` walks over an arange of its own, one element a round.
        assert not hlo.rewrites_in_loops(compiled, min(block, 2048))
        assert not [c for c in hlo.copies(compiled) if c.nbytes >= block]
        assert hlo.aliased(compiled) == block
        temporary.append(hlo.temporary(compiled) - (4 * n if name == "by_scan" else 0))
    assert max(temporary) < 4096, temporary


@pytest.mark.parametrize("kind", PLACES)
def test_values(kind: str | None) -> None:
    n = 64
    m = mu.mutable_array(jax.device_put(jnp.zeros(n), place(kind)))
    jax.jit(lambda m: recurrence(m, n))(m)
    wanted = np.zeros(n, np.float32)
    for t in range(n - 1):
        wanted[t + 1] = wanted[t] * 0.5 + 1
    np.testing.assert_array_equal(m[...], wanted)
    assert float(m[n - 1]) == 2.0
    assert same_sharding(m, place(kind))
