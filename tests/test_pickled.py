"""Pickles: values and sharding come back, or an error says why not."""

from __future__ import annotations

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding

import mutarray as mu
from mutarray import _pickled
from mutarray._handle import cell_of
from mutarray._jaxapi import make_single_device_sharding
from tests.support import KINDS, P, layouts, mesh


@pytest.mark.core
@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
@pytest.mark.parametrize("kind", KINDS)
def test_round_trip(kind: str, protocol: int) -> None:
    for shape, sharding in layouts(KINDS[kind]).values():
        x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
        m = mu.mutable_array(x, sharding)
        k = pickle.loads(pickle.dumps(m, protocol))
        assert k is not m and isinstance(k, mu.MutableArray)
        assert k.sharding == m.sharding and k[...].sharding == m[...].sharding
        assert k.dtype == m.dtype
        np.testing.assert_array_equal(k, x)
        k[...] = 1.0
        np.testing.assert_array_equal(m, x)


@pytest.mark.core
@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16", "float8_e4m3fn", "complex64"])
def test_dtypes(dtype: str) -> None:
    m = mu.mutable_array(jnp.arange(4).astype(dtype))
    k = pickle.loads(pickle.dumps(m))
    assert k.dtype == m.dtype and k[...].tolist() == m[...].tolist()


@pytest.mark.core
def test_keys_and_memory_and_kinds_of_meshes() -> None:
    kinds = (AxisType.Auto, AxisType.Explicit)
    mixed = jax.make_mesh((4, 2), ("i", "j"), axis_types=kinds)
    keys = mu.mutable_array(jax.random.split(jax.random.key(1, impl="rbg"), 8))
    k = pickle.loads(pickle.dumps(keys))
    assert k.dtype == keys.dtype and bool((k == keys).all())
    for sharding in (
        NamedSharding(mixed, P("j", ("i",))),
        NamedSharding(mesh((4, 2), "ij"), P("i"), memory_kind="pinned_host"),
        make_single_device_sharding(jax.devices()[3]),
    ):
        m = mu.ones((4, 4), sharding=sharding)
        k = pickle.loads(pickle.dumps({"m": [m]}))["m"][0]
        assert k.sharding == sharding and k.sharding.memory_kind == sharding.memory_kind
        assert float(k.sum()) == 16


def test_devices_that_are_not_there() -> None:
    m = mu.ones((4, 4), sharding=NamedSharding(mesh((4, 2), "ij"), P("i", "j")))
    values, impl, (platform, ids, *rest) = _pickled.dump(cell_of(m))
    for place, message in [
        ((platform, ids + 4, *rest), r"on 8 cpu devices.*has 8: there is no cpu device number 8"),
        (("tpu", ids, *rest), "on 8 tpu devices.*has 0"),
    ]:
        with pytest.raises(mu.errors.BadShardingError, match=message):
            _pickled.load((values, impl, place))


def test_what_cannot_be_pickled() -> None:
    m = mu.zeros(3)
    with pytest.raises(mu.errors.TraceError, match="inside a trace"):
        jax.jit(lambda m: pickle.dumps(m))(m)
    mu.freeze(m)
    with pytest.raises(mu.errors.SpentError):
        pickle.dumps(m)


def test_made_in_a_trace() -> None:
    data = pickle.dumps(mu.ones(3))
    assert jax.jit(lambda x: pickle.loads(data)[...] + x)(1.0).tolist() == [2, 2, 2]
