"""What a write does with old and new elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

_COMBINE: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "set": lambda old, new: new,
    "add": jnp.add,
    "multiply": jnp.multiply,
    "min": jnp.minimum,
    "max": jnp.maximum,
}

Op = Any
"""What a write does with old and new elements: a key of `_COMBINE`, or a hashable function."""


def is_function(op: Op) -> bool:
    """Whether it is a function of old and new elements, for which values keep their own dtype."""
    return callable(op)


def combine(old: jax.Array, new: jax.Array, op: Op) -> jax.Array:
    """Old and new elements under an `Op`, in the dtype of the old."""
    return op(old, new).astype(old.dtype) if is_function(op) else _COMBINE[op](old, new)
