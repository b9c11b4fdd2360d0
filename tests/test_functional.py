"""`mutarray.functional`: the compiled engine on immutable arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

import mutarray as mu
from mutarray._jaxapi import make_single_device_sharding
from tests import hlo
from tests.support import KINDS, P, mesh

X = np.arange(16 * 8, dtype=np.float32).reshape(16, 8)
FORMS: dict[str, Any] = {
    "row": 5,
    "slice": slice(3, 13),
    "backwards": (slice(None, None, -2), slice(1, 7)),
    "list": [3, -1, 5, 3],
    "mask": X % 5 == 0,
    "element": (2, -3),
    "nothing": slice(4, 4),
}


def on(kind: str) -> NamedSharding:
    return NamedSharding(mesh((4, 2), "ij", KINDS[kind]), P("i", "j"))


@pytest.mark.core
@pytest.mark.parametrize("way", ["eager", "jit"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_equals_numpy_and_keeps_the_sharding(form: str, kind: str, way: str) -> None:
    index, s = FORMS[form], on(kind)
    x = jax.device_put(X, s)
    value = np.arange(X[index].size, dtype=np.float32).reshape(X[index].shape)

    def work(x: jax.Array, value: Any) -> Any:
        known = {"sharding": s} if way == "jit" and kind == "auto" else {}
        read = mu.functional.get(x, index, **known)
        written = mu.functional.set(x, index, value, **known)
        return read, written, mu.functional.add(x, index, value, **known)

    read, written, added = (jax.jit(work) if way == "jit" else work)(x, value)
    wanted, summed = X.copy(), X.copy()
    wanted[index] = value
    np.add.at(summed, index, value)
    np.testing.assert_array_equal(read, X[index])
    np.testing.assert_array_equal(written, wanted)
    np.testing.assert_array_equal(added, summed)
    assert written.sharding == added.sharding == s
    np.testing.assert_array_equal(x, X)


@pytest.mark.parametrize("kind", KINDS)
def test_a_donated_array_is_written_in_place_without_a_gather(kind: str) -> None:
    s = NamedSharding(mesh((4, 2), "ij", KINDS[kind]), P("i", "j"))
    x = jax.device_put(np.zeros((512, 256), np.float32), s)

    def step(x: jax.Array, k: Any, v: jax.Array) -> jax.Array:
        return mu.functional.set(x, mu.ds(k, 64), v, sharding=s)

    program = jax.jit(step, donate_argnums=0).lower(x, 3, jnp.ones((64, 256))).compile()
    assert hlo.aliased(program) == 128 * 128 * 4
    assert not hlo.collectives(program)
    assert hlo.temporary(program) <= 64 * 256 * 4


def test_sharding_moves_an_array_that_lies_elsewhere() -> None:
    s = on("auto")
    out = mu.functional.set(jnp.asarray(X), 0, 1.0, sharding=s)
    assert out.sharding == s
    assert mu.functional.get(jnp.asarray(X), ..., sharding=s).sharding == s


def test_out_of_range_and_gradients_follow_the_rules_of_mutable_arrays() -> None:
    x = jnp.arange(4.0)
    assert mu.functional.get(x, [1, 9], mode="fill", fill_value=-1.0).tolist() == [1, -1]
    assert mu.functional.set(x, [1, 9], 5.0, mode="drop").tolist() == [0, 5, 2, 3]
    assert jax.grad(lambda x: mu.functional.set(x, 1, x[0] * 3)[1])(x).tolist() == [3, 0, 0, 0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: mu.functional.get(x, 16), IndexError, "index 16 is out of bounds for axis 0"),
        (lambda x: mu.functional.set(x, 0, np.ones(3)), ValueError, "could not broadcast"),
        (lambda x: mu.functional.set(x, 0, 1j), TypeError, "same_kind"),
        (lambda x: mu.functional.get(mu.zeros(3), 0), TypeError, r"use m\[idx\]"),
        (lambda x: mu.functional.get(x, 0, sharding=P("i")), TypeError, "NamedSharding"),
        (
            lambda x: mu.functional.get(x[:3], 0, sharding=on("auto")),
            ValueError,
            "axis 0 of shape .* has size 3",
        ),
    ],
)
def test_bad_input(call: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        call(jnp.asarray(X))


def test_one_device() -> None:
    x = jax.device_put(X, make_single_device_sharding(jax.devices()[3]))
    assert mu.functional.set(x, 0, 1.0).devices() == {jax.devices()[3]}
