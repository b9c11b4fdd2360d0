"""What the examples share: devices, and the comparison of a program with its functional form.

Each example is written twice: with mutable arrays, as one would write it, and in plain JAX with
arrays that are donated and handed back, as a careful user writes it without mutarray. Both do the
same work on the same mesh; `compare` runs them in turn.
"""

from __future__ import annotations

import ast
import inspect
import os
import statistics
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import typer
from rich.console import Console
from rich.table import Table

DEFAULT_DEVICES = 8

DevicesOption = Annotated[
    int | None,
    typer.Option(
        "--devices",
        min=1,
        max=64,
        metavar="N",
        help="Run on N simulated CPU devices.",
        show_default="the accelerators that are there, else 8",
    ),
]
"""`--devices`, as each example has it; `devices` finds them."""


def simulate_devices(count: int) -> None:
    """Splits the CPU into so many devices; to be called before JAX has started its backend."""
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_force_host_platform_device_count" not in flags:
        flag = f"--xla_force_host_platform_device_count={count}"
        os.environ["XLA_FLAGS"] = f"{flags} {flag}".strip()


def devices(wanted: int | None) -> list[jax.Device]:
    """The devices to run on: the accelerators that are there, else simulated ones.

    Args:
        wanted: how many simulated CPU devices to take instead.
    """
    simulate_devices(wanted or DEFAULT_DEVICES)
    if wanted is not None:
        jax.config.update("jax_platforms", "cpu")
    here = jax.devices()
    if wanted is not None and len(here) < wanted:
        message = f"JAX has {len(here)} devices, {wanted} were asked for: unset XLA_FLAGS"
        print(message, file=sys.stderr)
        raise SystemExit(2)
    return here[:wanted]


@dataclass(frozen=True)
class Form:
    """One way to write a program.

    Attributes:
        name: as the table shows it.
        step: does one step, and returns something to wait for.
        compiled: the compiled program of a step, as ``jax.jit(...).lower(...).compile()`` gives it.
        sources: the functions and classes that one has to write for it.
    """

    name: str
    step: Callable[[], Any]
    compiled: Any
    sources: tuple[Any, ...]


@dataclass(frozen=True)
class Measured:
    """What a form costs: the median seconds of a step, peak bytes per device, lines of code."""

    name: str
    seconds: float
    peak_bytes: int
    lines: int


def peak_bytes(compiled: Any) -> int:
    """The bytes that one device needs for a step: arguments, results and temporary values."""
    memory = compiled.memory_analysis()
    return (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
    )


def count_lines(*sources: Any) -> int:
    """The lines of code, without empty lines, comments and docstrings."""
    count = 0
    for source in sources:
        tree = ast.parse(textwrap.dedent(inspect.getsource(source)))
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node):
                assert isinstance(body, list)
                del body[0]
        # Unparsing a tree gives one line for each statement, however it was laid out.
        count += sum(1 for line in ast.unparse(tree).splitlines() if line.strip())
    return count


def compare(forms: list[Form], repeats: int = 20) -> list[Measured]:
    """Runs the forms in turn, so that both meet the same machine."""
    for form in forms:
        for _ in range(3):
            jax.block_until_ready(form.step())
    times: dict[str, list[float]] = {form.name: [] for form in forms}
    for _ in range(repeats):
        for form in forms:
            start = time.perf_counter()
            jax.block_until_ready(form.step())
            times[form.name].append(time.perf_counter() - start)
    return [
        Measured(
            form.name,
            statistics.median(times[form.name]),
            peak_bytes(form.compiled),
            count_lines(*form.sources),
        )
        for form in forms
    ]


def show(title: str, measured: list[Measured]) -> None:
    """Prints a comparison as a table."""
    table = Table(title=title)
    for heading in ("", "time per step", "peak bytes per device", "lines of code"):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in measured:
        table.add_row(row.name, _time(row.seconds), f"{row.peak_bytes:,}", str(row.lines))
    Console().print(table)


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
