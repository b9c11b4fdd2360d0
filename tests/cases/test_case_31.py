"""https://github.com/instadeepai/flashbax/issues/6 and #17: each `add` doubled the memory.

A replay buffer in host memory was copied whole for every batch that went into it.
"""

from __future__ import annotations

import resource

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

import mutarray as mu
from tests.support import P, mesh
from tests.test_eager import pointers

pytestmark = pytest.mark.core


def peak() -> int:
    """The most bytes that this process ever had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("split", [False, True], ids=["1 device", "4 devices"])
def test_adding_keeps_the_buffers_where_they_are(split: bool) -> None:
    sharding = NamedSharding(mesh((4,), "d"), P("d")) if split else None
    m = mu.mutable_array(jnp.zeros((1_000_000, 16)), sharding)
    m[0:8] = 0.0
    where, most = pointers(m), peak()
    for i in range(50):
        m[8 * i : 8 * i + 8] = float(i)
    assert pointers(m) == where
    assert peak() - most < 16e6
    np.testing.assert_array_equal(m[392:400], np.full((8, 16), 49.0))
