"""Showing a large array on an explicit mesh failed with a sharding error.

https://github.com/google-deepmind/treescope/issues/70
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mutarray as mu
from tests.cases.support import KINDS, named, traffic

pytestmark = pytest.mark.core

# Every test has a shape of its own, so that a program over the whole array is compiled, and seen.
SHAPES = {
    (5120, 5120): ("auto", ("tp", None), (1280, 5120)),
    (5120, 5124): ("auto", (None, "tp"), (5120, 1281)),
    (5124, 5120): ("explicit", ("tp", None), (1281, 5120)),
    (5124, 5124): ("explicit", (None, "tp"), (5124, 1281)),
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_short_and_without_a_gather(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, spec, block = SHAPES[shape]
    m = mu.zeros(shape, jnp.float32, sharding=named(kind, {"tp": 4}, *spec))
    m[0, :2] = np.array([1.5, 2.5], np.float32)
    m[-1, -1] = -3.5
    with traffic(monkeypatch) as seen:
        text = repr(m)
    assert f"{shape[0]}, {shape[1]}" in text and "float32" in text
    assert "'tp'" in text and "device" in text
    assert "1.5" in text and "-3.5" in text and "nan" not in text
    assert len(text) < 250 and "\n" not in text
    # The corners come from the shards that hold them: no program and no copy sees more than those.
    assert seen.shapes <= {(), (1, 1), block}
    begin = time.perf_counter()
    assert str(m) == text
    assert time.perf_counter() - begin < 1


def test_the_watch_would_see_a_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    m = mu.zeros((24, 40), sharding=named("explicit", {"tp": 4}, "tp"))
    with traffic(monkeypatch) as seen:
        np.asarray(m)
    assert seen.fetched == {(24, 40)}
    with traffic(monkeypatch) as seen:
        jax.device_put(m[...], named("explicit", {"tp": 4}))
    assert seen.moved == {(24, 40)}
    with traffic(monkeypatch) as seen:
        jax.jit(jnp.sum)(m[...])
    assert (24, 40) in seen.compiled


@pytest.mark.parametrize("kind", KINDS)
def test_two_axes_and_host_memory(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for memory in ("device", "pinned_host"):
        s = named(kind, {"dp": 2, "tp": 2}, "tp", "dp", memory_kind=memory)
        m = mu.full((64, 48), 7, jnp.int16, sharding=s)
        with traffic(monkeypatch) as seen:
            text = repr(m)
        assert "int16[64, 48]" in text and "'tp', 'dp'" in text and memory in text
        assert (64, 48) not in seen.shapes


@pytest.mark.parametrize("kind", KINDS)
def test_where_not_all_shards_are_addressable(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What other processes hold is shown as unknown, and nobody is waited for."""
    from mutarray import _layout

    m = mu.full((8, 4), 5.0, sharding=named(kind, {"tp": 4}, "tp"))
    mine = set(jax.devices()[:2])
    original = _layout.layout_of

    def partly(shape: tuple[int, ...], sharding: jax.sharding.Sharding) -> _layout.Layout:
        layout = original(shape, sharding)
        shards = tuple(
            _layout.Shard(s.device, s.block, s.box, s.replica, s.device in mine)
            for s in layout.shards
        )
        owners = {b: tuple(s for s in shards if s.block == b) for b in layout.owners}
        return _layout.Layout(layout.shape, layout.block_shape, layout.counts, shards, owners)

    monkeypatch.setattr("mutarray._repr.layout_of", partly)
    assert "values=[5.0, 5.0, 5.0, ..., ?, ?, ?]" in repr(m)


@pytest.mark.parametrize("kind", KINDS)
def test_inside_of_a_trace(kind: str) -> None:
    m = mu.zeros((8, 8), sharding=named(kind, {"tp": 4}, "tp"))
    seen: list[str] = []
    jax.jit(lambda m: seen.append(repr(m)) or m[0])(m)
    assert "float32[8, 8]" in seen[0] and "'tp'" in seen[0] and "traced" in seen[0]
