"""Every message of every error, in full; and a proof that none is missing.

`CASES` is the table. `test_no_message_is_missing` finds, in the sources, every place that makes an
error, and fails for those that no case of the table comes through.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, Sharding

import mutarray as mu
from mutarray import _general, _jaxapi, _pickled, errors
from mutarray._handle import cell_of
from mutarray._jaxapi import make_single_device_sharding
from mutarray._select import select
from tests.support import P, mesh
from tests.test_imports import CORE

pytestmark = pytest.mark.core

SOURCE = Path(mu.__file__).parent
ROOT = Path(__file__).resolve().parent.parent


class Case(NamedTuple):
    """Code that raises, and what it raises."""

    name: str
    code: Callable[[], Any]
    error: type[Exception]
    message: str


# What the cases are made of ----------------------------------------------------------------------


def on(shape: tuple[int, ...] = (8, 8), dtype: Any = None, spec: P = P("i", "j")) -> Any:
    """Zeros, split over eight devices."""
    return mu.zeros(shape, dtype, sharding=NamedSharding(mesh((4, 2), "ij"), spec))


def keys() -> Any:
    return mu.mutable_array(jax.random.split(jax.random.key(0), 4))


def without_a_mesh() -> Sharding:
    """A sharding over eight devices that no mesh describes."""
    from jax._src.sharding_impls import GSPMDSharding

    named = NamedSharding(mesh((4, 2), "ij"), P("i", "j"))
    parts = named._to_xla_hlo_sharding(2)  # pyright: ignore
    return GSPMDSharding(tuple(named.mesh.devices.flat), parts)


def in_host_memory() -> Any:
    home = NamedSharding(mesh((4, 2), "ij"), P("i", "j"), memory_kind="pinned_host")
    return mu.zeros((8, 8), sharding=home)


def set_to(m: Any, index: Any, value: Any) -> None:
    m[index] = value


def traced(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function under ``jit``; by default with an array, and with an integer."""
    return jax.jit(function)(*(args or (on(), 2)))


def without_gather(function: Callable[[], Any]) -> None:
    with mu.no_gather():
        function()


def frozen(m: Any) -> Any:
    mu.freeze(m)
    return m


def lost() -> Any:
    """An array whose buffers went to a call that failed."""
    m = on()
    cell: Any = cell_of(m)
    cell.lend(cell.place.work).delete()
    return m


def of_other_processes() -> Any:
    """A cell as it is where other processes have some of the devices."""
    cell: Any = cell_of(on())
    there = SimpleNamespace(is_fully_addressable=False)
    cell.place = dataclasses.replace(cell.place, sharding=there)
    return cell


def pickled_on(platform: str, first: int) -> Any:
    values, impl, (_, ids, *rest) = _pickled.dump(cell_of(on()))
    return values, impl, (platform, ids + first, *rest)


def used_inside(m: Any) -> Any:
    """A loop whose body writes to an array from outside of it."""
    return lax.fori_loop(0, 2, lambda k, x: (set_to(m, k, 1.0), x)[1], 0.0)


def in_the_condition(m: Any) -> Any:
    return lax.while_loop(lambda x: m[0, 0] + x < 3, lambda x: x + 1, 0.0)


def in_a_body(m: Any) -> Any:
    body = jax.shard_map(lambda x: x + m[0, 0], mesh=m.sharding.mesh, in_specs=P(), out_specs=P())
    return jax.jit(body)(1.0)


def twice(a: Any, b: Any) -> None:
    a[0] = b[0]


def in_a_body_of_its_own(m: Any) -> Any:
    """An array that is made in an eager shard_map, and used in a loop there."""
    body = jax.shard_map(
        lambda x: used_inside(mu.mutable_array(x)) + x[0, 0],
        mesh=m.sharding.mesh,
        in_specs=m.sharding.spec,
        out_specs=P(),
        check_vma=False,
    )
    return body(m[...])


def closed_over(m: Any) -> None:
    jax.jit(lambda a: twice(a, m))(m)


def on_no_mesh() -> Any:
    return mu.mutable_array(jnp.zeros((8, 8)), without_a_mesh())


def one_device() -> Sharding:
    return make_single_device_sharding(jax.devices()[0])


def made_of(x: Any) -> Any:
    """Reads from an array that a trace makes of its argument."""
    return mu.mutable_array(x)[3]


def moved_from_host_memory() -> Any:
    """What JAX 0.9 needs for each operation on host memory."""
    form = select((8, 8), (3, 3), writing=False).form
    return _general._onto(in_host_memory()[...], on().sharding, form)


def deleted() -> jax.Array:
    x = jnp.zeros(3)
    x.delete()
    return x


def rows() -> NamedSharding:
    return on(spec=P("i")).sharding


def resharded_since() -> Any:
    """A program that closed over an array, which has moved since."""
    m = on()
    program = jax.jit(lambda k: m[k])
    program(3)
    m.reshard(rows())
    return without_gather(lambda: program(3))


def passed_and_closed_over() -> Any:
    m = on()
    return mu.jit(lambda a: twice(a, m))(m)


def kept() -> Any:
    """What a function was passed, after the call."""
    found: list[Any] = []
    mu.jit(found.append)(on())
    return found[0]


def kept_of_plain_jit() -> Any:
    found: list[Any] = []
    jax.jit(found.append)(on())
    return found[0]


def frozen_in_a_trace() -> Any:
    m = on()
    return jax.jit(lambda: mu.freeze(m))()


def compiled(*args: Any) -> Any:
    """Calls a program with other arguments than those it was compiled for."""
    return mu.jit(lambda m, k: m[k]).lower(on(), 0).compile()(*args)


def without_rich() -> None:
    with mock.patch.dict(sys.modules, {"rich": None}):
        on().visualize()


def within_a_transaction(*trees: Any) -> None:
    with mu.transaction(*trees):
        pass


@dataclasses.dataclass
class Unknown:
    """A dataclass that JAX does not know."""

    weight: Any


class Unhashable:
    __hash__ = None  # pyright: ignore

    def __call__(self, x: Any) -> Any:
        return x


# The table ---------------------------------------------------------------------------------------

