"""The locks of several arrays at once, without a deadlock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Locks:
    """Reentrant locks that are taken together."""

    def __init__(self, locks: Sequence[Any]):
        self._takes = [lock.acquire for lock in locks]
        self._gives = [lock.release for lock in locks]
        self._in_turn = sorted(locks, key=id)

    def acquire(self) -> None:
        """Takes them all; whoever cannot have them all waits without holding one."""
        taken = [take(False) for take in self._takes]
        if False in taken:
            for give, had in zip(self._gives, taken, strict=True):
                if had:
                    give()
            for lock in self._in_turn:
                lock.acquire()

    def release(self) -> None:
        """Gives back what `acquire` took."""
        for give in self._gives:
            give()
