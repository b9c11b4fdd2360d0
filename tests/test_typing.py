"""What type checkers are told is what is there."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import jax
import pytest

import mutarray as mu
from mutarray import _methods, _operators, _signatures
from tests.typing import public_api

# Where the table passes on whatever it is given: JAX's own signature has no names to compare, or
# has other ones in some versions.
FREE = {"reshape", "transpose", "tobytes", "tolist", "byteswap"}

# What is told, and only there from this JAX on.
SINCE = {("take", "out_sharding"): (0, 12, 1)}


def told() -> dict[str, ast.stmt]:
    """The declarations of `_signatures`, by name."""
    tree = ast.parse(Path(inspect.getfile(_signatures)).read_text(encoding="utf-8"))
    cls = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    block = next(node for node in cls.body if isinstance(node, ast.If))
    names = (
        node.name if isinstance(node, ast.FunctionDef) else ast.unparse(node.target)
        for node in block.body
    )
    return dict(zip(names, block.body, strict=True))


def in_tables() -> set[str]:
    """The names that the class bodies take from tables: what type checkers do not look at."""
    found = set()
    for module in (_operators, _methods):
        tree = ast.parse(Path(inspect.getfile(module)).read_text(encoding="utf-8"))
        blocks = [
            n for n in ast.walk(tree) if isinstance(n, ast.If) and "not TYPE" in ast.unparse(n)
        ]
        for name in (n for block in blocks for n in ast.walk(block) if isinstance(n, ast.Name)):
            if isinstance(name.ctx, ast.Store):
                found.add(name.id)
    return found


def parameters(node: ast.FunctionDef) -> list[str]:
    args = node.args
    ways = [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs]
    return [arg.arg for arg in ways if arg is not None]


def test_every_name_of_the_tables_is_told_and_no_other() -> None:
    assert set(told()) == in_tables()


@pytest.mark.core
def test_the_parameters_are_those_that_are_told() -> None:
    for name, node in told().items():
        there = inspect.getattr_static(mu.MutableArray, name)
        if isinstance(there, property):
            assert [ast.unparse(d) for d in node.decorator_list] == ["property"], name
        elif not name.startswith("__") and name not in FREE:
            here = [
                p for p in parameters(node) if jax.__version_info__ >= SINCE.get((name, p), (0,))
            ]
            assert list(inspect.signature(there).parameters) == here, name


def test_nothing_is_told_at_run_time() -> None:
    assert {name for name in vars(_signatures.Signatures) if name in in_tables()} <= {"__hash__"}


def test_the_public_names_are_all_looked_at() -> None:
    source = Path(inspect.getfile(public_api)).read_text(encoding="utf-8")
    named = {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "mu"
    }
    assert set(mu.__all__) - named == set()


def test_what_type_checkers_are_shown_runs() -> None:
    public_api.everything()
    with pytest.raises((TypeError, ValueError, AttributeError)):
        public_api.refused(mu.zeros(3))
