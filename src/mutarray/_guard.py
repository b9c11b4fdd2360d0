"""`no_gather`: operations that move more than they touch raise instead."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager

from mutarray.errors import GatherError

_forbidden: contextvars.ContextVar[bool] = contextvars.ContextVar("no_gather", default=False)


@contextmanager
def no_gather() -> Iterator[None]:
    """A context in which no mutarray operation moves more than it touches; one that would raises.

    For tests and for programs that would rather stop than run out of memory. What is decided when a
    program is traced is checked then: a function that was compiled before is not looked at again.

    Raises:
        GatherError: inside of the context, an operation would move more than it touches. Nothing
            has been moved or written.

    Example:
        >>> import jax, mutarray as mu
        >>> m = mu.zeros((8, 4))
        >>> with mu.no_gather():
        ...     m[2:5] = 1.0
        ...     jax.jit(lambda m, k: m.__setitem__(k, 2.0))(m, 3)
        >>> m[2:5, 0]
        Array([1., 2., 1.], dtype=float32)
    """
    token = _forbidden.set(True)
    try:
        yield
    finally:
        _forbidden.reset(token)


def moves(operation: str, moved: int | None, touched: int | None, why: str, mend: str) -> None:
    """Says that an operation is about to move more than it touches.

    Args:
        operation: what the user does, and with what.
        moved: the bytes that one device gets; ``None`` where they are not known.
        touched: the bytes of the elements that are named; ``None`` where they are not known.
        why: the reason.
        mend: how to get along without.

    Raises:
        GatherError: inside of `no_gather`, if it is more.
    """
    if not _forbidden.get():
        return
    if moved is not None and touched is not None and moved <= touched:
        return
    raise GatherError(
        f"{operation} touches {_bytes(touched)} and would move {_bytes(moved)} to each device, "
        f"inside of mu.no_gather(): {why}. {mend}"
    )


def _bytes(number: int | None) -> str:
    return "an unknown number of bytes" if number is None else f"{number:,} bytes"
