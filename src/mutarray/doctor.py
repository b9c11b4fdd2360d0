"""What ``mutarray doctor`` finds out: versions, devices, memory, and what works on them."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import mutarray as mu

REQUIRED_PACKAGES = ("jax", "jaxlib", "numpy")
OPTIONAL_PACKAGES = ("typer", "rich", "scikit-learn")


@dataclass(frozen=True)
class Device:
    """One device.

    Attributes:
        name: JAX's name for it.
        kind: The hardware, as the backend names it.
        memory_kinds: Where arrays can be put, the default first.
        bytes_in_use: Bytes that JAX has allocated, or None where the backend does not say.
        bytes_limit: Bytes that JAX may allocate, or None where the backend does not say.
    """

    name: str
    kind: str
    memory_kinds: tuple[str, ...]
    bytes_in_use: int | None
    bytes_limit: int | None


@dataclass(frozen=True)
class Probe:
    """One thing that was tried.

    Attributes:
        what: What was tried.
        required: Whether mutarray is of no use without it.
        reason: Why it does not work here, or None where it does.
    """

    what: str
    required: bool
    reason: str | None

    @property
    def works(self) -> bool:
        """Whether it works here."""
        return self.reason is None


def versions() -> dict[str, str | None]:
    """Returns the version of each package that matters; None where it is not installed."""
    found: dict[str, str | None] = {
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "mutarray": mu.__version__,
    }
    for package in REQUIRED_PACKAGES + OPTIONAL_PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def describe(device: jax.Device) -> Device:
    """Asks a device for its kind and its memory."""
    default = device.default_memory().kind
    others = sorted({memory.kind for memory in device.addressable_memories()} - {default})
    # Backends that do not count, the CPU among them, answer None.
    stats = device.memory_stats() or {}
    return Device(
        name=str(device),
        kind=device.device_kind,
        memory_kinds=(default, *others),
        bytes_in_use=stats.get("bytes_in_use"),
        bytes_limit=stats.get("bytes_limit"),
    )


def probe(devices: Sequence[jax.Device]) -> list[Probe]:
    """Tries what mutarray does on an array of a few bytes that is split over the devices."""
    kinds = describe(devices[0]).memory_kinds
    tries: list[tuple[str, bool, Callable[[], None]]] = [
        (
            f"create and read in {kind} memory",
            kind == kinds[0],
            lambda kind=kind: _create(_sharding(devices, memory_kind=kind)),
        )
        for kind in kinds
    ]
    automatic, explicit = _sharding(devices), _sharding(devices, axis_type=AxisType.Explicit)
    tries += [
        ("write eagerly", True, lambda: _write(automatic)),
        ("write under jax.jit", True, lambda: _write_in_jit(automatic)),
        ("write on a mesh with explicit axes", True, lambda: _write(explicit)),
        ("write under jax.jit on explicit axes", True, lambda: _write_in_jit(explicit)),
        ("write inside jax.shard_map", True, lambda: _write_in_shard_map(automatic)),
    ]
    return [Probe(what, required, _reason(attempt)) for what, required, attempt in tries]


def _reason(attempt: Callable[[], None]) -> str | None:
    # Whatever goes wrong is the finding, so no kind of error may pass by.
    try:
        attempt()
    except Exception as error:
        first_line = next(iter(str(error).strip().splitlines()), "")
        return f"{type(error).__name__}: {first_line}"
    return None


def _sharding(
    devices: Sequence[jax.Device],
    *,
    axis_type: AxisType = AxisType.Auto,
    memory_kind: str | None = None,
) -> NamedSharding:
    mesh = Mesh(np.array(devices), ("d",), axis_types=(axis_type,))
    return NamedSharding(mesh, P("d"), memory_kind=memory_kind)


def _filled(sharding: NamedSharding) -> tuple[mu.MutableArray, np.ndarray]:
    """Makes an array with two rows on each device, and the same in NumPy."""
    rows = 2 * sharding.mesh.size
    values = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    return mu.mutable_array(values, sharding=sharding), values


def _expect(mutable: mu.MutableArray, values: np.ndarray, sharding: NamedSharding) -> None:
    if mutable[...].sharding != sharding:
        raise RuntimeError(f"the sharding became {mutable[...].sharding}")
    if not np.array_equal(np.asarray(mutable[...]), values):
        raise RuntimeError("the values are wrong")


def _create(sharding: NamedSharding) -> None:
    mutable, values = _filled(sharding)
    _expect(mutable, values, sharding)


def _write(sharding: NamedSharding) -> None:
    mutable, values = _filled(sharding)
    # An element of the last row, and a slice that crosses from one device to the next.
    mutable[-1, 0] = values[-1, 0] = -1
    mutable[1:3] = values[1:3] = 5
    _expect(mutable, values, sharding)


def _write_in_jit(sharding: NamedSharding) -> None:
    mutable, values = _filled(sharding)

    @jax.jit
    def write(mutable, row):
        mutable[row] = jnp.full(4, 5.0)

    write(mutable, len(values) - 1)
    values[-1] = 5
    _expect(mutable, values, sharding)


def _write_in_shard_map(sharding: NamedSharding) -> None:
    mutable, values = _filled(sharding)

    @jax.jit
    def write(mutable):
        def each(block):
            block[...] = block[...] * 2

        jax.shard_map(each, mesh=sharding.mesh, in_specs=sharding.spec, out_specs=None)(mutable)

    write(mutable)
    _expect(mutable, values * 2, sharding)
