"""The command line: arguments and printing only. The work is in ``demo`` and ``doctor``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import jax

import mutarray as mu
from mutarray import doctor
from mutarray.demo import digits, report
from mutarray.demo.checks import Check
from mutarray.demo.devices import simulate_cpu_devices

# The core needs neither of these, so the command line may be there without them. `main` says so.
try:
    import typer
    from rich.columns import Columns
    from rich.console import Console
    from rich.markup import escape
    from rich.panel import Panel
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table
except ModuleNotFoundError as _error:
    missing: str | None = _error.name
    if TYPE_CHECKING:  # so that the names above are there for the type checker in any case
        raise
else:
    missing = None

FAILED = 1
USAGE = 2
DEMO_DEVICES = 8
MIB = 1 << 20

HELP = """
Mutable arrays for JAX that keep their sharding.

A mutable array lies where the array that it was made from lies, split over the same devices. It
stays there whatever is written to it, eagerly or under `jax.jit`.
"""
EPILOG = """
**Start here**

- `mutarray demo`: see it work, in under a minute

- `mutarray demo --devices 4`: the same on four simulated CPU devices

- `mutarray doctor`: see what works on this machine

**Exit codes**: 0 all held, 1 something did not hold, 2 wrong usage
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: What to run instead of the arguments of the process.

    Returns:
        The exit code: 0 where all held, 1 where something did not, 2 for wrong usage.
    """
    if missing is not None:
        print(
            f"mutarray's command line needs {missing}: pip install 'mutarray[cli]'", file=sys.stderr
        )
        return USAGE
    try:
        _build()(args=arguments, prog_name="mutarray")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else FAILED
    return 0


def _build() -> typer.Typer:
    app = typer.Typer(
        help=HELP,
        epilog=EPILOG,
        no_args_is_help=True,
        rich_markup_mode="markdown",
        add_completion=False,
        # A plain traceback is the one to paste into a bug report.
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    app.command("demo")(_demo)
    app.command("doctor")(_doctor)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"mutarray {mu.__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Holds the options that stand before a command; ``_build`` gives its help."""


def _demo(
    devices: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            metavar="N",
            help="Run on N simulated CPU devices.",
            show_default=f"the accelerators that are there, else {DEMO_DEVICES}",
        ),
    ] = None,
    epochs: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="Go through the digits N times.")
    ] = 30,
) -> None:
    """See a sharded array become mutable and stay sharded.

    First the bug report that mutarray answers: both shardings, both pictures under jax.jit, and the
    error for returning a mutable array from jax.jit. Then real work: a classifier of handwritten
    digits is trained, its weights and Adam's moments mutable arrays on a 4×2 mesh, updated in place
    by one compiled step.
    """
    console = Console()
    here = _devices(console, devices, unless_accelerators=DEMO_DEVICES)
    try:
        data = digits.load()
    except ModuleNotFoundError as error:
        console.print(f"The demo needs {error.name}: pip install 'mutarray\\[demo]'")
        raise typer.Exit(USAGE) from error

    console.rule("1. The bug report's scenario")
    scenario = report.run(here)
    _print_scenario(console, scenario)

    console.rule("2. Training on sharded, mutable weights")
    training = _train(console, here, data, epochs)
    _print_training(console, training)
    if not all(check.holds for check in scenario.checks + training.checks):
        console.print("[bold red]Something did not hold.[/bold red]")
        raise typer.Exit(FAILED)
    console.print("[bold green]All held.[/bold green]")


def _doctor(
    devices: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            metavar="N",
            help="Look at N simulated CPU devices.",
            show_default="the devices that are there",
        ),
    ] = None,
) -> None:
    """See versions, devices and memory, and try what works here.

    The exit code is 1 where something that mutarray needs does not work. What is marked optional
    depends on the hardware.
    """
    console = Console()
    here = _devices(console, devices)
    _print_versions(console, doctor.versions())
    _print_devices(console, [doctor.describe(device) for device in here])
    probes = doctor.probe(here)
    _print_probes(console, probes)
    if any(probe.required and not probe.works for probe in probes):
        raise typer.Exit(FAILED)


