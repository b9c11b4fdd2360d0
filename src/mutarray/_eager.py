"""The general engine outside of a trace: the traced one under ``jax.jit``.

Programs are compiled once per `Form`, home and value type; starts, index arrays and values are
operands, so another index of the same form compiles nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, Sharding

from mutarray import _jaxapi, _traced
from mutarray._form import Form, Selection
from mutarray._traced import Home


@functools.lru_cache(maxsize=256)
def compute_sharding(sharding: Sharding) -> Sharding:
    """The same layout in the memory that the devices compute from."""
    default = next(iter(sharding.device_set)).default_memory().kind
    if sharding.memory_kind in (None, default):
        return sharding
    return sharding.with_memory_kind(default)


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
        out_sharding: where the result goes; ``None`` for the rule of `_traced.read_spec`.
    """
    work = compute_sharding(sharding)
    out = out_sharding if out_sharding is not None else _read_sharding(selection.form, work)
    key = None if fill is None else np.asarray(fill).item()
    reader = _reader(selection.form, Home(x.shape, work), out, key)
    return reader(_onto(x, work), *_operands(selection))


def write(
    x: jax.Array, sharding: Sharding, selection: Selection, value: Any, op: str = "set"
) -> jax.Array:
    """A new array with a value written to a selection; ``x`` is left as it is.

    Args:
        x: the array, laid out by ``sharding``.
        sharding: its sharding, and that of the result.
        selection: where to write.
        value: a Python, NumPy or JAX value that is checked already.
        op: one of `_kernels.OPS`.
    """
    work = compute_sharding(sharding)
    if isinstance(value, jax.Array):
        value = _near(value, work)
    else:
        value = np.asarray(value).astype(x.dtype)
    place = (_jaxapi.custom_layout(x) if work is sharding else None) or work
    writer = _writer(selection.form, Home(x.shape, work), op, place)
    out = writer(_onto(x, work), value, *_operands(selection))
    return out if work is sharding else jax.device_put(out, sharding)


def _read_sharding(form: Form, work: Sharding) -> Sharding:
    if isinstance(work, NamedSharding):
        return NamedSharding(work.mesh, _traced.read_spec(form, work))
    return _jaxapi.replicated(work)


def _onto(x: jax.Array, work: Sharding) -> jax.Array:
    return x if x.sharding.memory_kind == work.memory_kind else jax.device_put(x, work)


def _near(value: jax.Array, work: Sharding) -> jax.Array:
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
    return jax.device_put(value, _jaxapi.replicated(work))


def _operands(selection: Selection) -> tuple[list[Any], list[Any]]:
    """Starts and index arrays as arrays, so that their values are no part of the program."""
    starts = [np.asarray(s, np.int32 if abs(s) < 2**31 else np.int64) for s in selection.starts]
    return starts, list(selection.points)


@functools.lru_cache(maxsize=4096)
def _reader(form: Form, home: Home, out: Sharding, fill: Any) -> Callable[..., jax.Array]:
    def read_program(x: jax.Array, starts: list[Any], points: list[Any]) -> jax.Array:
        selection = Selection(form, tuple(starts), tuple(points))
        spec = out.spec if isinstance(out, NamedSharding) and _same_mesh(out, home) else None
        return _traced.read(x, home, selection, fill, spec)

    return jax.jit(read_program, out_shardings=out)


def _same_mesh(out: NamedSharding, home: Home) -> bool:
    return isinstance(home.sharding, NamedSharding) and out.mesh == home.sharding.mesh


@functools.lru_cache(maxsize=4096)
def _writer(form: Form, home: Home, op: str, out: Any) -> Callable[..., jax.Array]:
    def write_program(
        x: jax.Array, value: jax.Array, starts: list[Any], points: list[Any]
    ) -> jax.Array:
        selection = Selection(form, tuple(starts), tuple(points))
        return _traced.write(x, home, selection, value.astype(x.dtype), op)

    return jax.jit(write_program, out_shardings=out)


@functools.lru_cache(maxsize=256)
def _copier(out: Any) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(jnp.copy, out_shardings=out)


def copy(x: jax.Array, sharding: Sharding) -> jax.Array:
    """A copy with buffers of its own, in the same place, memory and order of dimensions."""
    if compute_sharding(sharding) is sharding:
        return _copier(_jaxapi.custom_layout(x) or sharding)(x)
    # XLA programs on host memory are not there on every backend and version: copy by shards.
    shards = [
        jax.device_put(
            np.array(shard.data),
            jax.sharding.SingleDeviceSharding(shard.device, memory_kind=sharding.memory_kind),
            may_alias=False,
        )
        for shard in x.addressable_shards
    ]
    return jax.make_array_from_single_device_arrays(x.shape, sharding, shards, dtype=x.dtype)


@functools.lru_cache(maxsize=256)
def _taker(sharding: Any) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda x: x, donate_argnums=0, out_shardings=sharding)


def take_over(x: jax.Array, sharding: Sharding) -> jax.Array:
    """The buffers of ``x`` under a new array; ``x`` is deleted."""
    if compute_sharding(sharding) is sharding:
        return _taker(_jaxapi.custom_layout(x) or sharding)(x)
    out = copy(x, sharding)
    x.delete()
    return out
