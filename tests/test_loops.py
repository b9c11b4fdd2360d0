"""Windows of sharded arrays in loops and branches: right values, and no round touches the block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding

import mutarray as mu
from tests import hlo
from tests.cases.support import on_mesh, same_sharding
from tests.support import KINDS, P, mesh

SHAPE = (512, 256)
N, M = SHAPE
X = np.arange(N * M, dtype=np.float32).reshape(SHAPE)
V = np.arange(8 * M, dtype=np.float32).reshape(8, M) * -1
ROUNDS = 8
TOUCHED = V.nbytes
CONSTANT = 8192
"""Bytes that a program may use besides what it touches: offsets, flags, what a loop carries."""

kinds = pytest.mark.parametrize("kind", KINDS)
SPECS = {"4x2": P("i", "j"), "columns": P(None, "i")}


def array(kind: str, spec: str = "4x2", x: np.ndarray = X) -> mu.MutableArray:
    return mu.mutable_array(x, NamedSharding(mesh((4, 2), "ij", KINDS[kind]), SPECS[spec]))


def block_bytes(m: mu.MutableArray) -> int:
    return int(np.prod(m.sharding.shard_shape(m.shape))) * m.itemsize


# Each loop takes an array, mutable or NumPy's, and ways to write a window of it and to repeat; so
# NumPy says what is right. Windows begin anywhere: most reach over the border of a block.


class Jax:
    """Loops as a compiled program has them."""

    ds = staticmethod(mu.ds)

    @staticmethod
    def scan(body: Callable[[Any, Any], Any], carry: Any) -> Any:
        return lax.scan(lambda c, i: (body(c, i), c), carry, jnp.arange(ROUNDS))

    @staticmethod
    def fori(body: Callable[[Any], None]) -> None:
        lax.fori_loop(0, ROUNDS, lambda i, c: (body(i), c)[1], 0)

    @staticmethod
    def until(n: int, body: Callable[[Any], Any]) -> Any:
        return lax.while_loop(lambda k: k < n, body, 0)

    @staticmethod
    def choose(which: Any, branches: list[Callable[[], None]]) -> None:
        if len(branches) == 2:
            lax.cond(which == 1, branches[1], branches[0])
        else:
            lax.switch(which, branches)


class Numpy:
    """The same, step by step."""

    @staticmethod
    def ds(start: Any, size: int, step: int = 1) -> slice:
        start = min(start, N - (size - 1) * step - 1)
        return slice(start, start + (size - 1) * step + 1, step)

    @staticmethod
    def scan(body: Callable[[Any, Any], Any], carry: Any) -> Any:
        seen = []
        for i in range(ROUNDS):
            seen.append(carry)
            carry = body(carry, i)
        return carry, np.stack(seen)

    @staticmethod
    def fori(body: Callable[[Any], None]) -> None:
        for i in range(ROUNDS):
            body(i)

    @staticmethod
    def until(n: int, body: Callable[[Any], Any]) -> Any:
        k = 0
        while k < n:
            k = body(k)
        return k

    @staticmethod
    def choose(which: Any, branches: list[Callable[[], None]]) -> None:
        branches[which]()


def scan(m: Any, v: Any, by: Any) -> Any:
    def body(carry: Any, i: Any) -> Any:
        m[by.ds(i * 60 + 4, 8)] = v + carry
        return carry + 1

    return by.scan(body, 0)


def scan_with_reads(m: Any, v: Any, by: Any) -> Any:
    def body(row: Any, i: Any) -> Any:
        m[by.ds(i * 60 + 124, 8)] = v + row  # the last ones are moved back into the array
        return m[i * 50 + 126] * 0.5

    return by.scan(body, v[0])


def fori_loop(m: Any, v: Any, by: Any) -> None:
    def body(i: Any) -> None:
        m[by.ds(i * 62, 8), by.ds(i * 16 + 4, 16)] += v[:, :16]
        m[i] = v[1]

    by.fori(body)


def while_loop(m: Any, v: Any, by: Any) -> Any:
    def body(k: Any) -> Any:
        m[by.ds(k + 100, 8, 3)] = v * 2
        m[k + 3, 5] = 1.0
        return k + 70

    return by.until(420, body)


def cond(m: Any, v: Any, by: Any) -> None:
    def body(i: Any) -> None:
        def even() -> None:
            m[by.ds(i * 60, 8)] = v

        def odd() -> None:
            m[i * 60 + 1] = v[2]

        by.choose(i % 2, [even, odd])

    by.fori(body)


def switch(m: Any, v: Any, by: Any) -> None:
    def body(i: Any) -> None:
        def window() -> None:
            m[by.ds(i * 60 + 4, 8)] = v

        def element() -> None:
            m[i * 60, i] = -1.0

        def nothing() -> None:
            pass

        by.choose(i % 3, [window, element, nothing])

    by.fori(body)


def nested(m: Any, v: Any, by: Any) -> Any:
    def outer(k: Any) -> Any:
        by.fori(lambda i: m.__setitem__(by.ds(k + i * 4, 4), v[:4] + i))
        return k + 120

    return by.until(480, outer)


LOOPS = {
    f.__name__: f for f in (scan, scan_with_reads, fori_loop, while_loop, cond, switch, nested)
}
WAYS = [
    ("auto", "4x2", "argument"),
    ("auto", "4x2", "closure"),
    ("explicit", "4x2", "argument"),
    ("auto", "columns", "argument"),
]


@pytest.mark.parametrize(("kind", "spec", "how"), WAYS)
@pytest.mark.parametrize("name", LOOPS)
def test_windows_in_loops(name: str, kind: str, spec: str, how: str) -> None:
    loop, wanted = LOOPS[name], X.copy()
    result = loop(wanted, V, Numpy)
    m = array(kind, spec)
    if how == "argument":
        compiled = jax.jit(lambda m, v: loop(m, v, Jax)).lower(m, V).compile()
        got = compiled(m, V)
    else:
        compiled = jax.jit(lambda v: loop(m, v, Jax)).lower(V).compile()
        got = compiled(V)
    np.testing.assert_array_equal(m[...], wanted)
    jax.tree.map(np.testing.assert_array_equal, got, result)
    assert same_sharding(m, m.sharding)
    assert hlo.in_loops(compiled), "there is a loop to look at"
    check(compiled, m, raw_copies(name))


def raw_copies(name: str) -> int:
    """How often a block is copied by the branches of ``name``, written in raw JAX.

    Before JAX 0.12, XLA copies what two branches write, once in and once out of them: then it does
    so for a mutable array too, but not more often.
    """
    if name not in ("cond", "switch"):
        return 0

    def body(i: Any, x: Any) -> Any:
        def window(x: Any) -> Any:
            return lax.dynamic_update_slice(x, V, (i * 60, 0))

        def row(x: Any) -> Any:
            return lax.dynamic_update_slice(x, V[:1], (i * 60, 0))

        if name == "cond":
            return lax.cond(i % 2 == 0, window, row, x)
        return lax.switch(i % 3, [window, row, lambda x: x], x)

    raw = jax.jit(lambda x: lax.fori_loop(0, ROUNDS, body, x), donate_argnums=0)
    return len(hlo.rewrites_in_loops(raw.lower(X).compile(), X.nbytes))


def check(compiled: Any, m: mu.MutableArray, copies: int = 0) -> None:
    """What the devices send, and what a round goes through, is what is touched."""
    block = block_bytes(m)
    assert hlo.aliased(compiled) == block
    sent = [c for c in hlo.collectives(compiled) if c.nbytes > TOUCHED]
    assert not sent, sent
    rewritten = hlo.rewrites_in_loops(compiled, block)
    assert len(rewritten) <= copies, rewritten
    copied = [c for c in hlo.copies(compiled) if c.nbytes >= block]
    assert len(copied) <= copies, copied
    room = 4 * TOUCHED + CONSTANT
    assert hlo.temporary(compiled) <= room + (block if copies else 0) and room < block


def test_what_a_loop_rewrites_is_seen() -> None:
    """The check above can fail: raw JAX copies a block in each round."""

    def body(i: Any, x: Any) -> Any:
        return lax.dynamic_update_slice(x + 1, x[:1] * 2, (i, 0))

    compiled = jax.jit(lambda x: lax.fori_loop(0, 9, body, x)).lower(X).compile()
    assert hlo.rewrites_in_loops(compiled, X.nbytes)
    assert not hlo.rewrites_in_loops(compiled, X.nbytes + 1)


@kinds
def test_in_a_nested_jit(kind: str) -> None:
    """The array is given to an inner jit in each round, and once more behind the loop."""
    m, wanted = array(kind), X.copy()
    inner = jax.jit(lambda m, k, v: m.__setitem__(mu.ds(k, 8), v))

    def step(m: mu.MutableArray, v: Any) -> None:
        Jax.fori(lambda i: inner(m, i * 60, v + i))
        inner(m, 508, v)

    compiled = jax.jit(step).lower(m, V).compile()
    check(compiled, m)
    compiled(m, V)
    for i in range(ROUNDS):
        wanted[i * 60 : i * 60 + 8] = V + i
    wanted[504:] = V
    np.testing.assert_array_equal(m[...], wanted)


@kinds
def test_made_in_the_program(kind: str) -> None:
    """A buffer that a loop fills is made once, and is the result."""
    s = array(kind).sharding

    def fill(v: Any) -> Any:
        m = mu.zeros(SHAPE, sharding=s)
        scan(m, v, Jax)
        return m[...]

    compiled = jax.jit(fill).lower(V).compile()
    block = X.nbytes // 8
    assert not hlo.rewrites_in_loops(compiled, block)
    assert hlo.temporary(compiled) <= block + 4 * TOUCHED + CONSTANT
    wanted = np.zeros_like(X)
    scan(wanted, V, Numpy)
    out = compiled(V)
    np.testing.assert_array_equal(out, wanted)
    assert out.sharding.shard_shape(SHAPE) == s.shard_shape(SHAPE)


# shard_map ---------------------------------------------------------------------------------------


@kinds
def test_a_loop_in_a_shard_map(kind: str) -> None:
    """Each device writes windows of its own block, one of which is moved back into it."""
    m, wanted = array(kind), X.copy()
    s = m.sharding

    def body(m: mu.MutableArray, v: Any) -> None:
        row = lax.axis_index("i") * 1.0
        Jax.fori(lambda k: m.__setitem__(mu.ds(k * 18, 8), v + row))

    mapped = jax.shard_map(body, mesh=s.mesh, in_specs=(P("i", "j"), P(None, "j")), out_specs=None)
    v = jax.device_put(V, NamedSharding(s.mesh, P(None, "j")))
    compiled = jax.jit(mapped).lower(m, v).compile()
    check(compiled, m)
    assert not hlo.collectives(compiled)
    compiled(m, v)
    for row in range(4):
        for k in range(ROUNDS):
            start = row * 128 + min(k * 18, 120)
            wanted[start : start + 8] = V + row
    np.testing.assert_array_equal(m[...], wanted)
    assert same_sharding(m, s)


# vmap --------------------------------------------------------------------------------------------

SMALL = np.arange(64, dtype=np.float32).reshape(8, 8)
runs = pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])


@runs
@kinds
@pytest.mark.parametrize("axis", [0, 1])
def test_windows_of_mapped_arrays(run: Any, kind: str, axis: int) -> None:
    """One window for all, and one for each, which may reach out of range."""
    m = array(kind, x=SMALL)
    starts = np.array([-1, 0, 3, 5, 6, 7, 8, -20], np.int32)
    starts = jax.device_put(starts, NamedSharding(m.sharding.mesh, P(m.sharding.spec[axis])))

    def body(m: mu.MutableArray, k: Any) -> Any:
        m[mu.ds(k, 3)] = -1.0
        m[mu.ds(1, 2)] += 100.0
        m[k] = 5.0  # dropped where it is out of range
        return m[mu.ds(k, 2)], m[k]

    with on_mesh(m.sharding):
        windows, elements = run(jax.vmap(body, in_axes=(axis, 0)))(m, starts)
    windows, elements = np.asarray(windows), np.asarray(elements)
    wanted = SMALL.copy()
    rows = wanted if axis == 0 else wanted.T
    for n, k in enumerate(np.asarray(starts)):
        k = k + 8 if k < 0 else k
        at = np.clip(k, 0, 5)
        rows[n, at : at + 3] = -1
        rows[n, 1:3] += 100
        if 0 <= k < 8:
            rows[n, k] = 5
        at = np.clip(k, 0, 6)
        np.testing.assert_array_equal(windows[n], rows[n, at : at + 2])
        assert elements[n] == rows[n, np.clip(k, 0, 7)]
    np.testing.assert_array_equal(m[...], wanted)
    assert same_sharding(m, m.sharding)


@runs
@kinds
def test_an_array_that_is_not_mapped(run: Any, kind: str) -> None:
    """Mapped indices read from it; whatever is written is refused by JAX, and leaves it alone."""
    m = array(kind, x=SMALL)
    i = jnp.array([3, 0, 9, -1, -30])

    def body(m: mu.MutableArray, i: Any) -> Any:
        return m[i], m[mu.ds(i, 2)], m[[0, 7], 1:3], m[i, 2], m[[7, 0], i]

    def write(m: mu.MutableArray, i: Any) -> None:
        m[i] = 1.0

    def write_alike(m: mu.MutableArray, i: Any) -> None:
        m[2] = m[1]

    with on_mesh(m.sharding):
        rows, windows, block, elements, points = run(jax.vmap(body, in_axes=(None, 0)))(m, i)
        for refused in (write, write_alike):
            with pytest.raises(Exception, match="unbatched array reference"):
                run(jax.vmap(refused, in_axes=(None, 0)))(m, i)
    at = [3, 0, 7, 7, 0]
    np.testing.assert_array_equal(rows, SMALL[at])
    np.testing.assert_array_equal(windows, [SMALL[k : k + 2] for k in (3, 0, 6, 6, 0)])
    np.testing.assert_array_equal(block, np.broadcast_to(SMALL[[0, 7], 1:3], (5, 2, 2)))
    np.testing.assert_array_equal(elements, SMALL[at, 2])
    np.testing.assert_array_equal(points, SMALL[[7, 0]][:, at].T)
    np.testing.assert_array_equal(m[...], SMALL)
    assert same_sharding(m, m.sharding)
