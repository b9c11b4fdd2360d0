"""A classifier of handwritten digits whose whole training state is mutable and sharded.

The weights and Adam's two moments are mutable arrays on a 4×2 mesh. One compiled step takes the
state as an argument and updates it in place; it returns the loss and nothing else. The demo runs
this, and so does ``examples/digits.py``, beside the same training in plain JAX.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, Sharding
from jax.sharding import PartitionSpec as P

import mutarray as mu
from mutarray.demo.checks import Check
from mutarray.demo.devices import make_mesh

PIXELS = 64
HIDDEN = 128
# Ten digits. The other six outputs never carry a label; they make the last layer divisible.
CLASSES = 16
TEST_IMAGES = 360
BATCH = 128
WANTED_ACCURACY = 0.95

# Each layer is split along both mesh axes, and the second the other way round than the first.
SPECS: dict[str, P] = {
    "layer1": P("data", "model"),
    "bias1": P("model"),
    "layer2": P("model", "data"),
    "bias2": P("data"),
}

LEARNING_RATE = 3e-3
DECAY1 = 0.9
DECAY2 = 0.999
EPSILON = 1e-8


class Digits(NamedTuple):
    """Images as rows of pixels between 0 and 1, and their labels, apart for training and test."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


class State(NamedTuple):
    """Everything that training changes: trees of arrays, or of mutable arrays."""

    weights: dict[str, Any]
    first_moment: dict[str, Any]
    second_moment: dict[str, Any]
    steps: Any


@dataclass(frozen=True)
class Row:
    """One array of the state as the table at the end shows it.

    Attributes:
        name: Where the array stands in the state.
        shape: Its shape.
        sharding: Where it lies after training.
        bytes_per_device: The size of the largest block on one device.
        unchanged: Whether the sharding is the same, and on the same devices, as before training.
    """

    name: str
    shape: tuple[int, ...]
    sharding: Sharding
    bytes_per_device: int
    unchanged: bool


@dataclass(frozen=True)
class Training:
    """What training showed.

    Attributes:
        mesh: The mesh that the state is on.
        accuracy: The share of test images that are told rightly.
        first_loss: The loss of the first batch.
        last_loss: The loss of the last batch.
        steps: How many updates were made.
        seconds: How long they took, compilation included.
        rows: The arrays of the state.
        device_bytes: Bytes of the state on each device.
        checks: What had to hold.
    """

    mesh: Mesh
    accuracy: float
    first_loss: float
    last_loss: float
    steps: int
    seconds: float
    rows: list[Row]
    device_bytes: dict[jax.Device, int]
    checks: list[Check]


def load() -> Digits:
    """Reads the 1,797 digits that scikit-learn ships, shuffled once and for all."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images = (images[order] / 16).astype(np.float32)
    labels = labels[order].astype(np.int32)
    return Digits(
        images[TEST_IMAGES:], labels[TEST_IMAGES:], images[:TEST_IMAGES], labels[:TEST_IMAGES]
    )


def init(mesh: Mesh) -> State:
    """Makes the state before the first step, of immutable arrays, with He's initial weights.

    Args:
        mesh: has the axes ``data`` and ``model``.
    """
    rng = np.random.default_rng(1)
    weights = {
        "layer1": rng.normal(0, np.sqrt(2 / PIXELS), (PIXELS, HIDDEN)),
        "bias1": np.zeros(HIDDEN),
        "layer2": rng.normal(0, np.sqrt(2 / HIDDEN), (HIDDEN, CLASSES)),
        "bias2": np.zeros(CLASSES),
    }
    weights = {name: value.astype(np.float32) for name, value in weights.items()}
    zeros = {name: np.zeros_like(value) for name, value in weights.items()}
    shardings = {name: NamedSharding(mesh, spec) for name, spec in SPECS.items()}
    return jax.device_put(
        State(weights, zeros, zeros, np.zeros((), np.int32)),
        State(shardings, shardings, shardings, NamedSharding(mesh, P())),
    )


def logits(weights: Mapping[str, jax.Array], images: jax.Array) -> jax.Array:
    """Computes the two layers."""
    hidden = jax.nn.relu(images @ weights["layer1"] + weights["bias1"])
    return hidden @ weights["layer2"] + weights["bias2"]


def loss(weights: Mapping[str, jax.Array], images: jax.Array, labels: jax.Array) -> jax.Array:
    """Computes the mean cross-entropy."""
    log_probabilities = jax.nn.log_softmax(logits(weights, images))
    return -jnp.mean(jnp.take_along_axis(log_probabilities, labels[:, None], axis=1))


def first_moment(moment: jax.Array, gradient: jax.Array) -> jax.Array:
    """Computes Adam's running mean of the gradients."""
    return DECAY1 * moment + (1 - DECAY1) * gradient


def second_moment(moment: jax.Array, gradient: jax.Array) -> jax.Array:
    """Computes Adam's running mean of their squares."""
    return DECAY2 * moment + (1 - DECAY2) * gradient**2


