"""Whole states: a decoder's cache, calls with many small arrays, the memory of a training step.

All mutable forms are under `mu.jit`, and all are compared with what a careful user of plain JAX
writes: a function of immutable arrays under `jax.jit` that donates them and returns the new ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec, Sharding
from rich.console import Console

import mutarray as mu
from benchmarks.compiled import sharding
from benchmarks.limits import MIB, Limit
from benchmarks.timing import Row, Step, medians
from examples.comparison import peak_bytes
from mutarray._jaxapi import make_single_device_sharding

P = PartitionSpec
SEQUENCES, HEADS, DEPTH = 8, 8, 128
ARRAYS = 100
LAYERS, WIDTH, BATCH = 4, 512, 64


def layouts() -> dict[str, Callable[[PartitionSpec], Sharding]]:
    """Where a spec puts an array: on one device, and on a mesh."""
    return {
        "one device": lambda spec: make_single_device_sharding(jax.devices()[0]),
        "4×2 auto": lambda spec: sharding(AxisType.Auto, spec),
    }


# A decoder's cache -------------------------------------------------------------------------------


def write(cache: mu.MutableArray, start: Any, new: Any) -> None:
    """The keys of new tokens of all sequences."""
    cache[:, :, mu.ds(start, new.shape[2])] = new


def write_functional(cache: jax.Array, start: Any, new: Any) -> jax.Array:
    """The same, as JAX's documentation has it."""
    zero = jnp.zeros_like(start)
    return lax.dynamic_update_slice(cache, new, (zero, zero, start, zero))


def write_at(cache: jax.Array, start: Any, new: Any) -> jax.Array:
    """The same by ``.at``, which knows no windows: by index array."""
    return cache.at[:, :, start + jnp.arange(new.shape[2])].set(new)


def write_each(cache: mu.MutableArray, starts: Any, new: Any) -> None:
    """The key of one new token of each sequence, at a position of its own."""
    cache[jnp.arange(SEQUENCES), :, starts] = new[:, :, 0]


def write_each_functional(cache: jax.Array, starts: Any, new: Any) -> jax.Array:
    """The same as windows, one for each sequence."""
    return jax.vmap(lambda x, k, v: lax.dynamic_update_slice(x, v, (0, k, 0)))(cache, starts, new)


def write_each_at(cache: jax.Array, starts: Any, new: Any) -> jax.Array:
    """The same by index array."""
    return cache.at[jnp.arange(SEQUENCES), :, starts].set(new[:, :, 0])


def cache_row(count: int, each: bool, positions: int, where: NamedSharding) -> Row:
    """Writes so many positions of all sequences, across the border of two devices now and then.

    With ``each``, every sequence has a position of its own.
    """
    shape = (SEQUENCES, HEADS, positions, DEPTH)
    new = jax.device_put(
        np.ones((SEQUENCES, HEADS, count, DEPTH), np.float32),
        NamedSharding(where.mesh, P(None, "j")),
    )
    border = positions // 4 - 2
    first = border + (np.arange(SEQUENCES, dtype=np.int32) * 97 if each else np.int32(0))

    def start(k: int) -> Any:
        return first + np.int32(k % 4)

    steps: dict[str, Step] = {}
    cache, program = mu.zeros(shape, sharding=where), mu.jit(write_each if each else write)

    def ours(k: int) -> None:
        program(cache, start(k), new)
        cache._cell.array().block_until_ready()

    steps["ours"] = ours
    for name, function in (
        ("donated dynamic_update_slice", write_each_functional if each else write_functional),
        ("donated .at[].set", write_each_at if each else write_at),
    ):
        steps[name] = donated(
            function,
            jax.device_put(np.zeros(shape, np.float32), where),
            lambda k: (start(k), new),
        )
    seen = medians(steps, {name: repeats(step) for name, step in steps.items()})
    index = "[arange(8), :, k]" if each else f"[:, :, ds(k, {count})]"
    name = f"cache{index} = v, {np.prod(shape) * 4 // MIB} MB"
    return Row("4×2 auto", name, seen.pop("ours"), raw=seen)


def repeats(step: Step) -> int:
    """How often to take a step, so that slow ones do not take minutes."""
    step(0)
    start = time.perf_counter()
    step(1)
    return 100 if time.perf_counter() - start < 0.2 else 5


def donated(function: Callable[..., Any], state: Any, args: Callable[[int], Any]) -> Step:
    """Calls a function of a state, which it donates and returns in the same place."""
    held = [state]
    places = jax.tree.map(lambda x: x.sharding, state)
    program = jax.jit(function, donate_argnums=0, out_shardings=places)

    def step(k: int) -> None:
        held[0] = program(held[0], *args(k))
        jax.tree.leaves(held[0])[-1].block_until_ready()

    return step


