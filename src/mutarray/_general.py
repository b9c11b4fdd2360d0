"""The general engine outside of a trace: the traced one under ``jax.jit``.

Programs are compiled once per `Form`, home and value type; starts, index arrays and values are
operands, so another index of the same form compiles nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, Sharding

from mutarray import _buffers, _combine, _frames, _guard, _jaxapi, _traced
from mutarray._buffers import compute_sharding
from mutarray._form import Form, Selection
from mutarray._frames import Home


def read(
    x: jax.Array,
    sharding: Sharding,
    selection: Selection,
    fill: Any = None,
    out_sharding: Sharding | None = None,
) -> jax.Array:
    """What a selection takes from an array, as a new array in device memory.

    Args:
        x: the array, laid out by ``sharding``.
        sharding: its sharding.
        selection: what to take.
        fill: what stands for elements out of range.
        out_sharding: where the result goes; ``None`` for the rule of `_frames.read_spec`.
    """
    work = compute_sharding(sharding)
    out = out_sharding if out_sharding is not None else read_sharding(selection.form, work)
    here = out.device_set == work.device_set and compute_sharding(out) is out
    direct = out if here else read_sharding(selection.form, work)
    reader = _reader(selection.form, Home(x.shape, work), direct)
    result = reader(_onto(x, work, selection.form), fill, *_operands(selection))
    return result if here else _buffers.put(result, out)


def write(
    x: jax.Array,
    sharding: Sharding,
    selection: Selection,
    value: Any,
    op: _combine.Op = "set",
    donate: bool = False,
) -> jax.Array:
    """A new array with a value written to a selection.

    Args:
        x: the array, laid out by ``sharding``.
        sharding: its sharding, and that of the result.
        selection: where to write.
        value: a Python, NumPy or JAX value that is checked already.
        op: what to do with old and new elements.
        donate: whether the new array may take over the buffers of ``x``; otherwise that is left as
            it is.
    """
    work = compute_sharding(sharding)
    if isinstance(value, jax.Array):
        value = near(value, work)
    else:
        value = np.asarray(value) if _combine.is_function(op) else np.asarray(value).astype(x.dtype)
    place = (_jaxapi.custom_layout(x) if work is sharding else None) or work
    writer = _writer(selection.form, Home(x.shape, work), op, place, donate and work is sharding)
    out = writer(_onto(x, work, selection.form), value, *_operands(selection), selection.mask)
    return out if work is sharding else _buffers.put(out, sharding)


def update(
    x: jax.Array, sharding: Sharding, fn: Callable[..., jax.Array], value: Any, donate: bool
) -> jax.Array:
    """A new array with ``fn(old, value)`` in the place of each element.

    Args:
        x: the array, laid out by ``sharding``.
        sharding: its sharding, and that of the result.
        fn: elementwise; one that lives on, since the program is kept under it.
        value: a checked value.
        donate: whether the new array may take over the buffers of ``x``.
    """
    work = compute_sharding(sharding)
    value = near(value, work) if isinstance(value, jax.Array) else value
    place = (_jaxapi.custom_layout(x) if work is sharding else None) or work
    updater = _updater(fn, Home(x.shape, work), place, donate and work is sharding)
    out = updater(_onto(x, work), value)
    return out if work is sharding else _buffers.put(out, sharding)


@functools.lru_cache(maxsize=1024)
def _updater(
    fn: Callable[..., jax.Array], home: Home, out: Any, donate: bool
) -> Callable[..., jax.Array]:
    def update_program(x: jax.Array, value: Any) -> jax.Array:
        return _traced.update(x, home, fn, value)

    return jax.jit(update_program, out_shardings=out, donate_argnums=0 if donate else ())


@functools.lru_cache(maxsize=4096)
def read_sharding(form: Form, work: Sharding) -> Sharding:
    """Where a read of an array that is laid out by ``work`` goes."""
    if isinstance(work, NamedSharding):
        return NamedSharding(work.mesh, _frames.read_spec(form, work))
    return _jaxapi.replicated(work)


def _onto(x: jax.Array, work: Sharding, form: Form | None = None) -> jax.Array:
    """``x`` in device memory."""
    if x.sharding.memory_kind == work.memory_kind:
        return x
    if form is not None:  # else all of it is touched
        _guard.moves(
            f"an operation on an array of shape {x.shape} in {x.sharding.memory_kind}",
            math.prod(work.shard_shape(x.shape)) * x.dtype.itemsize,
            form.count * x.dtype.itemsize,
            "this version of JAX cannot work on a part of an array in that memory",
            "Keep the array in device memory.",
        )
    return _buffers.put(x, work)


def near(value: jax.Array, work: Sharding) -> jax.Array:
    """A value on the devices that the array lives on, in the memory that they compute from."""
    default = compute_sharding(value.sharding)
    same_devices = value.sharding.device_set == work.device_set
    if default is value.sharding and (same_devices or not value.committed):
        same_mesh = (
            not isinstance(value.sharding, NamedSharding)
            or not isinstance(work, NamedSharding)
            or value.sharding.mesh == work.mesh
        )
        if same_mesh:
            return value
    return _buffers.put(value, _jaxapi.replicated(work))


def _operands(selection: Selection) -> tuple[list[Any], list[Any]]:
    """Starts and index arrays as arrays, so that their values are no part of the program."""
    starts = [np.asarray(s, np.int32 if abs(s) < 2**31 else np.int64) for s in selection.starts]
    return starts, list(selection.points)


@functools.lru_cache(maxsize=4096)
def _reader(form: Form, home: Home, out: Sharding) -> Callable[..., jax.Array]:
    def read_program(
        x: jax.Array, fill: jax.Array | None, starts: list[Any], points: list[Any]
    ) -> jax.Array:
        selection = Selection(form, tuple(starts), tuple(points))
        spec = out.spec if isinstance(out, NamedSharding) and _same_mesh(out, home) else None
        return _traced.read(x, home, selection, fill, spec)

    return jax.jit(read_program, out_shardings=out)


def _same_mesh(out: NamedSharding, home: Home) -> bool:
    return isinstance(home.sharding, NamedSharding) and out.mesh == home.sharding.mesh


@functools.lru_cache(maxsize=4096)
def _writer(
    form: Form, home: Home, op: _combine.Op, out: Any, donate: bool
) -> Callable[..., jax.Array]:
    def write_program(
        x: jax.Array, value: jax.Array, starts: list[Any], points: list[Any], mask: Any
    ) -> jax.Array:
        selection = Selection(form, tuple(starts), tuple(points), mask)
        value = value if _combine.is_function(op) else value.astype(x.dtype)
        return _traced.write(x, home, selection, value, op)

    return jax.jit(
        write_program,
        out_shardings=out,
        donate_argnums=0 if donate else (),
        keep_unused=donate,  # a whole write does not read the old contents, but takes their place
    )
