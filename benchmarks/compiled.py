"""Compiled reads and writes, against donated `jax.jit` programs and a `jax.Ref` inside `jax.jit`.

Ours is under `mu.jit`: a function that `jax.jit` compiles has a fixed cost for a Ref among its
arguments, of 0.5 to 1 ms in JAX's Python path. Each of our programs is timed twice: with the
mutable array as its argument, and (*no Ref*) as a donated jit that makes a mutable array of its
argument and freezes it in the end, which is what raw JAX is timed as.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from rich.console import Console

import mutarray as mu
from benchmarks.timing import Row, Step, medians

P = PartitionSpec
ROWS, WRITES = 64, 1000


@dataclass
class Case:
    """One operation.

    Attributes:
        name: as the table shows it.
        ours: in terms of a mutable array, or of a Ref that has the same syntax.
        args: by round, what it takes besides the array.
        raw: the same as pure functions of an array and the same arguments.
        by_ref: in terms of a Ref; ``None`` if there is none to compare with.
        reads: whether it returns something, and leaves the array as it is.
        repeats: of raw JAX.
        calls: how many operations one call does.
    """

    name: str
    ours: Callable[..., Any]
    args: Callable[[int], tuple[Any, ...]]
    raw: dict[str, Callable[..., Any]] = field(default_factory=dict)
    by_ref: Callable[..., Any] | None = None
    reads: bool = False
    repeats: int = 3
    calls: int = 1


def sharding(kind: AxisType, spec: PartitionSpec) -> NamedSharding:
    """4×2 devices."""
    grid = np.array(jax.devices()[:8]).reshape(4, 2)
    return NamedSharding(Mesh(grid, ("i", "j"), axis_types=(kind,) * 2), spec)


def zeros(size: int, where: NamedSharding) -> jax.Array:
    """An immutable array; made in a way that explicit meshes take too."""
    return jax.device_put(np.zeros((size, size), np.float32), where)


def values(shape: tuple[int, ...], kind: AxisType, *spec: str | None) -> jax.Array:
    """What is written; on the devices, so that no step sends it there."""
    return jax.device_put(np.ones(shape, np.float32), sharding(kind, P(*spec)))


# What is timed -----------------------------------------------------------------------------------


def step_by_object(case: Case, size: int, where: NamedSharding) -> Step:
    """Our program with the mutable array as its argument."""
    m = mu.zeros((size, size), jnp.float32, sharding=where)
    program = mu.jit(case.ours)

    def step(k: int) -> None:
        result = program(m, *case.args(k))
        if case.reads:
            result.block_until_ready()
        else:
            m._cell.array().block_until_ready()

    return step


def step_by_ref(case: Case, size: int, where: NamedSharding) -> Step:
    """A jitted function of a Ref."""
    ref = jax.new_ref(zeros(size, where))
    assert case.by_ref is not None
    program = jax.jit(case.by_ref)

    def step(k: int) -> None:
        result = program(ref, *case.args(k))
        (result if case.reads else ref._refs._buf).block_until_ready()

    return step


def step_by_array(function: Callable[..., Any], case: Case, x: jax.Array) -> Step:
    """A pure function of an array, which it donates if it writes."""
    held = [x]
    if case.reads:
        program = jax.jit(function)
    else:
        program = jax.jit(function, donate_argnums=0, out_shardings=x.sharding)

    def step(k: int) -> None:
        result = program(held[0], *case.args(k))
        if not case.reads:
            held[0] = result
        result.block_until_ready()

    return step


def pure(case: Case, where: NamedSharding) -> Callable[..., Any]:
    """Our program as a pure function of an array."""

    def function(x: jax.Array, *args: Any) -> Any:
        m = mu.mutable_array(x, where)
        result = case.ours(m, *args)
        return result if case.reads else mu.freeze(m)

    return function


def can(step: Step) -> bool:
    """Whether raw JAX takes it; on explicit meshes it refuses many."""
    try:
        step(0)
    except Exception:  # JAX has many ways to refuse
        return False
    return True


def row_of(layout: str, case: Case, lesser: Case | None, sizes: tuple[int, int], where: Any) -> Row:
    """Times one operation: ours at both sizes, and raw JAX's at the larger."""
    big, small = sizes
    steps: dict[str, Step] = {"ours": step_by_object(case, big, where)}
    steps["no Ref"] = step_by_array(pure(case, where), case, zeros(big, where))
    if lesser is not None:
        steps["small"] = step_by_object(lesser, small, where)
        steps["small, no Ref"] = step_by_array(pure(lesser, where), lesser, zeros(small, where))
    repeats = dict.fromkeys(steps, max(case.repeats, 30))
    refused: list[str] = []
    raw = {
        name: functools.partial(step_by_array, function, case, zeros(big, where))
        for name, function in case.raw.items()
    }
    if case.by_ref is not None:
        raw["jax.Ref, jit"] = functools.partial(step_by_ref, case, big, where)
    for name, make in raw.items():
        step = make()
        if can(step):
            steps[name], repeats[name] = step, case.repeats
        else:
            refused.append(name)
    seen = medians(steps, repeats)
    return Row(
        layout,
        case.name,
        seen["ours"],
        seen.get("small"),
        {name: seen[name] for name in raw if name in seen},
        no_ref=seen["no Ref"],
        small_no_ref=seen.get("small, no Ref"),
        refused=refused,
    )


