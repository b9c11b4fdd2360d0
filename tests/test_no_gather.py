"""What compiled programs cost: they move what is touched, copy nothing else, and work in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

import mutarray as mu
from tests import hlo
from tests.support import KINDS, P, mesh
from tests.test_parity import split_index

SHAPE = (512, 256)
N, M = SHAPE
CONSTANT = 4096
"""Bytes that a program may use besides what it touches: offsets, flags, a few scalars."""

SPECS = {
    "4x2": P("i", "j"),
    "both on one": P(("i", "j")),
    "columns": P(None, "i"),
    "replicas": P("j"),
}
MASK = (np.arange(N * M).reshape(SHAPE) % 97) == 0
FORMS: dict[str, Any] = {
    "element": (300, 200),
    "row": 300,
    "column": (slice(None), 77),
    "rows across borders": slice(100, 164),
    "rows that divide": slice(96, 160),
    "box": (slice(10, 250), slice(3, 9)),
    "strided": slice(7, 400, 9),
    "backwards": slice(130, 20, -3),
    "all backwards": slice(None, None, -1),
    "list": [3, 500, 77, 4],
    "index array": np.arange(5, 500, 9),
    "duplicates": np.array([[5, 400], [5, 30]]),
    "pairs": (np.array([3, 400, 4]), np.array([7, 200, 7])),
    "array and slice": (np.array([3, 400, 4]), slice(10, 20)),
    "slice and array": (slice(10, 20), np.array([3, 200, 4])),
    "None": (None, 5, None, slice(3, 100)),
    "mask of rows": np.arange(N) % 50 == 0,
    "mask": MASK,
}
WINDOWS: dict[str, Callable[[Any], Any]] = {
    "window": lambda k: mu.ds(k, 64),
    "window of columns": lambda k: (slice(None), mu.ds(k, 48)),
    "window of both": lambda k: (mu.ds(k, 64), mu.ds(k, 8)),
    "strided window": lambda k: mu.ds(k, 20, 3),
    "large window": lambda k: mu.ds(k, 400),
    "traced row": lambda k: k,
    "traced element": lambda k: (k, k),
    "traced column": lambda k: (..., k),
}
LAYOUTS = [(kind, spec) for kind in KINDS for spec in SPECS]


def zeros(layout: tuple[str, str], dtype: Any = jnp.float32) -> mu.MutableArray:
    kind, spec = layout
    return mu.zeros(
        SHAPE, dtype, sharding=NamedSharding(mesh((4, 2), "ij", KINDS[kind]), SPECS[spec])
    )


def block_bytes(m: mu.MutableArray) -> int:
    return int(np.prod(m.sharding.shard_shape(m.shape))) * m.itemsize


def touched(index: Any) -> int:
    return np.zeros(SHAPE, np.float32)[index].nbytes


def positions(index: Any) -> int:
    """The bytes of the index arrays, one 32-bit position for each point and axis, three times over.

    As they come, flat and in range, and side by side as a scatter wants them.
    """
    entries = index if isinstance(index, tuple) else (index,)
    arrays = [np.asarray(e) for e in entries if isinstance(e, (list, np.ndarray))]
    points = [where for a in arrays for where in (np.nonzero(a) if a.dtype == bool else (a,))]
    count = max([np.size(p) for p in points] + [0])
    return 3 * 4 * count * len(points)


def check_write(compiled: Any, m: mu.MutableArray, nbytes: int, moved: int = 0) -> None:
    """A write: in place, without a copy of the block, and without communication."""
    assert hlo.aliased(compiled) == block_bytes(m), "the whole block is updated in place"
    assert all(c.nbytes <= moved for c in hlo.collectives(compiled)), hlo.collectives(compiled)
    large = [c for c in hlo.copies(compiled) if c.nbytes > nbytes + CONSTANT]
    assert not large, large
    assert hlo.temporary(compiled) <= nbytes + CONSTANT


def check_read(compiled: Any, nbytes: int) -> None:
    """A read: what crosses the wire is the result."""
    assert all(c.nbytes <= nbytes for c in hlo.collectives(compiled)), hlo.collectives(compiled)
    large = [c for c in hlo.copies(compiled) if c.nbytes > nbytes + CONSTANT]
    assert not large, large
    assert hlo.temporary(compiled) <= 2 * nbytes + CONSTANT


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("form", FORMS)
def test_index_forms(form: str, layout: tuple[str, str]) -> None:
    index = FORMS[form]
    nbytes = touched(index)
    m = zeros(layout)
    value = jnp.ones(np.zeros(SHAPE)[index].shape)
    for v in (2.0, value):
        write = jax.jit(lambda m, v: m.__setitem__(index, v)).lower(m, v).compile()
        moved = nbytes if v is value and form == "all backwards" else 0
        check_write(write, m, nbytes + positions(index), moved)
    read = jax.jit(lambda m: m[index]).lower(m).compile()
    check_read(read, nbytes + positions(index))


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("form", FORMS)
def test_traced_index_forms(form: str, layout: tuple[str, str]) -> None:
    operands, join = split_index(FORMS[form] if form != "list" else np.array(FORMS[form]))
    if not operands:
        return
    nbytes = touched(FORMS[form]) + positions(FORMS[form])
    m = zeros(layout)
    write = jax.jit(lambda m, t, v: mu.addupdate(m, join(t), v)).lower(m, operands, 2.0).compile()
    check_write(write, m, nbytes)
    read = jax.jit(lambda m, t: m[join(t)]).lower(m, operands).compile()
    check_read(read, nbytes)


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_steps_that_divide_the_blocks_move_nothing(layout: tuple[str, str]) -> None:
    for index in (slice(None, None, 2), slice(3, None, 4), (..., slice(1, None, 2))):
        m = zeros(layout)
        value = jnp.arange(np.zeros(SHAPE)[index].size, dtype=jnp.float32)
        value = value.reshape(np.zeros(SHAPE)[index].shape)
        read = jax.jit(lambda m, index=index: m[index])
        write = jax.jit(lambda m, v, index=index: m.__setitem__(index, v))
        assert not hlo.collectives(read.lower(m).compile())
        assert not hlo.collectives(write.lower(m, value).compile())
        write(m, value)
        np.testing.assert_array_equal(read(m), value)
        assert np.count_nonzero(m) == np.count_nonzero(value)


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("form", WINDOWS)
def test_windows(form: str, layout: tuple[str, str]) -> None:
    index = WINDOWS[form]
    m = zeros(layout)
    shape = jax.eval_shape(lambda m, k: m[index(k)], m, 3).shape
    nbytes = int(np.prod(shape)) * 4
    write = jax.jit(lambda m, k, v: m.__setitem__(index(k), v))
    check_write(write.lower(m, 3, jnp.ones(shape)).compile(), m, nbytes)
    check_write(write.lower(m, 3, 1.0).compile(), m, nbytes)
    check_read(jax.jit(lambda m, k: m[index(k)]).lower(m, 3).compile(), nbytes)
    swap = jax.jit(lambda m, k, v: mu.swap(m, index(k), v)).lower(m, 3, jnp.ones(shape)).compile()
    check_write(swap, m, 2 * nbytes, moved=nbytes)


@pytest.mark.parametrize("layout", LAYOUTS, ids="-".join)
def test_a_traced_mask_stays_where_it_is(layout: tuple[str, str]) -> None:
    m = zeros(layout)
    mask = jax.device_put(MASK, m.sharding)
    write = jax.jit(lambda m, mask: m.__setitem__(mask, 1.0)).lower(m, mask).compile()
    check_write(write, m, 0)


def reads_and_writes(m: mu.MutableArray, k: Any) -> Any:
    row, window = m[k], m[mu.ds(k, 8)]
    m[k + 1] = 1.0
    return row, window, m[k]


def swaps(m: mu.MutableArray, k: Any) -> Any:
    old = mu.swap(m, mu.ds(k + 2, 4), 2.0)
    return old, mu.swap(m, k, 1.0)


def accumulates(m: mu.MutableArray, k: Any) -> Any:
    row = m[k]
    m.add_at(k + 1, 1.0)
    m[k] += m[3]
    return row


# Where rows are not split, XLA fuses a read with the write before it, and copies: see README.md.
@pytest.mark.parametrize(
    ("step", "layout"),
    [(swaps, layout) for layout in LAYOUTS]
    + [
        (step, layout)
        for step in (reads_and_writes, accumulates)
        for layout in LAYOUTS
        if layout[1] != "columns"
    ],
)
def test_a_read_before_a_write_costs_no_copy(
    step: Callable[..., Any], layout: tuple[str, str]
) -> None:
    """XLA would copy the block for it, and does so in raw JAX: see `mutarray._order`."""
    m = zeros(layout)
    check_write(jax.jit(step).lower(m, 3).compile(), m, 16 * M * 4, moved=8 * M * 4)


SAME: dict[str, tuple[str, Any, Any]] = {
    "row": ("columns", lambda m, v: m.__setitem__(5, v), lambda x, v: x.at[5].set(v)),
    "rows": (
        "columns",
        lambda m, v: m.__setitem__(slice(5, 9), v),
        lambda x, v: x.at[5:9].set(v),
    ),
    "+=": ("4x2", lambda m, v: m.__iadd__(1), lambda x, v: x + 1),
    "whole": (
        "4x2",
        lambda m, v: m.__setitem__(..., m[...] * 2 + 1),
        lambda x, v: x * 2 + 1,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SAME)
def test_what_raw_jax_does_well_is_the_same_program(name: str, kind: str) -> None:
    spec, write, function = SAME[name]
    m = zeros((kind, spec))
    v = jax.device_put(np.ones(M, np.float32), NamedSharding(m.sharding.mesh, P("i")))
    ours = mu.jit(write).lower(m, v).compile()
    raw = jax.jit(function, donate_argnums=0, out_shardings=m.sharding, keep_unused=True)
    assert sorted(hlo.instructions(ours)) == sorted(
        hlo.instructions(raw.lower(m[...], v).compile())
    )
