"""A replay buffer that is larger than one device, filled by and for an agent that balances a pole.

    make example-replay
    python -m examples.replay --capacity 4194304 --uniform

The buffer is a ring of transitions, and a sum tree of their priorities, in mutable arrays that are
split over the devices: each device holds its share and no more, from birth. All that happens to it
is one compiled program, in place:

* A batch is added at slots that wrap around at the end of the ring. Each device writes those that
  it owns. What moves is the batch.
* Transitions are drawn at random slots, uniformly or by priority, and come split over the devices,
  ready for a learner that is data-parallel. What moves is the drawn batch.
* New priorities are written. Slots that were drawn twice get the last one, and the sums above are
  computed anew from what is below them, so they never drift.

Priorities are proportional, as in T. Schaul, J. Quan, I. Antonoglou and D. Silver, "Prioritized
Experience Replay", ICLR 2016 (section 3.3 and algorithm 1). The tree is wide rather than deep:
each of its nodes is the sum of a row of `FANOUT` others.

The poles and the agent, double Q-learning, are in `examples/cartpole.py`; the buffer knows neither.
`PlainReplay` and the functions after it do the same in plain JAX, with arrays that are donated and
handed back.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import typer
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console
from rich.progress import track
from rich.table import Table

import mutarray as mu
from examples import cartpole
from examples.cartpole import Agent, Poles, Transition
from examples.comparison import DevicesOption, Form, Measured, compare, devices, show

FANOUT = 32
ALPHA = 0.6  # how much priorities matter for what is drawn
BETA = 0.5  # how much that is made up for in the loss
LEARNED = 350  # steps for which poles stand when training ends
WARM_UP = 150  # steps until the agent acts by what it knows
SMALLEST = 1e-3  # is added to every error, so that nothing is never drawn again


class Drawn(NamedTuple):
    """A batch from the buffer, where it lies there, and how much each of it counts in the loss."""

    slots: jax.Array
    batch: Transition[jax.Array]
    weights: jax.Array


def rows_of_levels(capacity: int) -> list[int]:
    """How many rows each level of the tree has, from the priorities up to the root."""
    rows = [capacity // FANOUT]
    while rows[-1] > 1:
        rows.append(-(-rows[-1] // FANOUT))
    return rows


def level_spec(rows: int, mesh: Mesh) -> P:
    """Rows are split over the devices, but in the few small levels at the top."""
    return P("data") if rows % mesh.size == 0 else P()


def choose_child(children: jax.Array, left: jax.Array) -> tuple[jax.Array, jax.Array]:
    """For rows of sums and a mass in each, the child in which it falls, and what is left there."""
    ends = jnp.cumsum(children, axis=1)
    # Sums are rounded: a mass at the very end must not fall off it, or into an empty slot there.
    left = jnp.minimum(left, jnp.nextafter(ends[:, -1], jnp.float32(0)))
    child = jnp.argmax(ends > left[:, None], axis=1)
    start = jnp.take_along_axis(ends - children, child[:, None], axis=1)[:, 0]
    return child, jnp.maximum(left - start, 0)


# With mutable arrays -----------------------------------------------------------------------------


class Replay(NamedTuple):
    """The buffer.

    Attributes:
        ring: the transitions.
        levels: priorities, and sums of rows of them, up to one row.
        head: where the next transition goes.
        filled: how many there are.
        highest: the highest priority so far, which new transitions get.
    """

    ring: Transition[mu.MutableArray]
    levels: list[mu.MutableArray]
    head: mu.MutableArray
    filled: mu.MutableArray
    highest: mu.MutableArray


def make_replay(capacity: int, example: Transition[jax.ShapeDtypeStruct], mesh: Mesh) -> Replay:
    """An empty buffer, born in shards: no device ever holds more than its share."""
    split, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    return Replay(
        Transition(*[mu.zeros((capacity, *x.shape), x.dtype, sharding=split) for x in example]),
        [
            mu.zeros((rows, FANOUT), sharding=NamedSharding(mesh, level_spec(rows, mesh)))
            for rows in rows_of_levels(capacity)
        ],
        mu.zeros((), jnp.int32, sharding=whole),
        mu.zeros((), jnp.int32, sharding=whole),
        mu.ones((), jnp.float32, sharding=whole),
    )


def add(replay: Replay, batch: Transition[jax.Array]) -> None:
    """Writes a batch over the oldest transitions."""
    capacity, count = len(replay.ring.reward), len(batch.reward)
    slots = (replay.head[...] + jnp.arange(count)) % capacity
    for field, new in zip(replay.ring, batch, strict=True):
        mu.set(field, slots, new, unique_indices=True)
    replay.head[...] = (replay.head[...] + count) % capacity
    replay.filled[...] = jnp.minimum(replay.filled[...] + count, capacity)
    _write_priorities(replay, slots, jnp.full(count, replay.highest[...]))


def _write_priorities(replay: Replay, slots: jax.Array, priorities: jax.Array) -> None:
    for level in replay.levels:
        level[slots // FANOUT, slots % FANOUT] = priorities
        slots = slots // FANOUT
        priorities = level[slots].sum(axis=1)


def prioritise(replay: Replay, slots: jax.Array, errors: jax.Array) -> None:
    """Gives transitions priorities by how wrong the agent was about them; the last one wins."""
    priorities = (jnp.abs(errors) + SMALLEST) ** ALPHA
    replay.highest[...] = jnp.maximum(replay.highest[...], priorities.max())
    _write_priorities(replay, slots, priorities)


def draw(replay: Replay, key: jax.Array, count: int) -> Drawn:
    """Draws transitions in proportion to their priorities, one from each equal part of the sum."""
    total = replay.levels[-1][0].sum()
    left = (jnp.arange(count) + jax.random.uniform(key, (count,))) / count * total
    slots = jnp.zeros(count, jnp.int32)
    for level in reversed(replay.levels):
        children = level[slots]
        child, left = choose_child(children, left)
        slots = slots * FANOUT + child
    chances = jnp.take_along_axis(children, child[:, None], axis=1)[:, 0] / total
    weights = (replay.filled[...] * chances) ** -BETA
    return Drawn(slots, take(replay, slots), weights / weights.max())


def draw_uniformly(replay: Replay, key: jax.Array, count: int) -> Drawn:
    """Draws transitions that are all equally likely."""
    slots = jax.random.randint(key, (count,), 0, replay.filled[...])
    return Drawn(slots, take(replay, slots), jnp.ones(count))


def take(replay: Replay, slots: jax.Array) -> Transition[jax.Array]:
    """Transitions by their slots, split over the devices."""
    return Transition(*[mu.get(field, slots, out_sharding=P("data")) for field in replay.ring])


# In plain JAX ------------------------------------------------------------------------------------


class PlainReplay(NamedTuple):
    """The same state, of immutable arrays."""

    ring: Transition[jax.Array]
    levels: list[jax.Array]
    head: jax.Array
    filled: jax.Array
    highest: jax.Array


def plain_shardings(capacity: int, mesh: Mesh) -> PlainReplay:
    """Where the state lies: what makes it, and every function that gives it back, must say so."""
    split, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    levels = [NamedSharding(mesh, level_spec(rows, mesh)) for rows in rows_of_levels(capacity)]
    return PlainReplay(Transition(*[split] * 5), levels, whole, whole, whole)


def make_plain_replay(
    capacity: int, example: Transition[jax.ShapeDtypeStruct], mesh: Mesh
) -> PlainReplay:
    def make() -> PlainReplay:
        ring = Transition(*[jnp.zeros((capacity, *x.shape), x.dtype) for x in example])
        levels = [jnp.zeros((rows, FANOUT)) for rows in rows_of_levels(capacity)]
        return PlainReplay(ring, levels, jnp.int32(0), jnp.int32(0), jnp.float32(1))

    return jax.jit(make, out_shardings=plain_shardings(capacity, mesh))()


def plain_add(replay: PlainReplay, batch: Transition[jax.Array]) -> PlainReplay:
    capacity, count = len(replay.ring.reward), len(batch.reward)
    slots = (replay.head + jnp.arange(count)) % capacity
    ring = Transition(
        *[
            field.at[slots].set(new, unique_indices=True)
            for field, new in zip(replay.ring, batch, strict=True)
        ]
    )
    replay = replay._replace(
        ring=ring,
        head=(replay.head + count) % capacity,
        filled=jnp.minimum(replay.filled + count, capacity),
    )
    return _plain_write_priorities(replay, slots, jnp.full(count, replay.highest))


def _plain_write_priorities(
    replay: PlainReplay, slots: jax.Array, priorities: jax.Array
) -> PlainReplay:
    # `.at[].set` leaves open which of several values for one slot wins: all but the last are sent
    # out of range. Further up, equal slots get equal values.
    order = jnp.argsort(slots, stable=True)
    slots, priorities = slots[order], priorities[order]
    is_last = jnp.append(slots[1:] != slots[:-1], True)
    winners = jnp.where(is_last, slots, len(replay.ring.reward))
    leaves = replay.levels[0].at[winners // FANOUT, winners % FANOUT].set(priorities, mode="drop")
    levels = [leaves]
    for level in replay.levels[1:]:
        slots = slots // FANOUT
        values = levels[-1][slots].sum(axis=1)
        levels.append(level.at[slots // FANOUT, slots % FANOUT].set(values))
    return replay._replace(levels=levels)


def plain_prioritise(replay: PlainReplay, slots: jax.Array, errors: jax.Array) -> PlainReplay:
    priorities = (jnp.abs(errors) + SMALLEST) ** ALPHA
    replay = replay._replace(highest=jnp.maximum(replay.highest, priorities.max()))
    return _plain_write_priorities(replay, slots, priorities)


def plain_draw(replay: PlainReplay, key: jax.Array, count: int, mesh: Mesh) -> Drawn:
    total = replay.levels[-1][0].sum()
    left = (jnp.arange(count) + jax.random.uniform(key, (count,))) / count * total
    slots = jnp.zeros(count, jnp.int32)
    for level in reversed(replay.levels):
        children = level[slots]
        child, left = choose_child(children, left)
        slots = slots * FANOUT + child
    chances = jnp.take_along_axis(children, child[:, None], axis=1)[:, 0] / total
    weights = (replay.filled * chances) ** -BETA
    split = NamedSharding(mesh, P("data"))
    batch = Transition(
        *[lax.with_sharding_constraint(field[slots], split) for field in replay.ring]
    )
    return Drawn(slots, batch, weights / weights.max())


# The program -------------------------------------------------------------------------------------


@partial(mu.jit, static_argnames=("count", "uniform"))
def train_step(
    agent: Agent, poles: Poles, replay: Replay, n: int, *, count: int, uniform: bool
) -> jax.Array:
    """A step of every pole and of learning, in place; gives the number of poles that fell."""
    playing, drawing = jax.random.split(jax.random.fold_in(jax.random.key(0), n))
    batch = cartpole.play(mu.values(agent.weights), poles, playing, n / WARM_UP)
    add(replay, batch)
    drawn = (draw_uniformly if uniform else draw)(replay, drawing, count)
    wrong = cartpole.learn(agent, drawn.batch, drawn.weights)
    if not uniform:
        prioritise(replay, drawn.slots, wrong)
    return batch.ended.sum()


@partial(mu.jit, static_argnames="count")
def use(
    replay: Replay, batch: Transition[jax.Array], errors: jax.Array, key: jax.Array, count: int
) -> Drawn:
    """What a step of learning does to the buffer: what is measured."""
    add(replay, batch)
    drawn = draw(replay, key, count)
    prioritise(replay, drawn.slots, errors)
    return drawn


def plain_use(capacity: int, count: int, mesh: Mesh) -> Any:
    """The same in plain JAX, as a function from the state, which is donated, to the next."""
    shardings = plain_shardings(capacity, mesh), None

    @partial(jax.jit, donate_argnums=0, out_shardings=shardings)
    def use(
        replay: PlainReplay, batch: Transition[jax.Array], errors: jax.Array, key: jax.Array
    ) -> tuple[PlainReplay, Drawn]:
        replay = plain_add(replay, batch)
        drawn = plain_draw(replay, key, count, mesh)
        return plain_prioritise(replay, drawn.slots, errors), drawn

    return use


def measure(capacity: int, mesh: Mesh, added: int, count: int, repeats: int) -> list[Measured]:
    """Both forms on the same work: a batch added, one drawn by priority, its priorities written."""
    fields = [jnp.ones((added, *x.shape), x.dtype) for x in cartpole.TRANSITION]
    batch = jax.device_put(Transition(*fields), NamedSharding(mesh, P("data")))
    errors, key = jnp.linspace(-1, 1, count), jax.random.key(0)
    replay = make_replay(capacity, cartpole.TRANSITION, mesh)
    plain = make_plain_replay(capacity, cartpole.TRANSITION, mesh)
    use_plain = plain_use(capacity, count, mesh)

    def step() -> Drawn:
        return use(replay, batch, errors, key, count)

    def step_plain() -> Drawn:
        nonlocal plain
        plain, drawn = use_plain(plain, batch, errors, key)
        return drawn

    compiled = use.lower(replay, batch, errors, key, count).compile()
    compiled_plain = use_plain.lower(plain, batch, errors, key).compile()
    ours = (Replay, make_replay, add, _write_priorities, prioritise, draw, take, use)
    theirs = (PlainReplay, plain_shardings, make_plain_replay, plain_add, _plain_write_priorities)
    theirs += (plain_prioritise, plain_draw, plain_use)
    forms = [
        Form("mutarray", step, compiled, ours),
        Form("plain JAX", step_plain, compiled_plain, theirs),
    ]
    return compare(forms, repeats)


def shares(replay: Replay) -> Table:
    """What each device holds."""
    arrays = [*replay.ring, *replay.levels]
    whole = sum(array.nbytes for array in arrays)
    devices = len(replay.ring.reward.addressable_shards)
    table = Table(title=f"{whole:,} bytes over {devices} devices")
    for heading in ("device", "slots of the ring", "bytes"):
        table.add_column(heading, justify="left" if heading == "device" else "right")
    for n, shard in enumerate(replay.ring.reward.addressable_shards):
        first, stop, _ = shard.index[0].indices(len(replay.ring.reward))
        held = sum(array.addressable_shards[n].data.nbytes for array in arrays)
        table.add_row(str(shard.device), f"{first:,} to {stop - 1:,}", f"{held:,}")
    return table


app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@app.command(
    help="""A replay buffer larger than one device, for an agent that learns to balance a pole.

