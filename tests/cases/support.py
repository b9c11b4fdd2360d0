"""Meshes and measurements that the cases share."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import mutarray as mu

P = PartitionSpec

KINDS = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}


def named(
    kind: str, axes: dict[str, int], *spec: Any, memory_kind: str | None = None
) -> NamedSharding:
    """``NamedSharding`` by ``spec`` on a mesh of the first devices with the given axes."""
    shape = tuple(axes.values())
    devices = np.array(jax.devices()[: math.prod(shape)]).reshape(shape)
    mesh = Mesh(devices, tuple(axes), axis_types=(KINDS[kind],) * len(shape))
    return NamedSharding(mesh, P(*spec), memory_kind=memory_kind)


def on_mesh(sharding: Any) -> AbstractContextManager[Any]:
    """The context that JAX asks for where a transformation runs on an explicit mesh without a jit.

    Constants have no mesh then ("Please enter your `jit` into a mesh context via `jax.set_mesh`");
    the same goes for ``x.at[0].set(0.)`` of a plain array. Since JAX 0.12, gradients need it under
    ``jit`` too.
    """
    mesh = getattr(sharding, "mesh", None)
    explicit = mesh is not None and AxisType.Explicit in mesh.axis_types
    return jax.set_mesh(mesh) if explicit else nullcontext()


def rows(kind: str = "auto", parts: int = 4) -> NamedSharding:
    """Rows over ``parts`` devices, on an axis ``d``."""
    return named(kind, {"d": parts}, "d")


def grid(kind: str = "auto") -> NamedSharding:
    """Blocks over 2×2 devices, on axes ``x`` and ``y``."""
    return named(kind, {"x": 2, "y": 2}, "x", "y")


def pointers(m: mu.MutableArray) -> list[int]:
    """Where the buffers of the shards lie in memory."""
    return [shard.data.unsafe_buffer_pointer() for shard in m.addressable_shards]


def same_sharding(m: mu.MutableArray, sharding: Any) -> bool:
    """Whether ``m``, what is read of all of it, and its buffers are where ``sharding`` says."""
    whole = m[...]
    wanted = sharding.devices_indices_map(m.shape)
    return (
        m.sharding == sharding
        and hash(m.sharding) == hash(sharding)
        and whole.sharding == sharding
        and whole.sharding.memory_kind == sharding.memory_kind
        and {s.device: s.index for s in whole.addressable_shards} == wanted
        and all(s.data.devices() == {s.device} for s in whole.addressable_shards)
    )


_COLLECTIVE = re.compile(
    r"= (?P<result>.*?) (?P<op>all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)"
    r"(?:-start)?\("
)
_SHAPE = re.compile(r"\w+\[(?P<dims>[\w@,]*)\]")


def _dims(match: re.Match[str]) -> tuple[int, ...]:
    """``float32[16@x,8]`` → ``(16, 8)``."""
    return tuple(int(entry.split("@")[0]) for entry in match["dims"].split(",") if entry)


def big_collectives(compiled: Any, full_shape: tuple[int, ...]) -> list[str]:
    """The collectives of a compiled program that give as many elements as ``full_shape`` has."""
    full = math.prod(full_shape)

    def size(result: str) -> int:
        return max(math.prod(_dims(match)) for match in _SHAPE.finditer(result))

    found = _COLLECTIVE.finditer(compiled.as_text())
    return [f"{m['op']} of {m['result']}" for m in found if size(m["result"]) >= full]


class Traffic:
    """What ran within `traffic`: the shapes of whole arrays that were touched.

    Attributes:
        compiled: the arguments of the programs that were compiled.
        moved: what was given to ``jax.device_put``.
        fetched: what was brought to the host.
    """

    def __init__(self) -> None:
        self.compiled: set[tuple[int, ...]] = set()
        self.moved: set[tuple[int, ...]] = set()
        self.fetched: set[tuple[int, ...]] = set()

    @property
    def shapes(self) -> set[tuple[int, ...]]:
        return self.compiled | self.moved | self.fetched


@contextmanager
def traffic(monkeypatch: pytest.MonkeyPatch) -> Iterator[Traffic]:
    """Watches for gathers.

    A gather is a program over the whole array, which is compiled when it is first asked for and
    whose argument shapes JAX logs; or a ``device_put`` of it; or its copy into a NumPy array.
    """
    seen = Traffic()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if text.startswith("Compiling"):
                seen.compiled.update(map(_dims, _SHAPE.finditer(text.split("Argument mapping")[0])))

    def watch(name: str, owner: Any, shapes: set[tuple[int, ...]]) -> None:
        original = getattr(owner, name)

        def watched(x: Any, *args: Any, **kwargs: Any) -> Any:
            shapes.update(np.shape(leaf) for leaf in jax.tree.leaves(x))
            return original(x, *args, **kwargs)

        patch.setattr(owner, name, watched)

    handler, logger = Handler(), logging.getLogger("jax")
    with monkeypatch.context() as patch:
        watch("device_put", jax, seen.moved)
        watch("__array__", type(jnp.zeros(1)), seen.fetched)
        logger.addHandler(handler)
        try:
            with jax.log_compiles():
                yield seen
        finally:
            logger.removeHandler(handler)