def scan_row(layout: str, case: Case, one: Case, size: int, where: NamedSharding) -> Row:
    """The time of one of many operations in a program, against one in a program of its own."""
    steps = {
        "ours": step_by_object(case, size, where),
        "no Ref": step_by_array(pure(case, where), case, zeros(size, where)),
        "one": step_by_object(one, size, where),
        "one, no Ref": step_by_array(pure(one, where), one, zeros(size, where)),
    }
    seen = medians(steps, {name: 40 if name.startswith("one") else 7 for name in steps})
    raw = {"one in its own jit": seen["one"], "the same, no Ref": seen["one, no Ref"]}
    many = {name: seen[name] / case.calls for name in ("ours", "no Ref")}
    return Row(layout, case.name, many["ours"], raw=raw, no_ref=many["no Ref"])


# Operations --------------------------------------------------------------------------------------


def windows(n: int, width: int, kind: AxisType) -> list[Case]:
    """Windows and rows at a traced place, whole and of ``width`` columns in the middle."""
    border = n // 4 - ROWS // 2
    start, stop = n // 2 - width // 2, n // 2 + width // 2
    whole, part = values((ROWS, n), kind, None, "j"), values((ROWS, width), kind)
    box = values((490, 6), kind)

    def at(k: int) -> np.int32:
        return np.int32(border + k % 16)

    def write(m: Any, k: Any, v: Any) -> None:
        m[mu.ds(k, ROWS)] = v

    def write_part(m: Any, k: Any, v: Any) -> None:
        m[mu.ds(k, ROWS), start:stop] = v

    def write_ref(ref: Any, k: Any, v: Any) -> None:
        ref[jax.ds(k, ROWS)] = v

    def write_box(m: Any, v: Any) -> None:
        m[10:500, 3:9] = v

    return [
        Case(
            "m[ds(k, 64)] = v",
            write,
            lambda k: (at(k), whole),
            {
                "donated dynamic_update_slice": lambda x, k, v: lax.dynamic_update_slice(
                    x, v, (k, jnp.zeros_like(k))
                )
            },
            write_ref,
        ),
        Case("m[ds(k, 64), c] = v", write_part, lambda k: (at(k), part)),
        Case(
            "m[k]",
            lambda m, k: m[k],
            lambda k: (at(k),),
            {"x[k], jit": lambda x, k: x[k]},
            lambda ref, k: ref[k],
            reads=True,
        ),
        Case("m[k, c]", lambda m, k: m[k, start:stop], lambda k: (at(k),), reads=True),
        Case(
            "m[10:500, 3:9] = v",
            write_box,
            lambda k: (box,),
            {"donated .at[].set": lambda x, v: x.at[10:500, 3:9].set(v)},
            write_box,
        ),
    ]


def scan(n: int, kind: AxisType) -> Case:
    """Many windows in one program."""
    v = values((ROWS, n), kind, None, "j")
    starts = (np.arange(WRITES, dtype=np.int32) * 37) % (n - ROWS)

    def many(m: Any, starts: Any, v: Any) -> None:
        def body(_: None, k: Any) -> tuple[None, None]:
            m[mu.ds(k, ROWS)] = v
            return None, None

        lax.scan(body, None, starts)

    return Case(
        f"{WRITES} m[ds(k, 64)] = v in a scan, each", many, lambda k: (starts, v), calls=WRITES
    )


