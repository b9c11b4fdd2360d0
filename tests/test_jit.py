"""`mu.jit`: what goes in, what comes back, what is compiled, and what fails."""

from __future__ import annotations

import threading
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

import mutarray as mu
from mutarray import _jaxapi
from mutarray._jaxapi import make_single_device_sharding
from mutarray._locks import Locks
from tests.counting import counted_compiles, counted_misses
from tests.support import KINDS, P, layouts, mesh

pytestmark = pytest.mark.core

kinds = pytest.mark.parametrize("kind", KINDS)
X = np.arange(48, dtype=np.float32).reshape(8, 6)


def sharding(kind: str = "auto") -> NamedSharding:
    return NamedSharding(mesh((4, 2), "ij", KINDS[kind]), P("i", "j"))


def made(kind: str = "auto", x: Any = X) -> mu.MutableArray:
    return mu.mutable_array(x, sharding(kind))


def cell_pointers(m: mu.MutableArray) -> list[int]:
    # Not by way of m.addressable_shards, whose blocks are shared from then on.
    return [block.unsafe_buffer_pointer() for block in _jaxapi.blocks(m._cell.array())]  # pyright: ignore


# What goes in ------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("name", layouts(KINDS["auto"]))
def test_as_eager_and_as_numpy_on_every_layout(kind: str, name: str) -> None:
    shape, home = layouts(KINDS[kind])[name]
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    m, k = mu.mutable_array(x, home), mu.mutable_array(x, home)

    def work(m: Any, v: Any) -> Any:
        m *= 2
        if m.ndim:
            m[-1:] = 3
        if m.size:  # JAX 0.9 cannot add to an empty jax.Array on an explicit mesh
            m[...] = m[...] + v
        if m.ndim and m.size:
            m[:1] += m[-1:]
        return m[...].sum()

    total = mu.jit(work)(m, 3)
    work(k, 3)
    wanted = x * 2
    if shape:
        wanted[-1:] = 3
    wanted += 3
    if shape:
        wanted[:1] += wanted[-1:]
    np.testing.assert_array_equal(m[...], wanted)
    np.testing.assert_array_equal(k[...], wanted)
    np.testing.assert_allclose(total, wanted.sum())
    assert m.sharding is home and m[...].sharding == home


@kinds
def test_trees_keywords_and_statics(kind: str) -> None:
    calls = []

    @mu.jit(static_argnames=("times", "name"))
    def step(state: dict[str, Any], scale: Any, times: int = 1, *, name: str = "a") -> Any:
        calls.append((times, name))
        for _ in range(times):
            state[name] *= scale
        return {"name": state[name][0], "rest": (None, scale)}

    state = {"a": made(kind), "b": made(kind), "n": np.float32(2)}
    out = step(state, 2.0)
    np.testing.assert_array_equal(out["name"], X[0] * 2)
    assert out["rest"][0] is None and float(out["rest"][1]) == 2.0
    step(state, 2.0, 3, name="b")
    step(state, scale=3.0, times=3, name="b")
    np.testing.assert_array_equal(state["a"][...], X * 2)
    np.testing.assert_array_equal(state["b"][...], X * 8 * 27)
    # What is passed by position or by name has another structure, as in JAX; values do not matter.
    assert calls == [(1, "a"), (3, "b"), (3, "b")]
    step(state, 5.0, 3, name="b")
    assert len(calls) == 3


def test_static_arguments_that_are_equal_and_not_the_same() -> None:
    @mu.jit(static_argnums=1)
    def step(m: Any, n: Any) -> Any:
        return m[0] * 0 + (1 if isinstance(n, bool) else 2 if isinstance(n, int) else 3)

    m = mu.zeros(2)
    assert [int(step(m, n)) for n in (True, 1, 1.0, True)] == [1, 2, 3, 1]