def _devices(
    console: Console, asked: int | None, unless_accelerators: int | None = None
) -> list[jax.Device]:
    """Returns the devices to run on: as many CPU devices as asked for, or what is there."""
    if asked is not None:
        simulate_cpu_devices(asked, instead_of_accelerators=True)
    elif unless_accelerators is not None:
        simulate_cpu_devices(unless_accelerators, instead_of_accelerators=False)
    here = jax.local_devices()
    if asked is not None and len(here) < asked:
        console.print(f"JAX has already started with {len(here)} devices, {asked} were asked for.")
        raise typer.Exit(USAGE)
    here = here[:asked]
    console.print(f"JAX {doctor.versions()['jax']} on {len(here)} {here[0].platform} device(s)")
    return here


def _print_checks(console: Console, checks: Sequence[Check]) -> None:
    for check in checks:
        mark = "[green]✓[/green]" if check.holds else "[bold red]✗[/bold red]"
        console.print(f"{mark} {escape(check.what)}")
    console.print()


def _print_scenario(console: Console, scenario: report.Report) -> None:
    console.print("The sharding of a and of mutable_array(a)[...]:")
    console.print(escape(str(scenario.before)), soft_wrap=True)
    console.print(escape(str(scenario.after)), soft_wrap=True)
    pictures = {"a": scenario.picture_before, "mutable_array(a)[...]": scenario.picture_after}
    console.print("\nThe shards as jax.jit sees them:")
    console.print(
        Columns(
            Panel.fit(picture.strip(), title=title, border_style="dim")
            for title, picture in pictures.items()
        )
    )
    console.print("\nReturning a mutable array from jax.jit raises, as it should:")
    console.print(Panel(escape(scenario.refusal or "(nothing was raised)"), border_style="dim"))
    _print_checks(console, scenario.checks)


def _train(
    console: Console, here: Sequence[jax.Device], data: digits.Digits, epochs: int
) -> digits.Training:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("steps", total=None, loss=float("nan"))
        return digits.train(
            here,
            data,
            epochs=epochs,
            on_step=lambda done, steps, loss: progress.update(
                task, completed=done, total=steps, loss=loss
            ),
        )


def _print_training(console: Console, training: digits.Training) -> None:
    mesh = " × ".join(f"{name}={size}" for name, size in training.mesh.shape.items())
    table = Table(title=f"The state on the mesh {mesh}", title_justify="left")
    for heading in ("array", "shape", "spec"):
        table.add_column(heading)
    table.add_column("per device", justify="right")
    table.add_column("sharding")
    for row in training.rows:
        table.add_row(
            row.name,
            str(row.shape),
            str(getattr(row.sharding, "spec", row.sharding)),
            f"{row.bytes_per_device:,} B",
            "unchanged" if row.unchanged else "[bold red]changed[/bold red]",
        )
    console.print(table)

    sizes = set(training.device_bytes.values())
    each = " to ".join(f"{size:,}" for size in sorted({min(sizes), max(sizes)}))
    console.print(f"{len(training.device_bytes)} devices hold {each} bytes of the state each.")
    console.print(
        f"{training.steps} steps in {training.seconds:.1f} s, "
        f"loss {training.first_loss:.3f} → {training.last_loss:.3f}\n"
    )
    _print_checks(console, training.checks)


def _print_versions(console: Console, versions: dict[str, str | None]) -> None:
    table = Table(title="Versions", title_justify="left", show_header=False)
    for name, version in versions.items():
        table.add_row(name, version or "[dim]not installed[/dim]")
    console.print(table)


def _print_devices(console: Console, devices: Sequence[doctor.Device]) -> None:
    table = Table(title="Devices", title_justify="left")
    for heading in ("device", "kind", "memory kinds (default first)"):
        table.add_column(heading)
    for heading in ("MiB in use", "MiB limit"):
        table.add_column(heading, justify="right")
    for device in devices:
        table.add_row(
            device.name,
            device.kind,
            ", ".join(device.memory_kinds),
            _mib(device.bytes_in_use),
            _mib(device.bytes_limit),
        )
    console.print(table)


def _mib(size: int | None) -> str:
    return "[dim]not said[/dim]" if size is None else f"{size / MIB:,.1f}"


def _print_probes(console: Console, probes: Sequence[doctor.Probe]) -> None:
    table = Table(title="What works here", title_justify="left")
    for heading in ("tried", "result", "reason"):
        table.add_column(heading)
    for probe in probes:
        bad = "[bold red]fails[/bold red]" if probe.required else "[yellow]no (optional)[/yellow]"
        table.add_row(
            escape(probe.what),
            "[green]OK[/green]" if probe.works else bad,
            escape(probe.reason or ""),
        )
    console.print(table)
