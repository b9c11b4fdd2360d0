"""Poles to balance, and an agent that learns to; what `examples.replay` keeps is about these.

The cart and its pole move as in A. G. Barto, R. S. Sutton and C. W. Anderson, "Neuronlike adaptive
elements that can solve difficult learning control problems", IEEE Transactions on Systems, Man, and
Cybernetics 13 (1983). The agent is double Q-learning (H. van Hasselt, A. Guez and D. Silver, AAAI
2016) with a small network; its weights and Adam's moments are updated in place.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import mutarray as mu

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
FARTHEST, STEEPEST = 2.4, 0.21  # metres and radians: further, the pole counts as fallen
LIMIT = 500  # steps, after which a pole that stands is taken away
HIDDEN = 64
DISCOUNT = 0.95
RATE = 2e-3
TARGET_SHARE = 0.05  # by which the second network follows the first in each step

T = TypeVar("T")


class Transition(NamedTuple, Generic[T]):
    """What happened in one step of one pole."""

    before: T
    action: T
    reward: T
    after: T
    ended: T


# One step of a pole, as the ring of a replay buffer keeps it.
TRANSITION = Transition(
    jax.ShapeDtypeStruct((4,), jnp.float32),
    jax.ShapeDtypeStruct((), jnp.int32),
    jax.ShapeDtypeStruct((), jnp.float32),
    jax.ShapeDtypeStruct((4,), jnp.float32),
    jax.ShapeDtypeStruct((), jnp.bool_),
)


# Poles -------------------------------------------------------------------------------------------


def push(state: jax.Array, action: jax.Array) -> jax.Array:
    """The carts and poles after one push to the left (0) or to the right (1)."""
    _, speed, angle, turning = jnp.moveaxis(state, -1, 0)
    sine, cosine = jnp.sin(angle), jnp.cos(angle)
    force = jnp.where(action == 1, FORCE, -FORCE)
    mass = CART + POLE
    shared = (force + POLE * HALF_LENGTH * turning**2 * sine) / mass
    tipping = (GRAVITY * sine - cosine * shared) / (HALF_LENGTH * (4 / 3 - POLE * cosine**2 / mass))
    pulling = shared - POLE * HALF_LENGTH * tipping * cosine / mass
    change = jnp.stack([speed, pulling, turning, tipping], axis=-1)
    return state + SECONDS * change


def has_fallen(state: jax.Array) -> jax.Array:
    return (jnp.abs(state[..., 0]) > FARTHEST) | (jnp.abs(state[..., 2]) > STEEPEST)


def upright(key: jax.Array, count: int) -> jax.Array:
    """So many poles that nearly stand."""
    return jax.random.uniform(key, (count, 4), minval=-0.05, maxval=0.05)


class Poles(NamedTuple):
    """Many poles: position, speed, angle and angular speed of each, and its steps so far."""

    state: mu.MutableArray
    age: mu.MutableArray


def make_poles(count: int, mesh: Mesh) -> Poles:
    split = NamedSharding(mesh, P("data"))
    poles = Poles(mu.zeros((count, 4), sharding=split), mu.zeros(count, jnp.int32, sharding=split))
    poles.state[...] = upright(jax.random.key(1), count)
    return poles


def play(weights: Any, poles: Poles, key: jax.Array, warm: jax.Array) -> Transition[jax.Array]:
    """Moves every pole by a step, and puts up new ones for those that fell; in place.

    Actions are random until `warm` is 1; then some poles are moved with care, and others wildly, so
    that what is to be learned from stays varied.
    """
    whether, where, anew = jax.random.split(key, 3)
    before = poles.state[...]
    count = len(before)
    curiosity = jnp.maximum(1 - warm, jnp.linspace(0, 1, count) ** 3)
    best = jnp.argmax(q_values(weights, before), axis=1)
    random = jax.random.randint(where, (count,), 0, 2)
    action = jnp.where(jax.random.uniform(whether, (count,)) < curiosity, random, best)
    after = push(before, action)
    ended = has_fallen(after)
    leaves = ended | (poles.age[...] + 1 >= LIMIT)
    poles.state[...] = jnp.where(leaves[:, None], upright(anew, count), after)
    poles.age[...] = jnp.where(leaves, 0, poles.age[...] + 1)
    # More for a cart that is near the middle: without that, poles lean until they reach an end.
    reward = 1 - (after[:, 0] / FARTHEST) ** 2
    return Transition(before, action.astype(jnp.int32), reward, after, ended)


# The agent ---------------------------------------------------------------------------------------


class Agent(NamedTuple):
    """A network, one that follows it slowly, and Adam's moments; every leaf is mutable."""

    weights: Any
    target: Any
    mean: Any
    square: Any
    steps: mu.MutableArray


