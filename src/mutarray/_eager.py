"""The eager engine: runs a plan shard by shard, on the touched shards alone.

A write becomes one launch of a compiled kernel for each touched shard, on the shard's own device,
with its buffer donated. A read launches on one owner of each touched block, and moves what was read
to where the result lives. Cost follows the elements named, not the elements owned.

What varies from call to call without a recompile: starts, index arrays, values. What is compiled
anew: the number of elements along a dimension, the step, the value's shape. A span that crosses a
border falls into parts of all lengths; a part is written as two windows that overlap, whose length
is a power of two, or, where what is written depends on what was there, taken as a window of one
static length, of which what lies outside the block is masked. Index arrays are padded to the next
power of two.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from mutarray import _buffers, _combine, _frames, _jaxapi, _kernels, _values
from mutarray._form import Form, Points, Selection, Span
from mutarray._general import read_sharding
from mutarray._layout import Layout, layout_of
from mutarray._plan import Part, SpanPart, covered, plan
from mutarray._types import Launch


class Local(NamedTuple):
    """A part of a selection as a selection of its block.

    Attributes:
        form: the form on the block.
        starts: its starts, packed into one array.
        points: its index arrays, padded to a power of two.
        offsets: for each span, the position in the value's core where the part's window begins.
        chosen: which points of the core, padded likewise; ``None`` without index arrays.
        is_everything: whether the block gets the whole of the selection, in order.
    """

    form: Form
    starts: np.ndarray
    points: tuple[np.ndarray, ...]
    offsets: tuple[int, ...]
    chosen: np.ndarray | None
    is_everything: bool


def _local(
    form: Form,
    part: Part,
    layout: Layout,
    shifted: bool,
    alive: np.ndarray | None = None,
    exact: bool = False,
) -> Local:
    """A part as a selection of its block.

    Args:
        form: the selection's form.
        part: its part on one block.
        layout: of the array.
        shifted: whether windows that would reach past the end of the value begin earlier, so that
            the value holds them; otherwise all begin with the first position in the block.
        alive: which points count; ``None`` for all.
        exact: whether the part has a length that a program may be compiled for, so that no window
            is needed that holds more.
    """
    parts = iter(part.spans)
    dims: list[Span | Points] = []
    starts: list[int] = []
    offsets: list[int] = []
    for d, dim in enumerate(form.dims):
        if isinstance(dim, Points):
            dims.append(Points())
            continue
        span, start, offset = _window(dim, next(parts), layout.block_shape[d], shifted, exact)
        dims.append(span)
        starts.append(start)
        offsets.append(offset)
    chosen, points = part.chosen, part.points
    if chosen is not None:
        if alive is not None:
            kept = alive[chosen]
            chosen, points = chosen[kept], tuple(p[kept] for p in points)
        chosen, points = _padded(form, chosen, points, layout)
    local = Form(
        shape=layout.block_shape,
        dims=tuple(dims),
        points_shape=None if chosen is None else (len(chosen),),
        points_at=0,
        result_shape=(),
        sources=(),
        rule="exact" if chosen is None else "drop",
        unique=True,
    )
    everything = part.chosen is None and all(
        part.size == span.size for part, span in zip(part.spans, form.spans, strict=True)
    )
    return Local(local, np.asarray(starts, np.int32), points, tuple(offsets), chosen, everything)


def _window(
    span: Span, part: SpanPart, length: int, shifted: bool, exact: bool
) -> tuple[Span, int, int]:
    """The window of static length that holds a part, its start in the block and in the value."""
    if exact or part.size == span.size:
        return Span(part.size, span.step), part.start, part.offset
    size = min(span.size, -(-length // span.step))
    if part.size == size:  # as a whole block that the span runs through: nothing to mask
        return Span(size, span.step), part.start, part.offset
    offset = min(part.offset, span.size - size) if shifted else part.offset
    start = part.start - (part.offset - offset) * span.step
    return Span(size, span.step, rule="loose"), start, offset


def _padded(
    form: Form, chosen: np.ndarray, points: tuple[np.ndarray, ...], layout: Layout
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Points padded to the next power of two with ones that are out of range, chosen with -1."""
    count = len(chosen)
    size = 1 << max(count - 1, 0).bit_length()
    lengths = [layout.block_shape[d] for d in form.point_dims]
    out = [np.full(size, -1, np.int64), *(np.full(size, n, np.int32) for n in lengths)]
    for padded, given in zip(out, (chosen, *points), strict=True):
        padded[:count] = given
    return out[0], tuple(out[1:])


# Writes ------------------------------------------------------------------------------------------


