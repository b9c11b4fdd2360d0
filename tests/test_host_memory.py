"""Arrays in host memory: the eager engine works on them shard by shard, and in place.

Only the touched rows move between the memories. Where JAX has no programs on host memory (0.9), the
general engine gives the same values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, Sharding

import mutarray as mu
from mutarray import _buffers, _eager, _kernels
from mutarray._array import cell_of
from mutarray._jaxapi import make_single_device_sharding
from mutarray._plan import plan
from mutarray._select import select
from tests.support import KINDS, P, indices, mesh, numpy_take

MEMORIES = ["pinned_host", "unpinned_host"]
memories = pytest.mark.parametrize("memory", MEMORIES)
OPS: dict[str, Any] = {
    "add": np.add,
    "multiply": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def on_4x2(memory: str, spec: P = P("i", "j"), shape: tuple[int, int] = (16, 8)) -> Any:
    s = NamedSharding(mesh((4, 2), "ij"), spec, memory_kind=memory)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return mu.mutable_array(x, s), x


def pointers(m: mu.MutableArray) -> list[int]:
    cell = cell_of(m)
    return [cell.block(shard.device).unsafe_buffer_pointer() for shard in cell.place.layout.shards]


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Whether points go one by one in arrays that are small, too."""
    if not request.param:
        yield
        return
    clear = (_eager._write_kernel, _eager._read_kernel)
    monkeypatch.setattr(_kernels, "STEP_BYTES", 0)
    for cached in clear:
        cached.cache_clear()
    yield
    for cached in clear:
        cached.cache_clear()


memories_and_loops = pytest.mark.parametrize(
    ("memory", "loops"),
    [("pinned_host", True), ("pinned_host", False), ("unpinned_host", False)],
    ids=["pinned, loop", "pinned", "unpinned"],
    indirect=["loops"],
)


# Values ------------------------------------------------------------------------------------------

PLACES: dict[str, tuple[tuple[int, ...], Any]] = {
    "one device": ((5, 4), lambda k: make_single_device_sharding(jax.devices()[3], memory_kind=k)),
    "4x2": ((8, 6), lambda k: NamedSharding(mesh((4, 2), "ij"), P("i", "j"), memory_kind=k)),
    "explicit": (
        (4, 3, 8),
        lambda k: NamedSharding(
            mesh((4, 2), "ij", KINDS["explicit"]), P("i", None, "j"), memory_kind=k
        ),
    ),
}


@memories_and_loops
@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_parity(place: str, memory: str, loops: None, data: Any) -> None:
    shape, make = PLACES[place]
    s: Sharding = make(memory)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    m = mu.mutable_array(x, s)
    for _ in range(2):
        index = data.draw(indices(shape).filter(lambda i: numpy_take(x, i)[1] is None))
        got = m[index]
        np.testing.assert_array_equal(got, x[index])
        value = np.asarray(np.arange(np.size(x[index]), dtype=np.float32) * 3 % 7 - 2)
        value = value.reshape(np.shape(x[index]))
        op = data.draw(st.sampled_from(["set", *OPS]))
        if op == "set":
            m[index] = value
            x[index] = value
        else:
            getattr(m, f"{op}_at")(index, value)
            OPS[op].at(x, index, value)
        whole = m[...]
        np.testing.assert_array_equal(whole, x)
        assert m.sharding is s and whole.sharding == s
        assert whole.sharding.memory_kind == memory


DTYPES = [jnp.bool_, jnp.int8, jnp.bfloat16, jnp.complex64, jnp.int4]


@memories_and_loops
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_dtypes(memory: str, loops: None, dtype: Any) -> None:
    s = NamedSharding(mesh((4,), "i"), P("i"), memory_kind=memory)
    x = (np.arange(24).reshape(8, 3) % 3).astype(dtype)
    m = mu.mutable_array(x, s)
    value = (np.arange(9).reshape(3, 3) % 2).astype(dtype)
    for index in [slice(1, 4), slice(6, 0, -2), [0, 7, 0], np.arange(8) % 3 == 0]:
        x[index], m[index] = value, value
        np.testing.assert_array_equal(m[...], x)
        m.add_at(index, value)
        if dtype == jnp.int4:  # NumPy's ufuncs do not know it
            wide = x.astype(np.int8)
            np.add.at(wide, index, value.astype(np.int8))
            x = wide.astype(dtype)
        else:
            np.add.at(x, index, value)
        np.testing.assert_array_equal(m[index], x[index])
        np.testing.assert_array_equal(m[...], x)


