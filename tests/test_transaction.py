"""`mu.transaction`: all or nothing, whatever is done inside, and what it costs."""

from __future__ import annotations

import inspect
import sys
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
from tests.support import KINDS, P, mesh

pytestmark = pytest.mark.core

X = np.arange(32, dtype=np.float32).reshape(8, 4)
HOMES = {
    "4x2": NamedSharding(mesh((4, 2), "ij", KINDS["auto"]), P("i", "j")),
    "explicit": NamedSharding(mesh((4, 2), "ij", KINDS["explicit"]), P("i")),
    "replicated": NamedSharding(mesh((4, 2), "ij", KINDS["auto"]), P()),
    "one device": make_single_device_sharding(jax.devices()[3]),
    "host": NamedSharding(mesh((4,), "d", KINDS["auto"]), P("d"), memory_kind="pinned_host"),
}
homes = pytest.mark.parametrize("home", HOMES.values(), ids=HOMES)


class Boom(Exception):
    """What the tests raise."""


def made(home: Any, x: Any = X) -> mu.MutableArray:
    return mu.mutable_array(x, home)


def bits(m: Any) -> bytes:
    return np.asarray(m).tobytes()


by_argument = jax.jit(lambda m: m.__setitem__(2, m[1] * 2))
by_program = mu.jit(lambda m: m.__setitem__(2, m[1] * 2))

WRITES = {
    "element": lambda m: m.__setitem__((0, 0), 5.0),
    "row": lambda m: m.__setitem__(3, np.ones(4)),
    "across": lambda m: m.__setitem__(slice(1, 7), 5.0),
    "by index": lambda m: m.add_at([0, 0, 5], 1.0),
    "by mask": lambda m: m.__setitem__(X > 20, 0.0),
    "whole": lambda m: m.__setitem__(..., 3.0),
    "in place": lambda m: m.__iadd__(1),
    "sort": lambda m: m.sort(axis=1),
    "jax.jit": by_argument,
    "mu.jit": by_program,
    "swap": lambda m: mu.swap(m, 1, 0.0),
    "assign": lambda m: mu.assign([m], [X + 1]),
    "map_inplace": lambda m: mu.map_inplace(jnp.negative, m),
    "freeze": mu.freeze,
    "twice": lambda m: (m.__setitem__(0, 1.0), m.__setitem__(0, 2.0), m.__iadd__(1)),
    "snapshot between": lambda m: (m[...], m.__setitem__(0, 1.0), m[...], m.__iadd__(1)),
}


@homes
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_block_that_raises_changes_nothing(home: Any, write: Any) -> None:
    m, other = made(home), made(home)
    m[5] = -0.0
    before, wanted = m[...], bits(m)
    with pytest.raises(Boom), mu.transaction(m):
        write(m)
        raise Boom
    assert bits(m) == wanted == bits(before) and m.sharding is home
    other[5] = -0.0
    for k in (m, other):  # and it works as if nothing had been
        k[1] = 7
        k += 1
    assert bits(m) == bits(other) and bits(before) == wanted


@homes
def test_a_block_that_ends_keeps_its_writes(home: Any) -> None:
    m, wanted = made(home), X.copy()
    with mu.transaction(m):
        m[0] = 1.0
        assert float(m[0, 0]) == 1.0  # seen at once
        m += 1
    wanted[0] = 1
    np.testing.assert_array_equal(m[...], wanted + 1)
    assert m.sharding is home


def test_nested() -> None:
    a, b = made(HOMES["4x2"]), made(HOMES["4x2"])
    with mu.transaction(a, b):
        a[0] = 1.0
        with pytest.raises(Boom), mu.transaction(a):
            a[0] = 2.0
            b[0] = 2.0
            raise Boom
        assert float(a[0, 0]) == 1.0 and float(b[0, 0]) == 2.0
        with mu.transaction(b):
            b[1] = 3.0
    assert float(a[0, 0]) == 1.0 and float(b[0, 0]) == 2.0 and float(b[1, 0]) == 3.0
    with pytest.raises(Boom), mu.transaction(a, b):
        with mu.transaction(a, b):
            a[0], b[0] = 7.0, 7.0
        raise Boom
    assert float(a[0, 0]) == 1.0 and float(b[0, 0]) == 2.0


