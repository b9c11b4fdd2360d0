# pyright: strict, reportUnnecessaryTypeIgnoreComment=true, reportUnknownMemberType=false
"""What a strict type checker makes of each public name; `make check` runs pyright over it.

A line with an `ignore` is one that has to be refused: if it is not, the `ignore` is an error.
JAX's own functions are partly unknown to type checkers; that is the one rule that is off.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any, assert_type

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

import mutarray as mu


def constructors() -> None:
    home = NamedSharding(jax.make_mesh((1,), ("d",)), PartitionSpec())
    x = jnp.ones((2, 3))
    assert_type(mu.mutable_array(x), mu.MutableArray)
    assert_type(mu.mutable_array(x, home), mu.MutableArray)
    assert_type(mu.mutable_array(jnp.ones(2), donate=True), mu.MutableArray)
    for source in (np.ones(3), [[1.0, 2.0]], (1, 2), 3, np.float32(2), mu.ones(2)):
        assert_type(mu.mutable_array(source), mu.MutableArray)
    assert_type(mu.zeros((2, 3), jnp.float32, sharding=home), mu.MutableArray)
    assert_type(mu.ones(3, "int32"), mu.MutableArray)
    assert_type(mu.empty((2,)), mu.MutableArray)
    assert_type(mu.full((2, 2), 7.0), mu.MutableArray)
    assert_type(mu.zeros_like(x), mu.MutableArray)
    assert_type(mu.ones_like(mu.zeros(3)), mu.MutableArray)
    assert_type(mu.empty_like(np.ones(3)), mu.MutableArray)
    assert_type(mu.full_like(x, 2, shape=(3,)), mu.MutableArray)
    assert_type(mu.from_callback((4,), home, lambda index: np.ones(4)[index]), mu.MutableArray)


def reads_and_writes(m: mu.MutableArray) -> None:
    assert_type(m[0], jax.Array)
    assert_type(m[..., None, ::-2], jax.Array)
    assert_type(m[mu.ds(0, 2)], jax.Array)
    m[0] = 1
    m[1:] = np.ones(3)
    m[:1] = [[1, 2, 3]]
    m[...] = m * 2
    m[0] = mu.ones(3)
    m[0] = "text" if m.size > 99 else 0.0  # pyright: ignore[reportArgumentType]
    assert_type(mu.get(m), jax.Array)
    assert_type(mu.get(m, 0, mode="fill", fill_value=0.0), jax.Array)
    assert_type(mu.swap(m, 0, 1.0), jax.Array)
    assert_type(mu.set(m, 0, 1.0, mode="drop", unique_indices=True), None)
    assert_type(mu.addupdate(m, [0, 0], 1.0), None)
    assert_type(mu.explain(m, 0, 1.0), mu.Explanation)
    assert_type(mu.explain(m).moved_bytes, int)
    with mu.no_gather() as nothing:
        assert_type(nothing, None)
    assert_type(m.add_at(0, 1.0), None)
    assert_type(m.multiply_at([0], 1.0), None)
    assert_type(m.min_at(0, 1.0), None)
    assert_type(m.max_at(0, 1.0), None)
    assert_type(m.apply_at(jnp.negative, 0), None)
    assert_type(m.apply_at(jnp.hypot, 0, 1.0), None)
    assert_type(m.fill(1.0), None)
    assert_type(m.sort(axis=0, descending=True), None)
    assert_type(m.partition(0, axis=0), None)
    assert_type(m.put([0, 1], [1.0, 2.0], mode="wrap"), None)


def refused(m: mu.MutableArray) -> None:
    """Never called: what a type checker has to find, and what raises."""
    m.apply_at(lambda x, y: x + y, 0)  # pyright: ignore
    m.apply_at(lambda x: x, 0, 1.0)  # pyright: ignore
    mu.get(m, 0, mode="wrap")  # pyright: ignore[reportArgumentType]
    m.put(0, 1.0, mode="drop")  # pyright: ignore[reportArgumentType]
    mu.zeros(3).shape = (1,)  # pyright: ignore[reportAttributeAccessIssue]
    print(m - [1, 2])  # pyright: ignore
    print(m + "a")  # pyright: ignore
    print({m: 1})  # pyright: ignore[reportUnhashable]


def operators(m: mu.MutableArray) -> None:
    x = jnp.ones(3)
    for value in (m + 1, m + x, m - m, m * np.ones(3), m / 2.0, m // 2, m % 2, m**2, m @ x):
        assert_type(value, jax.Array)
    for value in (1 + m, 1 - m, 2 * m, 1 / m, 1 // m, 1 % m, 2**m, x + m):
        assert_type(value, jax.Array)
    for value in (m == 1, m != x, m < 1, m <= m, m > 0, m >= 0, -m, +m, abs(m), round(m, 1)):
        assert_type(value, jax.Array)
    k = mu.ones(3, "int32")
    for value in (~k, k & 1, k | k, k ^ 1, k << 1, k >> 1, 1 & k, 1 | k, 1 ^ k, 1 << k, 1 >> k):
        assert_type(value, jax.Array)
    assert_type(divmod(m, 2), tuple[jax.Array, jax.Array])
    assert_type(divmod(2, m), tuple[jax.Array, jax.Array])
    one = mu.ones(())
    assert_type((bool(one), int(one), float(one), complex(one)), tuple[bool, int, float, complex])
    assert_type([1.5][mu.zeros((), "int32")], float)
    assert_type(len(m), int)
    assert_type(iter(m), Iterator[jax.Array])
    assert_type(1.0 in m, bool)


def in_place(m: mu.MutableArray) -> None:
    m += 1
    m -= np.ones(3, np.float32)
    m *= jnp.ones(3)
    m /= 2.0
    m //= m
    m %= 5
    m **= 2
    m @= np.eye(3, dtype=np.float32)
    assert_type(m, mu.MutableArray)
    k = mu.ones(3, "int32")
    k &= 1
    k |= 2
    k ^= 4
    k <<= 1
    k >>= 1
    assert_type(k, mu.MutableArray)


def methods(m: mu.MutableArray) -> None:
    assert_type(m.sum(axis=0, keepdims=True), jax.Array)
    assert_type(m.mean((0, 1)), jax.Array)
    assert_type(m.argmax(), jax.Array)
    assert_type(m.reshape(3, -1), jax.Array)
    assert_type(m.reshape((-1, 3)), jax.Array)
    assert_type(m.transpose(1, 0), jax.Array)
    assert_type(m.transpose((1, 0)), jax.Array)
    assert_type((m.T, m.mT, m.real, m.imag), tuple[jax.Array, jax.Array, jax.Array, jax.Array])
    assert_type(m.astype(jnp.int8), jax.Array)
    assert_type(m.clip(0, max=1.0), jax.Array)
    assert_type(m.dot(m.T), jax.Array)
    assert_type(m.nonzero(), tuple[jax.Array, ...])
    assert_type(m.item(0), bool | int | float | complex)
    assert_type(m.tobytes(), bytes)
    assert_type(m.take(np.array([0]), axis=0), jax.Array)
    assert_type(m.to_device(m.sharding), jax.Array)
    assert_type(m.snapshot(), jax.Array)
    assert_type(m.copy(), mu.MutableArray)
    assert_type(m.block_until_ready(), mu.MutableArray)
    assert_type(m.copy_to_host_async(), None)


def attributes(m: mu.MutableArray) -> None:
    assert_type((m.ndim, m.size, m.nbytes, m.itemsize), tuple[int, int, int, int])
    assert_type(m.shape, tuple[int, ...])
    assert_type(m.dtype, np.dtype[Any])
    assert_type(m.sharding, Sharding)
    assert_type((m.is_fully_addressable, m.is_deleted(), m.committed), tuple[bool, bool, bool])
    assert_type(m.layout(), mu.LayoutTable)
    assert_type(m.is_fully_replicated, bool)
    assert_type(m.addressable_data(0), jax.Array)
    assert_type(m.devices(), set[Any])
    assert_type(m.__array_namespace__(), ModuleType)
    assert_type(m.__dlpack_device__(), tuple[int, int])
    assert_type(np.asarray(m), np.ndarray[tuple[Any, ...], np.dtype[Any]])


def functions(x: jax.Array) -> None:
    assert_type(mu.functional.get(x, 0), jax.Array)
    assert_type(mu.functional.set(x, 0, 1.0, mode="drop"), jax.Array)
    assert_type(mu.functional.add(x, [0, 0], 1.0), jax.Array)
    assert_type(mu.freeze(mu.zeros(3)), jax.Array)
    try:
        mu.zeros(3)[9]
    except mu.errors.MutarrayError as error:
        assert_type(error.args, tuple[Any, ...])


def states(m: mu.MutableArray) -> None:
    state = {"m": m, "n": mu.zeros(3)}
    assert_type(mu.values(state), dict[str, mu.MutableArray])  # the structure; the leaves change
    assert_type(mu.mutable(jnp.zeros(3)), jax.Array)
    assert_type(mu.assign(state, {"m": 1.0 + m, "n": 2.0 + m}), None)
    assert_type(mu.map_inplace(jnp.add, state, state), None)
    with mu.transaction(state, m):
        m[0] = 1.0
    assert_type(mu.freeze(m.copy()), jax.Array)

    @mu.jit
    def step(m: mu.MutableArray, v: float) -> tuple[mu.MutableArray, jax.Array]:
        return m, m[0] * v

    @mu.jit(static_argnames="n", donate_argnums=0)
    def other(x: jax.Array, n: int) -> jax.Array:
        return x * n

    assert_type(step(m, 2.0), tuple[mu.MutableArray, jax.Array])
    assert_type(other(jnp.ones(3), n=2), jax.Array)
    compiled = step.lower(m, 2.0).compile()
    assert_type(compiled.as_text(), str)


def everything() -> None:
    """Runs all that is not refused: what is told to type checkers is there."""
    constructors()
    reads_and_writes(mu.zeros((2, 3)))
    operators(mu.ones(3))
    in_place(mu.ones((3, 3)))
    methods(mu.ones((2, 3)))
    attributes(mu.ones((2, 3)))
    functions(jnp.zeros(3))
    states(mu.zeros(3))
