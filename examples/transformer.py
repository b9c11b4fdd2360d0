"""A small transformer over characters, with mutable weights that learn in place.

It knows nothing of caches: `forward` leaves to its caller what queries see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console
from rich.progress import track

import mutarray as mu

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
CONTEXT = 96  # characters in a line of a training batch
BATCH = 32
OPTIMIZER = optax.adam(3e-3)


def corpus() -> str:
    """The help texts that come with Python."""
    from pydoc_data.topics import topics

    return "".join(c for text in topics.values() for c in text if c in CHARACTERS)


def encode(text: str) -> np.ndarray:
    """The numbers of characters."""
    return np.array([CHARACTERS.index(c) for c in text], np.int32)


def decode(tokens: Sequence[int]) -> str:
    """The characters of numbers."""
    return "".join(CHARACTERS[n] for n in tokens)


def init(mesh: Mesh, width: int = 64, heads: int = 4, layers: int = 2) -> Any:
    """Mutable weights, split over the heads of attention and the hidden units between."""
    rng = np.random.default_rng(0)
    depth = width // heads
    layer = {  # shape, inputs of a unit, split
        "query": ((width, heads, depth), width, P(None, "heads")),
        "key": ((width, heads, depth), width, P(None, "heads")),
        "value": ((width, heads, depth), width, P(None, "heads")),
        "out": ((heads, depth, width), width, P("heads")),
        "up": ((width, 4 * width), width, P(None, "heads")),
        "down": ((4 * width, width), 4 * width, P("heads")),
    }
    ends = {
        "embedding": ((len(CHARACTERS), width), 1, P()),
        "head": ((width, len(CHARACTERS)), width, P(None, "heads")),
    }

    def make(shape: tuple[int, ...], inputs: int, spec: P) -> mu.MutableArray:
        value = rng.normal(0, inputs**-0.5, shape).astype(np.float32)
        return mu.mutable_array(value, NamedSharding(mesh, spec))

    return {
        **{name: make(*how) for name, how in ends.items()},
        "layers": [{name: make(*how) for name, how in layer.items()} for _ in range(layers)],
    }


def forward(weights: Any, tokens: Any, positions: Any, attend: Callable[..., Any]) -> jax.Array:
    """The logits that follow each token.

    Args:
        weights: immutable, as `mu.values` gives them.
        tokens: a row for each sequence.
        positions: of the tokens in their sequences.
        attend: gets the number of a layer, and the queries, keys and values of ``tokens`` there;
            returns what the queries see. It is where a cache comes in.
    """
    x = weights["embedding"][tokens]
    for n, w in enumerate(weights["layers"]):
        y = _norm(x)
        q, k, v = (jnp.einsum("bcd,dhw->bhcw", y, w[name]) for name in ("query", "key", "value"))
        seen = attend(n, _rotate(q, positions), _rotate(k, positions), v)
        x = x + jnp.einsum("bhcw,hwd->bcd", seen, w["out"])
        x = x + jax.nn.gelu(_norm(x) @ w["up"]) @ w["down"]
    return _norm(x) @ weights["head"]


def _norm(x: jax.Array) -> jax.Array:
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)


def _rotate(x: jax.Array, positions: Any) -> jax.Array:
    """Turns pairs of numbers by an angle that says where a token stands."""
    half = x.shape[-1] // 2
    angle = positions[..., None, :, None] * 1e4 ** (-jnp.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def attention(q: Any, k: Any, v: Any, visible: Any) -> jax.Array:
    """What queries see of keys and values: those of each sequence, or one pool for all.

    Args:
        q: by sequence, head, token.
        k: by sequence, head, position; or by head, slot.
        v: likewise.
        visible: by sequence, token, and position or slot.
    """
    # The order in which products of matrices come, so that nothing has to be transposed.
    if k.ndim == 4:
        held, scored, visible = "bhsw", "bhcs", visible[:, None]
    else:
        held, scored, visible = "hsw", "hbcs", visible[None]
    scores = jnp.einsum(f"bhcw,{held}->{scored}", q, k) * q.shape[-1] ** -0.5
    shares = jax.nn.softmax(jnp.where(visible, scores, -1e30))
    return jnp.einsum(f"{scored},{held}->bhcw", shares, v)


def uncached(weights: Any, tokens: Any) -> jax.Array:
    """The logits of whole texts: how it learns, and what the caches are tested against."""
    positions = jnp.arange(tokens.shape[1])
    visible = (positions <= positions[:, None])[None]
    return forward(weights, tokens, positions, lambda n, q, k, v: attention(q, k, v, visible))


@mu.jit
def train_step(weights: Any, moments: Any, tokens: Any) -> jax.Array:
    """One step of Adam, in place."""

    def loss(values: Any) -> jax.Array:
        logits = uncached(values, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    values = mu.values(weights)
    lost, gradients = jax.value_and_grad(loss)(values)
    updates, new_moments = OPTIMIZER.update(gradients, mu.values(moments), values)
    mu.assign(moments, new_moments)
    mu.assign(weights, optax.apply_updates(values, updates))
    return lost


def batches(sharding: NamedSharding, count: int) -> Iterator[jax.Array]:
    """Random pieces of the corpus, and the characters that follow them."""
    text, rng = encode(corpus()), np.random.default_rng(0)
    for _ in range(count):
        starts = rng.integers(0, len(text) - CONTEXT - 1, (BATCH, 1))
        yield jax.device_put(text[starts + np.arange(CONTEXT + 1)], sharding)


def train(weights: Any, steps: int, console: Console | None = None) -> list[float]:
    """Learns from the corpus, and returns the losses. A batch is split over "sequence"."""
    rows = NamedSharding(weights["embedding"].sharding.mesh, P("sequence"))
    moments = mu.mutable(OPTIMIZER.init(mu.values(weights)))
    shown = track(
        batches(rows, steps), "learning", total=steps, console=console, disable=console is None
    )
    return [float(train_step(weights, moments, tokens)) for tokens in shown]