@kinds
def test_one_array_in_two_places(kind: str) -> None:
    @mu.jit
    def step(a: Any, tree: Any) -> Any:
        a[0] = 1
        tree["a"][0] += 1
        return a is tree["a"]

    m, k = made(kind), made(kind)
    assert step(m, {"a": m}) and float(m[0, 0]) == 2
    assert not step(m, {"a": k}) and float(m[0, 0]) == 1 and float(k[0, 0]) == 1
    assert step(m, {"a": m}) and float(m[0, 0]) == 2


@kinds
def test_closures(kind: str) -> None:
    m, k = made(kind), made(kind)
    traces = []

    @mu.jit
    def step(a: Any, v: Any) -> Any:
        traces.append(1)
        k[1] = a[0] + v
        return k[1].sum()

    for v in (1.0, 2.0, 3.0):
        assert float(step(m, v)) == (X[0] + v).sum()
        np.testing.assert_array_equal(k[1], X[0] + v)
    assert len(traces) == 1
    k[1] = 0  # eager and compiled work take turns
    assert float(step(m, 1.0)) == (X[0] + 1).sum()
    assert m.sharding == k.sharding == sharding(kind)


def test_a_closure_that_is_passed_too_is_refused() -> None:
    k = made()

    @mu.jit
    def step(a: Any) -> None:
        a[0] = k[1]

    for _ in range(2):
        with pytest.raises(mu.errors.TraceError, match=r"test_jit\.py.*both passed .* closed over"):
            step(k)
        step(made())
    np.testing.assert_array_equal(k[...], X)


@kinds
def test_in_inner_functions(kind: str) -> None:
    k = made(kind)
    inner = jax.jit(lambda a, v: a.__setitem__(3, v))
    global_inner = jax.jit(lambda v: k.__setitem__(4, v))

    @mu.jit
    def step(a: Any, b: Any, v: Any) -> Any:
        def body(i: Any, carry: Any) -> Any:
            a[i] = a[i - 1] + b[0]
            return carry

        jax.lax.fori_loop(1, 3, body, 0)
        inner(a, v)
        global_inner(v + 1)
        jax.lax.cond(v > 0, lambda: b.__setitem__(1, v), lambda: None)
        return jax.grad(lambda w: (w * a[1]).sum())(v)

    a, b = made(kind), made(kind)
    for v in (1.0, 2.0):
        gradient = step(a, b, v)
        wanted = X.copy()
        wanted[1], wanted[2], wanted[3] = X[0] * 2, X[0] * 3, v
        np.testing.assert_array_equal(a[...], wanted)
        np.testing.assert_array_equal(b[1], np.full(6, v))
        np.testing.assert_array_equal(k[4], np.full(6, v + 1))
        assert float(gradient) == X[0].sum() * 2


@kinds
def test_inside_of_transformations_it_is_the_function(kind: str) -> None:
    @mu.jit
    def scaled(m: Any, v: Any) -> Any:
        m *= v
        return m

    m = made(kind)
    assert float(jax.jit(lambda m: scaled(m, 2.0)[0, 1])(m)) == 2.0
    assert float(mu.jit(lambda m: scaled(scaled(m, 2.0), 2.0)[0, 1])(m)) == 8.0
    slope = jax.grad(lambda v: scaled(mu.mutable_array(jnp.ones(3)), v)[...].sum())(2.0)
    assert float(slope) == 3.0
    rows = jax.vmap(lambda x: scaled(mu.mutable_array(x), 2.0)[...])(X)
    np.testing.assert_array_equal(rows, X * 2)


def test_a_counter_says_where_the_window_begins() -> None:
    at, cache = mu.zeros((), jnp.int32), mu.zeros(6)

    @mu.jit
    def step(cache: Any, at: Any, v: Any) -> None:
        cache[mu.ds(at, 2)] = v
        at += 2

    for v in (1.0, 2.0):
        step(cache, at, v)
    cache[mu.ds(at, 1)] = 3.0
    assert cache[...].tolist() == [1, 1, 2, 2, 3, 0]


