"""Boxes: what an index of integers and slices of step 1 names, block by block.

The short way to what `select` and `plan` say of such an index. A test holds both equal.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from mutarray._layout import Layout, Shard
from mutarray._plan import covers


class Piece(NamedTuple):
    """The part of a box that lies in one block.

    Attributes:
        shards: the devices that hold the block.
        cut: which part of the box it is, as the user sees the box; ``None``: all of it.
        starts: where it begins in the block.
        sizes: how long it is in each dimension.
    """

    shards: tuple[Shard, ...]
    cut: tuple[slice, ...] | None
    starts: tuple[int, ...]
    sizes: tuple[int, ...]


class Box(NamedTuple):
    """What an index of integers and slices of step 1 names.

    Attributes:
        pieces: its parts, block by block.
        shape: its shape, without the dimensions that integers took away.
        sources: the dimensions that are left.
    """

    pieces: Sequence[Piece]
    shape: tuple[int, ...]
    sources: tuple[int, ...]


def box_of(layout: Layout, index: Any, covered: bool) -> Box | None:
    """The box that an index of in-range integers and slices of step 1 names; or ``None``.

    Args:
        layout: of the array.
        index: what the user wrote between the brackets.
        covered: whether pieces that end at a border get lengths that are powers of two, with some
            elements in two pieces, so that there are few lengths; otherwise no two overlap.
    """
    if type(index) is not tuple:
        index = (index,)
    given = len(index)
    if given > len(layout.shape):
        return None
    lows: list[int] = []
    starts: list[int] = []
    sizes: list[int] = []  # in one block
    shape: list[int] = []
    sources: list[int] = []
    place: list[int | None] = []
    crosses = False
    for axis, n in enumerate(layout.shape):
        entry = index[axis] if axis < given else _ALL
        if type(entry) is int:
            low, size = (entry + n if entry < 0 else entry), 1
            if not 0 <= low < n:
                return None
        elif type(entry) is slice and entry.step is None:
            try:
                low, high, _ = entry.indices(n)
            except Exception:  # a traced bound, say: the long way tells what is wrong
                return None
            size = high - low
            if size <= 0:
                return None
            shape.append(size)
            sources.append(axis)
        else:
            return None
        length = layout.block_shape[axis]
        at, start = divmod(low, length)
        lows.append(low)
        starts.append(start)
        if start + size <= length:
            place.append(at)
            sizes.append(size)
        else:
            crosses = crosses or size != n
            place.append(None)
            sizes.append(size if crosses else length)
    kept = tuple(sources)
    if crosses:
        return Box(_crossing(layout, lows, shape, kept, covered), tuple(shape), kept)
    first, size = tuple(starts), tuple(sizes)
    owners = _owners(layout, tuple(place), kept)
    return Box([Piece(shards, cut, first, size) for shards, cut in owners], tuple(shape), kept)


_ALL = slice(None)


@functools.lru_cache(maxsize=4096)
def _owners(
    layout: Layout, place: tuple[int | None, ...], sources: tuple[int, ...]
) -> list[tuple[tuple[Shard, ...], tuple[slice, ...] | None]]:
    """The blocks of a box that lies in one block along each dimension, or takes it whole.

    Args:
        layout: of the array.
        place: for each dimension the block; ``None`` where the dimension is taken whole.
        sources: the dimensions that integers have not taken away.

    Returns:
        Who holds each block, and the part of the box that it gets.
    """
    if None not in place:
        return [(layout.owners[place], None)]  # pyright: ignore[reportArgumentType]
    along = [range(c) if p is None else (p,) for p, c in zip(place, layout.counts, strict=True)]
    out: list[tuple[tuple[Shard, ...], tuple[slice, ...] | None]] = []
    for block in itertools.product(*along):
        low = [b * length for b, length in zip(block, layout.block_shape, strict=True)]
        cut = tuple(
            slice(low[d], low[d] + layout.block_shape[d]) if place[d] is None else _ALL
            for d in sources
        )
        out.append((layout.owners[block], cut))
    return out


def _crossing(
    layout: Layout, lows: list[int], shape: list[int], sources: tuple[int, ...], covered: bool
) -> list[Piece]:
    """The pieces of a box that crosses a border somewhere."""
    sizes = dict(zip(sources, shape, strict=True))
    along = [
        _windows(low, low + sizes.get(d, 1), layout.block_shape[d], covered)
        for d, low in enumerate(lows)
    ]
    return [
        Piece(
            layout.owners[tuple(window[0] for window in windows)],
            tuple(slice(windows[d][3], windows[d][3] + windows[d][2]) for d in sources),
            tuple(window[1] for window in windows),
            tuple(window[2] for window in windows),
        )
        for windows in itertools.product(*along)
    ]


def _windows(low: int, high: int, length: int, covered: bool) -> list[tuple[int, int, int, int]]:
    """The parts of a range in blocks: block, start in the block, size, start in the range."""
    out: list[tuple[int, int, int, int]] = []
    for block in range(low // length, (high - 1) // length + 1):
        first, end = max(low, block * length), min(high, (block + 1) * length)
        size = end - first
        as_it_is = not covered or size in (length, high - low)
        for ahead, part in [(0, size)] if as_it_is else covers(size):
            at = first + ahead
            out.append((block, at - block * length, part, at - low))
    return out
