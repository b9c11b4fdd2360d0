"""What a value may be, and how it becomes the dtype and shape of what is written.

NumPy's ``same_kind`` rule over all of JAX's dtypes; Python scalars are weak, as in NEP 50
(https://numpy.org/neps/nep-0050-scalar-promotion.html).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mutarray import _jaxapi
from mutarray._types import Shape
from mutarray.errors import BadValueError, BroadcastError, CastError

_KINDS = (
    (jnp.bool_, 0),
    (jnp.unsignedinteger, 1),
    (jnp.signedinteger, 2),
    (jnp.floating, 3),
    (jnp.complexfloating, 4),
)


def is_key(dtype: Any) -> bool:
    """Whether ``dtype`` is that of typed PRNG keys."""
    return jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def kind(dtype: Any) -> int | None:
    """The rank of a dtype's kind: bool, unsigned, signed, float, complex; ``None`` for others."""
    return next((rank for parent, rank in _KINDS if jnp.issubdtype(dtype, parent)), None)


def as_value(value: Any) -> Any:
    """``value`` as a Python scalar, a NumPy array or a JAX array.

    Raises:
        BadValueError: it is none of these, and no sequence of numbers.
    """
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        array = value
    elif isinstance(value, (bool, int, float, complex)):
        return value
    elif hasattr(value, "__jax_array__"):
        array = value.__jax_array__()
    elif isinstance(value, (list, tuple)) and any(map(_jaxapi.is_tracer, jax.tree.leaves(value))):
        array = jnp.asarray(value)
    else:
        try:
            array = np.asarray(value)
        except Exception as error:
            raise _bad_value(value) from error
    if isinstance(array, (np.ndarray, np.generic)) and (
        array.dtype == object or kind(array.dtype) is None
    ):
        raise _bad_value(value)
    return array


def shown(value: Any) -> str:
    """A value in a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:157]}..."


def _bad_value(value: Any) -> BadValueError:
    return BadValueError(
        f"{shown(value)} of type {type(value).__name__} holds no numbers that JAX knows: pass a "
        "number, a jax.Array, a NumPy array of numbers, or a sequence of numbers whose parts are "
        "equally long"
    )


def check_cast(value: Any, dtype: Any, what: str = "value") -> None:
    """Raises unless ``value`` goes into ``dtype`` by NumPy's ``same_kind`` rule.

    Args:
        value: what `as_value` gave, or its shape and dtype.
        dtype: the dtype of the array.
        what: what the message calls the value.

    Raises:
        CastError: the kind of the value is above that of ``dtype``.
        OverflowError: a Python integer lies outside the range of an integer ``dtype``.
    """
    if isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic):
        _check_scalar(value, dtype)
        return
    if value.dtype == dtype:
        return
    source, target = kind(value.dtype), kind(dtype)
    if source is None or target is None or source > target:
        raise _no_cast(f"a {what} of dtype {value.dtype}", is_key(value.dtype), dtype, what)


def _check_scalar(value: Any, dtype: Any) -> None:
    target = kind(dtype)
    ranks = {bool: 0, int: 1, float: 3, complex: 4}
    rank = next(ranks[cls] for cls in (bool, int, float, complex) if isinstance(value, cls))
    if target is None or rank > target:
        given = f"the Python {type(value).__name__} {value!r}"
        raise _no_cast(given, False, dtype, f"jnp.asarray({value!r})")
    check_range(value, dtype)


def check_range(value: Any, dtype: Any) -> None:
    """Raises where a Python integer does not fit into an integer dtype.

    Raises:
        OverflowError: it lies outside the range of ``dtype``.
    """
    if isinstance(value, int) and not isinstance(value, bool) and kind(dtype) in (1, 2):
        info = jnp.iinfo(dtype)
        if not info.min <= value <= info.max:
            raise OverflowError(
                f"the Python int {value} is out of bounds for {jnp.dtype(dtype).name}, which holds "
                f"{info.min} to {info.max}: pass a value in this range"
            )


def _no_cast(given: str, gives_keys: bool, dtype: Any, value: str) -> CastError:
    if is_key(dtype):
        mend = "write PRNG keys of this dtype, as jax.random.key and jax.random.split make them"
    elif gives_keys:
        mend = "PRNG keys are no numbers; their bits are, jax.random.key_data(keys)"
    else:
        mend = f"if the loss is meant, say so with {value}.astype({dtype.name!r})"
    return CastError(
        f"cannot write {given} into an array of dtype {dtype} under NumPy's same_kind rule: {mend}"
    )


def check_broadcast(value: Any, shape: Shape, masked: bool = False) -> None:
    """Raises unless ``value`` broadcasts to ``shape``; leading axes of length 1 may be too many.

    Args:
        value: what `as_value` gave.
        shape: the shape of what the index selects.
        masked: whether a traced mask selects, whose number of True is not known.
    """
    given = tuple(np.shape(value))
    trimmed = trim(given, len(shape))
    fits = len(trimmed) <= len(shape) and all(
        n in (1, m) for n, m in zip(reversed(trimmed), reversed(shape), strict=False)
    )
    if not fits:
        hint = (
            "a traced mask selects a number of elements that is not known when the program is "
            "compiled, so the value must have length 1 there; to give each element of the array a "
            "value of its own, write m[...] = jnp.where(mask, values, m[...])"
            if masked
            else "the latter is the shape of what is written; pass a value of that shape, or one "
            "that broadcasts to it"
        )
        raise BroadcastError(
            f"could not broadcast input array from shape {given} into shape {shape}: {hint}"
        )


def trim(given: Shape, ndim: int) -> Shape:
    """``given`` without the leading axes of length 1 that ``ndim`` axes have no place for."""
    extra = 0
    while len(given) - extra > ndim and given[extra] == 1:
        extra += 1
    return given[extra:]
