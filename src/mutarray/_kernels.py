"""Reads and writes on one block, in the canonical order of a `Form`.

A block is any array that lies whole where the code runs: the whole array in the general engine, one
shard's block in the others. Pure functions, used inside compiled programs; positions are operands.

*Spans* take a sub-array: a window of at most their extent along each dimension, thinned by the
step. A write that keeps something of the window reads it, changes it and puts it back. Index arrays
gather and scatter (`_points`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from mutarray import _points
from mutarray._cast import trim
from mutarray._form import Form, Span

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
        start = next(given)
        if dim.rule == "exact":
            bases.append(start)
            offsets.append(None)
            continue
        start = _points.position(start, n, dim.wrap)
        base = jnp.clip(start, 0, n - min(dim.extent, n))
        bases.append(base)
        offsets.append(start - base if dim.rule == "loose" else None)
    return bases, offsets


def _extents(form: Form) -> tuple[int, ...]:
    return tuple(
        dim.extent if isinstance(dim, Span) else n
        for n, dim in zip(form.shape, form.dims, strict=True)
    )


def _window(x: jax.Array, bases: Operands, extents: tuple[int, ...]) -> jax.Array:
    if extents == x.shape:
        return x
    return lax.dynamic_slice(x, [jnp.asarray(b) for b in _same_type(bases)], extents)


def _same_type(bases: Operands) -> list[jax.Array]:
    """Starts of one integer type, as XLA wants them."""
    arrays = [jnp.asarray(b) for b in bases]
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
            sub = jnp.take(sub, jnp.clip(taken, 0, dim.extent - 1), axis=d, mode="clip")
        sub = jnp.where(_points.along(inside, d, sub.ndim), sub, fill)
    return sub


def write_spans(x: jax.Array, form: Form, starts: Operands, sub: jax.Array) -> jax.Array:
    """``x`` with ``sub`` where the spans lie."""
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
            sub = jnp.take(sub, source, axis=d, mode="clip")
        along = _points.along(inside, d, x.ndim)
        keep = along if keep is None else keep & along
    if keep is not None:
        sub = jnp.where(keep, sub, _window(x, bases, extents))
    if extents == x.shape:
        return sub
    return lax.dynamic_update_slice(x, sub, _same_type(bases))


# Combining ---------------------------------------------------------------------------------------

_COMBINE: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "set": lambda old, new: new,
    "add": jnp.add,
    "multiply": jnp.multiply,
    "min": jnp.minimum,
    "max": jnp.maximum,
}


def combine(old: jax.Array, new: jax.Array, op: str) -> jax.Array:
    """Old and new elements under one of `OPS`."""
    return _COMBINE[op](old, new)


def sub_shape(form: Form) -> tuple[int, ...]:
    """The shape of what the spans take."""
    return form.core_shape[len(form.points_shape or ()) :]


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
        return _points.pick(x, form, starts, points, fill)
    sub = read_spans(x, form, starts, fill)
    return jnp.broadcast_to(sub, form.core_shape)  # boolean scalars alone add axes of their own


def write(
    x: jax.Array,
    form: Form,
    starts: Operands,
    points: Operands,
    mask: Any,
    core: jax.Array,
    op: str = "set",
) -> jax.Array:
    """The block with ``core`` written to, or combined with, the selected elements.

    Args:
        x: the block, of shape ``form.shape``.
        form: what to select.
        starts: for each span its start.
        points: for each dimension with an index array that array.
        mask: a boolean array over ``form.mask_dims``, or ``None``.
        core: the value in canonical order, of the block's dtype.
        op: one of `OPS`.
    """
    if math.prod(form.core_shape) == 0 or x.size == 0:
        return x
    if form.point_dims:
        return _points.place(x, form, starts, points, core, op)
    if op == "set" and form.points_shape is None:
        return write_spans(x, form, starts, core)
    sub = read_spans(x, form, starts, jnp.zeros((), x.dtype))
    if form.mask_dims is not None:
        inside = jnp.expand_dims(mask, [d for d in range(x.ndim) if d not in form.mask_dims])
        value = core.reshape(sub_shape(form))
        sub = jnp.where(inside, _COMBINE[op](sub, value), sub)
    elif form.points_shape is None:
        sub = _COMBINE[op](sub, core)
    else:  # boolean scalars alone: the same place, once for each
        for each in core.reshape(-1, *sub_shape(form)):
            sub = _COMBINE[op](sub, each)
    return write_spans(x, form, starts, sub)
