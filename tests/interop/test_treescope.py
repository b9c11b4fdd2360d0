"""treescope shows mutable arrays, alone and in trees, and fetches no more than it shows."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import treescope
from jax.sharding import NamedSharding
from treescope.type_registries import lookup_ndarray_adapter

import mutarray as mu
from mutarray import _jaxapi, _ops
from tests.support import KINDS, P, mesh

DRAWN = 4000
"""The most elements that treescope draws."""


def split(shape: tuple[int, ...], *spec: Any, dtype: Any = np.float32, **kwargs: Any) -> Any:
    x = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    return mu.mutable_array(x, NamedSharding(mesh((4, 2), "ij"), P(*spec), **kwargs))


def drawn(tree: Any) -> str:
    with treescope.active_autovisualizer.set_scoped(treescope.ArrayAutovisualizer()):
        return treescope.render_to_html(tree, compressed=False)


def pointers(m: mu.MutableArray) -> list[int]:
    return [block.unsafe_buffer_pointer() for block in _jaxapi.blocks(m._cell.array())]


@pytest.mark.parametrize("kind", KINDS)
def test_draws_values_and_layout(kind: str) -> None:
    m = mu.zeros((8, 4), sharding=NamedSharding(mesh((4, 2), "ij", KINDS[kind]), P("i", "j")))
    html = drawn(m)
    assert "float32[8, 4], P('i', 'j') on Mesh('i': 4, 'j': 2), device" in html.replace(
        "&#x27;", "'"
    )
    assert "Sharded across 8 CPU devices" in html and "arrayviz" in html
    # What draws it is not there a second time, as the HTML of the object in a frame.
    assert "Rich HTML" not in html and not callable(type(m)._repr_html_)


def test_is_what_a_notebook_shows() -> None:
    html = split((8, 4), "i", "j")._repr_html_()
    assert html is not None and "treescope" in html


def test_in_a_tree() -> None:
    m = split((8, 4), "i", "j")
    tree = {"w": m, "b": [jnp.ones(3), m.copy()]}
    line = f"<{m!r}>"
    text = treescope.render_to_text(tree)
    assert text.count(line) == 2 and "\n" not in treescope.render_to_text(m).strip()
    assert "CPU 7" in treescope.render_to_html(tree, compressed=False)  # the layout, to open
    assert drawn(tree).count("Sharded across 8 CPU devices") == 2
    assert "Repeated" in treescope.render_to_text([m, m])  # a write to one is seen in the other


@pytest.mark.parametrize("memory", ["device", "pinned_host"])
@pytest.mark.parametrize("shape", [(5, 7), (600, 7), (300, 20, 40), (9000,)])
def test_draws_the_elements_at_the_edges(shape: tuple[int, ...], memory: str) -> None:
    m = mu.mutable_array(
        np.random.default_rng(0).normal(size=shape).astype(np.float32),
        NamedSharding(mesh((1,), "d"), P(), memory_kind=memory),
    )
    x = np.asarray(m[...])
    adapter, theirs = lookup_ndarray_adapter(m), lookup_ndarray_adapter(x)
    assert adapter is not None and theirs is not None and adapter.should_autovisualize(m)
    edges = tuple(None if n < 30 else 6 for n in shape)
    for mask in (None, x > 0):
        data, there = adapter.get_array_data_with_truncation(m, mask, edges)
        expected, shown = theirs.get_array_data_with_truncation(x, mask, edges)
        assert np.array_equal(there, shown)
        assert np.array_equal(np.where(there, data, 0), np.where(shown, expected, 0))


def test_fetches_what_it_draws_and_leaves_the_array_in_place(monkeypatch: Any) -> None:
    s = NamedSharding(mesh((4, 2), "ij"), P("i", "j"))
    m = mu.zeros((1024, 1024), jnp.int8, sharding=s)
    m[0, 0] = 2  # its buffers are XLA's own from here on
    before, fetched, get = pointers(m), [], _ops.get

    def counted(*args: Any, **kwargs: Any) -> jax.Array:
        fetched.append(get(*args, **kwargs))
        return fetched[-1]

    def refused(*args: Any) -> None:
        raise AssertionError("the array as a whole was asked for")

    monkeypatch.setattr(_ops, "get", counted)
    monkeypatch.setattr(type(m._cell), "snapshot", refused)
    monkeypatch.setattr(type(m._cell), "_lend_copy", refused)
    assert m._repr_html_() and m.layout()._repr_html_() and treescope.render_to_text([m])
    assert 0 < sum(part.size for part in fetched) <= DRAWN
    m[0, 0] = 1
    assert pointers(m) == before


@pytest.mark.parametrize(
    "dtype", ["bool", "int4", "uint8", "bfloat16", "float8_e4m3fn", "float16", "complex64"]
)
def test_dtypes(dtype: str) -> None:
    html = drawn(split((8, 4), "i", dtype=jnp.dtype(dtype)))
    assert f"{dtype}[8, 4]" in html and ("Sharded across" in html) == (dtype != "complex64")


def test_what_is_not_drawn_is_a_line() -> None:
    """No elements, one element, keys, and arrays that are read only as a whole."""
    spent = split((8, 4), "i")
    mu.freeze(spent)
    gspmd = _jaxapi.GSPMDSharding(
        tuple(jax.devices()), split((8,), "i").sharding._to_xla_hlo_sharding(1)
    )
    keys = mu.mutable_array(jax.random.split(jax.random.key(0), 4))
    for m in (split((0, 4), "i"), split(()), keys, spent, mu.mutable_array(np.zeros(8), gspmd)):
        assert treescope.render_to_text(m).strip() == f"<{m!r}>"
        assert "Sharded across" not in drawn(m) and m._repr_html_()


def test_in_a_trace() -> None:
    seen: list[str] = []

    def look(m: mu.MutableArray) -> None:
        seen.append(drawn(m) + treescope.render_to_text(m))
        k = mu.mutable_array(m[0])
        seen.append(drawn(k) + treescope.render_to_text(k))

    m = split((8, 4), "i")
    jax.jit(look)(m)
    jax.jit(lambda: seen.append(drawn(m)))()
    assert all(re.search(r"float32\[(8, )?4\].*traced", text) for text in seen)


def test_what_a_tree_transformation_left_is_a_line() -> None:
    hollow = jax.tree.map(lambda x: "gone", split((8, 4), "i"))
    assert treescope.render_to_text(hollow).strip() == "<MutableArray(<str>)>"
    assert hollow._repr_html_()
