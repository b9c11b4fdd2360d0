"""What docs/libraries.md says of einops."""

from __future__ import annotations

from typing import Any

import einops
import einops.array_api
import jax
import numpy as np
import pytest

import mutarray as mu
from tests.support import KINDS, layouts

PATTERNS: dict[str, Any] = {
    "rearrange": lambda e, a: e.rearrange(a, "(a c) b -> b c a", c=2),
    "reduce": lambda e, a: e.reduce(a, "a b -> b", "sum"),
    "repeat": lambda e, a: e.repeat(a, "a b -> a b c", c=2),
    "pack": lambda e, a: e.pack([a, a], "* b")[0],
    "unpack": lambda e, a: e.unpack(a, [[4], [4]], "* b")[1],
}


def made() -> tuple[np.ndarray, mu.MutableArray]:
    shape, sharding = layouts(KINDS["auto"])["4x2"]
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return x, mu.mutable_array(x, sharding)


@pytest.mark.parametrize("name", PATTERNS)
def test_values_go_anywhere(name: str) -> None:
    x, m = made()
    wanted = PATTERNS[name](einops, x)
    for got in (PATTERNS[name](einops, m[...]), PATTERNS[name](einops.array_api, m)):
        assert isinstance(got, jax.Array)
        np.testing.assert_array_equal(got, wanted)
    got = jax.jit(lambda m: PATTERNS[name](einops.array_api, m))(m)
    np.testing.assert_array_equal(got, wanted)
    with pytest.raises(RuntimeError, match="Tensor type unknown to einops"):
        PATTERNS[name](einops, m)


def test_einsum_and_shapes() -> None:
    x, m = made()
    got = einops.einsum(m[...], m[...], "a b, c b -> a c")
    np.testing.assert_allclose(got, x @ x.T)
    assert einops.parse_shape(m[...], "a b") == {"a": 8, "b": 6}


def test_a_pattern_that_changes_nothing() -> None:
    """It gives back what it was given, which here goes on changing."""
    _, m = made()
    assert einops.array_api.rearrange(m, "a b -> a b") is m
    same = einops.rearrange(m[...], "a b -> a b")
    m[...] = 0.0
    assert same.any()


def test_writing_what_comes_out() -> None:
    x, m = made()
    sharding = m.sharding
    m[...] = einops.rearrange(m[...], "(a c) b -> (c a) b", c=2)
    np.testing.assert_array_equal(m, einops.rearrange(x, "(a c) b -> (c a) b", c=2))
    assert m[...].sharding == sharding