def test_as_a_method() -> None:
    class Counter:
        def __init__(self) -> None:
            self.count = mu.zeros((), jnp.int32)

        @mu.jit(static_argnums=0)
        def bump(self, by: Any) -> Any:
            """Counts."""
            self.count += by
            return self.count

    one, other = Counter(), Counter()
    assert one.bump(2) is one.count and one.bump(3) is one.count
    other.bump(1)
    assert int(one.count) == 5 and int(other.count) == 1
    assert Counter.bump.__doc__ == "Counts." and Counter.bump.__name__ == "bump"


def test_other_dtypes_and_shapes_of_one_structure() -> None:
    step = mu.jit(lambda m, v: (m.__setitem__(0, v), m[0])[1])
    for dtype in (jnp.float32, jnp.bfloat16, jnp.int32, jnp.complex64, jnp.bool_):
        for n in (2, 3):
            m = mu.zeros(n, dtype)
            assert step(m, jnp.ones((), dtype)).dtype == dtype and bool(m[0] == 1)
    keys = mu.mutable_array(jax.random.split(jax.random.key(0), 3))
    new = jax.random.key(7)
    step(keys, new)
    assert jax.random.key_data(keys[0]).tolist() == jax.random.key_data(new).tolist()


def test_a_branch_on_the_shape_returns_another_tree() -> None:
    @mu.jit
    def step(m: Any, v: Any) -> Any:
        return {"vector": v} if v.ndim else (m, v)

    m = mu.zeros(2)
    assert step(m, jnp.ones(3))["vector"].tolist() == [1, 1, 1]
    same, two = step(m, jnp.ones(()) * 2)
    assert same is m and float(two) == 2
    assert step(m, jnp.ones(3))["vector"].tolist() == [1, 1, 1]


def test_a_branch_on_the_shape_writes_another_array() -> None:
    @mu.jit
    def step(a: Any, b: Any, v: Any) -> None:
        (a if v.ndim else b)[...] = v

    a, b = mu.zeros(2), mu.zeros(2)
    step(a, b, jnp.ones(2))
    step(a, b, jnp.float32(3))
    step(a, b, jnp.full(2, 5.0))
    assert a[...].tolist() == [5, 5] and b[...].tolist() == [3, 3]


@pytest.mark.parametrize("memory", ["pinned_host", "unpinned_host"])
def test_arrays_in_host_memory(memory: str) -> None:
    home = sharding().with_memory_kind(memory)
    m = mu.mutable_array(X, home)
    step = mu.jit(lambda m, v: (m.__setitem__(3, v), m, m[3].sum())[1:])
    for v in (1.0, 2.0):
        same, total = step(m, v)
        assert same is m and float(total) == 6 * v
    wanted = X.copy()
    wanted[3] = 2
    np.testing.assert_array_equal(m[...], wanted)
    assert m.sharding is home and m[...].sharding.memory_kind == memory


# What comes back ---------------------------------------------------------------------------------


@kinds
def test_arrays_that_are_returned(kind: str) -> None:
    home = sharding(kind)
    k = made(kind)

    @mu.jit
    def step(a: Any, b: Any) -> Any:
        new = mu.mutable_array(a[...] * 2, sharding=home)
        new[0] = 5
        k[0] = 1
        return {"a": a, "new": (new, new), "k": k, "copy": b.copy()}, a[0]

    a, b = made(kind), made(kind)
    out, first = step(a, b)
    assert out["a"] is a and out["k"] is k and out["new"][0] is out["new"][1]
    new, copy = out["new"][0], out["copy"]
    wanted = X * 2
    wanted[0] = 5
    np.testing.assert_array_equal(new[...], wanted)
    np.testing.assert_array_equal(copy[...], X)
    np.testing.assert_array_equal(first, X[0])
    assert new.sharding == copy.sharding == home
    new[1, 1] = copy[0, 0] = -1
    again = step(a, b)[0]
    np.testing.assert_array_equal(new[2:], wanted[2:])
    assert again["new"][0] is not new and float(new[1, 1]) == -1 and float(a[1, 1]) == X[1, 1]
    np.testing.assert_array_equal(a[...], X)
    np.testing.assert_array_equal(b[...], X)


