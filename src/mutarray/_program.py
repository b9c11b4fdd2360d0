"""A function of mutable arrays as a compiled program that has no Ref among its arguments.

`jax.jit` goes through Python on each call that has a Ref among its arguments. The program here
takes the buffers instead, donated, and gives the new ones back; the Refs are inside. So the
function is traced with stand-ins, whose Refs are constants to JAX, as those of arrays that are
closed over are; then these constants are replaced by Refs of the program's own. What the function
only reads is not donated. Which arrays it writes, and which it closes over, is learned from the
first trace, and the program is made anew with that known.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import jax

from mutarray import _buffers, _frames, _jaxapi
from mutarray._array import wrap
from mutarray._cell import BufferCell, Moves, lend_all, recheck_all, take_all
from mutarray._create import own
from mutarray._handle import Handle, cell_of, is_handle
from mutarray._locks import Locks
from mutarray._signature import shown_as, without_marks
from mutarray._trace_cells import ArgumentCell
from mutarray.errors import TraceError

# Mutable arrays in results -----------------------------------------------------------------------


class _Made(NamedTuple):
    """An array that was made inside: its number among these."""

    number: int


class _Place:
    """Stands for a mutable array in a result: an argument, one closed over, or one made inside."""

    def __init__(self, source: int | BufferCell | _Made):
        self.source = source

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Place)
            and type(self.source) is type(other.source)
            and self.source == other.source
        )

    def __hash__(self) -> int:
        return hash(self.source)


class _Handed:
    """A result in which there are mutable arrays, with the values of those that were made."""

    def __init__(self, tree: Any, values: Sequence[Any], homes: tuple[Any, ...]):
        self.tree = tree
        self.values = values
        self.homes = homes


jax.tree_util.register_pytree_node(_Place, lambda p: ((), p), lambda p, _: p)
jax.tree_util.register_pytree_node(
    _Handed, lambda h: ((h.tree, h.values), h.homes), lambda homes, c: _Handed(c[0], c[1], homes)
)


def _is_place(x: Any) -> bool:
    return isinstance(x, _Place)


def _hand_over(out: Any, arguments: Sequence[ArgumentCell]) -> Any:
    """A function's result, with its mutable arrays as what a program can return."""
    made: dict[Any, _Made] = {}
    found = False

    def place(x: Any) -> Any:
        nonlocal found
        if not isinstance(x, Handle):
            return x
        found = True
        cell = cell_of(x)
        if isinstance(cell, ArgumentCell):
            return _Place(cell.number) if cell in arguments else cell.refuse()
        if isinstance(cell, BufferCell):
            return _Place(cell)
        return _Place(made.setdefault(cell, _Made(len(made))))

    tree = jax.tree.map(place, out, is_leaf=is_handle)
    if not found:
        return out
    homes = tuple(cell.sharding for cell in made)
    values = [
        cell.traced_value() if home is None else _frames.place(cell.traced_value(), home)
        for cell, home in zip(made, homes, strict=True)
    ]
    return _Handed(tree, values, homes)


def _take_back(handed: _Handed, cells: Sequence[BufferCell]) -> Any:
    """The result of a function, from what its program returned."""
    made = [
        own(x if home is None else _buffers.put(x, home), home or x.sharding)
        for x, home in zip(handed.values, handed.homes, strict=True)
    ]

    def restore(x: Any) -> Any:
        if not isinstance(x, _Place):
            return x
        if isinstance(x.source, _Made):
            return made[x.source.number]
        return wrap(cells[x.source] if isinstance(x.source, int) else x.source)

    return jax.tree.map(restore, handed.tree, is_leaf=_is_place)


# Tracing -----------------------------------------------------------------------------------------


class _Traced(NamedTuple):
    """A function, traced with stand-ins for the arrays of one call."""

    closed: Any
    tree: Any
    refs: dict[int, int | BufferCell]
    """For each constant that is a Ref, the number of the argument or the array closed over."""
    written: set[int | BufferCell]


