"""`mu.jit`: like `jax.jit`, faster with many mutable arrays, and it may return them."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, overload

import jax

from mutarray import _jaxapi
from mutarray._array import MutableArray
from mutarray._cell import BufferCell, Moves
from mutarray._handle import cell_of
from mutarray._locks import Locks
from mutarray._program import Call, Learned, Moved, Program, format_of
from mutarray._results import placing
from mutarray._signature import Chosen, Names, Numbers, choose, flags, mark_statics
from mutarray.errors import BadShardingError, BadValueError, TraceError

P = ParamSpec("P")
R = TypeVar("R")

_MANY = 1024
"""A function keeps so many programs, and so many structures of arguments; the oldest go first."""

# In C, as they are called for each array of each call.
_is_array = MutableArray.__instancecheck__
_CELL, _PLACE = operator.attrgetter("_cell"), operator.attrgetter("place")


def _picker(slots: list[int], count: int) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What takes the leaves at ``slots``, of so many."""
    if len(slots) == count:
        return lambda leaves: leaves
    if len(slots) < 2:
        return lambda leaves: [leaves[n] for n in slots]
    return operator.itemgetter(*slots)


class _Match:
    """The program for arguments of one structure, and how to find the arrays among the leaves.

    Args:
        key: what the program is kept under.
        program: for arguments of this structure.
        numbers: for each leaf the number of its array, or -1 where it is none.
        cells: the arrays of one call; later calls with the same arrays need no other check.
    """

    def __init__(self, key: Any, program: Program, numbers: list[int], cells: list[BufferCell]):
        self.key = key
        self.use(program, cells)
        self.numbers = numbers
        slots = [n for n, number in enumerate(numbers) if number >= 0]
        self._pick = _picker(slots, len(numbers))
        self._firsts = [numbers.index(number) for number in range(len(cells))]
        self._has_twins = self._firsts != slots
        self._others = [n for n, number in enumerate(numbers) if number < 0]
        # Each cell has a place of its own, for as long as it stays where it is.
        self._places = [cells[numbers[n]].place for n in slots]

    def use(self, program: Program, cells: Sequence[BufferCell]) -> None:
        """Takes another program for the same arguments."""
        # Which keep no array alive, as the program's hidden ones do, and its function. They come
        # first, for another thread that runs what it finds here: too many locks do no harm.
        self.locks = Locks([cell.lock for cell in (*cells, *program.hidden)])
        self.program = program

    def cells(self, leaves: Sequence[Any]) -> list[Any] | None:
        """The arrays, each once, if these leaves hold the same as before."""
        try:
            cells = list(map(_CELL, self._pick(leaves)))
            if list(map(_PLACE, cells)) != self._places:  # which are equal only to themselves
                return None
        except AttributeError:
            return None
        if self.program.hidden and self.program.is_stale():
            return None
        return [leaves[n]._cell for n in self._firsts] if self._has_twins else cells

    def others(self, leaves: Sequence[Any]) -> list[Any] | None:
        """The leaves that are no mutable arrays, if none of them is one."""
        others = [leaves[n] for n in self._others]
        return None if MutableArray in map(type, others) else others


