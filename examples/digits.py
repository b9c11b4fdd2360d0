"""Training with Adam: the whole state is mutable, sharded, and updated in place by one program.

A classifier of handwritten digits learns on a 4×2 mesh. Its weights and Adam's moments are mutable
arrays, so a step is a function that returns the loss and nothing else: nobody hands the state back,
nobody says which argument is donated, and nobody repeats the shardings of what comes out. The model
and Adam's formulas are in ``mutarray.demo.digits``, which ``mutarray demo`` runs too; what differs
between the two forms is here and in ``update`` there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Annotated, Any

import jax
import numpy as np
import typer
from jax.sharding import Mesh
from rich.console import Console
from rich.progress import Progress

import mutarray as mu
from examples.comparison import DevicesOption, Form, compare, devices, show
from mutarray.demo.devices import make_mesh
from mutarray.demo.digits import (
    Digits,
    State,
    accuracy,
    batches,
    descend,
    first_moment,
    init,
    load,
    loss,
    second_moment,
    update,
)

Batch = tuple[jax.Array, jax.Array]

# With mutable arrays ------------------------------------------------------------------------------


def train(mesh: Mesh, data: Iterable[Batch]) -> tuple[State, list[float]]:
    """The state after training, and the loss of each step."""
    state = mu.mutable(init(mesh))
    step = mu.jit(update)
    return state, [float(step(state, images, labels)) for images, labels in data]


# The functional form ------------------------------------------------------------------------------


def functional_update(
    state: State, images: jax.Array, labels: jax.Array
) -> tuple[State, jax.Array]:
    """One step of Adam as a new state."""
    value, gradients = jax.value_and_grad(loss)(state.weights, images, labels)
    steps = state.steps + 1
    step = functools.partial(descend, steps=steps)
    first = jax.tree.map(first_moment, state.first_moment, gradients)
    second = jax.tree.map(second_moment, state.second_moment, gradients)
    weights = jax.tree.map(step, state.weights, first, second)
    return State(weights, first, second, steps), value


def functional_jit(state: State) -> Any:
    """The compiled step: the state is donated, and the new one lies where the old one lay."""
    shardings = jax.tree.map(lambda x: x.sharding, state)
    return jax.jit(functional_update, donate_argnums=0, out_shardings=(shardings, None))


def train_functional(mesh: Mesh, data: Iterable[Batch]) -> tuple[State, list[float]]:
    """The state after training, and the loss of each step."""
    state = init(mesh)
    step = functional_jit(state)
    losses = []
    for images, labels in data:
        state, value = step(state, images, labels)
        losses.append(float(value))
    return state, losses


# The program --------------------------------------------------------------------------------------


def forms(mesh: Mesh, batch: Batch) -> list[Form]:
    """Both forms, each with a state of its own, to be measured on one batch."""
    state = mu.mutable(init(mesh))
    step = mu.jit(update)
    others = [init(mesh)]
    functional_step = functional_jit(others[0])

    def run_functional() -> jax.Array:
        others[0], value = functional_step(others[0], *batch)
        return value

    return [
        Form(
            "mutarray",
            lambda: step(state, *batch),
            step.lower(state, *batch).compile(),
            (update, train),
        ),
        Form(
            "plain JAX, donated",
            run_functional,
            functional_step.lower(others[0], *batch).compile(),
            (functional_update, functional_jit, train_functional),
        ),
    ]


def main(
    epochs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Go through the digits N times.")
    ] = 30,
    small: Annotated[
        bool, typer.Option("--small", help="Two epochs of few digits: does it run?")
    ] = False,
    devices_: DevicesOption = None,
) -> None:
    """Train a classifier of handwritten digits, its whole state mutable and sharded.

    Trains and tests, then does the same steps in plain JAX, and compares time, memory and code.
    """
    console = Console()
    mesh = make_mesh(devices(devices_), (4, 2), ("data", "model"))
    digits = load()
    if small:
        epochs, digits = 2, few(digits)
    data = list(batches(digits, mesh, epochs))
    with Progress(console=console) as progress:
        state, losses = train(mesh, progress.track(data, description="training"))
    console.print(
        f"{len(losses)} steps, loss {losses[0]:.3f} → {losses[-1]:.3f}, "
        f"test accuracy {accuracy(mu.values(state.weights), digits, mesh):.1%}"
    )
    for name, weight in state.weights.items():
        console.print(f"  {name:7} {weight.shape!s:10} {weight.sharding.spec}")
    _, others = train_functional(mesh, data)
    if not np.allclose(losses, others, rtol=1e-3, atol=1e-4):
        console.print("[bold red]The two forms differ.[/bold red]")
        raise typer.Exit(1)
    repeats = 5 if small else 50
    show("One step of Adam", compare(forms(mesh, data[0]), repeats))


def few(digits: Digits) -> Digits:
    """A part of the digits that is good for a test."""
    return digits._replace(
        train_images=digits.train_images[:512], train_labels=digits.train_labels[:512]
    )


if __name__ == "__main__":
    typer.run(main)
