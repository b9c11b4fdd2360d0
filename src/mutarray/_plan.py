"""Selection × layout → plan: which shards, which box of each, which part of the value.

Pure: host integers in, host integers out. A plan exists for selections that are known on the host;
what is traced is decided on the devices, by the same rules (`_traced`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from mutarray._form import Form, Points, Selection, Span
from mutarray._layout import Layout, Shard


class SpanPart(NamedTuple):
    """The part of a span that falls into one block.

    Attributes:
        start: the first position, counted from the start of the block.
        size: how many positions.
        step: how far apart they are.
        offset: how many of the span's positions come before.
    """

    start: int
    size: int
    step: int
    offset: int


@dataclass(frozen=True, slots=True)
class Part:
    """What a selection means on one block.

    Attributes:
        block: the place of the block in the grid.
        shards: the devices that hold it; the first is replica 0.
        spans: for each span of the selection, in order, its part in this block.
        points: for each dimension with an index array, the positions counted from the start of the
            block; flat, one for each chosen point.
        chosen: which of the (flattened) points fall into this block; ``None`` without index arrays.
    """

    block: tuple[int, ...]
    shards: tuple[Shard, ...]
    spans: tuple[SpanPart, ...]
    points: tuple[np.ndarray, ...]
    chosen: np.ndarray | None

    @property
    def size(self) -> int:
        """How many elements it names."""
        n = 1 if self.chosen is None else len(self.chosen)
        for span in self.spans:
            n *= span.size
        return n


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts of a selection, block by block, without the blocks that it does not touch."""

    parts: tuple[Part, ...]

    @property
    def touched(self) -> tuple[Shard, ...]:
        """Every shard that the selection names an element of, replicas included."""
        return tuple(shard for part in self.parts for shard in part.shards)

    def touched_bytes(self, itemsize: int) -> int:
        """Bytes of the elements that the selection names, once per replica."""
        return sum(part.size * len(part.shards) for part in self.parts) * itemsize


def plan(selection: Selection, layout: Layout) -> Plan:
    """The plan of a selection that is known on the host.

    Positions out of range, which a ``mode`` may allow, are in no part.
    """
    form = selection.form
    if form.points_shape is None:
        return Plan(_parts(selection, layout, None, ()))
    points = tuple(np.broadcast_to(p, form.points_shape).ravel() for p in selection.points)
    count = int(np.prod(form.points_shape, dtype=np.int64))
    if not points:  # boolean scalars alone: every point is the whole selection
        return Plan(_parts(selection, layout, np.arange(count), ()) if count else ())
    dims = form.point_dims
    inside = np.ones(count, bool)
    blocks = np.zeros(count, np.int64)  # the place of the block, counted through
    for d, p in zip(dims, points, strict=True):
        inside &= (p >= 0) & (p < layout.shape[d])
        blocks = blocks * layout.counts[d] + p // max(layout.block_shape[d], 1)
    chosen = np.flatnonzero(inside)
    parts: list[Part] = []
    for block, mine in _grouped(blocks, chosen):
        place: dict[int, int] = {}
        for d in reversed(dims):
            block, place[d] = divmod(block, layout.counts[d])
        local = tuple(
            p[mine] - place[d] * layout.block_shape[d] for d, p in zip(dims, points, strict=True)
        )
        parts.extend(_parts(selection, layout, mine, local, place))
    return Plan(tuple(parts))


def _grouped(blocks: np.ndarray, chosen: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """The points of each block, blocks in ascending order, points in the order that they have."""
    mine = blocks[chosen]
    order = np.argsort(mine, kind="stable")
    chosen, mine = chosen[order], mine[order]
    bounds = [*np.flatnonzero(np.diff(mine, prepend=-1)), len(mine)]
    for first, end in itertools.pairwise(bounds):
        yield int(mine[first]), chosen[first:end]


def _parts(
    selection: Selection,
    layout: Layout,
    chosen: np.ndarray | None,
    points: tuple[np.ndarray, ...],
    place: dict[int, int] | None = None,
) -> tuple[Part, ...]:
    """The parts over all blocks that the spans touch, for points that share their blocks."""
    starts = iter(selection.starts)
    along: list[list[tuple[int, SpanPart | None]]] = []
    for d, dim in enumerate(selection.form.dims):
        if isinstance(dim, Points):
            along.append([((place or {})[d], None)])
        else:
            start = next(starts)
            assert isinstance(start, int)
            along.append([*span_parts(dim, start, layout.shape[d], layout.block_shape[d])])
    return tuple(
        Part(
            block=tuple(b for b, _ in combination),
            shards=layout.owners[tuple(b for b, _ in combination)],
            spans=tuple(part for _, part in combination if part is not None),
            points=points,
            chosen=chosen,
        )
        for combination in itertools.product(*along)
    )


def span_parts(span: Span, start: int, n: int, length: int) -> list[tuple[int, SpanPart]]:
    """The blocks of ``length`` along an axis of ``n`` that a span touches, and its part in each."""
    first = max(0, -(-(0 - start) // span.step))
    last = min(span.size, -(-(n - start) // span.step))
    parts: list[tuple[int, SpanPart]] = []
    while first < last:
        position = start + first * span.step
        block = position // length
        end = min(last, -(-((block + 1) * length - start) // span.step))
        parts.append((block, SpanPart(position - block * length, end - first, span.step, first)))
        first = end
    return parts


def covers(size: int) -> list[tuple[int, int]]:
    """Starts and lengths that cover ``size`` positions; the lengths are one power of two.

    One window, or two that overlap. What is compiled for lengths is then compiled for the powers of
    two alone, and it does no harm that a position gets its element twice.
    """
    length = 1 << (size.bit_length() - 1)
    return [(0, length)] if length == size else [(0, length), (size - length, length)]


def covered(part: Part, form: Form, layout: Layout) -> list[Part]:
    """A part as parts that overlap, whose spans have few lengths.

    These are those of the whole span, of the whole block, and powers of two.
    """
    along: list[list[SpanPart]] = []
    for span, mine, d in zip(form.spans, part.spans, form.span_dims, strict=True):
        fits = (span.size, -(-layout.block_shape[d] // span.step))
        windows = [(0, mine.size)] if mine.size in fits else covers(mine.size)
        along.append(
            [
                SpanPart(mine.start + ahead * mine.step, size, mine.step, mine.offset + ahead)
                for ahead, size in windows
            ]
        )
    return [replace(part, spans=spans) for spans in itertools.product(*along)]
