"""Mutable arrays for JAX that keep their sharding."""

from mutarray import errors
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
from mutarray._items import ds
from mutarray._verbs import addupdate, freeze, get, set, swap

__version__ = "0.1.0"

__all__ = [
    "MutableArray",
    "addupdate",
    "ds",
    "empty",
    "empty_like",
    "errors",
    "freeze",
    "from_callback",
    "full",
    "full_like",
    "get",
    "mutable_array",
    "ones",
    "ones_like",
    "set",
    "swap",
    "zeros",
    "zeros_like",
]
