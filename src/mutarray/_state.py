"""Whole states: trees of mutable arrays, made, read, written and undone together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, overload

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from mutarray import _buffers, _cast, _jaxapi, _ops
from mutarray._array import MutableArray
from mutarray._cell import BufferCell
from mutarray._create import mutable_array
from mutarray._handle import cell_of, is_handle, value_of
from mutarray._jit import devices_of, jit
from mutarray._layout import check_sharding
from mutarray._signature import check_function
from mutarray._transaction import leaves_of, transaction
from mutarray.errors import (
    BadShardingError,
    BadValueError,
    MutarrayError,
    NotMutableError,
    ShapeError,
)

Tree = TypeVar("Tree")


def _is_array(x: Any) -> bool:
    return isinstance(x, (jax.Array, np.ndarray)) or _jaxapi.is_ref(x)


@contextmanager
def _at(path: str) -> Iterator[None]:
    """Errors that come up inside say which leaf they are about."""
    try:
        yield
    except (MutarrayError, OverflowError) as error:
        raise type(error)(f"{path}: {error}") from error


def values(tree: Tree) -> Tree:
    """The tree with an immutable array, ``m[...]``, in the place of each mutable one.

    Args:
        tree: a tree of anything; what is no mutable array stays as it is.

    Returns:
        A tree of the same structure. Outside of traces its arrays are snapshots, which share the
        buffers until the next write.

    Raises:
        BadValueError: a leaf is a dataclass that JAX does not know as a tree.
        SpentError: an array was frozen before.

    Example:
        >>> import mutarray as mu
        >>> mu.values({'w': mu.zeros(2), 'steps': 3})
        {'steps': 3, 'w': Array([0., 0.], dtype=float32)}
    """
    _, leaves, treedef = leaves_of(tree)
    out = [_ops.snapshot(cell_of(x)) if is_handle(x) else x for x in leaves]
    return jax.tree.unflatten(treedef, out)


def mutable(tree: Tree, shardings: Any = None, *, donate: bool = False) -> Tree:
    """The tree with a mutable array in the place of each array.

    Args:
        tree: a tree of anything. ``jax.Array``s and NumPy arrays become mutable; mutable arrays,
            numbers and everything else stay as they are.
        shardings: a sharding for all of them, a tree of shardings, or the upper part of one; by
            default each array stays where it is. Arrays that JAX may still place (NumPy's, a step
            counter made by ``jnp.zeros``) go with the others: replicated over their mesh.
        donate: whether to take over the buffers of the arrays that stay where they are; these are
            deleted.

    Returns:
        A tree of the same structure.

    Raises:
        BadShardingError, IndivisibleError, DonationError: as `mutable_array`, with the path of the
            leaf; nothing has been made or deleted then.
        BadValueError: a leaf is a dataclass that JAX does not know as a tree.
        NotMutableError: a tree transformation rebuilt a mutable array around something else.

    Example:
        >>> import jax.numpy as jnp, mutarray as mu
        >>> state = mu.mutable({'w': jnp.ones(2), 'name': 'linear'})
        >>> state['w'][0] = 5
        >>> mu.values(state)
        {'name': 'linear', 'w': Array([5., 1.], dtype=float32)}
    """
    paths, leaves, treedef = leaves_of(tree)
    for path, x in zip(paths, leaves, strict=True):
        if is_handle(x):
            with _at(path):  # an optimizer's init may have rebuilt it around something else
                cell_of(x)
    targets = _targets(tree, leaves, shardings)
    todo = [n for n, x in enumerate(leaves) if _is_array(x)]
    for n in todo:
        with _at(paths[n]):
            if targets[n] is not None:
                check_sharding(leaves[n].shape, targets[n])
            if donate and isinstance(leaves[n], jax.Array) and leaves[n].is_deleted():
                mutable_array(leaves[n], donate=True)  # raises
    out = list(leaves)
    made: dict[Any, MutableArray] = {}
    for n in todo:
        x, target = leaves[n], targets[n]
        if (id(x), target) not in made:
            with _at(paths[n]):
                made[id(x), target] = mutable_array(x, target, donate=donate and _gives(x, target))
        out[n] = made[id(x), target]
    return jax.tree.unflatten(treedef, out)


def _gives(x: Any, target: Sharding | None) -> bool:
    """Whether an array that goes to ``target`` has buffers to give."""
    known = isinstance(x, jax.Array) and not _jaxapi.is_tracer(x)
    return known and (target is None or target == x.sharding)


def _targets(tree: Any, leaves: Sequence[Any], shardings: Any) -> list[Sharding | None]:
    """For each leaf the sharding that it is to get; ``None`` for the one that it has."""

    def is_end(x: Any) -> bool:
        return x is None or isinstance(x, (Sharding, PartitionSpec))

    if shardings is not None:
        try:
            spread = jax.tree.map(
                lambda s, part: [s] * len(jax.tree.leaves(part, is_leaf=is_handle)),
                shardings,
                tree,
                is_leaf=is_end,
            )
        except ValueError as error:
            raise BadShardingError(
                f"shardings is {jax.tree.structure(shardings, is_leaf=is_end)}, and the tree is "
                f"{jax.tree.structure(tree, is_leaf=is_handle)}: pass one sharding for all, or a "
                "tree like it whose leaves are shardings or None"
            ) from error
        return jax.tree.leaves(spread, is_leaf=is_end)
    placed = [x for x in leaves if isinstance(x, jax.Array) and not _jaxapi.is_tracer(x)]
    named = [x.sharding for x in placed if x.committed and isinstance(x.sharding, NamedSharding)]
    meshes = {s.mesh for s in named}
    if len(meshes) != 1:
        return [None] * len(leaves)
    shared = NamedSharding(named[0].mesh, PartitionSpec())
    free = {id(x) for x in placed if not x.committed}
    free |= {id(x) for x in leaves if isinstance(x, np.ndarray)}
    return [shared if id(x) in free else None for x in leaves]


@overload
def freeze(tree: MutableArray) -> jax.Array: ...
@overload
def freeze(tree: Any) -> Any: ...
def freeze(tree: Any) -> Any:
    """The contents of mutable arrays as immutable arrays, without a copy.

    Args:
        tree: a mutable array, or a tree that holds some; everything else in it stays as it is.

    Returns:
        For an array, one with its shape, dtype and sharding, which now owns the buffers; the
        mutable one cannot be used any more. For a tree, a tree of such arrays.

    Raises:
        SpentError: an array was frozen before; nothing has been frozen then.
        NotMutableError: there are arrays in the tree, and none is mutable.
        TraceError: an array from outside is closed over by a function that is being traced.

    Example:
        >>> import mutarray as mu
        >>> m = mu.zeros(3)
        >>> mu.freeze(m)
        Array([0., 0., 0.], dtype=float32)
        >>> m[0]
        Traceback (most recent call last):
        ...
        mutarray.errors.SpentError: this mutable array of shape (3,) was frozen, and its buffers \