# Many small arrays -------------------------------------------------------------------------------


def add_to_all(arrays: list[Any]) -> None:
    """Of mutable arrays or Refs."""
    for m in arrays:
        m[...] = m[...] + 1


def call_row(layout: str, where: Sharding) -> Row:
    """One call with many arrays; each form waits for the last of them."""

    def made() -> list[jax.Array]:
        return [jax.device_put(np.zeros((8, 8), np.float32), where) for _ in range(ARRAYS)]

    arrays, refs = mu.mutable(made()), [jax.new_ref(x) for x in made()]
    by_mutable, by_ref = mu.jit(add_to_all), jax.jit(add_to_all)

    def ours(k: int) -> None:
        by_mutable(arrays)
        arrays[-1]._cell.array().block_until_ready()

    def with_refs(k: int) -> None:
        by_ref(refs)
        refs[-1]._refs._buf.block_until_ready()

    steps: dict[str, Step] = {
        "ours": ours,
        f"jax.jit, {ARRAYS} Refs": with_refs,
        "donated jit": donated(lambda xs: [x + 1 for x in xs], made(), lambda k: ()),
    }
    seen = medians(steps, dict.fromkeys(steps, 200))
    return Row(layout, f"a call with {ARRAYS} arrays", seen.pop("ours"), raw=seen)


# The memory of a training step -------------------------------------------------------------------


def loss(weights: list[Any], x: Any) -> jax.Array:
    """Of an MLP that is to give back what it gets."""
    y = x
    for w in weights:
        y = jax.nn.relu(y @ w)
    return jnp.mean((y - x) ** 2)


def adam(w: Any, first: Any, second: Any, gradient: Any) -> tuple[Any, Any, Any]:
    """New weights and moments."""
    first = 0.9 * first + 0.1 * gradient
    second = 0.999 * second + 0.001 * gradient**2
    return w - 1e-3 * first / (jnp.sqrt(second) + 1e-8), first, second


def train(weights: list[Any], firsts: list[Any], seconds: list[Any], x: Any) -> Any:
    """A step in place."""
    value, gradients = jax.value_and_grad(loss)(mu.values(weights), x)
    for w, first, second, gradient in zip(weights, firsts, seconds, gradients, strict=True):
        w[...], first[...], second[...] = adam(w[...], first[...], second[...], gradient)
    return value


def train_functional(weights: list[Any], firsts: list[Any], seconds: list[Any], x: Any) -> Any:
    """A step that returns the new state."""
    value, gradients = jax.value_and_grad(loss)(weights, x)
    new = [adam(*old) for old in zip(weights, firsts, seconds, gradients, strict=True)]
    return *(list(column) for column in zip(*new, strict=True)), value


def memory(layout: str, place: Callable[[PartitionSpec], Sharding]) -> Limit:
    """The peak of one device, as the compiler states it."""
    where = place(P("i", "j"))
    weights = [jax.device_put(np.ones((WIDTH, WIDTH), np.float32), where) for _ in range(LAYERS)]
    state = [weights, *([jnp.zeros_like(w) for w in weights] for _ in range(2))]
    x = jax.device_put(np.ones((BATCH, WIDTH), np.float32), place(P("i")))
    plain = jax.jit(
        train_functional, donate_argnums=(0, 1, 2), out_shardings=(where, where, where, None)
    )
    theirs = peak_bytes(plain.lower(*state, x).compile())
    ours = peak_bytes(mu.jit(train).lower(*mu.mutable(state), x).compile())
    return Limit(
        f"peak of a training step, MLP and Adam, {layout}",
        f"{ours / MIB:.2f} MiB, {ours / theirs:.3f} of that",
        f"donated jit: {theirs / MIB:.2f} MiB; allowed: 1.0 of that",
    )


def run(size: int, console: Console) -> tuple[list[Row], list[Limit]]:
    """All rows. The cache has as many elements as a matrix with ``size`` rows and columns."""
    positions = size * size // (SEQUENCES * HEADS * DEPTH)
    rows: list[Row] = []
    with console.status("states") as status:
        where = sharding(AxisType.Auto, P(None, "j", "i"))
        for count, each in ((1, False), (1, True), (2, False), (64, False)):
            status.update(f"states: a cache, {count} positions")
            rows.append(cache_row(count, each, positions, where))
        for layout, place in layouts().items():
            status.update(f"states: {layout}, {ARRAYS} arrays")
            rows.append(call_row(layout, place(P("i", "j"))))
        limits = [memory(layout, place) for layout, place in layouts().items()]
    return rows, limits
