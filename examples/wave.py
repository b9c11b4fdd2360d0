"""Electromagnetic waves on a mesh of devices: Yee's finite differences in the time domain.

    make example-wave
    python -m examples.wave --cells 1024 --updates 1200 --plot wave.png

A line of current radiates towards a metal wall with two slits; behind it stand a glass disc and a
small antenna. The fields are mutable arrays that are split over the devices in both directions.

* The scene is written eagerly, before anything is compiled, as one would into a NumPy array: slabs
  by slices, a disc by a mask, walls by rows. Slices cross the borders of shards; each device writes
  what it owns.
* The loop is compiled as a whole: `mu.jit` around `lax.fori_loop`. Whole fields are updated in
  place, and sources are added at a point and along a slice. All that devices send to each other are
  the rows next to their borders.

The scheme is that of K. S. Yee, "Numerical solution of initial boundary value problems involving
Maxwell's equations in isotropic media", IEEE Transactions on Antennas and Propagation 14 (1966),
for the electric field across the plane and the magnetic field in it (TM). Units are such that a
cell is as wide as light goes in `1 / COURANT` updates in empty space.

`Fields`, `update` and `advance` are the mutable form; `PlainFields`, `Materials`, `plain_update`
and `plain_advance` do the same in plain JAX, with arrays that are donated and handed back.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import typer
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console
from rich.progress import track
from rich.table import Table

import mutarray as mu
from examples.comparison import DevicesOption, Form, Measured, compare, devices, show

COURANT = 0.5  # below 1/√2, above which the scheme blows up
PERIOD = 48  # updates for one swing of the line's current
ANTENNA_PERIOD = 32
BORDER = 1 / 16  # of the width, where waves are absorbed
GLASS = 2.25  # times the permittivity of empty space


# What both forms share ---------------------------------------------------------------------------


def make_mesh(devices: list[Any]) -> Mesh:
    """A mesh as square as so many devices allow."""
    columns = max(k for k in range(1, math.isqrt(len(devices)) + 1) if len(devices) % k == 0)
    shape = len(devices) // columns, columns
    return jax.make_mesh(shape, ("i", "j"), (AxisType.Auto,) * 2, devices=devices)


def forward(e: jax.Array, axis: int) -> jax.Array:
    """The neighbour after each cell minus the cell; zero in the last row, which has none."""
    if axis == 0:
        return jnp.pad(e[1:, :] - e[:-1, :], ((0, 1), (0, 0)))
    return jnp.pad(e[:, 1:] - e[:, :-1], ((0, 0), (0, 1)))


def backward(h: jax.Array, axis: int) -> jax.Array:
    """Each cell minus the neighbour before it; zero in the first row, which has none."""
    if axis == 0:
        return jnp.pad(h[1:, :] - h[:-1, :], ((1, 0), (0, 0)))
    return jnp.pad(h[:, 1:] - h[:, :-1], ((0, 0), (1, 0)))


class Sources(NamedTuple):
    """Where currents flow: along a slice of one row, and at one point."""

    line: tuple[int, slice]
    antenna: tuple[int, int]


def sources(cells: int) -> Sources:
    return Sources((cells // 6, slice(cells // 8, -cells // 8)), (3 * cells // 4, cells // 5))


def currents(n: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What the line and the antenna add to the field in update `n`; they start smoothly."""
    time = n.astype(jnp.float32)
    grown = 1 - jnp.exp(-((time / PERIOD) ** 2))
    line, antenna = 2 * jnp.pi / PERIOD, 2 * jnp.pi / ANTENNA_PERIOD
    return grown * 0.2 * jnp.sin(line * time), grown * jnp.sin(antenna * time)


# With mutable arrays -----------------------------------------------------------------------------


class Fields(NamedTuple):
    """The state of the solver.

    Attributes:
        e: the electric field, across the plane.
        hx: the magnetic field along the first axis, half a cell further along the second.
        hy: the magnetic field along the second axis, half a cell further along the first.
        keep: how much of the electric field an update keeps.
        drive: how much an update takes over from the magnetic field; zero in metal.
    """

    e: mu.MutableArray
    hx: mu.MutableArray
    hy: mu.MutableArray
    keep: mu.MutableArray
    drive: mu.MutableArray


def cavity(cells: int, sharding: NamedSharding) -> Fields:
    """An empty box with metal walls: born in shards, no device ever holds more than its share."""
    e, hx, hy = (mu.zeros((cells, cells), jnp.float32, sharding=sharding) for _ in range(3))
    keep = mu.ones_like(e)
    drive = mu.full_like(e, COURANT)
    for edge in (0, -1):
        drive[edge] = 0.0
        drive[:, edge] = 0.0
    return Fields(e, hx, hy, keep, drive)


