"""What the demo promises, one line at a time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One promise and whether it held.

    Attributes:
        what: The promise, as a sentence a reader can judge.
        holds: Whether it held on this machine.
    """

    what: str
    holds: bool
