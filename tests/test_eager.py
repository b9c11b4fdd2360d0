"""The eager engine: equal to the general one, in place, and on the touched shards alone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding

import mutarray as mu
from mutarray import _boxes, _eager, _general, _quick
from mutarray._jaxapi import make_single_device_sharding
from mutarray._plan import covers, plan
from mutarray._select import select
from tests.counting import counted_compiles
from tests.support import KINDS, P, indices, layouts, mesh, numpy_take
from tests.test_parity import values

DEPTH = 100 if os.environ.get("MUTARRAY_DEEP") == "1" else 1
LAYOUTS = {(kind, name): pair for kind in KINDS for name, pair in layouts(KINDS[kind]).items()}


def cell_of(m: mu.MutableArray) -> Any:
    return m._cell


def pointers(m: mu.MutableArray) -> dict[int, int]:
    """Where each shard's buffer lies, by device."""
    cell = cell_of(m)
    return {
        s.device.id: cell.block(s.device).unsafe_buffer_pointer() for s in cell.place.layout.shards
    }


SPLIT = P("i", "j")


def on_4x2(shape: tuple[int, ...] = (16, 8), spec: P = SPLIT) -> mu.MutableArray:
    x = jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape)
    return mu.mutable_array(x, NamedSharding(mesh((4, 2), "ij"), spec))


@pytest.mark.core
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda pair: f"{pair[0]}-{pair[1]}")
@settings(max_examples=3 * DEPTH)
@given(data=st.data())
def test_equals_the_general_engine(layout: tuple[str, str], data: st.DataObject) -> None:
    shape, sharding = LAYOUTS[layout]
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    index = data.draw(indices(shape))
    taken, error = numpy_take(x, index)
    if error is not None:
        return
    value = data.draw(values(taken.shape, np.float32))
    op = data.draw(st.sampled_from(["set", "add", "multiply", "min", "max"]))
    m = mu.mutable_array(jnp.asarray(x), sharding)
    cell = cell_of(m)
    if not cell.place.is_local:
        assert m.size == 0
        return
    selection = select(shape, index, writing=True)
    general = _general.read(cell.array(), sharding, selection)
    eager = _eager.read(cell.block, cell.place.layout, selection, sharding)
    np.testing.assert_array_equal(np.asarray(eager), np.asarray(general))
    assert eager.sharding == general.sharding
    wanted = np.asarray(_general.write(cell.array(), sharding, selection, value, op))
    cell.run(_eager.write_launches(cell.place.layout, selection, value, cell.dtype, op))
    np.testing.assert_array_equal(np.asarray(m[...]), wanted)
    assert m[...].sharding == sharding


@pytest.mark.parametrize("covered", [False, True])
@settings(max_examples=300 * DEPTH)
@given(data=st.data())
def test_the_short_way_says_what_the_long_way_says(covered: bool, data: st.DataObject) -> None:
    layout = cell_of(on_4x2()).place.layout
    index = data.draw(indices(layout.shape, wild=True))
    box = _boxes.box_of(layout, index, covered)
    if box is None:
        return
    selection = select(layout.shape, index, writing=True)
    assert box.shape == selection.form.result_shape
    assert box.sources == selection.form.sources
    x = np.arange(128).reshape(16, 8)
    seen = np.full(box.shape, -1)
    touched: dict[tuple[Any, ...], int] = {}
    for piece in box.pieces:
        lows = [b * n for b, n in zip(piece.shards[0].block, layout.block_shape, strict=True)]
        taken = x[tuple(slice(n + i, n + i + k) for n, i, k in zip(lows, *piece[2:], strict=True))]
        assert taken.shape == piece.sizes, "a piece lies in its block"
        cut = ... if piece.cut is None else piece.cut
        seen[cut] = taken.reshape(seen[cut].shape)
        touched[piece.shards] = touched.get(piece.shards, 0) + taken.size
    np.testing.assert_array_equal(seen, x[index])
    parts = plan(selection, layout).parts
    assert set(touched) == {part.shards for part in parts}
    if not covered:
        assert touched == {part.shards: part.size for part in parts}, "no element comes twice"


