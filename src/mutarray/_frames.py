"""Where an array lives, as a trace knows it, and how values are brought there.

On explicit meshes the sharding is read off the array's type. On auto meshes the type does not say;
there the sharding that the `MutableArray` carries is used, where the array has the shape that it
was made for and no ``vmap`` or ``shard_map`` has taken dimensions off or blocks out of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from mutarray import _cast, _jaxapi
from mutarray._form import Form, Selection
from mutarray._layout import spec_where_divisible, split_axes
from mutarray._types import Shape


class Home(NamedTuple):
    """Where an array lives: the static part of a `MutableArray` in a trace."""

    shape: Shape
    sharding: Sharding | None


class Frame(NamedTuple):
    """How values are brought whole to every device, and back, around one operation.

    Attributes:
        mesh: the abstract mesh of the array's type, where it has explicit axes.
        spec: the spec in that type.
        home: the array's sharding, where it is to be used as a constraint.
    """

    mesh: Any
    spec: PartitionSpec | None
    home: Sharding | None

    def gather(self, x: jax.Array) -> jax.Array:
        if self.mesh is not None:
            x = _jaxapi.reshard(x, self.mesh, PartitionSpec())
        if self.home is not None:
            x = lax.with_sharding_constraint(x, _jaxapi.replicated(self.home))
        return x

    def scatter(self, x: jax.Array, spec: PartitionSpec | None) -> jax.Array:
        """Splits a whole value by ``spec``; by the array's own sharding where it is ``None``."""
        if self.mesh is not None:
            own = self.spec if spec is None else part_of(spec, self.mesh.explicit_axes)
            x = _jaxapi.reshard(x, self.mesh, own or PartitionSpec())
        if isinstance(self.home, NamedSharding):
            mesh, spec = self.home.mesh, self.home.spec if spec is None else spec
            spec = part_of(spec, mesh.abstract_mesh.auto_axes)
            x = lax.with_sharding_constraint(x, NamedSharding(mesh, spec))
        elif self.home is not None and spec is None:
            x = lax.with_sharding_constraint(x, self.home)
        return x


def part_of(spec: PartitionSpec, axes: Iterable[str]) -> PartitionSpec:
    """The entries of a spec that name one of ``axes``.

    On a mesh that is explicit in part, JAX takes explicit axes in a reshard and auto axes in a
    constraint, and refuses each in the other.
    """
    wanted = set(axes)

    def part(names: Any) -> Any:
        kept = tuple(n for n in (names if isinstance(names, tuple) else (names,)) if n in wanted)
        return kept or None

    return PartitionSpec(*map(part, spec))


def frame_of(x: jax.Array, home: Home) -> Frame:
    typed = _jaxapi.explicit_spec(x)
    mesh, spec = typed if typed is not None else (None, None)
    constrain = None
    fits = x.shape == home.shape and not _jaxapi.manual_axes()
    if home.sharding is not None and fits and _needs_constraints(home.sharding):
        constrain = home.sharding
    return Frame(mesh, spec, constrain)


def _needs_constraints(sharding: Sharding) -> bool:
    """Whether it splits over axes that the types of arrays do not speak of."""
    if isinstance(sharding, NamedSharding) and not sharding.mesh.abstract_mesh.auto_axes:
        return False
    return len(sharding.device_set) > 1


def is_everywhere(x: jax.Array, home: Home) -> bool:
    """Whether every device is known to have all of ``x``."""
    typed = _jaxapi.explicit_spec(x)
    if home.sharding is not None and home.shape == x.shape:
        return home.sharding.is_fully_replicated
    return typed is not None and not any(typed[1]) and not typed[0].auto_axes


def read_spec(form: Form, sharding: NamedSharding) -> PartitionSpec:
    """How a read is split: as the array is along what it takes, where the lengths divide."""
    axes = split_axes(sharding, len(form.shape))
    return spec_where_divisible(
        form.result_shape,
        tuple(None if d is None else axes[d] for d in form.sources),
        dict(sharding.mesh.shape),
    )


def result_spec(frame: Frame, form: Form) -> PartitionSpec | None:
    if isinstance(frame.home, NamedSharding):
        return read_spec(form, frame.home)
    if frame.mesh is not None and frame.spec is not None:
        return read_spec(form, NamedSharding(frame.mesh, frame.spec))
    return PartitionSpec()


def integers(x: jax.Array) -> tuple[jax.Array, Any, Shape]:
    """An array, or for PRNG keys the integers they are made of; their ``impl``; its extra shape."""
    if not _cast.is_key(x.dtype):
        return x, None, ()
    data = jax.random.key_data(x)
    return data, jax.random.key_impl(x), data.shape[x.ndim :]


def fill_value(dtype: Any, fill: Any) -> Any:
    """What stands for elements out of range: JAX's choice for the dtype, or the user's."""
    if isinstance(fill, jax.Array):
        return fill.astype(dtype)
    if fill is not None:
        value = fill
    elif jnp.issubdtype(dtype, jnp.inexact):
        value = np.nan
    elif dtype == np.bool_:
        value = True
    else:
        info = jnp.iinfo(dtype)
        value = info.min if jnp.issubdtype(dtype, jnp.signedinteger) else info.max
    return np.asarray(value).astype(dtype)[()]


def operands(frame: Frame, selection: Selection) -> tuple[list[Any], list[Any], Any]:
    """Starts, index arrays and mask, each whole on every device."""

    def whole(x: Any) -> Any:
        return frame.gather(x) if isinstance(x, jax.Array) else x

    starts = [whole(s) for s in selection.starts]
    points = [whole(p) for p in selection.points]
    return starts, points, whole(selection.mask)


def place(x: jax.Array, sharding: Sharding) -> jax.Array:
    """``x`` constrained to ``sharding``, inside a trace."""
    if isinstance(sharding, NamedSharding):
        mesh = sharding.mesh.abstract_mesh
        if mesh.explicit_axes:
            x = _jaxapi.reshard(x, mesh, part_of(sharding.spec, mesh.explicit_axes))
        if not mesh.auto_axes:
            return x
        sharding = NamedSharding(sharding.mesh, part_of(sharding.spec, mesh.auto_axes))
    return lax.with_sharding_constraint(x, sharding)
