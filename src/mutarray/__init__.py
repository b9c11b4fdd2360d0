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
from mutarray._placement import LayoutTable
from mutarray._verbs import addupdate, freeze, get, set, swap

__version__ = "0.1.0"

__all__ = [
    "Explanation",
    "LayoutTable",
    "MutableArray",
    "addupdate",
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
    "mutable_array",
    "no_gather",
    "ones",
    "ones_like",
    "set",
    "swap",
    "zeros",
    "zeros_like",
]
