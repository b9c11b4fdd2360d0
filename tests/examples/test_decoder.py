"""The decoder: both caches give what the whole text gives, and so do their plain forms."""

import functools

import jax
import numpy as np
import optax
import pytest
from typer.testing import CliRunner

import mutarray as mu
from examples import decoder, transformer
from tests import hlo
from tests.support import P
from tests.support import mesh as make_mesh

LENGTH, PIECE = 24, 8
GREEDY = decoder.sampler(0)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(transformer, "BATCH", 8)
    monkeypatch.setattr(transformer, "CONTEXT", 32)


@pytest.fixture(scope="module")
def mesh():
    devices = make_mesh((4, 2), "sh").devices
    return jax.sharding.Mesh(devices, ("sequence", "heads"))


@pytest.fixture(scope="module")
def weights(mesh):
    return transformer.init(mesh, width=32)


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(0).integers(0, 96, (3, LENGTH), np.int32)


@pytest.fixture(scope="module")
def wanted(weights, tokens):
    return np.asarray(jax.jit(transformer.uncached)(mu.values(weights), tokens))


def close(seen, wanted):
    np.testing.assert_allclose(seen, wanted, rtol=1e-4, atol=1e-5)


def cuts(positions):
    """Pieces of one and of `PIECE` tokens, of which one lies across the border of two devices."""
    border = positions // 4
    starts = [*range(border - 4), border - 4, *range(border + 4, LENGTH)]
    return [(start, PIECE if start == border - 4 else 1) for start in starts]


def shardings(tree):
    return [m.sharding for m in jax.tree.leaves(tree, is_leaf=lambda x: hasattr(x, "sharding"))]


# Learning ----------------------------------------------------------------------------------------


def test_it_learns_in_place_what_the_functional_form_learns(mesh):
    weights = transformer.init(mesh, width=32, layers=1)
    before = shardings(weights)
    optimizer, held = transformer.OPTIMIZER, mu.values(weights)
    moments = mu.values(mu.mutable(optimizer.init(held)))
    places = jax.tree.map(lambda x: x.sharding, (held, moments))

    @functools.partial(jax.jit, out_shardings=(*places, None))
    def step(values, moments, tokens):
        def loss(values):
            logits = transformer.uncached(values, tokens[:, :-1])
            labels = tokens[:, 1:]
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        lost, gradients = jax.value_and_grad(loss)(values)
        updates, moments = optimizer.update(gradients, moments, values)
        return optax.apply_updates(values, updates), moments, lost

    losses, wanted = transformer.train(weights, 5), []
    for tokens in transformer.batches(jax.sharding.NamedSharding(mesh, P("sequence")), 5):
        held, moments, lost = step(held, moments, tokens)
        wanted.append(float(lost))
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    assert losses[-1] < losses[0] - 0.5
    assert all(one is other for one, other in zip(shardings(weights), before, strict=True))
    assert weights["layers"][0]["up"][...].sharding.spec == P(None, "heads")


# Caches ------------------------------------------------------------------------------------------


def test_the_contiguous_cache_gives_what_the_whole_text_gives(weights, tokens, wanted):
    cache, held = (decoder.make_cache(weights, len(tokens), 32) for _ in range(2))
    before, held = shardings(cache), mu.freeze(held)
    plain = decoder.functional_extend(before[0])
    for start, count in cuts(32):
        piece = tokens[:, start : start + count]
        seen = decoder.extend(weights, cache, start, piece)
        close(seen, wanted[:, start : start + count])
        held, logits = plain(mu.values(weights), held, start, piece)
        close(seen, logits)
    assert all(one is other for one, other in zip(shardings(cache), before, strict=True))
    jax.tree.map(close, mu.values(cache), held)
    assert not np.asarray(cache.keys[1])[:, :, LENGTH:].any()


def test_the_paged_cache_gives_what_the_whole_text_gives(weights, tokens, wanted):
    pool, held = (decoder.make_pool(weights, len(tokens), 256) for _ in range(2))
    before, held = shardings(pool), mu.freeze(held)
    plain = decoder.functional_extend_paged(before[0], before[-1])
    pages, lengths = decoder.Pages(pool, len(tokens)), np.array([LENGTH, 11, 17])
    done = np.zeros(len(tokens), int)
    for width in [PIECE, 1, 1, PIECE, 1, 1, PIECE]:
        counts = np.minimum(lengths - done, width)
        args = pages.grow(counts, width)
        piece = np.zeros((len(tokens), width), np.int32)
        for n, count in enumerate(counts):
            piece[n, :count] = tokens[n, done[n] : done[n] + count]
        seen = np.asarray(decoder.extend_paged(weights, pool, *args, piece))
        held, logits = plain(mu.values(weights), held, *args, piece)
        for n, count in enumerate(counts):
            close(seen[n, :count], wanted[n, done[n] : done[n] + count])
            close(seen[n, :count], np.asarray(logits)[n, :count])
        done += counts
    assert (done == lengths).all()
    assert all(one is other for one, other in zip(shardings(pool), before, strict=True))
    jax.tree.map(close, mu.values(pool), held)
    assert np.bincount(np.asarray(pool.owner) + 1).tolist()[1:] == lengths.tolist()


