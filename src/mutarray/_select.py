"""NumPy index → `Selection`.

The index dialect ends here. Whatever a user writes between square brackets becomes, for each
dimension of the array, either a `Span` (evenly spaced positions) or `Points` (positions from an
index array). What decides shapes, and so what is compiled, is in the hashable `Form`; what may vary
from call to call without a recompile (starts, index arrays, masks) are operands beside it.

The rules are NumPy's (https://numpy.org/doc/stable/user/basics.indexing.html), with JAX's for what
is known only when the program runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mutarray import _items
from mutarray._form import Form, Points, Selection, Span
from mutarray._items import Item
from mutarray._types import Index, Operand, Shape
from mutarray.errors import BadIndexError, BadModeError, OutOfBoundsError, TracedIndexError

MODES = ("clip", "drop", "fill")


@dataclass(slots=True)
class _Draft:
    """A selection while its entries are read from left to right."""

    shape: Shape
    mode: str | None
    wrap: bool
    writing: bool
    dims: list[Span | Points] = field(default_factory=list)
    starts: list[Operand] = field(default_factory=list)
    points: list[Any] = field(default_factory=list)
    arrays: list[Any] = field(default_factory=list)
    before: list[tuple[int, int | None]] = field(default_factory=list)
    after: list[tuple[int, int | None]] = field(default_factory=list)
    groups: int = 0
    in_group: bool = False
    points_at: int = 0
    traced: bool = False
    mask: Any = None
    mask_dims: tuple[int, ...] | None = None
    from_mask: int = 0
    error: OutOfBoundsError | None = None

    @property
    def axis(self) -> int:
        return len(self.dims)

    def span(self, span: Span, start: Operand) -> None:
        self.dims.append(span)
        self.starts.append(start)

    def fancy(self) -> None:
        """Notes that an entry takes part in index-array broadcasting."""
        if not self.in_group:
            self.groups += 1
            self.in_group = True
            if self.groups == 1:
                self.points_at = sum(isinstance(dim, Span) for dim in self.dims)

    def show(self, size: int, source: int | None) -> None:
        """Notes an axis of the result that comes from a slice, a window or ``None``."""
        self.in_group = False
        (self.after if self.groups else self.before).append((size, source))


def select(
    shape: Shape,
    index: Index,
    *,
    writing: bool,
    mode: str | None = None,
    wrap: bool = True,
    unique: bool = False,
) -> Selection:
    """Makes an index canonical against a shape.

    Args:
        shape: the shape of the array.
        index: anything that NumPy takes between square brackets, and windows.
        writing: whether the selection will be written; decides the rule for traced indices.
        mode: what to do with indices out of range; ``None``: those known on the host raise, traced
            ones are dropped when writing and clipped when reading.
        wrap: whether negative indices count from the end.
        unique: the user's word that no position occurs twice.

    Raises:
        OutOfBoundsError: an integer known on the host is out of range, and ``mode`` is ``None``.
        BadIndexError: the index is none that NumPy knows.
        TracedIndexError: the shape of the result depends on a traced value.
        BadModeError: ``mode`` is unknown.
    """
    if mode is not None and mode not in MODES:
        raise BadModeError(f"mode={mode!r} is unknown: pass one of {', '.join(map(repr, MODES))}")
    items = _items.expand(_items.parse(index), len(shape))
    draft = _Draft(shape, mode, wrap, writing)
    has_arrays = any(item.kind in ("array", "mask", "bool") for item in items)
    for item in items:
        _READERS[item.kind](draft, item, has_arrays)
    return _finish(draft, has_arrays, unique)


def _finish(draft: _Draft, has_arrays: bool, unique: bool) -> Selection:
    if draft.mask_dims is not None and len(draft.arrays) > 1:
        raise TracedIndexError(
            "a traced mask cannot be combined with index arrays or a second mask: combine the "
            "masks with &, or write jnp.where(mask, value, m[idx]) to m[idx]"
        )
    points_shape = _broadcast([np.shape(a) for a in draft.arrays]) if has_arrays else None
    contiguous = draft.groups <= 1
    # As in NumPy: index arrays that broadcast to nothing are not checked, for they touch nothing.
    if draft.error is not None and 0 not in (points_shape or ()):
        raise draft.error
    before, after = (draft.before, draft.after) if contiguous else ([], draft.before + draft.after)
    axes = [*before, *((n, None) for n in points_shape or ()), *after]
    rule = "exact"
    if draft.mode is not None and draft.points:
        rule = "clip" if draft.mode == "clip" else "drop"
    elif draft.traced and draft.points:
        rule = "drop" if draft.writing else "clip"
    form = Form(
        shape=draft.shape,
        dims=tuple(draft.dims),
        points_shape=points_shape,
        points_at=draft.points_at if contiguous else 0,
        result_shape=tuple(size for size, _ in axes),
        sources=tuple(source for _, source in axes),
        rule=rule,
        mask_dims=draft.mask_dims,
        unique=unique or (draft.writing and not draft.traced and _all_differ(draft, points_shape)),
    )
    return Selection(form, tuple(draft.starts), tuple(draft.points), draft.mask)


def _all_differ(draft: _Draft, points_shape: Shape | None) -> bool:
    """Whether index arrays that are known on the host name no position twice."""
    if not draft.points or points_shape is None:
        return False
    if draft.from_mask and len(draft.arrays) == draft.from_mask:
        return True
    dims = [d for d, dim in enumerate(draft.dims) if isinstance(dim, Points)]
    keys = np.zeros(points_shape, np.int64)
    for d, p in zip(dims, draft.points, strict=True):  # a place past the end stands for all outside
        keys = keys * (draft.shape[d] + 1) + p
    keys = np.sort(keys, axis=None)
    return bool((keys[1:] != keys[:-1]).all())


def _broadcast(shapes: list[Shape]) -> Shape:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise BadIndexError(
            "shape mismatch: indexing arrays could not be broadcast together with shapes "
            f"{' '.join(map(str, shapes))}: give them equal lengths, or 1"
        ) from None


# One reader for each kind of entry ---------------------------------------------------------------


def _read_new_axis(draft: _Draft, item: Item, has_arrays: bool) -> None:
    del item, has_arrays
    draft.show(1, None)


def _read_ellipsis(draft: _Draft, item: Item, has_arrays: bool) -> None:
    del has_arrays
    draft.in_group = False
    for _ in range(item.consumes):
        size = draft.shape[draft.axis]
        draft.show(size, draft.axis)
        draft.span(Span(size), 0)


def _read_slice(draft: _Draft, item: Item, has_arrays: bool) -> None:
    del has_arrays
    taken = range(draft.shape[draft.axis])[item.value]
    size, step = len(taken), taken.step
    draft.show(size, draft.axis)
    if size <= 1:  # the step plays no part: one form for all such slices
        draft.span(Span(size), taken.start if size else 0)
    elif step > 0:
        draft.span(Span(size, step), taken.start)
    else:
        draft.span(Span(size, -step, flip=True), taken[-1])


def _read_window(draft: _Draft, item: Item, has_arrays: bool) -> None:
    del has_arrays
    window, n = item.value, draft.shape[draft.axis]
    span = Span(int(window.size), int(window.stride))
    _items.check_window(span.size, span.step, span.extent, draft.axis, n)
    loose = draft.mode in ("drop", "fill")
    draft.show(span.size, draft.axis)
    start = window.start
    if isinstance(start, int):
        start = start + n if draft.wrap and start < 0 else start
        if not loose:
            start = min(max(start, 0), n - span.extent)
        fits = 0 <= start <= n - span.extent
        draft.span(span if fits else span._replace(rule="loose"), start)
    else:
        draft.span(span._replace(rule="loose" if loose else "window", wrap=draft.wrap), start)


def _read_int(draft: _Draft, item: Item, has_arrays: bool) -> None:
    axis, n, i = draft.axis, draft.shape[draft.axis], item.value
    if has_arrays:
        draft.fancy()
    if not isinstance(i, int):
        loose = draft.writing if draft.mode is None else draft.mode != "clip"
        if n == 0:
            raise _items.empty_axis(axis)
        draft.span(Span(1, rule="loose" if loose else "window", wrap=draft.wrap), i)
        return
    wrapped = i + n if i < 0 and draft.wrap else i
    if 0 <= wrapped < n:
        draft.span(Span(1), wrapped)
    elif draft.mode is None:
        raise _out_of_bounds(i, axis, n, draft.wrap)
    elif n == 0:
        raise _items.empty_axis(axis)
    elif draft.mode == "clip":
        draft.span(Span(1), min(max(wrapped, 0), n - 1))
    else:
        draft.span(Span(1, rule="loose"), wrapped if 0 <= wrapped else n)


def _out_of_bounds(i: int, axis: int, n: int, wrap: bool) -> OutOfBoundsError:
    if n == 0:
        return _items.empty_axis(axis)
    return OutOfBoundsError(
        f"index {i} is out of bounds for axis {axis} with size {n}: allowed are "
        f"{-n if wrap else 0} to {n - 1}; to clip, drop or fill such indices instead, use "
        "mu.get, mu.set or mu.addupdate with mode="
    )


def _read_array(draft: _Draft, item: Item, has_arrays: bool) -> None:
    del has_arrays
    axis, n = draft.axis, draft.shape[draft.axis]
    draft.fancy()
    array = item.value
    if isinstance(array, np.ndarray):
        array, error = _host_points(array, axis, n, draft.mode, draft.wrap)
        draft.error = draft.error or error
    else:
        draft.traced = True
        if n == 0 and array.size:
            raise _items.empty_axis(axis)
    draft.dims.append(Points(wrap=draft.wrap and not isinstance(array, np.ndarray)))
    draft.points.append(array)
    draft.arrays.append(array)


def _host_points(
    array: np.ndarray, axis: int, n: int, mode: str | None, wrap: bool
) -> tuple[np.ndarray, OutOfBoundsError | None]:
    """An index array that is known on the host, wrapped and clipped; or why it is out of range."""
    array = array.astype(object if array.dtype == np.uint64 else np.int64)
    points = np.where(array < 0, array + n, array) if wrap else array
    bad = (points < 0) | (points >= n)
    error = None
    if np.any(bad):
        if n == 0:
            error = _items.empty_axis(axis)
        elif mode is None:
            error = _out_of_bounds(int(array[bad].flat[0]), axis, n, wrap)
        points = np.clip(points, 0, max(n - 1, 0)) if mode == "clip" else np.where(bad, n, points)
    small = n <= np.iinfo(np.int32).max
    return np.asarray(points, np.int32 if small else np.int64), error


def _read_bool(draft: _Draft, item: Item, has_arrays: bool) -> None:
    del has_arrays
    draft.fancy()
    draft.arrays.append(np.zeros(int(item.value), np.int32))


def _read_mask(draft: _Draft, item: Item, has_arrays: bool) -> None:
    mask, first = item.value, draft.axis
    covered = draft.shape[first : first + mask.ndim]
    for d, (given, wanted) in enumerate(zip(mask.shape, covered, strict=True)):
        if given not in (0, wanted):  # as in NumPy, a mask of length 0 selects nothing anywhere
            raise BadIndexError(
                f"boolean index did not match indexed array along axis {first + d}; size of axis "
                f"is {wanted} but size of corresponding boolean axis is {given}: give the mask the "
                "size of the axis"
            )
    if isinstance(mask, np.ndarray):
        draft.from_mask = mask.ndim  # of all index arrays, if there is no other: all differ
        for where in np.nonzero(mask):
            _read_array(draft, Item("array", where, 1), has_arrays)
        return
    if not draft.writing:
        raise TracedIndexError(
            "a read by a mask that is traced has a shape that is not known when the program is "
            "compiled: use jnp.where(mask, m[...], fill), or compute the mask outside of jit"
        )
    draft.fancy()
    draft.mask, draft.mask_dims = mask, tuple(range(first, first + mask.ndim))
    draft.arrays.append(np.zeros(1, np.int32))
    for n in covered:
        draft.span(Span(n), 0)


_READERS = {
    "new": _read_new_axis,
    "ellipsis": _read_ellipsis,
    "slice": _read_slice,
    "window": _read_window,
    "int": _read_int,
    "array": _read_array,
    "bool": _read_bool,
    "mask": _read_mask,
}