belong to the array that mu.freeze returned: use that, or make it mutable again with \
mu.mutable_array
    """
    _, leaves, treedef = leaves_of(tree)
    handles = [x for x in leaves if is_handle(x)]
    if leaves and not handles:
        cell_of(leaves[0])  # raises
    for m in handles:
        if _ops.is_spent(cell_of(m)):
            _ops.freeze(cell_of(m))  # raises
    frozen: dict[int, jax.Array] = {}
    for m in handles:
        if id(m) not in frozen:
            frozen[id(m)] = _ops.freeze(cell_of(m))
    return jax.tree.unflatten(treedef, [frozen.get(id(x), x) for x in leaves])


def assign(tree: Any, new: Any) -> None:
    """Writes new values into the mutable arrays of a tree, all or nothing.

    Args:
        tree: a tree of mutable arrays; what else is in it has to be equal in ``new``.
        new: a tree of the same structure with arrays of the same shapes, on any devices, whose
            dtypes cast by ``same_kind``; mutable arrays count as their values.

    Raises:
        BadValueError: the trees differ in structure, or in a leaf that is no array.
        ShapeError: a shape differs.
        CastError: a value does not cast.
        OverflowError: a Python integer is too large for its array.
        NotMutableError: a leaf of ``tree`` is an array that is not mutable.

    Each names the path of the leaf, and is raised before anything is written.

    Example:
        >>> import jax.numpy as jnp, mutarray as mu
        >>> state = mu.mutable({'w': jnp.ones(2), 'b': jnp.zeros(())})
        >>> mu.assign(state, {'w': jnp.arange(2.0), 'b': 3.0})
        >>> mu.values(state)
        {'b': Array(3., dtype=float32), 'w': Array([0., 1.], dtype=float32)}
    """
    _assign(_pairs(tree, new))


def _pairs(tree: Any, new: Any) -> list[tuple[MutableArray, Any]]:
    """The arrays of a tree with their new values, checked."""
    paths, leaves, treedef = leaves_of(tree)
    new_paths, new_leaves, new_treedef = leaves_of(new)
    if treedef != new_treedef:
        raise BadValueError(_difference(paths, new_paths, treedef, new_treedef))
    pairs: dict[int, tuple[MutableArray, Any]] = {}
    for path, m, value in zip(paths, leaves, new_leaves, strict=True):
        if not isinstance(m, MutableArray):
            _check_equal(path, m, value)
            continue
        with _at(path):
            cell = cell_of(m)
            value = value_of(value) if is_handle(value) else _cast.as_value(value)
            if np.shape(value) != cell.shape:
                raise ShapeError(
                    f"the new value has shape {np.shape(value)}, and the array {cell.shape}: give "
                    "a value of the array's shape"
                )
            _cast.check_cast(value, cell.dtype)
        pairs[id(m)] = m, _ops.cast_to(value, cell.dtype) if _jaxapi.in_trace() else value
    return list(pairs.values())


def _difference(paths: list[str], new_paths: list[str], one: Any, other: Any) -> str:
    missing = [p for p in paths if p not in set(new_paths)]
    extra = [p for p in new_paths if p not in set(paths)]
    found = f"is {other} instead of {one}"
    if missing or extra:
        parts = [f"lacks {_listed(missing)}"] * bool(missing)
        parts += [f"has {_listed(extra)} in excess"] * bool(extra)
        found = " and ".join(parts)
    return (
        f"the new tree has another structure: it {found}: give it that of the tree that is written "
        "to"
    )


def _listed(paths: list[str]) -> str:
    more = [f"{len(paths) - 3} more"] if len(paths) > 3 else []
    return ", ".join(paths[:3] + more)


def _check_equal(path: str, old: Any, new: Any) -> None:
    """Raises where a leaf that cannot be written would have to be."""
    if _is_array(old):
        raise NotMutableError(
            f"{path} is of type {type(old).__name__}, which cannot be written in place: make the "
            "tree mutable with mutarray.mutable(tree)"
        )
    if old is not new and (_is_array(new) or old != new):
        raise BadValueError(
            f"{path} is {_cast.shown(old)} in the tree and {_cast.shown(new)} in the new one, and "
            "only mutable arrays can be assigned to: give the same in both, or make it mutable"
        )


def _assign(pairs: list[tuple[MutableArray, Any]]) -> None:
    if _jaxapi.in_trace():
        for m, value in pairs:
            m[...] = value
        return
    groups: dict[Any, tuple[list[MutableArray], list[Any]]] = {}
    for m, value in pairs:
        cell = cell_of(m)
        assert isinstance(cell, BufferCell)
        arrays, news = groups.setdefault(devices_of(cell), ([], []))
        arrays.append(m)
        news.append(_placed(value, cell))
    if len(groups) == 1:
        _write_all(*next(iter(groups.values())))
        return
    with transaction([m for m, _ in pairs]):
        for arrays, news in groups.values():
            _write_all(arrays, news)


@jit
def _write_all(arrays: Sequence[MutableArray], news: Sequence[Any]) -> None:
    for m, value in zip(arrays, news, strict=True):
        m[...] = value


def _placed(value: Any, cell: BufferCell) -> jax.Array:
    """A value on the devices of an array."""
    if not isinstance(value, jax.Array):
        value = np.asarray(value).astype(cell.dtype)
    elif value.sharding == cell.place.work:
        return value
    elif value.sharding.is_equivalent_to(cell.place.work, value.ndim):
        return _jaxapi.alias(value, cell.place.work)  # else the type still has the other mesh
    return _buffers.put(value, cell.place.work)


def map_inplace(fn: Callable[..., Any], tree: Any, *rest: Any) -> None:
    """Replaces each mutable array of a tree by what a function makes of it, in one program.

    The program is kept under ``fn``: pass the same function again, not a new ``lambda`` each time.

    Args:
        fn: gets the values of an array and of the leaves of ``rest`` at its place, and returns
            values of the same shape whose dtype casts by ``same_kind``.
        tree: a tree of mutable arrays; leaves that are no arrays are passed over.
        *rest: trees of the same structure.

    Raises:
        BadValueError: ``fn`` is no function; the trees differ in structure; a leaf of ``rest``, or
            what ``fn`` returns, is no array.
        ShapeError: ``fn`` returns another shape, at the leaf that the error names.
        CastError: what it returns does not cast.
        NotMutableError: a leaf of ``tree`` is an array that is not mutable.
        BadShardingError: the arrays lie on different devices.

    All are raised before anything is written.

    Example:
        >>> import jax.numpy as jnp, mutarray as mu
        >>> weights = mu.mutable({'w': jnp.ones(2), 'b': jnp.zeros(1)})
        >>> mu.map_inplace(jnp.add, weights, {'w': jnp.arange(2.0), 'b': 5.0})
        >>> mu.values(weights)
        {'b': Array([5.], dtype=float32), 'w': Array([1., 2.], dtype=float32)}
    """
    check_function(fn, "mutarray.map_inplace")
    paths, leaves, treedef = leaves_of(tree)
    columns = []
    for other in rest:
        other_paths, column, other_treedef = leaves_of(other)
        if other_treedef != treedef:
            raise BadValueError(_difference(paths, other_paths, treedef, other_treedef))
        columns.append(column)
    chosen: dict[int, int] = {}
    for n, (path, leaf) in enumerate(zip(paths, leaves, strict=True)):
        if isinstance(leaf, MutableArray):
            chosen.setdefault(id(leaf), n)
        else:
            _check_equal(path, leaf, leaf)
    places = list(chosen.values())
    arrays = [leaves[n] for n in places]
    others = [[_operand(column[n], paths[n]) for column in columns] for n in places]
    if arrays:
        _map_all(fn, tuple(paths[n] for n in places), arrays, others)


def _operand(x: Any, path: str) -> Any:
    if is_handle(x):
        return x
    with _at(path):
        return _cast.as_value(x)


@functools.partial(jit, static_argnums=(0, 1))
def _map_all(
    fn: Callable[..., Any],
    paths: tuple[str, ...],
    arrays: Sequence[MutableArray],
    others: Sequence[Sequence[Any]],
) -> None:
    for path, m, rest in zip(paths, arrays, others, strict=True):
        new = fn(m[...], *[value_of(x) if is_handle(x) else x for x in rest])
        with _at(path):
            new = _cast.as_value(new)
            if np.shape(new) != m.shape:
                raise ShapeError(
                    f"the function returned the shape {np.shape(new)} for an array of shape "
                    f"{m.shape}: return values of the array's shape"
                )
            m[...] = new
