"""Mutable arrays for JAX that keep their sharding."""

from mutarray import errors, functional
from mutarray._array import MutableArray
from mutarray._born import (
    empty,
    empty_like,
    from_callback,
    full,
    full_like,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from mutarray._create import mutable_array
from mutarray._explain import Explanation, explain
from mutarray._guard import no_gather
from mutarray._items import ds
from mutarray._jit import jit
from mutarray._placement import LayoutTable
from mutarray._state import assign, freeze, map_inplace, mutable, values
from mutarray._transaction import transaction
from mutarray._verbs import addupdate, get, set, swap

__version__ = "0.1.0"

__all__ = [
    "Explanation",
    "LayoutTable",
    "MutableArray",
    "addupdate",
    "assign",
    "ds",
    "empty",
    "empty_like",
    "errors",
    "explain",
    "freeze",
    "from_callback",
    "full",
    "full_like",
    "functional",
    "get",
    "jit",
    "map_inplace",
    "mutable",
    "mutable_array",
    "no_gather",
    "ones",
    "ones_like",
    "set",
    "swap",
    "transaction",
    "values",
    "zeros",
    "zeros_like",
]
