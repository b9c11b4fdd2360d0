"""The one door to JAX that is private or differs between versions.

No other file of mutarray names ``jax._src``, ``jax.experimental`` or a JAX version. Each function
here says what it stands for, so that the day JAX offers it in public, one line changes.

Supported: JAX 0.9 to 0.12.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import jax
import numpy as np
from jax._src import core, source_info_util
from jax._src import shard_map as _shard_map
from jax._src.lib import xla_client
from jax._src.mesh import empty_concrete_mesh
from jax._src.sharding_impls import GSPMDSharding
from jax._src.state.types import AbstractRef, ReadEffect, RefEffect
from jax.sharding import AxisType, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

try:  # JAX >= 0.10
    from jax._src.indexing import Slice
except ImportError:  # JAX 0.9
    from jax._src.state.indexing import Slice

# JAX's error messages name the line of the user's code, not one of the core's files.
source_info_util.register_exclusion(os.path.join(os.path.dirname(__file__), "_"))

_T = TypeVar("_T")

# Traces ------------------------------------------------------------------------------------------


def current_trace() -> Any:
    """The trace that operations called now belong to."""
    return core.trace_ctx.trace


def in_trace() -> bool:
    """Whether operations called now are recorded or transformed rather than run."""
    return core.trace_ctx.trace is not core.eval_trace


def is_tracer(x: Any) -> bool:
    """Whether ``x`` stands for a value that is not known yet."""
    return isinstance(x, core.Tracer)


def manual_axes() -> frozenset[str]:
    """The mesh axes over which the code runs shard by shard (inside a ``shard_map``)."""
    mesh = jax.sharding.get_abstract_mesh()
    return frozenset(mesh.manual_axes) if mesh is not None and not mesh.empty else frozenset()


def mapped_mesh_axes() -> frozenset[str]:
    """The explicit mesh axes that a ``vmap`` around this code maps over."""
    return frozenset(core.trace_ctx.axis_env.explicit_mesh_axis_names)


def varying(x: Any) -> frozenset[str]:
    """The manual mesh axes along which ``x`` may differ, inside of a ``shard_map``."""
    return frozenset(getattr(jax.typeof(x), "vma", ()))


def barriers_hold() -> bool:
    """Whether what comes behind a ``lax.optimization_barrier`` runs behind it.

    On CPUs before JAX 0.12 XLA drops barriers before it decides what has to be copied.
    """
    return jax.__version_info__ >= (0, 12) or jax.default_backend() != "cpu"


def sees_mesh() -> bool:
    """Whether `without_mesh` would make a difference."""
    return not (jax.sharding.get_abstract_mesh().empty or in_trace())


def without_mesh(work: Callable[..., _T]) -> Callable[..., _T]:
    """``work``, which outside of traces does not see the mesh that ``jax.set_mesh`` set.

    An array says itself where it lives, and in the context of a mesh JAX refuses programs that run
    on one of its devices alone.
    """

    @functools.wraps(work)
    def run(*args: Any, **kwargs: Any) -> _T:
        if not sees_mesh():
            return work(*args, **kwargs)
        with jax.set_mesh(empty_concrete_mesh):
            return work(*args, **kwargs)

    return run


def in_while_condition() -> bool:
    """Whether the condition of a ``lax.while_loop`` is being traced.

    There every JAX up to 0.12 lets a Ref be read, and gives the contents from before the loop in
    each round: a loop that waits for what its body writes never ends.
    """
    frame = getattr(core.trace_ctx.trace, "frame", None)
    info = getattr(frame, "debug_info", None)
    return getattr(info, "traced_for", None) == "while_cond"


# Refs --------------------------------------------------------------------------------------------


class Lender(Protocol):
    """What the door needs of a cell: an array that JAX may read, donate and replace in place."""

    def lend(self) -> jax.Array: ...


class _Door(core.ArrayRefImpl):
    """The inside of a ``jax.Ref`` whose buffer is whatever its cell lends at that moment.

    JAX reads ``_buf`` when it collects the arguments of a call, and again after the call, to put
    the new buffers into the same array object; it never assigns to it.
    """

    def __init__(self, aval: AbstractRef, lender: Lender):
        self._aval = aval
        self._lender = lender

    @property
    def _buf(self) -> jax.Array:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._lender.lend()


def make_door(x: jax.Array, lender: Lender) -> Any:
    """A ``jax.Ref`` for traces, with the type of ``x`` in device memory, backed by ``lender``."""
    aval = core.typeof(x)
    if aval.memory_space != core.MemorySpace.Device:
        aval = aval.update(memory_space=core.MemorySpace.Device)
    ref_aval = AbstractRef(aval)
    return core.Ref(ref_aval, _Door(ref_aval, lender))


def lender_of(ref: Any) -> Any:
    """The cell behind a Ref that `make_door` made, else ``None``."""
    door = getattr(ref, "_refs", None) if type(ref) is core.Ref else None
    return door._lender if isinstance(door, _Door) else None


def is_ref(x: Any) -> bool:
    """Whether ``x`` is a ``jax.Ref``, or stands for one in a trace."""
    return isinstance(x, core.Ref)


@contextmanager
def _origin(source: Any) -> Iterator[None]:
    """Operations inside are said to come from ``source`` in JAX's error messages."""
    with source_info_util.user_context(source.traceback, name_stack=source.name_stack):
        yield