def test_padding_touches_nothing(weights, tokens):
    pool = decoder.make_pool(weights, len(tokens), 256)
    pages = decoder.Pages(pool, len(tokens))
    decoder.extend_paged(weights, pool, *pages.grow([PIECE] * 3, PIECE), tokens[:, :PIECE])
    before = jax.tree.map(np.array, mu.values(pool))
    positions, slots = pages.grow([0, 0, 1], 1)
    assert slots.ravel().tolist()[:2] == [-1, -1]
    decoder.extend_paged(weights, pool, positions, slots, tokens[:, PIECE : PIECE + 1])
    after = jax.tree.map(np.array, mu.values(pool))
    others = np.delete(np.arange(len(pool.owner)), slots[2, 0])
    for old, new in ((before.owner, after.owner), (before.position, after.position)):
        assert np.array_equal(old[others], new[others])
    for old, new in zip(before.keys + before.values, after.keys + after.values, strict=True):
        assert old[:, others].tobytes() == new[:, others].tobytes()
        assert (old[:, slots[2, 0]] != new[:, slots[2, 0]]).any()


def test_pages_are_given_back_and_used_again(weights, tokens, wanted):
    pool = decoder.make_pool(weights, len(tokens), 256)  # twelve pages
    pages = decoder.Pages(pool, len(tokens))
    decoder.extend_paged(weights, pool, *pages.grow([PIECE] * 3, PIECE), tokens[::-1, :PIECE])
    with pytest.raises(ValueError, match="no page is free"):
        pages.grow([64] * 3, 64)
    for n in range(3):
        pages.end(n)
    assert (np.asarray(pool.owner) == -1).all()
    args = pages.grow([PIECE] * 3, PIECE)
    close(decoder.extend_paged(weights, pool, *args, tokens[:, :PIECE]), wanted[:, :PIECE])


@pytest.mark.parametrize(("paged", "count"), [(False, 1), (False, PIECE), (True, PIECE)])
def test_a_step_sends_no_part_of_the_cache_and_aliases_all_of_it(weights, paged, count):
    tokens = np.zeros((2, count), np.int32)
    if paged:
        state = decoder.make_pool(weights, 2, 2048)
        args = *decoder.Pages(state, 2).grow([count] * 2, count), tokens
        compiled = decoder.extend_paged.lower(weights, state, *args).compile()
    else:
        state = decoder.make_cache(weights, 2, 512)
        compiled = decoder.extend.lower(weights, state, 0, tokens).compile()
    blocks = [m.addressable_shards[0].data.nbytes for m in [*state.keys, *state.values]]
    assert sum(i.nbytes for i in hlo.collectives(compiled)) < blocks[0]
    assert hlo.aliased(compiled) >= sum(blocks)
    assert not [i for i in hlo.copies(compiled) if i.nbytes == blocks[0]]


# Texts -------------------------------------------------------------------------------------------


def test_both_caches_write_the_same_text(weights, monkeypatch):
    monkeypatch.setattr(decoder, "CHUNK", PIECE)  # whose program the tests above have compiled
    prompts = ["8 signs.", "8 others", " eight:\n"]
    cache = decoder.make_cache(weights, 3, 32)
    texts = decoder.generate(weights, cache, prompts, 6, GREEDY)
    assert [len(text) for text in texts] == [6, 6, 6]
    pool = decoder.make_pool(weights, 3, 256)
    paged = decoder.generate_paged(weights, pool, prompts, 6, GREEDY)
    assert paged == ["".join(text.partition(".")[:2]) for text in texts]
    assert (np.asarray(pool.owner) == -1).all()
    with pytest.raises(ValueError, match="do not fit into 32 positions"):
        decoder.generate(weights, cache, prompts, 25, GREEDY)


def test_the_corpus_is_text():
    text = transformer.corpus()
    assert len(text) > 100_000
    assert transformer.decode(transformer.encode(text[:99])) == text[:99]


def run(*arguments):
    return CliRunner().invoke(decoder.app, arguments)


@pytest.mark.parametrize("how", [[], ["--paged"]])
def test_the_program_runs(monkeypatch, how):
    monkeypatch.setenv("COLUMNS", "100")
    result = run("--small", "--steps", "1", "--prompt", "The ", "--count", "2", *how)
    assert result.exit_code == 0, result.output
    for part in ("loss", "The ", "1 token, mutarray", "1 token, plain JAX"):
        assert part in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["--positions", "65"],
        ["--prompt", "ä"],
        ["--positions", "64"],
        ["--positions", "256", "--paged"],
    ],
)
def test_wrong_usage_is_told(arguments):
    result = run(*arguments)
    assert result.exit_code == 2
    assert arguments[0] in result.output
