"""The exceptions of mutarray.

Each class derives from the exception that NumPy or Python raises in the same place, so that code
written for arrays catches what it expects. Each says when it is raised and how to mend it. All of
them are raised before anything is written: the array keeps its contents. Where Python has an error
that says all (``OverflowError``, ``len`` of a scalar), it is raised as it is.
"""

from __future__ import annotations

import numpy as np


class MutarrayError(Exception):
    """The common base, for those who want to catch everything that mutarray raises itself."""


class OutOfBoundsError(MutarrayError, IndexError):
    """An integer that is known on the host lies outside its axis.

    Mend it by an index in the range that the message names, or say with ``mode='clip'``,
    ``'drop'`` or ``'fill'`` (``mu.get``, ``mu.set``) what shall happen to indices out of range.
    """


class BadAxisError(OutOfBoundsError, np.exceptions.AxisError):
    """``axis=`` names an axis that the array has not, or ``kth=`` a position that it has not.

    As in NumPy, it is an ``IndexError`` and a ``ValueError``. Mend it by an axis, or for
    ``partition`` a position along the axis, in the range that the message names.
    """


class BadIndexError(MutarrayError, IndexError):
    """The index is none that NumPy knows: wrong type, too many entries, shapes that do not fit.

    Mend it by an index of integers, slices, ``...``, ``None``, lists or arrays of integers or
    booleans, or a ``mu.ds`` window, at most one entry for each axis.
    """


class BadSliceError(BadIndexError, TypeError, ValueError):
    """A slice has step 0, or a bound that is no integer.

    NumPy raises a ``ValueError`` for the one and a ``TypeError`` for the other; this is both. Mend
    it by integers or ``None`` for start, stop and step, and a step that is not 0.
    """


class TracedIndexError(MutarrayError, IndexError):
    """The index decides a shape and is known only when the compiled program runs.

    Mend it by ``mu.ds(start, size)`` for a slice whose start is traced, by ``jnp.where`` for a
    read by a traced mask, or by computing the index outside of ``jit``.
    """


class BadWindowError(MutarrayError, ValueError):
    """A window does not fit its axis, or is not made of integers; its size may not be traced.

    Mend it by a static size between 0 and the length of the axis, and an integer for the start,
    which may be traced.
    """


class BroadcastError(MutarrayError, ValueError):
    """A value does not broadcast to the shape of what is written.

    Mend it by giving the value the shape that the message names, or one that broadcasts to it.
    """


class CastError(MutarrayError, TypeError):
    """A value's dtype does not go into the array's dtype by NumPy's ``same_kind`` rule.

    Mend it by ``value.astype(m.dtype)``, which says that the loss is meant.
    """


class BadModeError(MutarrayError, ValueError):
    """``mode=`` is unknown. Mend it by one of those that the message names.

    They are ``'clip'``, ``'drop'``, ``'fill'``, and for ``put``, as in NumPy, ``'raise'``,
    ``'wrap'``, ``'clip'``.
    """


class BadShardingError(MutarrayError, TypeError):
    """``sharding=`` is no ``jax.sharding.Sharding``, or does not fit the array.

    Also, arrays of one `mu.jit` call lie on different devices, or an array is pickled whose
    sharding no other process could make, or is loaded where its devices are not. Mend it by
    ``NamedSharding(mesh, P(...))`` or the ``sharding`` of another array; for a pickle, by as many
    devices, or by ``np.asarray(m)``.
    """


class IndivisibleError(MutarrayError, ValueError):
    """A sharding would split an axis into parts of unequal size.

    Mend it by a length that the number of parts divides, or by a spec that leaves the axis whole.
    mutarray never replicates such an axis silently (jax-ml/jax#26946).
    """


class BadValueError(MutarrayError, TypeError):
    """A value or another argument is none that an array can be made of, or trees differ.

    Mend it by a number, an array, or a sequence of numbers whose parts are equally long; for a
    shape by integers; for ``apply_at`` by a function that is elementwise; for `mu.assign` by a tree
    of the same structure; for `mu.jit` by naming what is no array in ``static_argnames``.
    """


class NotMutableError(MutarrayError, TypeError):
    """A mutable array was expected, and something else was given.

    Mend it by ``mu.mutable_array(x)``, for a tree by ``mu.mutable(tree)``.
    """


class SpentError(MutarrayError, RuntimeError):
    """The array has given up its buffers: by ``mu.freeze``, or to a call that failed midway.

    Mend it by using what ``freeze`` returned, or by making the array anew.
    """


class TraceError(MutarrayError, RuntimeError):
    """A mutable array is used in a trace that it cannot be used in, or after its own.

    Mend it as the message says: by passing the array in as an argument, or by doing outside of the
    trace what needs the values.
    """


class NoAtError(MutarrayError, AttributeError):
    """``.at`` was asked for. Mend it by writing in place: ``m[idx] = v``, ``m.add_at(idx, v)``."""


class ShapeError(MutarrayError, ValueError):
    """An operation needs another shape than the array has, or would give it another shape.

    Also, a length is negative. Mend it by making a new array of the shape that the message names.
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


class MissingLibraryError(MutarrayError, ImportError):
    """A library is not installed that mutarray uses here and does without elsewhere.

    Mend it by the ``pip install`` that the message names.
    """
