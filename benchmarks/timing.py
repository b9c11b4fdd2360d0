"""Medians of operations that are taken in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

Step = Callable[[int], Any]
"""Does the operation once, given how often it was done before, and waits until it is done."""


@dataclass
class Row:
    """One operation: its time, that at the smaller size, and those of raw JAX and a peer.

    Times without a Ref as an argument are those of the same program as a donated jit of an array.
    ``refused`` names what raw JAX does not take.
    """

    layout: str
    operation: str
    ours: float
    small: float | None = None
    raw: dict[str, float] = field(default_factory=dict)
    peer: float | None = None
    no_ref: float | None = None
    small_no_ref: float | None = None
    refused: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def medians(steps: dict[str, Step], repeats: dict[str, int]) -> dict[str, float]:
    """The median time of each step, all of them in turn, after two rounds that do not count.

    Args:
        steps: what to time.
        repeats: how often; a step that takes seconds is repeated less.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for k in range(max(repeats.values()) + 2):
        for name, step in steps.items():
            if k >= repeats[name] + 2:
                continue
            start = time.perf_counter()
            step(k)
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(seen[2:]) for name, seen in times.items()}