def test_trees_and_what_is_no_mutable_array() -> None:
    state = {"w": made(HOMES["4x2"]), "n": 3, "none": None, "same": [made(HOMES["one device"])]}
    state["again"] = state["w"]
    with pytest.raises(Boom), mu.transaction(state, (), [np.ones(2)]):
        state["w"][0] = 5
        state["same"][0][0] = 5
        raise Boom
    np.testing.assert_array_equal(state["w"][...], X)
    np.testing.assert_array_equal(state["same"][0][...], X)


def pointers(m: mu.MutableArray) -> list[int]:
    return [x.unsafe_buffer_pointer() for x in _jaxapi.blocks(m._cell.array())]  # pyright: ignore


def test_it_costs_one_copy_of_the_shards_that_are_written() -> None:
    m = made(HOMES["4x2"])
    m[0, 0] = 0.0
    before = pointers(m)
    with mu.transaction(m):
        m[0, 0] = 1.0  # on one device
        inside = pointers(m)
        m[1, 0] = 2.0
        assert pointers(m) == inside
    assert [a == b for a, b in zip(before, inside, strict=True)] == [False] + [True] * 7
    m[0] = m[7] = 3.0  # afterwards, nothing is copied any more
    assert pointers(m) == inside
    with mu.transaction(m):
        pass
    m[3] = 1.0
    assert pointers(m) == inside


def test_a_snapshot_from_inside_survives_what_comes_later() -> None:
    m = made(HOMES["4x2"])
    with mu.transaction(m):
        first = m[...]
        m[0] = 1.0
        second = m[...]
    m[...] = 9.0
    m[0] = 8.0
    np.testing.assert_array_equal(first, X)
    np.testing.assert_array_equal(second[1:], X[1:])
    assert float(second[0, 0]) == 1.0
    with pytest.raises(Boom), mu.transaction(m):
        third = m[...]
        m[0] = 1.0
        raise Boom
    m[0] = 2.0
    assert float(third[0, 0]) == 8.0


def test_writes_that_fail_late_are_taken_back() -> None:
    m, k = made(HOMES["one device"]), made(HOMES["one device"])

    def fails(x: Any) -> Any:
        raise Boom("in a callback")

    @mu.jit
    def step(m: Any) -> None:
        m[0] = jax.pure_callback(fails, jax.ShapeDtypeStruct((4,), jnp.float32), m[0])

    with pytest.raises(Exception, match="in a callback"), mu.transaction(m, k):
        k[0] = 1.0
        step(m)
    np.testing.assert_array_equal(m[...], X)
    np.testing.assert_array_equal(k[...], X)


def test_killed_at_every_operation() -> None:
    """A step of ten operations is broken off before each of them, and leaves the state whole."""
    state = {"w": made(HOMES["4x2"]), "h": made(HOMES["host"]), "n": mu.zeros((), jnp.int32)}
    operations = [
        lambda: state["n"].__iadd__(1),
        lambda: state["w"].__setitem__((slice(1, 5), 0), 2.0),
        lambda: by_argument(state["w"]),
        lambda: state["h"].__setitem__(0, 5.0),
        lambda: by_program(state["w"]),
        lambda: mu.map_inplace(jnp.sin, state["w"]),
        lambda: state["w"].add_at([3, 3], 1.0),
        lambda: mu.assign({"n": state["n"]}, {"n": 7}),
        lambda: state["w"].__setitem__(..., 0.0),
        lambda: mu.swap(state["h"], ..., X + 2),
    ]
    names = list(state)
    for stop in range(len(operations) + 1):
        before = {name: bits(state[name]) for name in names}
        with pytest.raises(KeyboardInterrupt), mu.transaction(state):
            for operation in operations[:stop]:
                operation()
            raise KeyboardInterrupt
        assert {name: bits(state[name]) for name in names} == before
    with mu.transaction(state):
        for operation in operations:
            operation()
    assert int(state["n"]) == 7 and float(state["h"][0, 0]) == 2.0


