"""Refs: made around a cell, in a trace, and found in what was traced."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import jax
from jax._src import core, source_info_util
from jax._src.state.types import AbstractRef, ReadEffect, RefEffect
from jax.sharding import Sharding

try:  # JAX >= 0.10
    from jax._src.indexing import Slice
except ImportError:  # JAX 0.9
    from jax._src.state.indexing import Slice

# JAX's error messages name the line of the user's code, not one of the core's files.
source_info_util.register_exclusion(os.path.join(Path(__file__).parent.parent, "_"))


class Lender(Protocol):
    """What the door needs of a cell: an array that JAX may read, donate and replace in place."""

    def lend(self, work: Sharding) -> jax.Array: ...


class _Door(core.ArrayRefImpl):
    """The inside of a ``jax.Ref`` whose buffer is whatever its cell lends at that moment.

    JAX reads ``_buf`` when it collects the arguments of a call, and again after the call, to put
    the new buffers into the same array object; it never assigns to it.
    """

    def __init__(self, aval: AbstractRef, lender: Lender, work: Sharding):
        self._aval = aval
        self._lender = lender
        self._work = work

    @property
    def _buf(self) -> jax.Array:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._lender.lend(self._work)


def make_door(x: jax.Array, lender: Lender, work: Sharding) -> Any:
    """A ``jax.Ref`` with the type of ``x`` in device memory, backed by what ``lender`` lends."""
    aval = core.typeof(x)
    if aval.memory_space != core.MemorySpace.Device:
        aval = aval.update(memory_space=core.MemorySpace.Device)
    ref_aval = AbstractRef(aval)
    return core.Ref(ref_aval, _Door(ref_aval, lender, work))


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
