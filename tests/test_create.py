"""Constructors: every source, every sharding, every dtype; born in shards; what they refuse."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, Mesh, NamedSharding, Sharding

import mutarray as mu
from mutarray import _jaxapi
from mutarray._jaxapi import is_single_device_sharding, make_single_device_sharding
from tests.cases.support import on_mesh
from tests.support import KINDS, P, mesh

kinds = pytest.mark.parametrize("kind", KINDS)


def m42(kind: str = "auto") -> Mesh:
    return mesh((4, 2), "ij", KINDS[kind])


def mixed() -> Mesh:
    devices = np.array(jax.devices()).reshape(4, 2)
    return Mesh(devices, ("i", "j"), axis_types=(AxisType.Explicit, AxisType.Auto))


def gspmd() -> Sharding:
    rows = NamedSharding(m42(), P("i", "j"))
    return _jaxapi.GSPMDSharding(tuple(m42().devices.flat), rows._to_xla_hlo_sharding(2))


SHARDINGS: dict[str, Callable[[], Sharding]] = {
    "auto": lambda: NamedSharding(m42(), P("i", "j")),
    "auto, spec in full": lambda: NamedSharding(m42(), P("i", None)),
    "explicit": lambda: NamedSharding(m42("explicit"), P("i", "j")),
    "explicit, one axis": lambda: NamedSharding(m42("explicit"), P(None, "i")),
    "mixed": lambda: NamedSharding(mixed(), P("i", "j")),
    "mixed, both on one": lambda: NamedSharding(mixed(), P(("i", "j"))),
    "both on one": lambda: NamedSharding(m42(), P(("i", "j"))),
    "both on the second": lambda: NamedSharding(m42("explicit"), P(None, ("j", "i"))),
    "replicated": lambda: NamedSharding(m42(), P()),
    "one device": lambda: make_single_device_sharding(jax.devices()[5]),
    "one device, pinned_host": lambda: make_single_device_sharding(
        jax.devices()[2], memory_kind="pinned_host"
    ),
    "GSPMD": gspmd,
    "pinned_host": lambda: NamedSharding(m42(), P("i"), memory_kind="pinned_host"),
    "unpinned_host": lambda: NamedSharding(m42(), P("i", "j"), memory_kind="unpinned_host"),
    "pinned_host, explicit": lambda: NamedSharding(
        m42("explicit"), P("i"), memory_kind="pinned_host"
    ),
}
shardings = pytest.mark.parametrize("name", SHARDINGS)
X = np.arange(8 * 16, dtype=np.float32).reshape(8, 16)


def check(m: mu.MutableArray, s: Sharding, wanted: np.ndarray) -> None:
    """Contents, sharding and the place of every shard."""
    whole = m[...]
    np.testing.assert_array_equal(whole, wanted)
    assert m.sharding is s, "the very object"
    assert whole.sharding == s and whole.sharding.memory_kind == s.memory_kind
    assert m.shape == wanted.shape and m.dtype == wanted.dtype
    for shard in m.addressable_shards:
        assert shard.data.devices() == {shard.device}
        assert shard.data.shape == s.shard_shape(m.shape)
        np.testing.assert_array_equal(shard.data, wanted[shard.index])


def check_writes(m: mu.MutableArray, s: Sharding, wanted: np.ndarray) -> None:
    wanted = wanted.copy()
    m[3, ::-2] = wanted[3, ::-2] = 50
    check(m, s, wanted)
    jax.jit(lambda m: m.__setitem__((slice(None), 1), 60.0))(m)
    wanted[:, 1] = 60
    check(m, s, wanted)


# Sources -----------------------------------------------------------------------------------------


@shardings
def test_from_a_jax_array(name: str) -> None:
    s = SHARDINGS[name]()
    x = jax.device_put(X, s)
    m = mu.mutable_array(x)
    check(m, x.sharding, X)
    assert m.sharding == s
    check_writes(m, x.sharding, X)
    assert not x.is_deleted()
    np.testing.assert_array_equal(x, X)


@shardings
def test_to_a_sharding(name: str) -> None:
    """From an array somewhere else, from NumPy, and from one that is there already."""
    s = SHARDINGS[name]()
    sources = [
        jnp.asarray(X),
        X.copy(),
        jax.device_put(X, jax.devices()[7]),
        jax.device_put(X, s),
        jax.device_put(X, NamedSharding(mesh((2,), "a"), P(None, "a"))),
    ]
    for x in sources:
        m = mu.mutable_array(x, s)
        check(m, s, X)
        check_writes(m, s, X)
        np.testing.assert_array_equal(x, X)


@shardings
def test_a_numpy_source_and_the_array_do_not_share_memory(name: str) -> None:
    s, x = SHARDINGS[name](), X.copy()
    x.flags.writeable = True
    m = mu.mutable_array(x, s)
    x[:] = -1
    check(m, s, X)
    m[0] = 9.0
    np.testing.assert_array_equal(x, np.full_like(X, -1))


@pytest.mark.parametrize(
    "make", [np.asarray, np.asfortranarray, lambda x: x[::-1, ::2], memoryview]
)
def test_numpy_sources_without_a_sharding(make: Any) -> None:
    x = make(X.copy())
    m = mu.mutable_array(x)
    before = np.array(x)
    np.testing.assert_array_equal(m[...], before)
    m[0] = 9.0
    np.testing.assert_array_equal(np.array(x), before)
    if isinstance(x, np.ndarray):
        x[:] = -1
        assert float(m[1, 0]) == before[1, 0] and float(m[0, 0]) == 9
    assert is_single_device_sharding(m.sharding)


@pytest.mark.parametrize(
    ("source", "dtype"),
    [
        (3, jnp.int32),
        (True, jnp.bool_),
        (2.5, jnp.float32),
        (1j, jnp.complex64),
        ([[1, 2], [3, 4]], jnp.int32),
        ([1, 2.5], jnp.float32),
        ((True, False), jnp.bool_),
        ([], jnp.float32),
        ([np.float16(1), np.float16(2)], jnp.float16),
        (np.int8(3), jnp.int8),
        (np.float64(1.5), jnp.float32),
        (np.arange(3), jnp.int32),
        (range(4), jnp.int32),
    ],
    ids=str,
)
def test_scalars_and_sequences(source: Any, dtype: Any) -> None:
    m = mu.mutable_array(source)
    assert m.dtype == dtype and m.shape == np.shape(source)
    np.testing.assert_array_equal(m[...], np.asarray(source))
    s = NamedSharding(m42(), P())
    k = mu.mutable_array(source, s)
    assert k.sharding is s and k.dtype == dtype
    np.testing.assert_array_equal(k[...], np.asarray(source))


def test_a_weak_type_does_not_stay() -> None:
    m = mu.mutable_array(jnp.asarray(3))
    assert not m[...].weak_type and not mu.mutable_array(jnp.sin(1.0))[...].weak_type


@kinds
def test_from_a_mutable_array_and_from_a_ref(kind: str) -> None:
    s = NamedSharding(m42(kind), P("i", "j"))
    a = mu.mutable_array(X, s)
    ref = jax.new_ref(jax.device_put(X, s))
    for source in (a, ref):
        m = mu.mutable_array(source)
        assert m is not source and m.sharding == s
        m[0] = -1.0
        jax.jit(lambda r: r.__setitem__(..., r[...] + 100))(source)
        wanted = X.copy()
        wanted[0] = -1
        np.testing.assert_array_equal(m[...], wanted)
        other = X.copy()
        other += 100
        np.testing.assert_array_equal(source[...], other)
        t = NamedSharding(m42(kind), P(None, "i"))
        check(mu.mutable_array(source, t), t, other)
    b = mu.mutable_array(a)
    assert b.sharding is a.sharding


@kinds
def test_a_custom_order_of_dimensions_in_memory_is_kept(kind: str) -> None:
    s = NamedSharding(m42(kind), P("i", "j"))
    for order in ((0, 1), (1, 0)):
        x = jax.device_put(X, Format(Layout(order), s))
        assert x.format.layout.major_to_minor == order
        for donate in (False, True):
            m = mu.mutable_array(x, donate=donate)
            layout = lambda m=m: m[...].format.layout.major_to_minor  # noqa: E731
            assert layout() == order
            m[0, 0] = 5.0
            assert layout() == order
            mu.addupdate(m, [1, 1], 1.0)
            assert layout() == order
            jax.jit(lambda m: m.__setitem__((1, slice(None)), m[0]))(m)
            assert layout() == order and m.sharding == s
            wanted = X.copy()
            wanted[0, 0], wanted[1] = 5, wanted[0]
            wanted[1, 0] = 5
            np.testing.assert_array_equal(m[...], wanted)
            if not donate:
                np.testing.assert_array_equal(x, X)


# Donation ----------------------------------------------------------------------------------------


def where(x: Any) -> list[int]:
    return sorted(shard.data.unsafe_buffer_pointer() for shard in x.addressable_shards)


@shardings
def test_donation(name: str) -> None:
    s = SHARDINGS[name]()
    x = jax.device_put(X, s)
    if s.memory_kind == "device":  # buffers of its own: those of a NumPy array are not given away
        x = jax.jit(lambda x: x + 0, out_shardings=s)(x)
    pointers = where(x)
    m = mu.mutable_array(x, donate=True)
    assert x.is_deleted()
    assert m.sharding == s
    if s.memory_kind == "device":
        assert where(m[...]) == pointers, "no copy"
    np.testing.assert_array_equal(m[...], X)
    check_writes(m, m.sharding, X)


@shardings
@pytest.mark.parametrize("hold", ["snapshot", "shard", "shards", "list of shards", "view"])
def test_donation_deletes_nothing_that_others_hold(name: str, hold: str) -> None:
    m = mu.mutable_array(X, SHARDINGS[name]())
    snapshot = m[...] if hold == "snapshot" else None
    x = mu.freeze(m)
    held: Any = {
        "snapshot": lambda: [snapshot],
        "shard": lambda: [x.addressable_shards[0].data],
        "shards": lambda: [shard.data for shard in x.addressable_shards],
        "list of shards": lambda: x.addressable_shards,
        "view": lambda: [np.asarray(x)],
    }[hold]()
    one_block = len(x.sharding.device_set) == 1 and "shard" in hold
    before = [np.array(getattr(a, "data", a)) for a in held if hold == "list of shards"] or [
        np.array(a) for a in held
    ]
    k = mu.mutable_array(x, donate=True)
    assert x.is_deleted()
    check_writes(k, k.sharding, X)
    if one_block:  # its only shard may be x itself, which is given away
        return
    for a, b in zip(held, before, strict=True):
        np.testing.assert_array_equal(a.data if hold == "list of shards" else a, b)


@shardings
def test_donation_of_what_nobody_else_holds_is_no_copy(name: str) -> None:
    s = SHARDINGS[name]()
    m = mu.mutable_array(jax.device_put(X, s))
    m[0] = 1.0
    del_me = [m[...], m.addressable_shards, m[0]]
    del del_me
    x = mu.freeze(m)
    pointers = where(x)
    k = mu.mutable_array(x, donate=True)
    assert x.is_deleted()
    assert s.memory_kind != "device" or where(k[...]) == pointers


def test_donation_of_keys_that_others_hold() -> None:
    m = mu.mutable_array(jax.random.split(jax.random.key(0), 8), NamedSharding(m42(), P("i")))
    snapshot = m[...]
    before = np.asarray(jax.random.key_data(snapshot)).copy()
    x = mu.freeze(m)
    k = mu.mutable_array(x, donate=True)
    assert x.is_deleted()
    k[0] = k[1]
    np.testing.assert_array_equal(jax.random.key_data(snapshot), before)


def test_donation_to_an_equal_sharding() -> None:
    s, t = (NamedSharding(m42(), P("i", "j")) for _ in range(2))
    x = jax.device_put(X, s)
    m = mu.mutable_array(x, t, donate=True)
    assert m.sharding is t and x.is_deleted()


def test_what_cannot_be_donated() -> None:
    x = jax.device_put(X, NamedSharding(m42(), P("i")))
    deleted = jnp.ones(3)
    deleted.delete()
    m = mu.zeros(3)
    refused: list[tuple[Any, Any, str]] = [
        (X, None, "ndarray"),
        ([1, 2], None, "list"),
        (3.0, None, "float"),
        (m, None, "MutableArray"),
        (jax.new_ref(jnp.ones(3)), None, "Ref"),
        (deleted, None, "deleted"),
        (x, NamedSharding(m42(), P("j")), "sharding"),
        (x, NamedSharding(m42(), P("i"), memory_kind="pinned_host"), "sharding"),
    ]
    for source, sharding, why in refused:
        with pytest.raises(mu.errors.DonationError, match=why):
            mu.mutable_array(source, sharding, donate=True)
    with pytest.raises(mu.errors.DonationError, match="Tracer"):
        jax.jit(lambda x: mu.mutable_array(x, donate=True)[0])(x)
    assert not x.is_deleted()
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(m[...], np.zeros(3))


# Dtypes ------------------------------------------------------------------------------------------

# Not here: int2 and uint2, whose all-gather corrupts memory in XLA's CPU backend.
DTYPES = [
    jnp.bool_,
    *(jnp.int8, jnp.int16, jnp.int32, jnp.uint8, jnp.uint16, jnp.uint32),
    *(jnp.int4, jnp.uint4),
    *(jnp.float32, jnp.float16, jnp.bfloat16, jnp.complex64),
    *(jnp.float8_e4m3fn, jnp.float8_e5m2, jnp.float8_e4m3fnuz, jnp.float8_e5m2fnuz),
    *(jnp.float8_e4m3b11fnuz, jnp.float8_e4m3, jnp.float8_e3m4, jnp.float8_e8m0fnu),
    jnp.float4_e2m1fn,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_every_dtype(dtype: Any) -> None:
    dtype = np.dtype(dtype)
    s = NamedSharding(m42(), P("i"))
    x = (np.arange(8 * 4).reshape(8, 4) % 4 + 1).astype(dtype)

    def bits(x: Any) -> np.ndarray:
        return np.asarray(x).view(np.uint8)  # NaNs of these are not compared

    np.testing.assert_array_equal(bits(mu.mutable_array(jnp.asarray(x), s)), bits(x))
    for m in (mu.mutable_array(x, s),):
        assert m.dtype == dtype and m.itemsize == dtype.itemsize
        assert dtype.name in repr(m)
        wanted = x.copy()
        m[1] = x[2]
        wanted[1] = x[2]
        m[[3, 3], 1] = x[[0, 1], 2]
        wanted[[3, 3], 1] = x[[0, 1], 2]
        jax.jit(lambda m: m.__setitem__(slice(5, None), m[0]))(m)
        wanted[5:] = wanted[0]
        got = np.asarray(m)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got.view(np.uint8), wanted.view(np.uint8))
        np.testing.assert_array_equal(np.asarray(m[3, 1]), wanted[3, 1])
        assert m.sharding is s
    for make, value in ((mu.zeros, 0), (mu.ones, 1), (mu.empty, 0)):
        made = np.asarray(make((8, 4), dtype, sharding=s))
        assert made.dtype == dtype
        np.testing.assert_array_equal(
            made.view(np.uint8), np.full((8, 4), value).astype(dtype).view(np.uint8)
        )


@kinds
def test_prng_keys(kind: str) -> None:
    s = NamedSharding(mesh((4,), "d", KINDS[kind]), P("d"))
    keys = jax.random.split(jax.random.key(7), 8)
    data = np.asarray(jax.random.key_data(keys))
    for m in (mu.mutable_array(keys, s), mu.mutable_array(jax.device_put(keys, s))):
        assert m.dtype == keys.dtype and m.shape == (8,) and m.sharding == s
        read = lambda i, m=m: np.asarray(jax.random.key_data(m[i]))  # noqa: E731
        np.testing.assert_array_equal(read(...), data)
        np.testing.assert_array_equal(read(slice(6, 2, -1)), data[6:2:-1])
        m[0] = keys[5]
        m[[2, 3]] = keys[6]
        jax.jit(lambda m: m.__setitem__(7, m[1]))(m)
        np.testing.assert_array_equal(read(...), data[[5, 1, 6, 6, 4, 5, 6, 1]])
        np.testing.assert_array_equal(jax.random.uniform(m[0]), jax.random.uniform(keys[5]))
        assert m[...].sharding == s
        with pytest.raises(TypeError, match="keys"):
            mu.addupdate(m, 0, keys[0])
        with pytest.raises(TypeError):
            m[0] = 3
    keys = jax.random.split(jax.random.key(7), 8)
    k = mu.mutable_array(keys, donate=True)
    assert keys.is_deleted() and k.shape == (8,)


# Born in shards ----------------------------------------------------------------------------------


def sharding_of_rows(kind: str, memory_kind: str | None = None) -> NamedSharding:
    return NamedSharding(m42(kind), P(("i", "j"), None), memory_kind=memory_kind)


@kinds
@pytest.mark.parametrize("memory_kind", [None, "device", "pinned_host", "unpinned_host"])
def test_the_filled_ones(kind: str, memory_kind: str | None) -> None:
    s = sharding_of_rows(kind, memory_kind)
    like = mu.mutable_array(X, s)
    made: list[tuple[mu.MutableArray, Any]] = [
        (mu.zeros((8, 16), sharding=s), 0),
        (mu.zeros((8, 16), jnp.int8, sharding=s), np.int8(0)),
        (mu.ones((8, 16), jnp.bfloat16, sharding=s), jnp.bfloat16(1)),
        (mu.full((8, 16), 7, sharding=s), np.int32(7)),
        (mu.full((8, 16), 7.5, jnp.float16, sharding=s), np.float16(7.5)),
        (mu.full((8, 16), jnp.int8(3), sharding=s), np.int8(3)),
        (mu.empty((8, 16), jnp.bool_, sharding=s), False),
        (mu.zeros_like(like), 0),
        (mu.ones_like(like, jnp.int32), np.int32(1)),
        (mu.full_like(like, 2), 2),
        (mu.empty_like(like), 0),
        (mu.zeros_like(like[...]), 0),
        (mu.full_like(X, 3, sharding=s), 3),
    ]
    for m, value in made:
        dtype = np.float32 if isinstance(value, int) and not isinstance(value, bool) else None
        wanted = np.full((8, 16), value, dtype)
        check(m, m.sharding, wanted)
        assert m.sharding == s and m.sharding.memory_kind == s.memory_kind
        m[7, 15] = value
    assert mu.zeros_like(like).sharding is s and made[0][0].sharding is s


def test_defaults_are_those_of_jax() -> None:
    for m in (mu.zeros(3), mu.ones(3), mu.empty(3), mu.full(3, 1.0)):
        assert m.shape == (3,) and m.dtype == jnp.zeros(3).dtype
        assert m.sharding == jnp.zeros(3).sharding
    assert mu.zeros(()).shape == () and mu.zeros((2, 0)).size == 0
    assert mu.zeros(np.int64(3)).shape == (3,) and mu.zeros([2, 3]).shape == (2, 3)
    assert mu.zeros_like([1, 2]).dtype == jnp.int32 and mu.ones_like(2.0).shape == ()
    with jax.default_device(jax.devices()[3]):
        assert mu.zeros(3).sharding.device_set == {jax.devices()[3]}
        assert mu.mutable_array(np.ones(3)).sharding.device_set == {jax.devices()[3]}


def test_like_takes_what_is_not_given() -> None:
    s = NamedSharding(m42(), P("i", "j"))
    m = mu.mutable_array(X, s)
    k = mu.zeros_like(m, shape=(4, 4))
    assert k.shape == (4, 4) and k.dtype == m.dtype and k.sharding is s
    t = NamedSharding(m42(), P("j"))
    assert mu.ones_like(m, jnp.int8, sharding=t).sharding is t
    np.testing.assert_array_equal(m[...], X)


@kinds
def test_from_callback(kind: str) -> None:
    s = sharding_of_rows(kind)
    asked = []

    def block(index: tuple[slice, ...]) -> np.ndarray:
        asked.append(X[index].shape)
        return X[index]

    m = mu.from_callback((8, 16), s, block)
    check(m, s, X)
    assert asked == [(1, 16)] * 8, "one block at once, each once for each device"
    check_writes(m, s, X)
    k = mu.from_callback((8, 16), s, lambda index: 3, jnp.int16)
    check(k, s, np.full((8, 16), 3, np.int16))
    k = mu.from_callback((8, 16), s, lambda index: jnp.asarray(X[index]), jnp.bfloat16)
    check(k, s, X.astype(jnp.bfloat16))
    host = sharding_of_rows(kind, "pinned_host")
    check(mu.from_callback((8, 16), host, lambda index: X[index]), host, X)


def test_what_a_callback_gives_is_copied() -> None:
    s, x = NamedSharding(m42(), P("i")), X.copy()
    m = mu.from_callback((8, 16), s, lambda index: x[index])
    x[:] = -1
    check(m, s, X)
    m[...] = 5.0
    np.testing.assert_array_equal(x, np.full_like(X, -1))


ROWS, COLUMNS = 4096, 257  # a shape that no other test has
BORN: dict[str, Callable[[NamedSharding], mu.MutableArray]] = {
    "zeros": lambda s: mu.zeros((ROWS, COLUMNS), sharding=s),
    "ones": lambda s: mu.ones((ROWS, COLUMNS), jnp.int32, sharding=s),
    "full": lambda s: mu.full((ROWS, COLUMNS), 3.0, sharding=s),
    "empty": lambda s: mu.empty((ROWS, COLUMNS), sharding=s),
    "from_callback": lambda s: mu.from_callback(
        (ROWS, COLUMNS), s, lambda index: np.ones((ROWS // 8, COLUMNS), np.float32)
    ),
    "zeros_like": lambda s: mu.zeros_like(mu.zeros((ROWS, COLUMNS), sharding=s)),
    "mutable_array of NumPy": lambda s: mu.mutable_array(
        np.broadcast_to(np.float32(1), (ROWS, COLUMNS)), s
    ),
}


@kinds
@pytest.mark.parametrize("memory_kind", ["device", "pinned_host"])
@pytest.mark.parametrize("how", BORN)
def test_never_whole_on_a_device(
    how: str, kind: str, memory_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No buffer that is larger than a block, neither while it is made nor after."""
    s, whole = sharding_of_rows(kind, memory_kind), ROWS * COLUMNS * 4
    sizes: list[int] = []

    def look(*args: Any) -> None:
        for x in jax.live_arrays():
            sizes.extend(shard.data.nbytes for shard in x.addressable_shards)

    original = jax.device_put

    def device_put(x: Any, *args: Any, **kwargs: Any) -> Any:
        sizes.append(np.asarray(x).nbytes if not isinstance(x, jax.Array) else x.nbytes)
        out = original(x, *args, **kwargs)
        look()
        return out

    gc.collect()
    monkeypatch.setattr(jax, "device_put", device_put)
    m = BORN[how](s)
    monkeypatch.undo()
    look()
    assert max(sizes) < whole // 4
    assert {shard.data.nbytes for shard in m.addressable_shards} == {whole // 8}


@kinds
def test_the_program_that_fills_makes_only_blocks(kind: str) -> None:
    from mutarray import _born

    s = sharding_of_rows(kind)
    program = _born._filler((ROWS, COLUMNS), np.dtype(np.float32), s)
    compiled = program.lower(np.float32(0)).compile()
    memory = compiled.memory_analysis()
    block = ROWS * COLUMNS * 4 // 8
    assert memory.output_size_in_bytes == block
    assert memory.temp_size_in_bytes < block and memory.argument_size_in_bytes < 64
    assert f"{ROWS},{COLUMNS}" not in compiled.as_text()


def test_host_peak() -> None:
    """NumPy allocates nothing of the size of a block."""
    import tracemalloc

    s, whole = sharding_of_rows("auto"), ROWS * COLUMNS * 4
    for how in ("zeros", "ones", "zeros_like"):  # what else makes blocks is on a CPU their memory
        BORN[how](s)
        tracemalloc.start()
        BORN[how](s)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < whole / 16, how


# Inside of traces --------------------------------------------------------------------------------


@shardings
def test_inside_of_jit(name: str) -> None:
    s = SHARDINGS[name]()
    if s.memory_kind != "device" or is_single_device_sharding(s):
        return  # a program computes in device memory, and on all of its devices

    def make(x: Any) -> Any:
        a, b = mu.mutable_array(x, s), mu.zeros((8, 16), sharding=s)
        a[0] = b[1] = 5.0
        assert a.sharding == b.sharding == s
        return a[...], b[...]

    with on_mesh(s):  # a program without a sharded argument has no devices otherwise
        a, b = jax.jit(make)(X)
    wanted = [X.copy(), np.zeros((8, 16), np.float32)]
    wanted[0][0] = wanted[1][1] = 5
    for got, want in zip((a, b), wanted, strict=True):
        np.testing.assert_array_equal(got, want)
        if name != "mixed, both on one":
            assert got.sharding.is_equivalent_to(s, 2)


# Refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    ["x", None, object(), {}, {1: 2}, [1, "a"], [[1], [1, 2]], np.array(["a"]), b"ab", {1, 2}],
    ids=lambda bad: type(bad).__name__,
)
def test_a_bad_value(bad: Any) -> None:
    for make in (
        lambda: mu.mutable_array(bad),
        lambda: mu.mutable_array(bad, NamedSharding(m42(), P())),
        lambda: mu.full(3, bad),
        lambda: mu.zeros_like(bad),
    ):
        with pytest.raises(mu.errors.BadValueError):
            make()