def write_launches(
    layout: Layout,
    selection: Selection,
    value: Any,
    dtype: Any,
    op: _combine.Op = "set",
    memory: str | None = None,
) -> list[Launch]:
    """The launches that write a value to a selection, in the order in which they are to be run.

    Nothing has been changed when this returns; what can fail for bad input has failed before.

    Args:
        layout: of the array.
        selection: where to write; known on the host.
        value: a checked value.
        dtype: the array's.
        op: what to do with old and new elements.
        memory: the kind of memory that the blocks lie in; ``None`` for that of the devices.
    """
    form = selection.form
    made = plan(selection, layout)
    alive = None
    if op == "set" and form.points_shape is not None and not form.unique:
        alive = _last_of_each(selection)
    cut = _values.cutter(value, form, dtype)
    launches: list[Launch] = []
    # What is written twice is the same; where old elements count, windows are masked instead.
    exact = op == "set"
    parts = [p for part in made.parts for p in covered(part, form, layout)] if exact else made.parts
    for part in parts:
        local = _local(form, part, layout, True, alive, exact)
        if local.chosen is not None and not len(local.chosen):
            continue
        if _combine.is_function(op):  # the one that minds whether points are named twice
            local = local._replace(form=replace(local.form, unique=form.unique))
        kernel = _write_kernel(local.form, op)
        for shard in part.shards:
            if shard.addressable:
                if memory is not None:
                    home = _jaxapi.make_single_device_sharding(shard.device, memory_kind=memory)
                    kernel = _write_kernel(local.form, op, home)
                piece = cut(local, shard.device)
                launches.append((shard.device, kernel, (local.starts, local.points, piece)))
    return launches


def _last_of_each(selection: Selection) -> np.ndarray:
    """Which points are not overwritten by a later one at the same position."""
    form = selection.form
    shape = form.points_shape or ()
    count = int(np.prod(shape))
    alive = np.zeros(count, bool)
    if not selection.points:
        alive[-1:] = True
        return alive
    flat = np.stack([np.broadcast_to(p, shape).ravel() for p in selection.points])
    _, last = np.unique(flat[:, ::-1], axis=1, return_index=True)
    alive[count - 1 - last] = True
    return alive


@functools.lru_cache(maxsize=4096)
def _write_kernel(
    form: Form, op: _combine.Op, home: Sharding | None = None
) -> Callable[..., jax.Array]:
    def write_block(
        block: jax.Array, starts: jax.Array, points: tuple[jax.Array, ...], value: jax.Array
    ) -> jax.Array:
        value = _jaxapi.to_device_memory(value)
        value = value if _combine.is_function(op) else value.astype(block.dtype)
        core = jnp.broadcast_to(value, form.core_shape)
        return _kernels.write(block, form, list(starts), points, None, core, op)

    # A block that is written whole is not read, but it still says where to write.
    # Memory of the host has to be named, or the result goes to the device's.
    return jax.jit(write_block, donate_argnums=0, keep_unused=True, out_shardings=home)


# Reads -------------------------------------------------------------------------------------------

Held = Callable[[jax.Device], jax.Array]
"""Gives the block that a device holds."""


def read(
    held: Held, layout: Layout, selection: Selection, sharding: Sharding, fill: Any = None
) -> jax.Array:
    """What a selection takes, in the sharding that `_frames.read_spec` names.

    Args:
        held: gives the block that a device holds.
        layout: of the array; all of it is addressable.
        selection: what to take; known on the host.
        sharding: of the array, in the memory of the devices, where the result goes.
        fill: what stands for elements out of range; ``None`` for JAX's choice.
    """
    form = selection.form
    out = read_sharding(form, sharding)
    result = layout_of(form.result_shape, out)
    dtype = held(layout.shards[0].device).dtype
    fill = _frames.fill_value(dtype, fill)
    if len(result.owners) == 1:
        devices = [shard.device for shard in result.shards]
        one = _read_block(held, layout, selection, devices, fill)
        if len(devices) == 1:
            return _buffers.laid_out(one, out)
        return _buffers.spread(form.result_shape, dtype, out, [one] * len(devices), devices)
    blocks: dict[Any, jax.Array] = {}
    for block, part in _result_parts(selection, result).items():
        devices = [shard.device for shard in result.owners[block]]
        blocks[block] = _read_block(held, layout, part, devices, fill)
    return _buffers.spread(
        form.result_shape,
        dtype,
        out,
        [blocks[shard.block] for shard in result.shards],
        [shard.device for shard in result.shards],
    )


