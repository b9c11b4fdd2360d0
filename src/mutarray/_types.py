"""Type aliases. No logic."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Literal, Protocol, TypeAlias

import jax
import numpy as np


class HasArray(Protocol):
    """What says itself which ``jax.Array`` it stands for, as a mutable array does."""

    def __jax_array__(self) -> jax.Array: ...


Combinable: TypeAlias = (
    "jax.Array | np.ndarray | np.generic | bool | int | float | complex | HasArray"
)
"""Anything that an operator takes."""

ArrayLike: TypeAlias = "Combinable | list[Any] | tuple[Any, ...]"
"""Anything that can be the right side of an assignment."""

Shape: TypeAlias = tuple[int, ...]
Box: TypeAlias = tuple[tuple[int, int], ...]
"""A half-open range per dimension."""

Index: TypeAlias = Any
"""Anything that NumPy takes between square brackets, and ``mu.ds`` windows."""

Mode: TypeAlias = Literal["clip", "drop", "fill"]
"""What to do with an index that is out of range; JAX's words."""

Operand: TypeAlias = "int | np.ndarray | jax.Array"
"""A start or an index array: known on the host, or traced."""

Key: TypeAlias = Hashable

Launch: TypeAlias = "tuple[jax.Device, Callable[..., jax.Array], tuple[Any, ...]]"
"""One kernel on one shard: its device; what takes its block, which it may donate, and the operands,
and gives the new block; the operands."""