@memories_and_loops
def test_points_out_of_range(memory: str, loops: None) -> None:
    m, x = on_4x2(memory)
    index = np.array([3, 99, -1, 7])
    mu.set(m, index, np.arange(4.0)[:, None], mode="drop", wrap_negative_indices=False)
    x[3], x[7] = 0.0, 3.0
    np.testing.assert_array_equal(m[...], x)
    got = mu.get(m, index, mode="fill", fill_value=-5, wrap_negative_indices=False)
    np.testing.assert_array_equal(got, [x[3], [-5] * 8, [-5] * 8, x[7]])
    got = mu.get(m, index, mode="clip", wrap_negative_indices=False)
    np.testing.assert_array_equal(got, x[[3, 15, 0, 7]])


@memories
def test_parts_are_read_into_device_memory(memory: str) -> None:
    m, x = on_4x2(memory)
    for index in [(5, 3), 5, slice(3, 9), slice(0, 16, 3), [1, 9, 1], (slice(0, 4), slice(0, 4))]:
        assert m[index].sharding.memory_kind == "device"
        np.testing.assert_array_equal(m[index] + 1, x[index] + 1)


@memories
def test_values_from_host_memory(memory: str) -> None:
    for target in (memory, "device"):
        for spec in (P(), P("i", "j")):
            m, x = on_4x2(target, spec)
            home = NamedSharding(mesh((4, 2), "ij"), P(None, "j"), memory_kind=memory)
            value = -x[:4]
            for index in [slice(0, 4), slice(2, 6), slice(6, 2, -1), [0, 3, 9, 1]]:
                m[index] = jax.device_put(value, home)
                x[index] = value
                np.testing.assert_array_equal(m[...], x)


# Where it runs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "spec"),
    [
        ("pinned_host", P("i", "j")),
        ("pinned_host", P("i")),
        ("pinned_host", P()),
        ("unpinned_host", P("i")),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "index", [(5, 3), 7, slice(3, 6), slice(15, 2, -3), [0, 9, 4], [2, 2]], ids=str
)
def test_writes_stay_in_place_and_on_the_touched_shards(memory: str, spec: P, index: Any) -> None:
    m, x = on_4x2(memory, spec)
    m[index] = -1.0
    x[index] = -1.0
    cell, before = cell_of(m), pointers(m)
    blocks = {shard.device: cell.block(shard.device) for shard in cell.place.layout.shards}
    m[index] = -2.0
    m.add_at(index, 1.0)
    x[index] = -2.0
    np.add.at(x, index, 1.0)
    np.testing.assert_array_equal(m[...], x)
    touched = {
        s.device for s in plan(select(m.shape, index, writing=True), cell.place.layout).touched
    }
    if in_shards(memory):
        assert pointers(m) == before, "each buffer is where it was: nothing was copied"
        assert {d for d, block in blocks.items() if block.is_deleted()} == touched


def in_shards(memory: str) -> bool:
    return _buffers.runs_in_memory("cpu", memory)


def test_who_can_and_who_cannot() -> None:
    works = jax.__version_info__ >= (0, 10)
    for memory in MEMORIES:
        assert in_shards(memory) is works
        m, _ = on_4x2(memory)
        assert (
            cell_of(m).place.memory == (memory if works else None) and not cell_of(m).place.is_local
        )
    m, _ = on_4x2("device")
    assert cell_of(m).place.memory is None and cell_of(m).place.is_local


