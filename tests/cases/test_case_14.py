"""Indexing of a Ref was not NumPy's: negative steps, None, masks and lists raised or went wrong.

https://github.com/jax-ml/jax/issues/33322, https://github.com/jax-ml/jax/pull/33456
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Sharding

import mutarray as mu
from mutarray._jaxapi import make_single_device_sharding
from tests.cases.support import rows, same_sharding

pytestmark = pytest.mark.core

PLACES = {
    "one device": lambda kind: make_single_device_sharding(jax.devices()[0]),
    "two devices": lambda kind: rows(kind, 2),
}
VECTOR: list[Any] = [
    slice(-2, -12, -1),
    slice(None, None, -1),
    slice(11, 12),
    slice(20, -20, -3),
    None,
    (..., None),
    (None, slice(2, 4), None),
    slice(1, 9, 3),
    [1, 3],
    [],
    np.arange(10) % 2 == 0,
    np.zeros(10, bool),
    np.array([[0, 1], [2, 3]]),
    (np.array([-1, -10]),),
    np.uint8(3),
    -1,
    (),
    ...,
    True,
    False,
    (None, True),
    np.array(4),
    range(2, 5),
]
MATRIX: list[Any] = [
    (slice(None), [0, 2]),
    ([3, 1], [[0], [2]]),
    ([3, 1], slice(None), None),
    (np.arange(4) > 1, [0, 2]),
    (slice(None), np.array([True, False, True])),
    np.arange(12).reshape(4, 3) % 3 == 1,
    (..., -1),
    (None, [1, 2], ..., slice(None, None, -2)),
    (slice(3, 0, -2), slice(None, None, -1)),
    (-1, slice(0, 0)),
]
X = np.arange(10.0, dtype=np.float32)
Y = np.arange(12.0, dtype=np.float32).reshape(4, 3)
ALL = [(X, index) for index in VECTOR] + [(Y, index) for index in MATRIX]


@pytest.mark.parametrize(
    ("place", "kind"),
    [("one device", "auto"), ("two devices", "auto"), ("two devices", "explicit")],
)
@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
def test_as_numpy(place: str, kind: str, jitted: bool) -> None:
    s: Sharding = PLACES[place](kind)
    some = ALL[::2] if kind == "explicit" else ALL[1::2] if place == "one device" else ALL
    for x, index in some if jitted else ALL:  # each is a compile
        read = lambda m, index=index: m[index]  # noqa: E731
        write = lambda m, v, index=index: m.__setitem__(index, v)  # noqa: E731
        if jitted:
            read, write = jax.jit(read), jax.jit(write)
        m = mu.mutable_array(jnp.asarray(x), s)
        got, wanted = read(m), x[index]
        assert got.shape == wanted.shape, index
        np.testing.assert_array_equal(got, wanted, err_msg=str(index))
        value = np.arange(wanted.size, dtype=np.float32).reshape(wanted.shape) + 50
        for v in (7, value) if kind == "auto" else (value,):
            y = x.copy()
            y[index] = v
            m[...] = x
            write(m, v)
            np.testing.assert_array_equal(m[...], y, err_msg=str(index))
        assert same_sharding(m, s)


@pytest.mark.parametrize("bad", [10, -11, [0, 10], (0, 0), 1.0, "a", np.zeros(9, bool), (..., ...)])
def test_what_numpy_refuses_is_refused(bad: Any) -> None:
    m = mu.mutable_array(jnp.asarray(X), rows("auto", 2))
    with pytest.raises(IndexError):
        X[bad]
    for run in (lambda f: f, jax.jit):
        with pytest.raises(IndexError):
            run(lambda m: m[bad])(m)
        with pytest.raises(IndexError):
            run(lambda m: m.__setitem__(bad, 1.0))(m)
    np.testing.assert_array_equal(m[...], X)


def test_a_traced_mask_can_be_written_by_and_says_why_it_cannot_be_read_by() -> None:
    m = mu.mutable_array(jnp.asarray(X), rows("auto", 2))
    jax.jit(lambda m: m.__setitem__(m[...] > 4, -1.0))(m)
    np.testing.assert_array_equal(m[...], np.where(X > 4, -1, X))
    with pytest.raises(IndexError, match="jnp.where"):
        jax.jit(lambda m: m[m[...] > 4])(m)
