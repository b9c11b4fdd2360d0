"""Masks that lie on the devices, each part where the part of the array is that it speaks of.

A mask that the host knows becomes a list of positions, which is split by owner. A mask on the
devices would have to come to the host for that. Where each device has the part of it that belongs
to its own block, or all of it, and the value is a scalar, nothing has to move at all: one program
goes through the blocks in place. Otherwise the host's way moves no more than any other.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from mutarray import _jaxapi
from mutarray._form import Form, Selection, Span
from mutarray._layout import split_axes
from mutarray._types import Index, Shape


def selection(index: Index, shape: Shape, sharding: Sharding) -> Selection | None:
    """The selection of a mask that is best left on the devices; ``None`` for any other index.

    Args:
        index: what the user wrote between the brackets.
        shape: the array's.
        sharding: the array's.
    """
    if type(index) is tuple and len(index) == 1:
        (index,) = index
    if not isinstance(index, jax.Array) or _jaxapi.is_tracer(index) or index.dtype != np.bool_:
        return None
    if not 0 < index.ndim <= len(shape) or index.shape != shape[: index.ndim] or 0 in shape:
        return None
    if not lies_well(index, sharding):
        return None
    dims = tuple(range(len(shape)))
    form = Form(
        shape=shape,
        dims=tuple(Span(n) for n in shape),
        points_shape=(1,),
        points_at=0,
        result_shape=(1, *shape[index.ndim :]),
        sources=(None, *dims[index.ndim :]),
        mask_dims=dims[: index.ndim],
    )
    return Selection(form, (0,) * len(shape), (), index)


def lies_well(mask: jax.Array, sharding: Sharding) -> bool:
    """Whether every device of the array has the part of the mask that its own block needs."""
    if mask.sharding.device_set != sharding.device_set:
        return False
    if mask.sharding.memory_kind != sharding.memory_kind:
        return False
    if mask.sharding.is_fully_replicated:
        return True
    if not isinstance(sharding, NamedSharding):
        return False
    spec = PartitionSpec(*(names or None for names in split_axes(sharding, mask.ndim)[: mask.ndim]))
    return mask.sharding.is_equivalent_to(NamedSharding(sharding.mesh, spec), mask.ndim)


def fits(value: Any) -> bool:
    """Whether it is a value that every device can have: a scalar."""
    return np.ndim(value) == 0 and not isinstance(value, jax.Array)
