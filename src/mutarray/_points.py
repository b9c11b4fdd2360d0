"""Index arrays on one block: gathers and scatters of exactly what they name.

A point's window is what the spans take beside the index arrays. A span of step 1 is the window's
length along its dimension; one of a larger step becomes more index arrays, one entry for each of
its positions. So neither a gather nor a scatter touches an element that is not named, but for spans
that may reach out of the block (*loose*): their window is moved into the block, and what of it is
not named keeps what it had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mutarray._combine import Op, combine, is_function
from mutarray._form import Form, Points, Span
from mutarray._rounds import in_rounds, most_often

Operands = Sequence[Any]


def position(x: Any, n: int, wrap: bool) -> jax.Array:
    """Positions as a signed type that holds ``n``, wrapped once; what is out of range stays so."""
    x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jnp.unsignedinteger):
        info = jnp.iinfo(x.dtype)
        x = jnp.minimum(x, jnp.asarray(min(n, info.max), x.dtype)) if info.bits >= 32 else x
    wide = jnp.int64 if n > jnp.iinfo(jnp.int32).max else jnp.int32
    if x.dtype.itemsize > 4 and wide == jnp.int32:
        x = jnp.clip(x, -n - 1, n)
    x = x.astype(wide)
    return jnp.where(x < 0, x + n, x) if wrap else x


def first_position(span: Span, n: int, start: Any) -> jax.Array:
    """Where along an axis of length ``n`` a span begins, after its rule for starts out of range."""
    if span.rule == "exact":
        # In an eager shard_map body JAX 0.9 cannot make an array of what is one.
        return start if isinstance(start, jax.Array) else jnp.asarray(start)
    start = position(start, n, span.wrap)
    return start if span.rule == "loose" else jnp.clip(start, 0, n - min(span.extent, n))


def positions_of(form: Form, points: Operands) -> list[jax.Array]:
    """The index arrays, flat and of equal length."""
    shape = form.points_shape or ()
    count = math.prod(shape)
    flat = []
    for d, p in zip(form.point_dims, points, strict=True):
        n = form.shape[d]
        p = position(p, n, form.dims[d].wrap)
        p = jnp.clip(p, 0, n - 1) if form.rule == "clip" else jnp.where(p < 0, n, p)
        flat.append(jnp.broadcast_to(p, shape).reshape(count))
    wide = any(p.dtype.itemsize > 4 for p in flat)
    return [p.astype(jnp.int64) for p in flat] if wide else flat


FEW = 128
"""So many points are compared with one another faster than they are sorted."""


def last_of_each(positions: list[jax.Array]) -> jax.Array:
    """Which points are not overwritten by a later point at the same position.

    One stable sort of the points at most, so it costs what is written, whatever the array's size.
    """
    count = positions[0].shape[0]
    if count <= FEW:
        number = jnp.arange(count, dtype=jnp.int32)
        repeated = number[:, None] < number
        for p in positions:
            repeated &= p[:, None] == p
        return ~jnp.any(repeated, axis=1)
    order = jnp.arange(count, dtype=jnp.int32)
    *keys, order = lax.sort((*positions, order), num_keys=len(positions) + 1)
    differs = [k[1:] != k[:-1] for k in keys]
    last = jnp.concatenate([jnp.any(jnp.stack(differs), axis=0), jnp.ones(1, bool)])
    return jnp.zeros(count, bool).at[order].set(last, unique_indices=True)


def _without_repeats(form: Form, points: Operands) -> tuple[Form, list[jax.Array]]:
    """The same points, those that a later one overwrites moved out of range, each to its own place.

    XLA leaves open which of two updates of one element wins.
    """
    first, *others = positions_of(form, points)
    away = form.shape[form.point_dims[0]] + jnp.arange(len(first), dtype=first.dtype)
    first = jnp.where(last_of_each([first, *others]), first, away)
    return _flat(form, len(first)), [first, *others]


def _flat(form: Form, count: int) -> Form:
    """The form of ``count`` positions that `positions_of` gave."""
    dims = tuple(dim if isinstance(dim, Span) else Points() for dim in form.dims)
    return replace(form, dims=dims, points_shape=(count,), rule="drop")


class _Windows(NamedTuple):
    """How gathers and scatters find the elements.

    Attributes:
        indices: for each point, and each position of the spans that became index arrays, where the
            window begins, along ``dims``.
        dims: the dimensions of the block that ``indices`` speaks of.
        single: those of them along which a window is one element long.
        sizes: a window's length along every dimension.
        order: the axes of the core, as the axes of a gather's result.
        shifts: for loose spans, by their axis in a gather's result, how far they lie off the
            window.
        inside: which index arrays' positions are in range; ``None`` if all are known to be.
    """

    indices: jax.Array
    dims: tuple[int, ...]
    single: tuple[int, ...]
    sizes: tuple[int, ...]
    order: tuple[int, ...]
    shifts: dict[int, jax.Array]
    inside: jax.Array | None


def _windows(
    form: Form, starts: Operands, points: Operands, spread_loose: bool = False
) -> _Windows:
    count = math.prod(form.points_shape or ())
    spread = [
        d
        for d, span in zip(form.span_dims, form.spans, strict=True)
        if span.step > 1 or (spread_loose and span.rule == "loose")
    ]
    rank = 1 + len(spread)
    columns: dict[int, jax.Array] = {
        d: along(p, 0, rank)
        for d, p in zip(form.point_dims, positions_of(form, points), strict=True)
    }
    sizes = [1] * len(form.dims)
    loose: dict[int, jax.Array] = {}
    for d, span, start in zip(form.span_dims, form.spans, starts, strict=True):
        n = form.shape[d]
        start = first_position(span, n, start)
        if d in spread:
            at = start + jnp.arange(span.size, dtype=start.dtype) * span.step
            columns[d] = along(jnp.where(at < 0, n, at), 1 + spread.index(d), rank)
            continue
        sizes[d] = span.size
        if span.size < n or span.rule == "loose":
            base = jnp.clip(start, 0, n - span.size)
            columns[d] = base.reshape((1,) * rank)
            if span.rule == "loose":
                loose[d] = start - base
    dims = tuple(sorted(columns))
    wide = any(column.dtype.itemsize > 4 for column in columns.values())
    shape = (count, *(form.dims[d].size for d in spread))  # pyright: ignore
    indices = jnp.stack(
        [
            jnp.broadcast_to(columns[d].astype(jnp.int64 if wide else jnp.int32), shape)
            for d in dims
        ],
        axis=-1,
    )
    kept = [d for d in form.span_dims if d not in spread]
    axis_of = {d: 1 + k for k, d in enumerate((*spread, *kept))}
    inside = None
    if form.rule == "drop" or any(form.dims[d].rule == "loose" for d in spread):  # pyright: ignore
        checks = [indices[..., dims.index(d)] < form.shape[d] for d in (*form.point_dims, *spread)]
        inside = jnp.all(jnp.stack(checks), axis=0)
    return _Windows(
        indices,
        dims,
        tuple(sorted((*form.point_dims, *spread))),
        tuple(sizes),
        (0, *(axis_of[d] for d in form.span_dims)),
        {axis_of[d]: shift for d, shift in loose.items()},
        inside,
    )


def along(values: jax.Array, axis: int, ndim: int) -> jax.Array:
    """A vector along one axis of an array."""
    return values.reshape(tuple(-1 if d == axis else 1 for d in range(ndim)))


def taken(x: jax.Array, at: jax.Array, axis: int) -> jax.Array:
    """What is at the positions ``at``, all in range, along an axis.

    Where a ``vmap`` maps the positions alone, JAX does not know on explicit meshes how the result
    is split, so what is taken from is mapped too. XLA drops a choice between equals.
    """
    x = jnp.where(jnp.broadcast_to(at[0] >= 0, x.shape), x, x)
    return jnp.take(x, at, axis=axis, mode="clip")


def _gather(x: jax.Array, at: _Windows) -> jax.Array:
    """The windows, with the axes of the indices first."""
    lead = at.indices.ndim - 1
    return lax.gather(
        x,
        at.indices,
        lax.GatherDimensionNumbers(
            offset_dims=tuple(range(lead, lead + x.ndim - len(at.single))),
            collapsed_slice_dims=at.single,
            start_index_map=at.dims,
        ),
        slice_sizes=at.sizes,
        mode="clip",
    )


def _shifted(x: jax.Array, axis: int, shift: jax.Array) -> tuple[jax.Array, jax.Array]:
    """``x`` moved along an axis, so that ``shift`` comes first, and which of that ``x`` had."""
    size = x.shape[axis]
    at = shift + jnp.arange(size, dtype=shift.dtype)
    inside = along((at >= 0) & (at < size), axis, x.ndim)
    return taken(x, jnp.clip(at, 0, size - 1), axis), inside


def pick(x: jax.Array, form: Form, starts: Operands, points: Operands, fill: Any) -> jax.Array:
    """What the index arrays pick from a block, in canonical order.

    Args:
        x: the block.
        form: what to select.
        starts: for each span its start.
        points: for each dimension with an index array that array.
        fill: what stands for elements out of range; a scalar of the block's dtype.
    """
    at = _windows(form, starts, points)
    picked = _gather(x, at)
    for axis, shift in at.shifts.items():
        picked, inside = _shifted(picked, axis, shift)
        picked = jnp.where(inside, picked, fill)
    if at.inside is not None:
        inside = at.inside.reshape(*at.inside.shape, *(1,) * (picked.ndim - at.inside.ndim))
        picked = jnp.where(inside, picked, fill)
    return jnp.transpose(picked, at.order).reshape(form.core_shape)


_SCATTERS: dict[str, Callable[..., jax.Array]] = {
    "set": lax.scatter,
    "add": lax.scatter_add,
    "multiply": lax.scatter_mul,
    "min": lax.scatter_min,
    "max": lax.scatter_max,
}


def _identity(op: str, dtype: Any) -> Any:
    """What an integer or a boolean is combined with to stay as it is."""
    if op in ("add", "multiply"):
        return np.asarray(op == "multiply").astype(dtype)
    if dtype == np.bool_:
        return np.asarray(op == "min")
    info = jnp.iinfo(dtype)
    return np.asarray(info.max if op == "min" else info.min, dtype)


def place(
    x: jax.Array, form: Form, starts: Operands, points: Operands, core: jax.Array, op: Op
) -> jax.Array:
    """A block with ``core`` put, or combined with what is there, where the index arrays point.

    Args:
        x: the block.
        form: what to select.
        starts: for each span its start.
        points: for each dimension with an index array that array.
        core: the value in canonical order; of the block's dtype, unless ``op`` is a function.
        op: what to do with old and new elements.
    """
    count = math.prod(form.points_shape or ())
    core = core.reshape(count, *core.shape[len(form.points_shape or ()) :])
    if is_function(op):
        return _place_in_rounds(x, form, starts, points, core, op)
    if op == "set" and not form.unique and count > 1:
        form, points = _without_repeats(form, points)
    return _scatter(x, form, starts, points, core, op)


def _place_in_rounds(
    x: jax.Array, form: Form, starts: Operands, points: Operands, core: jax.Array, op: Op
) -> jax.Array:
    count = math.prod(form.points_shape or ())
    known = None
    if form.unique or count == 1:
        known = 1
    elif all(isinstance(p, np.ndarray) for p in points):
        shape = form.points_shape or ()
        known = most_often([np.broadcast_to(p, shape).ravel() for p in points])
    flat = _flat(form, count)

    def step(x: jax.Array, at: list[jax.Array]) -> jax.Array:
        old = pick(x, flat, starts, at, jnp.zeros((), x.dtype))
        return _scatter(x, flat, starts, at, combine(old, core, op), "set")

    lengths = tuple(form.shape[d] for d in form.point_dims)
    return in_rounds(x, lengths, positions_of(form, points), known, step)


def _scatter(
    x: jax.Array, form: Form, starts: Operands, points: Operands, core: jax.Array, op: str
) -> jax.Array:
    """``core``, one window for each point, written to points that differ, or combined with them."""
    # Floats are left alone by nothing but a set: XLA's CPU code takes denormals for 0, 0.0 + -0.0
    # is 0.0, and multiplied by 1 a complex infinity becomes NaN.
    exact = op != "set" and jnp.issubdtype(x.dtype, jnp.inexact)
    at = _windows(form, starts, points, spread_loose=exact)
    update = jnp.transpose(core, [at.order.index(axis) for axis in range(len(at.order))])
    for axis, shift in at.shifts.items():
        update, inside = _shifted(update, axis, -shift)
        kept = _gather(x, at) if op == "set" else _identity(op, x.dtype)
        update = jnp.where(inside, update, kept)
    if x.dtype == jnp.bool_ and op in ("add", "multiply"):  # XLA adds no booleans
        op = "max" if op == "add" else "min"
    lead = at.indices.ndim - 1
    return _SCATTERS[op](
        x,
        at.indices,
        update,
        lax.ScatterDimensionNumbers(
            update_window_dims=tuple(range(lead, update.ndim)),
            inserted_window_dims=at.single,
            scatter_dims_to_operand_dims=at.dims,
        ),
        unique_indices=op == "set",
        mode="drop",
    )
