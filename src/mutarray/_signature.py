"""What a call of a compiled function passes: which arguments are static, which are donated."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple, SupportsIndex

import jax

from mutarray._cast import shown
from mutarray.errors import BadValueError

Names = str | Iterable[str] | None
Numbers = int | Iterable[int] | None


class Chosen(NamedTuple):
    """Some of a function's parameters, by position and by name."""

    numbers: frozenset[int]
    names: frozenset[str]

    def __bool__(self) -> bool:
        return bool(self.numbers or self.names)


def choose(fun: Callable[..., Any], what: str, numbers: Numbers, names: Names) -> Chosen:
    """The parameters that ``numbers`` and ``names`` mean; either stands for the other too.

    Raises:
        BadValueError: ``fun`` is no function, or has no such parameter.
    """
    check_function(fun, "mutarray.jit")
    numbers = _several(numbers, f"{what}_argnums", SupportsIndex, "an integer")
    names = _several(names, f"{what}_argnames", str, "a name")
    if not numbers and not names:
        return Chosen(frozenset(), frozenset())
    parameters = inspect.signature(fun).parameters
    kinds = [p.kind for p in parameters.values()]
    takes_any_name = inspect.Parameter.VAR_KEYWORD in kinds
    takes_any_number = inspect.Parameter.VAR_POSITIONAL in kinds
    known = list(parameters)
    found, by_name = set[int](), set[str](names)
    for number in numbers:
        place = number + len(known) if number < 0 else number
        if not 0 <= place < len(known) and not takes_any_number:
            allowed = f"allowed are {-len(known)} to {len(known) - 1}" if known else "pass none"
            raise BadValueError(
                f"{what}_argnums={number}, and {_name(fun)} has {len(known)} parameters: {allowed}"
            )
        found.add(place)
        if place < len(known) and kinds[place] is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            by_name.add(known[place])
    for name in names:
        if name not in parameters and not takes_any_name:
            raise BadValueError(
                f"{what}_argnames={name!r}, and {_name(fun)} has the parameters {known}: name one "
                "of these, or none"
            )
        if name in parameters and parameters[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            found.add(known.index(name))
    return Chosen(frozenset(found), frozenset(by_name))


def check_function(fun: Any, taker: str) -> None:
    """Raises a `BadValueError` unless ``fun`` can be called."""
    if not callable(fun):
        raise BadValueError(
            f"{taker} takes a function, and got {shown(fun)} of type {type(fun).__name__}: pass "
            "something that can be called"
        )


def _several(given: Any, argument: str, kind: Any, one: str) -> list[Any]:
    """What an argument names, as a list."""
    is_one = isinstance(given, str) or not isinstance(given, Iterable)
    found = [] if given is None else [given] if is_one else list(given)
    for x in found:
        if not isinstance(x, kind):
            raise BadValueError(
                f"{argument}={given!r} holds {x!r} of type {type(x).__name__}: pass {one}, or a "
                "sequence of such"
            )
    return found


def _name(fun: Callable[..., Any]) -> str:
    return getattr(fun, "__name__", repr(fun))


class Static:
    """Stands for a static argument in a tree of arguments; equal where the arguments are."""

    __slots__ = ("value",)

    def __init__(self, value: Hashable):
        self.value = value

    def __eq__(self, other: object) -> bool:
        # 1, 1.0 and True are equal, and programs for them are not.
        return (
            isinstance(other, Static)
            and type(self.value) is type(other.value)
            and self.value == other.value
        )

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))


jax.tree_util.register_pytree_node(Static, lambda s: ((), s), lambda s, _: s)


def mark_statics(
    args: tuple[Any, ...], kwargs: dict[str, Any], static: Chosen
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, with the static ones as parts of the tree's structure."""
    args = tuple(_static(x, n) if n in static.numbers else x for n, x in enumerate(args))
    kwargs = {k: _static(x, k) if k in static.names else x for k, x in kwargs.items()}
    return args, kwargs


def _static(x: Any, where: int | str) -> Static:
    try:
        hash(x)
    except TypeError as error:
        raise BadValueError(
            f"the static argument {where!r} is of type {type(x).__name__}, which cannot be hashed: "
            "pass something that can (a tuple for a list, a frozen dataclass), or do not make the "
            "argument static"
        ) from error
    return Static(x)


def without_marks(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as the function takes them."""

    def value(x: Any) -> Any:
        return x.value if isinstance(x, Static) else x

    return tuple(map(value, args)), {k: value(x) for k, x in kwargs.items()}


def shown_as(
    fun: Callable[..., Any], flat: Callable[..., Any], treedef: Any, leaves: Iterable[int]
) -> Callable[..., Any]:
    """``flat``, which takes some leaves of the arguments of ``fun``, under the name of ``fun``.

    It is what JAX's errors name: the function, where it is defined, and the argument.
    """
    args, kwargs = jax.tree.unflatten(treedef, range(treedef.num_leaves))
    try:
        names = list(inspect.signature(fun).parameters)
    except (TypeError, ValueError):  # of a builtin
        names = []
    paths = dict[int, str]()
    for path, n in jax.tree_util.tree_leaves_with_path(args):
        first = path[0].idx
        root = names[first] if first < len(names) else f"args_{first}"
        paths[n] = root + jax.tree_util.keystr(path[1:])
    for path, n in jax.tree_util.tree_leaves_with_path(kwargs):
        paths[n] = path[0].key + jax.tree_util.keystr(path[1:])
    flat = functools.wraps(fun, updated=())(flat)
    # Parameters have to be names: state['w'] is shown as state_w, and none twice.
    shown = dict.fromkeys(re.sub(r"\W+", "_", paths[n]).strip("_") for n in leaves)
    if len(shown) == len(list(leaves)):
        kind = inspect.Parameter.POSITIONAL_ONLY
        parameters = [inspect.Parameter(name, kind) for name in shown]
        flat.__signature__ = inspect.Signature(parameters)  # pyright: ignore
    else:
        flat.__signature__ = inspect.Signature()  # pyright: ignore
    return flat


def flags(args: tuple[Any, ...], kwargs: dict[str, Any], donated: Chosen, leaf: Any) -> list[bool]:
    """For each leaf of the arguments, whether it is in a donated one."""
    chosen = [(x, n in donated.numbers) for n, x in enumerate(args)]
    # A tree has its dictionaries in the order of their keys.
    chosen += [(kwargs[k], k in donated.names) for k in sorted(kwargs)]
    return [flag for x, flag in chosen for _ in jax.tree.leaves(x, is_leaf=leaf)]
