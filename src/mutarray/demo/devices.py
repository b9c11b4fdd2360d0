"""Which devices the demo runs on, and the mesh that fits them."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh


def simulate_cpu_devices(count: int, *, instead_of_accelerators: bool) -> None:
    """Splits the CPU into several JAX devices.

    JAX fixes its devices when it first uses one. A process that has come so far keeps what it has,
    so look at ``jax.devices()`` afterwards.

    Args:
        count: How many devices the CPU shall be.
        instead_of_accelerators: Whether JAX shall leave accelerators alone. Otherwise the CPU
            devices are used only where there is no accelerator.
    """
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        return
    if instead_of_accelerators:
        jax.config.update("jax_platforms", "cpu")


def mesh_shape(available: int, wanted: tuple[int, int]) -> tuple[int, int]:
    """Returns the largest mesh that fits, with sides that divide the wanted ones.

    Sides that divide keep every array divisible that is divisible on the wanted mesh. Of two
    meshes with as many devices the squarer one is taken.

    Args:
        available: How many devices there are.
        wanted: The mesh to build where there are enough.

    Example:
        >>> [mesh_shape(n, (4, 2)) for n in (1, 2, 4, 7, 8)]
        [(1, 1), (2, 1), (2, 2), (2, 2), (4, 2)]
    """
    fitting = [
        (rows, columns)
        for rows in range(1, wanted[0] + 1)
        for columns in range(1, wanted[1] + 1)
        if wanted[0] % rows == wanted[1] % columns == 0 and rows * columns <= available
    ]
    return max(fitting, key=lambda shape: (shape[0] * shape[1], -abs(shape[0] - shape[1]), shape))


def make_mesh(
    devices: Sequence[jax.Device], wanted: tuple[int, int], names: tuple[str, str]
) -> Mesh:
    """Builds the mesh of ``mesh_shape`` from the first devices, with automatic axes.

    Args:
        devices: What to take the devices from.
        wanted: The mesh to build where there are enough devices.
        names: The names of the two mesh axes.
    """
    rows, columns = mesh_shape(len(devices), wanted)
    grid = np.array(devices[: rows * columns]).reshape(rows, columns)
    return Mesh(grid, names, axis_types=(AxisType.Auto, AxisType.Auto))