def interrupted_at(stop: int, work: Any) -> int:
    """Runs ``work``, with an exception at its ``stop``-th call of a function of mutarray's.

    Generators are passed over: what is raised as one is closed goes nowhere, in Python itself.
    Returns how many such calls there were.
    """
    calls = 0

    def listen(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        if event != "call" or frame.f_code.co_flags & inspect.CO_GENERATOR:
            return
        if "mutarray" in frame.f_code.co_filename:
            calls += 1
            if calls == stop:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(listen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_interrupted_at_every_call() -> None:
    state = {"w": made(HOMES["4x2"]), "e": made(HOMES["explicit"]), "h": made(HOMES["host"])}

    def step() -> None:
        state["w"][1:5, 0] = 2.0
        state["h"][0] = 5.0
        by_program(state["e"])
        state["w"].add_at([3, 3], 1.0)
        state["e"] += 1
        by_argument(state["w"])
        state["h"][...] = X + 2

    before = mu.values(state)
    step()  # compiles
    mu.assign(state, before)
    wanted = {name: bits(m) for name, m in state.items()}
    calls = interrupted_at(0, step)
    mu.assign(state, before)
    assert calls > 100
    for stop in range(1, calls + 1):
        with pytest.raises(KeyboardInterrupt), mu.transaction(state):
            interrupted_at(stop, step)
        assert {name: bits(m) for name, m in state.items()} == wanted, stop
    step()
    assert {name: bits(m) for name, m in state.items()} != wanted


@pytest.mark.parametrize("jit", [jax.jit, mu.jit], ids=["jax.jit", "mu.jit"])
def test_in_a_trace(jit: Any) -> None:
    m, k = made(HOMES["4x2"]), made(HOMES["4x2"])

    @jit
    def step(m: Any) -> None:
        m[0] = 1.0
        new = mu.mutable_array(m[...])
        try:
            with mu.transaction(m, k, new):
                m[0], k[0], new[0] = 2.0, 2.0, 2.0
                m[99] = 1.0
        except IndexError:
            pass
        m[1] = new[0]

    step(m)
    wanted = X.copy()
    wanted[:2] = 1
    np.testing.assert_array_equal(m[...], wanted)
    np.testing.assert_array_equal(k[...], X)


@pytest.mark.parametrize("jit", [jax.jit, mu.jit], ids=["jax.jit", "mu.jit"])
def test_frozen_in_a_trace(jit: Any) -> None:
    m, k = made(HOMES["4x2"]), made(HOMES["4x2"])

    @jit
    def step(m: Any, k: Any) -> None:
        new = mu.mutable_array(m[...])
        with pytest.raises(Boom), mu.transaction(m, new, k):
            m[0], new[0], k[0] = 1.0, 1.0, 1.0
            mu.freeze([m, new])
            raise Boom
        m[1] = new[0]

    step(m, k)
    wanted = X.copy()
    wanted[1] = X[0]
    np.testing.assert_array_equal(m[...], wanted)
    np.testing.assert_array_equal(k[...], X)


def test_a_spent_array_is_refused() -> None:
    m, k = made(HOMES["4x2"]), made(HOMES["4x2"])
    mu.freeze(k)
    with pytest.raises(mu.errors.SpentError), mu.transaction(m, k):
        m[0] = 1.0
    np.testing.assert_array_equal(m[...], X)


def test_a_block_taken_out_of_a_snapshot_outlives_nested_transactions() -> None:
    m = made(HOMES["4x2"])
    with mu.transaction(m):
        block = m[...].addressable_shards[0].data
        with mu.transaction(m):
            pass
    m[0, 0] = -1.0
    np.testing.assert_array_equal(block, X[:2, :2])


@pytest.mark.parametrize("wait", ["transaction", "block_until_ready"])
def test_another_thread_writes_while_the_end_is_waited_for(wait: str) -> None:
    m = made(HOMES["4x2"])
    writes = iter([(0, 0)])
    ready = jax.block_until_ready

    def written_meanwhile(x: Any) -> Any:
        for index in writes:
            m[index] = -1.0
        return ready(x)

    with mock.patch.object(jax, "block_until_ready", written_meanwhile):
        if wait == "transaction":
            with mu.transaction(m):
                m[0, 1] = -2.0
        else:
            m[0, 1] = -2.0
            m.block_until_ready()
    wanted = X.copy()
    wanted[0, :2] = -1, -2
    np.testing.assert_array_equal(m[...], wanted)
