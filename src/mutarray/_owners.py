"""Owner-computes: what one device does for an index, inside a ``shard_map``.

Each device owns one block. For each dimension it knows the block's offset on its mesh axes, turns
the index into one of its block, drops what lies in other blocks, and reads or writes the rest with
`_kernels`. A write needs no communication; a read sums what the owners contribute, which moves the
result and never the array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from mutarray import _exact, _kernels, _order, _points
from mutarray._cast import trim
from mutarray._combine import Op
from mutarray._form import Form, Points, Span
from mutarray._lanes import Lane, scatters, stays_split
from mutarray._types import Shape

# On one device -----------------------------------------------------------------------------------


class Here(NamedTuple):
    """An index as one device sees it.

    Attributes:
        form: on its block; ascending, and without the shape that the user sees.
        starts: for each span its start in the block.
        points: the index arrays, counted from the block's start.
        firsts: for each span how many of its positions come before those that are taken here;
            ``None`` where all are.
        inside: for axes of the core that may reach out of the array's range, which positions do
            not; ``None`` stands for the axes of the index arrays.
    """

    form: Form
    starts: list[Any]
    points: list[Any]
    firsts: list[Any]
    inside: dict[int | None, jax.Array]

    def after(self, tokens: Sequence[jax.Array]) -> Here:
        """The same, known only when the tokens are."""
        if not tokens:
            return self
        starts = [
            start if span == Span(n) else _order.after(tokens, start)
            for start, span, n in zip(self.starts, self.form.spans, self._lengths, strict=True)
        ]
        points = [_order.after(tokens, p) for p in self.points]
        return self._replace(starts=starts, points=points)

    @property
    def _lengths(self) -> tuple[int, ...]:
        return tuple(self.form.shape[d] for d in self.form.span_dims)


def locate(form: Form, lanes: Sequence[Lane], starts: Sequence[Any], points: Sequence[Any]) -> Here:
    """The index on the block of the device that runs this."""
    given = iter(starts)
    dims: list[Span | Points] = []
    found: list[tuple[Any, Any]] = []
    inside: dict[int | None, jax.Array] = {}
    for n, dim, lane in zip(form.shape, form.dims, lanes, strict=True):
        if isinstance(dim, Points):
            dims.append(Points())
            continue
        begin = _points.first_position(dim, n, next(given))
        if dim.rule == "loose":
            at = begin + jnp.arange(dim.size, dtype=begin.dtype) * dim.step
            inside[len(found)] = (at >= 0) & (at < n)
        span, start, first = _on_block(dim, lane, begin)
        dims.append(span)
        found.append((start, first))
    local, counts = _points_on_block(form, lanes, points)
    if counts is not None:
        inside[None] = counts
    split = any(lane.way == "points" for lane in lanes)
    sizes = tuple(lane.length for lane in lanes)
    here = replace(form, shape=sizes, dims=tuple(dims), result_shape=(), sources=())
    here = replace(here, rule="drop" if split else form.rule)
    return Here(here, [s for s, _ in found], local, [f for _, f in found], inside)


def _offset(lane: Lane, dtype: Any) -> jax.Array:
    """Where this device's block begins."""
    return lax.axis_index(lane.names).astype(dtype) * lane.length


