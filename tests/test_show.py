"""`m.visualize()`: JAX's picture, of any number of axes, drawn without touching the contents.

What treescope shows is in interop/test_treescope.py.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding

import mutarray as mu
from mutarray.errors import MissingLibraryError, TraceError
from tests.support import KINDS, P, layouts, mesh

pytestmark = pytest.mark.core

PLAIN = {"use_color": False, "scale": 0.4}


def picture(capsys: Any, m: mu.MutableArray) -> str:
    m.visualize(**PLAIN)
    return capsys.readouterr().out


def jaxs_picture(capsys: Any, shape: tuple[int, ...], sharding: Any) -> str:
    jax.debug.visualize_sharding(shape, sharding, **PLAIN)
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    [
        name
        for name, (shape, _) in layouts(KINDS["auto"]).items()
        if 1 <= len(shape) <= 2 and 0 not in shape
    ],
)
def test_one_and_two_axes_are_as_jax_draws_them(capsys: Any, name: str, kind: str) -> None:
    shape, sharding = layouts(KINDS[kind])[name]
    expected = jaxs_picture(capsys, shape, sharding)
    assert "CPU 0" in expected
    assert picture(capsys, mu.zeros(shape, sharding=sharding)) == expected


def test_more_axes_are_drawn_by_the_parts_of_the_leading_ones(capsys: Any) -> None:
    cube = mesh((2, 2, 2), "xyz")
    shown = picture(capsys, mu.zeros((6, 4, 8), sharding=NamedSharding(cube, P("x", "y", "z"))))
    expected = ""
    for k in range(2):
        face = NamedSharding(Mesh(cube.devices[k], ("y", "z")), P("y", "z"))
        expected += f"[{3 * k}:{3 * k + 3}, ...]\n" + jaxs_picture(capsys, (4, 8), face)
    assert shown == expected


def test_four_axes(capsys: Any) -> None:
    cube = mesh((2, 2, 2), "xyz")
    shown = picture(
        capsys, mu.zeros((2, 4, 4, 3), sharding=NamedSharding(cube, P("z", "x", None, None)))
    )
    expected = ""
    for z in range(2):
        for x in range(2):
            held = NamedSharding(Mesh(cube.devices[x, :, z], "y"), P())
            expected += f"[{z}:{z + 1}, {2 * x}:{2 * x + 2}, ...]\n"
            expected += jaxs_picture(capsys, (4, 3), held)
    assert shown == expected


def test_leading_axes_that_are_whole_take_one_picture(capsys: Any) -> None:
    s = NamedSharding(mesh((4, 2), "ij"), P(None, "i", "j"))
    rows = NamedSharding(s.mesh, P("i", "j"))
    shown = picture(capsys, mu.zeros((100, 4, 8), sharding=s))
    assert shown == "[0:100, ...]\n" + jaxs_picture(capsys, (4, 8), rows)


def test_where_there_is_nothing_to_draw_a_line_says_so(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    s = NamedSharding(mesh((2, 2), "ij"), P())
    assert picture(capsys, mu.mutable_array(np.float32(1), s)) == (
        "float32[] has one element, and nothing is split; on devices 0, 1, 2, 3\n"
    )
    assert picture(capsys, mu.zeros((4, 0), int, sharding=s)) == (
        "int32[4, 0] has no elements, and nothing is split; on devices 0, 1, 2, 3\n"
    )


def test_needs_no_contents(capsys: Any) -> None:
    m = mu.zeros((8, 4), sharding=NamedSharding(mesh((4,), "d"), P("d")))
    before = picture(capsys, m)
    mu.freeze(m)
    assert picture(capsys, m) == before


def test_in_a_trace(capsys: Any) -> None:
    m = mu.zeros((8, 4), sharding=NamedSharding(mesh((4,), "d"), P("d")))
    before = picture(capsys, m)
    jax.jit(lambda m: m.visualize(**PLAIN))(m)
    assert capsys.readouterr().out == before
    with pytest.raises(TraceError, match=r"not known on which devices the array float32\[4\] lies"):
        jax.jit(lambda m: mu.mutable_array(m[0]).visualize())(m)


def test_without_rich(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    m = mu.zeros(3)
    with pytest.raises(MissingLibraryError) as caught:
        m.visualize()
    assert isinstance(caught.value, ImportError) and str(caught.value) == (
        "m.visualize() draws with rich, which is not installed: pip install 'mutarray[show]', or "
        "print m.layout(), which needs nothing"
    )
    assert m.layout().rows[0].box == ((0, 3),)


def test_a_wrong_option_is_an_error() -> None:
    with pytest.raises(TypeError, match="colour"):
        mu.zeros(3).visualize(colour=True)


def test_a_notebook_without_treescope_shows_the_text(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "treescope", None)
    assert mu.zeros(3)._repr_html_() is None
