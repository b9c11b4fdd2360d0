"""Runs the benchmarks, prints a table of medians and ratios, and writes them to a JSON file."""

from __future__ import annotations

import os

# Eight simulated devices, unless there are real ones: before JAX starts.
if "JAX_PLATFORMS" not in os.environ:
    os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import argparse
import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import jax
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import compiled, eager, limits, states
from benchmarks.timing import Row


def main() -> int:
    """Parses the command line and runs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--size", type=int, default=8192, help="rows and columns (default 8192)")
    parser.add_argument("--small", type=int, default=1024, help="the size to compare with")
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), help="output file")
    parser.add_argument("--only", choices=("eager", "compiled", "states"), help="one part alone")
    options = parser.parse_args()
    # Where no terminal says how wide it is, a table needs more than the usual 80 columns.
    console = Console() if sys.stdout.isatty() else Console(width=max(120, Console().width))
    rows: list[Row] = []
    counted: list[limits.Limit] = []
    matrix = f"float32[{options.size}, {options.size}]"
    if options.only in (None, "eager"):
        rows += eager.run(options.size, options.small, console)
        console.print(table(rows, options.small, matrix))
        counted += limits.run()
        console.print(limits_table(counted, "memory and compiles, 2×2"))
        console.print(NOTE, markup=False)
    if options.only in (None, "compiled"):
        inside = compiled.run(options.size, options.small, console)
        console.print(table(inside, options.small, f"compiled, {matrix}"))
        console.print(COMPILED_NOTE, markup=False)
        rows += inside
    if options.only in (None, "states"):
        whole, peaks = states.run(options.size, console)
        console.print(table(whole, options.small, "states"))
        console.print(limits_table(peaks, "peak memory of a training step"))
        console.print(STATES_NOTE, markup=False)
        rows += whole
        counted += peaks
    options.json.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "jax": jax.__version__,
        "python": platform.python_version(),
        "devices": len(jax.devices()),
        "platform": jax.default_backend(),
        "size": options.size,
        "unit": "seconds, medians",
    }
    options.json.write_text(
        json.dumps(
            {
                "about": about,
                "rows": [r.as_dict() for r in rows],
                "limits": [asdict(limit) for limit in counted],
            },
            indent=1,
        )
    )
    console.print(f"written to {options.json}")
    return 0


NOTE = """
Peers, measured once elsewhere on the same kind of machine at 8192 x 8192, not run here:
cuPyNumeric 26.6.1 on 4 CPU processors: element 1.3 ms, row 1.0 ms, 100 rows by index 94 ms,
x[10:500] = 2. 41 ms, mask 814 ms, x += 1 646 ms. "× peer": its time over ours.
Rows with c touch the same bytes at both sizes.
"""


COMPILED_NOTE = """
m is an argument of a mu.jit function. "no Ref": the same program as a donated jit of an array; its
ratio is in brackets.
Rows with c touch the same bytes at both sizes.
"""


STATES_NOTE = """
All of ours is under mu.jit. Wanted: cache writes at least 50 times faster than plain JAX's; a call
with 100 arrays at least 3 times faster than with 100 Refs, and 0.83 or more against a donated jit
(at most 1.2 times its time). XLA writes windows of one position in place by itself, and gathers the
cache for longer ones; by index array it writes one element after the other.
"""


def table(rows: list[Row], small: int, title: str) -> Table:
    """The rows as a table, without columns that are empty."""
    out = Table(title=f"{title} on {len(jax.devices())} devices, JAX {jax.__version__}")
    names = ["layout", "operation", "mutarray", "no Ref", f"at {small}²", "× that"]
    names += ["against", "raw", "ratio", "× peer"]
    filled = [line for row in rows for line in lines(row)]
    shown = [k for k in range(len(names)) if any(line[k] for line in filled)]
    for k in shown:
        left = names[k] in ("layout", "operation", "against")
        out.add_column(names[k], justify="left" if left else "right")
    for line in filled:
        out.add_row(*(line[k] for k in shown))
    return out


def lines(row: Row) -> Iterator[list[str]]:
    """One row of the table for each that it is compared with; all columns."""
    raw = [(name, show(seconds), ratio(seconds, row)) for name, seconds in row.raw.items()]
    raw += [(name, "refused", "") for name in row.refused]
    for k, (name, seconds, times) in enumerate(raw or [("", "", "")]):
        own = [row.layout, escape(row.operation), show(row.ours), show(row.no_ref), "", ""]
        if row.small:
            own[4] = show(row.small)
            own[5] = f"{row.ours / row.small:.2f}"
        if row.no_ref and row.small_no_ref:
            own[5] += f" ({row.no_ref / row.small_no_ref:.2f})"
        peer = f"{row.peer / row.ours:,.1f}" if row.peer and k == 0 else ""
        yield [*(own if k == 0 else [""] * len(own)), escape(name), seconds, times, peer]


def ratio(seconds: float, row: Row) -> str:
    """How many times raw JAX's time is ours; in brackets, ours without a Ref."""
    apart = f" ({seconds / row.no_ref:,.1f})" if row.no_ref else ""
    return f"{seconds / row.ours:,.1f}{apart}"


def limits_table(counted: list[limits.Limit], title: str) -> Table:
    """What is counted, as a table."""
    out = Table(title=title)
    for name in ("measure", "mutarray", "against"):
        out.add_column(name)
    for limit in counted:
        out.add_row(limit.measure, limit.seen, limit.against)
    return out


def show(seconds: float | None) -> str:
    """A time in a unit that suits it."""
    if seconds is None:
        return ""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale or unit == "µs":
            return f"{seconds / scale:.3g} {unit}"
    return ""


if __name__ == "__main__":
    raise SystemExit(main())
