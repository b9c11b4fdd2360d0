"""An embedding table sharded by row, trained by sparse updates: there is never a dense gradient.

Words of Python's own documentation learn from their neighbours (skip-gram with negative samples). A
word is the mean of hashed buckets, one for itself and one for each of its 3- and 4-grams, so the
table is large and a batch touches little of it. A step reads the rows that the batch names, takes
the gradient with respect to these rows, and updates them where they lie by row-wise Adagrad, whose
sums of squares are a mutable array beside the table. What moves and what is allocated depends on
the batch, whatever the length of the table.

Beside it stand two functional forms: the same rows with ``.at[].add``, as a careful user writes it,
and ``jax.grad`` with respect to the table, as everybody writes it first.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import typer
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console
from rich.progress import Progress

import mutarray as mu
from examples.comparison import DevicesOption, Form, compare, devices, show

ROWS = 1 << 18
DIM = 64
BAG = 12  # buckets of a word, at most
BATCH = 256
NEGATIVES = 5
WINDOW = 4
MIN_COUNT = 3
RATE = 0.2
EPSILON = 1e-7

# The corpus ---------------------------------------------------------------------------------------


class Corpus(NamedTuple):
    """Words, each with the buckets that it is made of, and pairs of words that stand together.

    Attributes:
        words: the words, the most frequent first.
        chances: how often each is drawn as a negative sample.
        bags: the buckets of each word, padded with the number of rows, which is out of range.
        pairs: the numbers of neighbouring words.
    """

    words: list[str]
    chances: np.ndarray
    bags: np.ndarray
    pairs: np.ndarray


def load(rows: int) -> Corpus:
    """The help topics that Python ships."""
    from pydoc_data.topics import topics

    texts = [re.findall(r"[a-z_]+", text.lower()) for text in topics.values()]
    counts = Counter(word for text in texts for word in text)
    words = [word for word, count in counts.most_common() if count >= MIN_COUNT]
    chances = np.array([counts[word] for word in words]) ** 0.75
    numbers = {word: n for n, word in enumerate(words)}
    kept = [np.array([numbers[w] for w in text if w in numbers], np.int32) for text in texts]
    pairs = [
        np.stack([one, other], axis=1)
        for text in kept
        for distance in range(1, WINDOW + 1)
        for one, other in [
            (text[:-distance], text[distance:]),
            (text[distance:], text[:-distance]),
        ]
    ]
    bags = np.array([_buckets(word, rows) for word in words], np.int32)
    return Corpus(words, chances / chances.sum(), bags, np.concatenate(pairs))


def _buckets(word: str, rows: int) -> list[int]:
    marked = f"<{word}>"
    grams = [marked[k : k + n] for n in (3, 4) for k in range(len(marked) - n + 1)]
    parts = [marked, *(gram for gram in grams if gram != marked)][:BAG]
    return [zlib.crc32(part.encode()) % rows for part in parts] + [rows] * (BAG - len(parts))


class Batch(NamedTuple):
    """The buckets of each word, and for each of them a neighbour with words that are none."""

    grams: jax.Array
    words: jax.Array


def batches(corpus: Corpus, mesh: Mesh, steps: int) -> Iterator[Batch]:
    """Random batches, the same ones each time, split over the devices where they divide."""
    rng = np.random.default_rng(0)
    place = NamedSharding(mesh, P() if BATCH % mesh.size else P("rows"))
    for _ in range(steps):
        pairs = corpus.pairs[rng.integers(len(corpus.pairs), size=BATCH)]
        drawn = rng.choice(len(corpus.words), size=(BATCH, NEGATIVES), p=corpus.chances)
        words = np.concatenate([pairs[:, 1:], drawn], axis=1, dtype=np.int32)
        yield jax.device_put(Batch(corpus.bags[pairs[:, 0]], words), place)


# The model ----------------------------------------------------------------------------------------


class Table(NamedTuple):
    """Rows of an embedding, and for each the mean squares of its gradients, summed.

    Both are arrays, or mutable arrays.
    """

    rows: Any
    squares: Any


class Model(NamedTuple):
    """A table of what words are made of, and one of the words as neighbours."""

    grams: Table
    words: Table


def make_mesh(here: list[jax.Device]) -> Mesh:
    """All devices in a line."""
    return jax.make_mesh((len(here),), ("rows",), axis_types=(AxisType.Auto,), devices=here)


def padded(rows: int, mesh: Mesh) -> int:
    """So many rows, and as many more as it takes to give each device the same number."""
    return rows + -rows % mesh.size


def init(mesh: Mesh, rows: int, words: int) -> Model:
    """The model before the first step, of immutable arrays, split by row and born in shards."""
    by_row = NamedSharding(mesh, P("rows"))

    @functools.partial(jax.jit, out_shardings=by_row)
    def make() -> Model:
        shape, other = (padded(rows, mesh), DIM), (padded(words, mesh), DIM)
        start = jax.random.uniform(jax.random.key(0), shape, minval=-1 / DIM, maxval=1 / DIM)
        return Model(
            Table(start, jnp.zeros(len(start))),
            Table(jnp.zeros(other), jnp.zeros(other[0])),
        )

    return make()


def loss(rows: tuple[jax.Array, jax.Array], places: Batch, used: jax.Array) -> jax.Array:
    """How badly the words tell neighbours from others, in bits.

    Args:
        rows: rows of the two tables, or the tables.
        places: a batch, as places in these rows.
        used: which places of a bag are no padding.
    """
    bags = rows[0][places.grams] * used[..., None]
    vectors = bags.sum(axis=1) / used.sum(axis=1, keepdims=True)
    scores = jnp.einsum("bd,bkd->bk", vectors, rows[1][places.words])
    signs = jnp.where(jnp.arange(1 + NEGATIVES) == 0, 1.0, -1.0)
    return -jax.nn.log_sigmoid(signs * scores).sum(axis=1).mean() / np.log(2)


def distinct(ids: jax.Array, rows: int) -> tuple[jax.Array, jax.Array]:
    """The rows that a batch names, each once, and for each id its place among these.

    The list is as long as the ids are many. What is left of it is out of range, and so not written.
    """
    return jnp.unique(ids, size=ids.size, fill_value=rows, return_inverse=True)


# With mutable arrays ------------------------------------------------------------------------------


def adagrad(table: Table, ids: jax.Array, gradient: jax.Array) -> None:
    """Updates some rows of a table in place, each named once."""
    square = jnp.mean(gradient**2, axis=1)
    scale = RATE / jnp.sqrt(table.squares[ids] + square + EPSILON)
    table.squares.add_at(ids, square)
    table.rows.add_at(ids, -scale[:, None] * gradient)


@mu.jit
def update(model: Model, batch: Batch) -> jax.Array:
    """Learns from one batch in place, and returns the loss."""
    grams, gram_places = distinct(batch.grams, len(model.grams.rows))
    words, word_places = distinct(batch.words, len(model.words.rows))
    rows = model.grams.rows[grams], model.words.rows[words]
    used = batch.grams < len(model.grams.rows)
    value, gradients = jax.value_and_grad(loss)(rows, Batch(gram_places, word_places), used)
    adagrad(model.grams, grams, gradients[0])
    adagrad(model.words, words, gradients[1])
    return value


def train(model: Model, data: Iterable[Batch]) -> list[float]:
    """Learns from all batches; returns their losses."""
    return [float(update(model, batch)) for batch in data]


# The functional forms -----------------------------------------------------------------------------


def functional_adagrad(table: Table, ids: jax.Array, gradient: jax.Array) -> Table:
    """A table with some rows updated, each named once."""
    square = jnp.mean(gradient**2, axis=1)
    scale = RATE / jnp.sqrt(table.squares[ids] + square + EPSILON)
    return Table(
        rows=table.rows.at[ids].add(-scale[:, None] * gradient),
        squares=table.squares.at[ids].add(square),
    )


def functional_update(model: Model, batch: Batch) -> tuple[Model, jax.Array]:
    """The model after one batch, and the loss: a sparse update."""
    grams, gram_places = distinct(batch.grams, len(model.grams.rows))
    words, word_places = distinct(batch.words, len(model.words.rows))
    rows = model.grams.rows[grams], model.words.rows[words]
    used = batch.grams < len(model.grams.rows)
    value, gradients = jax.value_and_grad(loss)(rows, Batch(gram_places, word_places), used)
    new = Model(
        functional_adagrad(model.grams, grams, gradients[0]),
        functional_adagrad(model.words, words, gradients[1]),
    )
    return new, value


def dense_adagrad(table: Table, gradient: jax.Array) -> Table:
    """A table with all rows updated."""
    squares = table.squares + jnp.mean(gradient**2, axis=1)
    scale = RATE / jnp.sqrt(squares + EPSILON)
    return Table(table.rows - scale[:, None] * gradient, squares)


def dense_update(model: Model, batch: Batch) -> tuple[Model, jax.Array]:
    """The model after one batch, and the loss: a gradient as large as the tables."""
    used = batch.grams < len(model.grams.rows)
    tables = model.grams.rows, model.words.rows
    value, gradients = jax.value_and_grad(loss)(tables, batch, used)
    new = Model(
        dense_adagrad(model.grams, gradients[0]),
        dense_adagrad(model.words, gradients[1]),
    )
    return new, value


def functional_jit(function: Callable[..., Any], model: Model) -> Any:
    """The compiled step: the model is donated, and the new one lies where the old one lay."""
    shardings = jax.tree.map(lambda x: x.sharding, model)
    return jax.jit(function, donate_argnums=0, out_shardings=(shardings, None))


def train_functional(
    function: Callable[..., Any], model: Model, data: Iterable[Batch]
) -> tuple[Model, list[float]]:
    """Learns from all batches; returns the model after them and their losses."""
    step = functional_jit(function, model)
    losses = []
    for batch in data:
        model, value = step(model, batch)
        losses.append(float(value))
    return model, losses


# The program --------------------------------------------------------------------------------------


def vectors(model: Model, corpus: Corpus) -> np.ndarray:
    """The direction of each word."""
    rows = mu.get(model.grams.rows, corpus.bags, mode="fill", fill_value=0.0)
    sums = np.asarray(rows).sum(axis=1)
    return sums / np.linalg.norm(sums, axis=1, keepdims=True)


def neighbours(directions: np.ndarray, corpus: Corpus, word: str, count: int = 5) -> list[str]:
    """The words that are most like one."""
    one = corpus.words.index(word)
    best = np.argsort(-(directions @ directions[one]))
    return [corpus.words[n] for n in best if n != one][:count]


def forms(mesh: Mesh, rows: int, words: int, batch: Batch) -> list[Form]:
    """All three forms, each with a model of its own, to be measured on one batch."""
    model = mu.mutable(init(mesh, rows, words), donate=True)
    return [
        Form(
            "mutarray",
            lambda: update(model, batch),
            update.lower(model, batch).compile(),
            (adagrad, update, train),
        ),
        _functional_form(
            "plain JAX, .at[].add",
            functional_update,
            init(mesh, rows, words),
            batch,
            (functional_adagrad, functional_update, functional_jit, train_functional),
        ),
        _functional_form(
            "plain JAX, dense gradient",
            dense_update,
            init(mesh, rows, words),
            batch,
            (dense_adagrad, dense_update, functional_jit, train_functional),
        ),
    ]


def _functional_form(
    name: str, function: Callable[..., Any], model: Model, batch: Batch, sources: tuple[Any, ...]
) -> Form:
    step = functional_jit(function, model)
    compiled = step.lower(model, batch).compile()

    def run() -> jax.Array:
        nonlocal model
        model, value = step(model, batch)
        return value

    return Form(name, run, compiled, sources)


def main(
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Learn from N batches.")] = 300,
    rows: Annotated[int, typer.Option(min=1, metavar="N", help="Rows of the table.")] = ROWS,
    small: Annotated[
        bool, typer.Option("--small", help="A small table and few steps: does it run?")
    ] = False,
    devices_: DevicesOption = None,
) -> None:
    """Learn word vectors in a table that is sharded by row, without ever a dense gradient.

    Trains on Python's help topics, shows words with their nearest, then compares a step with two
    functional forms in plain JAX: the same rows with .at[].add, and a gradient of the whole table.
    """
    console = Console()
    mesh = make_mesh(devices(devices_))
    if small:
        steps, rows = 20, 1 << 12
    corpus = load(padded(rows, mesh))
    console.print(f"{len(corpus.words)} words, {len(corpus.pairs):,} pairs, {rows:,} × {DIM} rows")
    model = mu.mutable(init(mesh, rows, len(corpus.words)), donate=True)
    with Progress(console=console) as progress:
        data = progress.track(batches(corpus, mesh, steps), steps, description="learning")
        losses = train(model, data)
    half = min(20, (steps + 1) // 2)
    console.print(
        f"loss {np.mean(losses[:half]):.3f} → {np.mean(losses[-half:]):.3f} bits, the table still "
        f"lies as {model.grams.rows.sharding.spec}"
    )
    directions = vectors(model, corpus)
    for word in ("list", "class", "import", "float"):
        console.print(f"  {word:7} {', '.join(neighbours(directions, corpus, word))}")
    batch = next(batches(corpus, mesh, 1))
    show("One step", compare(forms(mesh, rows, len(corpus.words), batch), 5 if small else 20))


if __name__ == "__main__":
    typer.run(main)