def _on_block(dim: Span, lane: Lane, begin: jax.Array) -> tuple[Span, Any, Any]:
    """The part of a span on this block: its form, its start, and how many positions come before.

    Of the span's positions, those from the first that is not before the block are taken, but so
    that ``taken`` of them are left: the window may then begin before the block, or end behind it,
    and what lies outside is dropped by the rule for loose spans.
    """
    if lane.way == "all":
        return Span(lane.taken, dim.step), 0 if dim.step == 1 else begin, None
    rule = "loose" if lane.way == "part" or dim.rule == "loose" else "exact"
    span = Span(min(lane.taken, dim.size), dim.step, rule=rule)
    if lane.way == "here":
        return span, begin, None
    start = begin - _offset(lane, begin.dtype)
    if span.size == dim.size:
        return span, start, None
    first = jnp.clip(-(start // dim.step), 0, dim.size - span.size)
    return span, start + first * dim.step, first


def _points_on_block(
    form: Form, lanes: Sequence[Lane], points: Sequence[Any]
) -> tuple[list[jax.Array], jax.Array | None]:
    """The index arrays from the start of the block, and which of them are in the array's range."""
    if not form.point_dims:
        return [], None
    positions = _points.positions_of(form, points)
    inside = None
    if form.rule == "drop":
        pairs = zip(form.point_dims, positions, strict=True)
        inside = jnp.all(jnp.stack([p < form.shape[d] for d, p in pairs]), axis=0)
    local: list[jax.Array] = []
    for d, p in zip(form.point_dims, positions, strict=True):
        if lanes[d].way == "points":
            p = p - _offset(lanes[d], p.dtype)
        local.append(p.reshape(form.points_shape or ()))
    return local, inside


def _span_lanes(form: Form, lanes: Sequence[Lane]) -> Iterator[tuple[int, Span, Lane]]:
    """The spans with their axes in the core and their lanes."""
    lead = len(form.points_shape or ())
    for k, d in enumerate(form.span_dims):
        span = form.dims[d]
        assert isinstance(span, Span)
        yield lead + k, span, lanes[d]


def _turned(x: jax.Array, axis: int, lane: Lane) -> jax.Array:
    """``x`` in reverse order along an axis, which may be split over the mesh axes of a lane."""
    x = lax.rev(x, (axis,))
    if lane.way != "all":
        return x
    last = lane.parts - 1
    return lax.ppermute(x, lane.names, [(k, last - k) for k in range(lane.parts)])


# Writes ------------------------------------------------------------------------------------------


def write(
    form: Form,
    lanes: Sequence[Lane],
    op: Op,
    broadcast: Sequence[bool],
    block: jax.Array,
    starts: Sequence[Any],
    points: Sequence[Any],
    mask: Any,
    value: jax.Array,
    tokens: Sequence[jax.Array],
) -> jax.Array:
    """The device's block with its part of a value written to it.

    Args:
        form: what is selected from the whole array.
        lanes: how its dimensions are split.
        op: what to do with old and new elements.
        broadcast: along which axes of the core the value is to be broadcast, as `broadcast_axes`
            says of the whole value.
        block: the device's own.
        starts: for each span its start in the whole array.
        points: the index arrays, in terms of the whole array.
        mask: the device's part of a traced mask, or ``None``.
        value: its part of the value, split by `value_spec`; of the block's dtype.
        tokens: of reads that have to come first.
    """
    here = locate(form, lanes, starts, points)
    here = here.after([token[0] for token in tokens])
    if mask is not None and tokens:
        mask = _order.after([token[0] for token in tokens], mask.astype(jnp.int8)) != 0
    core = _compact_core(value, form)
    for (axis, span, lane), first in zip(_span_lanes(form, lanes), here.firsts, strict=True):
        if broadcast[axis]:
            continue
        if span.flip:
            core = _turned(core, axis, lane)
        if first is not None:
            core = lax.dynamic_slice_in_dim(core, first, lane.taken, axis)
    core = jnp.broadcast_to(core, here.form.core_shape)
    return _kernels.write(block, here.form, here.starts, here.points, mask, core, op)


def _compact_core(value: jax.Array, form: Form) -> jax.Array:
    """A value as the user gives it → in canonical order, not yet flipped, and not broadcast."""
    p, at = len(form.points_shape or ()), form.points_at
    value = value.reshape(_compact_shape(value.shape, form))
    rest = range(at + p, len(form.core_shape))
    return jnp.transpose(value, (*range(at, at + p), *range(at), *rest))


def _compact_shape(shape: Shape, form: Form) -> Shape:
    """``shape`` with the axes of the core, but those of index arrays still where the user has them.

    Axes along which it is to be broadcast have length 1. The other axes of the result and of the
    core are the same, and come in the same order, but for those of length 1 (``None``, integers).
    """
    rank = len(form.result_shape)
    shape = trim(shape, rank)
    padded = (1,) * (rank - len(shape)) + shape
    lengths = iter([have for have, n in zip(padded, form.result_shape, strict=True) if n != 1])
    p, at = len(form.points_shape or ()), form.points_at
    core = form.core_shape
    between = (*core[p : p + at], *core[:p], *core[p + at :])
    return tuple(next(lengths) if n != 1 else 1 for n in between)


def broadcast_axes(shape: Shape, form: Form) -> tuple[bool, ...]:
    """Along which axes of the core a value of ``shape`` is to be broadcast."""
    p, at = len(form.points_shape or ()), form.points_at
    compact = _compact_shape(shape, form)
    return tuple(n == 1 for n in (*compact[at : at + p], *compact[:at], *compact[at + p :]))


# Reads -------------------------------------------------------------------------------------------


def read(
    form: Form,
    lanes: Sequence[Lane],
    fill: Any,
    block: jax.Array,
    starts: Sequence[Any],
    points: Sequence[Any],
) -> tuple[jax.Array, jax.Array]:
    """The device's part, by `result_entries`, of what an index takes; and a token of `_order`.

    Args:
        form: what is selected from the whole array.
        lanes: how its dimensions are split.
        fill: what stands for elements out of range.
        block: the device's own.
        starts: for each span its start in the whole array.
        points: the index arrays, in terms of the whole array.
    """
    if block.dtype == jnp.float8_e8m0fnu:  # has no zero to stand for what others own
        fill = lax.bitcast_convert_type(jnp.asarray(fill), jnp.uint8)
        bits = lax.bitcast_convert_type(block, jnp.uint8)
        bits, token = read(form, lanes, fill, bits, starts, points)
        return lax.bitcast_convert_type(bits, block.dtype), token
    here = locate(form, lanes, starts, points)
    core = _kernels.read(block, here.form, here.starts, here.points, jnp.zeros((), block.dtype))
    spans = list(_span_lanes(form, lanes))
    for (axis, span, _), first in zip(spans, here.firsts, strict=True):
        if first is not None:
            whole = jnp.zeros((*core.shape[:axis], span.size, *core.shape[axis + 1 :]), core.dtype)
            core = lax.dynamic_update_slice_in_dim(whole, core, first, axis)
    for axis, span, lane in spans:
        if span.flip and lane.way != "all":
            core = _turned(core, axis, lane)
    core = _exact.total(core, _sum(form, lanes))
    received = any(lane.way in ("part", "points") and lane.parts > 1 for lane in lanes)
    core, token = _order.token_of(core, received)
    core = _filled(core, form, here, fill)
    for axis, span, lane in spans:
        if span.flip and lane.way == "all":
            core = _turned(core, axis, lane)
    return _to_result(core, form, lanes), token.reshape(1)


def _sum(form: Form, lanes: Sequence[Lane]) -> _exact.Sum:
    """What a read sums over: along *part* and *points*, scattered where the result stays split."""
    scattered = tuple(
        (axis, lane.names)
        for (axis, _, lane), d in zip(_span_lanes(form, lanes), form.span_dims, strict=True)
        if scatters(form, d, lane)
    )
    done = {name for _, names in scattered for name in names}
    names = [name for lane in lanes if lane.way in ("part", "points") for name in lane.names]
    return _exact.Sum(scattered, tuple(name for name in names if name not in done))


def _filled(core: jax.Array, form: Form, here: Here, fill: Any) -> jax.Array:
    lead = len(form.points_shape or ())
    for k, inside in here.inside.items():
        if k is None:
            inside = inside.reshape(*(form.points_shape or ()), *(1,) * (core.ndim - lead))
        else:
            span = form.spans[k]
            inside = lax.rev(inside, (0,)) if span.flip else inside
            inside = inside.reshape(tuple(-1 if a == lead + k else 1 for a in range(core.ndim)))
        core = jnp.where(inside, core, fill)
    return core


def _to_result(core: jax.Array, form: Form, lanes: Sequence[Lane]) -> jax.Array:
    """The core, which is ascending and flipped where it is to be, in the shape the user sees."""
    sizes = list(form.result_shape)
    for d, lane in enumerate(lanes):
        if lane.axis is not None and stays_split(form, d, lane):
            sizes[lane.axis] //= lane.parts
    dims = tuple(d._replace(flip=False) if isinstance(d, Span) else d for d in form.dims)
    return _kernels.to_result(core, replace(form, dims=dims, result_shape=tuple(sizes)))