CASES = [
    # Integers out of range
    Case(
        "integer",
        lambda: on()[8],
        errors.OutOfBoundsError,
        "index 8 is out of bounds for axis 0 with size 8: allowed are -8 to 7; to clip, drop or "
        "fill such indices instead, use mu.get, mu.set or mu.addupdate with mode=",
    ),
    Case(
        "integer, not wrapped",
        lambda: mu.get(on(), -1, wrap_negative_indices=False),
        errors.OutOfBoundsError,
        "index -1 is out of bounds for axis 0 with size 8: allowed are 0 to 7; to clip, drop or "
        "fill such indices instead, use mu.get, mu.set or mu.addupdate with mode=",
    ),
    Case(
        "integer in an index array",
        lambda: on()[:, [1, -9, 3]],
        errors.OutOfBoundsError,
        "index -9 is out of bounds for axis 1 with size 8: allowed are -8 to 7; to clip, drop or "
        "fill such indices instead, use mu.get, mu.set or mu.addupdate with mode=",
    ),
    Case(
        "integer, empty axis",
        lambda: mu.zeros((0, 4))[0],
        errors.OutOfBoundsError,
        "axis 0 has size 0, so every index is out of bounds for it: select nothing from it, with "
        "an empty slice or an empty index array",
    ),
    Case(
        "index array, empty axis",
        lambda: mu.zeros((0, 4))[[0]],
        errors.OutOfBoundsError,
        "axis 0 has size 0, so every index is out of bounds for it: select nothing from it, with "
        "an empty slice or an empty index array",
    ),
    Case(
        "integer, empty axis, mode",
        lambda: mu.get(mu.zeros((0, 4)), 0, mode="clip"),
        errors.OutOfBoundsError,
        "axis 0 has size 0, so every index is out of bounds for it: select nothing from it, with "
        "an empty slice or an empty index array",
    ),
    Case(
        "traced integer, empty axis",
        lambda: traced(lambda m, k: m[k], mu.zeros((0, 4)), 0),
        errors.OutOfBoundsError,
        "axis 0 has size 0, so every index is out of bounds for it: select nothing from it, with "
        "an empty slice or an empty index array",
    ),
    Case(
        "traced index array, empty axis",
        lambda: traced(lambda m, k: m[k], mu.zeros((0, 4)), jnp.zeros(2, int)),
        errors.OutOfBoundsError,
        "axis 0 has size 0, so every index is out of bounds for it: select nothing from it, with "
        "an empty slice or an empty index array",
    ),
    Case(
        "position of put",
        lambda: on().put([3, 64], 1.0),
        errors.OutOfBoundsError,
        "position 64 is out of bounds for a mutable array of shape (8, 8): allowed are -64 to 63",
    ),
    Case(
        "position of put, empty array",
        lambda: mu.zeros(0).put(0, 1.0),
        errors.OutOfBoundsError,
        "position 0 is out of bounds for a mutable array of shape (0,): it has no elements",
    ),
    Case(
        "kth of partition",
        lambda: on().partition(9, 1),
        errors.BadAxisError,
        "kth=9 is out of bounds for axis 1 with size 8: allowed are -8 to 7",
    ),
    Case(
        "kth of partition, empty axis",
        lambda: mu.zeros((2, 0)).partition(0),
        errors.BadAxisError,
        "kth=0 is out of bounds for axis -1 with size 0: it has no elements",
    ),
    Case(
        "axis of sort",
        lambda: on().sort(2),
        errors.BadAxisError,
        "axis 2 is out of bounds for a mutable array of 2 axes: allowed are -2 to 1",
    ),
    Case(
        "axis of sort, no axes",
        lambda: mu.zeros(()).sort(),
        errors.BadAxisError,
        "axis -1 is out of bounds for a mutable array of 0 axes: it has none",
    ),
    # Indices that are none
    Case(
        "text",
        lambda: on()["a"],
        errors.BadIndexError,
        "'a' of type str is no index: only integers, slices (`:`), ellipsis (`...`), None, mu.ds "
        "windows and integer or boolean arrays are valid indices",
    ),
    Case(
        "float",
        lambda: on()[1.5],
        errors.BadIndexError,
        "1.5 of type float is no index: only integers, slices (`:`), ellipsis (`...`), None, "
        "mu.ds windows and integer or boolean arrays are valid indices",
    ),
    Case(
        "index array of floats",
        lambda: on()[np.zeros(2)],
        errors.BadIndexError,
        "an index array of dtype float64 was given: arrays used as indices must be of integer or "
        "boolean type; cast it with .astype(int)",
    ),
    Case(
        "ragged list",
        lambda: on()[[[0], [1, 2]]],
        errors.BadIndexError,
        "the list [[0], [1, 2]] is no index array: give all its parts the same length",
    ),
    Case(
        "too many indices",
        lambda: on()[0, 1, 2],
        errors.BadIndexError,
        "too many indices for array: array is 2-dimensional, but 3 were indexed; name at most 2",
    ),
    Case(
        "two ellipses",
        lambda: on()[..., ...],
        errors.BadIndexError,
        "an index can only have a single ellipsis ('...'), and this one has 2: write ':' for each"
        " axis that another one stands for",
    ),
    Case(
        "index arrays that do not broadcast",
        lambda: on()[[0, 1], [0, 1, 2]],
        errors.BadIndexError,
        "shape mismatch: indexing arrays could not be broadcast together with shapes (2,) (3,): "
        "give them equal lengths, or 1",
    ),
    Case(
        "mask of another length",
        lambda: on()[np.ones(3, bool)],
        errors.BadIndexError,
        "boolean index did not match indexed array along axis 0; size of axis is 8 but size of "
        "corresponding boolean axis is 3: give the mask the size of the axis",
    ),
    Case(
        "slice with a float",
        lambda: on()[1.5:],
        errors.BadSliceError,
        "the slice slice(1.5, None, None) has the bound 1.5 of type float: bounds and step of a "
        "slice must be integers or None; convert them with int()",
    ),
    Case(
        "slice with step 0",
        lambda: on()[::0],
        errors.BadSliceError,
        "the slice slice(None, None, 0) has step 0, with which it never ends: give it a step of 1"
        " or more, or of -1 or less",
    ),
    # Traced
    Case(
        "slice with a traced bound",
        lambda: traced(lambda m, k: m[k:]),
        errors.TracedIndexError,
        "the slice slice(JitTracer(~int32[]), None, None) has a traced bound, and the bounds of a"
        " slice decide a shape: use mu.ds(start, size), whose start may be traced",
    ),
    Case(
        "read by a traced mask",
        lambda: traced(lambda m, k: m[m[...] > k]),
        errors.TracedIndexError,
        "a read by a mask that is traced has a shape that is not known when the program is "
        "compiled: use jnp.where(mask, m[...], fill), or compute the mask outside of jit",
    ),
    Case(
        "traced mask and index array",
        lambda: traced(lambda m, k: set_to(m, (m[:, 0] > k, [0]), 1.0)),
        errors.TracedIndexError,
        "a traced mask cannot be combined with index arrays or a second mask: combine the masks "
        "with &, or write jnp.where(mask, value, m[idx]) to m[idx]",
    ),
    Case(
        "index array and traced mask",
        lambda: traced(lambda m, k: set_to(m, ([0], m[0] > k), 1.0)),
        errors.TracedIndexError,
        "a traced mask cannot be combined with index arrays or a second mask: combine the masks "
        "with &, or write jnp.where(mask, value, m[idx]) to m[idx]",
    ),
    Case(
        "traced mask of place",
        lambda: traced(lambda m, k: np.place(m, m[...] > k, [1, 2])),
        errors.TracedIndexError,
        "np.place with a traced mask and 2 values: which value goes where is not known when the "
        "program is compiled; pass one value, or use np.putmask",
    ),
    # Windows
    Case(
        "window that is too long",
        lambda: on()[:, mu.ds(0, 9)],
        errors.BadWindowError,
        "a window of size 9 and stride 1 does not fit into axis 1 of length 8: it spans 9 "
        "positions; allowed are 0 to 8, at a stride of 1 or more",
    ),
    Case(
        "window with step 0 of JAX's",
        lambda: on()[_jaxapi.Slice(0, 2, 0)],
        errors.BadWindowError,
        "a window of size 2 and stride 0 does not fit into axis 0 of length 8: it spans 1 "
        "positions; allowed are 0 to 8, at a stride of 1 or more",
    ),
    Case(
        "window of negative size",
        lambda: mu.ds(0, -1),
        errors.BadWindowError,
        "size=-1 of a window must be a Python integer of at least 0: it decides a shape, so it "
        "cannot be traced",
    ),
    Case(
        "window with stride 0",
        lambda: mu.ds(0, 2, 0),
        errors.BadWindowError,
        "stride=0 of a window must be a Python integer of at least 1: it decides a shape, so it "
        "cannot be traced",
    ),
    Case(
        "window with a traced size",
        lambda: traced(lambda m, k: m[mu.ds(0, k)]),
        errors.BadWindowError,
        "size=JitTracer(~int32[]) of a window must be a Python integer of at least 0: it decides "
        "a shape, so it cannot be traced",
    ),
    Case(
        "window of JAX's with a traced size",
        lambda: traced(lambda m, k: m[_jaxapi.Slice(0, k)]),
        errors.BadWindowError,
        "the size of a window is traced, and it decides a shape: pass a Python integer, which is "
        "known when the program is compiled",
    ),
    Case(
        "window with a start that is no integer",
        lambda: on()[mu.ds(1.5, 2)],
        errors.BadWindowError,
        "the start 1.5 of a window has type float: it must be an integer or a traced integer; "
        "convert it with int()",
    ),
    Case(
        "window with a traced start that is no integer",
        lambda: traced(lambda m, k: m[mu.ds(k, 2)], on(), 1.5),
        errors.BadWindowError,
        "the start of a window is traced, and has dtype float32 and shape (): it must be one "
        "integer, of shape (); cast it with .astype(int), or take one element",
    ),
    # Shapes of values
    Case(
        "value",
        lambda: set_to(on(), 0, np.ones(3)),
        errors.BroadcastError,
        "could not broadcast input array from shape (3,) into shape (8,): the latter is the shape"
        " of what is written; pass a value of that shape, or one that broadcasts to it",
    ),
    Case(
        "value in place",
        lambda: on().__iadd__(np.ones(3)),
        errors.BroadcastError,
        "could not broadcast input array from shape (3,) into shape (8, 8): the latter is the "
        "shape of what is written; pass a value of that shape, or one that broadcasts to it",
    ),
    Case(
        "value for a traced mask",
        lambda: traced(lambda m, k: set_to(m, m[...] > k, np.ones(3))),
        errors.BroadcastError,
        "could not broadcast input array from shape (3,) into shape (1,): a traced mask selects a"
        " number of elements that is not known when the program is compiled, so the value must "
        "have length 1 there; to give each element of the array a value of its own, write m[...] "
        "= jnp.where(mask, values, m[...])",
    ),
    Case(
        "product of another shape",
        lambda: on().__imatmul__(np.ones((8, 2))),
        errors.BroadcastError,
        "m @= x gives shape (8, 2) for m of shape (8, 8) and x of shape (8, 2), and the array "
        "keeps its shape: write m @ x for a new array",
    ),
    Case(
        "value with more axes for +=",
        lambda: on().__iadd__(np.ones((1, 8, 8))),
        errors.BroadcastError,
        "could not broadcast input array from shape (1, 8, 8) into shape (8, 8): an in-place "
        "operation adds no axes; take axes off the value, for example value[0]",
    ),
    Case(
        "result for out=",
        lambda: np.add(np.ones((2, 3)), 1, out=mu.zeros(3)),
        errors.BroadcastError,
        "out= has shape (3,), and the result has shape (2, 3): pass an array that the result "
        "broadcasts to",
    ),
    Case(
        "mask of putmask",
        lambda: np.putmask(on(), [True], 1.0),
        errors.BroadcastError,
        "the mask has shape (1,), and the array has shape (8, 8): they must have the same number "
        "of elements",
    ),
    Case(
        "no values for place",
        lambda: np.place(on(), np.ones((8, 8), bool), []),
        errors.BroadcastError,
        "np.place got no values for 64 positions: pass at least one value",
    ),
    # Casts
    Case(
        "float to int",
        lambda: set_to(on(dtype=int), 0, 1.5),
        errors.CastError,
        "cannot write the Python float 1.5 into an array of dtype int32 under NumPy's same_kind "
        "rule: if the loss is meant, say so with jnp.asarray(1.5).astype('int32')",
    ),
    Case(
        "array of floats to int",
        lambda: set_to(on(dtype=int), 0, np.float32(1.5)),
        errors.CastError,
        "cannot write a value of dtype float32 into an array of dtype int32 under NumPy's "
        "same_kind rule: if the loss is meant, say so with value.astype('int32')",
    ),
    Case(
        "result of an operator",
        lambda: on(dtype=int).__itruediv__(2),
        errors.CastError,
        "cannot write a result of dtype float32 into an array of dtype int32 under NumPy's "
        "same_kind rule: if the loss is meant, say so with result.astype('int32')",
    ),
    Case(
        "result of a function",
        lambda: on(dtype=int).apply_at(jnp.sin, 0),
        errors.CastError,
        "cannot write a result of dtype float32 into an array of dtype int32 under NumPy's "
        "same_kind rule: if the loss is meant, say so with result.astype('int32')",
    ),
    Case(
        "product of floats",
        lambda: on(dtype=int).__imatmul__(np.ones((8, 8))),
        errors.CastError,
        "cannot write a result of dtype float32 into an array of dtype int32 under NumPy's "
        "same_kind rule: if the loss is meant, say so with result.astype('int32')",
    ),
    Case(
        "keys to numbers",
        lambda: set_to(on(), 0, jax.random.key(0)),
        errors.CastError,
        "cannot write a value of dtype key<fry> into an array of dtype float32 under NumPy's "
        "same_kind rule: PRNG keys are no numbers; their bits are, jax.random.key_data(keys)",
    ),
    Case(
        "numbers to keys",
        lambda: set_to(keys(), 0, 1.5),
        errors.CastError,
        "cannot write the Python float 1.5 into an array of dtype key<fry> under NumPy's "
        "same_kind rule: write PRNG keys of this dtype, as jax.random.key and jax.random.split "
        "make them",
    ),
    Case(
        "sum of keys",
        lambda: keys().add_at(0, jax.random.key(0)),
        errors.CastError,
        "PRNG keys cannot be accumulated: write them with m[idx] = keys",
    ),
    Case(
        "function of keys",
        lambda: keys().apply_at(jnp.sin, 0),
        errors.CastError,
        "PRNG keys are no numbers that a function applies to: write m[idx] = keys",
    ),
    Case(
        "positions that are no integers",
        lambda: on().put([0.5], 1.0),
        errors.CastError,
        "positions must be integers, and these have dtype float64: cast them with .astype(int); "
        "for a mask use m[mask] = values",
    ),
    Case(
        "casting=",
        lambda: np.copyto(on(), np.ones(8), casting="no"),
        errors.CastError,
        "cannot write values of dtype float64 into an array of dtype float32 under casting='no': "
        "cast them with .astype('float32') first, or pass casting='unsafe'",
    ),
    Case(
        "assign, cast",
        lambda: mu.assign([on(dtype=int)], [np.full((8, 8), 1.5)]),
        errors.CastError,
        "[0]: cannot write a value of dtype float64 into an array of dtype int32 under NumPy's "
        "same_kind rule: if the loss is meant, say so with value.astype('int32')",
    ),
    Case(
        "map_inplace, cast",
        lambda: mu.map_inplace(jnp.sin, [on(dtype=int)]),
        errors.CastError,
        "[0]: cannot write a value of dtype float32 into an array of dtype int32 under NumPy's "
        "same_kind rule: if the loss is meant, say so with value.astype('int32')",
    ),
    Case(
        "integer out of range",
        lambda: set_to(on(dtype="int8"), 0, 300),
        OverflowError,
        "the Python int 300 is out of bounds for int8, which holds -128 to 127: pass a value in "
        "this range",
    ),
    Case(
        "assign, integer out of range",
        lambda: mu.assign({"n": mu.zeros((), "int8")}, {"n": 300}),
        OverflowError,
        "['n']: the Python int 300 is out of bounds for int8, which holds -128 to 127: pass a "
        "value in this range",
    ),
    Case(
        "integer out of range for +=",
        lambda: on(dtype="int8").__iadd__(300),
        OverflowError,
        "the Python int 300 is out of bounds for int8, which holds -128 to 127: pass a value "
        "in this range",
    ),
    # Modes
    Case(
        "mode",
        lambda: mu.get(on(), 0, mode="wrap"),
        errors.BadModeError,
        "mode='wrap' is unknown: pass one of 'clip', 'drop', 'fill'",
    ),
    Case(
        "mode of put",
        lambda: on().put(0, 1.0, mode="drop"),
        errors.BadModeError,
        "mode='drop' must be 'raise', 'wrap' or 'clip'",
    ),
    # Values
    Case(
        "text as a value",
        lambda: set_to(on(), 0, "text"),
        errors.BadValueError,
        "'text' of type str holds no numbers that JAX knows: pass a number, a jax.Array, a NumPy "
        "array of numbers, or a sequence of numbers whose parts are equally long",
    ),
    Case(
        "ragged list as a value",
        lambda: set_to(on(), 0, [[1], [2, 3]]),
        errors.BadValueError,
        "[[1], [2, 3]] of type list holds no numbers that JAX knows: pass a number, a jax.Array, "
        "a NumPy array of numbers, or a sequence of numbers whose parts are equally long",
    ),
    Case(
        "long value",
        lambda: set_to(on(), 0, ["text"] * 1000),
        errors.BadValueError,
        "['text', 'text', 'text', 'text', 'text', 'text', 'text', 'text', 'text', 'text', 'text', "
        "'text', 'text', 'text', 'text', 'text', 'text', 'text', 'text', 'tex... of type list "
        "holds no numbers that JAX knows: pass a number, a jax.Array, a NumPy array of numbers, or "
        "a sequence of numbers whose parts are equally long",
    ),
    Case(
        "fill value with axes",
        lambda: mu.full(2, [1, 2]),
        errors.BadValueError,
        "fill_value has shape (2,), and must be a scalar: for an array of values use "
        "mutarray.mutable_array(values, sharding)",
    ),
    Case(
        "shape",
        lambda: mu.zeros("ab"),
        errors.BadValueError,
        "shape='ab' of type str is no shape: pass an integer or a tuple of integers",
    ),
    Case(
        "function that is not elementwise",
        lambda: on().apply_at(lambda x: x.sum(), 0),
        errors.BadValueError,
        "apply_at got a function that gives shape () for elements of shape (2, 3): it must be "
        "elementwise, and give one array of the shape that it gets",
    ),
    Case(
        "function that gives no array",
        lambda: on().apply_at(lambda x: (x, x), 0),
        errors.BadValueError,
        "apply_at got a function that gives a tuple for elements of shape (2, 3): it must be "
        "elementwise, and give one array of the shape that it gets",
    ),
    Case(
        "functional with a NumPy array",
        lambda: mu.functional.get(np.zeros(3), 0),
        errors.BadValueError,
        "mutarray.functional works on a jax.Array, got ndarray: convert it with jnp.asarray, or "
        "for a MutableArray use m[idx] and m[idx] = value",
    ),
    Case(
        "function that is none, jit",
        lambda: mu.jit(3),
        errors.BadValueError,
        "mutarray.jit takes a function, and got 3 of type int: pass something that can be called",
    ),
    Case(
        "function that is none, map_inplace",
        lambda: mu.map_inplace(on(), [on()]),
        errors.BadValueError,
        "mutarray.map_inplace takes a function, and got MutableArray(float32[8, 8], P('i', "
        "'j') on Mesh('i': 4, 'j': 2), device, values=[0.0, 0.0, 0.0, ..., 0.0, 0.0, 0.0]) of "
        "type MutableArray: pass something that can be called",
    ),
    Case(
        "static_argnums that are no numbers",
        lambda: mu.jit(set_to, static_argnums=[0, "m"]),
        errors.BadValueError,
        "static_argnums=[0, 'm'] holds 'm' of type str: pass an integer, or a sequence of such",
    ),
    Case(
        "static_argnames that are no names",
        lambda: mu.jit(set_to, static_argnames=1),
        errors.BadValueError,
        "static_argnames=1 holds 1 of type int: pass a name, or a sequence of such",
    ),
    Case(
        "static_argnums out of range",
        lambda: mu.jit(set_to, static_argnums=3),
        errors.BadValueError,
        "static_argnums=3, and set_to has 3 parameters: allowed are -3 to 2",
    ),
    Case(
        "donate_argnums out of range",
        lambda: mu.jit(set_to, donate_argnums=(0, -4)),
        errors.BadValueError,
        "donate_argnums=-4, and set_to has 3 parameters: allowed are -3 to 2",
    ),
    Case(
        "static_argnums without parameters",
        lambda: mu.jit(on_no_mesh, static_argnums=0),
        errors.BadValueError,
        "static_argnums=0, and on_no_mesh has 0 parameters: pass none",
    ),
    Case(
        "static_argnames unknown",
        lambda: mu.jit(set_to, static_argnames="k"),
        errors.BadValueError,
        "static_argnames='k', and set_to has the parameters ['m', 'index', 'value']: name one "
        "of these, or none",
    ),
    Case(
        "static argument, unhashable",
        lambda: mu.jit(set_to, static_argnums=1)(on(), [0], 1.0),
        errors.BadValueError,
        "the static argument 1 is of type list, which cannot be hashed: pass something that "
        "can (a tuple for a list, a frozen dataclass), or do not make the argument static",
    ),
    Case(
        "static argument by name, unhashable",
        lambda: mu.jit(set_to, static_argnums=2)(on(), 0, value=[1.0]),
        errors.BadValueError,
        "the static argument 'value' is of type list, which cannot be hashed: pass something "
        "that can (a tuple for a list, a frozen dataclass), or do not make the argument static",
    ),
    Case(
        "argument that is no array",
        lambda: mu.jit(set_to)(on(), 0, {"a": [1.0, "text"]}),
        errors.BadValueError,
        "argument [2]['a'][1] is of type str, which is no array: pass numbers, arrays and "
        "trees of them (a dataclass is one where it is decorated with "
        "@jax.tree_util.register_dataclass), or name the argument in static_argnums or "
        "static_argnames",
    ),
    Case(
        "keyword argument that is no array",
        lambda: mu.jit(set_to)(on(), 0, value=Unknown(1.0)),
        errors.BadValueError,
        "keyword argument ['value'] is of type Unknown, which is no array: pass numbers, "
        "arrays and trees of them (a dataclass is one where it is decorated with "
        "@jax.tree_util.register_dataclass), or name the argument in static_argnums or "
        "static_argnames",
    ),
    Case(
        "compiled for another structure",
        lambda: compiled(on(), (0,)),
        errors.BadValueError,
        "this function was compiled for arguments of another structure or with other "
        "shardings: it takes PyTreeDef(((*, *), {})) with (Home(shape=(8, 8), "
        "sharding=NamedSharding(mesh=Mesh('i': 4, 'j': 2, axis_types=(Auto, Auto)), "
        "spec=P('i', 'j'), memory_kind=device)),), and got PyTreeDef(((*, (*,)), {})) with "
        "(Home(shape=(8, 8), sharding=NamedSharding(mesh=Mesh('i': 4, 'j': 2, "
        "axis_types=(Auto, Auto)), spec=P('i', 'j'), memory_kind=device)),): lower and compile "
        "it for these too, or call the function itself",
    ),
    Case(
        "compiled for another sharding",
        lambda: compiled(mu.zeros(3), 0),
        errors.BadValueError,
        "this function was compiled for arguments of another structure or with other "
        "shardings: it takes PyTreeDef(((*, *), {})) with (Home(shape=(8, 8), "
        "sharding=NamedSharding(mesh=Mesh('i': 4, 'j': 2, axis_types=(Auto, Auto)), "
        "spec=P('i', 'j'), memory_kind=device)),), and got PyTreeDef(((*, *), {})) with "
        "(Home(shape=(3,), sharding=SingleDeviceSharding(device=CpuDevice(id=0), "
        "memory_kind=device)),): lower and compile it for these too, or call the function "
        "itself",
    ),
    Case(
        "dataclass that JAX does not know",
        lambda: mu.values({"a": Unknown(on())}),
        errors.BadValueError,
        "['a'] is a Unknown, which JAX does not know as a tree, so the arrays in it would be "
        "passed over: decorate it with @jax.tree_util.register_dataclass",
    ),
    Case(
        "dataclass that JAX does not know, alone",
        lambda: within_a_transaction(Unknown(on())),
        errors.BadValueError,
        "the tree itself is a Unknown, which JAX does not know as a tree, so the arrays in it "
        "would be passed over: decorate it with @jax.tree_util.register_dataclass",
    ),
    Case(
        "assign, leaves that lack",
        lambda: mu.assign({"a": on(), "b": on()}, {"a": np.ones((8, 8))}),
        errors.BadValueError,
        "the new tree has another structure: it lacks ['b']: give it that of the tree that is "
        "written to",
    ),
    Case(
        "assign, leaves in excess",
        lambda: mu.assign([on()], 5 * [1.0]),
        errors.BadValueError,
        "the new tree has another structure: it has [1], [2], [3], 1 more in excess: give it "
        "that of the tree that is written to",
    ),
    Case(
        "assign, nodes of another kind",
        lambda: mu.assign([on()], (1.0,)),
        errors.BadValueError,
        "the new tree has another structure: it is PyTreeDef((*,)) instead of PyTreeDef([*]): "
        "give it that of the tree that is written to",
    ),
    Case(
        "assign, leaf that is no array",
        lambda: mu.assign({"m": on(), "n": 3}, {"m": np.ones((8, 8)), "n": 4}),
        errors.BadValueError,
        "['n'] is 3 in the tree and 4 in the new one, and only mutable arrays can be assigned "
        "to: give the same in both, or make it mutable",
    ),
    Case(
        "assign, value",
        lambda: mu.assign({"m": on()}, {"m": "text"}),
        errors.BadValueError,
        "['m']: 'text' of type str holds no numbers that JAX knows: pass a number, a "
        "jax.Array, a NumPy array of numbers, or a sequence of numbers whose parts are equally "
        "long",
    ),
    Case(
        "map_inplace, structure",
        lambda: mu.map_inplace(jnp.add, {"a": on()}, {"b": on()}),
        errors.BadValueError,
        "the new tree has another structure: it lacks ['a'] and has ['b'] in excess: give it "
        "that of the tree that is written to",
    ),
    Case(
        "map_inplace, value",
        lambda: mu.map_inplace(jnp.add, {"a": on()}, {"a": "text"}),
        errors.BadValueError,
        "['a']: 'text' of type str holds no numbers that JAX knows: pass a number, a "
        "jax.Array, a NumPy array of numbers, or a sequence of numbers whose parts are equally "
        "long",
    ),
    Case(
        "map_inplace, result",
        lambda: mu.map_inplace(lambda x: None, {"a": on()}),
        errors.BadValueError,
        "['a']: None of type NoneType holds no numbers that JAX knows: pass a number, a "
        "jax.Array, a NumPy array of numbers, or a sequence of numbers whose parts are equally "
        "long",
    ),
    Case(
        "map_inplace, unhashable",
        lambda: mu.map_inplace(Unhashable(), {"a": on()}),
        errors.BadValueError,
        "the static argument 0 is of type Unhashable, which cannot be hashed: pass something "
        "that can (a tuple for a list, a frozen dataclass), or do not make the argument static",
    ),
    # Shardings
    Case(
        "bare spec",
        lambda: mu.zeros(8, sharding=P("i")),
        errors.BadShardingError,
        "sharding=P('i',) is a P, not a jax.sharding.Sharding: pass NamedSharding(mesh, P(...)) "
        "or another array's .sharding",
    ),
    Case(
        "spec that is too long",
        lambda: on((8,)),
        errors.BadShardingError,
        "the spec P('i', 'j') names 2 dimensions, and the array of shape (8,) has 1: give at most"
        " one entry for each axis",
    ),
    Case(
        "unconstrained",
        lambda: on((8,), spec=P(P.UNCONSTRAINED)),
        errors.BadShardingError,
        "the spec P(UNCONSTRAINED,) leaves axis 0 unconstrained, and a mutable array's sharding "
        "is fixed: name the mesh axes or None",
    ),
    Case(
        "abstract mesh",
        lambda: mu.zeros(8, sharding=NamedSharding(mesh((4, 2), "ij").abstract_mesh, P("i"))),
        errors.BadShardingError,
        "sharding= with the spec P('i',) is on an AbstractMesh, which has no devices: pass "
        "NamedSharding(mesh, P(...)) with a jax.sharding.Mesh",
    ),
    Case(
        "out_sharding= without a mesh",
        lambda: mu.get(mu.zeros(4), 0, out_sharding=P("i")),
        errors.BadShardingError,
        "out_sharding=P('i',) is a bare spec, and the array lives on no mesh "
        "(SingleDeviceSharding(device=CpuDevice(id=0), memory_kind=device)): pass "
        "NamedSharding(mesh, P('i',))",
    ),
    Case(
        "out_sharding= without a mesh, traced",
        lambda: traced(lambda x: mu.get(mu.mutable_array(x), 0, out_sharding=P("i")), np.ones(4)),
        errors.BadShardingError,
        "out_sharding=P('i',) is a bare spec, and the array lives on no mesh (none is known in "
        "this trace): pass NamedSharding(mesh, P('i',))",
    ),
    Case(
        "out_sharding= in a trace",
        lambda: traced(lambda m, k: mu.get(m, k, out_sharding=one_device())),
        errors.BadShardingError,
        "out_sharding=SingleDeviceSharding(device=CpuDevice(id=0), memory_kind=device) inside of "
        "a trace must be a NamedSharding or a PartitionSpec",
    ),
    Case(
        "pickle of a strange sharding",
        lambda: pickle.dumps(on_no_mesh()),
        errors.BadShardingError,
        "a GSPMDSharding cannot be pickled: give the array a NamedSharding, or pickle "
        "np.asarray(m)",
    ),
    Case(
        "pickle of many processes",
        lambda: _pickled.dump(of_other_processes()),
        errors.BadShardingError,
        "namespace(is_fully_addressable=False) has devices of other processes, whose values "
        "cannot be pickled here: pickle the blocks of each process, m.addressable_shards",
    ),
    Case(
        "pickle from more devices",
        lambda: _pickled.load(pickled_on("cpu", 4)),
        errors.BadShardingError,
        "this mutable array was pickled on 8 cpu devices, and this process has 8: there is no cpu"
        " device number 8. Start it with as many devices, or pickle np.asarray(m) and make the "
        "array anew",
    ),
    Case(
        "pickle from another platform",
        lambda: _pickled.load(pickled_on("tpu", 0)),
        errors.BadShardingError,
        "this mutable array was pickled on 8 tpu devices, and this process has 0: there is no tpu"
        " device number 0. Start it with as many devices, or pickle np.asarray(m) and make the "
        "array anew",
    ),
    Case(
        "reshard, bare spec",
        lambda: on().reshard(P("i")),
        errors.BadShardingError,
        "sharding=P('i',) is a P, not a jax.sharding.Sharding: pass NamedSharding(mesh, "
        "P(...)) or another array's .sharding",
    ),
    Case(
        "mutable, bare spec",
        lambda: mu.mutable({"a": np.ones(8)}, {"a": P("i")}),
        errors.BadShardingError,
        "['a']: sharding=P('i',) is a P, not a jax.sharding.Sharding: pass NamedSharding(mesh, "
        "P(...)) or another array's .sharding",
    ),
    Case(
        "mutable, shardings of another structure",
        lambda: mu.mutable({"a": np.ones(8)}, {"b": rows()}),
        errors.BadShardingError,
        "shardings is PyTreeDef({'b': *}), and the tree is PyTreeDef({'a': *}): pass one "
        "sharding for all, or a tree like it whose leaves are shardings or None",
    ),
    Case(
        "out_shardings of another structure",
        lambda: mu.jit(lambda m: m[0], out_shardings=(rows(),))(on()),
        errors.BadShardingError,
        "out_shardings is PyTreeDef((*,)), and the result is PyTreeDef(*): pass one sharding "
        "for all, or a tree like the result's whose leaves are shardings or None",
    ),
    Case(
        "out_shardings for an argument",
        lambda: mu.jit(lambda m: m, out_shardings=rows())(on()),
        errors.BadShardingError,
        "out_shardings names NamedSharding(mesh=Mesh('i': 4, 'j': 2, axis_types=(Auto, Auto)), "
        "spec=P('i',), memory_kind=device) for a mutable array that is not made inside and "
        "lies on NamedSharding(mesh=Mesh('i': 4, 'j': 2, axis_types=(Auto, Auto)), spec=P('i', "
        "'j'), memory_kind=device): leave its place None, or use m.reshard",
    ),
    Case(
        "argument on other devices",
        lambda: mu.jit(lambda m, *, x: m[0] + x)(on(), x=jax.device_put(1.0, jax.devices()[3])),
        errors.BadShardingError,
        "keyword argument ['x'] lies on 1 devices, SingleDeviceSharding(device=CpuDevice(id=3), "
        "memory_kind=device), and the mutable array made at HERE on others, NamedSharding("
        "mesh=Mesh('i': 4, 'j': 2, axis_types=(Auto, Auto)), spec=P('i', 'j'), "
        "memory_kind=device): bring it there, jax.device_put(x, NamedSharding(mesh, P()))",
    ),
    Case(
        "arrays on different devices",
        lambda: mu.jit(twice)(on(), mu.zeros(8)),
        errors.BadShardingError,
        "the mutable arrays of one call lie on different devices: that made at HERE on 8, "
        "NamedSharding(mesh=Mesh('i': 4, 'j': 2, axis_types=(Auto, Auto)), spec=P('i', 'j'), "
        "memory_kind=device), and that made at HERE on 1, "
        "SingleDeviceSharding(device=CpuDevice(id=0), memory_kind=device): make both on one "
        "mesh, the small one with sharding=NamedSharding(mesh, P())",
    ),
    Case(
        "uneven split",
        lambda: on((7, 8)),
        errors.IndivisibleError,
        "axis 0 of shape (7, 8) has size 7, which mesh axes ('i',) split 4 ways, and 4 does not "
        "divide 7: make it 4 or 8 long, or leave axis 0 whole, with None in the spec",
    ),
    Case(
        "uneven split, short axis",
        lambda: on((3, 8)),
        errors.IndivisibleError,
        "axis 0 of shape (3, 8) has size 3, which mesh axes ('i',) split 4 ways, and 4 does not "
        "divide 3: make it 4 long, or leave axis 0 whole, with None in the spec",
    ),
    Case(
        "uneven split into many",
        lambda: on((8, 12), spec=P(None, ("i", "j"))),
        errors.IndivisibleError,
        "axis 1 of shape (8, 12) has size 12, which mesh axes ('i', 'j') split 8 ways, and 8 does"
        " not divide 12: make it 8 or 16 long, or leave axis 1 whole, with None in the spec",
    ),
    Case(
        "uneven split without a mesh",
        lambda: mu.zeros((7, 8), sharding=without_a_mesh()),
        errors.IndivisibleError,
        "an array of shape (7, 8) does not split evenly under GSPMDSharding({devices=[4,2]<=[8]},"
        " memory_kind=device): Sharding GSPMDSharding({devices=[4,2]<=[8]}, memory_kind=device) "
        "implies that array axis 0 is partitioned 4 times, but the dimension size is 7 (full "
        "shape: (7, 8), per-dimension tiling factors: [4, 2] should evenly divide the shape); "
        "give it lengths that the numbers of parts divide, or a sharding that leaves the axis "
        "whole",
    ),
    Case(
        "mutable, uneven split",
        lambda: mu.mutable({"a": np.ones((8, 8)), "b": [np.ones(7)]}, rows()),
        errors.IndivisibleError,
        "['b'][0]: axis 0 of shape (7,) has size 7, which mesh axes ('i',) split 4 ways, and 4 "
        "does not divide 7: make it 4 or 8 long, or leave axis 0 whole, with None in the spec",
    ),
    # Use
    Case(
        "not mutable",
        lambda: mu.get(np.zeros(3), 0),
        errors.NotMutableError,
        "expected a MutableArray, got ndarray: make it one with mutarray.mutable_array(x)",
    ),
    Case(
        "mapped over",
        lambda: jax.tree.map(lambda x: 1.0, on())[0],
        errors.NotMutableError,
        "this MutableArray was rebuilt by a tree transformation around something of type float "
        "instead of its Ref, and can only be taken apart again: read it before, m[...], or pass "
        "is_leaf=lambda x: isinstance(x, mutarray.MutableArray) to the transformation",
    ),
    Case(
        "assign to what is not mutable",
        lambda: mu.assign({"x": np.zeros(2)}, {"x": np.ones(2)}),
        errors.NotMutableError,
        "['x'] is of type ndarray, which cannot be written in place: make the tree mutable "
        "with mutarray.mutable(tree)",
    ),
    Case(
        "freeze of what is not mutable",
        lambda: mu.freeze({"x": np.zeros(2)}),
        errors.NotMutableError,
        "expected a MutableArray, got ndarray: make it one with mutarray.mutable_array(x)",
    ),
    Case(
        "transaction of nothing",
        within_a_transaction,
        errors.NotMutableError,
        "mutarray.transaction got no mutable array (nothing), and would take nothing back: "
        "pass the arrays that the block writes, or trees that hold them",
    ),
    Case(
        "transaction of what is not mutable",
        lambda: within_a_transaction({"x": np.zeros(2), "n": 3}),
        errors.NotMutableError,
        "mutarray.transaction got no mutable array (int, ndarray), and would take nothing "
        "back: pass the arrays that the block writes, or trees that hold them",
    ),
    Case(
        "call of the class",
        lambda: mu.MutableArray(np.zeros(3)),
        TypeError,
        "MutableArray is not made by calling it: use mutarray.mutable_array(x), or "
        "mutarray.zeros, ones, full, empty, from_callback",
    ),
    Case(
        ".at",
        lambda: on().at,
        errors.NoAtError,
        "a mutable array has no .at: write in place, m[idx] = v or mutarray.addupdate(m, idx, v);"
        " for a changed copy that leaves m alone, use m[...].at[idx].set(v)",
    ),
    Case(
        "frozen",
        lambda: frozen(on())[0],
        errors.SpentError,
        "this mutable array of shape (8, 8) was frozen, and its buffers belong to the array that "
        "mu.freeze returned: use that, or make it mutable again with mu.mutable_array",
    ),
    Case(
        "lost",
        lambda: lost()[0],
        errors.SpentError,
        "this mutable array's buffers were donated to a call that did not finish, and its "
        "contents are lost: make it anew from a checkpoint or a snapshot",
    ),
    Case(
        "frozen in a trace, shape",
        lambda: traced(lambda m, k: frozen(m).shape),
        errors.SpentError,
        "this mutable array of shape (8, 8) was frozen, and its buffers belong to the array that "
        "mu.freeze returned: use that, or make it mutable again with mu.mutable_array",
    ),
    Case(
        "frozen argument in a trace, read",
        lambda: traced(lambda m, k: frozen(m)._cell.traced_value()),
        errors.SpentError,
        "this mutable array of shape (8, 8) was frozen, and its buffers belong to the array that "
        "mu.freeze returned: use that, or make it mutable again with mu.mutable_array",
    ),
    Case(
        "frozen argument in a trace, slices",
        lambda: traced(lambda m, k: frozen(m)._cell._ref.__setitem__(0, 1.0)),
        errors.SpentError,
        "this mutable array of shape (8, 8) was frozen, and its buffers belong to the array that "
        "mu.freeze returned: use that, or make it mutable again with mu.mutable_array",
    ),
    Case(
        "frozen in a trace, read",
        lambda: traced(lambda x: frozen(mu.mutable_array(x))[0], np.ones(4)),
        errors.SpentError,
        "this mutable array of shape (4,) was frozen, and its buffers belong to the array that "
        "mu.freeze returned: use that, or make it mutable again with mu.mutable_array",
    ),
    Case(
        "frozen in a trace, written",
        lambda: traced(lambda x: set_to(frozen(mu.mutable_array(x)), ..., 1.0), np.ones(4)),
        errors.SpentError,
        "this mutable array of shape (4,) was frozen, and its buffers belong to the array that "
        "mu.freeze returned: use that, or make it mutable again with mu.mutable_array",
    ),
    Case(
        "condition of a loop",
        lambda: traced(in_the_condition, on()),
        errors.TraceError,
        "a mutable array from outside is used in the condition of a lax.while_loop, where it "
        "would have its contents from before the loop for ever: use it in the body, and carry "
        "what the condition needs",
    ),
    Case(
        "body of a shard_map",
        lambda: in_a_body(on()),
        errors.TraceError,
        "a mutable array from outside is used inside of a shard_map body: pass it in as an "
        "argument, with the spec of its sharding in in_specs; the body then gets its own block",
    ),
    Case(
        "no Refs",
        lambda: in_a_body_of_its_own(on()),
        errors.TraceError,
        "the mutable array made at HERE is used in an inner function (a loop body, a nested jit),"
        " and the trace that it was made in has no Refs: put a jax.jit around the outermost "
        "transformation, for example jax.jit(jax.shard_map(...))",
    ),
    Case(
        "pickle in a trace",
        lambda: traced(lambda m, k: pickle.dumps(m)),
        errors.TraceError,
        "a mutable array has no values to pickle inside a trace: pickle it outside of jit",
    ),
    Case(
        "from_callback in a trace",
        lambda: traced(lambda m, k: mu.from_callback((8, 8), m.sharding, np.zeros)),
        errors.TraceError,
        "from_callback runs a function on the host, and is called inside of a trace: call it "
        "before, and pass the array in",
    ),
    Case(
        "passed and closed over",
        passed_and_closed_over,
        errors.TraceError,
        "the mutable array made at HERE is both passed to the function and closed over: use "
        "the argument alone, or do not pass it",
    ),
    Case(
        "kept after the call",
        lambda: kept()[0],
        errors.TraceError,
        "the mutable array made at HERE was kept while a mutarray.jit function was traced, and "
        "is used after that, when what was kept stands for nothing: use the array that was "
        "passed to the function, or return it from there",
    ),
    Case(
        "kept and passed",
        lambda: mu.jit(twice)(on(), kept_of_plain_jit()),
        errors.TraceError,
        "a mutable array of shape (8, 8) that belongs to a trace is used outside of it: use "
        "the array that was passed to the function, or return the values, m[...]",
    ),
    Case(
        "frozen in a trace, from outside",
        frozen_in_a_trace,
        errors.TraceError,
        "the mutable array made at HERE is from outside of the function that is being traced, "
        "and cannot be frozen there: freeze it outside, or read it, m[...]",
    ),
    Case(
        "reshard in a trace",
        lambda: traced(lambda m, k: m.reshard(rows())),
        errors.TraceError,
        "m.reshard(NamedSharding(mesh=Mesh('i': 4, 'j': 2, axis_types=(Auto, Auto)), "
        "spec=P('i',), memory_kind=device)) inside of a trace: a compiled program cannot move "
        "its arguments. Reshard before the call; or make an array inside that lies elsewhere, "
        "with mutarray.mutable_array(m[...], sharding)",
    ),
    Case(
        "layout in a trace",
        lambda: traced(lambda x: mu.mutable_array(x).layout(), np.ones((8, 8), np.float32)),
        errors.TraceError,
        "inside this trace it is not known on which devices the array float32[8, 8] lies: it "
        "was made there without sharding=, or is the part that a vmap or a shard_map body "
        "sees. Give sharding= where it is made, or ask outside of the trace",
    ),
    Case(
        "donation of a NumPy array",
        lambda: mu.mutable_array(np.zeros(3), donate=True),
        errors.DonationError,
        "donate=True takes over buffers as they are, and ndarray is no concrete jax.Array: leave "
        "donate out, and the contents are copied",
    ),
    Case(
        "donation of a deleted array",
        lambda: mu.mutable_array(deleted(), donate=True),
        errors.DonationError,
        "donate=True takes over buffers as they are, and the array has been deleted already: "
        "leave donate out, and the contents are copied",
    ),
    Case(
        "donation to another sharding",
        lambda: mu.mutable_array(jnp.zeros(8), on((8,), spec=P("i")).sharding, donate=True),
        errors.DonationError,
        "donate=True takes over buffers as they are, and its sharding "
        "SingleDeviceSharding(device=CpuDevice(id=0), memory_kind=device) is not the one asked "
        "for, NamedSharding(mesh=Mesh('i': 4, 'j': 2, axis_types=(Auto, Auto)), spec=P('i',), "
        "memory_kind=device): leave donate out, and the contents are copied",
    ),
    # Shapes
    Case(
        "resize",
        lambda: on().resize(16, 4),
        errors.ShapeError,
        "a mutable array of shape (8, 8) cannot be resized to (16, 4): its sharding was made for "
        "its shape. Make a new one: mutarray.mutable_array(jnp.resize(m[...], shape), sharding)",
    ),
    Case(
        "negative length",
        lambda: mu.zeros((2, -3)),
        errors.ShapeError,
        "shape=(2, -3) has the negative length -3 for axis 1: lengths are 0 or more",
    ),
    Case(
        "diagonal of a vector",
        lambda: np.fill_diagonal(mu.zeros(3), 1.0),
        errors.ShapeError,
        "a mutable array of shape (3,) has no diagonal: np.fill_diagonal takes two axes or more; "
        "to write to every element, use m.fill(value)",
    ),
    Case(
        "along an axis, with too few axes",
        lambda: np.put_along_axis(on(), np.zeros(3, int), 1.0, 1),
        errors.ShapeError,
        "the indices have 1 axes, and with axis=1 they need 2: add axes of length 1, which are "
        "broadcast",
    ),
    Case(
        "diagonal of unequal axes",
        lambda: np.fill_diagonal(mu.zeros((2, 2, 3)), 1.0),
        errors.ShapeError,
        "a mutable array of shape (2, 2, 3) has no diagonal: more than two axes must all have the"
        " same length; with k = np.arange(min(m.shape)), write m[k, k, k] = value, with one k for"
        " each axis",
    ),
    Case(
        "assign, shape",
        lambda: mu.assign({"w": on(), "b": on()}, {"w": np.ones((8, 8)), "b": np.ones(3)}),
        errors.ShapeError,
        "['b']: the new value has shape (3,), and the array (8, 8): give a value of the "
        "array's shape",
    ),
    Case(
        "assign, shape of the tree itself",
        lambda: mu.assign(on(), np.ones(3)),
        errors.ShapeError,
        "the tree itself: the new value has shape (3,), and the array (8, 8): give a value of "
        "the array's shape",
    ),
    Case(
        "map_inplace, shape",
        lambda: mu.map_inplace(jnp.sum, {"w": on()}),
        errors.ShapeError,
        "['w']: the function returned the shape () for an array of shape (8, 8): return values "
        "of the array's shape",
    ),
    Case(
        "length of a scalar",
        lambda: len(mu.zeros(())),
        TypeError,
        "len() of unsized object: a 0-d mutable array has no length; its one element is m[()]",
    ),
    Case(
        "iteration over a scalar",
        lambda: list(mu.zeros(())),
        TypeError,
        "iteration over a 0-d mutable array: its one element is m[()]",
    ),
    Case(
        "format of many",
        lambda: format(mu.zeros(3), ".2f"),
        TypeError,
        "format '.2f' is for one number, and this mutable array has shape (3,): format its "
        "elements one by one",
    ),
    Case(
        "format in a trace",
        lambda: traced(lambda m: format(m, ".2f"), mu.zeros(())),
        TypeError,
        "format '.2f' is for one number, and this mutable array has no value inside a trace: "
        "format it outside of jit, or print it with jax.debug.print",
    ),
    Case(
        "ufunc.at that JAX lacks",
        lambda: np.frompyfunc(abs, 1, 1).at(on(), 0),
        TypeError,
        "jax.numpy has no abs (vectorized) of one or two elements, as ufunc.at needs it: use "
        "m.apply_at(fn, idx, value) with a function that JAX can trace",
    ),
    Case(
        "export from many devices",
        lambda: on().__dlpack__(),
        errors.ExportError,
        "DLPack describes the memory of one device, and this mutable array lies on 8: export one "
        "block, m.addressable_shards[k].data, or jax.device_put(m[...], device)",
    ),
    Case(
        "export in a trace",
        lambda: traced(lambda m, k: m.__dlpack__()),
        errors.ExportError,
        "a mutable array has no memory to export inside a trace: export it outside of jit",
    ),
    # no_gather
    Case(
        "gather without a mesh",
        lambda: without_gather(lambda: traced(lambda m, k: set_to(m, k, 1.0), on_no_mesh(), 3)),
        errors.GatherError,
        "a write of an array of shape (8, 8) inside of a trace touches 32 bytes and would move "
        "256 bytes to each device, inside of mu.no_gather(): its sharding "
        "GSPMDSharding({devices=[4,2]<=[8]}, memory_kind=device) is not on a mesh that says which"
        " device owns what. Make the array with a NamedSharding.",
    ),
    Case(
        "gather of what is not known",
        lambda: without_gather(lambda: traced(made_of, np.ones((8, 8), np.float32))),
        errors.GatherError,
        "a read of an array of shape (8, 8) inside of a trace touches 32 bytes and would move an "
        "unknown number of bytes to each device, inside of mu.no_gather(): its sharding is not "
        "known there, so XLA decides what moves. Pass sharding= where the array is made, or use "
        "an explicit mesh.",
    ),
    Case(
        "program on host memory",
        lambda: without_gather(lambda: traced(lambda m, k: m[k], in_host_memory(), 3)),
        errors.GatherError,
        "a compiled program with an array of shape (8, 8) in host memory touches an unknown "
        "number of bytes and would move 32 bytes to each device, inside of mu.no_gather(): the "
        "array lies in pinned_host, and programs get a copy of it. Use it outside of jit, or keep"
        " it in device memory.",
    ),
    Case(
        "program from before a reshard",
        resharded_since,
        errors.GatherError,
        "a compiled program with an array of shape (8, 8) touches an unknown number of bytes "
        "and would move 32 bytes to each device, inside of mu.no_gather(): it closed over the "
        "array, which was resharded since, and gets a copy of it laid out by "
        "NamedSharding(mesh=Mesh('i': 4, 'j': 2, axis_types=(Auto, Auto)), spec=P('i', 'j'), "
        "memory_kind=device). Pass the array to it as an argument.",
    ),
    Case(
        "operation on host memory",
        lambda: without_gather(moved_from_host_memory),
        errors.GatherError,
        "an operation on an array of shape (8, 8) in pinned_host touches 4 bytes and would move "
        "32 bytes to each device, inside of mu.no_gather(): this version of JAX cannot work on a "
        "part of an array in that memory. Keep the array in device memory.",
    ),
    # Libraries
    Case(
        "without rich",
        without_rich,
        errors.MissingLibraryError,
        "m.visualize() draws with rich, which is not installed: pip install 'mutarray[show]', "
        "or print m.layout(), which needs nothing",
    ),
]

