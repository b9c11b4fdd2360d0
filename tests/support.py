"""Meshes, layouts and hypothesis strategies that the tests share."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from hypothesis import strategies as st
from jax.sharding import (
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
)

from mutarray._jaxapi import make_single_device_sharding

P = PartitionSpec


def mesh(shape: tuple[int, ...], names: str, kind: AxisType = AxisType.Auto) -> Mesh:
    """A mesh over the first devices, with one-letter axis names."""
    devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    return Mesh(devices, tuple(names), axis_types=(kind,) * len(shape))


KINDS = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}


def layouts(kind: AxisType) -> dict[str, tuple[tuple[int, ...], Sharding]]:
    """Shapes with shardings of every sort: one device, up to three axes, some of size 1, empty."""
    m8, m42 = mesh((8,), "a", kind), mesh((4, 2), "ij", kind)
    m222 = mesh((2, 2, 2), "xyz", kind)
    m1, m11 = mesh((1,), "a", kind), mesh((1, 1), "ij", kind)
    m18, m81 = mesh((1, 8), "ij", kind), mesh((8, 1), "ij", kind)
    return {
        "one device": ((5, 4), make_single_device_sharding(jax.devices()[0])),
        "vector on 8": ((16,), NamedSharding(m8, P("a"))),
        "rows on 8": ((8, 3), NamedSharding(m8, P("a"))),
        "4x2": ((8, 6), NamedSharding(m42, P("i", "j"))),
        "4x2, one axis": ((3, 8), NamedSharding(m42, P(None, "i"))),
        "4x2, both on one": ((16, 2), NamedSharding(m42, P(("i", "j"), None))),
        "4x2, replicated": ((4, 3), NamedSharding(m42, P())),
        "2x2x2": ((4, 4, 6), NamedSharding(m222, P("z", "x", None))),
        "2x2x2, whole": ((2, 6, 4), NamedSharding(m222, P("x", "y", "z"))),
        "mesh of 1": ((6, 3), NamedSharding(m1, P("a"))),
        "mesh of 1, replicated": ((6,), NamedSharding(m1, P())),
        "1x1": ((5, 4), NamedSharding(m11, P("j", "i"))),
        "1x8": ((3, 8), NamedSharding(m18, P("i", "j"))),
        "8x1": ((8, 3), NamedSharding(m81, P(("i", "j")))),
        "8x1, size-1 axis alone": ((8, 3), NamedSharding(m81, P("j", None))),
        "empty": ((0, 4), NamedSharding(m42, P("i", "j"))),
        "scalar": ((), NamedSharding(m42, P())),
    }


# Indices -----------------------------------------------------------------------------------------


def _ints(n: int, wild: bool) -> st.SearchStrategy[int]:
    return st.integers(-n - 2, n + 1) if wild or n == 0 else st.integers(-n, n - 1)


def _slices(n: int) -> st.SearchStrategy[slice]:
    bound = st.none() | st.integers(-n - 3, n + 3)
    return st.builds(slice, bound, bound, st.none() | st.integers(-4, 4).filter(bool))


@st.composite
def indices(draw: Any, shape: tuple[int, ...], wild: bool = False) -> Any:
    """A NumPy index for an array of ``shape``; with ``wild``, also ones that NumPy refuses."""
    ndim = len(shape)
    broadcast = draw(st.sampled_from([(), (1,), (2,), (3,), (2, 2), (3, 1), (0,)]))
    items: list[Any] = []
    axis = 0
    budget = draw(st.integers(0, ndim + (1 if wild else 0)))
    arrays_allowed = draw(st.booleans())
    has_ellipsis = False
    while axis < budget or draw(st.integers(0, 5)) == 0:
        if len(items) > ndim + 3:
            break
        n = shape[axis] if axis < ndim else 3
        choices = ["new", "ellipsis", "bool"]
        if axis < budget:
            choices = ["int", "slice", "slice", "slice", *choices]
            if arrays_allowed:
                choices += ["array", "array", "array", "list", "mask", "npint"]
        kind = draw(st.sampled_from(choices))
        if kind == "new":
            items.append(None)
        elif kind == "ellipsis":
            if has_ellipsis and not wild:
                continue
            has_ellipsis = True
            items.append(...)
        elif kind == "bool":
            if arrays_allowed and draw(st.integers(0, 3)) == 0:
                items.append(draw(st.booleans()))
        elif kind in ("int", "npint"):
            if n == 0 and not wild:
                items.append(slice(None))
            else:
                i = draw(_ints(n, wild))
                items.append(np.int64(i) if kind == "npint" else i)
            axis += 1
        elif kind == "slice":
            items.append(draw(_slices(n)))
            axis += 1
        elif kind == "mask":
            k = draw(st.integers(1, max(1, min(2, budget - axis))))
            dims = tuple(shape[axis : axis + k]) if axis + k <= ndim else (n,)
            bits = draw(
                st.lists(st.booleans(), min_size=int(np.prod(dims)), max_size=int(np.prod(dims)))
            )
            items.append(np.array(bits, bool).reshape(dims))
            axis += len(dims)
        else:
            dims = draw(st.sampled_from([broadcast, broadcast[-1:], ()]))
            if n == 0 and not wild:
                dims = (0,)
            count = int(np.prod(dims))
            values = draw(
                st.lists(
                    _ints(n, wild) if n or wild else st.just(0), min_size=count, max_size=count
                )
            )
            array = np.array(values, np.int64).reshape(dims)
            items.append(array.tolist() if kind == "list" and array.ndim else array)
            axis += 1
    if len(items) == 1 and draw(st.booleans()):
        return items[0]
    return tuple(items)


def numpy_take(x: np.ndarray, index: Any) -> tuple[np.ndarray | None, type | None]:
    """What NumPy takes, or the type of the error that it raises."""
    try:
        return np.asarray(x[index]), None
    except (IndexError, ValueError) as error:
        return None, type(error)
