"""Sums over mesh axes in which at most one device has something to say.

Every device holds what it owns of a result, and zeros elsewhere; their sum is the result. Floats
are summed as the integers that they are made of, because 0.0 + -0.0 is 0.0 and a read must not
change a bit. Gradients flow through the same sum of floats.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

_BITS = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32, 64: jnp.uint64}


class Sum(NamedTuple):
    """What to sum over.

    Attributes:
        scatters: array axes that stay split, each with the mesh axes that it is split over.
        names: the mesh axes after which every device has all of the rest.
    """

    scatters: tuple[tuple[int, tuple[str, ...]], ...]
    names: tuple[str, ...]


def total(x: jax.Array, over: Sum) -> jax.Array:
    """The sum of ``x`` over mesh axes; for each element at most one device has another than 0."""
    if not over.scatters and not over.names:
        return x
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return lax.complex(total(x.real, over), total(x.imag, over))
    if jnp.issubdtype(x.dtype, jnp.floating):
        return _float_total(over, x)
    if x.dtype == jnp.bool_ or jnp.iinfo(x.dtype).bits < 8:
        return _plain(over, x.astype(jnp.int8)).astype(x.dtype)
    return _plain(over, x)


def _plain(over: Sum, x: jax.Array) -> jax.Array:
    for axis, names in over.scatters:
        x = lax.psum_scatter(x, names, scatter_dimension=axis, tiled=True)
    return lax.psum(x, over.names) if over.names else x


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _float_total(over: Sum, x: jax.Array) -> jax.Array:
    bits = jnp.finfo(x.dtype).bits
    if bits < 8:
        return _float_total(over, x.astype(jnp.bfloat16)).astype(x.dtype)
    raw = lax.bitcast_convert_type(x, _BITS[bits])
    return lax.bitcast_convert_type(_plain(over, raw), x.dtype)


@_float_total.defjvp
def _float_total_jvp(over: Sum, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    return _float_total(over, primals[0]), _plain(over, tangents[0])