def index_arrays(n: int, kind: AxisType) -> list[Case]:
    """Index arrays, with and without the promise that they name each row once."""
    v = values((ROWS, n), kind, None, "j")
    border = n // 4 - ROWS // 2

    def args(k: int) -> tuple[Any, ...]:
        return np.int32(border + k % 16), v

    def write(m: Any, k: Any, v: Any) -> None:
        m[k + jnp.arange(ROWS)] = v

    def unique(m: Any, k: Any, v: Any) -> None:
        mu.set(m, k + jnp.arange(ROWS), v, unique_indices=True)

    def raw(x: Any, k: Any, v: Any, promised: bool) -> Any:
        return x.at[k + jnp.arange(ROWS)].set(v, unique_indices=promised)

    name = "donated .at[].set"
    return [
        Case(
            "m[k + arange(64)] = v",
            write,
            args,
            {name: functools.partial(raw, promised=False)},
            repeats=20,
        ),
        Case(
            "the same, unique",
            unique,
            args,
            {f"{name}, unique": functools.partial(raw, promised=True)},
            repeats=20,
        ),
        Case(
            "m[k + arange(64)]",
            lambda m, k: m[k + jnp.arange(ROWS)],
            lambda k: (np.int32(border + k % 16),),
            {"x[k + arange(64)], jit": lambda x, k: x[k + jnp.arange(ROWS)]},
            reads=True,
            repeats=20,
        ),
    ]


def whole(n: int, where: NamedSharding) -> list[Case]:
    """Updates of all elements, and of those under a traced mask."""
    chosen = np.random.default_rng(0).random((n, n), np.float32) < 0.01
    mask = jax.device_put(chosen, where)

    def affine(m: Any) -> None:
        m[...] = m[...] * 2 + 1

    def add(m: Any) -> None:
        m += 1

    def masked(m: Any, mask: Any) -> None:
        m[mask] = 1.0

    def no_args(k: int) -> tuple[Any, ...]:
        return ()

    return [
        Case(
            "m[...] = m[...] * 2 + 1",
            affine,
            no_args,
            {"donated jit": lambda x: x * 2 + 1},
            repeats=15,
        ),
        Case("m += 1", add, no_args, {"donated jit": lambda x: x + 1}, repeats=15),
        Case(
            "m[mask] = 1.0",
            masked,
            lambda k: (mask,),
            {"donated where": lambda x, mask: jnp.where(mask, 1.0, x)},
            repeats=15,
        ),
    ]


def static_row(n: int, kind: AxisType) -> list[Case]:
    """One row of an array that is not split along its rows."""
    v = values((n,), kind, "i")

    def write(m: Any, v: Any) -> None:
        m[5] = v

    return [
        Case(
            "m[5] = v",
            write,
            lambda k: (v,),
            {"donated .at[].set": lambda x, v: x.at[5].set(v)},
            write,
            repeats=30,
        ),
        Case(
            "m[5]",
            lambda m: m[5],
            lambda k: (),
            {"x[5], jit": lambda x: x[5]},
            lambda ref: ref[5],
            reads=True,
            repeats=30,
        ),
    ]


def run(size: int, small: int, console: Console) -> list[Row]:
    """All rows."""
    rows: list[Row] = []
    sizes = (size, small)
    with console.status("compiled") as status:
        for kind in (AxisType.Auto, AxisType.Explicit):
            where = sharding(kind, P("i", "j"))
            layout = f"4×2 {kind.name.lower()}"
            lesser = {case.name: case for case in windows(small, small, kind)}
            cases = [
                *windows(size, small, kind),
                *index_arrays(size, kind),
                *whole(size, where),
            ]
            for case in cases:
                status.update(f"{layout}: {case.name}")
                same = ", c]" in case.name or case.name.startswith("m[10:")
                other = lesser[case.name] if same else None
                rows.append(row_of(layout, case, other, sizes, where))
            one = cases[0]
            status.update(f"{layout}: {one.name} in a scan")
            rows.append(scan_row(layout, scan(size, kind), one, size, where))
            where = sharding(kind, P(None, "i"))
            for case in static_row(size, kind):
                rows.append(row_of(f"P(None, 'i') {kind.name.lower()}", case, None, sizes, where))
    return rows
