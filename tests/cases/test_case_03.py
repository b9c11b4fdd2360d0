"""An axis that the mesh does not divide was silently replicated: eight times the memory.

https://github.com/jax-ml/jax/issues/26946
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

import mutarray as mu
from tests.cases.support import KINDS, named

pytestmark = pytest.mark.core

SHAPE = (17, 16)
DOORS: dict[str, Callable[[NamedSharding], Any]] = {
    "zeros": lambda s: mu.zeros(SHAPE, jnp.float32, sharding=s),
    "ones": lambda s: mu.ones(SHAPE, jnp.float32, sharding=s),
    "full": lambda s: mu.full(SHAPE, 2.0, sharding=s),
    "empty": lambda s: mu.empty(SHAPE, sharding=s),
    "zeros_like": lambda s: mu.zeros_like(jnp.zeros(SHAPE), sharding=s),
    "ones_like, shape": lambda s: mu.ones_like(jnp.zeros(16), shape=SHAPE, sharding=s),
    "full_like": lambda s: mu.full_like(np.zeros(SHAPE), 1, sharding=s),
    "empty_like": lambda s: mu.empty_like(np.zeros(SHAPE), sharding=s),
    "mutable_array of JAX": lambda s: mu.mutable_array(jnp.zeros(SHAPE), s),
    "mutable_array of NumPy": lambda s: mu.mutable_array(np.zeros(SHAPE), s),
    "from_callback": lambda s: mu.from_callback(SHAPE, s, lambda index: np.zeros(SHAPE)[index]),
    "zeros in jit": lambda s: jax.jit(lambda: mu.zeros(SHAPE, sharding=s)[0])(),
    "mutable_array in jit": lambda s: jax.jit(lambda x: mu.mutable_array(x, s)[0])(jnp.ones(SHAPE)),
    "out_sharding of get": lambda s: mu.get(mu.zeros(SHAPE), ..., out_sharding=s),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses(door: str, kind: str) -> None:
    s = named(kind, {"data": 8}, "data", None)
    with pytest.raises(ValueError, match=r"axis 0 .* size 17\b.*'data'.* 8 ways") as caught:
        DOORS[door](s)
    assert isinstance(caught.value, mu.errors.IndivisibleError)
    assert "16 or 24" in str(caught.value), "the message names lengths that would do"


@pytest.mark.parametrize("kind", KINDS)
def test_the_axis_that_does_not_fit_is_the_one_that_is_named(kind: str) -> None:
    s = named(kind, {"i": 2, "j": 4}, None, ("i", "j"))
    with pytest.raises(ValueError, match=r"axis 1 .* size 12\b.* 8 ways"):
        mu.zeros((3, 12), sharding=s)


@pytest.mark.parametrize("kind", KINDS)
def test_what_divides_is_split_and_nothing_else_is(kind: str) -> None:
    m = mu.zeros((24, 16), jnp.float32, sharding=named(kind, {"data": 8}, "data", None))
    assert [shard.data.nbytes for shard in m.addressable_shards] == [3 * 16 * 4] * 8
