"""The read-only methods and attributes of ``jax.Array``, and NumPy's methods that write.

The class is the table: what stands in it is there, and nothing is looked up silently. `LEFT_OUT`
names the rest of what a ``jax.Array`` has, and why a mutable array does without.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

import jax
import jax.numpy as jnp

from mutarray import _inplace, _ops, _placement, _show
from mutarray._handle import cell_of, plain, value_of
from mutarray._operators import Operators
from mutarray._placement import LayoutTable
from mutarray._types import ArrayLike
from mutarray.errors import ShapeError

LEFT_OUT = {
    "aval": "a type inside of JAX: jax.typeof(m[...])",
    "clone": "a detail of JAX",
    "delete": "mu.freeze(m) gives the buffers up",
    "device_buffer": "removed from JAX",
    "device_buffers": "removed from JAX",
    "flat": "JAX has none either: m.flatten() to read, m.put(...) to write",
    "is_ready": "m.block_until_ready() waits",
    "on_device_size_in_bytes": "m.nbytes",
    "platform": "a detail of JAX: the devices say it",
    "traceback": "a detail of JAX",
    "unsafe_buffer_pointer": "the next write may move the buffer",
    "unsafe_raw_buffer": "the next write may move the buffer",
    "weak_type": "a mutable array has a dtype of its own, and is never weak",
}
"""What a ``jax.Array`` has and a mutable array has not, with the reason."""


def _method(name: str, what: str) -> Callable[..., Any]:
    """A method that a ``jax.Array`` has, of the contents as they are."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = {key: plain(value) for key, value in kwargs.items()}
        return getattr(value_of(self), name)(*map(plain, args), **given)

    method.__name__, method.__qualname__ = name, f"MutableArray.{name}"
    method.__doc__ = f"{what}; as ``jax.Array.{name}``."
    theirs = getattr(jax.Array, name, None)
    if inspect.isfunction(theirs):
        method.__signature__ = inspect.signature(theirs)  # pyright: ignore
    return method


def _attribute(name: str, what: str) -> Any:
    """An attribute that a ``jax.Array`` has, of the contents as they are."""

    def attribute(self: Any) -> Any:
        return getattr(value_of(self), name)

    return property(attribute, doc=f"{what}; as ``jax.Array.{name}``.")


def _place(name: str, what: str) -> Any:
    """An attribute that says where the contents are now."""

    def attribute(self: Any) -> Any:
        return getattr(_ops.snapshot(cell_of(self)), name)

    return property(attribute, doc=f"{what}; as ``jax.Array.{name}``.")


