"""A write through a slice silently did nothing.

https://github.com/pytorch/pytorch/issues/139735
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mutarray as mu
from tests.cases.support import KINDS, grid, rows, same_sharding

pytestmark = pytest.mark.core


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
def test_a_slice_is_written(kind: str, jitted: bool) -> None:
    m = mu.mutable_array(jax.device_put(jnp.ones((4, 4)), rows(kind)))

    def zero(m: mu.MutableArray) -> None:
        m[:2] = 0

    (jax.jit(zero) if jitted else zero)(m)
    assert float(m[...].sum()) == 8
    np.testing.assert_array_equal(m[...], [[0] * 4] * 2 + [[1] * 4] * 2)
    assert same_sharding(m, rows(kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("index", [slice(2, None), ..., 1, np.array([0, 1]), slice(None)], ids=str)
def test_a_chained_assignment_is_refused(kind: str, jitted: bool, index: object) -> None:
    m = mu.mutable_array(jax.device_put(jnp.ones((4, 4)), rows(kind)))

    def chained(m: mu.MutableArray) -> None:
        m[index][0] = 5.0

    with pytest.raises(TypeError, match=r"copy|immutable"):
        (jax.jit(chained) if jitted else chained)(m)
    np.testing.assert_array_equal(m[...], np.ones((4, 4)))


@pytest.mark.parametrize("kind", KINDS)
def test_no_other_door_to_a_read_writes_or_lets_a_write_vanish(kind: str) -> None:
    m = mu.mutable_array(jax.device_put(jnp.ones((4, 4)), grid(kind)))
    with pytest.raises(TypeError, match="immutable"):
        m.addressable_shards[0].data[0] = 5.0
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(m)[0] = 5.0
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(m[1])[0] = 5.0
    with pytest.raises(TypeError):
        m[0] += "x"  # type: ignore[operator]
    np.testing.assert_array_equal(m[...], np.ones((4, 4)))


@pytest.mark.parametrize("kind", KINDS)
def test_an_augmented_assignment_is_a_write(kind: str) -> None:
    m = mu.mutable_array(jax.device_put(jnp.ones((4, 4)), rows(kind)))
    m[:2] += 2
    m[::-1, 1] *= jnp.arange(4.0)
    jax.jit(lambda m: m.__setitem__(3, m[3] - 5))(m)
    wanted = np.ones((4, 4))
    wanted[:2] += 2
    wanted[::-1, 1] *= np.arange(4.0)
    wanted[3] -= 5
    np.testing.assert_array_equal(m[...], wanted)
    assert same_sharding(m, rows(kind))