@pytest.mark.parametrize("spec", [P("i", "j"), P(None, ("i", "j")), P("j"), P()], ids=str)
@settings(max_examples=20 * DEPTH)
@given(data=st.data())
def test_the_short_way_does_what_the_long_way_does(spec: P, data: st.DataObject) -> None:
    m = on_4x2(spec=spec)
    cell = cell_of(m)
    x = np.arange(128, dtype=np.float32).reshape(16, 8)
    index = data.draw(indices(m.shape))
    box = _boxes.box_of(cell.place.layout, index, covered=True)
    if box is None:
        return
    read = m[index]
    before = np.array(read)
    selection = select(m.shape, index, writing=False)
    if not selection.form.is_whole:
        long = _eager.read(cell.block, cell.place.layout, selection, cell.sharding)
        assert read.sharding == long.sharding
        np.testing.assert_array_equal(np.asarray(read), np.asarray(long))
    value: Any = -np.arange(1.0, 1.0 + np.prod(box.shape), dtype=np.float32).reshape(box.shape)
    value = data.draw(st.sampled_from([value, value.T.copy().T, 2.0, -3, np.float32(4)]))
    given_value = np.array(value)
    m[index] = value
    if isinstance(value, np.ndarray) and value.ndim:
        value[...] = 77.0  # the array has its own copy by now
    x[index] = given_value
    np.testing.assert_array_equal(np.asarray(m[...]), x)
    np.testing.assert_array_equal(np.asarray(read), before)


@pytest.mark.parametrize("spec", [P("i", "j"), P("j"), P()], ids=str)
@pytest.mark.parametrize("rate", [0.0, 0.02, 0.3, 1.0])
@pytest.mark.parametrize("value", [2.0, -3, np.float32(4), np.full((1,), 5.0, np.float32)], ids=str)
def test_masks_of_the_whole_array(spec: P, rate: float, value: Any) -> None:
    m = on_4x2((64, 32), spec)
    cell = cell_of(m)
    x = np.array(m[...])
    mask = np.random.default_rng(0).random(m.shape) < rate
    short = _quick.launches(cell.place.layout, mask, value, cell.dtype)
    assert (short is not None) == (rate > 0 and np.ndim(value) == 0)
    m[mask] = value
    x[mask] = value
    mask[...] = True  # the array has its own copy by now
    np.testing.assert_array_equal(np.asarray(m[...]), x)
    index = (slice(None), mask[0])
    m[index] = value
    x[index] = value
    np.testing.assert_array_equal(np.asarray(m[...]), x)


def test_a_value_is_read_before_a_write_returns() -> None:
    m = large()
    rows = [0, 700, 3, 1023]
    for index in [rows, slice(100, 700), 5]:
        value = np.full(m[index].shape, 3.0, np.float32)
        m[index] = value
        value[...] = 7.0
        assert (np.asarray(m[index]) == 3.0).all()


def test_common_boxes_take_the_short_way() -> None:
    layout = cell_of(on_4x2()).place.layout
    for index in [
        (0, 0),
        (-1, -1),
        (slice(4, 8), slice(0, 4)),
        (5, slice(None, 4)),
        (3, slice(1, 2)),
        5,
        slice(2, 6),
        (slice(None), 3),
        (slice(1, 15), slice(2, 7)),
    ]:
        assert _boxes.box_of(layout, index, covered=True) is not None
    for index in [(0, slice(0, 8, 2)), [1], (True, 1), (16, 0), (0, 0, 0), None, slice(3, 3)]:
        assert _boxes.box_of(layout, index, covered=True) is None


@pytest.mark.parametrize("size", range(1, 40))
def test_covers(size: int) -> None:
    windows = covers(size)
    assert {k for start, length in windows for k in range(start, start + length)} == {*range(size)}
    assert {length for _, length in windows} == {1 << (size.bit_length() - 1)}


