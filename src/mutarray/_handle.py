"""The object that a user holds, as far as the code below `MutableArray` needs to know it."""

from __future__ import annotations

from typing import Any

import jax

from mutarray import _ops
from mutarray._trace_cells import Cell, OpaqueCell
from mutarray.errors import NotMutableError


class Handle:
    """Holds a cell, and nothing else; `MutableArray` is the only one that is made."""

    __slots__ = ("__weakref__", "_cell")

    _cell: Cell | OpaqueCell


def cell_of(m: Any) -> Cell:
    """The cell of a handle.

    Raises:
        NotMutableError: ``m`` is no mutable array, or one whose Ref a tree transformation replaced.
    """
    if not isinstance(m, Handle):
        raise NotMutableError(
            f"expected a MutableArray, got {type(m).__name__}: make it one with "
            "mutarray.mutable_array(x)"
        )
    cell = m._cell
    if isinstance(cell, OpaqueCell):
        raise NotMutableError(
            f"this MutableArray was rebuilt by a tree transformation around a "
            f"{type(cell.child).__name__} instead of its Ref, and holds nothing to compute with: "
            "pass is_leaf=lambda x: isinstance(x, mutarray.MutableArray) to the transformation, or "
            "give it the values, m[...]"
        )
    return cell


def value_of(m: Any) -> jax.Array:
    """All that a handle holds, as an immutable array in device memory."""
    return _ops.working(cell_of(m))


def plain(x: Any) -> Any:
    """The value of a mutable array; anything else as it is."""
    return value_of(x) if isinstance(x, Handle) else x
