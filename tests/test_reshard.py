"""`reshard`: another sharding in place, and never more on a device than its old and new block."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import mutarray as mu
from mutarray import _boxes, _jaxapi, _masked, _quick, _reshard
from mutarray._array import cell_of
from mutarray._jaxapi import make_single_device_sharding
from tests.support import KINDS, mesh

pytestmark = pytest.mark.core

P = PartitionSpec
X = np.arange(16 * 24, dtype=np.float32).reshape(16, 24)


def shardings(kind: AxisType) -> dict[str, Any]:
    """Shardings of an array of shape (16, 24) over eight, four, two and one device."""
    m8, m42, m4 = mesh((8,), "a", kind), mesh((4, 2), "ij", kind), mesh((4,), "a", kind)
    m222 = mesh((2, 2, 2), "xyz", kind)
    backwards = Mesh(np.array(jax.devices()[::-1]).reshape(2, 4), ("i", "j"), (kind,) * 2)
    return {
        "rows on 8": NamedSharding(m8, P("a")),
        "columns on 8": NamedSharding(m8, P(None, "a")),
        "4x2": NamedSharding(m42, P("i", "j")),
        "2x4": NamedSharding(m42, P("j", "i")),
        "4x2, rows": NamedSharding(m42, P("j")),
        "4x2, replicated": NamedSharding(m42, P()),
        "4x2, both on one": NamedSharding(m42, P(None, ("j", "i"))),
        "2x2x2": NamedSharding(m222, P("z", ("x", "y"))),
        "backwards": NamedSharding(backwards, P("i", "j")),
        "rows on 4": NamedSharding(m4, P("a")),
        "device 0": make_single_device_sharding(jax.devices()[0]),
        "device 5": make_single_device_sharding(jax.devices()[5]),
        "pinned": NamedSharding(m42, P("i", "j"), memory_kind="pinned_host"),
        "unpinned": NamedSharding(m8, P("a"), memory_kind="unpinned_host"),
    }


PLACES = {name: shardings(kind) for name, kind in KINDS.items()}
NAMES = list(PLACES["auto"])


def on_devices(chosen: bool) -> Any:
    """Parts go from device to device, as on accelerators, and not by way of the host."""
    way = (lambda *_: False) if chosen else _reshard._through_host
    return mock.patch.object(_reshard, "_through_host", way)


def values(m: Any) -> np.ndarray:
    """The contents, put together from the blocks."""
    out = np.empty(m.shape, m.dtype)
    for shard in m.addressable_shards:
        out[shard.index] = np.asarray(shard.data)
    return out


def pointers(m: Any) -> dict[jax.Device, int]:
    return {
        b.devices().pop(): b.unsafe_buffer_pointer() for b in _jaxapi.blocks(cell_of(m).array())
    }


# Values ------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(
    st.lists(st.sampled_from([(k, n) for k in KINDS for n in NAMES]), min_size=2, max_size=4),
    st.sampled_from([np.float32, jnp.bfloat16, np.int8, np.complex64, np.bool_]),
    st.booleans(),
)
def test_from_any_sharding_to_any(way: list[tuple[str, str]], dtype: Any, direct: bool) -> None:
    x = X.astype(dtype)
    first, *rest = [PLACES[kind][name] for kind, name in way]
    m = mu.mutable_array(x, first)
    for sharding in rest:
        before, old = m[...], m.sharding
        with on_devices(direct):
            assert m.reshard(sharding) is None
        assert m.sharding is sharding and m[...].sharding == sharding
        assert (m.shape, m.dtype, m.ndim) == (x.shape, x.dtype, 2)
        np.testing.assert_array_equal(values(m), x)
        m[3] = x[3] = x[5]
        np.testing.assert_array_equal(m[3], x[5])
        np.testing.assert_array_equal(values(m), x)
        assert before.sharding == old
        x[3] = np.asarray(before)[3]  # the snapshot has what was there before
        np.testing.assert_array_equal(before, x)
        m[3] = x[3]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["2x4", "backwards", "rows on 4", "device 5", "pinned"])
def test_works_in_every_way_afterwards(kind: str, name: str) -> None:
    x = X.copy()
    m = mu.mutable_array(x, PLACES[kind]["4x2"])
    m.reshard(PLACES[kind][name])
    jax.jit(lambda m, k: m.__setitem__((mu.ds(k, 3), 0), 7.0))(m, 4)
    x[4:7, 0] = 7
    m[[0, 9], 1::3] = x[[0, 9], 1::3] = -1
    m[x > 300] = 0
    x[x > 300] = 0
    m += 1
    x += 1
    np.testing.assert_array_equal(values(m), x)
    np.testing.assert_array_equal(m[2:5, ::-2], x[2:5, ::-2])
    assert m.copy().sharding == m.sharding is PLACES[kind][name]


@pytest.mark.parametrize("direct", [False, True])
def test_other_shapes_and_dtypes(direct: bool) -> None:
    m42 = mesh((4, 2), "ij")
    keys = jax.random.split(jax.random.key(0), (8, 4))
    for x, old, new in [
        (np.float32(3), P(), None),
        (np.zeros((0, 4), np.float32), P("i", "j"), P("j", None)),
        (np.zeros((0, 4), np.float32), P("i", "j"), None),
        (np.arange(64, dtype=np.int32).reshape(2, 4, 8), P("j", None, "i"), P(None, "j", "i")),
        (np.arange(8).astype(jnp.int4), P("i"), P("j")),
        (np.arange(8).astype(jnp.float8_e4m3fn), P("i"), None),
        (keys, P("i", "j"), P("j")),
        (keys, P("i"), None),
    ]:
        to = (
            make_single_device_sharding(jax.devices()[3])
            if new is None
            else NamedSharding(m42, new)
        )
        m = mu.mutable_array(x, NamedSharding(m42, old))
        with on_devices(direct):
            m.reshard(to)
        assert m.sharding is to and m.dtype == x.dtype
        assert m[...].sharding.is_equivalent_to(to, m.ndim)
        data = (lambda a: a) if x is not keys else jax.random.key_data
        np.testing.assert_array_equal(np.asarray(data(m[...])), np.asarray(data(x)))
        if m.size > 1:
            m[1] = m[0]
            np.testing.assert_array_equal(np.asarray(data(m[1])), np.asarray(data(x[0])))


@pytest.mark.parametrize("to", ["2x4", "4x2", "rows on 4", "device 5"])
def test_the_order_of_dimensions_stays(to: str) -> None:
    old = PLACES["auto"]["4x2"]
    m = mu.mutable_array(jax.device_put(X, Format(Layout((1, 0)), old)))
    m.reshard(PLACES["auto"][to])
    m[1] = 5.0
    assert m.format.layout.major_to_minor == (1, 0) and m.sharding is PLACES["auto"][to]
    np.testing.assert_array_equal(np.asarray(m)[[0, 1, 2]], [X[0], [5.0] * 24, X[2]])


def test_blocks_that_stay_are_not_copied_and_snapshots_keep_theirs() -> None:
    m42 = mesh((4, 2), "ij")
    m = mu.mutable_array(X, NamedSharding(m42, P("i")))
    held, at = m[...], pointers(m)
    same = NamedSharding(m42, P("i", None))
    m.reshard(same)
    assert m.sharding is same and pointers(m) == at
    m[0] = 9.0
    np.testing.assert_array_equal(held, X)
    assert sum(pointers(m)[d] != at[d] for d in at) == 2  # the row's owners
    m.reshard(make_single_device_sharding(jax.devices()[0]))
    m[1] = 9.0
    np.testing.assert_array_equal(held, X)
    np.testing.assert_array_equal(values(m), [[9.0] * 24] * 2 + X[2:].tolist())


# Errors ------------------------------------------------------------------------------------------


def test_errors_change_nothing() -> None:
    m42, m8 = mesh((4, 2), "ij"), mesh((8,), "a")
    sharding = NamedSharding(m42, P("i"))
    m = mu.mutable_array(np.ones((4, 6)), sharding)
    at = pointers(m)
    for bad, error, text in [
        (NamedSharding(m8, P("a")), mu.errors.IndivisibleError, "axis 0 of shape .* size 4"),
        (NamedSharding(m42, P(None, None, "i")), mu.errors.BadShardingError, "3 dimensions"),
        (P("i"), mu.errors.BadShardingError, "not a jax.sharding.Sharding"),
        (m42, mu.errors.BadShardingError, "not a jax.sharding.Sharding"),
    ]:
        with pytest.raises(error, match=text):
            m.reshard(bad)
        assert m.sharding is sharding and pointers(m) == at
    with pytest.raises(mu.errors.TraceError, match="Reshard before the call"):
        jax.jit(lambda m: m.reshard(sharding))(m)
    with pytest.raises(mu.errors.TraceError, match=r"mutarray.mutable_array\(m\[...\], sharding\)"):
        jax.jit(lambda: mu.zeros(4).reshard(sharding))()
    mu.freeze(m)
    with pytest.raises(mu.errors.SpentError):
        m.reshard(NamedSharding(m42, P("j")))


@pytest.mark.parametrize("direct", [False, True])
def test_a_failure_on_the_way_changes_nothing(direct: bool) -> None:
    m = mu.mutable_array(X, PLACES["auto"]["4x2"])
    m[0] = X[0]  # from here on in buffers that XLA writes to in place
    at = pointers(m)
    put, calls = jax.device_put, []

    def fails(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            raise MemoryError("no room")
        return put(*args, **kwargs)

    with (
        on_devices(direct),
        mock.patch.object(jax, "device_put", fails),
        pytest.raises(MemoryError, match="no room"),
    ):
        m.reshard(PLACES["auto"]["columns on 8"])
    assert m.sharding is PLACES["auto"]["4x2"] and pointers(m) == at
    m[0] = 0.0
    assert pointers(m) == at  # still written to in place
    np.testing.assert_array_equal(values(m)[1:], X[1:])


@pytest.mark.parametrize("direct", [False, True])
def test_writes_are_in_place_afterwards(direct: bool) -> None:
    m = mu.mutable_array(X, PLACES["auto"]["4x2"])
    for name in ("rows on 8", "2x4", "device 5", "4x2, replicated", "2x2x2"):
        with on_devices(direct):
            m.reshard(PLACES["auto"][name])
        at = pointers(m)
        m[3, 5] = 1.0
        m[:, 2:5] = 2.0
        assert pointers(m) == at


# Compiled programs -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_function_sees_the_new_sharding(kind: str) -> None:
    seen: list[Any] = []

    @jax.jit
    def step(m: Any, k: Any) -> Any:
        seen.append(m.sharding)
        m[k] = 1.0
        return m[k].sum()

    m = mu.mutable_array(X, PLACES[kind]["4x2"])
    for name in ["4x2", "2x4", "rows on 4", "device 5", "4x2"]:
        m.reshard(PLACES[kind][name])
        for k in (1, 2):
            assert step(m, k) == 24.0
        assert m.sharding is PLACES[kind][name] and m[...].sharding == m.sharding
    assert seen == [PLACES[kind][name] for name in ["4x2", "2x4", "rows on 4", "device 5"]]
    np.testing.assert_array_equal(values(m)[[0, 1, 2, 3]], [X[0], [1] * 24, [1] * 24, X[3]])


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_that_closed_over_it_works_on(kind: str) -> None:
    m = mu.mutable_array(X, PLACES[kind]["4x2"])

    @jax.jit
    def write(k: Any) -> Any:
        m[k] = 1.0
        return m[k, 0]

    assert write(1) == 1.0
    for name in ["2x4", "rows on 4", "device 5"]:
        m.reshard(PLACES[kind][name])
        m[1] = 0.0
        assert write(1) == 1.0
        m[2] = 3.0
        np.testing.assert_array_equal(values(m)[:4, 0], [0, 1, 3, 72])
        assert m[...].sharding == m.sharding == PLACES[kind][name]
        jax.jit(lambda m: m.__setitem__(2, 2.0))(m)
        assert write(1) == 1.0
        assert m[2, 0] == 2.0
    with mu.no_gather(), pytest.raises(mu.errors.GatherError, match="was resharded since"):
        write(1)


def test_no_gather_lets_it_pass_with_everything_around() -> None:
    m = mu.mutable_array(X, PLACES["auto"]["4x2"])
    with mu.no_gather():
        m[3] = 1.0
        m.reshard(PLACES["auto"]["2x4"])
        m[4] = 1.0
    np.testing.assert_array_equal(values(m)[2:6, 1], [49, 1, 1, 121])


# Memory ------------------------------------------------------------------------------------------


class Watch:
    """Adds up the bytes alive on each device whenever something is moved or waited for."""

    def __init__(self) -> None:
        self.before = {pointer for pointer, _, _ in self.alive()}
        self.most: dict[jax.Device, int] = {}
        self.largest = 0

    def alive(self) -> set[tuple[int, jax.Device, int]]:
        return {
            (block.unsafe_buffer_pointer(), block.devices().pop(), block.nbytes)
            for x in jax.live_arrays()
            if not x.is_deleted() and x.size
            for block in _jaxapi.blocks(x)
        }

    def look(self) -> None:
        bytes_on: dict[jax.Device, int] = {}
        for pointer, device, size in self.alive():
            if pointer not in self.before:
                bytes_on[device] = bytes_on.get(device, 0) + size
                self.largest = max(self.largest, size)
        for device, size in bytes_on.items():
            self.most[device] = max(self.most.get(device, 0), size)

    def looking(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            out = work(*args, **kwargs)
            self.look()
            return out

        return watched


SIDE = 512
PAIRS = [
    ("4x2", "2x4"),
    ("rows on 8", "columns on 8"),
    ("4x2", "backwards"),
    ("rows on 8", "rows on 4"),
    ("rows on 4", "4x2"),
    ("device 5", "rows on 8"),
    ("2x2x2", "pinned"),
    ("4x2, rows", "4x2, replicated"),
]


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_a_device_never_holds_more_than_old_and_new(old: str, new: str, direct: bool) -> None:
    before, after = PLACES["auto"][old], PLACES["auto"][new]
    x = np.arange(SIDE * SIDE, dtype=np.int32).reshape(SIDE, SIDE)
    m = mu.mutable_array(x, before)
    shape = m.shape
    olds, news = (4 * int(np.prod(s.shard_shape(shape))) for s in (before, after))
    watch = Watch()
    with on_devices(direct):
        m.reshard(after)  # compiles
        m.reshard(before)
    parts = [
        4 * np.prod([s.stop - s.start for s in part.source])
        for shard in _reshard.layout_of(shape, after).shards
        for part in _reshard._parts(_reshard.layout_of(shape, before), shard.box)
    ]
    tracemalloc.start()
    with (
        on_devices(direct),
        mock.patch.object(jax, "device_put", watch.looking(jax.device_put)),
        mock.patch.object(jax, "block_until_ready", watch.looking(jax.block_until_ready)),
        mock.patch.object(_reshard, "_continue", watch.looking(_reshard._continue)),
    ):
        tracemalloc.reset_peak()
        start = tracemalloc.get_traced_memory()[0]
        m.reshard(after)
        on_host = tracemalloc.get_traced_memory()[1] - start
    tracemalloc.stop()
    assert watch.most
    for device, most in watch.most.items():
        held = olds * (device in before.device_set) + news * (device in after.device_set)
        # On its way is what it gets, and what others get from it, one part for each.
        limit = held + (max(parts) * 3 if direct else 0)
        assert most <= limit, (device, most, limit)
    assert watch.largest <= max(olds, news)
    assert on_host < (0 if direct else news) + 400_000  # one block at a time
    np.testing.assert_array_equal(values(m), x)


def test_old_blocks_are_freed() -> None:
    m = mu.mutable_array(np.zeros((SIDE, SIDE), np.float32), PLACES["auto"]["4x2"])
    watch = Watch()
    watch.before = set()
    watch.look()
    for name in ("rows on 8", "2x4", "columns on 8"):
        m.reshard(PLACES["auto"][name])
    again = Watch()
    again.before = set()
    again.look()
    assert again.most == watch.most


# Threads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("launches", lambda m: m.__setitem__((3, 5), 1.0)),
        ("read", lambda m: m[3, 2:6]),
        ("box_of", lambda m: m[3, 2:6]),
    ],
)
def test_it_moves_while_another_thread_is_about_to_work(name: str, work: Any) -> None:
    m = mu.mutable_array(X, PLACES["auto"]["4x2"])
    module = _boxes if name == "box_of" else _quick
    original = getattr(module, name)
    moves = iter([PLACES["auto"]["columns on 8"]])
    threads: list[threading.Thread] = []

    def moved_meanwhile(*args: Any, **kwargs: Any) -> Any:
        out = original(*args, **kwargs)
        for sharding in moves:
            threads.append(threading.Thread(target=m.reshard, args=(sharding,)))
            threads[-1].start()
            threads[-1].join(None if name != "read" else 0.05)  # a read holds the lock already
        return out

    with mock.patch.object(module, name, moved_meanwhile):
        out = work(m)
    for thread in threads:
        thread.join()
    if out is not None:
        np.testing.assert_array_equal(out, X[3, 2:6])
    else:
        assert m[3, 5] == 1.0
        m[3, 5] = X[3, 5]
    assert m.sharding is PLACES["auto"]["columns on 8"]
    np.testing.assert_array_equal(values(m), X)


def test_a_mask_on_the_devices_follows() -> None:
    old = PLACES["auto"]["4x2"]
    m = mu.mutable_array(X, old)
    mask = jax.device_put(X > 50, old)
    original = _masked.selection

    def moved_meanwhile(*args: Any) -> Any:
        out = original(*args)
        m.reshard(PLACES["auto"]["rows on 4"])
        return out

    with mock.patch.object(_masked, "selection", moved_meanwhile):
        m[mask] = 0.0
    np.testing.assert_array_equal(values(m), np.where(X > 50, 0, X))


def test_threads_write_read_and_move() -> None:
    m = mu.zeros((16, 24), sharding=PLACES["auto"]["4x2"])
    errors: list[BaseException] = []

    def run(work: Callable[[int], None]) -> None:
        try:
            for k in range(16):
                work(k)
        except BaseException as error:
            errors.append(error)

    def write(k: int) -> None:
        m[k] = float(k)
        m[k, 2:20] = float(k)
        assert m[k, 5] == k

    names = ["2x4", "rows on 4", "device 5", "4x2", "4x2, replicated"]
    works = [write, lambda k: m.reshard(PLACES["auto"][names[k % len(names)]])]
    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    np.testing.assert_array_equal(values(m), np.repeat(np.arange(16.0)[:, None], 24, 1))


def test_traces_while_a_copy_is_lent_in_the_old_place() -> None:
    m = mu.mutable_array(X, PLACES["auto"]["4x2"])
    step = jax.jit(lambda: m.__setitem__((0, 0), m[0, 0] + 1))
    step()
    m.reshard(PLACES["auto"]["columns on 8"])
    for jit in (jax.jit, mu.jit):
        step()
        jit(lambda: m.__setitem__((0, 0), m[0, 0] + 1))()
    assert m[0, 0] == X[0, 0] + 5