@pytest.mark.parametrize(
    ("index", "value"),
    [
        ((5, 3), 1.0),
        ((slice(1, 3), slice(0, 2)), np.ones((2, 2), np.float32)),
        (7, 2.0),
        (slice(3, 6), 1.0),
        (slice(15, 2, -3), 1.0),
        (np.array([0, 9, 4]), 3.0),
        (np.arange(16) % 5 == 0, 3.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("spec", [P("i", "j"), P("i"), P()], ids=str)
def test_writes_stay_in_place_and_on_the_touched_shards(index: Any, value: Any, spec: P) -> None:
    m = on_4x2(spec=spec)
    m[index] = value
    before = pointers(m)
    cell = cell_of(m)
    touched = {
        s.device for s in plan(select(m.shape, index, writing=True), cell.place.layout).touched
    }
    blocks = {s.device: cell.block(s.device) for s in cell.place.layout.shards}
    m[index] = value
    assert pointers(m) == before, "each buffer is where it was: nothing was copied"
    for device, block in blocks.items():
        ran = block.is_deleted()  # its buffer was donated to a program
        assert ran == (device in touched), "programs run on touched devices alone"


@pytest.mark.parametrize(
    "index",
    [
        (5, 3),
        slice(5, 6),
        slice(3, 6),
        slice(0, 16, 3),
        np.array([1, 5]),
        (np.array([1, 5]), slice(3, 90)),
    ],
    ids=str,
)
def test_kernels_alias_their_block_and_need_no_copy_of_it(index: Any) -> None:
    m = mu.zeros((1024, 512), sharding=NamedSharding(mesh((4, 2), "ij"), P("i", "j")))
    cell = cell_of(m)
    selection = select(m.shape, index, writing=True)
    launches = _eager.write_launches(cell.place.layout, selection, 1.0, cell.dtype)
    assert launches
    for device, kernel, operands in launches:
        compiled = kernel.lower(cell.block(device), *operands).compile()
        block = cell.block(device).nbytes
        memory = compiled.memory_analysis()
        assert memory.alias_size_in_bytes == block
        assert memory.temp_size_in_bytes < block / 4, "no second copy of the block"
        assert "all-" not in compiled.as_text()


def test_other_index_values_compile_nothing() -> None:
    m = on_4x2((64, 32))
    row, rows = np.ones(32, np.float32), np.ones((9, 32), np.float32)

    def step(k: int) -> None:
        m[k, k % 32] = 1.0
        m[k] = row
        m[k : k + 9] = rows
        m[[k, 63 - k, 40, (k + 9) % 64]] = 2.0
        m[k, k % 32], m[k], m[k : k + 9], m[[k, 2]]

    # A window of 9 in blocks of 16 lies in one block or in two; four points of one owner or more
    # are padded to 1, 2 or 4. After all these have come up once, nothing is new.
    for k in range(0, 50):
        step(k)
    with counted_compiles() as compiles:
        for k in range(50):
            step(k)
    assert compiles == []


def test_new_sizes_compile_a_bounded_number() -> None:
    m = mu.zeros((64, 4), sharding=NamedSharding(mesh((4,), "d"), P("d")))
    m[0:1] = 1.0
    with counted_compiles() as compiles:
        for size in range(2, 6):
            for k in range(64 - size):
                m[k : k + size] = 1.0
    # For each size and device: the window inside one block, and the masked one across a border.
    assert 0 < len(compiles) <= 4 * 4 * 2


def test_memory_stays_flat() -> None:
    m = mu.zeros((4096, 1024), sharding=NamedSharding(mesh((8,), "a"), P("a")))
    m[0:8] = 0.0
    before = pointers(m)
    alive = len(jax.live_arrays())
    for k in range(200):
        m[8 * k % 4000 : 8 * k % 4000 + 8] = float(k)
    assert pointers(m) == before
    assert len(jax.live_arrays()) <= alive + 2


def test_only_shared_blocks_are_copied() -> None:
    m = on_4x2(spec=P("i"))
    before = pointers(m)
    held = m[...]
    m[5] = -1.0
    after = pointers(m)
    moved = {device for device in before if before[device] != after[device]}
    assert moved == {2, 3}, "block 1 lies on devices 2 and 3 of the mesh"
    assert held[5, 0] == 40.0
    m[6] = -2.0
    assert pointers(m) == after, "the copy is the array's own: the next write is in place"


def exports(m: mu.MutableArray) -> dict[str, Callable[[], np.ndarray]]:
    """Everything that a user may hold, and how to look at it."""
    snapshot, view = m[...], np.asarray(m[...])
    shards = [(s.index, s.data) for s in m.addressable_shards]
    value = jnp.full((8,), 5.0)
    m[0] = value

    def joined() -> np.ndarray:
        out = np.zeros(m.shape, np.float32)
        for index, data in shards:
            out[index] = np.asarray(data)
        return out

    return {
        "snapshot": lambda: np.asarray(snapshot),
        "view": lambda: view,
        "shards": joined,
        "value": lambda: np.asarray(value),
    }


def test_nothing_that_a_user_holds_changes() -> None:
    m = on_4x2()
    held = exports(m)
    before = {name: look().copy() for name, look in held.items()}
    m[0, 0] = -1.0
    m[3:9] = -2.0
    m[[1, 2]] = -3.0
    m[...] = -4.0
    jax.jit(lambda m: m.__setitem__(..., m[...] - 1.0))(m)
    mu.addupdate(m, ..., 1.0)
    for name, look in held.items():
        np.testing.assert_array_equal(look(), before[name], err_msg=name)
    assert float(m[3, 3]) == -4.0


def test_a_read_never_shares_a_buffer_with_the_array() -> None:
    m = on_4x2()
    for index in [(slice(0, 4), slice(0, 4)), slice(None, None, 1), None, (..., None), slice(0, 4)]:
        read = m[index]
        before = np.asarray(read).copy()
        m[...] = m[...] + 1.0
        m[0, 0] = 99.0
        m[0:4] = 98.0
        np.testing.assert_array_equal(np.asarray(read), before)


# Failures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "value", "error"),
    [
        ((16, 0), 1.0, IndexError),
        ([0, 99], 1.0, IndexError),
        (0, np.ones(3), ValueError),
        (0, 1j, TypeError),
        ("x", 1.0, IndexError),
        (slice(0, 3), object(), TypeError),
    ],
)
def test_bad_input_leaves_the_array_as_it_was(index: Any, value: Any, error: type) -> None:
    m = on_4x2()
    before, where = np.asarray(m[...]).copy(), pointers(m)
    with pytest.raises(error):
        m[index] = value
    np.testing.assert_array_equal(np.asarray(m[...]), before)
    assert pointers(m) == where


class Once(Exception):
    """Raised by a kernel the first time that it is called."""


def raising(kernel: Callable[..., Any], error: type[BaseException]) -> Callable[..., Any]:
    calls: list[int] = []

    def call(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise error
        return kernel(*args)

    return call


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("error", [Once, KeyboardInterrupt])
def test_an_interrupted_write_is_done_whole_or_not_at_all(
    at: int, error: type[BaseException]
) -> None:
    m = on_4x2(spec=P("i"))
    before = np.asarray(m[...]).copy()
    after = before.copy()
    after[3:9] = -1.0
    cell = cell_of(m)
    selection = select(m.shape, slice(3, 9), writing=True)
    launches = _eager.write_launches(cell.place.layout, selection, -1.0, cell.dtype)
    device, kernel, operands = launches[at]
    launches[at] = (device, raising(kernel, error), operands)
    with pytest.raises(error):
        cell.run(launches)
    np.testing.assert_array_equal(np.asarray(m[...]), after if at else before)


def test_an_array_that_is_truly_lost_says_so() -> None:
    m = on_4x2(spec=P("i"))
    cell = cell_of(m)
    selection = select(m.shape, slice(3, 9), writing=True)
    launches = _eager.write_launches(cell.place.layout, selection, -1.0, cell.dtype)

    def broken(*args: Any) -> Any:
        raise Once

    launches[1] = (launches[1][0], broken, launches[1][2])
    with pytest.raises(Once):
        cell.run(launches)
    for use in (lambda: m[0], lambda: m.__setitem__(0, 1.0), lambda: jax.jit(lambda m: m[0])(m)):
        with pytest.raises(mu.errors.SpentError, match="contents are lost"):
            use()
    assert "spent" in repr(m)


def test_no_write_of_many_threads_is_lost() -> None:
    m = mu.zeros((64, 8), sharding=NamedSharding(mesh((4, 2), "ij"), P("i", "j")))

    def work(k: int) -> None:
        for _ in range(5):
            mu.addupdate(m, slice(None), 1.0)
            mu.addupdate(m, slice(3, 40), 1.0)
            m[k] = m[k]

    m[0] = m[0]
    threads = [threading.Thread(target=work, args=(0,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = np.asarray(m[...])
    assert (got[3:40] == 60).all()
    assert (got[40:] == 30).all()


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_values_of_any_sharding(kind: str) -> None:
    m8 = mesh((4, 2), "ij", KINDS[kind])
    other = mesh((8,), "a", AxisType.Auto)
    x = np.arange(128, dtype=np.float32).reshape(16, 8)
    v = -np.arange(48, dtype=np.float32).reshape(6, 8)
    shardings = [
        NamedSharding(m8, P()),
        NamedSharding(m8, P("j")),
        NamedSharding(m8, P(None, "i")),
        NamedSharding(other, P(None, "a")),
        make_single_device_sharding(jax.devices()[5]),
    ]
    for sharding in shardings:
        for index in [slice(3, 9), slice(9, 3, -1), [0, 5, 9, 3, 1, 15], slice(0, 12, 2)]:
            m = mu.mutable_array(jnp.asarray(x), NamedSharding(m8, P("i", "j")))
            value = jax.device_put(v, sharding)
            m[index] = value
            wanted = x.copy()
            wanted[index] = v
            np.testing.assert_array_equal(np.asarray(m[...]), wanted)
            np.testing.assert_array_equal(np.asarray(value), v)


def large() -> mu.MutableArray:
    """Blocks of 2 MiB: worth finding out whether somebody holds them."""
    return mu.zeros((1024, 4096), sharding=NamedSharding(mesh((4, 2), "ij"), SPLIT))


@pytest.mark.parametrize("write", ["eager", "whole", "jit"])
def test_a_snapshot_that_is_gone_costs_no_copy(write: str) -> None:
    def change(m: mu.MutableArray) -> None:
        if write == "eager":
            m[5, 5] = 1.0
        elif write == "whole":
            m += 1.0
        else:
            jax.jit(lambda m: m.__setitem__(..., m[...] + 1.0))(m)

    m = large()
    change(m)
    before = pointers(m)
    del_me = [m[...], m.addressable_shards]
    del del_me
    assert float(jnp.sum(m[...])) != 0.0
    change(m)
    assert pointers(m) == before


@pytest.mark.parametrize("hold", ["snapshot", "shard", "part of a snapshot", "reassembled"])
def test_what_is_left_of_a_snapshot_is_found(hold: str) -> None:
    m = large()
    m[...] = 2.0
    snapshot = m[...]
    shards = [s.data for s in snapshot.addressable_shards]
    held: Any = {
        "snapshot": snapshot,
        "shard": shards[0],
        "part of a snapshot": jax.make_array_from_single_device_arrays(
            (512, 2048), NamedSharding(mesh((2,), "d"), P("d")), [shards[0], shards[1]]
        ),
        "reassembled": jax.make_array_from_single_device_arrays(m.shape, m.sharding, shards),
    }[hold]
    del snapshot, shards
    m[5, 5] = 1.0
    m += 1.0
    assert not held.is_deleted()
    assert (np.asarray(held) == 2.0).all()


def test_views_of_other_libraries_stay() -> None:
    m = large()
    m[...] = 2.0
    view, exported = np.asarray(m[...]), np.from_dlpack(m.addressable_shards[0].data)
    m[5, 5] = 1.0
    m += 1.0
    assert (view == 2.0).all()
    assert (exported == 2.0).all()
