"""The embedding: all forms learn alike, duplicates count once, and no gradient is dense."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import mutarray as mu
from examples import embedding
from examples.comparison import peak_bytes
from tests import hlo

ROWS = 1 << 14
DEVICES = 8
BLOCK = ROWS // DEVICES * embedding.DIM * 4


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(embedding, "BATCH", 16)


@pytest.fixture(scope="module")
def mesh():
    return embedding.make_mesh(jax.devices())


@pytest.fixture(scope="module")
def corpus():
    return embedding.load(ROWS)


def test_a_word_is_itself_and_its_grams(corpus):
    bags = corpus.bags
    assert bags.shape == (len(corpus.words), embedding.BAG) and bags.max() == ROWS
    # <the>: the word, <th the he> <the the>
    the = bags[corpus.words.index("the")]
    assert (the < ROWS).sum() == 1 + 3 + 2 and (the[6:] == ROWS).all()
    np.testing.assert_allclose(corpus.chances.sum(), 1)


def test_all_forms_learn_alike_and_keep_every_sharding(mesh, corpus):
    batches = list(embedding.batches(corpus, mesh, 3))
    words = len(corpus.words)
    model = mu.mutable(embedding.init(mesh, ROWS, words), donate=True)
    before = jax.tree.map(lambda x: x.sharding, mu.values(model))
    losses = embedding.train(model, batches)
    np.testing.assert_allclose(losses[0], 1 + embedding.NEGATIVES, rtol=1e-6)
    after = mu.values(model)
    assert jax.tree.map(lambda x: x.sharding, after) == before
    for function in (embedding.functional_update, embedding.dense_update):
        start = embedding.init(mesh, ROWS, words)
        other, others = embedding.train_functional(function, start, batches)
        np.testing.assert_allclose(losses, others, rtol=1e-5)
        for x, y in zip(jax.tree.leaves(after), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-6)


def test_a_row_that_is_named_twice_gets_the_sum_of_its_gradients(mesh):
    rng = np.random.default_rng(0)
    ids = jnp.array([3, 9, 3, 16, 3, 16], jnp.int32)  # 16 is out of range: padding
    gradient = rng.normal(size=(6, 4)).astype(np.float32)
    rows = rng.normal(size=(16, 4)).astype(np.float32)
    sharding = jax.sharding.NamedSharding(mesh, jax.P("rows"))
    table = mu.mutable(embedding.Table(rows, np.ones(16, np.float32)), sharding)

    @mu.jit
    def step(table):
        unique, places = embedding.distinct(ids, 16)
        _, back = jax.vjp(lambda x: x[places], table.rows[unique])
        embedding.adagrad(table, unique, back(jnp.asarray(gradient))[0])

    step(table)
    dense = np.zeros((17, 4), np.float32)
    np.add.at(dense, np.asarray(ids), gradient)
    squares = 1 + (dense[:16] ** 2).mean(1)
    scale = embedding.RATE / np.sqrt(squares + embedding.EPSILON)
    np.testing.assert_allclose(table.squares[...], squares, rtol=1e-5)
    np.testing.assert_allclose(table.rows[...], rows - scale[:, None] * dense[:16], rtol=1e-5)


def _whole_blocks(compiled):
    """What makes as many bytes as a device's block of the table, and does not work in place."""
    return [
        i for i in hlo.instructions(compiled) if i.nbytes >= BLOCK and i.name not in hlo.IN_PLACE
    ]


def test_no_gradient_is_dense(mesh, corpus):
    batch = next(embedding.batches(corpus, mesh, 1))
    mine, rows, dense = embedding.forms(mesh, ROWS, len(corpus.words), batch)
    assert _whole_blocks(mine.compiled) == []
    # What is sent is at most what a batch names of both tables, and the sums of squares.
    named = embedding.BATCH * (embedding.BAG + 1 + embedding.NEGATIVES)
    assert max(i.nbytes for i in hlo.collectives(mine.compiled)) <= named * (embedding.DIM + 1) * 4
    assert hlo.temporary(mine.compiled) < BLOCK
    model = embedding.init(mesh, ROWS, len(corpus.words))
    held = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(model))
    assert hlo.aliased(mine.compiled) == held
    assert peak_bytes(mine.compiled) < held + BLOCK
    # A dense gradient would be seen.
    assert _whole_blocks(dense.compiled) != []
    assert hlo.temporary(dense.compiled) >= BLOCK
    # A careful user's program is as lean.
    assert peak_bytes(mine.compiled) <= 1.05 * peak_bytes(rows.compiled)


def test_words_are_learned_and_like_what_they_are_made_of(corpus, monkeypatch):
    monkeypatch.setattr(embedding, "BATCH", 64)
    mesh = embedding.make_mesh(jax.devices()[:1])
    model = mu.mutable(embedding.init(mesh, ROWS, len(corpus.words)), donate=True)
    losses = embedding.train(model, embedding.batches(corpus, mesh, 40))
    assert np.mean(losses[-10:]) < 0.9 * np.mean(losses[:10])
    directions = embedding.vectors(model, corpus)
    assert "lists" in embedding.neighbours(directions, corpus, "list", 20)


def test_the_program_runs(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    app = typer.Typer()
    app.command()(embedding.main)
    result = CliRunner().invoke(app, ["--small"])
    assert result.exit_code == 0, result.output
    assert "dense" in result.output and "bits" in result.output