def here() -> Any:
    """The place in the user's code that runs now, for error messages."""
    return source_info_util.current()


def summarize(source: Any) -> str:
    """``file:line (function)`` of a place that `here` gave."""
    return source_info_util.summarize(source)


def new_ref(value: Any, trace: Any, source: Any) -> Any:
    """A Ref with the contents ``value``, made in ``trace``, said to be made at ``source``."""
    with core.set_current_trace(trace), _origin(source):
        return jax.new_ref(value)


def write_whole(ref: Any, value: Any) -> None:
    """``ref[...] = value``.

    Through a slice for each axis: in a ``vmap`` over any axis but the first, JAX before 0.12 does
    not line up the mapped axes of a Ref and of what is written to all of it
    (jax-ml/jax#39288, mended by jax-ml/jax#39293), but those of a Ref and of what is written to
    slices of it.
    """
    ref[tuple(Slice(0, n) for n in ref.shape)] = value


def evaluate(traced: Any, consts: list[Any], args: list[Any]) -> list[Any]:
    """Runs what ``jax.make_jaxpr`` gave, with other constants in the place of its own."""
    return core.eval_jaxpr(traced.jaxpr, consts, *args)


def written_consts(traced: Any) -> set[int]:
    """Which of the constants of what ``jax.make_jaxpr`` gave are Refs that it writes to."""
    inputs = [*traced.jaxpr.constvars, *traced.jaxpr.invars]
    changes = [e for e in traced.effects if isinstance(e, RefEffect) and type(e) is not ReadEffect]
    at = [getattr(e, "input", None) or getattr(e, "input_index", 0) for e in changes]  # JAX >= 0.10
    return {x if isinstance(x, int) else inputs.index(x) for x in at}


# Shardings ---------------------------------------------------------------------------------------


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
    if isinstance(sharding, SingleDeviceSharding):
        return SingleDeviceSharding(next(iter(sharding.device_set)))
    return GSPMDSharding.get_replicated(sharding._internal_device_list)


def blocks(x: jax.Array) -> list[jax.Array]:
    """The single-device arrays of this process that make up ``x``, in its sharding's order.

    ``x.addressable_shards`` is computed once, and is stale after JAX has replaced the buffers in an
    array that it had as a Ref.
    """
    return list(x._arrays)  # pyright: ignore[reportAttributeAccessIssue]


def host_view(block: jax.Array) -> np.ndarray:
    """A view of a single-device array on a CPU, when all work on it is done; nobody keeps it.

    ``np.asarray`` keeps it in the array, and XLA donates no buffer that is being looked at.
    """
    return block._single_device_array_to_np_array_did_copy()[0]  # pyright: ignore


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
    pointers = {x.unsafe_buffer_pointer() for x in parts}
    shape, dtype = parts[0].shape, parts[0].dtype
    for x in jax.live_arrays():
        if id(x) in mine or x.dtype != dtype or x.is_deleted():
            continue
        alike = x.shape == shape or x.sharding.shard_shape(x.shape) == shape
        if alike and any(block.unsafe_buffer_pointer() in pointers for block in blocks(x)):
            return True
    return False


def alias(x: jax.Array, sharding: Sharding) -> jax.Array:
    """A second array object over the same buffers, under an equal ``sharding`` object."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = jax.random.key_data(x)
        return jax.random.wrap_key_data(alias(data, data.sharding), impl=jax.random.key_impl(x))
    if x.size == 0:
        # Programs give empty arrays shards of the wrong shape; there is nothing to share.
        return jax.device_put(np.zeros(x.shape, x.dtype), sharding)
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
    return SingleDeviceSharding(device)


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


# Eager shard_map ---------------------------------------------------------------------------------


def _install_eager_shard_map() -> None:
    """Lets an eager ``jax.shard_map`` take Refs, by running it under ``jax.jit``.

    Eager ``shard_map`` refuses Refs and asks for a ``jit`` around it (jax-ml/jax#36000); this puts
    that ``jit`` there. Calls without a Ref among the arguments are not touched.
    """
    original: Callable[..., Any] = core.EvalTrace.process_shard_map  # pyright: ignore
    bind = inspect.signature(_shard_map.ShardMapPrimitive.bind_with_trace)
    takes_subfuns = "avals" in bind.parameters  # JAX >= 0.10

    def process_shard_map(trace: Any, prim: Any, fun: Any, args: Any, **params: Any) -> Any:
        if not any(type(x) is core.Ref for x in args):
            return original(trace, prim, fun, args, **params)
        trees: list[Any] = []

        def staged(*args: Any) -> list[Any]:
            if takes_subfuns:
                out = prim.bind(*args, subfuns=(fun,), **params)
            else:
                out = prim.bind(fun, *args, **params)
            trees.append(out)
            return list(out)

        values = jax.jit(staged)(*args)
        return trees[0].update(values) if hasattr(trees[0], "update") else values

    core.EvalTrace.process_shard_map = process_shard_map  # pyright: ignore


_install_eager_shard_map()