ELSEWHERE: dict[str, str] = {}
"""Places that no case comes through, as the failing test names them, each with the reason."""


# The proof ---------------------------------------------------------------------------------------

Line = tuple[str, int]
"""A file of mutarray and a line of it."""


class Outcome(NamedTuple):
    """What a case did: its error, and the lines of mutarray that had a part in it."""

    error: Exception | None
    lines: frozenset[Line]


@functools.cache
def outcome(case: Case) -> Outcome:
    """Runs a case, once."""
    lines: set[Line] = set()

    def made(self: errors.MutarrayError, *args: Any) -> None:
        super(errors.MutarrayError, self).__init__(*args)
        frame = sys._getframe(1)
        lines.add((frame.f_code.co_filename, frame.f_lineno))

    error = None
    with mock.patch.object(errors.MutarrayError, "__init__", made):
        try:
            case.code()
        except Exception as raised:
            error = raised
    trace = error.__traceback__ if error else None
    while trace is not None:
        lines.add((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    ours = {(Path(file).name, line) for file, line in lines if Path(file).parent == SOURCE}
    return Outcome(error and error.with_traceback(None), frozenset(ours))


def stable(message: str) -> str:
    """A message without what depends on the version of JAX and on lines of this file."""
    message = re.sub(r"made at \S+:\d+:\d+ \(.*?\)(?= is| was| on|:)", "made at HERE", message)
    message = re.sub(r"(Sharding )?\w+\([^()]*\) implies .*the shape\)", "JAX'S WORDS", message)
    return message.replace("PartitionSpec", "P")  # how JAX 0.9 shows a spec


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_message(case: Case) -> None:
    error = outcome(case).error
    assert type(error) is case.error
    assert stable(str(error)) == stable(case.message)


class Site(NamedTuple):
    """A place in the sources that makes an error, or says a part of a message."""

    file: str
    first: int
    last: int
    text: str

    @property
    def name(self) -> str:
        return f"{self.file}: {self.text}"

    def is_among(self, lines: frozenset[Line]) -> bool:
        return any(file == self.file and self.first <= k <= self.last for file, k in lines)


def sources() -> list[Path]:
    files = [SOURCE / f"{name}.py" for name in CORE if name != "errors"]
    return [file for file in files if file.exists()]


@functools.cache
def signals() -> set[str]:
    """Exceptions by which one place of the sources tells another something; no user sees them."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in sources()]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    caught = {ast.unparse(x.type) for x in nodes if isinstance(x, ast.ExceptHandler) and x.type}
    classes = [x for x in nodes if isinstance(x, ast.ClassDef) and x.name in caught]
    return {x.name for x in classes if "Exception" in map(ast.unparse, x.bases)}


def last_name(node: ast.expr) -> str:
    called = node.func if isinstance(node, ast.Call) else node
    return ast.unparse(called).split(".")[-1]


def makes_error(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise):
        # A bare `raise` passes on what another place has made.
        return node.exc is not None and last_name(node.exc) not in signals()
    if not isinstance(node, ast.Call):
        return False
    name = last_name(node)
    made = getattr(errors, name, None) or getattr(builtins, name, None)
    return name == "moves" or (isinstance(made, type) and issubclass(made, Exception))


def sites(file: str, source: str) -> Iterator[Site]:
    """The places of a file; where one lies in another, as an error in its ``raise``, the outer."""
    taken: set[int] = set()
    for node in ast.walk(ast.parse(source)):  # outer nodes come first
        if makes_error(node) and node.lineno not in taken:  # pyright: ignore
            first, last = node.lineno, node.end_lineno  # pyright: ignore
            taken |= set(range(first, last + 1))
            text = ast.get_source_segment(source, node) or ""
            yield Site(file, first, last, " ".join(text.split())[:80])


def all_sites() -> list[Site]:
    texts = [(file.name, file.read_text(encoding="utf-8")) for file in sources()]
    return [site for name, text in texts for site in sites(name, text)]


def test_no_message_is_missing() -> None:
    reached = frozenset().union(*(outcome(case).lines for case in CASES))
    missing = [site for site in all_sites() if not site.is_among(reached)]
    unknown = [site for site in missing if site.name not in ELSEWHERE]
    assert not unknown, (
        "no case in tests/test_errors.py comes through these places. Add one for each to CASES, "
        "with the message in full. If no test can come there, add what follows the line to "
        "ELSEWHERE, with the reason.\n"
        + "\n".join(f"src/mutarray/{site.file}, line {site.first}: {site.name}" for site in unknown)
    )
    left = {site.name for site in missing}
    assert set(ELSEWHERE) <= left, f"reached, or gone: {sorted(set(ELSEWHERE) - left)}"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("raise KeyError", ["raise KeyError"]),
        ("def f():\n    raise CastError(\n        'text'\n    )", ["raise CastError( 'text' )"]),
        ("raise _no_cast('text')", ["raise _no_cast('text')"]),
        ("x = errors.CastError('a')", ["errors.CastError('a')"]),
        ("x = ValueError('a')\nraise x", ["ValueError('a')", "raise x"]),
        ("_guard.moves('read', 1)", ["_guard.moves('read', 1)"]),
        ("try:\n    f()\nexcept CastError:\n    raise", []),
        ("warnings.warn('a')", []),
        ("raise Learned(hidden)", []),  # caught inside
    ],
)
def test_places_are_found(source: str, found: list[str]) -> None:
    assert sorted(site.text for site in sites("f.py", source)) == sorted(found)


def test_a_place_that_no_case_comes_through_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = CASES[0]
    monkeypatch.setattr(sys.modules[__name__], "CASES", [c for c in CASES if c.error != gone.error])
    with pytest.raises(AssertionError, match=r"_select\.py, line \d+: _select\.py: raise _out"):
        test_no_message_is_missing()


# JAX's own errors --------------------------------------------------------------------------------

MEND = "return its values, m[...]; mutarray.jit takes it twice, and returns it>"
ARGUMENT = f"<mutable array made at HERE: pass it once, and {MEND}"


@pytest.mark.parametrize(
    ("code", "theirs", "ours"),
    [
        (
            lambda: traced(lambda m: m, on()),
            "cannot be returned",
            [f"<mutable array: {MEND}", ARGUMENT],
        ),
        (lambda: traced(twice, *(2 * [on()])), "only one reference", 2 * [ARGUMENT]),
        (lambda: closed_over(on()), "both closed over and passed", [ARGUMENT]),
    ],
    ids=["returned", "passed twice", "closed over and passed"],
)
def test_what_is_added_to_errors_of_jax(
    code: Callable[[], Any], theirs: str, ours: list[str]
) -> None:
    with pytest.raises(ValueError, match=theirs) as caught:
        code()
    found = re.findall(r"<mutable array.*?returns it>", stable(str(caught.value)))
    assert found == ours


# The classes -------------------------------------------------------------------------------------

CLASSES = [
    error
    for name, error in vars(errors).items()
    if isinstance(error, type) and error.__module__ == errors.__name__
]


def row_of(a: Any) -> Any:
    return a[0] if isinstance(a, np.ndarray) else mu.mutable_array(a[0])


def scalar_of(a: Any) -> Any:
    return np.array(a[0, 0]) if isinstance(a, np.ndarray) else mu.mutable_array(a[0, 0])


@pytest.mark.parametrize(
    "code",
    [
        lambda a: a[3],
        lambda a: a["a"],
        lambda a: a[[0, 1], [0, 1, 2]],
        lambda a: a[0, 0, 0],
        lambda a: a[::0],
        lambda a: a[1.5:],
        lambda a: a.sort(axis=2),
        lambda a: a.partition(9),
        lambda a: a.put(99, 1),
        lambda a: a.put(0, 1, mode="none"),
        lambda a: set_to(a, 0, np.ones(5, int)),
        lambda a: np.copyto(a, 1.5, casting="same_kind"),
        lambda a: np.add(a, 1.5, out=a),
        lambda a: np.putmask(a, [True], 1),
        lambda a: np.place(a, np.ones((3, 4), bool), []),
        lambda a: a.__imatmul__(np.ones((4, 2), int)),
        lambda a: np.fill_diagonal(row_of(a), 1),
        lambda a: len(scalar_of(a)),
        lambda a: iter(scalar_of(a)),
    ],
)
def test_what_catches_the_error_of_numpy_catches_ours(code: Callable[[Any], Any]) -> None:
    array = np.zeros((3, 4), int)
    with pytest.raises(Exception) as numpys:  # noqa: PT011
        code(array)
    public = ("builtins", "numpy.exceptions")
    expected = next(t for t in type(numpys.value).__mro__ if t.__module__ in public)
    with pytest.raises(expected):
        code(mu.mutable_array(array))


def headings(page: str) -> list[str]:
    return re.findall(r"^## `(\w+)`$", page, re.M)


def test_every_class_has_an_entry_in_the_catalogue_and_the_other_way_round() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    names = [error.__name__ for error in CLASSES]
    assert headings(page) == names, "docs/errors.md has one heading for each class, in their order"
    rows = re.findall(r"^\| \[`(\w+)`\]\(#(\w+)\) \| ([^|]+) \|", page, re.M)
    assert [name for name, _, _ in rows] == names
    known = {**vars(builtins), **vars(np.exceptions), **vars(errors)}
    for name, anchor, also in rows:
        assert anchor == name.lower()
        for base in re.findall(r"`(?:np\.exceptions\.)?(\w+)`", also):
            assert issubclass(getattr(errors, name), known[base]), f"{name} is no {base}"


@pytest.mark.parametrize("name", ["lost", "pickle from more devices"])
def test_what_the_catalogue_shows_without_running_it_is_true(name: str) -> None:
    (case,) = (case for case in CASES if case.name == name)
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    message, shown = (" ".join(re.sub(r"\d+", "N", x).split()) for x in (case.message, page))
    assert message in shown


@pytest.mark.parametrize("error", CLASSES[1:], ids=lambda error: error.__name__)
def test_every_class_is_raised_and_says_how_to_mend_it(error: type[Exception]) -> None:
    assert any(case.error is error for case in CASES)
    assert "Mend it" in " ".join((error.__doc__ or "").split())
    assert issubclass(error, errors.MutarrayError)


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_errors_survive_pickling(error: type[Exception]) -> None:
    back = pickle.loads(pickle.dumps(error("the message")))
    assert type(back) is error and str(back) == "the message"