@pytest.mark.parametrize(
    "bad", ["i", 3, P("i"), jax.devices, (), object()], ids=lambda bad: type(bad).__name__
)
def test_a_bad_sharding(bad: Any) -> None:
    for make in (
        lambda: mu.mutable_array(X, bad),
        lambda: mu.zeros((8, 16), sharding=bad),
        lambda: mu.full_like(X, 1, sharding=bad),
        lambda: mu.from_callback((8, 16), bad, lambda index: X[index]),
        lambda: jax.jit(lambda x: mu.mutable_array(x, bad)[0])(X),
    ):
        with pytest.raises(mu.errors.BadShardingError, match="sharding="):
            make()


def test_a_sharding_that_does_not_fit() -> None:
    too_long = NamedSharding(m42(), P("i", None, None))
    for make in (
        lambda: mu.mutable_array(X, too_long),
        lambda: mu.zeros((8, 16), sharding=too_long),
    ):
        with pytest.raises(mu.errors.BadShardingError, match="names 3 dimensions"):
            make()
    open_ended = NamedSharding(m42(), P(P.UNCONSTRAINED, None))
    with pytest.raises(mu.errors.BadShardingError, match="unconstrained"):
        mu.zeros((8, 16), sharding=open_ended)


@pytest.mark.parametrize("name", ["auto", "both on one", "GSPMD", "explicit", "pinned_host"])
def test_indivisible(name: str) -> None:
    s = SHARDINGS[name]()
    called = []
    for make in (
        lambda: mu.mutable_array(np.zeros((6, 16)), s),
        lambda: mu.mutable_array(jnp.zeros((6, 16)), s),
        lambda: mu.zeros((6, 16), sharding=s),
        lambda: mu.from_callback((6, 16), s, called.append),
    ):
        with pytest.raises(mu.errors.IndivisibleError, match="6"):
            make()
    assert not called