def _trace(call: Call, values: Sequence[Any]) -> _Traced:
    """Traces a function with stand-ins for its arrays."""
    cells = call.cells
    stand_ins = [
        ArgumentCell(cell.like(), cell.home, cell.place.work, number, cell.made_at)
        for number, cell in enumerate(cells)
    ]
    handles = [wrap(cell) for cell in stand_ins]

    def flat(*values: Any) -> Any:
        return _hand_over(call.run(handles, values), stand_ins)

    others = [n for n, number in enumerate(call.numbers) if number < 0]
    flat = shown_as(call.fun, flat, call.treedef, others)
    closed, shapes = jax.make_jaxpr(flat, return_shape=True)(*values)
    refs: dict[int, int | BufferCell] = {}
    for k, const in enumerate(closed.consts):
        cell = _jaxapi.lender_of(const)
        if cell in stand_ins:
            refs[k] = cell.number
        elif isinstance(cell, ArgumentCell):
            cell.refuse()
        elif cell is not None:
            if cell in cells:
                _refuse_twice(cell)
            refs[k] = cell
    # Writes to empty arrays write nothing, and their buffers have no business in a program.
    empty = {const for k, const in refs.items() if 0 in closed.consts[k].shape}
    written = {refs[k] for k in _jaxapi.written_consts(closed)} - empty
    return _Traced(closed, jax.tree.structure(shapes), refs, written)


def _refuse_twice(cell: BufferCell) -> NoReturn:
    raise TraceError(
        f"the mutable array made at {cell.made_at} is both passed to the function and closed over: "
        "use the argument alone, or do not pass it"
    )


class Learned(Exception):  # noqa: N818
    """A trace found arrays that its program does not know of."""

    def __init__(self, hidden: list[BufferCell], written: set[int]):
        self.hidden = hidden
        self.written = written


class Moved(Exception):  # noqa: N818
    """An array has moved after the program for the places of all was found."""


class Call:
    """One call of a function, while its program runs or is traced.

    Args:
        fun: the function.
        treedef: the structure of its arguments, in which mutable arrays are leaves.
        numbers: for each leaf the number of its array, or -1 where it is none.
        cells: the arrays, each once.
    """

    __slots__ = ("_traced", "cells", "fun", "numbers", "treedef")

    def __init__(
        self,
        fun: Callable[..., Any],
        treedef: Any,
        numbers: Sequence[int],
        cells: Sequence[BufferCell],
    ):
        self.fun: Callable[..., Any] = fun
        self.treedef: Any = treedef
        self.numbers: Sequence[int] = numbers
        self.cells: Sequence[BufferCell] = cells
        self._traced: dict[Any, _Traced] = {}

    def traced(self, values: Sequence[Any]) -> _Traced:
        """The function, traced for values in the place of the other leaves."""
        key = tuple(jax.typeof(x) for x in values)
        if key not in self._traced:
            self._traced[key] = _trace(self, values)
        return self._traced[key]

    def run(self, handles: Sequence[Any], values: Sequence[Any]) -> Any:
        """Runs the function, on arrays and on values in the place of the other leaves."""
        others = iter(values)
        leaves = [handles[n] if n >= 0 else next(others) for n in self.numbers]
        args, kwargs = without_marks(*jax.tree.unflatten(self.treedef, leaves))
        return self.fun(*args, **kwargs)


_now = threading.local()