@kinds
def test_the_constructor_itself(kind: str) -> None:
    x = jax.device_put(X, sharding(kind))
    m = mu.jit(lambda x: mu.mutable_array(x * 2))(x)
    m[0] = 1
    assert isinstance(m, mu.MutableArray) and m.sharding == sharding(kind)
    np.testing.assert_array_equal(m[1:], X[1:] * 2)
    np.testing.assert_array_equal(x, X)
    with jax.set_mesh(sharding(kind).mesh):  # JAX wants to know the devices of explicit meshes
        zeros = mu.jit(lambda: mu.zeros((8, 6), sharding=sharding(kind)))()
    assert zeros.sharding == sharding(kind) and float(zeros.sum()) == 0


@kinds
def test_out_shardings(kind: str) -> None:
    home = sharding(kind)
    rows = NamedSharding(home.mesh, P("i"))

    def work(a: Any, x: Any) -> Any:
        return x * 2, {"new": mu.mutable_array(x, sharding=home), "a": a}

    a = made(kind)
    x = jax.device_put(X, home)
    y, out = mu.jit(work, out_shardings=(rows, {"new": rows, "a": None}))(a, x)
    assert y.sharding.is_equivalent_to(rows, 2) and out["new"].sharding == rows and out["a"] is a
    np.testing.assert_array_equal(out["new"][...], X)
    with pytest.raises(mu.errors.BadShardingError, match=r"m\.reshard"):
        mu.jit(work, out_shardings=(None, rows))(a, x)
    with pytest.raises(mu.errors.BadShardingError, match="no jax.sharding.Sharding|not a jax"):
        mu.jit(work, out_shardings=(P("i"), None))(a, x)


def test_what_is_returned_is_no_view() -> None:
    """Neither of an array that is written, nor of one that is only read."""
    both = mu.jit(lambda a, b: (a.__setitem__((0, 0), 9.0), a[...], b[...], b)[1:])
    a, b = made(), made()
    first, second, same = both(a, b)
    assert same is b
    wanted = X.copy()
    wanted[0, 0] = 9
    for _ in range(2):
        a[1] = b[1] = 5
        a += 1
        b += 1
        both(a, b)
        np.testing.assert_array_equal(first, wanted)
        np.testing.assert_array_equal(second, X)


def test_snapshots_survive() -> None:
    step = mu.jit(lambda m: m.__setitem__(0, 5.0))
    m = made()
    before = m[...]
    block = m.addressable_shards[0].data
    step(m)
    step(m)
    np.testing.assert_array_equal(before, X)
    np.testing.assert_array_equal(block, X[:2, :3])
    assert m[0].tolist() == [5] * 6


# What is compiled --------------------------------------------------------------------------------


def test_in_place_and_nothing_for_what_is_read() -> None:
    s = NamedSharding(mesh((8,), "a"), P("a"))
    m, k = mu.zeros((512, 64), sharding=s), mu.ones((512, 64), sharding=s)
    step = mu.jit(lambda m, k, i: (m.__setitem__(mu.ds(i, 2), k[5]), k[7].sum())[1])
    memory = step.lower(m, k, 3).compile().memory_analysis()
    block = 512 * 64 * 4 // 8
    assert memory.alias_size_in_bytes == block  # m alone; k is neither donated nor returned
    assert memory.argument_size_in_bytes <= 2 * block + 64
    assert memory.output_size_in_bytes <= block + 64
    step(m, k, 3)
    before = k[...]
    where, shared = cell_pointers(m), cell_pointers(k)
    step(m, k, 4)
    step(m, k, 5)
    assert cell_pointers(m) == where and cell_pointers(k) == shared
    assert before.addressable_shards[0].data.unsafe_buffer_pointer() == shared[0]


def test_what_is_overwritten_unread_gives_its_buffer() -> None:
    m = made()
    step = mu.jit(lambda m, v: m.__setitem__(..., v))
    assert step.lower(m, X).compile().memory_analysis().alias_size_in_bytes == X.nbytes // 8