def double_slit(cells: int, sharding: NamedSharding) -> Fields:
    """The scene: every line of it is an eager write into sharded arrays."""
    fields = cavity(cells, sharding)
    permittivity = mu.ones_like(fields.e)
    conductivity = mu.zeros_like(fields.e)

    # A disc of glass, and a bar of it that absorbs a little.
    i, j = np.ogrid[:cells, :cells]
    disc = (i - 2 * cells // 3) ** 2 + (j - cells // 2) ** 2 < (cells // 10) ** 2
    permittivity[disc] = GLASS
    permittivity[3 * cells // 4 : -cells // 8, -cells // 4 : -cells // 6] = GLASS
    conductivity[3 * cells // 4 : -cells // 8, -cells // 4 : -cells // 6] += 0.01

    # Around everything, layers that absorb the more the further out they lie: the last ones written
    # are the outermost.
    depth = round(BORDER * cells)
    for k in reversed(range(depth)):
        layer = 0.3 * ((depth - k) / depth) ** 3
        for outer in (k, -1 - k):
            conductivity[outer] = layer
            conductivity[:, outer] = layer

    loss = COURANT / 2 * conductivity[...] / permittivity[...]
    fields.keep[...] = (1 - loss) / (1 + loss)
    fields.drive[...] *= 1 / permittivity[...] / (1 + loss)

    # A wall of metal with two slits.
    fields.drive[cells // 3 : cells // 3 + 3, :] = 0.0
    for middle in (3 * cells // 8, 5 * cells // 8):
        slit = slice(middle - cells // 40 - 1, middle + cells // 40 + 1)
        fields.drive[cells // 3 : cells // 3 + 3, slit] = COURANT
    return fields


def update(fields: Fields) -> None:
    """One update of the fields without sources, in place."""
    e, hx, hy, keep, drive = fields
    hx[...] -= COURANT * forward(e[...], axis=1)
    hy[...] += COURANT * forward(e[...], axis=0)
    curl = backward(hy[...], axis=0) - backward(hx[...], axis=1)
    e[...] = keep[...] * e[...] + drive[...] * curl


@mu.jit
def advance(fields: Fields, first: int, count: int) -> None:
    """Does `count` updates, of which `first` is the number of the first; all of it in place."""
    source = sources(fields.e.shape[0])

    def step(n, _):
        update(fields)
        along_line, at_antenna = currents(n)
        # As `e[index] += ...`; that reads first, and tells every device what was read. Here the
        # devices that own a part of the line, or the antenna, add to it, and no other hears of it.
        fields.e.add_at(source.line, along_line)
        fields.e.add_at(source.antenna, at_antenna)

    lax.fori_loop(first, first + count, step, None)


# In plain JAX ------------------------------------------------------------------------------------


class PlainFields(NamedTuple):
    """What changes, in immutable arrays."""

    e: jax.Array
    hx: jax.Array
    hy: jax.Array


class Materials(NamedTuple):
    """What does not change; apart, because the fields are donated."""

    keep: jax.Array
    drive: jax.Array


def plain_update(fields: PlainFields, materials: Materials) -> PlainFields:
    """One update of the fields without sources."""
    e, hx, hy = fields
    hx = hx - COURANT * forward(e, axis=1)
    hy = hy + COURANT * forward(e, axis=0)
    curl = backward(hy, axis=0) - backward(hx, axis=1)
    return PlainFields(materials.keep * e + materials.drive * curl, hx, hy)


def plain_advance(sharding: NamedSharding) -> Any:
    """The same updates as a function from fields to fields, which are donated."""

    @partial(jax.jit, donate_argnums=0, out_shardings=PlainFields(sharding, sharding, sharding))
    def advance(fields: PlainFields, materials: Materials, first: int, count: int) -> PlainFields:
        source = sources(fields.e.shape[0])
        row, columns = source.line
        # With the slice itself, the partitioner gathers the field along a mesh axis.
        columns = jnp.arange(*columns.indices(fields.e.shape[1]))

        def step(n, fields):
            e, hx, hy = plain_update(fields, materials)
            along_line, at_antenna = currents(n)
            e = e.at[row, columns].add(along_line)
            e = e.at[source.antenna].add(at_antenna)
            # Without this, the partitioner is free to split the loop's arrays in another way.
            return lax.with_sharding_constraint(PlainFields(e, hx, hy), sharding)

        return lax.fori_loop(first, first + count, step, fields)

    return advance


# What comes out ----------------------------------------------------------------------------------


def energy_density(fields: Fields, height: int, width: int) -> np.ndarray:
    """The mean of the squared electric field in so many rows and columns of patches."""
    e = fields.e[...]
    rows, columns = e.shape[0] // height, e.shape[1] // width
    whole = e[: rows * height, : columns * width] ** 2
    return np.asarray(whole.reshape(height, rows, width, columns).mean((1, 3)))


def picture(fields: Fields, height: int = 24, width: int = 60) -> str:
    """The strength of the field in characters, each for a patch of cells."""
    cells = fields.e.shape[0]
    density = energy_density(fields, min(height, cells), min(width, cells))
    # Four shades for four factors of ten, from the strongest patch that is not at the line itself.
    behind = density[len(density) // 4 :]
    level = np.log10(density / (behind.max() or 1.0) + 1e-9) * 1.6 + 5
    shades = " ·░▒▓█"
    return "\n".join(
        "".join(shades[int(x)] for x in row) for row in np.clip(level, 0, len(shades) - 1)
    )


def plot(fields: Fields, path: Path) -> None:
    """Writes the field as an image: red and blue for its sign, the materials as lines."""
    from matplotlib.figure import Figure

    e, drive = np.asarray(fields.e), np.asarray(fields.drive)
    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.subplots()
    limit = float(np.quantile(np.abs(e), 0.995)) or 1.0
    image = axes.imshow(e, cmap="RdBu", vmin=-limit, vmax=limit)
    levels = [0.1 * COURANT, 0.7 * COURANT]
    axes.contour(drive, levels=levels, colors="black", linewidths=0.7)
    figure.colorbar(image, label="electric field")
    figure.savefig(path, dpi=150)


def shares(fields: Fields) -> Table:
    """What each device holds."""
    table = Table(title=f"The fields over {fields.e.sharding.mesh.size} devices")
    for heading in ("device", "cells of each field", "bytes of all"):
        table.add_column(heading, justify="left" if heading == "device" else "right")
    for n, shard in enumerate(fields.e.addressable_shards):
        total = sum(field.addressable_shards[n].data.nbytes for field in fields)
        box = " × ".join(map(str, shard.data.shape))
        table.add_row(str(shard.device), box, f"{total:,}")
    return table


def measure(cells: int, sharding: NamedSharding, updates: int, repeats: int) -> list[Measured]:
    """Both forms on the same scene, so many updates in one call."""
    fields = double_slit(cells, sharding)
    plain, materials = to_plain(double_slit(cells, sharding))
    plain_step = plain_advance(sharding)

    def step() -> jax.Array:
        advance(fields, 0, updates)
        return fields.e[0, 0]

    def step_plain() -> jax.Array:
        nonlocal plain
        plain = plain_step(plain, materials, 0, updates)
        return plain.e[0, 0]

    compiled = advance.lower(fields, 0, updates).compile()
    compiled_plain = plain_step.lower(plain, materials, 0, updates).compile()
    forms = [
        Form("mutarray", step, compiled, (Fields, update, advance)),
        Form(
            "plain JAX",
            step_plain,
            compiled_plain,
            (PlainFields, Materials, plain_update, plain_advance),
        ),
    ]
    return compare(forms, repeats)


def to_plain(fields: Fields) -> tuple[PlainFields, Materials]:
    """The fields for the other form."""
    e, hx, hy, keep, drive = mu.freeze(fields)
    return PlainFields(e, hx, hy), Materials(keep, drive)


app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(
    help="""Electromagnetic waves through two slits, on a mesh of devices.

The fields are mutable arrays, split in both directions. The scene is written into them eagerly;
the updates run in place in one compiled loop."""
)
def main(
    cells: Annotated[int, typer.Option(min=32, help="Cells along each side.")] = 512,
    updates: Annotated[int, typer.Option(min=1, help="Updates of the fields.")] = 900,
    devices_: DevicesOption = None,
    plot_to: Annotated[
        Path | None, typer.Option("--plot", help="Write an image of the field to this file.")
    ] = None,
    small: Annotated[bool, typer.Option("--small", help="A tiny grid, for a quick try.")] = False,
) -> None:
    available = devices(devices_)
    if small:
        cells, updates = 64, 100
    sharding = NamedSharding(make_mesh(available), P("i", "j"))
    console = Console()
    try:
        fields = double_slit(cells, sharding)
    except mu.errors.IndivisibleError as error:
        raise typer.BadParameter(f"{cells} cells do not split evenly: {error}") from None
    console.print(shares(fields))
    chunk = max(1, updates // 20)
    for first in track(range(0, updates, chunk), "Updating the fields", console=console):
        advance(fields, first, min(chunk, updates - first))
        # Simulated devices share few threads: one program at a time.
        fields.e.block_until_ready()
    console.print(f"The field after {updates} updates: the line above, the wall with two slits,")
    console.print("and behind it the glass disc, and the antenna at its left:")
    console.print(picture(fields), highlight=False)
    if plot_to is not None:
        plot(fields, plot_to)
        console.print(f"Image: {plot_to}")
    count = 2 if small else 10
    measured = measure(cells, sharding, count, repeats=2 if small else 20)
    show(
        f"A call of {count} updates, {cells} × {cells} cells, {sharding.mesh.size} devices",
        measured,
    )


if __name__ == "__main__":
    app()
