"""Traces, meshes that are set, and code that runs shard by shard."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax._src import core
from jax._src import shard_map as _shard_map
from jax._src.mesh import empty_concrete_mesh

_T = TypeVar("_T")


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
