"""The rules of the Python array API standard that bear on arrays which change.

Written from its text: https://data-apis.org/array-api/latest/API_specification. NumPy, which keeps
to the standard, says what comes out; on one device and on eight.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import mutarray as mu
from tests.support import KINDS, indices, layouts

PLACES = [("one device", "auto"), ("4x2", "auto"), ("4x2", "explicit")]
places = pytest.mark.parametrize("place", PLACES, ids=lambda place: " ".join(place))
DTYPES = ["bool", "uint8", "int8", "int32", "float16", "float32", "complex64"]
dtypes = st.sampled_from(DTYPES)
ARITHMETIC = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow"]
BITWISE = ["and_", "or_", "xor", "lshift", "rshift"]
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]


def made(
    place: tuple[str, str], dtype: Any, positive: bool = False
) -> tuple[np.ndarray, mu.MutableArray]:
    shape, sharding = layouts(KINDS[place[1]])[place[0]]
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape) % 5
    low = 1 if positive else (-2 if np.dtype(dtype).kind in "ifc" else 0)
    x = (x + low).astype(dtype)
    return x, mu.mutable_array(x, sharding)


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    """What a function gives, or the type of the error that it raises."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return fn(*args)
        except (TypeError, ValueError, OverflowError, IndexError) as error:
            # What is both, for a slice that cannot be one, is a ValueError where NumPy's is one.
            kinds = (OverflowError, ValueError, TypeError, IndexError)
            return next(kind for kind in kinds if isinstance(error, kind))