@kinds
def test_no_compile_and_no_miss_after_the_first_call(kind: str) -> None:
    traces = []

    def work(ms: Any, v: Any, k: Any) -> Any:
        traces.append(1)
        for m in ms:
            m[k] = v
        return ms

    step = mu.jit(work)
    ms = [made(kind) for _ in range(5)]
    step(ms, 1.0, 0)
    ms[0][0] = 3.0
    ms[1] += 1
    mu.values(ms)
    step(ms, 1.0, 0)  # copies, by a program of its own, what was handed out
    others = [made(kind) for _ in range(5)]
    for k in range(8):
        with counted_compiles() as compiled, counted_misses() as misses:
            step(ms, float(k), k)
            step(others, 2.0, k)
        assert misses == [] and compiled == []
        ms[0][0] = 3.0  # eager work in between
        ms[1][k] = 1.0
    assert len(traces) == 1


def test_misses_are_counted() -> None:
    with counted_misses() as misses:
        jax.jit(lambda x: x + 1)(1.0)
    assert misses


def test_the_same_program_for_other_arrays_of_the_same_kind() -> None:
    step = mu.jit(lambda a, b: a.__setitem__(0, b[1]))
    arrays = [made(x=X + k) for k in range(3)]
    for a in arrays:
        for b in arrays:
            if a is not b:
                wanted = np.array(b[1])
                step(a, b)
                np.testing.assert_array_equal(a[0], wanted)


def test_ahead_of_time() -> None:
    home = sharding()
    m, k = made(), made()
    step = mu.jit(lambda m, v, *, k: (m.__setitem__(0, v), k, m[0])[1:])
    shape = jax.ShapeDtypeStruct((6,), jnp.float32)
    lowered = step.lower(m, shape, k=k)
    assert "stablehlo" in lowered.as_text() or "func.func" in lowered.as_text()
    compiled = lowered.compile()
    assert "HloModule" in compiled.as_text() and compiled.cost_analysis() is not None
    np.testing.assert_array_equal(m[...], X)
    same, row = compiled(m, jnp.ones(6), k=k)
    assert same is k and row.tolist() == [1] * 6 and m[0].tolist() == [1] * 6
    other, more = made(), made()
    assert compiled(other, jnp.zeros(6), k=more)[0] is more and other[0].tolist() == [0] * 6
    rows = NamedSharding(home.mesh, P("i"))
    with pytest.raises(mu.errors.BadValueError, match="compiled for arguments of another"):
        compiled(mu.mutable_array(X, rows), jnp.ones(6), k=k)
    with pytest.raises(TypeError):
        compiled(m, jnp.ones(5), k=k)
    assert m[0].tolist() == [1] * 6


def test_donated_arguments() -> None:
    step = mu.jit(lambda m, x: m.__setitem__(0, x[0]) or x + 1, donate_argnums=1)
    m, x = made(), jax.device_put(X, sharding())
    y = step(m, x)
    assert x.is_deleted()
    np.testing.assert_array_equal(y, X + 1)
    by_name = mu.jit(lambda m, *, x: x + 1, donate_argnames="x")
    y = by_name(m, x=y)
    np.testing.assert_array_equal(y, X + 2)


# What fails --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        (lambda m: m.__setitem__(9, 0.0), IndexError, "index 9 is out of bounds"),
        (lambda m: m.__setitem__(0, np.ones(5)), ValueError, "broadcast"),
        (lambda m: [][0], IndexError, "list index"),
        (lambda m: float(m[0, 0]), jax.errors.ConcretizationTypeError, "concrete"),
        (lambda m: "text", TypeError, "str"),
    ],
)
def test_a_trace_that_fails_leaves_everything(bad: Any, error: Any, text: str) -> None:
    m, k = made(), made()

    @mu.jit
    def step(m: Any) -> Any:
        m[0] = 1.0
        k[0] = 1.0
        return bad(m)

    before = m[...]
    where = cell_pointers(m)
    for _ in range(2):
        with pytest.raises(error, match=text):
            step(m)
        np.testing.assert_array_equal(m[...], X)
        np.testing.assert_array_equal(k[...], X)
    assert cell_pointers(m) == where
    np.testing.assert_array_equal(before, X)


