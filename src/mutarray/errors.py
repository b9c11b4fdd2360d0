"""The exceptions of mutarray.

Each class derives from the exception that NumPy or Python raises in the same place, so that code
written for arrays catches what it expects. Each says when it is raised and how to mend it. All of
them are raised before anything is written: the array keeps its contents.
"""

from __future__ import annotations


class MutarrayError(Exception):
    """The common base, for those who want to catch everything that mutarray raises itself."""


class OutOfBoundsError(MutarrayError, IndexError):
    """An integer that is known on the host lies outside its axis.

    Mend it by an index in the range that the message names, or say with ``mode='clip'``,
    ``'drop'`` or ``'fill'`` (``mu.get``, ``mu.set``) what shall happen to indices out of range.
    """


class BadIndexError(MutarrayError, IndexError):
    """The index is none that NumPy knows: wrong type, too many entries, shapes that do not fit.

    Mend it by an index of integers, slices, ``...``, ``None``, lists or arrays of integers or
    booleans, or a ``mu.ds`` window, at most one entry for each axis.
    """


class ZeroStepError(BadIndexError, ValueError):
    """A slice has step 0; NumPy and Python raise a ``ValueError`` for it.

    Mend it by another step, or by leaving it out.
    """


class TracedIndexError(MutarrayError, IndexError):
    """The index decides a shape and is known only when the compiled program runs.

    Mend it by ``mu.ds(start, size)`` for a slice whose start is traced, by ``jnp.where`` for a
    read by a traced mask, or by computing the index outside of ``jit``.
    """


class BadWindowError(MutarrayError, ValueError):
    """A window does not fit its axis, or its size is no integer that is known when tracing.

    Mend it by a static size between 0 and the length of the axis.
    """


class BroadcastError(MutarrayError, ValueError):
    """A value does not broadcast to the shape of what the index selects.

    Mend it by giving the value the shape that the message names, or one that broadcasts to it.
    """


class CastError(MutarrayError, TypeError):
    """A value's dtype does not go into the array's dtype by NumPy's ``same_kind`` rule.

    Mend it by ``value.astype(m.dtype)``, which says that the loss is meant.
    """


class BadModeError(MutarrayError, ValueError):
    """``mode=`` is none of ``'clip'``, ``'drop'``, ``'fill'``. Mend it by one of these."""


class BadShardingError(MutarrayError, TypeError):
    """``sharding=`` is no ``jax.sharding.Sharding``, or does not fit the array.

    Mend it by ``NamedSharding(mesh, P(...))``, ``SingleDeviceSharding(device)`` or the ``sharding``
    of another array.
    """


class IndivisibleError(MutarrayError, ValueError):
    """A sharding would split an axis into parts of unequal size.

    Mend it by a length that the number of parts divides, or by a spec that leaves the axis whole.
    mutarray never replicates such an axis silently (jax-ml/jax#26946).
    """


class BadValueError(MutarrayError, TypeError):
    """A value is no array, or nothing that an array can be made of."""


class NotMutableError(MutarrayError, TypeError):
    """A mutable array was expected, and something else was given.

    Mend it by ``mu.mutable_array(x)``.
    """


class SpentError(MutarrayError, RuntimeError):
    """The array has given up its buffers: by ``mu.freeze``, or to a call that failed midway.

    Mend it by using what ``freeze`` returned, or by making the array anew.
    """


class TraceError(MutarrayError, RuntimeError):
    """A mutable array is used in a trace that it cannot be used in.

    The message says which, and how to pass the array in instead.
    """


class NoAtError(MutarrayError, AttributeError):
    """``.at`` was asked for. Mend it by writing in place: ``m[idx] = v``, ``m.add_at(idx, v)``."""


class ShapeError(MutarrayError, ValueError):
    """An operation needs another shape than the array has, or would give it another shape.

    Mend it by making a new array of the shape that the message names.
    """


class ExportError(MutarrayError, BufferError):
    """DLPack cannot describe the memory of an array: it lies on several devices, or is traced.

    Mend it by exporting one block, ``m.addressable_shards[k].data``.
    """


class DonationError(MutarrayError, ValueError):
    """``donate=True`` for something whose buffers cannot be taken over.

    Mend it by passing a live ``jax.Array``, or by leaving ``donate`` out.
    """


class GatherError(MutarrayError, RuntimeError):
    """Inside of ``mu.no_gather()``, an operation would move more than it touches.

    The message names the operation, the bytes and the reason. Mend it by a ``NamedSharding``, by
    ``sharding=`` where an array is made inside a trace, or by leaving ``no_gather``.
    """
