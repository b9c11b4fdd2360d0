"""Arrays: their shardings, the buffers that they are made of, and the memory that these lie in."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax._src import core
from jax._src.lib import xla_client
from jax._src.sharding_impls import GSPMDSharding
from jax.sharding import AxisType, NamedSharding, PartitionSpec, Sharding

if hasattr(jax.sharding, "is_single_device_sharding"):
    # JAX >= 0.12.1, where naming the class warns, and where this may one day be a `NamedSharding`.
    make_single_device_sharding: Callable[..., Sharding] = jax.sharding.make_single_device_sharding  # pyright: ignore
    is_single_device_sharding: Callable[[Sharding], bool] = jax.sharding.is_single_device_sharding  # pyright: ignore
else:
    make_single_device_sharding = jax.sharding.SingleDeviceSharding

    def is_single_device_sharding(sharding: Sharding) -> bool:
        """Whether `make_single_device_sharding` made it, and not a mesh of one device."""
        return isinstance(sharding, jax.sharding.SingleDeviceSharding)


def explicit_spec(x: jax.Array) -> tuple[Any, PartitionSpec] | None:
    """Mesh and spec in the type of ``x``, where its mesh has explicit axes; else ``None``."""
    sharding = jax.typeof(x).sharding
    mesh = sharding.mesh
    if mesh.empty or AxisType.Explicit not in mesh.axis_types:
        return None
    return mesh, sharding.spec


def reshard(x: jax.Array, mesh: Any, spec: PartitionSpec) -> jax.Array:
    """``x`` with another spec in its type, on a mesh with explicit axes."""
    return jax.sharding.reshard(x, NamedSharding(mesh, spec))


def replicated(sharding: Sharding) -> Sharding:
    """The sharding on the same devices, in device memory, that gives each the whole array."""
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec())
    if is_single_device_sharding(sharding):
        return make_single_device_sharding(next(iter(sharding.device_set)))
    return GSPMDSharding.get_replicated(sharding._internal_device_list)


def blocks(x: jax.Array) -> list[jax.Array]:
    """The single-device arrays of this process that make up ``x``, in its sharding's order.

    ``x.addressable_shards`` is computed once, and is stale after JAX has replaced the buffers in an
    array that it had as a Ref.

    An array on one device is its own block to JAX, with its own mesh. Where that mesh is explicit
    it is in the block's type, and programs refuse to combine the block with what has another type.
    So the block is another array object over the same buffer.
    """
    parts: list[jax.Array] = list(x._arrays)  # pyright: ignore[reportAttributeAccessIssue]
    if len(parts) == 1 and not is_single_device_sharding(parts[0].sharding):
        (device,) = parts[0].devices()
        home = make_single_device_sharding(device, memory_kind=x.sharding.memory_kind)
        return [jax.make_array_from_single_device_arrays(x.shape, home, parts, dtype=x.dtype)]
    return parts


def host_view(block: jax.Array) -> np.ndarray:
    """A view of a single-device array on a CPU, when all work on it is done; nobody keeps it.

    ``np.asarray`` keeps it in the array, and XLA donates no buffer that is being looked at.
    """
    return block._single_device_array_to_np_array_did_copy()[0]  # pyright: ignore


def pointers(x: jax.Array) -> set[int]:
    """Where the blocks of this process lie in memory."""
    return {block.unsafe_buffer_pointer() for block in x._arrays}  # pyright: ignore


def is_shared(x: jax.Array) -> bool:
    """Whether somebody has an array that shares a buffer with ``x``, other than ``x`` itself."""
    x = getattr(x, "_base_array", x)  # of PRNG keys
    if x.size == 0:
        return False
    x.__dict__.pop("addressable_shards", None)  # what it holds of itself
    parts = blocks(x)
    # Held by x, by the list and by the call that counts; what is in a user's hand comes on top.
    if any(sys.getrefcount(parts[k]) > 3 for k in range(len(parts)) if parts[k] is not x):
        return True
    return is_held_elsewhere(parts, x)


def let_go(x: jax.Array) -> None:
    """Deletes ``x``, and not its buffers, which others share."""
    x = getattr(x, "_base_array", x)
    x.__dict__.pop("addressable_shards", None)
    x._replace_with(jax.device_put(np.zeros(x.shape, x.dtype), x.sharding))  # pyright: ignore
    x.delete()


def is_held_elsewhere(parts: list[jax.Array], whole: jax.Array | None = None) -> bool:
    """Whether an array shares a buffer with ``parts``, other than these and ``whole``."""
    mine = {id(x) for x in (*parts, whole)}
    taken = {x.unsafe_buffer_pointer() for x in parts}
    shape, dtype = parts[0].shape, parts[0].dtype
    for x in jax.live_arrays():
        if id(x) in mine or x.dtype != dtype or x.is_deleted():
            continue
        alike = x.shape == shape or x.sharding.shard_shape(x.shape) == shape
        if alike and not taken.isdisjoint(pointers(x)):
            return True
    return False


def alias(x: jax.Array, sharding: Sharding, fixed: bool = True) -> jax.Array:
    """A second array object over the same buffers, under an equal ``sharding`` object.

    JAX may bring one that is not ``fixed`` to where others are that it is combined with.
    """
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = jax.random.key_data(x)
        data = alias(data, data.sharding, fixed)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    if x.size == 0:
        # Programs give empty arrays shards of the wrong shape; there is nothing to share.
        x = jax.device_put(np.zeros(x.shape, x.dtype), sharding)
    if not fixed:
        return type(x)(x.aval, x.sharding, blocks(x), committed=False, _skip_checks=True)  # pyright: ignore
    return jax.make_array_from_single_device_arrays(x.shape, sharding, blocks(x), dtype=x.dtype)


def batched_device_put(
    shape: tuple[int, ...],
    dtype: Any,
    sharding: Sharding,
    blocks: list[Any],
    devices: list[jax.Device],
) -> jax.Array:
    """An array from its blocks, each moved to its device if it is not there already.

    ``jax.device_put`` does the same many times slower, one block after the other in Python.
    """
    aval = _aval(shape, np.dtype(dtype), sharding)
    return xla_client.batched_device_put(aval, sharding, blocks, devices, True)


def adopt(x: np.ndarray, device: jax.Device) -> jax.Array:
    """``x`` on a device; a CPU works in its memory if that begins at a multiple of 64 bytes.

    So nobody may write to ``x`` afterwards. An argument of a compiled program is copied instead.
    """
    return batched_device_put(x.shape, x.dtype, _home(device), [x], [device])


@functools.lru_cache(maxsize=1024)
def _home(device: jax.Device) -> Sharding:
    return make_single_device_sharding(device)


@functools.lru_cache(maxsize=1024)
def _aval(shape: tuple[int, ...], dtype: np.dtype, sharding: Sharding) -> core.ShapedArray:
    return core.update_aval_with_sharding(core.ShapedArray(shape, dtype), sharding)


def custom_layout(x: jax.Array) -> Any:
    """The ``Format`` of ``x`` if its dimensions lie in another order than C's, else ``None``."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        return None
    form = x.format  # pyright: ignore[reportAttributeAccessIssue]
    order = getattr(form.layout, "major_to_minor", None)
    return form if order is not None and tuple(order) != tuple(range(x.ndim)) else None


def in_order(form: Any, sharding: Sharding) -> Any:
    """A sharding with the order of dimensions of a ``Format`` that `custom_layout` gave."""
    return sharding if form is None else type(form)(form.layout, sharding)


def to_host(x: jax.Array) -> np.ndarray:
    """The values of a concrete array, also while a trace is running."""
    with core.eval_context():
        return np.asarray(x)


# Host memory -------------------------------------------------------------------------------------


def is_on_host(x: jax.Array) -> bool:
    """Whether the type of ``x`` says that it lies in host memory.

    What the CPU backend calls ``unpinned_host`` has the type of device memory, and needs no moves.
    """
    return core.typeof(x).memory_space == core.MemorySpace.Host


def to_device_memory(x: jax.Array) -> jax.Array:
    """``x`` in device memory, inside a compiled program."""
    return jax.device_put(x, core.MemorySpace.Device) if is_on_host(x) else x


def to_memory_of(x: jax.Array, other: jax.Array) -> jax.Array:
    """``x``, which is in device memory, in that of ``other``, inside a compiled program."""
    return jax.device_put(x, core.MemorySpace.Host) if is_on_host(other) else x
