"""A serving engine's KV cache was copied by each update, which took 28 % of the prefill.

https://github.com/sgl-project/sglang-jax/issues/65, #59 and #132. The slots are not split, the
heads are: an update needs neither a copy nor another device.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import mutarray as mu
from tests import hlo
from tests.cases.support import KINDS, named, same_sharding

pytestmark = pytest.mark.core

SLOTS, HEADS, WIDTH = 512, 8, 16
NEW = 32
AXES = {"d": 4}


def caches(kind: str, *spec: Any) -> list[mu.MutableArray]:
    sharding = named(kind, AXES, *spec)
    return [mu.zeros((SLOTS, HEADS, WIDTH), sharding=sharding) for _ in range(2)]


def update(kv: list[mu.MutableArray], slots: Any, new: list[Any]) -> None:
    for cache, values in zip(kv, new, strict=True):
        cache[slots] = values


def append(kv: list[mu.MutableArray], length: Any, new: list[Any]) -> None:
    """The slots lie side by side, from a position that is known when the program runs."""
    for cache, values in zip(kv, new, strict=True):
        cache[mu.ds(length, NEW)] = values


def attend(kv: list[mu.MutableArray], slots: Any, new: list[Any]) -> Any:
    """Writes, and reads some of what is there, in each of several layers."""

    def layer(total: Any, _: Any) -> Any:
        update(kv, slots, new)
        return total + kv[0][slots].sum() + kv[1][slots[0]].sum(), None

    return lax.scan(layer, 0.0, None, length=3)[0]


STEPS = {f.__name__: f for f in (update, append, attend)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", [(None, "d"), ("d",)], ids=["heads", "slots"])
@pytest.mark.parametrize("name", STEPS)
def test_an_update_is_in_place(name: str, spec: tuple[Any, ...], kind: str) -> None:
    kv = caches(kind, *spec)
    at = 100 if name == "append" else np.arange(100, 100 + NEW)
    value = np.arange(NEW * HEADS * WIDTH, dtype=np.float32).reshape(NEW, HEADS, WIDTH)
    new = [jax.device_put(v, named(kind, AXES, None, spec[1:] and "d")) for v in (value, -value)]
    compiled = jax.jit(STEPS[name]).lower(kv, at, new).compile()
    block = SLOTS * HEADS * WIDTH * 4 // 4
    assert hlo.aliased(compiled) == 2 * block, "both caches stay where they are"
    assert hlo.temporary(compiled) < block
    assert not [c for c in hlo.copies(compiled) if c.nbytes >= block]
    assert not hlo.rewrites_in_loops(compiled, block)
    sent = [c.nbytes for c in hlo.collectives(compiled)]
    if name == "attend":
        assert max(sent) <= value.nbytes + value[0].nbytes  # two reads, sent in one go
    else:
        assert not sent
    result = compiled(kv, at, new)
    for cache, values in zip(kv, (value, -value), strict=True):
        wanted = np.zeros((SLOTS, HEADS, WIDTH), np.float32)
        wanted[100 : 100 + NEW] = values
        np.testing.assert_array_equal(cache[...], wanted)
        assert same_sharding(cache, named(kind, AXES, *spec))
    if name == "attend":
        np.testing.assert_allclose(result, 3 * (value.sum() - value[0].sum()), rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_padded_slots_leave_the_rest_alone(kind: str) -> None:
    kv = caches(kind, None, "d")
    slots = np.array([3, -1, 5, SLOTS], np.int32)

    def step(kv: list[mu.MutableArray], slots: Any, value: Any) -> None:
        mu.set(kv[0], slots, value, mode="drop", wrap_negative_indices=False)

    value = jnp.arange(1.0, 5.0).reshape(4, 1, 1)
    compiled = jax.jit(step).lower(kv, slots, value).compile()
    assert not hlo.collectives(compiled)
    compiled(kv, slots, value)
    wanted = np.zeros((SLOTS, HEADS, WIDTH))
    wanted[3], wanted[5] = 1, 3
    np.testing.assert_array_equal(kv[0][...], wanted)
    np.testing.assert_array_equal(kv[1][...], np.zeros_like(wanted))
