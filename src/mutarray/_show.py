"""Pictures of an array: JAX's of its sharding, and treescope's in notebooks.

The one file of the core that uses what is optional, and only inside the functions that need it:
rich by way of JAX, and treescope. Pictures of the sharding follow from the sharding alone. Of the
contents, treescope gets the few elements that it shows, and none where reading them would involve
other processes or take the whole array along.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mutarray import _jaxapi, _ops, _placement, _repr
from mutarray._cell import BufferCell
from mutarray._handle import Handle
from mutarray._layout import Layout, layout_of
from mutarray._trace_cells import Cell, OpaqueCell
from mutarray.errors import MissingLibraryError, TraceError

# The terminal -------------------------------------------------------------------------------------


def draw(cell: Cell, options: dict[str, Any]) -> None:
    """Prints JAX's picture of the sharding, one for each part of the leading axes.

    JAX draws one and two axes. All that lies in one block of the axes before those has the same
    picture, and no two blocks have the same, for a device holds one block.

    Raises:
        MissingLibraryError: rich is not installed.
        TraceError: inside a trace, where the sharding is not known.
    """
    layout = layout_of(cell.shape, _placement.known_sharding(cell))
    if not cell.shape or 0 in cell.shape:
        many = "one element" if not cell.shape else "no elements"
        ids = ", ".join(str(shard.device.id) for shard in layout.shards)
        kind = _repr.kind_of(cell.dtype, cell.shape)
        print(f"{kind} has {many}, and nothing is split; on devices {ids}")
        return
    if importlib.util.find_spec("rich") is None:
        raise MissingLibraryError(
            "m.visualize() draws with rich, which is not installed: pip install 'mutarray[show]', "
            "or print m.layout(), which needs nothing"
        )
    leading = max(len(cell.shape) - 2, 0)
    for block in itertools.product(*map(range, layout.counts[:leading])):
        sizes = layout.block_shape[:leading]
        box = tuple((k * n, (k + 1) * n) for k, n in zip(block, sizes, strict=True))
        if box:
            print(f"[{_placement.ranges(box)}, ...]")
        sharding = _sharding_within(layout, block)
        jax.debug.visualize_sharding(cell.shape[leading:], sharding, **options)


def _sharding_within(layout: Layout, block: tuple[int, ...]) -> NamedSharding:
    """How one block of the leading axes lies on its devices."""
    counts = layout.counts[len(block) :]
    devices = np.empty((*counts, layout.replicas), object)
    for place in itertools.product(*map(range, counts)):
        devices[place] = [shard.device for shard in layout.owners[block + place]]
    names = ("rows", "columns")[: len(counts)]
    return NamedSharding(Mesh(devices, (*names, "replicas")), PartitionSpec(*names))


# The notebook -------------------------------------------------------------------------------------


def html(m: Handle) -> str | None:
    """What a notebook shows; ``None`` without treescope, and the notebook shows the text."""
    if importlib.util.find_spec("treescope") is None:
        return None
    import treescope

    with treescope.active_autovisualizer.set_scoped(treescope.ArrayAutovisualizer()):
        return treescope.render_to_html(m)


def as_node(m: Handle, path: str | None) -> Any:
    """The array in a tree that treescope shows: its line of text, which opens to its layout."""
    from treescope import rendering_parts as parts

    line = parts.abbreviation_color(parts.text(f"<{_repr.describe(m._cell)}>"))
    try:
        if isinstance(m._cell, OpaqueCell):
            return parts.build_one_line_tree_node(line, path)
        table = parts.text(repr(_placement.table_of(m._cell)))
    except TraceError:
        return parts.build_one_line_tree_node(line, path)
    return parts.build_custom_foldable_tree_node(
        label=line,
        contents=parts.fold_condition(expanded=parts.indented_children([table])),
        path=path,
        expand_state=parts.ExpandState.COLLAPSED,
    )


@functools.cache
def adapter() -> Any:
    """What treescope asks about an array before it draws it."""
    from treescope import ndarray_adapters as theirs

    class Adapter(theirs.NDArrayAdapter[Any]):
        def get_axis_info_for_array_data(self, array: Any) -> tuple[theirs.AxisInfo, ...]:
            return tuple(theirs.PositionalAxisInfo(k, n) for k, n in enumerate(array.shape))

        def get_array_data_with_truncation(
            self, array: Any, mask: Any, edge_items_per_axis: tuple[int | None, ...]
        ) -> tuple[np.ndarray, np.ndarray]:
            return _edges(array._cell, mask, edge_items_per_axis)

        def get_array_summary(self, array: Any, fast: bool) -> str:
            return _repr.heading(array._cell)

        def get_numpy_dtype(self, array: Any) -> np.dtype | None:
            return array.dtype if isinstance(array.dtype, np.dtype) else None

        def get_sharding_info_for_array_data(self, array: Any) -> theirs.ShardingInfo:
            layout = layout_of(array.shape, _placement.known_sharding(array._cell))
            held: dict[int, tuple[slice | int, ...]] = {
                s.device.id: tuple(slice(*pair) for pair in s.box) for s in layout.shards
            }
            platform = layout.shards[0].device.platform.upper()
            return theirs.ShardingInfo(
                layout.block_shape, held, platform, fully_replicated=len(layout.owners) == 1
            )

        def should_autovisualize(self, array: Any) -> bool:
            return _is_cheap_to_read(array._cell)

    return Adapter()


def _is_cheap_to_read(cell: Cell | OpaqueCell) -> bool:
    """Whether an element costs no more than an element, and nobody else has to take part."""
    if not isinstance(cell, BufferCell) or _jaxapi.in_trace():
        return False
    return (cell.place.is_local or cell.place.memory is not None) and not _ops.is_spent(cell)


def _edges(cell: Cell, mask: Any, edges: Sequence[int | None]) -> tuple[np.ndarray, np.ndarray]:
    """The first and the last so many positions of each axis, with one that stands for the rest.

    Args:
        cell: the array.
        mask: the elements to show, or ``None`` for all.
        edges: how many at each end, or ``None`` for the whole axis.

    Returns:
        The elements, and which of them are there.
    """
    mask = np.broadcast_to(True if mask is None else mask, cell.shape)
    ways = [
        [(slice(None), slice(None))]
        if edge is None
        else [(slice(0, edge),) * 2, (slice(n - edge, n), slice(edge + 1, None))]
        for n, edge in zip(cell.shape, edges, strict=True)
    ]
    shape = [n if e is None else 2 * e + 1 for n, e in zip(cell.shape, edges, strict=True)]
    data, there = np.zeros(shape, cell.dtype), np.zeros(shape, bool)
    for corner in itertools.product(*ways):
        source, target = tuple(pair[0] for pair in corner), tuple(pair[1] for pair in corner)
        data[target] = np.asarray(_ops.get(cell, source))
        there[target] = mask[source]
    return data, there
