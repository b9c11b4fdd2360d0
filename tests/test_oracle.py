"""NumPy says what comes out of methods, ufuncs, functions that write, copies and iteration.

Over dtypes and layouts, on one device and on eight. `test_array_api` does so for the operators.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mutarray as mu
from tests.test_array_api import assert_close, made, outcome, places

dtypes = st.sampled_from(["bool", "uint8", "int32", "float32", "complex64"])
REAL = ["uint8", "int32", "float32"]
METHODS: dict[str, Callable[[Any], Any]] = {
    "all": lambda a: a.all(axis=0),
    "any": lambda a: a.any(),
    "argmax": lambda a: a.argmax(axis=0),
    "argmin": lambda a: a.argmin(),
    "astype": lambda a: a.astype(np.complex64),
    "clip": lambda a: a.clip(1, 2),
    "compress": lambda a: a.compress(np.array([True, False, True]), axis=0),
    "conj": lambda a: a.conj(),
    "cumprod": lambda a: a.cumprod(1),
    "cumsum": lambda a: a.cumsum(axis=0),
    "diagonal": lambda a: a.diagonal(1),
    "dot": lambda a: a.dot(np.ones(a.shape[1], a.dtype)),
    "flatten": lambda a: a.flatten(),
    "item": lambda a: a.item(3),
    "max": lambda a: a.max(axis=1, keepdims=True),
    "mean": lambda a: a.mean(axis=0),
    "min": lambda a: a.min(0),
    "nonzero": lambda a: np.stack(a.nonzero()),
    "prod": lambda a: a.prod(axis=1),
    "ravel": lambda a: a.ravel(),
    "real and imag": lambda a: a.real + a.imag,
    "repeat": lambda a: a.repeat(2, axis=0),
    "reshape": lambda a: a.reshape(-1, 2),
    "std": lambda a: a.std(0),
    "sum": lambda a: a.sum(axis=0),
    "swapaxes": lambda a: a.swapaxes(0, 1),
    "take": lambda a: a.take(np.array([1, 0]), axis=0),
    "tolist": lambda a: a.tolist(),
    "trace": lambda a: a.trace(),
    "transpose": lambda a: a.transpose(1, 0),
    "var": lambda a: a.var(),
    "len": len,
    "rows": list,
    "rows backwards": lambda a: list(reversed(a)),
    "in": lambda a: [k in a for k in (0, 1, 3, 9)],
    "array": lambda a: np.asarray(a, dtype=np.complex64),
    "a copy": lambda a: np.array(a, copy=True),
}


@pytest.mark.parametrize("name", ["one device", "4x2"])
@settings(max_examples=25)
@given(dtype=st.sampled_from(REAL), method=st.sampled_from(sorted(METHODS)))
def test_methods(name: str, dtype: str, method: str) -> None:
    x, m = made((name, "auto"), dtype)
    assert_close(METHODS[method](m), METHODS[method](x))
    np.testing.assert_array_equal(m, x)


ONE = [np.negative, np.sqrt, np.exp, np.isfinite, np.sign, np.logical_not, np.square, np.conjugate]
TWO = [
    np.add,
    np.multiply,
    np.hypot,
    np.less,
    np.logical_and,
    np.maximum,
    np.arctan2,
    np.left_shift,
]


@places
@settings(max_examples=10)
@given(data=st.data())
def test_ufuncs(place: tuple[str, str], data: Any) -> None:
    """Called, and called with ``out=``: NumPy's values, where JAX refuses nothing that it takes.

    What JAX takes and NumPy does not (an arctan2 of complex numbers) is JAX's, and so are the
    dtypes (a conjugate of bools is an int8 to NumPy). What is refused writes nothing.
    """
    x, m = made(place, data.draw(dtypes))
    ufunc = data.draw(st.sampled_from([*ONE, *TWO]))
    other = np.ones((1, x.shape[1]), data.draw(dtypes))
    args = () if ufunc in ONE else (other,)
    theirs = outcome(getattr(jnp, ufunc.__name__), x, *args)
    wanted, got = outcome(ufunc, x, *args), outcome(ufunc, m, *args)
    if isinstance(theirs, type):
        assert isinstance(got, type)
    else:
        assert isinstance(got, jax.Array)
        assert_close(got, theirs if isinstance(wanted, type) else wanted)
    np.testing.assert_array_equal(m, x)
    got = outcome(lambda: ufunc(m, *args, out=m))
    if isinstance(got, type):  # JAX refuses, or what it gives does not cast back
        np.testing.assert_array_equal(m, x)
    else:
        assert got is m and not isinstance(theirs, type)
        assert np.can_cast(theirs.dtype, x.dtype, "same_kind")
        with np.errstate(all="ignore"):
            assert_close(m, np.asarray(theirs).astype(x.dtype))


@places
@settings(max_examples=8)
@given(data=st.data())
def test_functions_that_write(place: tuple[str, str], data: Any) -> None:
    x, m = made(place, data.draw(dtypes))
    values = (np.arange(data.draw(st.integers(1, 5))) + 1).astype(x.dtype)
    bits = data.draw(st.lists(st.booleans(), min_size=x.size, max_size=x.size))
    mask = np.array(bits).reshape(x.shape)
    where = data.draw(st.lists(st.integers(-x.size, x.size - 1), max_size=4))
    name = data.draw(st.sampled_from(["put", "putmask", "place", "copyto", "fill_diagonal"]))
    for a in (x, m):
        if name == "put":
            np.put(a, where, values)
        elif name == "copyto":
            np.copyto(a, values[0], where=mask)
        elif name == "fill_diagonal":
            np.fill_diagonal(a, values)
        else:
            getattr(np, name)(a, mask, values)
    np.testing.assert_array_equal(m, x)


@places
@settings(max_examples=6)
@given(
    dtype=dtypes,
    copied=st.sampled_from(
        [copy.copy, copy.deepcopy, mu.MutableArray.copy, lambda m: pickle.loads(pickle.dumps(m))]
    ),
)
def test_copies(place: tuple[str, str], dtype: str, copied: Callable[[Any], Any]) -> None:
    x, m = made(place, dtype)
    k = copied(m)
    assert k.dtype == m.dtype and k.sharding == m.sharding
    k[...] = False
    np.testing.assert_array_equal(m, x)
    assert not jnp.any(k[...])
