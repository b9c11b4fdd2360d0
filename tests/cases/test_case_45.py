"""Returning a mutable array from a jit, or aliasing one, was silent or unclear.

https://github.com/jax-ml/jax/issues/26349, https://github.com/jax-ml/jax/pull/25449
"""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mutarray as mu
from tests.cases.support import KINDS, rows

pytestmark = pytest.mark.core


def made_here() -> str:
    """The place in this file where the caller calls, as the messages show it."""
    frame = inspect.currentframe().f_back
    return f"test_case_45.py:{frame.f_lineno}"


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises((TypeError, ValueError), match="mutable") as caught:
        call()
    return str(caught.value)


@pytest.fixture(params=["one device", *KINDS])
def handle(request: Any) -> tuple[mu.MutableArray, str]:
    if request.param == "one device":
        return mu.mutable_array(jnp.zeros(4)), made_here()
    x = jax.device_put(jnp.zeros(4), rows(request.param))
    return mu.mutable_array(x), made_here()


def untouched(m: mu.MutableArray) -> None:
    np.testing.assert_array_equal(m[...], np.zeros(4))
    m[1] = 5.0
    np.testing.assert_array_equal(m[...], [0, 5, 0, 0])


def test_returning_one_that_was_made_inside() -> None:
    ran = []

    def make(x: Any) -> Any:
        m, _ = mu.mutable_array(x), where.append(made_here())  # on one line, which it names
        jax.debug.callback(ran.append, x[0])
        return {"state": [m]}

    where: list[str] = []
    message = refused(lambda: jax.jit(make)(jnp.zeros(3)))
    assert "returned" in message and "['state'][0]" in message, "names the place in the result"
    assert where[0] in message, "says where the handle was made"
    assert "m[...]" in message, "says what to do"
    jax.effects_barrier()
    assert not ran, "raised at trace time"


def test_returning_the_constructors_own_result() -> None:
    assert "returned" in refused(lambda: jax.jit(mu.mutable_array)(jnp.zeros(3)))
    assert "returned" in refused(lambda: jax.jit(lambda: mu.zeros(3))())


def test_returning_an_argument(handle: tuple[mu.MutableArray, str]) -> None:
    m, made = handle
    message = refused(lambda: jax.jit(lambda weights: weights)(m))
    assert "argument weights" in message and made in message and "m[...]" in message
    untouched(m)


def test_returning_a_closure(handle: tuple[mu.MutableArray, str]) -> None:
    m, made = handle
    message = refused(lambda: jax.jit(lambda: m)())
    assert "returned" in message and made in message and "m[...]" in message
    untouched(m)


def test_returning_one_from_a_loop(handle: tuple[mu.MutableArray, str]) -> None:
    m, made = handle
    message = refused(lambda: jax.jit(lambda m: jax.lax.fori_loop(0, 3, lambda i, c: c, m))(m))
    assert "mutable" in message
    del made
    untouched(m)


def test_passing_one_twice(handle: tuple[mu.MutableArray, str]) -> None:
    m, made = handle
    ran = []

    def both(a: Any, b: Any) -> None:
        jax.debug.callback(ran.append, 0)
        a[0] = b[0] + 1

    message = refused(lambda: jax.jit(both)(m, m))
    assert " a<" in message and " b<" in message, "names both arguments"
    assert made in message and "once" in message
    message = refused(
        lambda: jax.jit(lambda tree: tree["x"].__setitem__(0, 1.0))({"x": m, "y": [m]})
    )
    assert "['x']" in message and "['y'][0]" in message
    jax.effects_barrier()
    assert not ran
    untouched(m)


def test_passing_one_that_is_closed_over(handle: tuple[mu.MutableArray, str]) -> None:
    m, made = handle
    message = refused(lambda: jax.jit(lambda a: m.__setitem__(0, a[0] + 1))(m))
    assert "argument a" in message and "closed over" in message
    assert made in message
    untouched(m)


def test_two_handles_on_equal_contents_are_not_the_same() -> None:
    x = jnp.zeros(4)
    a, b = mu.mutable_array(x), mu.mutable_array(x)
    jax.jit(lambda a, b: a.__setitem__(0, b[0] + 1))(a, b)
    np.testing.assert_array_equal(a[...], [1, 0, 0, 0])
    np.testing.assert_array_equal(b[...], [0, 0, 0, 0])


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_shape_that_does_not_fit(handle: tuple[mu.MutableArray, str], run: Any) -> None:
    m, _ = handle
    with pytest.raises(ValueError, match=r"input array from shape \(3,\) into shape \(2,\)"):
        run(lambda m, v: m.__setitem__(slice(0, 2), v))(m, np.zeros(3, np.float32))
    try:
        np.zeros(4)[0:2] = np.zeros(3)
    except ValueError as error:
        assert "could not broadcast input array from shape (3,) into shape (2,)" in str(error)
    with pytest.raises(ValueError, match=r"from shape \(2,4\)|from shape \(2, 4\)"):
        run(lambda m, v: m.__setitem__(..., v))(m, np.zeros((2, 4), np.float32))
    untouched(m)


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_dtype_that_does_not_fit(handle: tuple[mu.MutableArray, str], run: Any) -> None:
    m, _ = handle
    with pytest.raises(TypeError, match=r"complex64.* into .*float32.*astype"):
        run(lambda m, v: m.__setitem__(0, v))(m, np.complex64(1j))
    with pytest.raises(TypeError, match=r"complex.* into .*float32"):
        run(lambda m: m.__setitem__(0, 1j))(m)
    k = mu.zeros(3, jnp.int32)
    with pytest.raises(TypeError, match=r"float32.* into .*int32.*astype"):
        run(lambda k, v: k.__setitem__(0, v))(k, np.float32(1.5))
    np.testing.assert_array_equal(k[...], np.zeros(3))
    untouched(m)


def test_asarray_and_iteration_work(handle: tuple[mu.MutableArray, str]) -> None:
    """On a plain Ref both die of an index out of bounds."""
    m, _ = handle
    m[...] = np.arange(4)
    np.testing.assert_array_equal(np.asarray(m), np.arange(4))
    assert [float(x) for x in m] == [0, 1, 2, 3]
    untouched_after = [float(x) for x in reversed(list(m))]
    assert untouched_after == [3, 2, 1, 0]
