"""Who owns the contents: get, set, swap, addupdate and freeze; modes; spent handles."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, Sharding

import mutarray as mu
from mutarray._jaxapi import make_single_device_sharding
from tests.support import KINDS, P, mesh

X = np.arange(32, dtype=np.float32).reshape(8, 4)
PLACES: dict[str, Callable[[], Sharding]] = {
    "auto": lambda: NamedSharding(mesh((4, 2), "ij"), P("i", "j")),
    "explicit": lambda: NamedSharding(mesh((4, 2), "ij", KINDS["explicit"]), P("i", "j")),
    "one device": lambda: make_single_device_sharding(jax.devices()[1]),
    "host": lambda: NamedSharding(mesh((4, 2), "ij"), P("i"), memory_kind="pinned_host"),
}
places = pytest.mark.parametrize("place", PLACES)
runs = pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])


def array(place: str = "auto", x: Any = X) -> mu.MutableArray:
    return mu.mutable_array(x, PLACES[place]())


# Verbs -------------------------------------------------------------------------------------------


@places
@runs
def test_verbs(place: str, run: Any) -> None:
    m, wanted = array(place), X.copy()
    np.testing.assert_array_equal(run(mu.get)(m), X)
    np.testing.assert_array_equal(run(lambda m: mu.get(m, (slice(1, 3), 0)))(m), X[1:3, 0])
    assert run(lambda m: mu.set(m, 2, 5.0))(m) is None
    wanted[2] = 5
    old = run(lambda m, v: mu.swap(m, [1, 2], v))(m, X[:2])
    np.testing.assert_array_equal(old, wanted[[1, 2]])
    wanted[[1, 2]] = X[:2]
    assert run(lambda m: mu.addupdate(m, ([0, 0], [3, 3]), 2.0))(m) is None
    wanted[0, 3] += 4
    np.testing.assert_array_equal(m[...], wanted)
    np.testing.assert_array_equal(run(lambda m: mu.swap(m, ..., 0.0))(m), wanted)
    np.testing.assert_array_equal(m[...], np.zeros_like(X))
    assert m.sharding == PLACES[place]()


@runs
def test_a_swap_with_duplicates_gives_what_was_there_before_all(run: Any) -> None:
    m = array()
    old = run(lambda m, v: mu.swap(m, [3, 3], v))(m, X[:2])
    np.testing.assert_array_equal(old, X[[3, 3]])
    np.testing.assert_array_equal(m[3], X[1])


@runs
@pytest.mark.parametrize("dtype", [jnp.bool_, jnp.int8, jnp.complex64, jnp.bfloat16])
def test_addupdate_of_dtypes(run: Any, dtype: Any) -> None:
    x = (np.arange(32).reshape(8, 4) % 2).astype(dtype)
    m = array("auto", x)
    value = np.ones(4, dtype)
    run(lambda m, v: mu.addupdate(m, [1, 1, 5], v))(m, value)
    np.add.at(x, [1, 1, 5], value)
    np.testing.assert_array_equal(np.asarray(m), x)


@places
def test_out_sharding(place: str) -> None:
    m = array(place)
    if not isinstance(m.sharding, NamedSharding):
        with pytest.raises(mu.errors.BadShardingError, match="bare spec"):
            mu.get(m, 0, out_sharding=P())
        other = make_single_device_sharding(jax.devices()[6])
        assert mu.get(m, 0, out_sharding=other).sharding == other
        return
    home = m.sharding.mesh
    for index, spec in ((..., P("j")), (slice(0, 4), P(None, "i")), (1, P("j")), ([0, 7], P())):
        for given in (spec, NamedSharding(home, spec)):
            got = mu.get(m, index, out_sharding=given)
            np.testing.assert_array_equal(got, X[index])
            assert got.sharding.is_equivalent_to(NamedSharding(home, spec), got.ndim)
            traced = jax.jit(lambda m, i=index, s=given: mu.get(m, i, out_sharding=s))(m)
            np.testing.assert_array_equal(traced, X[index])
            assert traced.sharding.is_equivalent_to(NamedSharding(home, spec), got.ndim)
    with pytest.raises(mu.errors.IndivisibleError):
        mu.get(m, slice(0, 3), out_sharding=P("i"))
    with pytest.raises(mu.errors.BadShardingError):
        mu.get(m, 0, out_sharding="i")
    one = make_single_device_sharding(jax.devices()[0])
    with pytest.raises(mu.errors.BadShardingError, match="trace"):
        jax.jit(lambda m: mu.get(m, 0, out_sharding=one))(m)
    np.testing.assert_array_equal(m[...], X)


# Modes -------------------------------------------------------------------------------------------

OUT = np.array([-9, -8, 0, 7, 8, 100])


@pytest.mark.parametrize("place", ["auto", "one device"])
@runs
@pytest.mark.parametrize("mode", ["clip", "drop", "fill"])
@pytest.mark.parametrize("wrap", [True, False])
def test_modes(place: str, run: Any, mode: str, wrap: bool) -> None:
    wrapped = np.where(OUT < 0, OUT + 8, OUT) if wrap else OUT
    inside = (wrapped >= 0) & (wrapped < 8)
    clipped = np.clip(wrapped, 0, 7)
    options: dict[str, Any] = {"mode": mode, "wrap_negative_indices": wrap}
    m = array(place)
    got = run(lambda m, i: mu.get(m, i, fill_value=-2, **options))(m, OUT)
    wanted = X[clipped] if mode == "clip" else np.where(inside[:, None], X[clipped], -2)
    np.testing.assert_array_equal(got, wanted)
    value = np.arange(OUT.size * 4, dtype=np.float32).reshape(-1, 4) + 100
    for verb, at in (
        (mu.set, lambda x, i, v: x.__setitem__(i, v)),
        (mu.addupdate, lambda x, i, v: np.add.at(x, i, v)),
    ):
        m, y = array(place), X.copy()
        run(lambda m, i, v, verb=verb: verb(m, i, v, **options))(m, OUT, value)
        if mode == "clip":
            at(y, clipped, value)
        else:
            at(y, clipped[inside], value[inside])
        np.testing.assert_array_equal(m[...], y)
    assert m.sharding == PLACES[place]()


@runs
@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        (np.float32, np.nan),
        (jnp.bfloat16, np.nan),
        (np.complex64, np.nan),
        (np.int16, -(2**15)),
        (np.uint8, 255),
        (np.bool_, True),
    ],
)
def test_the_default_fill_value_is_jaxs(run: Any, dtype: Any, fill: Any) -> None:
    x = np.zeros((8, 4), dtype)
    m = array("auto", x)
    got = run(lambda m, i: mu.get(m, (i, 0), mode="fill"))(m, np.array([1, 9]))
    reference = jnp.asarray(x).at[jnp.array([1, 9]), 0].get(mode="fill")
    assert got.dtype == dtype
    bits = [
        np.asarray(x).view(np.uint8) for x in (got, reference)
    ]  # NumPy compares no bfloat16 NaNs
    np.testing.assert_array_equal(*bits)
    np.testing.assert_array_equal(np.asarray(got)[1].astype(complex).real, np.float64(fill))


def test_fill_values_cast_as_values_do() -> None:
    m = array("auto", X.astype(np.int32))
    assert mu.get(m, [9], mode="fill", fill_value=True).tolist() == [[1] * 4]
    assert mu.get(m, [9], mode="drop", fill_value=np.int8(-3)).tolist() == [[-3] * 4]
    with pytest.raises(TypeError):
        mu.get(m, [9], mode="fill", fill_value=1.5)
    with pytest.raises(OverflowError):
        mu.get(m, [9], mode="fill", fill_value=2**40)


@runs
@pytest.mark.parametrize("start", [-20, -3, 6, 8])
@pytest.mark.parametrize("mode", [None, "clip", "drop", "fill"])
def test_windows(run: Any, start: int, mode: str | None) -> None:
    m = array()
    first = start + 8 if start < 0 else start
    if mode in (None, "clip"):
        first = min(max(first, 0), 5)
    at = first + np.arange(3)
    inside = (at >= 0) & (at < 8)
    read = lambda m, i: mu.get(m, mu.ds(i, 3), mode=mode, fill_value=-1.0)  # noqa: E731
    wanted = np.where(inside[:, None], X[np.clip(at, 0, 7)], -1)
    np.testing.assert_array_equal(run(read)(m, start), wanted)
    value = np.arange(12, dtype=np.float32).reshape(3, 4) + 100
    run(lambda m, i, v: mu.set(m, mu.ds(i, 3), v, mode=mode))(m, start, value)
    y = X.copy()
    y[at[inside]] = value[inside]
    np.testing.assert_array_equal(m[...], y)


@pytest.mark.parametrize("bad", ["wrap", "promise_in_bounds", "", 3, True])
def test_unknown_modes(bad: Any) -> None:
    m = array()
    for call in (
        lambda: mu.get(m, 0, mode=bad),
        lambda: mu.set(m, 0, 1.0, mode=bad),
        lambda: mu.swap(m, 0, 1.0, mode=bad),
        lambda: mu.addupdate(m, 0, 1.0, mode=bad),
        lambda: jax.jit(lambda m, i: mu.get(m, i, mode=bad))(m, 0),
    ):
        with pytest.raises(mu.errors.BadModeError, match="'clip', 'drop', 'fill'"):
            call()
    np.testing.assert_array_equal(m[...], X)


# Freezing ----------------------------------------------------------------------------------------


def pointers(x: Any) -> list[int]:
    return sorted(shard.data.unsafe_buffer_pointer() for shard in x.addressable_shards)


@places
def test_freeze_hands_the_buffers_over(place: str) -> None:
    m = array(place)
    m[0] = 5.0
    before = pointers(m)
    x = mu.freeze(m)
    assert isinstance(x, jax.Array) and x.sharding == PLACES[place]()
    assert pointers(x) == before, "no copy"
    wanted = X.copy()
    wanted[0] = 5
    np.testing.assert_array_equal(x, wanted)


@places
def test_a_spent_array_says_so(place: str) -> None:
    m = array(place)
    handle_in_a_tree = {"w": m}
    mu.freeze(m)
    uses: list[Callable[[], Any]] = [
        lambda: m[0],
        lambda: m[...],
        lambda: m.__setitem__(0, 1.0),
        lambda: m.__setitem__(..., 1.0),
        lambda: mu.get(m, 0),
        lambda: mu.swap(m, 0, 1.0),
        lambda: mu.addupdate(m, 0, 1.0),
        lambda: mu.freeze(m),
        lambda: np.asarray(m),
        lambda: jnp.sin(m),
        lambda: m.addressable_shards,
        lambda: mu.mutable_array(m),
        lambda: jax.jit(lambda m: m[0])(m),
        lambda: jax.jit(lambda t: t["w"][0])(handle_in_a_tree),
        lambda: jax.jit(lambda: m[0])(),
        lambda: jax.tree.leaves(handle_in_a_tree),
    ]
    for use in uses:
        with pytest.raises(mu.errors.SpentError, match=r"frozen.*mu\.freeze returned"):
            use()
    assert m.shape == (8, 4) and "spent" in repr(m)
    assert m.sharding == PLACES[place]()


def test_freeze_after_use_in_a_jit_and_with_snapshots_about() -> None:
    m = array()
    step = jax.jit(lambda m: m.__setitem__(..., m[...] + 1))
    step(m)
    snapshot = m[...]
    step(m)
    x = mu.freeze(m)
    np.testing.assert_array_equal(snapshot, X + 1)
    np.testing.assert_array_equal(x, X + 2)
    with pytest.raises(mu.errors.SpentError):
        step(m)
    again = mu.mutable_array(x, donate=True)
    step(again)
    np.testing.assert_array_equal(again[...], X + 3)
    np.testing.assert_array_equal(snapshot, X + 1)


def test_freeze_inside_of_a_trace() -> None:
    def made(x: Any) -> Any:
        m = mu.mutable_array(x)
        m[0] = 1.0
        frozen = mu.freeze(m)
        with pytest.raises(mu.errors.SpentError):
            m[0]
        with pytest.raises(mu.errors.SpentError):
            m[0] = 2.0
        return frozen

    wanted = X.copy()
    wanted[0] = 1
    np.testing.assert_array_equal(jax.jit(made)(X), wanted)
    gradient = jax.grad(lambda x: (made(x) ** 2).sum())(jnp.asarray(X))
    np.testing.assert_array_equal(gradient, np.where(np.arange(8)[:, None] == 0, 0, 2 * X))


# Lent and taken back -----------------------------------------------------------------------------


@places
def test_eager_and_compiled_work_take_turns(place: str) -> None:
    m, wanted = array(place), X.copy()
    step = jax.jit(lambda m, i: m.__setitem__(i, m[i] * 2))
    compiled = step.lower(m, 0).compile()
    for i in range(6):
        [step, compiled][i % 2](m, i)
        wanted[i] *= 2
        if i % 3:
            m[i, 1] = wanted[i, 1] = -i
        if i == 4:
            np.testing.assert_array_equal(m[...], wanted)
        mu.addupdate(m, [i, i], 1.0)
        wanted[i] += 2
    np.testing.assert_array_equal(m[...], wanted)
    assert m.sharding == PLACES[place]() and m[...].sharding == PLACES[place]()


def test_one_handle_for_one_array() -> None:
    m = array()
    seen: list[Any] = []
    leaves, structure = jax.tree.flatten(m)
    assert jax.tree.unflatten(structure, leaves) is m
    jax.jit(lambda: seen.append(m))()
    assert seen == [m]


def test_threads_write_to_one_array() -> None:
    """Eager operations are atomic: none is lost, none is torn."""
    m = mu.zeros((8, 4), jnp.int32, sharding=PLACES["auto"]())
    mu.addupdate(m, 0, 0)

    def work(k: int) -> None:
        for _ in range(10):
            mu.addupdate(m, k % 8, 1)
            m[k % 8]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(m[...], np.repeat([10] * 4 + [0] * 4, 4).reshape(8, 4))
