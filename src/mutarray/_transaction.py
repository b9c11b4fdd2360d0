"""Trees of mutable arrays, and writes to them that are taken back where a block raises."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

from mutarray import _jaxapi, _ops
from mutarray._cell import BufferCell, Saved
from mutarray._handle import cell_of, is_handle
from mutarray._trace_cells import Cell
from mutarray.errors import BadValueError, NotMutableError


def leaves_of(tree: Any) -> tuple[list[str], list[Any], Any]:
    """The paths, the leaves and the structure of a tree, in which mutable arrays are leaves."""
    found, treedef = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_handle)
    paths = [jax.tree_util.keystr(path) or "the tree itself" for path, _ in found]
    leaves = [leaf for _, leaf in found]
    for path, leaf in zip(paths, leaves, strict=True):
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            name = type(leaf).__name__
            raise BadValueError(
                f"{path} is a {name}, which JAX does not know as a tree, so the arrays in it would "
                f"be passed over: decorate it with @jax.tree_util.register_dataclass"
            )
    return paths, leaves, treedef


@contextmanager
def transaction(*trees: Any) -> Iterator[None]:
    """All or nothing: where the block raises, every array is as it was before, bit for bit.

    Writes are seen at once. They cost one copy of the shards that are written, because the old ones
    are kept until the block ends. Blocks may be nested; an inner one that fails takes back its own
    writes. When the block ends, it waits for the writes, so that one that fails late is taken back
    too. Writes of other threads to the same arrays are taken back with those of this one.

    Args:
        *trees: mutable arrays, or trees of them. What else is in the trees is passed over.

    Raises:
        NotMutableError: there is no mutable array, so nothing would be taken back; trees without
            leaves may be passed all the same.
        SpentError: an array was frozen before.

    Example:
        >>> import mutarray as mu
        >>> m = mu.zeros(2)
        >>> try:
        ...     with mu.transaction(m):
        ...         m[0] = 1.0
        ...         m[7] = 1.0
        ... except IndexError:
        ...     pass
        >>> m[...]
        Array([0., 0.], dtype=float32)
    """
    leaves = [x for tree in trees for x in leaves_of(tree)[1]]
    cells = list(dict.fromkeys(cell_of(x) for x in leaves if is_handle(x)))
    if not cells and (leaves or not trees):
        kinds = ", ".join(sorted({type(x).__name__ for x in leaves})) or "nothing"
        raise NotMutableError(
            f"mutarray.transaction got no mutable array ({kinds}), and would take nothing back: "
            "pass the arrays that the block writes, or trees that hold them"
        )
    saved = [(cell, _save(cell)) for cell in cells]
    try:
        yield
        for cell in cells:
            if not _ops.is_spent(cell):
                _ops.wait(cell)
    except BaseException:
        for cell, before in saved:
            _restore(cell, before)
        raise
    for cell, before in saved:
        if isinstance(cell, BufferCell) and isinstance(before, Saved):
            cell.forget(before)


def _save(cell: Cell) -> Any:
    if isinstance(cell, BufferCell) and _jaxapi.in_trace():
        return cell.traced_value()
    return cell.save()


def _restore(cell: Cell, before: Any) -> None:
    if isinstance(cell, BufferCell) and not isinstance(before, Saved):
        cell.traced_replace(before)  # closed over by what is being traced
    else:
        take_back: Any = cell.restore  # each kind of cell takes what it has saved
        take_back(before)