def descend(weight: jax.Array, first: jax.Array, second: jax.Array, steps: jax.Array) -> jax.Array:
    """Computes the weight after Adam's step number ``steps``."""
    direction = first / (1 - DECAY1**steps)
    scale = jnp.sqrt(second / (1 - DECAY2**steps)) + EPSILON
    return weight - LEARNING_RATE * direction / scale


def update(state: State, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Makes one step of Adam in place and returns the loss."""
    value, gradients = jax.value_and_grad(loss)(mu.values(state.weights), images, labels)
    state.steps[...] += 1
    step = functools.partial(descend, steps=state.steps[...])
    mu.map_inplace(first_moment, state.first_moment, gradients)
    mu.map_inplace(second_moment, state.second_moment, gradients)
    mu.map_inplace(step, state.weights, state.first_moment, state.second_moment)
    return value


def train(
    devices: Sequence[jax.Device],
    digits: Digits,
    *,
    epochs: int,
    on_step: Callable[[int, int, float], None] = lambda done, steps, loss: None,
) -> Training:
    """Trains on the 4×2 mesh, or on the part of it that the devices allow, and tests.

    Args:
        devices: What to run on.
        digits: What to learn.
        epochs: How often to go through the training images.
        on_step: Called after each step with the steps done, the steps in all and the loss.
    """
    mesh = make_mesh(devices, (4, 2), ("data", "model"))
    state = mu.mutable(init(mesh))
    before = {name: (array.sharding, _blocks(array)) for name, array in _named(state).items()}
    traces = 0

    @mu.jit
    def step(state: State, images: jax.Array, labels: jax.Array) -> jax.Array:
        nonlocal traces
        traces += 1
        return update(state, images, labels)

    losses = []
    started = time.perf_counter()
    steps = epochs * (len(digits.train_images) // BATCH)
    for images, labels in batches(digits, mesh, epochs):
        losses.append(float(step(state, images, labels)))
        on_step(len(losses), steps, losses[-1])
    seconds = time.perf_counter() - started

    share = accuracy(mu.values(state.weights), digits, mesh)
    rows = [_row(name, array, *before[name]) for name, array in _named(state).items()]
    return Training(
        mesh=mesh,
        accuracy=share,
        first_loss=losses[0],
        last_loss=losses[-1],
        steps=steps,
        seconds=seconds,
        rows=rows,
        device_bytes=_device_bytes(state),
        checks=[
            *_checks(share, rows, int(state.steps[...]), steps),
            Check(f"mu.jit traced the step once for {steps} calls", traces == 1),
        ],
    )


def _checks(share: float, rows: list[Row], count: int, steps: int) -> list[Check]:
    return [
        Check(
            f"test accuracy is above {WANTED_ACCURACY:.0%}: {share:.1%}",
            share > WANTED_ACCURACY,
        ),
        Check(
            f"all {len(rows)} arrays have the sharding that they were made with",
            all(row.unchanged for row in rows),
        ),
        Check(f"the step counter, a mutable array too, says {count}", count == steps),
    ]


def batches(digits: Digits, mesh: Mesh, epochs: int) -> Iterator[tuple[jax.Array, jax.Array]]:
    """Goes through the training images so many times, shuffled, in batches split over the mesh."""
    rows = NamedSharding(mesh, P("data"))
    rng = np.random.default_rng(2)
    for _ in range(epochs):
        order = rng.permutation(len(digits.train_images))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            yield jax.device_put(
                (digits.train_images[chosen], digits.train_labels[chosen]), (rows, rows)
            )


def accuracy(weights: Mapping[str, jax.Array], digits: Digits, mesh: Mesh) -> float:
    """Computes the share of test images that immutable weights tell rightly."""
    images = jax.device_put(digits.test_images, NamedSharding(mesh, P("data")))
    told = jax.jit(logits)(weights, images).argmax(1)
    return float(np.mean(np.asarray(told) == digits.test_labels))


def _named(state: State) -> dict[str, mu.MutableArray]:
    """Gives every array of the state a name to show."""
    groups = {"": state.weights, "moment 1 ": state.first_moment, "moment 2 ": state.second_moment}
    arrays = {
        prefix + name: array for prefix, group in groups.items() for name, array in group.items()
    }
    return arrays | {"steps": state.steps}


def _blocks(array: mu.MutableArray) -> dict[jax.Device, int]:
    return {shard.device: shard.data.nbytes for shard in array.addressable_shards}


def _row(name: str, array: mu.MutableArray, sharding: Sharding, blocks: dict) -> Row:
    after = _blocks(array)
    unchanged = array.sharding == array[...].sharding == sharding and after == blocks
    return Row(name, array.shape, array.sharding, max(after.values()), unchanged)


def _device_bytes(state: State) -> dict[jax.Device, int]:
    total: dict[jax.Device, int] = {}
    for array in _named(state).values():
        for device, size in _blocks(array).items():
            total[device] = total.get(device, 0) + size
    return total
