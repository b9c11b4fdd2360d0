"""`_plan` and `_layout` against NumPy: the parts, put together, are the selection."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding

from mutarray._form import Points
from mutarray._layout import Layout, layout_of, spec_where_divisible
from mutarray._plan import Part, plan
from mutarray._select import select
from mutarray.errors import BadShardingError, IndivisibleError
from tests.support import P, indices, layouts, mesh, numpy_take
from tests.test_select import positions

LAYOUTS = {name: layout_of(*pair) for name, pair in layouts(AxisType.Auto).items()}


def part_positions(part: Part, dims: tuple[Any, ...]) -> list[np.ndarray]:
    """Local positions of a part, over (points, spans...)."""
    spans, points = iter(part.spans), iter(part.points)
    lead = 0 if part.chosen is None else 1
    rank = lead + len(part.spans)
    axis, out = lead, []
    for dim in dims:
        if isinstance(dim, Points):
            out.append(next(points).reshape(-1, *[1] * (rank - 1)))
        else:
            span = next(spans)
            line = span.start + np.arange(span.size) * span.step
            out.append(line.reshape([-1 if a == axis else 1 for a in range(rank)]))
            axis += 1
    shape = (() if part.chosen is None else (len(part.chosen),)) + tuple(s.size for s in part.spans)
    return [np.broadcast_to(o, shape) for o in out]


def gather(x: np.ndarray, layout: Layout, selection: Any) -> np.ndarray:
    """Reads a selection block by block, as its plan says."""
    form = selection.form
    count = () if form.points_shape is None else (int(np.prod(form.points_shape)),)
    core = np.full(count + tuple(s.size for s in form.spans), -1, x.dtype)
    for part in plan(selection, layout).parts:
        block = x[tuple(slice(lo, hi) for lo, hi in part.shards[0].box)]
        value = tuple(slice(s.offset, s.offset + s.size) for s in part.spans)
        value = value if part.chosen is None else (part.chosen, *value)
        assert part.size > 0
        core[value] = block[tuple(part_positions(part, form.dims))]
    return core.reshape(form.core_shape)


@settings(max_examples=2000)
@given(st.data())
def test_parts_make_up_the_selection(data: st.DataObject) -> None:
    layout = LAYOUTS[data.draw(st.sampled_from(sorted(LAYOUTS)))]
    index = data.draw(indices(layout.shape))
    x = np.arange(np.prod(layout.shape, dtype=int)).reshape(layout.shape)
    wanted, error = numpy_take(x, index)
    if error is not None:
        return
    selection = select(layout.shape, index, writing=True)
    where = tuple(positions(selection))
    core = x[where] if where else np.broadcast_to(x, selection.form.core_shape)
    np.testing.assert_array_equal(gather(x, layout, selection), core)
    made = plan(selection, layout)
    assert made.touched_bytes(4) == wanted.size * 4 * layout.replicas
    assert len({id(s) for s in made.touched}) == len(made.touched)


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_blocks_tile_the_array(name: str) -> None:
    layout = LAYOUTS[name]
    seen = np.zeros(layout.shape, int)
    for block, shards in layout.owners.items():
        assert [s.replica for s in shards] == list(range(len(shards)))
        assert all(s.block == block for s in shards)
        seen[tuple(slice(lo, hi) for lo, hi in shards[0].box)] += 1
    assert (seen == 1).all()
    assert len(layout.shards) == layout.replicas * len(layout.owners)
    assert layout.fully_addressable


def test_only_the_owner_is_touched() -> None:
    m = mesh((4, 2), "ij")
    layout = layout_of((8, 6), NamedSharding(m, P("i", "j")))
    assert [s.block for s in plan(select((8, 6), (5, 4), writing=True), layout).touched] == [(2, 1)]
    replicated = layout_of((8, 6), NamedSharding(m, P("i")))
    touched = plan(select((8, 6), 5, writing=True), replicated).touched
    assert [(s.block, s.replica) for s in touched] == [((2, 0), 0), ((2, 0), 1)]


def test_dropped_positions_are_in_no_part() -> None:
    layout = layout_of((8,), NamedSharding(mesh((4,), "d"), P("d")))
    dropped = select((8,), np.array([9, 3, -20]), writing=True, mode="drop")
    (part,) = plan(dropped, layout).parts
    assert part.chosen.tolist() == [1]
    assert plan(select((8,), 9, writing=True, mode="drop"), layout).parts == ()
    assert plan(select((8,), False, writing=True), layout).parts == ()


@pytest.mark.parametrize(
    ("shape", "spec", "message"),
    [
        ((17, 16), P("i", None), r"axis 0 .* has size 17, .* split 4 ways.*make it 16 or 20 long"),
        ((8, 3), P("i", "j"), r"axis 1 .* has size 3, .*\('j',\) split 2 ways.*make it 2 or 4"),
        ((2, 8), P(("i", "j")), r"axis 0 .* has size 2, .*\('i', 'j'\) split 8 ways.*make it 8"),
    ],
)
def test_uneven_splits_are_refused(shape: tuple[int, ...], spec: P, message: str) -> None:
    with pytest.raises(IndivisibleError, match=message):
        layout_of(shape, NamedSharding(mesh((4, 2), "ij"), spec))


def test_bad_shardings_are_refused() -> None:
    m = mesh((4, 2), "ij")
    with pytest.raises(BadShardingError, match="names 2 dimensions, and the array of shape"):
        layout_of((8,), NamedSharding(m, P("i", "j")))
    with pytest.raises(BadShardingError, match="unconstrained"):
        layout_of((8,), NamedSharding(m, P(P.UNCONSTRAINED)))
    with pytest.raises(BadShardingError, match=r"not a jax\.sharding\.Sharding"):
        layout_of((8,), P("i"))


def test_reads_keep_axes_where_they_divide() -> None:
    sizes = {"i": 4, "j": 2}
    axes = (("i",), ("j",), ("i", "j"), None)
    assert spec_where_divisible((8, 3, 16, 5), axes, sizes) == P("i", None, ("i", "j"), None)
    assert spec_where_divisible((0, 2, 4, 5), axes, sizes) == P(None, None, None, None)


def test_layout_is_made_once() -> None:
    sharding = NamedSharding(mesh((4, 2), "ij"), P("i"))
    assert layout_of((8,), sharding) is layout_of((8,), NamedSharding(sharding.mesh, P("i")))
    assert jax.process_count() == 1