def test_a_program_that_cannot_start_leaves_everything() -> None:
    step = mu.jit(lambda m, x: m.__setitem__(0, x[0]))
    m, x = made(), jax.device_put(X, sharding())
    step(m, x)
    before = np.array(m[...])
    x.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        step(m, x)
    np.testing.assert_array_equal(m[...], before)
    elsewhere = jax.device_put(X, make_single_device_sharding(jax.devices()[3]))
    with pytest.raises(mu.errors.BadShardingError, match=r"argument \[1\] lies on 1 devices"):
        step(m, elsewhere)
    np.testing.assert_array_equal(m[...], before)
    step(m, X + 1)
    np.testing.assert_array_equal(m[0], X[0] + 1)


def test_arguments_that_are_none() -> None:
    m = made()
    step = mu.jit(lambda tree, x: tree["m"].__setitem__(0, x))
    step({"m": m}, 1.0)
    for x, kind in (("a", "str"), (object(), "object"), ([1.0, "b"], "str")):
        with pytest.raises(mu.errors.BadValueError, match=rf"argument \[1\].* of type {kind}"):
            step({"m": m}, x)
    with pytest.raises(mu.errors.BadValueError, match="list, which cannot be hashed"):
        mu.jit(lambda m, n: None, static_argnums=1)(m, [1])
    for bad in ({"static_argnums": 5}, {"donate_argnums": -3}, {"static_argnames": "z"}):
        with pytest.raises(mu.errors.BadValueError, match="parameters"):
            mu.jit(lambda m, n: None, **bad)


def test_errors_name_the_function_and_the_argument() -> None:
    def my_step(m: Any, *args: Any, state: Any) -> None:
        if state["rate"] > 0:
            m[0] = args[0]

    for step in (mu.jit(my_step), mu.jit(my_step, out_shardings=sharding())):
        with pytest.raises(jax.errors.TracerBoolConversionError, match=r"my_step at .*state_rate"):
            step(made(), 1.0, state={"rate": 1.0})


def test_spent_arrays_and_arrays_of_a_trace() -> None:
    step = mu.jit(lambda m: m.__setitem__(0, 1.0))
    m = made()
    step(m)
    mu.freeze(m)
    with pytest.raises(mu.errors.SpentError, match="frozen"):
        step(m)
    kept: list[Any] = []
    mu.jit(lambda m: kept.append(m))(made())
    with pytest.raises(mu.errors.TraceError, match="outside|after that"):
        step(kept[0])
    with pytest.raises(mu.errors.TraceError, match="was kept while"):
        kept[0][...]
    m = made()
    with pytest.raises(mu.errors.TraceError, match="cannot be frozen there"):
        jax.jit(lambda: mu.freeze(m))()
    np.testing.assert_array_equal(m[...], X)


def test_arrays_on_different_devices() -> None:
    m, k = made(), mu.zeros(3, sharding=make_single_device_sharding(jax.devices()[0]))
    with pytest.raises(mu.errors.BadShardingError, match=r"different devices.*NamedSharding\(mesh"):
        mu.jit(lambda a, b: None)(m, k)