@memories
@pytest.mark.parametrize(
    "index",
    [(5, 3), slice(5, 6), slice(30, 36), slice(0, 24, 3), [1, 5], ([1, 900], [3, 5])],
    ids=str,
)
@pytest.mark.parametrize("op", ["set", "add"])
def test_kernels_alias_their_block_and_move_little(memory: str, index: Any, op: str) -> None:
    m = mu.zeros(
        (1024, 2048), sharding=NamedSharding(mesh((4, 2), "ij"), P("i", "j"), memory_kind=memory)
    )
    cell = cell_of(m)
    selection = select(m.shape, index, writing=True)
    launches = _eager.write_launches(
        cell.place.layout, selection, 1.0, cell.dtype, op, cell.place.memory or memory
    )
    assert launches
    for device, kernel, operands in launches if in_shards(memory) else ():
        block = cell.block(device).nbytes
        compiled = kernel.lower(cell.block(device), *operands).compile()
        analysis = compiled.memory_analysis()
        assert analysis.alias_size_in_bytes == block
        assert analysis.temp_size_in_bytes < block / 8, "no copy of the block in device memory"
    device, _, (starts, points, _) = launches[0]
    read = _eager._read_kernel(kernel_form(selection, cell), None)
    if in_shards(memory):
        compiled = read.lower(cell.block(device), starts, points, np.float32(0)).compile()
        assert compiled.memory_analysis().temp_size_in_bytes < cell.block(device).nbytes / 8


def kernel_form(selection: Any, cell: Any) -> Any:
    part = plan(selection, cell.place.layout).parts[0]
    return _eager._local(selection.form, part, cell.place.layout, False).form


# Ownership ---------------------------------------------------------------------------------------


@memories
@pytest.mark.parametrize("shape", [(16, 8), (1024, 4096)], ids=["small", "large"])
def test_what_a_user_holds_never_changes(memory: str, shape: tuple[int, int]) -> None:
    m, x = on_4x2(memory, shape=shape)
    m[0] = 1.0
    x[0] = 1.0
    snapshot, view = m[...], np.asarray(m[...])
    shards = [(s.index, s.data) for s in m.addressable_shards]
    read = m[2]
    m[3:9] = -1.0
    m[[1, 2, 1]] = -2.0
    m.add_at(0, 5.0)
    m += 1.0
    jax.jit(lambda m: m.__setitem__(2, m[2] * 2))(m)
    np.testing.assert_array_equal(snapshot, x)
    np.testing.assert_array_equal(view, x)
    np.testing.assert_array_equal(read, x[2])
    for index, data in shards:
        np.testing.assert_array_equal(data, x[index])


@memories
def test_only_shared_blocks_are_copied(memory: str) -> None:
    m, _ = on_4x2(memory, P("i"))
    m[0], m[5] = 1.0, 1.0
    before = pointers(m)
    held = m[...]
    m[5] = -1.0
    after = pointers(m)
    if in_shards(memory):
        kept = [a == b for a, b in zip(before, after, strict=True)]
        assert kept == [True, True, False, False, True, True, True, True]
        m[6] = -2.0
        assert pointers(m) == after, "the copy is the array's own"
    assert np.asarray(held)[5, 0] == 1.0 and float(m[5, 0]) == -1.0


@memories
def test_eager_work_sees_what_a_compiled_program_wrote(memory: str) -> None:
    m, x = on_4x2(memory)
    for k in range(3):
        m[k] = -1.0
        x[k] = -1.0
        jax.jit(lambda m: m.__setitem__(slice(2, 6), m[2:6] + 1))(m)
        x[2:6] += 1
        np.testing.assert_array_equal(m[3], x[3])
        m[4:7] = 8.0
        x[4:7] = 8.0
        np.testing.assert_array_equal(m[...], x)
        assert m[...].sharding.memory_kind == memory


@memories
def test_bad_input_leaves_the_array_as_it_was(memory: str) -> None:
    m, x = on_4x2(memory)
    for index, value in [((16, 0), 1.0), ([0, 99], 1.0), (0, np.ones(3)), (0, 1j)]:
        with pytest.raises((IndexError, ValueError, TypeError)):
            m[index] = value
    np.testing.assert_array_equal(m[...], x)
