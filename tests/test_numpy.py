"""NumPy's protocols, against NumPy itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import mutarray as mu
from tests.support import KINDS, indices, layouts, numpy_take

PLACES = [("one device", "auto"), ("4x2", "auto"), ("4x2", "explicit")]
places = pytest.mark.parametrize("place", PLACES, ids=lambda place: " ".join(place))


def made(place: tuple[str, str], dtype: Any = np.float32) -> tuple[np.ndarray, mu.MutableArray]:
    shape, sharding = layouts(KINDS[place[1]])[place[0]]
    x = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 7 + 1).astype(dtype)
    return x, mu.mutable_array(x, sharding)


# Ufuncs ------------------------------------------------------------------------------------------


@pytest.mark.core
@places
def test_a_ufunc_gives_what_jax_gives(place: tuple[str, str]) -> None:
    x, m = made(place)
    for ufunc in (np.sin, np.negative, np.isnan, np.modf, np.frexp, np.sign):
        wanted = ufunc(x)
        got = ufunc(m)
        for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            assert isinstance(g, jax.Array)
            np.testing.assert_allclose(g, w, rtol=1e-5)
    for ufunc in (np.add, np.hypot, np.less, np.divmod, np.logaddexp):
        for args in ((m, 2), (2, m), (m, m), (m, x), (x[0], m), (m, [1.0] * x.shape[1])):
            wanted = ufunc(*(x if a is m else a for a in args))
            for g, w in zip(jax.tree.leaves(ufunc(*args)), jax.tree.leaves(wanted), strict=True):
                assert isinstance(g, jax.Array)
                np.testing.assert_allclose(g, w, rtol=1e-5)
    got = jax.jit(lambda m: np.add(m, 1) + np.sin(m))(m)
    np.testing.assert_allclose(got, x + 1 + np.sin(x), rtol=1e-5)


@pytest.mark.core
@places
def test_out(place: tuple[str, str]) -> None:
    x, m = made(place)
    for a, out in ((x, x), (m, m)):
        assert np.add(a, 1, out=out) is out
        assert np.multiply(2, a, out=(out,)) is out
        assert np.add(a, a, out=out) is out
        assert np.sqrt(a, out=out) is out
        assert np.subtract(a, np.ones(x.shape[1], np.float32), out=out) is out
        assert np.maximum(np.float32(1.5), a[0], out=out) is out  # fewer axes: broadcast
    np.testing.assert_allclose(np.asarray(m), x, rtol=1e-6)
    assert m[...].sharding == m.sharding == layouts(KINDS[place[1]])[place[0]][1]
    jax.jit(lambda m: (np.add(m, 1, out=m), None)[1])(m)
    np.testing.assert_allclose(np.asarray(m), x + 1, rtol=1e-6)


@pytest.mark.core
def test_out_of_several() -> None:
    x, m = made(PLACES[1])
    q, r = mu.zeros(x.shape), np.zeros_like(x)
    first, second = np.divmod(m, 3, out=(q, r))
    assert first is q and second is r
    np.testing.assert_array_equal(q, x // 3)
    np.testing.assert_array_equal(r, x % 3)
    first, second = np.divmod(m, 3, out=(None, m))
    assert isinstance(first, jax.Array) and second is m
    np.testing.assert_array_equal(m, x % 3)


@pytest.mark.core
@places
def test_what_numpy_computes(place: tuple[str, str]) -> None:
    """Ways to call a ufunc that jax.numpy has not."""
    x, m = made(place)
    assert np.add(m, 1, dtype=np.float64).dtype == np.float64
    np.testing.assert_array_equal(np.add.reduce(m), x.sum(0))
    np.testing.assert_array_equal(np.multiply.outer(m, [1, 2]), np.multiply.outer(x, [1, 2]))
    np.testing.assert_array_equal(np.add.accumulate(m, axis=1), np.add.accumulate(x, axis=1))
    mask = x > 3
    for a, out in ((x, x), (m, m)):
        assert np.add(a, 10, out=out, where=mask) is out
        assert np.add.accumulate(a, out=out) is out
    np.testing.assert_array_equal(m, x)
    row = np.zeros(x.shape[1], np.float32)
    assert np.add.reduce(m, out=row) is row and np.array_equal(row, x.sum(0))
    np.add.at(row, [0, 0], m[0, :2])
    x += m  # NumPy's own array is NumPy's to write, in its own precision
    assert np.add(np.full(1, 1e-12), mu.zeros(1), out=np.ones(1))[0] == 1e-12
    x @= mu.mutable_array(np.eye(x.shape[1], dtype=np.float32))
    np.testing.assert_array_equal(x, 2 * np.asarray(m))


def test_what_does_not_fit_out() -> None:
    m = mu.ones(3, "int32")
    for write, error, message in [
        (lambda: np.add(m, 1.5, out=m), TypeError, "same_kind"),
        (lambda: np.add(1.5, m, out=m), TypeError, "same_kind"),
        (lambda: np.add(np.ones((2, 3), int), m, out=m), ValueError, r"out= has shape \(3,\)"),
        (lambda: np.add(m, np.ones((1, 3), int), out=m), ValueError, "shape"),
        (lambda: np.add(np.ones((1, 3), int), m, out=m), ValueError, "out= has shape"),
        (lambda: np.add(m, np.ones(2, int), out=m), ValueError, "could not broadcast"),
        (lambda: np.frompyfunc(abs, 1, 1).at(m, 0), TypeError, r"jax.numpy has no abs.*apply_at"),
        (lambda: np.add.at(m, 3, 1), IndexError, "index 3"),
        (lambda: np.add.at(m, 0, 1.5), TypeError, "same_kind"),
    ]:
        with pytest.raises(error, match=message):
            write()
        assert m[...].tolist() == [1, 1, 1]


@pytest.mark.core
@places
@settings(max_examples=20)
@given(st.data())
def test_ufunc_at(place: tuple[str, str], data: Any) -> None:
    x, m = made(place, np.int32)
    ufunc = data.draw(
        st.sampled_from([np.add, np.subtract, np.multiply, np.minimum, np.maximum, np.bitwise_xor])
    )
    index = data.draw(indices(x.shape))
    assume(numpy_take(x, index)[1] is None)
    value = np.int32(data.draw(st.integers(-3, 3)))
    ufunc.at(m, index, value)
    ufunc.at(x, index, value)
    np.negative.at(m, index)
    np.negative.at(x, index)
    np.testing.assert_array_equal(m, x)


def test_ufunc_at_in_a_trace() -> None:
    x, m = made(PLACES[1])
    jax.jit(lambda m, i: np.add.at(m, i, 2.0))(m, np.array([0, 0, 3]))
    np.add.at(x, [0, 0, 3], 2)
    np.testing.assert_array_equal(m, x)
    np.add.at(x, mu.mutable_array(np.array([0, 1])), mu.ones((2, 1)))
    np.add.at(m, mu.mutable_array(np.array([0, 1])), mu.ones((2, 1)))
    np.testing.assert_array_equal(m, x)


def test_another_class_goes_first() -> None:
    class Mine:
        def __array_ufunc__(self, *args: Any, **kwargs: Any) -> str:
            return "mine"

        def __array_function__(self, *args: Any) -> str:
            return "mine"

    assert np.add(mu.zeros(3), Mine()) == "mine"
    assert np.concatenate([mu.zeros(3), Mine()]) == "mine"


# Functions ---------------------------------------------------------------------------------------


@pytest.mark.core
@places
def test_functions_that_write(place: tuple[str, str]) -> None:
    x, m = made(place)
    mask = x > 3
    for a in (x, m):
        np.copyto(a, 5)
        np.copyto(a, np.arange(x.shape[1]), where=mask)
        np.copyto(a, 7.0, where=mask[0])
        np.copyto(dst=a, src=np.arange(x.shape[1]).astype(np.complex64).real, casting="safe")
        np.copyto(a, 1.0, where=np.True_)
    np.testing.assert_array_equal(m, x)
    for a in (x, m):
        np.put(a, [0, -1, 3, 3], [1.0, 2.0, 3.0])
        np.put(a, 2, 9)
        np.put(a, [[1000, -1000]], 6, mode="clip")
        np.put(a, [1000, -1001], 8, mode="wrap")
        np.put(a, [], 1.0)
        np.put(a, [1], [])
    np.testing.assert_array_equal(m, x)
    for a in (x, m):
        np.putmask(a, mask, [1.0, 2.0, 3.0])
        np.putmask(a, x > 100, 4.0)
        np.putmask(a, mask.astype(np.int32), np.float32(11))
        np.place(a, mask, [4.0, 5.0])
        np.place(a, ~mask, [[6.0]])
    np.testing.assert_array_equal(m, x)
    for a in (x, m):
        np.fill_diagonal(a, [21.0, 22.0, 23.0])
        np.fill_diagonal(a[...].copy() if a is x else a.copy(), 0.0)
    np.testing.assert_array_equal(m, x)
    assert m[...].sharding == m.sharding


@pytest.mark.core
@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("shape", [(3, 3), (7, 2), (2, 7), (3, 3, 3), (1, 1), (0, 4)], ids=str)
def test_fill_diagonal(shape: tuple[int, ...], wrap: bool) -> None:
    x, m = np.zeros(shape, np.float32), mu.zeros(shape)
    for a in (x, m):
        np.fill_diagonal(a, [1.0, 2.0], wrap=wrap)
    np.testing.assert_array_equal(m, x)


@pytest.mark.core
@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_put_along_axis(axis: int | None) -> None:
    x, m = made(PLACES[1])
    rng = np.random.default_rng(0)
    n = x.size if axis is None else x.shape[axis]
    for rows in (1, x.shape[0]):
        shape = (4,) if axis is None else (2, x.shape[1]) if axis == 0 else (rows, 3)
        indices = rng.permuted(np.tile(np.arange(n), (8, 1)), axis=1)[:1, : np.prod(shape)]
        indices = np.resize(indices, shape)
        values = rng.normal(size=shape).astype(np.float32)
        for a in (x, m):
            np.put_along_axis(a, indices, values, axis)
            np.put_along_axis(a, indices[:1], 5.0, axis)
        np.testing.assert_array_equal(m, x)
    k = mu.mutable_array(x, m.sharding)
    jax.jit(lambda k, i: np.put_along_axis(k, i, 7.0, axis))(k, indices)
    np.put_along_axis(x, indices, 7.0, axis)
    np.testing.assert_array_equal(k, x)
    assert m[...].sharding == m.sharding


def test_functions_that_write_in_a_trace() -> None:
    x, m = made(PLACES[1])
    mask = x > 3

    @jax.jit
    def work(m: Any, mask: Any, k: Any, row: Any) -> None:
        np.copyto(m, row, where=mask)
        np.put(m, k, [1.0, 2.0])
        np.put(m, k + 1000, 3.0)  # out of range, dropped
        np.put(m, k + 1000, 4.0, mode="clip")
        np.putmask(m, mask, row[:3])
        np.place(m, ~mask, 9.0)
        np.fill_diagonal(m, row)

    row = np.arange(x.shape[1], dtype=np.float32)
    work(m, mask, np.array([5, -2, 7]), row)
    np.copyto(x, row, where=mask)
    np.put(x, [5, -2, 7], [1.0, 2.0])
    np.put(x, [1000], 4.0, mode="clip")
    np.putmask(x, mask, row[:3])
    np.place(x, ~mask, 9.0)
    np.fill_diagonal(x, row)
    np.testing.assert_array_equal(m, x)
    with pytest.raises(mu.errors.TracedIndexError, match="np.putmask"):
        jax.jit(lambda m, mask: np.place(m, mask, [1.0, 2.0]))(m, mask)


@pytest.mark.parametrize("shape", [(), (0, 3)], ids=str)
def test_functions_that_write_to_odd_shapes(shape: tuple[int, ...]) -> None:
    x, m = np.zeros(shape, np.float32), mu.zeros(shape)
    for a in (x, m):
        np.copyto(a, 1.0, where=np.ones(shape, bool))
        np.putmask(a, np.ones(shape, bool), [2.0])
        if shape == ():
            np.put(a, [0, -1], [3.0, 4.0])
    np.testing.assert_array_equal(m, x)
    with pytest.raises(IndexError):
        np.put(x, [1], 1.0)
    with pytest.raises(IndexError, match="position 1 is out of bounds"):
        np.put(m, [1], 1.0)
    if shape == ():
        jax.jit(lambda m, k: np.put(m, k, [5.0, 6.0]))(m, np.array([0, 1]))
        assert float(m) == 5


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (lambda m: np.copyto(m, 1.5), TypeError, "same_kind"),
        (lambda m: np.copyto(m, np.int64(1), casting="safe"), TypeError, "casting='safe'"),
        (lambda m: np.copyto(m, np.ones(5, int)), ValueError, "could not broadcast"),
        (lambda m: np.copyto(m, 1, where=np.ones(5, bool)), ValueError, "could not broadcast"),
        (lambda m: np.put(m, [0, 6], 1), IndexError, r"position 6 .*-6 to 5"),
        (lambda m: np.put(m, [0], 1.5), TypeError, "same_kind"),
        (lambda m: np.put(m, [0.5], 1), TypeError, "positions must be integers"),
        (lambda m: np.put(m, [0], 1, mode="drop"), ValueError, "mode='drop'"),
        (lambda m: np.putmask(m, [True], 1), ValueError, "same number of elements"),
        (lambda m: np.place(m, np.ones((2, 3), bool), []), ValueError, "no values for 6 positions"),
        (lambda m: np.fill_diagonal(mu.zeros(3), 1), ValueError, "two axes or more"),
        (lambda m: np.put_along_axis(m, np.zeros(3, int), 1, 0), ValueError, "with axis=0"),
        (lambda m: np.put_along_axis(m, np.full((2, 3), 5), 1, 1), IndexError, "index 5 is out"),
        (lambda m: np.fill_diagonal(mu.zeros((2, 2, 3)), 1), ValueError, "same length"),
    ],
)
def test_what_cannot_be_written(write: Any, error: Any, message: str) -> None:
    m = mu.zeros((2, 3), "int32")
    with pytest.raises(error, match=message) as caught:
        write(m)
    assert isinstance(caught.value, mu.errors.MutarrayError)
    assert not m[...].any()


@pytest.mark.core
def test_other_functions_are_numpys() -> None:
    x, m = made(PLACES[1])
    for call in (
        lambda a: np.sum(a, axis=0),
        lambda a: np.concatenate([a, a]),
        lambda a: np.stack((a, x)),
        lambda a: np.where(a > 3, a, 0),
        lambda a: np.allclose(a, x),
        lambda a: np.einsum("ij,ij->i", a, a),
        lambda a: np.linalg.norm(a),
        lambda a: np.copyto(np.zeros_like(x), a),
        lambda a: np.clip(a, 2, 3, out=np.zeros_like(x)),
    ):
        np.testing.assert_array_equal(call(m), call(x))
    assert np.clip(m, 2, 3, out=m) is m
    np.testing.assert_array_equal(m, x.clip(2, 3))


@pytest.mark.core
def test_shape_and_dtype_need_no_values() -> None:
    x, m = made(PLACES[1])

    def ask(a: Any) -> Any:
        made_alike = [np.zeros_like(a), np.ones_like(a), np.full_like(a, 3), np.empty_like(a)]
        alike = [(type(k), k.shape, k.dtype, k.flags.c_contiguous) for k in made_alike]
        looks = (np.shape(a), np.ndim(a), np.size(a), np.size(a, 1), np.result_type(a, np.int8))
        return alike, looks, np.iscomplexobj(a), np.isrealobj(a)

    seen = []
    jax.jit(lambda m: seen.append(ask(m)))(m)
    assert ask(m) == ask(x) == seen[0]


# Other protocols ---------------------------------------------------------------------------------


@pytest.mark.core
def test_dlpack() -> None:
    x, m = made(PLACES[0])
    view = np.from_dlpack(m)
    assert m.__dlpack_device__() == m[...].__dlpack_device__()
    np.testing.assert_array_equal(view, x)
    m[0] = -1.0
    m += 1.0
    jax.jit(lambda m: m.__setitem__(1, 0.0))(m)
    np.testing.assert_array_equal(view, x)  # a snapshot
    assert not view.flags.writeable
    np.testing.assert_array_equal(jnp.from_dlpack(m), m)
    large = mu.zeros((1 << 19,))
    view = np.from_dlpack(large)
    large[0] = 1.0
    large += 1.0
    assert not view.any()


def test_dlpack_says_what_it_cannot_do() -> None:
    _, m = made(PLACES[1])
    for ask in (lambda m: np.from_dlpack(m), lambda m: m.__dlpack_device__()):
        with pytest.raises(BufferError, match=r"lies on 8.*addressable_shards"):
            ask(m)
    with pytest.raises(mu.errors.ExportError, match="inside a trace"):
        jax.jit(lambda m: m.__dlpack__())(m)


@pytest.mark.core
def test_array_namespace() -> None:
    m = mu.zeros(3)
    assert m.__array_namespace__() is jnp
    version = jnp.__array_api_version__
    assert m.__array_namespace__(api_version=version) is jnp
    with pytest.raises(ValueError, match="1066"):
        m.__array_namespace__(api_version="1066.10")