class Program:
    """Compiled programs for calls of one structure.

    Args:
        formats: how each array is to be laid out, as ``out_shardings`` of `jax.jit`.
        donated: which of the other leaves are donated.
        hidden: the arrays that the function is known to close over.
        written: the numbers of the arrays that it is known to write.
        name: what JAX calls the program in profiles and error messages.
    """

    def __init__(
        self,
        formats: Sequence[Any],
        donated: Sequence[bool],
        name: str,
        hidden: Sequence[BufferCell] = (),
        written: Sequence[int] = (),
    ):
        self.formats: list[Any] = list(formats)
        self.hidden: list[BufferCell] = list(hidden)
        self._places = [cell.place for cell in hidden]
        self._name = name
        self._is_donated = list(donated)
        self._donated = [n for n, flag in enumerate(donated) if flag]
        self._kept = [n for n, flag in enumerate(donated) if not flag]
        self._written = list(written)
        count = len(self.formats)
        self._read = [n for n in range(count) if n not in set(written)]

        def program(written: Any, read: Any, donated: Any, kept: Any) -> Any:
            return self._body(written, read, donated, kept)

        program.__name__ = program.__qualname__ = name
        self.jitted: Any = jax.jit(
            program,
            donate_argnums=(0, 2),
            keep_unused=True,  # what is overwritten unread gives its buffer all the same
            out_shardings=([self.formats[n] for n in self._written], None),
        )

    def _body(self, written: Any, read: Any, donated: Any, kept: Any) -> Any:
        """What is compiled: the function, with Refs of the program's own for its arrays."""
        call: Call = _now.call
        leaves: list[Any] = [None] * (len(donated) + len(kept))
        for where, values in ((self._donated, donated), (self._kept, kept)):
            for n, x in zip(where, values, strict=True):
                leaves[n] = x
        traced = call.traced(leaves)
        cells = [*call.cells, *self.hidden]
        numbers: dict[Any, int] = {cell: n for n, cell in enumerate(cells)}
        numbers.update((n, n) for n in range(len(call.cells)))
        hidden = [x for x in dict.fromkeys(traced.refs.values()) if x not in numbers]
        numbers.update((cell, n) for n, cell in enumerate(hidden, len(cells)))
        changed = {numbers[x] for x in traced.written}
        if hidden or not changed <= set(self._written):
            raise Learned(hidden, changed)  # pyright: ignore[reportArgumentType]
        values = dict(zip([*self._written, *self._read], [*written, *read], strict=True))
        refs = {n: jax.new_ref(values[n]) for n in {numbers[x] for x in traced.refs.values()}}
        consts = list(traced.closed.consts)
        for k, x in traced.refs.items():
            consts[k] = refs[numbers[x]]
        out = _jaxapi.evaluate(traced.closed, consts, leaves)
        new = [refs[n][...] if n in refs else values[n] for n in self._written]
        return new, jax.tree.unflatten(traced.tree, out)

    def grown(self, learned: Learned) -> Program:
        """The program, with what a trace found out."""
        return Program(
            [*self.formats, *map(format_of, learned.hidden)],
            self._is_donated,
            self._name,
            [*self.hidden, *learned.hidden],
            sorted(learned.written | set(self._written)),
        )

    def is_stale(self) -> bool:
        """Whether an array that the function closes over lives elsewhere by now, or was frozen."""
        places = zip(self.hidden, self._places, strict=True)
        return any(cell.place is not place or cell.is_frozen for cell, place in places)

    def refuse(self, cells: Sequence[BufferCell]) -> None:
        """Raises if one of ``cells`` is closed over too."""
        for cell in cells if self.hidden else ():
            if cell in self.hidden:
                _refuse_twice(cell)

    def operands(self, cells: Sequence[BufferCell], leaves: Sequence[Any], lend: bool) -> Any:
        """The arguments of `jitted`; buffers that may be donated only with ``lend``."""
        written = self._written_of(cells)
        return (
            lend_all(written) if lend else [cell.array() for cell in written],
            [self._unshared(cells[n]) if lend else cells[n].array() for n in self._read],
            [leaves[n] for n in self._donated],
            [leaves[n] for n in self._kept] if self._donated else leaves,
        )

    def _written_of(self, cells: Sequence[BufferCell]) -> Sequence[BufferCell]:
        return [cells[n] for n in self._written] if self._read else cells

    def _unshared(self, cell: BufferCell) -> jax.Array:
        """What is read, whose buffers are in no argument that the call donates."""
        if not self._donated or cell.place.work is not cell.sharding:
            return cell.array()
        return cell.lend(cell.place.work)

    def run(
        self, call: Call, others: Sequence[Any], locks: Locks, seen: object, compiled: Any = None
    ) -> Any:
        """Runs it, or what was compiled from it ahead of time.

        Args:
            call: what is called.
            others: the leaves of its arguments that are no mutable arrays.
            locks: of the arrays, and of those that are closed over.
            seen: the last move of any array before the places of these were looked at.
            compiled: what `lower` was compiled to.

        Raises:
            Learned: nothing was done, because there is more to know.
            Moved: nothing was done, because another thread has moved an array since.
        """
        cells = [*call.cells, *self.hidden] if self.hidden else call.cells
        before = getattr(_now, "call", None)
        locks.acquire()
        try:
            if Moves.last is not seen:
                raise Moved
            _now.call = call
            new, out = (compiled or self.jitted)(*self.operands(cells, others, lend=True))
            take_all(self._written_of(cells), new)
        except BaseException:
            recheck_all(cells)
            raise
        finally:
            _now.call = before
            locks.release()
        return _take_back(out, cells) if type(out) is _Handed else out

    def lower(self, call: Call, others: Sequence[Any]) -> Any:
        """What `jax.jit` lowers it to; raises `Learned` as `run` does."""
        before = getattr(_now, "call", None)
        try:
            _now.call = call
            cells = [*call.cells, *self.hidden]
            return self.jitted.lower(*self.operands(cells, others, lend=False))
        finally:
            _now.call = before


def format_of(cell: BufferCell) -> Any:
    """How the array is laid out, as ``out_shardings`` of `jax.jit` takes it."""
    return _jaxapi.custom_layout(cell.array()) or cell.place.work