def test_donated_and_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a failed run took along is lost, and every later use says so."""
    step = mu.jit(lambda m, k: m.__setitem__(0, k[0]))
    m, k = made(), made()
    step(m, k)
    (program,) = step._programs.values()

    def fails(written: Any, read: Any, *others: Any) -> None:
        for x in written:
            x.delete()
        raise MemoryError("in the middle")

    monkeypatch.setattr(program, "jitted", fails)
    with pytest.raises(MemoryError, match="in the middle"):
        step(m, k)
    for use in (lambda: step(m, k), lambda: m[0], lambda: m[...], lambda: m.__setitem__(0, 1.0)):
        with pytest.raises(mu.errors.SpentError, match="contents are lost"):
            use()
    np.testing.assert_array_equal(k[...], X)


def test_threads() -> None:
    a, b = mu.zeros((), jnp.int32), mu.zeros((), jnp.int32)

    @mu.jit
    def step(x: Any, y: Any) -> None:
        x += 1
        y += 1

    def work(x: Any, y: Any) -> None:
        for _ in range(50):
            step(x, y)
            x += 1

    threads = [threading.Thread(target=work, args=pair) for pair in ((a, b), (b, a), (a, b))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int(a[()]) == 250 and int(b[()]) == 200


def test_an_array_moves_after_its_program_was_found() -> None:
    m, k = made(), made()
    places = [NamedSharding(mesh((4, 2), "ij", KINDS["auto"]), P(None, "j")), sharding()]
    acquire = Locks.acquire

    @mu.jit
    def step(m: Any) -> None:
        m[0, 0] += 1
        k[0, 0] += 1

    step(m)
    for moving in (m, k):
        for place in places:
            moves = iter([place])

            def moved_meanwhile(locks: Locks, moving: Any = moving, moves: Any = moves) -> None:
                for to in moves:
                    moving.reshard(to)
                acquire(locks)

            with mock.patch.object(Locks, "acquire", moved_meanwhile):
                step(m)
            assert moving.sharding == place
            assert moving[...].addressable_shards[0].data.shape == place.shard_shape(X.shape)
    wanted = X.copy()
    wanted[0, 0] = 5
    np.testing.assert_array_equal(m[...], wanted)
    np.testing.assert_array_equal(k[...], wanted)


def test_an_argument_kept_from_another_call_is_not_returned_as_one_of_this() -> None:
    kept: list[Any] = []
    mu.jit(lambda m: kept.append(m))(mu.zeros(3))
    with pytest.raises(mu.errors.TraceError, match="was kept while"):
        mu.jit(lambda m: kept[0])(mu.ones(3))


def test_a_frozen_array_that_was_closed_over_is_forgotten() -> None:
    state = {"m": made()}
    add = mu.jit(lambda x: state["m"][...] + x)
    add(1.0)
    old = mu.freeze(state["m"])
    state["m"] = made(x=2 * X)
    np.testing.assert_array_equal(add(1.0), 2 * X + 1)
    np.testing.assert_array_equal(old, X)


def test_a_snapshot_is_donated_to_a_call_that_reads_its_array() -> None:
    m = made()
    out = mu.jit(lambda m, x: m[...] + x, donate_argnums=1)(m, m[...])
    np.testing.assert_array_equal(out, 2 * X)
    np.testing.assert_array_equal(m[...], X)


def test_arrays_on_the_same_devices_in_other_orders() -> None:
    turned = jax.sharding.Mesh(np.array(jax.devices()[::-1]), ("i",))
    m, k = made(), mu.mutable_array(X, NamedSharding(turned, P("i")))
    with pytest.raises(mu.errors.BadShardingError, match="the same devices in different orders"):
        mu.jit(lambda m, k: m.__setitem__(..., k[...]))(m, k)
    mu.assign([m, k], [k[...] + 1, m[...] + 2])
    np.testing.assert_array_equal(m[...], X + 1)
    np.testing.assert_array_equal(k[...], X + 2)


@pytest.mark.parametrize("jit", [jax.jit, mu.jit])
def test_traces_while_a_copy_of_an_array_in_host_memory_is_lent(jit: Any) -> None:
    m = mu.mutable_array(X, sharding().with_memory_kind("pinned_host"))
    step = jit(lambda m, k: m.__setitem__((0, 0), m[0, 0] + k))
    for k in (1.0, 2, np.float32(3)):  # traced for each type
        step(m, k)
    jit(lambda: m.__setitem__((0, 1), m[0, 0]))()
    wanted = X.copy()
    wanted[0, :2] = 6
    np.testing.assert_array_equal(m[...], wanted)