def make_agent(mesh: Mesh) -> Agent:
    """Every device has all of the agent, which is small."""
    keys = jax.random.split(jax.random.key(2), 3)
    sizes = [(4, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 2)]
    layers = [
        {"matrix": jax.random.normal(key, size) * (2 / size[0]) ** 0.5, "bias": jnp.zeros(size[1])}
        for key, size in zip(keys, sizes, strict=True)
    ]
    # An array that stands in a tree twice would become one mutable array.
    copy, mean, square = (jax.tree.map(f, layers) for f in (jnp.copy, *[jnp.zeros_like] * 2))
    agent = Agent(layers, copy, mean, square, jnp.int32(0))
    return mu.mutable(agent, NamedSharding(mesh, P()))


def q_values(weights: Any, state: jax.Array) -> jax.Array:
    """What each action is worth in each state."""
    x = state / jnp.array([FARTHEST, 2.0, STEEPEST, 2.0])
    for layer in weights[:-1]:
        x = jax.nn.relu(x @ layer["matrix"] + layer["bias"])
    return x @ weights[-1]["matrix"] + weights[-1]["bias"]


def errors(weights: Any, target: Any, batch: Transition[jax.Array]) -> jax.Array:
    """How far what is known about each transition is from what it showed."""
    choice = jnp.argmax(q_values(weights, batch.after), axis=1)[:, None]
    later = jnp.take_along_axis(q_values(target, batch.after), choice, axis=1)[:, 0]
    goal = batch.reward + DISCOUNT * jnp.where(batch.ended, 0, later)
    known = jnp.take_along_axis(q_values(weights, batch.before), batch.action[:, None], axis=1)
    return lax.stop_gradient(goal) - known[:, 0]


def learn(agent: Agent, batch: Transition[jax.Array], counts: jax.Array) -> jax.Array:
    """One step of Adam, in place; gives the errors of the transitions."""
    target = mu.values(agent.target)

    def loss(weights: Any) -> tuple[jax.Array, jax.Array]:
        wrong = errors(weights, target, batch)
        # Beyond 1 the loss grows as the error does, no longer as its square.
        small = jnp.minimum(jnp.abs(wrong), 1)
        return (counts * (small * jnp.abs(wrong) - small**2 / 2)).mean(), wrong

    gradients, wrong = jax.grad(loss, has_aux=True)(mu.values(agent.weights))
    agent.steps[...] += 1
    warm = agent.steps[...].astype(jnp.float32)

    def adam(w, t, m, v, g):
        m[...] = 0.9 * m[...] + 0.1 * g
        v[...] = 0.999 * v[...] + 0.001 * g**2
        scale = jnp.sqrt(v[...] / (1 - 0.999**warm)) + 1e-8
        w[...] -= RATE * m[...] / (1 - 0.9**warm) / scale
        t[...] += TARGET_SHARE * (w[...] - t[...])

    trees = agent.weights, agent.target, agent.mean, agent.square, gradients
    jax.tree.map(adam, *trees, is_leaf=lambda x: isinstance(x, mu.MutableArray))
    return wrong


@jax.jit
def balance(weights: Any) -> jax.Array:
    """For how many of `LIMIT` steps the agent keeps each of 64 new poles up."""

    def step(carry: Any, _: None) -> Any:
        state, stands = carry
        state = push(state, jnp.argmax(q_values(weights, state), axis=1))
        stands &= ~has_fallen(state)
        return (state, stands), stands

    start = upright(jax.random.key(3), 64), jnp.ones(64, bool)
    return lax.scan(step, start, None, LIMIT)[1].sum(axis=0)