The ring of transitions and the tree of their priorities are mutable arrays that are split over the
devices; adding, drawing and new priorities are one compiled program, in place."""
)
def main(
    capacity: Annotated[int, typer.Option(min=256, help="Transitions in the buffer.")] = 1 << 13,
    poles: Annotated[int, typer.Option(min=1, help="Poles that are moved at once.")] = 64,
    steps: Annotated[int, typer.Option(min=1, help="Steps at most; fewer if it is learned.")] = 600,
    uniform: Annotated[bool, typer.Option("--uniform", help="Draw without priorities.")] = False,
    devices_: DevicesOption = None,
    small: Annotated[bool, typer.Option("--small", help="A tiny run, for a quick try.")] = False,
) -> None:
    available = devices(devices_)
    if small:
        capacity, poles, steps = 256, 16, 40
    count = 4 * poles
    mesh = jax.make_mesh((len(available),), ("data",), (AxisType.Auto,), devices=available)
    for name, number, unit in (("capacity", capacity, FANOUT), ("poles", poles, 1)):
        if number % (mesh.size * unit):
            raise typer.BadParameter(f"--{name} has to be a multiple of {mesh.size * unit}")
    console = Console()
    replay = make_replay(capacity, cartpole.TRANSITION, mesh)
    console.print(shares(replay))
    agent, carts = cartpole.make_agent(mesh), cartpole.make_poles(poles, mesh)
    best = 0.0
    # What would move more than it touches raises an error.
    with mu.no_gather():
        for n in track(range(steps), "Learning to balance", console=console):
            fell = train_step(agent, carts, replay, n, count=count, uniform=uniform)
            fell.block_until_ready()  # simulated devices share few threads: one program at a time
            if n % 25 == 24 or n == steps - 1:
                best = max(best, float(cartpole.balance(mu.values(agent.weights)).mean()))
                if best > LEARNED:
                    break
    console.print(
        f"Added {(n + 1) * poles:,} transitions in a ring of {capacity:,}; the best network kept "
        f"poles up for {best:.0f} of {cartpole.LIMIT} steps."
    )
    wide = capacity if small else capacity * max(1, (1 << 20) // capacity)
    measured = measure(wide, mesh, poles, count, repeats=2 if small else 20)
    show(f"{poles} added, {count} drawn, {wide:,} slots, {mesh.size} devices", measured)


if __name__ == "__main__":
    app()
