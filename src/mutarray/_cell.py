"""The cell that owns the buffers of one mutable array.

The only place where a buffer is replaced, shared or given up. Outside of traces the cell is read
and written directly. In a trace it is used through its *door*, a ``jax.Ref`` whose buffer is
whatever the cell lends; what a trace sees instead of a cell is in `_trace_cells`.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Sharding

from mutarray import _buffers, _guard, _jaxapi, _reshard
from mutarray._frames import Home
from mutarray._place import Place, place_of
from mutarray._types import Launch
from mutarray.errors import SpentError, TraceError

_WORTH_ASKING = 1 << 20
"""Blocks of at least so many bytes are copied only if somebody holds them."""

_LOST = (
    "this mutable array's buffers were donated to a call that did not finish, and its contents are "
    "lost: make it anew from a checkpoint or a snapshot"
)


class Moves:
    """Whether some array has moved: then `last` is another object than before."""

    last = object()


class Saved(NamedTuple):
    """The contents of an array at one moment, and who else had them."""

    array: jax.Array
    place: Place
    alias: weakref.ref[jax.Array]
    shared: frozenset[jax.Device]
    aliases: list[weakref.ref[jax.Array]]


class BufferCell:
    """Owns the buffers of one array, in one of two forms that share them.

    *Assembled*: one global array, which is what JAX works with. The object is private, because JAX
    replaces the buffers inside it. *Scattered*: one single-device array for each shard of this
    process, which is what the eager engine works with. Each is made from the other when it is asked
    for, without a copy, and is dropped when the other has been written to.

    What users get are aliases. A shard that an alias may hold counts as shared, and whoever is
    about to write to it in place copies it first.
    """

    def __init__(self, array: jax.Array, sharding: Sharding, fixed: bool = True):
        self._blocks: dict[jax.Device, jax.Array] | None = None
        self._shared: set[jax.Device] = set()
        self._aliases: list[weakref.ref[jax.Array]] = []
        self._lent: tuple[Sharding, jax.Array] | None = None
        self._clean = False
        """Whether `_array` may be donated as it is: nothing else shares its buffers."""
        self._door: Any = None
        self._spent = ""
        self._source = _jaxapi.here()
        self.handle: weakref.ref[Any] | None = None
        self.lock = threading.RLock()
        self.reads = None  # tokens must not outlive their trace, as this cell does
        self.shape = array.shape
        self.dtype = array.dtype
        in_c_order = _jaxapi.custom_layout(array) is None
        self.place = place_of(array.shape, array.dtype, sharding, in_c_order, fixed)
        """Where it lives. It moves only under the lock, so nobody else sees a part of a move."""
        self._array: jax.Array | None = _buffers.committed(array)

    @property
    def sharding(self) -> Sharding:
        """The sharding; the same object until the array moves."""
        return self.place.sharding

    @property
    def is_frozen(self) -> bool:
        """Whether the contents were given up, or are lost."""
        return bool(self._spent)

    @property
    def home(self) -> Home:
        """Shape and sharding, as a trace knows them."""
        return self.place.home

    @property
    def made_at(self) -> str:
        """Where in the user's code it was made."""
        return _jaxapi.summarize(self._source)

    def loose(self, value: jax.Array) -> jax.Array:
        """What was read, on devices that JAX minds only if the user chose them."""
        if self.place.fixed or not value.committed:
            return value
        return _jaxapi.alias(value, value.sharding, fixed=False)

    def array(self) -> jax.Array:
        """The contents; not to be handed out, and not to be kept beyond one operation."""
        self._settle()
        array = self._live()
        if array.is_deleted():
            raise SpentError(_LOST)
        return array

    def like(self) -> jax.Array:
        """An array with the type of the contents, for traces, where no lent copy comes home."""
        return self.array() if self._lent is None else self._live()

    def block(self, device: jax.Device) -> jax.Array:
        """The block that a device holds; not to be handed out either."""
        return self._scattered()[device]

    def snapshot(self) -> jax.Array:
        """An immutable array with the contents, which shares the buffers until the next write."""
        with self.lock:
            alias = _jaxapi.alias(self.array(), self.sharding, self.place.fixed)
            self._shared = {shard.device for shard in self.place.layout.shards}
            self._clean = False
            self._aliases = [a for a in self._aliases if a() is not None] + [weakref.ref(alias)]
            return alias

    def replace(self, array: jax.Array) -> None:
        """Puts new contents, laid out by the cell's sharding, in the place of the old."""
        self._array = array
        self._blocks = None
        self._clean = False
        self._shared = set()
        self._aliases = []

    def run(self, launches: Sequence[Launch]) -> None:
        """Runs kernels on the blocks of their devices; all of them, or the array is lost."""
        blocks = self._blocks or self._scattered()
        if self._shared:
            self._own([launch[0] for launch in launches])
        self._array = None  # shares the buffers that are donated now
        done = 0
        try:
            for device, kernel, operands in launches:
                blocks[device] = kernel(blocks[device], *operands)
                done += 1
        except BaseException:
            self._finish(launches[done:], done)
            raise

    def _finish(self, launches: Sequence[Launch], done: int) -> None:
        """Mends an array in which some blocks have been written and an error came up.

        So must be the rest, or nobody knows what is in the array: an interrupt is raised again when
        all has been written. Where that fails too, the contents are lost, unless nothing was done.
        """
        blocks = self._scattered()
        try:
            for device, kernel, operands in launches if done else ():
                blocks[device] = kernel(blocks[device], *operands)
        except BaseException:
            self._blocks, self._spent = None, _LOST
        if any(block.is_deleted() for block in blocks.values()):
            self._blocks, self._spent = None, _LOST

    def run_whole(self, program: Callable[[jax.Array], jax.Array]) -> None:
        """Replaces the contents by what a program makes of them; it may donate them."""
        self._own(shard.device for shard in self.place.layout.shards)
        array = self.array()
        self._blocks = None
        self.replace(program(array))

    def move(self, sharding: Sharding) -> None:
        """Lays the array out by another sharding; if that fails, nothing has changed.

        Raises:
            IndivisibleError: an axis would be split unevenly.
            BadShardingError: it is no sharding, or has more dimensions than the array.
        """
        with self.lock:
            array = self.array()
            in_c_order = _jaxapi.custom_layout(array) is None
            place = place_of(self.shape, self.dtype, sharding, in_c_order)
            moved, kept = _reshard.moved(array, self.sharding, sharding)
            self._shared &= kept  # blocks that stay where they are may still be in a user's hand
            self._array, self._blocks, self._clean = moved, None, False
            self._door, self.place = None, place
            Moves.last = object()  # after the place, for those who look at both in turn

    def give_up(self, reason: str) -> jax.Array:
        """The contents under an array of the caller's; the cell is spent."""
        with self.lock:
            alias = _jaxapi.alias(self.array(), self.sharding, self.place.fixed)
            self._array, self._blocks, self._spent, self._clean = None, None, reason, False
            return alias

    def save(self) -> Saved:
        """What `restore` goes back to; it shares the buffers until the next write."""
        with self.lock:
            shared, aliases = frozenset(self._shared), list(self._aliases)
            array = self.snapshot()
            # Not without the dead ones: what a user took out of those may live.
            self._aliases = [*aliases, self._aliases[-1]]
            return Saved(array, self.place, self._aliases[-1], shared, aliases)

    def restore(self, saved: Saved) -> None:
        """Takes back all that was done to the array since."""
        with self.lock:
            self._array = _buffers.committed(saved.array)
            self._blocks, self._lent, self._clean = None, None, False
            self._spent = ""
            if self.place is not saved.place:
                self.place, self._door = saved.place, None
                Moves.last = object()
            # Who took a snapshot before anything was written has these buffers too.
            self._shared = {shard.device for shard in self.place.layout.shards}
            self._aliases = [a for a in self._aliases if a is not saved.alias]

    def forget(self, saved: Saved) -> None:
        """Keeps what was done since; what was not written is shared no more than it was before."""
        with self.lock:
            aliases = [a for a in self._aliases if a is not saved.alias]
            known = all(any(a is b for b in saved.aliases) for a in aliases)
            if known and self.place is saved.place:
                self._shared &= saved.shared
            self._aliases = aliases

    def _live(self) -> jax.Array:
        if self._array is None:
            if self._blocks is None:
                raise SpentError(self._spent)
            self._array = jax.make_array_from_single_device_arrays(
                self.shape, self.sharding, list(self._blocks.values()), dtype=self.dtype
            )
        return self._array

    def _scattered(self) -> dict[jax.Device, jax.Array]:
        if self._blocks is None:
            self._clean = False
            devices = [shard.device for shard in self.place.layout.shards if shard.addressable]
            self._blocks = dict(zip(devices, _jaxapi.blocks(self.array()), strict=True))
        return self._blocks

    def _own(self, devices: Iterable[jax.Device]) -> None:
        """Copies the blocks on ``devices`` that are shared."""
        if not self._shared:
            return
        blocks = self._scattered()
        if self._nobody_holds(blocks):
            self._shared, self._aliases = set(), []
            return
        for device in devices:
            if device in self._shared:
                blocks[device] = _buffers.copy_block(blocks[device])
                self._shared.discard(device)
                self._array = None

    def _nobody_holds(self, blocks: dict[jax.Device, jax.Array]) -> bool:
        """Whether all that was handed out is provably gone, so that no block needs a copy.

        The aliases themselves are known; of what a user may have taken out of them, arrays are
        found among all that are alive. NumPy views and DLPack exports need not be: XLA copies a
        buffer that is donated while one of those looks at it. Finding out costs some 0.5 µs for
        each array alive, so small blocks are copied without asking.
        """
        if next(iter(blocks.values())).nbytes < _WORTH_ASKING:
            return False
        if any(alias() is not None for alias in self._aliases):
            return False
        self._array = None  # holds arrays of its own for the blocks; made anew when it is needed
        return not _jaxapi.is_held_elsewhere(list(blocks.values()))

    # The door --------------------------------------------------------------------------------

    def ref(self) -> Any:
        """The Ref that stands for this cell in traces; always the same object."""
        with self.lock:
            array = self.like()
            if self._door is None:
                self._door = _jaxapi.make_door(array, self, self.place.work)
            return self._door

    def lend(self, work: Sharding) -> jax.Array:
        """An array that JAX may donate, and whose buffers it replaces.

        Args:
            work: in device memory; the array's own sharding, or another one, in which a copy is
                lent: for an array in host memory, or to a program that was compiled around the
                array before it moved.
        """
        with self.lock:
            if work is not self.sharding and work != self.sharding:
                return self._lend_copy(work)
            self._settle()
            alone = self.place.is_local and self._shared and self._nobody_holds(self._scattered())
            if self._shared and not alone:
                self.replace(_buffers.copy(self.array(), self.sharding))
            self._shared, self._aliases = set(), []
            array = self._live()
            self._blocks, self._clean = None, True
            return array

    def _lend_copy(self, work: Sharding) -> jax.Array:
        """A copy under another sharding, brought home at the next use.

        For arrays in host memory: JAX 0.9 cannot compile a Ref in host memory for several CPU
        devices, and later versions move the whole array to the device all the same. And for
        programs that closed over an array that has moved since: JAX keeps them as they are.
        """
        if self._lent is None or self._lent[0] is not work:
            array = self.array()
            in_host_memory = work is self.place.work
            _guard.moves(
                f"a compiled program with an array of shape {self.shape}"
                + (" in host memory" if in_host_memory else ""),
                math.prod(work.shard_shape(self.shape)) * self.dtype.itemsize,
                None,
                f"the array lies in {self.sharding.memory_kind}, and programs get a copy of it"
                if in_host_memory
                else "it closed over the array, which was resharded since, and gets a copy of it "
                f"laid out by {work}",
                "Use it outside of jit, or keep it in device memory."
                if in_host_memory
                else "Pass the array to it as an argument.",
            )
            self._lent = work, _reshard.moved(array, self.sharding, work, shares=False)[0]
            self._blocks = None  # so that the next use asks for the array, and gets the copy's
        return self._lent[1]

    def _settle(self) -> None:
        """Brings a lent copy home; drops one that was donated to a call that failed."""
        with self.lock:
            if self._lent is None:
                return
            work, lent = self._lent
            self._lent = None
            if not lent.is_deleted():
                self.replace(_reshard.moved(lent, work, self.sharding, shares=False)[0])

    def traced_value(self) -> jax.Array:
        """The contents, inside a trace."""
        refuse_misplaced()
        return self.ref()[...]

    def traced_replace(self, value: jax.Array) -> None:
        """New contents, inside a trace."""
        refuse_misplaced()
        self.ref()[...] = value