def _read_block(
    held: Held, layout: Layout, selection: Selection, devices: list[jax.Device], fill: Any
) -> jax.Array:
    """A selection brought together on one device, as the user sees it.

    The device is one of ``devices``, or one that holds all of it.
    """
    form = selection.form
    parts = plan(selection, layout).parts
    if len(parts) == 1:
        local = _local(form, parts[0], layout, False)
        if local.is_everything:
            device = _source(parts[0], devices)
            kernel = _read_kernel(local.form, form)
            return kernel(held(device), local.starts, local.points, fill)
    target = _source(parts[0], devices) if parts else devices[0]
    target = target if target in devices else devices[0]
    cores, offsets, places = [], [], []
    for part in parts:
        local = _local(form, part, layout, False)
        device = _source(part, [target])
        core = _read_kernel(local.form, None)(held(device), local.starts, local.points, fill)
        cores.append(_buffers.move(core, target))
        offsets.append(np.asarray(local.offsets, np.int32))
        places.append(_places(form, local))
    fill = jax.device_put(fill, target)  # decides where an empty list of pieces is joined
    return _join_kernel(form)(cores, offsets, places, fill)


def _source(part: Part, devices: list[jax.Device]) -> jax.Device:
    """A device that holds a part's block: one of ``devices`` if possible."""
    held = [shard.device for shard in part.shards]
    return next((device for device in held if device in devices), held[0])


def _places(form: Form, local: Local) -> np.ndarray | None:
    """Where a piece's points go among the selection's; padding goes out of range."""
    if local.chosen is None:
        return None
    if not local.points:
        return local.chosen.astype(np.int32)
    count = math.prod(form.points_shape or ())
    length = local.form.shape[local.form.point_dims[0]]
    return np.where(local.points[0] < length, local.chosen, count).astype(np.int32)


@functools.lru_cache(maxsize=4096)
def _read_kernel(form: Form, whole: Form | None) -> Callable[..., jax.Array]:
    def read_block(
        block: jax.Array, starts: jax.Array, points: tuple[jax.Array, ...], fill: jax.Array
    ) -> jax.Array:
        core = _kernels.read(block, form, list(starts), points, fill)
        return core if whole is None else _kernels.to_result(core, whole)

    return jax.jit(read_block, keep_unused=True)


@functools.lru_cache(maxsize=4096)
def _join_kernel(form: Form) -> Callable[..., jax.Array]:
    """Puts pieces together.

    Pieces come in ascending order of their blocks, and each window begins with the first position
    that its block has. What a window holds beyond the block's end is overwritten by the pieces
    after it, or lies in a margin behind the end of the core, which is cut off.
    """

    def join(
        cores: list[jax.Array],
        offsets: list[jax.Array],
        places: list[jax.Array | None],
        fill: jax.Array,
    ) -> jax.Array:
        sizes = tuple(span.size for span in form.spans)
        lead = () if form.points_shape is None else (math.prod(form.points_shape),)
        margin = [max([c.shape[len(lead) + k] for c in cores] + [0]) for k in range(len(sizes))]
        out = jnp.full((*lead, *map(operator.add, sizes, margin)), fill)
        zero = [jnp.int32(0)] * len(lead)
        for core, offset, place in zip(cores, offsets, places, strict=True):
            at = [*zero, *offset]
            if place is not None:
                window = jax.lax.dynamic_slice(out, at, (*lead, *core.shape[1:]))
                core = window.at[place].set(core, mode="drop")
            out = jax.lax.dynamic_update_slice(out, core, at)
        out = jax.lax.slice(out, [0] * out.ndim, (*lead, *sizes))
        return _kernels.to_result(out.reshape(form.core_shape), form)

    return jax.jit(join)


def _result_parts(selection: Selection, result: Layout) -> dict[tuple[int, ...], Selection]:
    """For each block of the result's layout, the selection of the array that it shows."""
    form = selection.form
    span_of = {d: k for k, d in enumerate(form.span_dims)}
    out: dict[tuple[int, ...], Selection] = {}
    for block, shards in result.owners.items():
        dims, starts = list(form.dims), list(selection.starts)
        for axis, (lo, hi) in enumerate(shards[0].box):
            source = form.sources[axis]
            if source is None or hi - lo == form.result_shape[axis]:
                continue
            span = dims[source]
            assert isinstance(span, Span)
            first = span.size - hi if span.flip else lo
            dims[source] = span._replace(size=hi - lo)
            starts[span_of[source]] += first * span.step  # pyright: ignore[reportOperatorIssue]
        narrow = replace(
            form,
            dims=tuple(dims),
            result_shape=tuple(hi - lo for lo, hi in shards[0].box),
        )
        out[block] = replace(selection, form=narrow, starts=tuple(starts))
    return out
