"""Cuts a value into the parts that blocks get.

Python and NumPy values are cut on the host, so that only the parts travel; JAX values are cut on
their device. A value that lies on several devices is cut where a whole copy lies, and brought
together once if there is none: it moves at most its own size.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from mutarray import _buffers, _jaxapi, _kernels
from mutarray._cast import trim
from mutarray._form import Form


class Wanted(Protocol):
    """What a block gets: a window of the value's core."""

    @property
    def form(self) -> Form: ...
    @property
    def offsets(self) -> tuple[int, ...]: ...
    @property
    def chosen(self) -> np.ndarray | None: ...
    @property
    def is_everything(self) -> bool: ...


Cutter = Callable[[Any, jax.Device], Any]


def cutter(value: Any, form: Form, dtype: Any) -> Cutter:
    """A function that gives the part of ``value`` for a block, where a kernel there can take it.

    Args:
        value: a checked value.
        form: the selection that it is written to.
        dtype: the array's.
    """
    if not isinstance(value, jax.Array):
        value = np.asarray(value).astype(dtype, copy=False)
        if value.ndim == 0:
            return lambda wanted, device: value
        core = _host_core(value, form)
        return lambda wanted, device: _cut_host(core, wanted, device)
    return _DeviceCutter(value, form)


def _host_core(value: np.ndarray, form: Form) -> np.ndarray:
    """`_kernels.to_core` for NumPy, with the points flat; a view."""
    p, at = len(form.points_shape or ()), form.points_at
    core = form.core_shape
    value = value.reshape(trim(value.shape, len(form.result_shape)))
    value = np.broadcast_to(value, form.result_shape)
    value = value.reshape((*core[p : p + at], *core[:p], *core[p + at :]))
    value = value.transpose((*range(at, at + p), *range(at), *range(at + p, len(core))))
    flips = tuple(p + k for k, span in enumerate(form.spans) if span.flip)
    value = np.flip(value, flips) if flips else value
    return value if form.points_shape is None else value.reshape((math.prod(core[:p]), *core[p:]))


def _cut_host(core: np.ndarray, wanted: Wanted, device: jax.Device) -> jax.Array | np.ndarray:
    sizes = [span.size for span in wanted.form.spans]
    window = tuple(slice(o, o + n) for o, n in zip(wanted.offsets, sizes, strict=True))
    if wanted.chosen is None:
        return np.asarray(core[window], order="C")
    core = core[(slice(None), *window)]
    if device.platform == "cpu" and math.prod(sizes) * core.itemsize >= _WIDE:
        return _jaxapi.adopt(_picked(core, wanted.chosen), device)
    return np.asarray(core[wanted.chosen], order="C")


_WIDE = 4096
"""From so many bytes for each point on, it pays to copy point by point."""


def _picked(core: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """``core[chosen]`` at an address that a CPU device can take over; padding is left undefined."""
    shape = (len(chosen), *core.shape[1:])
    size = math.prod(shape) * core.itemsize
    room = np.empty(size + 64, np.uint8)
    first = -room.ctypes.data % 64
    out = room[first : first + size].view(core.dtype).reshape(shape)
    for k, point in enumerate(chosen.tolist()):
        if point >= 0:
            out[k] = core[point]
    return out


class _DeviceCutter:
    """Cuts a JAX value on the devices that hold all of it."""

    def __init__(self, value: jax.Array, form: Form):
        self._form = form
        if value.sharding.is_fully_replicated or len(value.sharding.device_set) == 1:
            self._whole = {block.device: block for block in _jaxapi.blocks(value)}
        else:
            device = next(iter(value.sharding.addressable_devices))
            # As a block: what device_put gives may still have the old mesh in its type (JAX 0.10).
            self._whole = {device: _jaxapi.blocks(_buffers.put(value, device))[0]}

    def __call__(self, wanted: Wanted, device: jax.Device) -> jax.Array | np.ndarray:
        source = device if device in self._whole else next(iter(self._whole))
        value = self._whole[source]
        if value.ndim and not (
            wanted.is_everything
            and value.shape == self._form.core_shape
            and not any(s.flip for s in self._form.spans)
            and self._form.points_at == 0
        ):
            value = self._cut(source, value, wanted)
        return _buffers.move(value, device)

    def _cut(self, source: jax.Device, value: jax.Array, wanted: Wanted) -> jax.Array:
        sizes = tuple(span.size for span in wanted.form.spans)
        offsets = np.asarray(wanted.offsets, np.int32)
        return _cut_kernel(self._form, sizes)(value, offsets, wanted.chosen)


@functools.lru_cache(maxsize=4096)
def _cut_kernel(form: Form, sizes: tuple[int, ...]) -> Callable[..., jax.Array]:
    def cut(value: jax.Array, offsets: jax.Array, chosen: jax.Array | None) -> jax.Array:
        core = _kernels.to_core(_jaxapi.to_device_memory(value), form)
        starts = list(offsets)
        if chosen is None:
            return jax.lax.dynamic_slice(core, starts, sizes)
        lead = form.points_shape or ()
        core = core.reshape(math.prod(lead), *form.core_shape[len(lead) :])
        core = jax.lax.dynamic_slice(core, [jnp.int32(0), *starts], (core.shape[0], *sizes))
        return jnp.take(core, chosen, axis=0, mode="clip")

    return jax.jit(cut)
