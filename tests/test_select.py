"""`_select` against NumPy: the selection, read off in plain NumPy, takes what NumPy takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mutarray._form import Points, Selection
from mutarray._select import select
from tests.support import indices, numpy_take

SHAPES = [(), (1,), (5,), (0,), (3, 4), (4, 0), (2, 3, 4), (3, 1, 5), (2, 2, 3, 2)]


def positions(selection: Selection) -> list[np.ndarray]:
    """For each dimension of the array, the positions taken, broadcast to the core's shape."""
    form = selection.form
    p = len(form.points_shape or ())
    rank = len(form.core_shape)
    starts, points = iter(selection.starts), iter(selection.points)
    axis = p
    out: list[np.ndarray] = []
    for dim in form.dims:
        if isinstance(dim, Points):
            array = np.broadcast_to(np.asarray(next(points)), form.points_shape or ())
            out.append(array.reshape(*array.shape, *[1] * (rank - p)))
        else:
            line = int(next(starts)) + np.arange(dim.size) * dim.step
            out.append(line.reshape([-1 if a == axis else 1 for a in range(rank)]))
            axis += 1
    return [np.broadcast_to(o, form.core_shape) for o in out]


def as_result(core: np.ndarray, selection: Selection) -> np.ndarray:
    form = selection.form
    p = len(form.points_shape or ())
    flips = [p + k for k, span in enumerate(form.spans) if span.flip]
    core = np.flip(core, flips) if flips else core
    at = form.points_at
    return core.transpose([*range(p, p + at), *range(p), *range(p + at, core.ndim)]).reshape(
        form.result_shape
    )


def take(x: np.ndarray, selection: Selection) -> np.ndarray:
    where = tuple(positions(selection))
    core = x[where] if where else np.broadcast_to(x, selection.form.core_shape)
    return as_result(core, selection)


@settings(max_examples=2000)
@given(st.data())
def test_takes_what_numpy_takes(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    index = data.draw(indices(shape))
    x = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    wanted, error = numpy_take(x, index)
    if error is not None:  # the strategy draws few of these: arrays that do not broadcast
        with pytest.raises(error):
            select(shape, index, writing=False)
        return
    for writing in (False, True):
        selection = select(shape, index, writing=writing)
        assert selection.is_known
        assert selection.form.result_shape == wanted.shape
        np.testing.assert_array_equal(take(x, selection), wanted)
        hash(selection.form)


@settings(max_examples=2000)
@given(st.data())
def test_refuses_what_numpy_refuses(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    index = data.draw(indices(shape, wild=True))
    x = np.zeros(shape)
    wanted, error = numpy_take(x, index)
    if error is None:
        assert select(shape, index, writing=True).form.result_shape == wanted.shape
    else:
        with pytest.raises(IndexError):
            select(shape, index, writing=True)


@settings(max_examples=1000)
@given(st.data())
def test_sources_name_the_dimension_of_each_axis(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from(SHAPES))
    index = data.draw(indices(shape))
    if numpy_take(np.zeros(shape), index)[1] is not None:
        return
    form = select(shape, index, writing=False).form
    assert len(form.sources) == len(form.result_shape)
    sizes = dict(zip(form.span_dims, form.spans, strict=True))
    for source, n in zip(form.sources, form.result_shape, strict=True):
        assert source is None or sizes[source].size == n


@pytest.mark.parametrize(
    ("index", "whole"),
    [
        (..., True),
        ((), True),
        (slice(None), True),
        ((slice(0, 4), slice(None, 99)), True),
        (slice(None, None, -1), False),
        (None, False),
        ((slice(None), slice(0, 2)), False),
        (np.ones((4, 3), bool), False),
        (True, False),
    ],
)
def test_whole(index: Any, whole: bool) -> None:
    assert select((4, 3), index, writing=False).form.is_whole is whole


def test_an_index_value_is_no_part_of_the_form() -> None:
    for a, b in [
        (3, 5),
        (slice(1, 4), slice(5, 8)),
        (slice(8, 2, -2), slice(9, 3, -2)),
        (np.array([1, 2]), np.array([7, 0])),
        (slice(2, 3), slice(7, 9, 5)),
    ]:
        one, two = (select((10, 4), i, writing=True) for i in (a, b))
        assert one.form == two.form and hash(one.form) == hash(two.form)
