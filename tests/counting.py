"""Counts what should not happen: compiles, and calls that leave JAX's fast path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax


@contextmanager
def counted_compiles() -> Iterator[list[str]]:
    """Collects an entry for each program that XLA compiles."""
    seen: list[str] = []

    def listen(event: str, duration: float, **kwargs: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@contextmanager
def counted_misses() -> Iterator[list[str]]:
    """Collects the Python functions of JAX's ``jit`` that run: on the fast path there are none."""
    seen: list[str] = []

    def listen(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.endswith("pjit.py"):
            seen.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(listen)
    try:
        yield seen
    finally:
        sys.setprofile(before)