@pytest.mark.parametrize(
    "bad",
    [-1, (2, -1), "a", 2.5, (2, 2.5), None, [[2]], np.ones(2)],
    ids=lambda bad: type(bad).__name__,
)
def test_a_bad_shape(bad: Any) -> None:
    with pytest.raises((mu.errors.BadValueError, ValueError)):
        mu.zeros(bad)
    with pytest.raises((mu.errors.BadValueError, ValueError)):
        mu.full(bad, 1.0)
    if bad is not None:  # where it means the shape of the other array
        with pytest.raises((mu.errors.BadValueError, ValueError)):
            mu.zeros_like(X, shape=bad)


@pytest.mark.parametrize(
    "bad", ["nope", object, str, "datetime64[s]", 3], ids=lambda bad: type(bad).__name__
)
def test_a_bad_dtype(bad: Any) -> None:
    for make in (
        lambda: mu.zeros(3, bad),
        lambda: mu.full(3, 1, bad),
        lambda: mu.ones_like(X, bad),
    ):
        with pytest.raises(TypeError):
            make()


def test_values_that_do_not_go_into_the_dtype() -> None:
    with pytest.raises(mu.errors.CastError, match=r"1\.5.*int32"):
        mu.full(3, 1.5, jnp.int32)
    with pytest.raises(mu.errors.CastError):
        mu.full(3, 1j, jnp.float32)
    with pytest.raises(OverflowError, match="300"):
        mu.full(3, 300, jnp.int8)
    for big in (2**40, [1, 2**40], -(2**40)):
        with pytest.raises(OverflowError, match="1099511627776"):
            mu.mutable_array(big)
    with pytest.raises(mu.errors.BadValueError, match="scalar"):
        mu.full(3, [1, 2, 3])


