"""The bug report's two scripts, word for word but for their import lines.

https://github.com/jax-ml/jax/issues/26338
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.core

EAGER = """\
import os
os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['XLA_FLAGS'] = os.environ.get('XLA_FLAGS', '') + ' --xla_force_host_platform_device_count=4'

import jax
import jax.numpy as jnp
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from mutarray import mutable_array
from mutarray import swap as ref_swap

devices = mesh_utils.create_device_mesh((2, 2))
mesh = Mesh(devices, axis_names=('i', 'j'))
sharding = NamedSharding(mesh, P('i', 'j'))

a = jnp.zeros_like(mesh.device_ids, dtype=jnp.int32)
a = jax.make_array_from_callback(a.shape, sharding, lambda idx: a[idx])
print(a[...].sharding)

a_ref = mutable_array(a)
print(a_ref[...].sharding)
"""  # noqa: E501 (the report's own lines)

JITTED = """\
import os
os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['XLA_FLAGS'] = os.environ.get('XLA_FLAGS', '') + ' --xla_force_host_platform_device_count=4'

import jax
import jax.numpy as jnp
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from mutarray import mutable_array

@jax.jit
def f(a):
    jax.debug.visualize_array_sharding(a)

    a_ref = mutable_array(a)
    jax.debug.visualize_array_sharding(a_ref[...])

devices = mesh_utils.create_device_mesh((2, 2))
mesh = Mesh(devices, axis_names=('i', 'j'))
sharding = NamedSharding(mesh, P('i', 'j'))

a = jnp.zeros_like(mesh.device_ids, dtype=jnp.int32)
a = jax.make_array_from_callback(a.shape, sharding, lambda idx: a[idx])

f(a)
"""  # noqa: E501

# "We just can't return one from a jit."
RETURNED = (
    JITTED.replace("    jax.debug.visualize_array_sharding(a_ref[...])", "    return a_ref")
    .replace("\nf(a)\n", "")
    .rstrip()
    + """

try:
    f(a)
except ValueError as error:
    print('ValueError', error)
"""
)


def run(script: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment | {"COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_both_shardings_are_the_same() -> None:
    of_array, of_mutable_array = run(EAGER).splitlines()
    assert of_array.startswith("NamedSharding(")
    assert of_array == of_mutable_array
    for part in ("'i': 2", "'j': 2", "('i', 'j')", "memory_kind="):
        assert part in of_mutable_array


def test_both_pictures_under_jit_are_the_same() -> None:
    lines = run(JITTED).splitlines()
    assert len(lines) % 2 == 0 and len(lines) > 8
    first, second = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    assert first == second
    assert re.findall(r"CPU \d", "\n".join(second)) == ["CPU 0", "CPU 1", "CPU 2", "CPU 3"]
    assert second[0][0] == "┌" and second[-1][-1] == "┘"
    cells = [line.count("CPU") for line in second if "CPU" in line]
    assert cells == [2, 2], "a grid of two by two"


def test_returning_one_from_a_jit_says_so() -> None:
    printed = run(RETURNED)
    message = printed[printed.index("ValueError") :]
    assert "mutable array" in message and "returned" in message and "m[...]" in message
