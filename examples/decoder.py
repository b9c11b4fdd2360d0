"""A small transformer that decodes text with a mutable KV cache, split over sequence and heads.

It learns characters from Python's own help texts, with weights and optimizer state that are updated
in place, and then continues prompts. What a decoder keeps is its cache, the keys and values of all
tokens so far. Here they lie on a ``("sequence", "heads")`` mesh, so a longer text needs more
devices, not larger ones; and each step writes one position of it in place, on the devices that own
that position, while queries travel to the keys instead of keys to the queries.

There are two forms of it. The contiguous cache has a row for each sequence, all of one length, and
a step writes the window ``mu.ds(start, n)``. The paged one (``--paged``) is a pool of slots, which
sequences take page by page as they grow; a step writes a list of slots, in which -1 stands for
padding: where prompts differ in length, or a sequence has ended.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import typer
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console
from rich.markup import escape

import mutarray as mu
from examples.comparison import DevicesOption, Form, compare, devices, show
from examples.transformer import CHARACTERS, attention, decode, encode, forward, init, train
from mutarray.demo.devices import make_mesh

CHUNK = 16  # of a prompt, which is read piece by piece
PAGE = 16  # slots that a sequence takes at a time
# Few sequences ever come to their full length, so a pool needs no place for all of them at once.
FILLED = 1 / 4
PROMPTS = (
    "The ",
    "A class ",
    "If the value of ",
    "An object",
    "When a function is called, ",
    "The following ",
    "In this case, ",
    "Note that ",
)

# The contiguous cache ----------------------------------------------------------------------------


class Cache(NamedTuple):
    """For each layer, keys and values by sequence, head, position."""

    keys: list[Any]
    values: list[Any]


def make_cache(weights: Any, sequences: int, positions: int) -> Cache:
    """An empty cache, born in shards."""
    mesh = weights["embedding"].sharding.mesh
    _, heads, depth = weights["layers"][0]["key"].shape
    split = NamedSharding(mesh, P(None, "heads", "sequence"))
    arrays = [
        [mu.zeros((sequences, heads, positions, depth), sharding=split) for _ in weights["layers"]]
        for _ in Cache._fields
    ]
    return Cache(*arrays)


@mu.jit
def extend(weights: Any, cache: Cache, start: Any, tokens: Any) -> jax.Array:
    """Reads the next tokens of all sequences: one when decoding, `CHUNK` of a prompt."""
    count = tokens.shape[1]
    positions = start + jnp.arange(count)
    visible = (jnp.arange(cache.keys[0].shape[2]) <= positions[:, None])[None]

    def attend(n: int, q: Any, k: Any, v: Any) -> jax.Array:
        cache.keys[n][:, :, mu.ds(start, count)] = k
        cache.values[n][:, :, mu.ds(start, count)] = v
        return attention(q, cache.keys[n][...], cache.values[n][...], visible)

    return forward(mu.values(weights), tokens, positions, attend)


def generate(
    weights: Any, cache: Cache, prompts: Sequence[str], count: int, choose: Callable[..., Any]
) -> list[str]:
    """Continues prompts; shorter ones begin with empty lines, so that all are of one length."""
    length = -(-max(map(len, prompts)) // CHUNK) * CHUNK
    if length + count > cache.keys[0].shape[2]:
        raise ValueError(
            f"{length} + {count} characters do not fit into {cache.keys[0].shape[2]} positions: "
            "make a larger cache, or ask for fewer"
        )
    tokens = np.stack([encode(prompt.rjust(length, "\n")) for prompt in prompts])
    for start in range(0, length, CHUNK):
        logits = extend(weights, cache, start, tokens[:, start : start + CHUNK])
    texts = [choose(np.asarray(logits)[:, -1])]
    for position in range(length, length + count - 1):
        logits = extend(weights, cache, position, texts[-1][:, None])
        texts.append(choose(np.asarray(logits)[:, -1]))
    return [decode(line) for line in np.stack(texts, axis=1)]


# The paged cache ---------------------------------------------------------------------------------


class Pool(NamedTuple):
    """For each layer, keys and values by head and slot; for each slot, whose it is, and where."""

    keys: list[Any]
    values: list[Any]
    owner: Any
    position: Any


def make_pool(weights: Any, sequences: int, positions: int) -> Pool:
    """An empty pool, born in shards, for sequences that fill `FILLED` of their positions."""
    mesh = weights["embedding"].sharding.mesh
    step = PAGE * mesh.shape["sequence"]
    slots = -(-int(sequences * positions * FILLED) // step) * step
    _, heads, depth = weights["layers"][0]["key"].shape
    split = NamedSharding(mesh, P("heads", "sequence"))
    keys, values = (
        [mu.zeros((heads, slots, depth), sharding=split) for _ in weights["layers"]]
        for _ in range(2)
    )
    rows = NamedSharding(mesh, P("sequence"))
    return Pool(
        keys,
        values,
        mu.full(slots, -1, jnp.int32, sharding=rows),
        mu.zeros(slots, jnp.int32, sharding=rows),
    )


@mu.jit
def extend_paged(weights: Any, pool: Pool, positions: Any, slots: Any, tokens: Any) -> jax.Array:
    """Reads the next tokens of each sequence into the slots that are named; -1 is padding."""
    put = functools.partial(mu.set, mode="drop", wrap_negative_indices=False, unique_indices=True)
    sequences = jnp.arange(len(tokens))[:, None]
    put(pool.owner, slots, sequences)
    put(pool.position, slots, positions)
    is_own = pool.owner[...] == sequences[..., None]
    visible = is_own & (pool.position[...] <= positions[..., None])

    def attend(n: int, q: Any, k: Any, v: Any) -> jax.Array:
        put(pool.keys[n], (slice(None), slots), jnp.moveaxis(k, 1, 0))
        put(pool.values[n], (slice(None), slots), jnp.moveaxis(v, 1, 0))
        return attention(q, pool.keys[n][...], pool.values[n][...], visible)

    return forward(mu.values(weights), tokens, positions, attend)


class Pages:
    """Which slots of a pool are whose: pages are taken when they are needed, and given back."""

    def __init__(self, pool: Pool, sequences: int):
        self._pool = pool
        # Dealt in turn, so that each device has its part of every sequence.
        pages = np.arange(len(pool.owner) // PAGE)
        parts = pool.owner.sharding.mesh.shape["sequence"]
        self._free = list(pages.reshape(parts, -1).T.ravel()[::-1])
        self._taken: list[list[int]] = [[] for _ in range(sequences)]
        self.lengths = np.zeros(sequences, np.int32)

    def grow(self, counts: Sequence[int], width: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions and slots of the next tokens of each sequence, padded with -1 to ``width``."""
        positions = self.lengths[:, None] + np.arange(width, dtype=np.int32)
        slots = np.full(positions.shape, -1, np.int32)
        for n, count in enumerate(counts):
            while len(self._taken[n]) * PAGE < self.lengths[n] + count:
                if not self._free:
                    raise ValueError("no page is free: make a larger pool, or end a sequence")
                self._taken[n].append(self._free.pop())
            at = positions[n, :count]
            slots[n, :count] = np.array(self._taken[n], np.int32)[at // PAGE] * PAGE + at % PAGE
            self.lengths[n] += count
        return positions, slots

    def end(self, n: int) -> None:
        """Gives the pages of a sequence back. An eager write, on the devices that hold them."""
        slots = np.array(self._taken[n])[:, None] * PAGE + np.arange(PAGE)
        self._pool.owner[slots.ravel()] = -1
        self._free += self._taken[n]
        self._taken[n], self.lengths[n] = [], 0


def generate_paged(
    weights: Any, pool: Pool, prompts: Sequence[str], count: int, choose: Callable[..., Any]
) -> list[str]:
    """Continues prompts, each up to the end of a sentence or to so many characters."""
    pages, texts = Pages(pool, len(prompts)), [""] * len(prompts)
    last: dict[int, np.ndarray] = {}
    for start in range(0, max(map(len, prompts)), CHUNK):
        parts = [prompt[start : start + CHUNK] for prompt in prompts]
        tokens = np.stack([encode(part.ljust(CHUNK)) for part in parts])
        placed = pages.grow([*map(len, parts)], CHUNK)
        logits = np.asarray(extend_paged(weights, pool, *placed, tokens))
        last.update({n: logits[n, len(part) - 1] for n, part in enumerate(parts) if part})
    latest = np.stack([last[n] for n in range(len(prompts))])
    active = set(range(len(prompts)))
    while True:
        tokens = choose(latest)
        for n in sorted(active):
            texts[n] += decode([tokens[n]])
            if texts[n][-1] == "." or len(texts[n]) == count:
                active.remove(n)
                pages.end(n)
        if not active:
            return texts
        placed = pages.grow([n in active for n in range(len(prompts))], 1)
        latest = np.asarray(extend_paged(weights, pool, *placed, tokens[:, None]))[:, -1]


# The same in plain JAX ---------------------------------------------------------------------------


def functional_extend(split: NamedSharding) -> Any:
    """`extend` as a function of an immutable cache, which it donates and returns."""

    @functools.partial(jax.jit, donate_argnums=1, out_shardings=(split, None))
    def extend(weights: Any, cache: Cache, start: Any, tokens: Any) -> tuple[Cache, jax.Array]:
        positions = start + jnp.arange(tokens.shape[1])
        visible = (jnp.arange(cache.keys[0].shape[2]) <= positions[:, None])[None]
        keys, values = list(cache.keys), list(cache.values)

        def attend(n: int, q: Any, k: Any, v: Any) -> jax.Array:
            for held, new in ((keys, k), (values, v)):
                written = lax.dynamic_update_slice(held[n], new, (0, 0, start, 0))
                held[n] = lax.with_sharding_constraint(written, split)
            return attention(q, keys[n], values[n], visible)

        logits = forward(weights, tokens, positions, attend)
        return Cache(keys, values), logits

    return extend


def functional_extend_paged(split: NamedSharding, rows: NamedSharding) -> Any:
    """`extend_paged` as a function of an immutable pool, which it donates and returns."""
    shardings = Pool(split, split, rows, rows)  # pyright: ignore[reportArgumentType]

    @functools.partial(jax.jit, donate_argnums=1, out_shardings=(shardings, None))
    def extend(weights: Any, pool: Pool, positions: Any, slots: Any, tokens: Any) -> Any:
        sequences = jnp.arange(len(tokens))[:, None]

        def put(x: Any, at: Any, new: Any, sharding: NamedSharding) -> Any:
            written = x.at[at].set(
                new, mode="drop", wrap_negative_indices=False, unique_indices=True
            )
            return lax.with_sharding_constraint(written, sharding)

        owner = put(pool.owner, slots, sequences, rows)
        position = put(pool.position, slots, positions, rows)
        is_own = owner == sequences[..., None]
        visible = is_own & (position <= positions[..., None])
        keys, values = list(pool.keys), list(pool.values)

        def attend(n: int, q: Any, k: Any, v: Any) -> jax.Array:
            for held, new in ((keys, k), (values, v)):
                held[n] = put(held[n], (slice(None), slots), jnp.moveaxis(new, 1, 0), split)
            return attention(q, keys[n], values[n], visible)

        logits = forward(weights, tokens, positions, attend)
        return Pool(keys, values, owner, position), logits

    return extend


# The program -------------------------------------------------------------------------------------


def forms(weights: Any, paged: bool, sequences: int, positions: int, count: int) -> list[Form]:
    """A step with so many tokens of each sequence, in both forms, for `compare`."""
    tokens = np.zeros((sequences, count), np.int32)
    args: tuple[Any, ...]
    if paged:
        state, held = (make_pool(weights, sequences, positions) for _ in range(2))
        ours, source = extend_paged, functional_extend_paged
        plain = functional_extend_paged(state.keys[0].sharding, state.owner.sharding)
        args = *Pages(state, sequences).grow([count] * sequences, count), tokens
    else:
        state, held = (make_cache(weights, sequences, positions) for _ in range(2))
        ours, source = extend, functional_extend
        plain = functional_extend(state.keys[0].sharding)
        # From one device to the next, where there is more than one token.
        args = np.int32(positions // 4 - count // 2), tokens
    fixed, held = mu.values(weights), mu.freeze(held)

    def functional() -> jax.Array:
        nonlocal held
        held, logits = plain(fixed, held, *args)
        return logits

    what = f"{count} tokens" if count > 1 else "1 token"
    compiled = ours.lower(weights, state, *args).compile()
    return [
        Form(f"{what}, mutarray", lambda: ours(weights, state, *args), compiled, (ours,)),
        Form(
            f"{what}, plain JAX", functional, plain.lower(fixed, held, *args).compile(), (source,)
        ),
    ]


def sampler(temperature: float) -> Callable[[np.ndarray], np.ndarray]:
    """Chooses a token for each row of logits: the likeliest at 0, any at its chance at 1."""
    rng = np.random.default_rng(0)

    def choose(logits: np.ndarray) -> np.ndarray:
        noise = rng.gumbel(size=logits.shape)
        return np.argmax(logits + temperature * noise, axis=-1).astype(np.int32)

    return choose


app = typer.Typer(add_completion=False)


@app.command()
def main(
    prompt: Annotated[
        list[str] | None, typer.Option(help="What to continue; may be given several times.")
    ] = None,
    paged: Annotated[
        bool, typer.Option("--paged", help="A pool of pages instead of a row for each sequence.")
    ] = False,
    count: Annotated[int, typer.Option(min=1, help="Characters to write for each prompt.")] = 80,
    temperature: Annotated[
        float, typer.Option(min=0, help="0 writes the likeliest, 1 what chance gives.")
    ] = 0.5,
    steps: Annotated[int, typer.Option(min=1, help="Steps of training.")] = 150,
    positions: Annotated[
        int, typer.Option(min=64, help="Length of the cache for each prompt, a multiple of 64.")
    ] = 4096,
    devices_: DevicesOption = None,
    small: Annotated[
        bool, typer.Option("--small", help="A tiny model and cache, to see that it runs.")
    ] = False,
) -> None:
    """Trains a small transformer on Python's help texts, and decodes with a sharded KV cache.

    The cache is split over the sequence and the heads, and written in place. At the end, a step of
    decoding is compared with the same step in plain JAX, whose cache is donated and handed back.
    """
    prompts = prompt or list(PROMPTS)
    if not all(prompts) or set("".join(prompts)) - set(CHARACTERS):
        raise typer.BadParameter("a prompt has one to many ASCII characters", param_hint="--prompt")
    if small:
        count, steps, positions = min(count, 8), min(steps, 3), 256
    if positions % 64:
        raise typer.BadParameter("not a multiple of 64", param_hint="--positions")
    room = int(positions * FILLED) if paged else positions
    if max(map(len, prompts)) + CHUNK + count > room:
        raise typer.BadParameter(
            f"a prompt and --count do not fit into {room}", param_hint="--positions"
        )
    available = devices(devices_)
    console = Console()
    mesh = make_mesh(available, (4, 2), ("sequence", "heads"))
    weights = init(mesh, width=32, layers=1) if small else init(mesh)
    losses = train(weights, steps, console)
    console.print(f"loss {losses[0]:.2f} before, {losses[-1]:.2f} after {steps} steps")
    if paged:
        pool = make_pool(weights, len(prompts), positions)
        texts = generate_paged(weights, pool, prompts, count, sampler(temperature))
    else:
        cache = make_cache(weights, len(prompts), positions)
        texts = generate(weights, cache, prompts, count, sampler(temperature))
    for begin, end in zip(prompts, texts, strict=True):
        console.print(f"[bold]{escape(begin)}[/bold]{escape(end)}\n[dim]---[/dim]")
    size, counts = (len(prompts), positions), (1,) if small else (1, CHUNK)
    measured = []
    for n in counts:
        measured += compare(forms(weights, paged, *size, n), 2 if small else 20)
    show(
        f"one step: {size[0]} sequences of {size[1]} positions on {dict(mesh.shape)}",
        measured,
    )


if __name__ == "__main__":
    app()
