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
from dataclasses import asdict
from pathlib import Path

import jax
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import eager, limits
from benchmarks.timing import Row


def main() -> int:
    """Parses the command line and runs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--size", type=int, default=8192, help="rows and columns (default 8192)")
    parser.add_argument("--small", type=int, default=1024, help="the size to compare with")
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), help="output file")
    options = parser.parse_args()
    console = Console()
    rows = eager.run(options.size, options.small, console)
    console.print(table(rows, options.size, options.small))
    counted = limits.run()
    console.print(limits_table(counted))
    console.print(NOTE, markup=False)
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


def table(rows: list[Row], size: int, small: int) -> Table:
    """The rows as a table."""
    out = Table(
        title=f"float32[{size}, {size}] on {len(jax.devices())} devices, JAX {jax.__version__}"
    )
    for name in (
        "layout",
        "operation",
        "mutarray",
        f"at {small}²",
        "× that",
        "against",
        "raw",
        "ratio",
        "× peer",
    ):
        out.add_column(
            name, justify="left" if name in ("layout", "operation", "against") else "right"
        )
    for row in rows:
        against = list(row.raw.items()) or [("", None)]
        for k, (name, seconds) in enumerate(against):
            out.add_row(
                row.layout if k == 0 else "",
                escape(row.operation) if k == 0 else "",
                show(row.ours) if k == 0 else "",
                show(row.small) if k == 0 and row.small else "",
                f"{row.ours / row.small:.2f}" if k == 0 and row.small else "",
                escape(name),
                show(seconds) if seconds else "",
                f"{seconds / row.ours:,.1f}" if seconds else "",
                f"{row.peer / row.ours:,.1f}" if k == 0 and row.peer else "",
            )
    return out


def limits_table(counted: list[limits.Limit]) -> Table:
    """What is counted, as a table."""
    out = Table(title="memory and compiles, 2×2")
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