def assert_close(got: Any, wanted: Any) -> None:
    """Equal values, as exactly as the coarser of the two dtypes allows."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    coarse = np.float16 in (got.dtype, wanted.dtype)  # NumPy's for functions of short integers
    with np.errstate(all="ignore"):
        wanted = wanted.astype(got.dtype)
    assert got.shape == wanted.shape
    if got.dtype.kind in "fc":
        rtol = 2e-3 if coarse else 1e-5
        np.testing.assert_allclose(got, wanted, rtol=rtol, atol=rtol)
    else:
        np.testing.assert_array_equal(got, wanted)


@st.composite
def operands(draw: Any, shape: tuple[int, ...]) -> Any:
    """A Python scalar or an array, without zeros, most of which broadcast to ``shape``."""
    kind = draw(st.sampled_from(["int", "float", "bool", "complex", "array", "array", "array"]))
    scalars = {"int": 3, "float": 1.5, "bool": True, "complex": 1 + 2j}
    if kind in scalars:
        return scalars[kind]
    given = list(shape)
    for axis in range(len(given)):
        given[axis] = draw(st.sampled_from([given[axis], 1]))
    given = given[draw(st.integers(0, len(given))) :]
    given = [*([1] if draw(st.integers(0, 9)) == 0 else []), *given]
    return (np.arange(np.prod(given, dtype=int)).reshape(given) % 3 + 1).astype(draw(dtypes))


# Operators ---------------------------------------------------------------------------------------
#
# JAX's rules are not quite NumPy's where integers are divided by zero or raised to a negative
# power, where zero is raised to a complex power, and where a Python integer does not fit. The
# README says so; no such values are drawn here.


def allowed(name: str, *args: Any) -> bool:
    return name != "pow" or not any(np.iscomplexobj(a) for a in args)


@places
@settings(max_examples=10)
@given(data=st.data())
def test_operators(place: tuple[str, str], data: Any) -> None:
    """A new array of the values that NumPy computes; the array stays as it is."""
    name = data.draw(st.sampled_from([*ARITHMETIC, *BITWISE, *COMPARISONS]))
    reflected = data.draw(st.booleans())
    x, m = made(place, data.draw(dtypes), positive=reflected or name == "pow")
    other = data.draw(operands(x.shape))
    assume(allowed(name, x, other))
    op = getattr(operator, name)
    wanted = outcome(op, *((other, x) if reflected else (x, other)))
    got = outcome(op, *((other, m) if reflected else (m, other)))
    if isinstance(wanted, type):
        assert isinstance(got, type)
    else:
        assert isinstance(got, jax.Array)
        assert_close(got, wanted)
    np.testing.assert_array_equal(m, x)


@places
@settings(max_examples=6)
@given(data=st.data())
def test_unary_operators(place: tuple[str, str], data: Any) -> None:
    x, m = made(place, data.draw(dtypes))
    op = data.draw(st.sampled_from([operator.neg, operator.pos, abs, operator.invert]))
    assume(op is operator.invert or x.dtype != bool)  # JAX has +x and abs(x) of booleans, and no -x
    wanted, got = outcome(op, x), outcome(op, m)
    if isinstance(wanted, type):
        assert got is wanted
    else:
        assert_close(got, wanted)
    np.testing.assert_array_equal(m, x)


# In-place operators ------------------------------------------------------------------------------


@places
@settings(max_examples=10)
@given(data=st.data())
def test_in_place_operators(place: tuple[str, str], data: Any) -> None:
    """They change neither dtype nor shape, and give what ``x[...] = x op other`` gives."""
    name = data.draw(st.sampled_from([*ARITHMETIC, *BITWISE]))
    x, m = made(place, data.draw(dtypes), positive=name == "pow")
    op = getattr(operator, "i" + name.rstrip("_"))
    other = data.draw(operands(x.shape))
    assume(allowed(name, x, other))
    before, sharding = x.copy(), m.sharding
    wanted = outcome(op, x.copy(), other)
    got = outcome(op, m, other)
    assert m.dtype == x.dtype and m.shape == x.shape and m.sharding is sharding
    assert m[...].sharding == sharding
    if isinstance(wanted, type):
        assert isinstance(got, type)  # two things may be wrong at once, so not the same type
        np.testing.assert_array_equal(m, before)
    else:
        assert got is m
        assert_close(m, wanted)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize(
    ("other", "error", "message"),
    [
        (
            np.ones((1, 3), np.int8),
            ValueError,
            r"from shape \(1, 3\) into shape \(3,\): an in-place",
        ),
        (
            np.ones((2, 3), np.int8),
            ValueError,
            r"from shape \(2, 3\) into shape \(3,\): an in-place",
        ),
        (300, OverflowError, "300 is out of bounds for int8, which holds -128 to 127"),
        (-129, OverflowError, "-129 is out of bounds for int8"),
        (np.ones(2, np.int8), ValueError, "could not broadcast"),
        (np.ones(3, np.float32), TypeError, "same_kind"),
    ],
    ids=str,
)
def test_in_place_operators_refuse(other: Any, error: Any, message: str, traced: bool) -> None:
    """What would change shape or dtype, and what does not fit."""
    for op in (operator.iadd, operator.imul):
        m = mu.ones(3, "int8")

        def run(m: Any, op: Any = op) -> None:
            op(m, other)

        with pytest.raises(error, match=message):
            (jax.jit(run) if traced else run)(m)
        assert m[...].tolist() == [1, 1, 1]


# Indexing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [("one device", "auto"), ("vector on 8", "auto")], ids=str)
@settings(max_examples=15)
@given(data=st.data())
def test_single_axis_indexing(place: tuple[str, str], data: Any) -> None:
    """Integers in range, slices with any bounds and any step but zero; others raise."""
    x, m = made(place, "int32")
    x, m = (x[:, 0].copy(), mu.mutable_array(x[:, 0])) if x.ndim == 2 else (x, m)
    n = x.shape[0]
    bound = st.none() | st.integers(-2 * n, 2 * n)
    cut = st.builds(slice, bound, bound, st.none() | st.integers(-n, n))
    index = data.draw(st.integers(-n - 2, n + 1) | cut)
    wanted, got = outcome(operator.getitem, x, index), outcome(operator.getitem, m, index)
    written = outcome(operator.setitem, m, index, 7)
    if isinstance(wanted, type):
        assert got is wanted and written is wanted
    else:
        assert_close(got, wanted)
        assert got.dtype == x.dtype
        x[index] = 7
    np.testing.assert_array_equal(m, x)


@places
@settings(max_examples=6)
@given(data=st.data())
def test_multi_axis_indexing(place: tuple[str, str], data: Any) -> None:
    """Tuples, one ellipsis, new axes, one mask, integer arrays: on the right and on the left."""
    x, m = made(place, "int32")
    index = data.draw(indices(x.shape, wild=True))
    wanted, got = outcome(operator.getitem, x, index), outcome(operator.getitem, m, index)
    written = outcome(operator.setitem, m, index, -7)
    if isinstance(wanted, type):
        assert got is wanted and written is wanted
    else:
        assert_close(got, wanted)
        x[index] = -7
    np.testing.assert_array_equal(m, x)


@places
def test_masks_and_zero_dimensions(place: tuple[str, str]) -> None:
    x, m = made(place, "float32")
    for a in (x, m):
        a[a > 1] = -1.0  # a mask as the sole index
    np.testing.assert_array_equal(m, x)
    np.testing.assert_array_equal(m[m < 0], x[x < 0])
    for mask in (True, False, np.array(True), np.array(False)):
        assert m[mask].shape == x[mask].shape
    one = mu.mutable_array(np.float32(3))
    for index in ((), ...):
        assert one[index].shape == () and float(one[index]) == 3
    one[()] = 4.0
    one[...] += 1.0
    assert float(one) == 5 and one[None].shape == (1,)
    for wrong in (0, slice(None), (..., 0)):
        with pytest.raises(IndexError):
            one[wrong]
    with pytest.raises(IndexError):
        m[x[:-1] > 0]  # a mask of another shape


# Writing -----------------------------------------------------------------------------------------


@places
@settings(max_examples=8)
@given(data=st.data())
def test_writing(place: tuple[str, str], data: Any) -> None:
    """A value casts by ``same_kind`` and broadcasts, or it raises and nothing is written."""
    x, m = made(place, data.draw(dtypes))
    index = data.draw(indices(x.shape))
    taken = outcome(operator.getitem, x, index)
    assume(not isinstance(taken, type))
    value = data.draw(operands(np.shape(taken)))
    assume(np.ndim(taken) or not np.ndim(value))  # NumPy takes no array of length 1 for an element
    before = x.copy()
    # NumPy casts without a word when it assigns; the standard leaves it open, and we do not.
    fits = (
        np.can_cast(value.dtype, x.dtype, "same_kind")
        if isinstance(value, (np.ndarray, np.generic))
        else True
    )
    if not isinstance(value, (np.ndarray, np.generic)):
        kinds = ["b", "u", "i", "f", "c"]
        given = {bool: "b", int: "u", float: "f", complex: "c"}[type(value)]
        fits = kinds.index(given) <= kinds.index(x.dtype.kind)
    wanted = outcome(operator.setitem, x, index, value) if fits else TypeError
    got = outcome(operator.setitem, m, index, value)
    if wanted is None:
        assert got is None
        np.testing.assert_array_equal(m, x)
    else:
        assert isinstance(got, type)
        np.testing.assert_array_equal(m, before)


@places
@settings(max_examples=5)
@given(data=st.data())
def test_what_was_read_is_a_copy(place: tuple[str, str], data: Any) -> None:
    """The standard leaves open whether reads are views: they never are, nor is the source."""
    x, m = made(place, "float32")
    reads: list[Callable[[Any], Any]] = [
        lambda a: a[...],
        lambda a: a[1:3],
        lambda a: a[[0, 2]],
        lambda a: a.T,
        lambda a: a.reshape(-1),
        lambda a: a.real,
        lambda a: a[None],
        lambda a: np.asarray(a),
        lambda a: jnp.asarray(a) if isinstance(a, mu.MutableArray) else a,
        lambda a: next(iter(a)),
    ]
    read = data.draw(st.sampled_from(reads))
    got, wanted = read(m), np.array(read(x))
    write = data.draw(
        st.sampled_from(
            [
                lambda: m.__setitem__(0, 9.0),
                lambda: m.__iadd__(1.0),
                lambda: m.fill(3.0),
                lambda: m.add_at([0, 0], 1.0),
                lambda: np.sqrt(abs(m), out=m),
                lambda: jax.jit(lambda m: m.__setitem__(..., 5.0))(m),
            ]
        )
    )
    write()
    np.testing.assert_array_equal(got, wanted)
    assert not np.array_equal(m, x)
    with pytest.raises((TypeError, ValueError)):
        got[0] = 1.0  # never lost in silence


# The array object --------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    dtype=dtypes,
    shape=st.sampled_from([(), (), (1,), (2, 1)]),
    to=st.sampled_from([bool, int, float, complex, operator.index]),
    spread=st.booleans(),
)
def test_conversions(dtype: str, shape: tuple[int, ...], to: Any, spread: bool) -> None:
    """Only arrays without axes are numbers, only integers are indices."""
    x = np.ones(shape, dtype)
    m = mu.mutable_array(x, layouts(KINDS["auto"])["scalar"][1] if spread else None)
    wanted, got = outcome(to, x), outcome(to, m)
    if to is bool or not shape:
        assert type(got) is type(wanted) and got == wanted
    else:
        assert got is TypeError  # older NumPys take what has one element


@places
def test_attributes(place: tuple[str, str]) -> None:
    x, m = made(place, "float32")
    assert (m.ndim, m.shape, m.size, m.dtype) == (x.ndim, x.shape, x.size, x.dtype)
    np.testing.assert_array_equal(m.T, x.T)
    np.testing.assert_array_equal(m.mT, x.T)
    deep = mu.zeros((2, 3, 4))
    assert deep.mT.shape == (2, 4, 3)
    with pytest.raises(ValueError, match="two"):
        _ = mu.zeros(3).mT
    there = m.to_device(m.device)
    assert there.sharding == m.sharding
    np.testing.assert_array_equal(there, x)
    assert m.to_device(jax.devices()[0]).devices() == {jax.devices()[0]}


def test_namespace_and_dlpack() -> None:
    x, m = made(PLACES[0], "float32")
    xp = m.__array_namespace__()
    for name in ("asarray", "sum", "matmul", "permute_dims", "take", "nonzero", "unique_values"):
        assert hasattr(xp, name)
    assert m.__array_namespace__(api_version=None) is xp
    np.testing.assert_array_equal(xp.permute_dims(m, (1, 0)), x.T)
    np.testing.assert_array_equal(xp.sum(m, axis=0), x.sum(0))
    kind, number = m.__dlpack_device__()
    assert int(kind) == 1 and number == 0
    for asked in ({}, {"stream": None}, {"max_version": (1, 0)}, {"dl_device": None, "copy": None}):
        assert "dltensor" in repr(m.__dlpack__(**asked))
    view = np.from_dlpack(m)
    m += 1.0
    np.testing.assert_array_equal(view, x)
