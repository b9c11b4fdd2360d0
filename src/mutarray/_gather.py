"""The general engine: right for every index on every layout, inside a trace.

It brings the array whole to every device, works there with `_kernels`, and constrains the result
back to the array's sharding. That costs a gather; in return no partitioner has to understand an
index, and the answer is the same on any number of devices (openxla/xla#49118, #49122 and #49176
cannot show through). It is the reference for the faster engines, and the way for arrays that no
mesh describes.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from mutarray import _cast, _guard, _jaxapi, _kernels
from mutarray._combine import Op, combine
from mutarray._form import Form, Selection, with_trailing
from mutarray._frames import (
    Home,
    fill_value,
    frame_of,
    integers,
    is_everywhere,
    operands,
    result_spec,
)


def read(
    x: jax.Array,
    home: Home,
    selection: Selection,
    fill: Any = None,
    out_spec: PartitionSpec | None = None,
) -> jax.Array:
    """What a selection takes from an array; as `_traced.read`."""
    form = selection.form
    if form.is_whole:
        return x if out_spec is None else frame_of(x, home).scatter(x, out_spec)
    if 0 in form.result_shape and not _cast.is_key(x.dtype):
        # Nothing depends on the array, so a program of it alone would know no devices.
        return jnp.zeros(form.result_shape, x.dtype)
    _check(x, home, form, "a read")
    frame = frame_of(x, home)
    spec = result_spec(frame, form) if out_spec is None else out_spec
    raw, impl, extra = integers(x)
    selection = with_trailing(selection, extra)
    starts, points, _ = operands(frame, selection)
    fill = fill_value(raw.dtype, fill)
    core = _kernels.read(frame.gather(raw), selection.form, starts, points, fill)
    result = frame.gather(_kernels.to_result(core, selection.form))
    if impl is not None:
        result = jax.random.wrap_key_data(result, impl=impl)
    return frame.scatter(result, spec)


def write(
    x: jax.Array, home: Home, selection: Selection, value: jax.Array, op: Op = "set"
) -> jax.Array:
    """The array with a value written to a selection; as `_traced.write`."""
    form = selection.form
    frame = frame_of(x, home)
    if form.is_whole:  # each device has, or gets, what it needs: nothing to gather
        value = value.reshape(_cast.trim(value.shape, x.ndim))
        value = frame.scatter(jnp.broadcast_to(value, x.shape), None)
        return value if op == "set" else frame.scatter(combine(x, value, op), None)
    _check(x, home, form, "a write")
    raw, impl, extra = integers(x)
    selection = with_trailing(selection, extra)
    starts, points, mask = operands(frame, selection)
    core = _kernels.to_core(frame.gather(integers(value)[0]), selection.form)
    result = _kernels.write(frame.gather(raw), selection.form, starts, points, mask, core, op)
    result = frame.gather(result)
    if impl is not None:
        result = jax.random.wrap_key_data(result, impl=impl)
    return frame.scatter(result, None)


def _check(x: jax.Array, home: Home, form: Form, what: str) -> None:
    """Under `no_gather`, raises unless every device has all of the array."""
    touched = form.count * x.dtype.itemsize
    operation = f"{what} of an array of shape {x.shape} inside of a trace"
    if jax.device_count() == 1 or _jaxapi.manual_axes() or is_everywhere(x, home):
        return
    if home.sharding is not None and home.shape == x.shape:
        why = f"its sharding {home.sharding} is not on a mesh that says which device owns what"
        moved, mend = x.size * x.dtype.itemsize, "Make the array with a NamedSharding."
    else:
        why = "its sharding is not known there, so XLA decides what moves"
        moved, mend = None, "Pass sharding= where the array is made, or use an explicit mesh."
    _guard.moves(operation, moved, touched, why, mend)
