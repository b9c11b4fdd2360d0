"""https://github.com/jax-ml/jax/issues/18263: a replay buffer bigger than one device.

It has to be born in shards: made on the default device and moved from there, it does not fit.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mutarray as mu
from tests.support import KINDS, P, mesh

pytestmark = pytest.mark.core

R = 4096


def largest_buffer() -> int:
    """Bytes of the largest single-device buffer that is alive."""
    return max((s.data.nbytes for x in jax.live_arrays() for s in x.addressable_shards), default=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory", ["device", "pinned_host"])
def test_it_is_born_and_written_in_shards(kind: str, memory: str) -> None:
    rows = jax.sharding.NamedSharding(mesh((4,), "d", KINDS[kind]), P("d"), memory_kind=memory)
    before = largest_buffer()
    m = mu.zeros((4 * R, 128), jnp.float32, sharding=rows)
    if memory == "device":
        m[4 * R - 1] = 1.0
        assert float(m[0].sum()) == 0.0
        assert float(m[4 * R - 1].sum()) == 128.0
    assert largest_buffer() <= max(before, R * 128 * 4)
    assert [s.data.nbytes for s in m.addressable_shards] == [R * 128 * 4] * 4


def test_no_program_holds_more_than_a_shard() -> None:
    rows = jax.sharding.NamedSharding(mesh((4,), "d"), P("d"))
    fill = jax.jit(lambda: jnp.zeros((4 * R, 128)), out_shardings=rows)
    memory = fill.lower().compile().memory_analysis()
    m = mu.zeros((4 * R, 128), sharding=rows)
    assert memory.output_size_in_bytes + memory.temp_size_in_bytes <= 1.01 * R * 128 * 4
    np.testing.assert_array_equal(m[4 * R - 1], np.zeros(128))