def test_a_callback_that_goes_wrong() -> None:
    s = NamedSharding(m42(), P("i"))
    with pytest.raises(mu.errors.BroadcastError, match=r"\(3,\).*\(2, 16\)"):
        mu.from_callback((8, 16), s, lambda index: np.zeros(3))
    with pytest.raises(mu.errors.CastError):
        mu.from_callback((8, 16), s, lambda index: X[index], jnp.int32)
    with pytest.raises(mu.errors.BadValueError):
        mu.from_callback((8, 16), s, lambda index: "x")
    with pytest.raises(mu.errors.TraceError, match="host"):
        jax.jit(lambda: mu.from_callback((8, 16), s, lambda index: X[index])[0])()
    with pytest.raises(ZeroDivisionError):
        mu.from_callback((8, 16), s, lambda index: 1 // 0)


@pytest.mark.parametrize("memory", ["device", "pinned_host"])
def test_the_first_write_to_what_came_from_numpy_is_in_place(memory: str) -> None:
    """Whether CPU devices would take over NumPy's memory depends on where it happens to lie."""
    home = NamedSharding(mesh((4,), "d"), P("d"), memory_kind=memory)
    for n in range(1, 9):
        x = np.zeros((4 * n, 8), np.float32)
        m = mu.mutable_array(x, home)
        k = mu.from_callback(x.shape, home, lambda index, x=x: x[index])
        for a in (m, k):
            blocks = _jaxapi.blocks(a._cell.array())  # pyright: ignore
            before = [block.unsafe_buffer_pointer() for block in blocks]
            del blocks
            a[0, 0] = a[2 * n, 3] = 1.0
            after = _jaxapi.blocks(a._cell.array())  # pyright: ignore
            assert [block.unsafe_buffer_pointer() for block in after] == before
            del after
        assert float(x.sum()) == 0
