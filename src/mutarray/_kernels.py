"""Reads and writes on one block, in the canonical order of a `Form`.

A block is any array that lies whole where the code runs: the whole array in the general engine, one
shard's block in the others. Pure functions, used inside compiled programs; positions are operands.

*Spans* take a sub-array: a window of at most their extent along each dimension, thinned by the
step. A write that keeps something of the window reads it, changes it and puts it back. Index arrays
gather and scatter (`_points`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from mutarray import _jaxapi, _points
from mutarray._cast import trim
from mutarray._combine import Op, combine
from mutarray._form import Form, Points, Span

Operands = Sequence[Any]


# Core <-> result ---------------------------------------------------------------------------------


def to_result(core: jax.Array, form: Form) -> jax.Array:
    """Selected elements in canonical order → as the user sees them."""
    p, at = len(form.points_shape or ()), form.points_at
    core = lax.rev(core, _flipped(form))
    order = (*range(p, p + at), *range(p), *range(p + at, core.ndim))
    return jnp.transpose(core, order).reshape(form.result_shape)


def to_core(value: jax.Array, form: Form) -> jax.Array:
    """A value as the user gives it → broadcast, in canonical order."""
    p, at = len(form.points_shape or ()), form.points_at
    value = value.reshape(trim(value.shape, len(form.result_shape)))
    core = form.core_shape
    between = (*core[p : p + at], *core[:p], *core[p + at :])
    value = jnp.broadcast_to(value, form.result_shape).reshape(between)
    order = (*range(at, at + p), *range(at), *range(at + p, len(core)))
    return lax.rev(jnp.transpose(value, order), _flipped(form))


def _flipped(form: Form) -> tuple[int, ...]:
    p = len(form.points_shape or ())
    return tuple(p + k for k, span in enumerate(form.spans) if span.flip)


# Spans -------------------------------------------------------------------------------------------


def _bases(form: Form, starts: Operands) -> tuple[list[Any], list[Any]]:
    """For each dimension where the window of its span starts, and how far the span lies off that.

    The offset is ``None`` but for loose spans, which may reach out of range.
    """
    bases: list[Any] = []
    offsets: list[Any] = []
    given = iter(starts)
    for n, dim in zip(form.shape, form.dims, strict=True):
        if not isinstance(dim, Span):
            bases.append(0)
            offsets.append(None)
            continue
        start = _points.first_position(dim, n, next(given))
        base = jnp.clip(start, 0, n - min(dim.extent, n)) if dim.rule == "loose" else start
        bases.append(base)
        offsets.append(start - base if dim.rule == "loose" else None)
    return bases, offsets


def _extents(form: Form) -> tuple[int, ...]:
    return tuple(
        dim.extent if isinstance(dim, Span) else n
        for n, dim in zip(form.shape, form.dims, strict=True)
    )


def _window(x: jax.Array, bases: Operands, extents: tuple[int, ...]) -> jax.Array:
    if extents != x.shape:
        x = lax.dynamic_slice(x, [jnp.asarray(b) for b in _same_type(bases)], extents)
    return _jaxapi.to_device_memory(x)


def _same_type(bases: Operands) -> list[jax.Array]:
    """Starts of one integer type, as XLA wants them."""
    arrays = [b if isinstance(b, jax.Array) else jnp.asarray(b) for b in bases]
    wide = any(a.dtype.itemsize > 4 for a in arrays)
    return [a.astype(jnp.int64 if wide else jnp.int32) for a in arrays]


def read_spans(x: jax.Array, form: Form, starts: Operands, fill: Any) -> jax.Array:
    """The sub-array that the spans take; dimensions with index arrays stay whole."""
    bases, offsets = _bases(form, starts)
    sub = _window(x, bases, _extents(form))
    for d, (dim, offset) in enumerate(zip(form.dims, offsets, strict=True)):
        if not isinstance(dim, Span):
            continue
        if offset is None:
            sub = lax.slice_in_dim(sub, 0, None, dim.step, d) if dim.step > 1 else sub
            continue
        taken = offset + jnp.arange(dim.size, dtype=offset.dtype) * dim.step
        inside = (taken >= 0) & (taken < dim.extent)
        if dim.size > 1:
            sub = _points.taken(sub, jnp.clip(taken, 0, dim.extent - 1), d)
        sub = jnp.where(_points.along(inside, d, sub.ndim), sub, fill)
    return sub


def write_spans(
    x: jax.Array, form: Form, starts: Operands, sub: jax.Array, op: str = "set"
) -> jax.Array:
    """``x`` with ``sub`` put, or combined with what is there, where the spans lie."""
    bases, offsets = _bases(form, starts)
    extents = _extents(form)
    keep: jax.Array | None = None
    for d, (dim, offset) in enumerate(zip(form.dims, offsets, strict=True)):
        if not isinstance(dim, Span) or (dim.step == 1 and offset is None):
            continue
        place = jnp.arange(dim.extent, dtype=jnp.int32)
        if offset is not None:
            place = place - offset
        inside = (place >= 0) & (place < dim.extent) & (place % dim.step == 0)
        if dim.size > 1:
            source = jnp.clip(place // dim.step, 0, dim.size - 1)
            sub = _points.taken(sub, source, d)
        along = _points.along(inside, d, x.ndim)
        keep = along if keep is None else keep & along
    if keep is not None or op != "set":
        old = _window(x, bases, extents)
        sub = combine(old, sub, op)
        sub = sub if keep is None else jnp.where(keep, sub, old)
    sub = _jaxapi.to_memory_of(sub, x)
    if extents == x.shape:
        return sub
    return lax.dynamic_update_slice(x, sub, _same_type(bases))


_HARMLESS = ("set", "add", "min", "max")
"""What may be done to elements that are then kept as they were: no gradient of it is infinite."""


def sub_shape(form: Form) -> tuple[int, ...]:
    """The shape of one point's window: the spans' sizes."""
    return form.core_shape[len(form.points_shape or ()) :]


# Points of a block in host memory ----------------------------------------------------------------

STEP_BYTES = 1 << 16
"""What can be moved between memories in the time of one step of a loop, roughly."""


def _one_by_one(x: jax.Array, form: Form) -> bool:
    """Whether points are better read or written in a loop than by moving what they index whole."""
    if not _jaxapi.is_on_host(x):
        return False
    window = math.prod(span.extent for span in form.spans) * x.dtype.itemsize
    return math.prod(form.points_shape or ()) * max(window, STEP_BYTES) < x.nbytes


def _single(form: Form) -> Form:
    """One point as a selection of spans; out of range it is not written, or read as the fill."""
    point = Span(1, rule="loose")
    dims = tuple(point if isinstance(dim, Points) else dim for dim in form.dims)
    return Form(form.shape, dims, None, 0, (), ())


def _starts_of(form: Form, starts: Operands, positions: list[jax.Array], k: Any) -> list[Any]:
    """The starts of the spans of `_single` for point ``k``."""
    spans, points = iter(starts), iter(positions)
    return [next(points)[k] if isinstance(dim, Points) else next(spans) for dim in form.dims]


def _read_one_by_one(
    x: jax.Array, form: Form, starts: Operands, points: Operands, fill: Any
) -> jax.Array:
    positions, single = _points.positions_of(form, points), _single(form)

    def step(k: Any, out: jax.Array) -> jax.Array:
        window = read_spans(x, single, _starts_of(form, starts, positions, k), fill)
        return lax.dynamic_update_index_in_dim(out, window.reshape(sub_shape(form)), k, 0)

    count = math.prod(form.points_shape or ())
    out = lax.fori_loop(0, count, step, jnp.zeros((count, *sub_shape(form)), x.dtype))
    return out.reshape(form.core_shape)


def _write_one_by_one(
    x: jax.Array, form: Form, starts: Operands, points: Operands, core: jax.Array, op: Op
) -> jax.Array:
    """In order: of an assignment the last one stays, whatever the index arrays hold."""
    positions, single = _points.positions_of(form, points), _single(form)
    count = math.prod(form.points_shape or ())
    core = core.reshape(count, *single.core_shape)

    def step(k: Any, x: jax.Array) -> jax.Array:
        at = _starts_of(form, starts, positions, k)
        return write(x, single, at, (), None, core[k], op)

    return lax.fori_loop(0, count, step, x)


# Whole reads and writes --------------------------------------------------------------------------


def read(x: jax.Array, form: Form, starts: Operands, points: Operands, fill: Any) -> jax.Array:
    """The selected elements of a block, in canonical order.

    Args:
        x: the block, of shape ``form.shape``.
        form: what to select.
        starts: for each span its start.
        points: for each dimension with an index array that array.
        fill: what stands for elements out of range; a scalar of the block's dtype.
    """
    if math.prod(form.core_shape) == 0:
        return jnp.zeros(form.core_shape, x.dtype)
    if form.point_dims:
        if _one_by_one(x, form):
            return _read_one_by_one(x, form, starts, points, fill)
        return _points.pick(_jaxapi.to_device_memory(x), form, starts, points, fill)
    sub = read_spans(x, form, starts, fill)
    return jnp.broadcast_to(sub, form.core_shape)  # boolean scalars alone add axes of their own


def write(
    x: jax.Array,
    form: Form,
    starts: Operands,
    points: Operands,
    mask: Any,
    core: jax.Array,
    op: Op = "set",
) -> jax.Array:
    """The block with ``core`` written to, or combined with, the selected elements.

    Args:
        x: the block, of shape ``form.shape``.
        form: what to select.
        starts: for each span its start.
        points: for each dimension with an index array that array.
        mask: a boolean array over ``form.mask_dims``, or ``None``.
        core: the value in canonical order; of the block's dtype, unless ``op`` is a function.
        op: what to do with old and new elements.
    """
    if math.prod(form.core_shape) == 0 or x.size == 0:
        return x
    if form.point_dims:
        if _one_by_one(x, form):
            return _write_one_by_one(x, form, starts, points, core, op)
        work = _jaxapi.to_device_memory(x)
        return _jaxapi.to_memory_of(_points.place(work, form, starts, points, core, op), x)
    if op in _HARMLESS and form.points_shape is None and form.mask_dims is None:
        return write_spans(x, form, starts, core, op)
    sub = read_spans(x, form, starts, jnp.zeros((), x.dtype))
    if form.mask_dims is not None:
        inside = jnp.expand_dims(mask, [d for d in range(x.ndim) if d not in form.mask_dims])
        value = core.reshape(sub_shape(form))
        sub = jnp.where(inside, combine(sub, value, op), sub)
    elif form.points_shape is None:
        sub = combine(sub, core, op)
    else:  # boolean scalars alone: the same place, once for each
        for each in core.reshape(-1, *sub_shape(form)):
            sub = combine(sub, each, op)
    return write_spans(x, form, starts, sub)
