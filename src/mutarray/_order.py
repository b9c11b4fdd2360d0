"""Reads before writes, in compiled programs.

A program that reads a row and then writes another has to do so in this order to work in place. XLA
does not see that order: for all it knows, the row could be read after the write, so it copies the
whole block, twice on CPUs, whether the array is a Ref or an array. What it does see is data. A read
therefore leaves a *token*, a zero computed from what was read in a way that the compiler does not
see through, and the next write adds the token to its position. Neither costs anything at run time.

The same holds for raw JAX (a ``dynamic_slice`` and a ``dynamic_update_slice`` of a donated array).
``lax.optimization_barrier`` does it as of JAX 0.12, but not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from mutarray import _jaxapi


def token_of(x: jax.Array, received: bool = False) -> tuple[jax.Array, jax.Array]:
    """``x``, and a zero that cannot be known before all of ``x`` is.

    The barrier keeps XLA from reading an element a second time, for the token alone. What was
    received from other devices needs none: there is no element of it before there is all, and it is
    nowhere else to be read.
    """
    if received:
        return x, _never(x).astype(jnp.int32)
    x = lax.optimization_barrier(x)
    if not _jaxapi.barriers_hold():
        # Nor does XLA look through a branch, if it cannot know which is taken.
        flip = jnp.logical_not if x.dtype == jnp.bool_ else jnp.negative
        x = lax.cond(_never(x), flip, lambda x: x, x)
    return x, _never(x).astype(jnp.int32)


def _never(x: jax.Array) -> jax.Array:
    """Never true: no number is two numbers at once. XLA does not find that out."""
    first = lax.squeeze(lax.slice(x, (0,) * x.ndim, (1,) * x.ndim), range(x.ndim))
    first = lax.stop_gradient(first)
    return (first == 1) & (first == 0)


@jax.custom_batching.custom_vmap
def _moved(position: jax.Array, token: jax.Array) -> jax.Array:
    return position + token.astype(position.dtype)


@_moved.def_vmap
def _moved_batched(size: int, batched: Any, position: Any, token: Any) -> tuple[Any, Any]:
    # A read by a mapped index must not make a write that is not mapped a mapped one.
    del size
    missing = _jaxapi.varying(token) - _jaxapi.varying(position)
    if missing:
        position = lax.pcast(position, tuple(sorted(missing)), to="varying")
    return position, batched[0]


def after(tokens: Sequence[jax.Array], position: Any) -> jax.Array:
    """``position``, an integer or an array of such, known only when the tokens are."""
    position = jnp.asarray(position)
    for token in tokens:
        position = _moved(position, token)
    return position


class Tokens:
    """The tokens of reads that no write has waited for, each with the trace that it belongs to."""

    def __init__(self) -> None:
        self._seen: list[tuple[Any, jax.Array]] = []

    def add(self, token: jax.Array) -> None:
        """Notes a read in the current trace."""
        self._seen.append((_jaxapi.current_trace(), token))

    def take(self) -> list[jax.Array]:
        """The tokens of the current trace, which are then forgotten."""
        trace = _jaxapi.current_trace()
        found = [token for owner, token in self._seen if owner is trace]
        self._seen = [(owner, token) for owner, token in self._seen if owner is not trace]
        return found
