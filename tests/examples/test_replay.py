"""The replay buffer: NumPy says what is in it, and adding to it moves the batch alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from typer.testing import CliRunner

import mutarray as mu
from examples import cartpole, replay
from tests import hlo

# As `--small` has them, so that programs are compiled once.
CAPACITY, ADDED, COUNT = 256, 16, 64


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((8,), ("data",), (AxisType.Auto,))


def batch_of(rng, mesh, count=ADDED):
    fields = [
        rng.normal(size=(count, *x.shape)) if x.dtype != jnp.bool_ else rng.random(count) < 0.5
        for x in cartpole.TRANSITION
    ]
    values = [np.asarray(v, x.dtype) for v, x in zip(fields, cartpole.TRANSITION, strict=True)]
    return jax.device_put(replay.Transition(*values), NamedSharding(mesh, P("data")))


def sums(leaves):
    """The levels of a tree above its leaves, as NumPy adds them up."""
    levels = [np.asarray(leaves, np.float64)]
    while len(levels[-1]) > 1:
        sums = levels[-1].sum(axis=1)
        rows = -(-len(sums) // replay.FANOUT)
        levels.append(np.zeros((rows, replay.FANOUT)))
        levels[-1].flat[: len(sums)] = sums
    return levels


def test_the_ring_wraps_around_and_is_what_plain_jax_makes(mesh):
    """In the same rounds, also with slots that are drawn more than once."""
    rng = np.random.default_rng(0)
    ours = replay.make_replay(CAPACITY, cartpole.TRANSITION, mesh)
    plain = replay.make_plain_replay(CAPACITY, cartpole.TRANSITION, mesh)
    use_plain = replay.plain_use(CAPACITY, COUNT, mesh)
    shardings = jax.tree.map(lambda x: x.sharding, mu.values(ours))
    expected = [np.zeros((CAPACITY, *x.shape), x.dtype) for x in cartpole.TRANSITION]
    leaves = np.zeros(CAPACITY, np.float32)
    highest, repeated = np.float32(1), False
    for n in range(20):
        batch, errors = batch_of(rng, mesh), np.float32(rng.normal(size=COUNT) * 3)
        key = jax.random.key(n)
        slots = np.arange(n * ADDED, (n + 1) * ADDED) % CAPACITY
        for field, new in zip(expected, batch, strict=True):
            field[slots] = new
        leaves[slots] = highest
        drawn = replay.use(ours, batch, errors, key, COUNT)
        plain, drawn_plain = jax.block_until_ready(use_plain(plain, batch, errors, key))

        taken = np.asarray(drawn.slots)
        repeated |= len(set(taken.tolist())) < COUNT
        for got, field in zip(drawn.batch, expected, strict=True):
            np.testing.assert_array_equal(got, field[taken])
            assert got.sharding.spec[0] == "data"
        chances = leaves[taken] / leaves.sum(dtype=np.float64)
        weights = (min((n + 1) * ADDED, CAPACITY) * chances) ** -replay.BETA
        np.testing.assert_allclose(drawn.weights, weights / weights.max(), rtol=1e-4)
        priorities = (np.abs(errors) + np.float32(replay.SMALLEST)) ** np.float32(replay.ALPHA)
        for slot, priority in zip(taken, priorities, strict=True):
            leaves[slot] = priority
        highest = max(highest, priorities.max())
        for got, other in zip(jax.tree.leaves(drawn), jax.tree.leaves(drawn_plain), strict=True):
            np.testing.assert_array_equal(got, other)

    assert repeated and 20 * ADDED > CAPACITY
    for got, field in zip(ours.ring, expected, strict=True):
        np.testing.assert_array_equal(got[...], field)
    for got, level in zip(ours.levels, sums(leaves.reshape(-1, replay.FANOUT)), strict=True):
        np.testing.assert_allclose(got[...], level, rtol=1e-5)
    assert int(ours.head) == 20 * ADDED % CAPACITY and int(ours.filled) == CAPACITY
    values = mu.values(ours)
    for got, other in zip(jax.tree.leaves(values), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(got, other)
    assert jax.tree.map(lambda x: x.sharding, values) == shardings


def test_transitions_are_drawn_in_proportion_to_their_priorities(mesh):
    ours = replay.make_replay(CAPACITY, cartpole.TRANSITION, mesh)
    write = mu.jit(lambda buffer, slots, errors: replay.prioritise(buffer, slots, errors))
    ours.filled[...] = 128
    errors = np.geomspace(0.01, 10, 128)
    write(ours, np.arange(128), errors)
    ours.levels[0].block_until_ready()
    priorities = (errors + replay.SMALLEST) ** replay.ALPHA
    expected = priorities / priorities.sum()

    count = 2048
    drawn = jax.block_until_ready(
        mu.jit(replay.draw, static_argnums=2)(ours, jax.random.key(0), count)
    )
    seen = np.bincount(np.asarray(drawn.slots), minlength=CAPACITY)
    assert not seen[128:].any()
    # One from each part of the sum: a slot is drawn as often as its share says, give or take two.
    assert np.abs(seen[:128] - expected * count).max() <= 2

    uniform = mu.jit(replay.draw_uniformly, static_argnums=2)(ours, jax.random.key(0), count)
    seen = np.bincount(np.asarray(uniform.slots), minlength=CAPACITY)
    assert not seen[128:].any() and seen[:128].min() > 0
    assert seen.max() < 3 * count / 128


@pytest.mark.parametrize("left", [0.0, 2.9999998, 3.0, 5.0])
def test_an_empty_child_is_never_chosen(left):
    children = jnp.array([[0.0, 1.0, 0.0, 2.0, 0.0, 0.0]])
    child, rest = replay.choose_child(children, jnp.array([left], jnp.float32))
    assert int(child[0]) == (1 if left < 1 else 3)
    assert 0 <= float(rest[0]) <= float(children[0, int(child[0])])


def test_adding_moves_the_batch_alone(mesh):
    capacity = 1 << 14
    ours = replay.make_replay(capacity, cartpole.TRANSITION, mesh)
    batch = batch_of(np.random.default_rng(2), mesh, 64)

    def add_to_ring(ring, head, batch):
        slots = (head + jnp.arange(64)) % capacity
        for field, new in zip(ring, batch, strict=True):
            mu.set(field, slots, new, unique_indices=True)

    with mu.no_gather():
        ring_alone = mu.jit(add_to_ring).lower(ours.ring, 0, batch).compile()
        whole = mu.jit(replay.add).lower(ours, batch).compile()
    moved = sum(i.nbytes for i in hlo.collectives(ring_alone))
    assert {i.name for i in hlo.collectives(ring_alone)} <= {"all-gather"}
    assert moved <= sum(x.nbytes for x in batch)
    # The tree sends the rows of which it needs the sums, in each of its levels.
    rows = len(ours.levels) * 64 * replay.FANOUT * 4
    assert sum(i.nbytes for i in hlo.collectives(whole)) <= moved + rows
    smallest = min(x.addressable_shards[0].data.nbytes for x in [*ours.ring, ours.levels[0]])
    assert [i for i in hlo.copies(whole) if i.nbytes >= smallest] == []
    assert hlo.temporary(whole) <= moved + 2 * rows

    total = sum(x.nbytes for x in ours.ring)
    for n in range(8):
        assert sum(x.addressable_shards[n].data.nbytes for x in ours.ring) == total // 8


def test_an_agent_learns_with_it(mesh):
    """Its errors on what it has seen shrink, while the ring wraps around."""
    ours = replay.make_replay(CAPACITY, cartpole.TRANSITION, mesh)
    agent, poles = cartpole.make_agent(mesh), cartpole.make_poles(ADDED, mesh)
    before = mu.values(agent.weights)
    for n in range(60):
        fell = replay.train_step(agent, poles, ours, n, count=COUNT, uniform=False)
        jax.block_until_ready(fell)
    assert int(ours.filled) == CAPACITY and int(ours.head) == 60 * ADDED % CAPACITY
    ring = mu.values(ours.ring)
    np.testing.assert_allclose(cartpole.push(ring.before, ring.action), ring.after, rtol=1e-5)
    assert np.array_equal(cartpole.has_fallen(ring.after), ring.ended)
    after, target = mu.values(agent.weights), mu.values(agent.target)
    wrong = [np.abs(cartpole.errors(w, target, ring)).mean() for w in (before, after)]
    assert wrong[1] < 0.7 * wrong[0]


def test_the_command_line():
    result = CliRunner().invoke(replay.app, ["--small"])
    assert result.exit_code == 0, result.output
    assert "over 8 devices" in result.output and "Added 640 transitions" in result.output
    assert "mutarray" in result.output and "plain JAX" in result.output


def test_a_capacity_that_does_not_split_is_refused():
    result = CliRunner().invoke(replay.app, ["--capacity", "500"])
    assert result.exit_code == 2
    assert "--capacity has to be a multiple of 256" in " ".join(
        result.output.replace("│", "").split()
    )