# Several cells -------------------------------------------------------------------------------


def lend_all(cells: Sequence[BufferCell]) -> list[Any]:
    """Arrays in device memory that the caller may donate, if it gives others back."""
    arrays = [cell._array for cell in cells if cell._clean]
    if len(arrays) == len(cells):
        return arrays
    for cell in cells:
        cell.array()  # raises if the contents are lost
    return [cell.lend(cell.place.work) for cell in cells]


def take_all(cells: Sequence[BufferCell], arrays: Sequence[jax.Array]) -> None:
    """Puts new contents in the place of what was lent."""
    for cell, array in zip(cells, arrays, strict=True):
        if cell._clean:
            cell._array = array
        else:
            cell._lent = cell.place.work, array  # brought home to host memory at the next use


def recheck_all(cells: Iterable[BufferCell]) -> None:
    """Has what was lent to a call that failed looked at before it is lent again."""
    for cell in cells:
        cell._clean = False


def refuse_misplaced(axes: frozenset[str] = frozenset()) -> None:
    """Raises where JAX would crash on a Ref, or give it contents that are out of date.

    Args:
        axes: the manual axes where the Ref was made or passed in.
    """
    if _jaxapi.in_while_condition():
        raise TraceError(
            "a mutable array from outside is used in the condition of a lax.while_loop, where it "
            "would have its contents from before the loop for ever: use it in the body, and carry "
            "what the condition needs"
        )
    if _jaxapi.manual_axes() != axes:
        raise TraceError(
            "a mutable array from outside is used inside of a shard_map body: pass it in as an "
            "argument, with the spec of its sharding in in_specs; the body then gets its own block"
        )
