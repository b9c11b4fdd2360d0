"""`no_gather` and `explain`: what an operation would move, refused or told before it runs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding

import mutarray as mu
from mutarray import _buffers
from mutarray._jaxapi import make_single_device_sharding
from tests import hlo
from tests.support import KINDS, P, mesh

SHAPE = (64, 32)


def on(kind: str = "auto", spec: P = P("i", "j")) -> mu.MutableArray:
    return mu.zeros(SHAPE, sharding=NamedSharding(mesh((4, 2), "ij", KINDS[kind]), spec))


def without_a_mesh() -> mu.MutableArray:
    """An array over eight devices whose sharding no mesh describes."""
    from jax._src.sharding_impls import GSPMDSharding

    named = on().sharding
    devices = tuple(named.mesh.devices.flat)
    parts = named._to_xla_hlo_sharding(2)
    return mu.mutable_array(jnp.zeros(SHAPE), GSPMDSharding(devices, parts))


@pytest.mark.parametrize("kind", KINDS)
def test_everything_that_the_engines_do_is_allowed(kind: str) -> None:
    with mu.no_gather():
        m = on(kind)
        m[3:40] = 1.0
        m[[1, 50]] = np.ones(32)
        m += 1.0
        m[5], m[...], m[3:9, ::2], repr(m)

        @jax.jit
        def step(m: mu.MutableArray, k: Any) -> Any:
            m[mu.ds(k, 8)] = 2.0
            m[...] = m[...] * 2
            m.add_at([1, 1], 1.0)
            return m[k], m[::-1], m[:, 3]

        step(m, 3)
    assert float(m[4, 0]) == 4.0


def test_a_gather_is_refused_before_anything_moves() -> None:
    m = without_a_mesh()
    step = jax.jit(lambda m: m.__setitem__(3, 1.0))
    with mu.no_gather(), pytest.raises(mu.errors.GatherError) as caught:
        step(m)
    assert str(caught.value).startswith(
        "a write of an array of shape (64, 32) inside of a trace touches 128 bytes and would move "
        "8,192 bytes to each device, inside of mu.no_gather(): its sharding GSPMDSharding("
    )
    assert str(caught.value).endswith("Make the array with a NamedSharding.")
    assert not np.asarray(m[...]).any()
    step(m)
    assert float(m[3, 0]) == 1.0


def test_an_unknown_sharding_is_refused() -> None:
    s = on().sharding
    x = jax.device_put(np.zeros(SHAPE, np.float32), s)

    def made(x: jax.Array, **known: Any) -> jax.Array:
        m = mu.mutable_array(x, **known)
        m[3] = 1.0
        return m[...]

    with mu.no_gather():
        with pytest.raises(mu.errors.GatherError, match="Pass sharding= where the array is made"):
            jax.jit(made)(x)
        jax.jit(lambda x: made(x, sharding=s))(x)


def test_programs_on_host_memory_are_refused() -> None:
    home = NamedSharding(mesh((4, 2), "ij"), P("i", "j"), memory_kind="pinned_host")
    m = mu.zeros(SHAPE, sharding=home)
    with mu.no_gather():
        with pytest.raises(mu.errors.GatherError, match="programs get a copy of it"):
            jax.jit(lambda m: m[3])(m)
        if _buffers.runs_in_memory("cpu", "pinned_host"):
            m[3] = 1.0
        else:
            with pytest.raises(mu.errors.GatherError, match="cannot work on a part"):
                m[3] = 1.0


def test_the_context_ends_also_after_an_error() -> None:
    with pytest.raises(KeyError), mu.no_gather():
        raise KeyError
    jax.jit(lambda m: m.__setitem__(3, 1.0))(without_a_mesh())


# explain -----------------------------------------------------------------------------------------


def test_explains_what_is_touched() -> None:
    m = on()
    told = mu.explain(m, slice(14, 18), 1.0)
    assert {s.block for s in told.shards or ()} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert told.touched_bytes == 4 * 32 * 4
    assert told.moved_bytes == 0 and told.moves == ()
    assert not np.asarray(m[...]).any(), "nothing is run"
    assert mu.explain(m, slice(4, 4)).touched_bytes == 0
    assert len(mu.explain(on(spec=P("i")), 5, 1.0).shards or ()) == 2, "replicas are written too"


def test_prints_as_a_table() -> None:
    assert str(mu.explain(on(), (mu.ds(3, 16), slice(None)), compiled=True)) == "\n".join(
        [
            "operation         read of float32[16, 32] in float32[64, 32]",
            "way               compiled: each device gives what it owns, and the sum is the result",
            "touches           2 KiB",
            "shards            4 of 8 on devices 0, 1, 2, 3",
            "moves             reduce-scatter over i: 1 KiB to each device",
            "temporary memory  2 KiB on each device",
        ]
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "index",
    [3, slice(10, 50), slice(8, 24), (slice(None), 5), (3, 4), [1, 60], slice(None, None, -1)],
    ids=str,
)
def test_tells_what_the_compiled_program_does(index: Any, kind: str) -> None:
    m = on(kind)
    told = mu.explain(m, index, compiled=True)
    program = jax.jit(lambda m: m[index]).lower(m).compile()
    found = sorted(i.name for i in hlo.collectives(program))
    assert sorted(move.what for move in told.moves) == found
    assert hlo.temporary(program) <= told.temporary_bytes + 1024
    write = mu.explain(m, index, 1.0, compiled=True)
    program = jax.jit(lambda m: m.__setitem__(index, 1.0)).lower(m).compile()
    assert not hlo.collectives(program) and not write.moves
    assert hlo.temporary(program) <= write.temporary_bytes + 1024


def test_inside_of_a_trace_it_tells_what_is_known() -> None:
    seen: list[mu.Explanation] = []
    jax.jit(lambda m, k: seen.append(mu.explain(m, k)))(on(), 3)
    (told,) = seen
    assert told.shards is None and "decided on the devices, of 8" in str(told)
    assert told.moves[0].axes == ("i",)


def test_other_ways() -> None:
    assert "snapshot" in mu.explain(on()).way
    assert "on the device's own block" in mu.explain(mu.zeros(4), 1, compiled=True).way
    gathers = mu.explain(without_a_mesh(), 3, compiled=True)
    assert gathers.moves[0].what == "all-gather" and gathers.moved_bytes == 64 * 32 * 4
    value = jax.device_put(np.ones(32, np.float32), make_single_device_sharding(jax.devices()[7]))
    assert mu.explain(on(), 3, value).moves[0].what == "device to device"
    assert mu.explain(on(), 3, np.ones(32)).moves[0].what == "host to device"


def test_bad_input_raises_as_the_operation_would() -> None:
    with pytest.raises(IndexError, match="out of bounds"):
        mu.explain(on(), 64)
    with pytest.raises(ValueError, match="could not broadcast"):
        mu.explain(on(), 3, np.ones(5))


def test_a_mixed_mesh() -> None:
    kinds = (AxisType.Auto, AxisType.Explicit)
    mixed = Mesh(np.array(jax.devices()).reshape(4, 2), ("i", "j"), axis_types=kinds)
    m = mu.zeros(SHAPE, sharding=NamedSharding(mixed, P("i", "j")))
    with mu.no_gather():
        jax.jit(lambda m, k: m.__setitem__(mu.ds(k, 8), 1.0))(m, 13)
    assert float(m[...].sum()) == 8 * 32