class JitFunction(Generic[P, R]):
    """What `mu.jit` makes of a function: call it, or compile it ahead of time with `lower`."""

    def __init__(self, fun: Callable[P, R], static: Chosen, donated: Chosen, out_shardings: Any):
        functools.update_wrapper(self, fun)
        self._fun = fun
        self._inside = fun if out_shardings is None else placing(fun, out_shardings)
        """The function inside of a trace, with its results where they are wanted."""
        self._static = static
        self._donated = donated
        self._recent: dict[Any, _Match] = {}
        self._programs: dict[Any, Program] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the compiled function; inside of a trace it becomes a part of that."""
        if _jaxapi.in_trace():
            return self._inside(*args, **kwargs)
        leaves, treedef = self._flatten(args, kwargs)
        call = None
        while True:
            seen = Moves.last
            match = self._recent.get(treedef)
            cells = others = None
            if match is not None:
                cells, others = match.cells(leaves), match.others(leaves)
            if match is None or cells is None or others is None:
                match, cells, others = self._match(leaves, treedef)
            if call is None:
                call = Call(self._inside, treedef, match.numbers, cells)
            try:
                return match.program.run(call, others, match.locks, seen)
            except Learned as learned:
                self._grow(match, learned, cells)
            except Moved:
                call = None  # and with it what was traced for the old places
            except (TypeError, ValueError) as error:
                _name_bad_leaf(leaves, treedef, cells, error)
                raise

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A method, where the function was defined in a class."""
        return self if instance is None else types.MethodType(self, instance)

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Lowered:
        """Traces and lowers the function for these arguments, and does not run it.

        Args:
            *args: as for a call; what is no mutable array may be a ``jax.ShapeDtypeStruct``.
            **kwargs: likewise.

        Example:
            >>> import jax, mutarray as mu
            >>> step = mu.jit(lambda m, k: m.__setitem__(k, 1.0))
            >>> m = mu.zeros(3)
            >>> compiled = step.lower(m, 0).compile()
            >>> compiled(m, 2)
            >>> m[...]
            Array([0., 0., 1.], dtype=float32)
        """
        leaves, treedef = self._flatten(args, kwargs)
        match, cells, others = self._match(leaves, treedef)
        call = Call(self._inside, treedef, match.numbers, cells)
        while True:
            try:
                return Lowered(match.program.lower(call, others), self, match.key, match.program)
            except Learned as learned:
                self._grow(match, learned, cells)

    def _flatten(self, args: Any, kwargs: Any) -> tuple[list[Any], Any]:
        if self._static:
            args, kwargs = mark_statics(args, kwargs, self._static)
        return jax.tree_util.tree_flatten((args, kwargs), _is_array)

    def _match(self, leaves: list[Any], treedef: Any) -> tuple[_Match, list[BufferCell], list[Any]]:
        """The program for these leaves, made where there is none yet."""
        order: dict[BufferCell, int] = {}
        numbers = [order.setdefault(_cell(x), len(order)) if _is_array(x) else -1 for x in leaves]
        cells = list(order)
        formats = [format_of(cell) for cell in cells]
        homes = tuple(cell.home for cell in cells)
        key = treedef, tuple(numbers), homes, tuple(formats)
        program = self._programs.get(key)
        if program is None or program.is_stale():
            _check_devices(cells)
            args, kwargs = jax.tree.unflatten(treedef, leaves)
            donated = flags(args, kwargs, self._donated, _is_array)
            donated = [flag for flag, number in zip(donated, numbers, strict=True) if number < 0]
            name = getattr(self._fun, "__name__", type(self._fun).__name__)
            program = self._programs[key] = Program(formats, donated, name)
        program.refuse(cells)
        for kept in (self._programs, self._recent):
            if len(kept) > _MANY:  # of static arguments that never come again, say
                del kept[next(iter(kept))]
        match = self._recent[treedef] = _Match(key, program, numbers, cells)
        return match, cells, [leaves[k] for k, number in enumerate(numbers) if number < 0]

    def _grow(self, match: _Match, learned: Learned, cells: list[BufferCell]) -> None:
        program = self._programs[match.key] = match.program.grown(learned)
        match.use(program, cells)


def _cell(m: Any) -> BufferCell:
    """The cell of an argument outside of traces."""
    cell = cell_of(m)
    if not isinstance(cell, BufferCell):
        raise TraceError(
            f"a mutable array of shape {cell.shape} that belongs to a trace is used outside of it: "
            "use the array that was passed to the function, or return the values, m[...]"
        )
    return cell


def devices_of(cell: BufferCell) -> tuple[jax.Device, ...]:
    """The devices of an array, in its sharding's order: a program has one order for all."""
    return tuple(shard.device for shard in cell.place.layout.shards)


def _check_devices(cells: list[BufferCell]) -> None:
    """Raises where arrays of one call lie on different devices."""
    for cell in cells[1:]:
        one, other = cells[0].sharding, cell.sharding
        if devices_of(cells[0]) != devices_of(cell):
            differ = one.device_set != other.device_set
            which = "different devices" if differ else "the same devices in different orders"
            raise BadShardingError(
                f"the mutable arrays of one call lie on {which}: that made at "
                f"{cells[0].made_at} on {len(one.device_set)}, {one}, and that made at "
                f"{cell.made_at} on {len(other.device_set)}, {other}: make both on one mesh, the "
                "small one with sharding=NamedSharding(mesh, P())"
            )


def _name_bad_leaf(
    leaves: list[Any], treedef: Any, cells: list[BufferCell], error: Exception
) -> None:
    """Raises an error that names the argument, where one is nothing that the program takes."""
    args, kwargs = jax.tree.unflatten(treedef, leaves)
    for path, leaf in jax.tree_util.tree_leaves_with_path((args, kwargs), is_leaf=_is_array):
        if _is_array(leaf):
            continue
        kind = "argument" if path[0] == jax.tree_util.SequenceKey(0) else "keyword argument"
        where = f"{kind} {jax.tree_util.keystr(path[1:])}"
        try:
            jax.typeof(leaf)
        except TypeError:
            raise BadValueError(
                f"{where} is of type {type(leaf).__name__}, which is no array: pass "
                "numbers, arrays and trees of them (a dataclass is one where it is decorated with "
                "@jax.tree_util.register_dataclass), or name the argument in static_argnums or "
                "static_argnames"
            ) from error
        placed = isinstance(leaf, jax.Array) and leaf.committed
        if placed and cells and leaf.sharding.device_set != cells[0].sharding.device_set:
            raise BadShardingError(
                f"{where} lies on {len(leaf.sharding.device_set)} devices, {leaf.sharding}, and "
                f"the mutable array made at {cells[0].made_at} on others, {cells[0].sharding}: "
                "bring it there, jax.device_put(x, NamedSharding(mesh, P()))"
            ) from error


# Ahead of time -----------------------------------------------------------------------------------