class Methods(Operators):
    """What a ``jax.Array`` can be asked, and how NumPy writes."""

    __slots__ = ()

    if not TYPE_CHECKING:  # `_signatures` says the types
        # Sums and kin: over all axes, or those that are named.
        all = _method("all", "Whether all elements are true")
        any = _method("any", "Whether an element is true")
        argmax = _method("argmax", "The position of the greatest element")
        argmin = _method("argmin", "The position of the least element")
        cumprod = _method("cumprod", "The products of the elements up to each")
        cumsum = _method("cumsum", "The sums of the elements up to each")
        max = _method("max", "The greatest element")
        mean = _method("mean", "The mean")
        min = _method("min", "The least element")
        prod = _method("prod", "The product of the elements")
        ptp = _method("ptp", "The greatest element less the least")
        std = _method("std", "The standard deviation")
        sum = _method("sum", "The sum of the elements")
        trace = _method("trace", "The sum of a diagonal")
        var = _method("var", "The variance")

        # The elements, in another shape or order.
        argpartition = _method("argpartition", "The positions that would partition an axis")
        argsort = _method("argsort", "The positions that would sort an axis")
        choose = _method("choose", "Elements of the choices that the array names")
        compress = _method("compress", "The slices along an axis that a condition names")
        diagonal = _method("diagonal", "A diagonal")
        flatten = _method("flatten", "The elements in one axis")
        nonzero = _method("nonzero", "The indices of the elements that are not zero")
        ravel = _method("ravel", "The elements in one axis")
        repeat = _method("repeat", "Each element several times")
        reshape = _method("reshape", "The elements in another shape")
        searchsorted = _method("searchsorted", "Where values would go into a sorted array")
        squeeze = _method("squeeze", "The elements without axes of length 1")
        swapaxes = _method("swapaxes", "The elements with two axes exchanged")
        take = _method("take", "Elements along an axis")
        transpose = _method("transpose", "The elements with the axes in another order")
        # The array API's name: https://data-apis.org/array-api/latest/API_specification/array_object.html
        mT = _attribute("mT", "The elements with the last two axes exchanged")  # noqa: N815
        T = _attribute("T", "The elements with the axes in reverse order")

        # The elements, each made into something else.
        astype = _method("astype", "The elements in another dtype")
        byteswap = _method("byteswap", "The elements with their bytes in reverse order")
        clip = _method("clip", "The elements, none beyond two bounds")
        conj = _method("conj", "The complex conjugates")
        conjugate = _method("conjugate", "The complex conjugates")
        dot = _method("dot", "The dot product with another array")
        imag = _attribute("imag", "The imaginary parts")
        real = _attribute("real", "The real parts")
        round = _method("round", "The elements, rounded")
        view = _method("view", "The bytes, seen as another dtype")

        # To Python, and to other devices.
        item = _method("item", "One element as a Python number")
        to_device = _method("to_device", "An immutable copy on another device or sharding")
        tobytes = _method("tobytes", "The bytes")
        tolist = _method("tolist", "Nested lists of Python numbers")

        # Where it is.
        addressable_shards = _place(
            "addressable_shards", "The blocks on the devices of this process, as they are now"
        )
        committed = _place("committed", "Whether JAX keeps it on its devices")
        device = _place("device", "The device, or the sharding over several")
        format = _place("format", "The order of the dimensions in memory, and the sharding")
        global_shards = _place("global_shards", "The blocks on all devices, as they are now")

    def addressable_data(self, index: int) -> jax.Array:
        """The block of one device of this process, as it is now; as in ``jax.Array``."""
        return _ops.snapshot(cell_of(self)).addressable_data(index)

    def devices(self) -> set[Any]:  # `jax.Device` is a variable to type checkers
        """The devices that hold a part of it."""
        return set(_ops.sharding(cell_of(self)).device_set)

    @property
    def is_fully_addressable(self) -> bool:
        """Whether this process can reach all of it."""
        return _ops.sharding(cell_of(self)).is_fully_addressable

    @property
    def is_fully_replicated(self) -> bool:
        """Whether each device holds all of it."""
        return _ops.sharding(cell_of(self)).is_fully_replicated

    def is_deleted(self) -> bool:
        """Whether the contents are gone: given up by ``mu.freeze``, or lost."""
        return _ops.is_spent(cell_of(self))

    def block_until_ready(self) -> Self:
        """Waits until all writes that were begun are done, and returns the array.

        Example:
            >>> import mutarray as mu
            >>> m = mu.zeros(3)
            >>> m.block_until_ready() is m
            True
        """
        _ops.wait(cell_of(self))
        return self

    def copy_to_host_async(self) -> None:
        """Begins to bring the contents, as they are now, to the host's memory."""
        _ops.snapshot(cell_of(self)).copy_to_host_async()

    def snapshot(self) -> jax.Array:
        """The contents as an immutable array, ``m[...]``: no copy until the next write.

        Example:
            >>> import mutarray as mu
            >>> m = mu.zeros(3)
            >>> before = m.snapshot()
            >>> m[0] = 1
            >>> before
            Array([0., 0., 0.], dtype=float32)
        """
        return _ops.snapshot(cell_of(self))

    # What shows it -------------------------------------------------------------------------------

    def layout(self) -> LayoutTable:
        """Which device holds which part, as a table; read off shape and sharding alone.

        Returns:
            A `LayoutTable`, which prints as a table; its ``rows`` have the numbers.

        Raises:
            TraceError: inside a trace that does not know the devices.

        Example:
            >>> import mutarray as mu
            >>> m = mu.zeros((4, 3))
            >>> m.layout().rows[0].box
            ((0, 4), (0, 3))
            >>> print(m.layout())
            device  box         bytes  replica  process  memory
            CPU 0   [0:4, 0:3]  48 B   0        0        device
        """
        return _placement.table_of(cell_of(self))

    def visualize(self, **options: Any) -> None:
        """Prints a picture of which device holds which part; read off shape and sharding alone.

        It is that of ``jax.debug.visualize_array_sharding``, for any number of axes: of more than
        two, the last two are drawn for each part that the axes before them are split into.

        Args:
            options: ``use_color``, ``scale``, ``min_width``, ``max_width`` and ``color_map``, as
                ``jax.debug.visualize_sharding`` takes them.

        Raises:
            MissingLibraryError: rich is not installed.
            TraceError: inside a trace that does not know the devices.

        Example:
            >>> import jax, mutarray as mu
            >>> from jax.sharding import NamedSharding, PartitionSpec as P
            >>> s = NamedSharding(jax.make_mesh((4,), ("i",)), P("i"))
            >>> mu.zeros(8, sharding=s).visualize(use_color=False)
            ┌───────┬───────┬───────┬───────┐
            │ CPU 0 │ CPU 1 │ CPU 2 │ CPU 3 │
            └───────┴───────┴───────┴───────┘
            <BLANKLINE>
        """
        _show.draw(cell_of(self), options)

    @property
    def _repr_html_(self) -> Callable[[], str | None]:
        # A property, for treescope frames what a class has as a method, and this is by treescope.
        return self._html

    def _html(self) -> str | None:
        return _show.html(self)

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        return _show.as_node(self, path)

    def __treescope_ndarray_adapter__(self) -> Any:
        return _show.adapter()

    # What writes ---------------------------------------------------------------------------------

    def sort(self, axis: int = -1, *, stable: bool = True, descending: bool = False) -> None:
        """Sorts along an axis, in place.

        An axis that is split over devices is brought whole to each device for the sort.

        Args:
            axis: the axis.
            stable: whether equal elements keep their order.
            descending: whether the greatest comes first.

        Raises:
            BadAxisError: there is no such axis.

        Example:
            >>> import jax.numpy as jnp, mutarray as mu
            >>> m = mu.mutable_array(jnp.array([3, 1, 2]))
            >>> m.sort()
            >>> m[...]
            Array([1, 2, 3], dtype=int32)
        """
        _inplace.along_axis(
            cell_of(self),
            axis,
            lambda x: jnp.sort(x, axis=axis, stable=stable, descending=descending),
        )

    def partition(self, kth: int, axis: int = -1) -> None:
        """Puts the element that a sort puts at ``kth`` there, lesser ones before it, in place.

        Args:
            kth: the position.
            axis: the axis.

        Raises:
            BadAxisError: there is no such axis, or no such position along it.

        Example:
            >>> import jax.numpy as jnp, mutarray as mu
            >>> m = mu.mutable_array(jnp.array([3, 1, 2]))
            >>> m.partition(1)
            >>> m[...]
            Array([1, 2, 3], dtype=int32)
        """
        _inplace.partition(cell_of(self), kth, axis)

    def put(
        self, indices: Any, values: ArrayLike, mode: Literal["raise", "wrap", "clip"] = "raise"
    ) -> None:
        """Writes at positions counted in C order; values that are too few begin anew (``np.put``).

        Args:
            indices: the positions.
            values: cast by ``same_kind``.
            mode: what to do with a position that is out of range: 'raise', 'wrap' or 'clip'. One
                that is traced cannot raise: under 'raise', its write is dropped.

        Raises:
            OutOfBoundsError: a known position is out of range.
            BadModeError: ``mode`` is none of the three.
            CastError: the values do not cast, or the positions are no integers.

        Example:
            >>> import mutarray as mu
            >>> m = mu.zeros((2, 3))
            >>> m.put([0, 4, -1], [1, 2])
            >>> m[...]
            Array([[1., 0., 0.],
                   [0., 2., 1.]], dtype=float32)
        """
        _inplace.put(cell_of(self), plain(indices), plain(values), mode)

    def resize(self, *shape: Any, **kwargs: Any) -> NoReturn:
        """Refused: shape and sharding belong together, and do not change.

        Raises:
            ShapeError: always.
        """
        raise ShapeError(
            f"a mutable array of shape {cell_of(self).shape} cannot be resized to "
            f"{shape[0] if len(shape) == 1 else shape}: its sharding was made for its shape. Make "
            "a new one: mutarray.mutable_array(jnp.resize(m[...], shape), sharding)"
        )
