"""The results of a compiled function, brought to the shardings that the user names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Sharding

from mutarray import _frames
from mutarray._array import wrap
from mutarray._handle import cell_of, is_handle
from mutarray._layout import check_sharding
from mutarray._trace_cells import ValueCell
from mutarray.errors import BadShardingError


def placing(fun: Callable[..., Any], shardings: Any) -> Callable[..., Any]:
    """``fun``, inside of a trace, with its results where ``shardings`` says."""

    @functools.wraps(fun)
    def run(*args: Any, **kwargs: Any) -> Any:
        return _placed(fun(*args, **kwargs), shardings)

    return run


def _placed(out: Any, shardings: Any) -> Any:
    """A result, each part of it under the sharding that a tree of them, or a part of one, names."""

    def is_end(x: Any) -> bool:
        return x is None or isinstance(x, Sharding)

    def place(sharding: Any, part: Any) -> Any:
        if sharding is None:
            return part
        return jax.tree.map(lambda x: _put(x, sharding), part, is_leaf=is_handle)

    try:
        jax.tree.map(lambda *_: None, shardings, out, is_leaf=is_end)
    except ValueError as error:
        raise BadShardingError(
            f"out_shardings is {jax.tree.structure(shardings, is_leaf=is_end)}, and the result is "
            f"{jax.tree.structure(out, is_leaf=is_handle)}: pass one sharding for all, or a tree "
            "like the result's whose leaves are shardings or None"
        ) from error
    return jax.tree.map(place, shardings, out, is_leaf=is_end)


def _put(x: Any, sharding: Any) -> Any:
    cell = cell_of(x) if is_handle(x) else None
    shape = jax.numpy.shape(x) if cell is None else cell.shape
    check_sharding(shape, sharding)
    if cell is None:
        return _frames.place(jax.numpy.asarray(x), sharding)
    if isinstance(cell, ValueCell):
        return wrap(ValueCell(_frames.place(cell.traced_value(), sharding), sharding))
    if cell.sharding != sharding:
        raise BadShardingError(
            f"out_shardings names {sharding} for a mutable array that is not made inside and lies "
            f"on {cell.sharding}: leave its place None, or use m.reshard"
        )
    return x
