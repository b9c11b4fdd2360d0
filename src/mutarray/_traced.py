"""Reads and writes inside a trace: owner-computes where the array lies on a mesh.

The sharding is static, so a `jax.shard_map` over the array's own mesh runs `_owners` on each
device. No partitioner has to understand an index, nothing is gathered, and the answer is the same
on any number of devices. An array that lies whole wherever the code runs is worked on as it is; one
whose sharding no mesh describes goes by the general engine (`_gather`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from mutarray import _cast, _gather, _jaxapi, _lanes, _order, _owners
from mutarray._combine import Op
from mutarray._form import Form, Selection, with_trailing
from mutarray._frames import Frame, Home, fill_value, frame_of, integers, operands, result_spec
from mutarray._lanes import Lane
from mutarray._layout import split_axes
from mutarray._order import Tokens


class _Split(NamedTuple):
    """An array that lies in blocks on a mesh.

    Attributes:
        mesh: the mesh.
        axes: for each dimension the mesh axes that split it.
    """

    mesh: Any
    axes: tuple[tuple[str, ...], ...]

    def lanes(self, form: Form) -> tuple[Lane, ...]:
        """The lanes of a selection; dimensions that were added behind are not split."""
        axes = self.axes + ((),) * (len(form.shape) - len(self.axes))
        lanes = _lanes.lanes_of(form, axes, dict(self.mesh.shape))
        if _jaxapi.mapped_mesh_axes():  # under which JAX up to 0.12 cannot lower a psum_scatter
            lanes = tuple(lane._replace(scatters=False) for lane in lanes)
        return lanes


def split_of(x: Any, home: Home) -> _Split | None:
    """How ``x`` is split; ``None`` if it is not, or if no mesh says how, or if this is a block."""
    if _jaxapi.manual_axes():
        return None
    sharding = home.sharding
    if not isinstance(sharding, NamedSharding) or x.shape != home.shape:
        typed = _jaxapi.explicit_spec(x) if isinstance(x, jax.Array) else None
        if typed is None:
            return None
        sharding = NamedSharding(*typed)
    axes = split_axes(sharding, x.ndim)
    return _Split(sharding.mesh, axes) if any(axes) else None


def read(
    x: jax.Array,
    home: Home,
    selection: Selection,
    fill: Any = None,
    out_spec: PartitionSpec | None = None,
    reads: Tokens | None = None,
) -> jax.Array:
    """What a selection takes from an array.

    Args:
        x: the array's value.
        home: where it lives.
        selection: what to take.
        fill: what stands for elements out of range; ``None`` for JAX's choice.
        out_spec: how the result is split; ``None`` for `_frames.read_spec`.
        reads: notes the read, so that a later write waits for it.
    """
    form = selection.form
    split = split_of(x, home)
    if split is None or form.is_whole or 0 in form.result_shape:
        result = _gather.read(x, home, selection, fill, out_spec)
        if reads is not None and not form.is_whole and _is_plain(result, x):
            result, token = _order.token_of(result)
            reads.add(token)
        return result
    frame = frame_of(x, home)
    wanted = result_spec(frame, form) if out_spec is None else out_spec
    raw, impl, extra = integers(x)
    selection = with_trailing(selection, extra)
    starts, points, _ = operands(frame, selection)
    lanes = split.lanes(selection.form)
    given = _lanes.result_entries(selection.form, lanes)
    program = _program(
        _owners.read,
        (selection.form, lanes),
        split.mesh,
        (PartitionSpec(), _lanes.block_spec(lanes, raw.ndim), PartitionSpec(), PartitionSpec()),
        (given, _lanes.token_spec(lanes)),
    )
    fill = jnp.asarray(fill_value(raw.dtype, fill))
    result, token = program(fill, raw, _arrays(starts), _arrays(points))
    if reads is not None:
        reads.add(token)
    if impl is not None:
        result = jax.random.wrap_key_data(result, impl=impl)
    return _respecified(result, frame, given, wanted)


@functools.lru_cache(maxsize=1024)
def _program(
    work: Callable[..., Any], static: tuple[Any, ...], mesh: Any, in_specs: Any, out_specs: Any
) -> Callable[..., Any]:
    """``work`` on each device, after its static arguments.

    Under a ``jit`` because a gradient that is taken without one would otherwise compile each single
    operation, and do so again in each call. XLA inlines it where it is inside of another ``jit``.
    """
    local = functools.partial(work, *static)
    mapped = jax.shard_map(local, mesh=mesh, in_specs=in_specs, out_specs=out_specs)
    return jax.jit(mapped)


def _is_plain(result: jax.Array, x: jax.Array) -> bool:
    """Whether a token of a read may go into a write to ``x`` on the same device or devices."""
    plain = 0 not in result.shape and not _cast.is_key(result.dtype)
    return plain and _jaxapi.varying(result) <= _jaxapi.varying(x)


def _arrays(values: list[Any]) -> list[jax.Array]:
    return [jnp.asarray(value) for value in values]


def _respecified(
    x: jax.Array, frame: Frame, given: PartitionSpec, wanted: PartitionSpec | None
) -> jax.Array:
    def entries(spec: PartitionSpec | None) -> list[Any]:
        every = [n if isinstance(n, tuple) or n is None else (n,) for n in spec or ()]
        return [n or None for n in every] + [None] * (x.ndim - len(every))

    return x if entries(given)[: x.ndim] == entries(wanted) else frame.scatter(x, wanted)


def write(
    x: jax.Array,
    home: Home,
    selection: Selection,
    value: jax.Array,
    op: Op = "set",
    reads: Tokens | None = None,
) -> jax.Array:
    """The array with a value written to, or combined with, a selection.

    Args:
        x: the array's value.
        home: where it lives.
        selection: where to write.
        value: of the array's dtype; broadcasts to the selection's result.
        op: what to do with old and new elements.
        reads: what has to come first.
    """
    form = selection.form
    split = split_of(x, home)
    tokens = reads.take() if reads is not None else []
    if split is None or form.is_whole or 0 in form.result_shape:
        return _gather.write(x, home, _after(tokens, selection), value, op)
    frame = frame_of(x, home)
    value = value.reshape(_cast.trim(value.shape, len(form.result_shape)))
    raw, impl, extra = integers(x)
    value = integers(value)[0]
    selection = with_trailing(selection, extra)
    form = selection.form
    lanes = split.lanes(form)
    mask, selection_only = selection.mask, Selection(form, selection.starts, selection.points)
    starts, points, _ = operands(frame, selection_only)
    value_spec = _lanes.value_spec(form, lanes, value.shape)
    block_spec = _lanes.block_spec(lanes, raw.ndim)
    value = frame.scatter(value, value_spec)
    mask_spec = PartitionSpec() if mask is None else _lanes.mask_spec(form, lanes)
    mask = mask if mask is None else frame.scatter(mask, mask_spec)
    in_specs = (
        block_spec,
        PartitionSpec(),
        PartitionSpec(),
        mask_spec,
        value_spec,
        _lanes.token_spec(lanes),
    )
    static = (form, lanes, op, _owners.broadcast_axes(value.shape, form))
    program = _program(_owners.write, static, split.mesh, in_specs, block_spec)
    result = program(raw, _arrays(starts), _arrays(points), mask, value, tokens)
    return result if impl is None else jax.random.wrap_key_data(result, impl=impl)


def _after(tokens: list[jax.Array], selection: Selection) -> Selection:
    if not tokens:
        return selection
    starts = tuple(_order.after(tokens, s) for s in selection.starts)
    points = tuple(_order.after(tokens, p) for p in selection.points)
    return replace(selection, starts=starts, points=points)


def update(x: jax.Array, home: Home, fn: Callable[..., jax.Array], value: Any) -> jax.Array:
    """The array with ``fn(old, value)`` in the place of each element, in its dtype and sharding.

    Args:
        x: the array's value.
        home: where it lives.
        fn: elementwise.
        value: broadcasts to the array.
    """
    frame = frame_of(x, home)
    value = frame.scatter(jnp.broadcast_to(jnp.asarray(value), x.shape), None)
    return frame.scatter(fn(x, value).astype(x.dtype), None)
