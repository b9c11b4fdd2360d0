"""`m.layout()`: the table of what each device holds, and what it must not touch."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

import mutarray as mu
from mutarray._jaxapi import make_single_device_sharding
from mutarray.errors import TraceError
from tests.support import KINDS, P, layouts, mesh

pytestmark = pytest.mark.core


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", layouts(KINDS["auto"]))
def test_rows_are_the_shards(name: str, kind: str) -> None:
    shape, sharding = layouts(KINDS[kind])[name]
    x = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    m = mu.mutable_array(x, sharding)
    rows = m.layout().rows
    assert [row.device for row in rows] == list(sharding.devices_indices_map(shape))
    shards = {shard.device: shard for shard in m.addressable_shards}
    for row in rows:
        shard = shards[row.device]
        held = x[tuple(slice(*pair) for pair in row.box)]
        assert np.array_equal(held, shard.data)
        assert row.nbytes == held.nbytes and row.replica == shard.replica_id
        assert row.process == 0 and row.memory_kind == "device"


def test_prints_as_a_table() -> None:
    m = mu.zeros((4, 2048), sharding=NamedSharding(mesh((2, 2), "ij"), P(None, "i")))
    table = m.layout()
    assert str(table) == repr(table) == f"{table}"
    assert str(table).splitlines() == [
        "device  box               bytes   replica  process  memory",
        "CPU 0   [0:4, 0:1024]     16 KiB  0        0        device",
        "CPU 1   [0:4, 0:1024]     16 KiB  1        0        device",
        "CPU 2   [0:4, 1024:2048]  16 KiB  0        0        device",
        "CPU 3   [0:4, 1024:2048]  16 KiB  1        0        device",
    ]


def test_is_a_table_in_a_notebook() -> None:
    html = mu.zeros(4, jnp.int8, sharding=NamedSharding(mesh((2,), "d"), P("d"))).layout()
    lines = re.findall("<tr>(.*?)</tr>", html._repr_html_())
    head, *rows = [re.findall("<(t[hd])>(.*?)</t[hd]>", line) for line in lines]
    names = ["device", "box", "bytes", "replica", "process", "memory"]
    assert head == [("th", name) for name in names]
    assert [[entry for _, entry in row] for row in rows] == [
        ["CPU 0", "[0:2]", "2 B", "0", "0", "device"],
        ["CPU 1", "[2:4]", "2 B", "0", "0", "device"],
    ]


def test_other_places() -> None:
    one = mu.zeros(3, sharding=make_single_device_sharding(jax.devices()[3])).layout().rows
    assert one == ((jax.devices()[3], ((0, 3),), 12, 0, 0, "device"),)
    host = NamedSharding(mesh((2,), "d"), P("d"), memory_kind="pinned_host")
    assert {row.memory_kind for row in mu.zeros(4, sharding=host).layout().rows} == {"pinned_host"}
    keys = mu.mutable_array(jax.random.split(jax.random.key(0), 4))
    assert keys.layout().rows[0].nbytes == keys.nbytes == 32


def test_needs_no_contents() -> None:
    m = mu.zeros((8, 4), sharding=NamedSharding(mesh((4,), "d"), P("d")))
    before = m.layout()
    mu.freeze(m)
    assert m.layout() == before


def test_in_a_trace_it_is_known_of_arguments() -> None:
    m = mu.zeros((8, 4), sharding=NamedSharding(mesh((4,), "d"), P("d")))
    seen = []

    @jax.jit
    def look(m: mu.MutableArray) -> None:
        seen.append(m.layout())
        k = mu.zeros((8, 4), sharding=m.sharding)
        seen.append(k.layout())

    look(m)
    jax.jit(lambda: seen.append(m.layout()))()
    assert seen == [m.layout()] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_trace_that_does_not_know_it_says_so(kind: str) -> None:
    spec = P("d", None)  # JAX 0.9 takes a Ref in shard_map only under the very spec that it has
    sharding = NamedSharding(mesh((4,), "d", KINDS[kind]), spec)
    m = mu.zeros((8, 4), sharding=sharding)
    block = jax.shard_map(lambda m: m.layout(), mesh=sharding.mesh, in_specs=spec, out_specs=spec)
    for program, shape in [
        (lambda m: mu.mutable_array(m[...]).layout(), "8, 4"),
        (lambda m: jax.vmap(lambda column: column.layout(), in_axes=1)(m), "8"),
        (block, "2, 4"),
    ]:
        with pytest.raises(TraceError) as caught:
            jax.jit(program)(m)
        assert str(caught.value) == (
            f"inside this trace it is not known on which devices the array float32[{shape}] lies: "
            "it was made there without sharding=, or is the part that a vmap or a shard_map body "
            "sees. Give sharding= where it is made, or ask outside of the trace"
        )