class Lowered:
    """A function lowered for some arguments, as ``jax.stages.Lowered``."""

    def __init__(self, lowered: Any, function: JitFunction[..., Any], key: Any, program: Program):
        self._lowered = lowered
        self._made_from = (function, key, program)

    def compile(self, compiler_options: dict[str, Any] | None = None) -> Compiled:
        """Compiles it."""
        return Compiled(self._lowered.compile(compiler_options), *self._made_from)

    def as_text(self, dialect: str | None = None) -> str:
        """The program that goes into the compiler."""
        return self._lowered.as_text(dialect)

    def cost_analysis(self) -> Any:
        """An estimate of its cost, as the backend gives it."""
        return self._lowered.cost_analysis()


class Compiled:
    """A function compiled for some arguments, as ``jax.stages.Compiled``."""

    def __init__(self, compiled: Any, function: JitFunction[..., Any], key: Any, program: Program):
        self._compiled = compiled
        self._function = function
        self._key = key
        self._program = program

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it, with arguments of the structure and the shardings that it was compiled for."""
        leaves, treedef = self._function._flatten(args, kwargs)
        while True:
            try:
                return self._run(leaves, treedef)
            except Moved:
                continue

    def _run(self, leaves: list[Any], treedef: Any) -> Any:
        seen = Moves.last
        match, cells, others = self._function._match(leaves, treedef)
        if match.key != self._key:
            raise BadValueError(
                "this function was compiled for arguments of another structure or with other "
                f"shardings: it takes {self._key[0]} with {self._key[2]}, and got {treedef} with "
                f"{match.key[2]}: lower and compile it for these too, or call the function itself"
            )
        call = Call(self._function._inside, treedef, match.numbers, cells)
        locks = Locks([cell.lock for cell in (*cells, *self._program.hidden)])
        return self._program.run(call, others, locks, seen, self._compiled)

    def as_text(self) -> str:
        """The compiled program."""
        return self._compiled.as_text()

    def cost_analysis(self) -> Any:
        """The cost, as the backend gives it."""
        return self._compiled.cost_analysis()

    def memory_analysis(self) -> Any:
        """The bytes of arguments, results, aliases and temporary values on each device."""
        return self._compiled.memory_analysis()


@overload
def jit(
    fun: Callable[P, R],
    *,
    static_argnums: Numbers = None,
    static_argnames: Names = None,
    donate_argnums: Numbers = None,
    donate_argnames: Names = None,
    out_shardings: Any = None,
) -> JitFunction[P, R]: ...
@overload
def jit(
    fun: None = None,
    *,
    static_argnums: Numbers = None,
    static_argnames: Names = None,
    donate_argnums: Numbers = None,
    donate_argnames: Names = None,
    out_shardings: Any = None,
) -> Callable[[Callable[P, R]], JitFunction[P, R]]: ...
def jit(
    fun: Callable[..., Any] | None = None,
    *,
    static_argnums: Numbers = None,
    static_argnames: Names = None,
    donate_argnums: Numbers = None,
    donate_argnames: Names = None,
    out_shardings: Any = None,
) -> Any:
    """Compiles a function of mutable arrays; like ``jax.jit``, and more than that.

    * A call with many mutable arrays is faster: their buffers are handed to the compiled program
      and back without a detour through Python for each.
    * Mutable arrays may be returned. An argument comes back as the same object, one that is made
      inside as a new one with its sharding.
    * An array may be passed twice, in two places of a tree, and is one array.
    * Arrays that the function only reads are not donated, so a snapshot of them costs no copy.
    * A call that fails leaves every array as it was, wherever the buffers survive.

    Inside of other transformations, and of another compiled function, it is the function itself.

    Args:
        fun: a function that JAX can trace, of trees that hold mutable arrays, or that closes over
            some; without ``fun``, a decorator is returned.
        static_argnums: positions of arguments that are known when tracing, and hashable.
        static_argnames: their names.
        donate_argnums: positions of other arguments whose buffers the program may use.
        donate_argnames: their names.
        out_shardings: of the results, as a tree or the upper part of one; ``None`` leaves it open.

    Returns:
        The compiled function, which has `lower` for ahead-of-time compilation.

    Raises:
        BadValueError: an argument is no array; a static one cannot be hashed; a position or a name
            is none of the function's.
        BadShardingError: the mutable arrays of one call lie on different devices.
        TraceError: an array is both passed and closed over.

    Example:
        >>> import jax.numpy as jnp, mutarray as mu
        >>> @mu.jit
        ... def step(m, v):
        ...     m[0] += v
        ...     return m, mu.mutable_array(m[...] * 2)
        >>> m = mu.zeros(3)
        >>> same, new = step(m, 1.0)
        >>> same is m, new[...]
        (True, Array([2., 0., 0.], dtype=float32))
    """

    def made(fun: Callable[..., Any]) -> JitFunction[..., Any]:
        static = choose(fun, "static", static_argnums, static_argnames)
        donated = choose(fun, "donate", donate_argnums, donate_argnames)
        return JitFunction(fun, static, donated, out_shardings)

    return made if fun is None else made(fun)
