"""The picture of an array in text: one line, always, whatever the array."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

import mutarray as mu
from mutarray import _jaxapi
from mutarray._jaxapi import make_single_device_sharding
from tests.support import KINDS, P, mesh


def sharding(kind: str = "auto", *spec: Any, memory_kind: str | None = None) -> NamedSharding:
    return NamedSharding(mesh((4, 2), "ij", KINDS[kind]), P(*spec), memory_kind=memory_kind)


@pytest.mark.parametrize("kind", KINDS)
def test_on_a_mesh(kind: str) -> None:
    m = mu.mutable_array(np.arange(32, dtype=np.float32).reshape(8, 4), sharding(kind, "i", "j"))
    assert repr(m) == (
        "MutableArray(float32[8, 4], P('i', 'j') on Mesh('i': 4, 'j': 2), device, "
        "values=[0.0, 1.0, 2.0, ..., 29.0, 30.0, 31.0])"
    )
    assert str(m) == repr(m) == f"{m}"
    m[0, 1] = -5.5
    jax.jit(lambda m: m.__setitem__((7, 3), 99.0))(m)
    assert "values=[0.0, -5.5, 2.0, ..., 29.0, 30.0, 99.0]" in repr(m)


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ((), "P()"),
        (("i",), "P('i')"),
        (("i", None), "P('i', None)"),
        ((None, "j"), "P(None, 'j')"),
        ((("i", "j"),), "P(('i', 'j'))"),
    ],
)
def test_specs(spec: Any, shown: str) -> None:
    assert f"int8[8, 2], {shown} on Mesh('i': 4, 'j': 2)" in repr(
        mu.zeros((8, 2), jnp.int8, sharding=sharding("auto", *spec))
    )


@pytest.mark.parametrize("size", range(9))
def test_few_values_are_shown_whole(size: int) -> None:
    text = repr(mu.mutable_array(np.arange(size)))
    values = text[text.index("values=") + len("values=") : -1]
    if size <= 6:
        assert values == str(list(range(size)))
    else:
        assert values == f"[0, 1, 2, ..., {size - 3}, {size - 2}, {size - 1}]"


def test_scalar_and_empty() -> None:
    assert repr(mu.mutable_array(2.5)).endswith("device, values=2.5)")
    assert "float32[]" in repr(mu.mutable_array(2.5))
    assert "P() on Mesh" in repr(mu.mutable_array(7, sharding()))
    assert "float32[0, 4]" in repr(mu.zeros((0, 4))) and "values=[]" in repr(mu.zeros((0, 4)))
    assert "values=[]" in repr(mu.zeros((4, 0), sharding=sharding("auto", "i")))


@pytest.mark.parametrize(
    ("dtype", "value", "shown"),
    [
        (jnp.bool_, True, "bool[3]"),
        (jnp.bfloat16, 1.5, "bfloat16[3]"),
        (jnp.float8_e4m3fn, 0.5, "float8_e4m3fn[3]"),
        (jnp.complex64, 1 + 2j, "complex64[3]"),
        (jnp.int4, -3, "int4[3]"),
        (jnp.uint32, 2**32 - 1, "uint32[3]"),
        (jnp.float32, float("nan"), "float32[3]"),
    ],
)
def test_dtypes(dtype: Any, value: Any, shown: str) -> None:
    text = repr(mu.full(3, value, dtype))
    assert shown in text and str(np.asarray(value).astype(dtype)[()]) in text
    assert "np." not in text


def test_keys() -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    text = repr(mu.mutable_array(keys, NamedSharding(mesh((4,), "d"), P("d"))))
    assert "key<fry>[4]" in text and "P('d')" in text


def test_other_places() -> None:
    x = np.arange(16, dtype=np.int32).reshape(4, 4)
    one = repr(mu.mutable_array(x, make_single_device_sharding(jax.devices()[3])))
    assert str(jax.devices()[3]) in one and "device, values=[0, 1, 2, ..., 13, 14, 15]" in one
    for memory in ("pinned_host", "unpinned_host"):
        text = repr(mu.mutable_array(x, sharding("auto", "i", memory_kind=memory)))
        assert f"Mesh('i': 4, 'j': 2), {memory}, values=[0, 1, 2, ..., 13, 14, 15]" in text
    named = sharding("auto", "i")
    gspmd = _jaxapi.GSPMDSharding(tuple(named.mesh.devices.flat), named._to_xla_hlo_sharding(2))
    text = repr(mu.mutable_array(x, gspmd))
    assert "GSPMDSharding on 8 devices, device, values=[0, 1, 2, ..., 13, 14, 15]" in text


def test_large_is_short() -> None:
    m = mu.zeros((4096, 4096), jnp.int8, sharding=sharding("auto", "i", "j"))
    m[-1, -1] = 7
    assert len(repr(m)) < 200 and repr(m).endswith("..., 0, 0, 7])")


def test_spent() -> None:
    m = mu.zeros((8, 4), sharding=sharding("auto", "i"))
    mu.freeze(m)
    assert repr(m) == "MutableArray(float32[8, 4], P('i') on Mesh('i': 4, 'j': 2), device, spent)"


def test_in_traces() -> None:
    seen: list[str] = []
    m = mu.zeros((8, 4), sharding=sharding("auto", "i"))
    k = mu.ones(3)

    def look(m: mu.MutableArray) -> None:
        made = mu.mutable_array(m[0])
        seen.extend([repr(m), repr(made)])
        jax.lax.fori_loop(0, 2, lambda i, c: (seen.append(repr(m)), c)[1], 0)

    jax.jit(look)(m)
    jax.jit(lambda: seen.append(repr(k)))()
    assert seen[0] == "MutableArray(float32[8, 4], P('i') on Mesh('i': 4, 'j': 2), device, traced)"
    assert seen[1].startswith("MutableArray(float32[4]") and seen[1].endswith("traced)")
    assert seen[2] == seen[0]
    assert "float32[3]" in seen[-1] and "Traced<" not in "".join(seen)


def test_in_a_shard_map_it_is_the_block() -> None:
    seen: list[str] = []
    s = NamedSharding(mesh((4,), "d"), P("d"))
    m = mu.zeros(8, sharding=s)
    body = lambda m: seen.append(repr(m)) or m[...]  # noqa: E731
    jax.jit(jax.shard_map(body, mesh=s.mesh, in_specs=P("d"), out_specs=P("d")))(m)
    assert "float32[2]" in seen[0]


def test_a_repr_is_no_use_of_the_array() -> None:
    """It neither copies nor shares: what is written next is written in place."""
    m = mu.zeros((8, 4), sharding=sharding("auto", "i"))
    before = [shard.data.unsafe_buffer_pointer() for shard in m.addressable_shards]
    repr(m)
    assert [shard.data.unsafe_buffer_pointer() for shard in m.addressable_shards] == before
