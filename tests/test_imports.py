"""The order of the files in docs/design.md, held by reading the source.

A file imports only from files above it, one file knows JAX's private parts, the core needs nothing
but JAX and NumPy, and no file or function grows past what fits in a head.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "mutarray"
SOURCE = Path(__file__).resolve().parent.parent / "src" / PACKAGE

# The core, first to last, and the rooms that stand on it. A room may be a package; inside one,
# files import from each other freely.
CORE = [
    "errors",
    "_types",
    "_guard",
    "_locks",
    "_jaxapi",
    "_cast",
    "_layout",
    "_items",
    "_form",
    "_select",
    "_plan",
    "_combine",
    "_rounds",
    "_points",
    "_kernels",
    "_frames",
    "_gather",
    "_exact",
    "_order",
    "_lanes",
    "_owners",
    "_traced",
    "_buffers",
    "_general",
    "_values",
    "_eager",
    "_boxes",
    "_quick",
    "_masked",
    "_place",
    "_reshard",
    "_cell",
    "_trace_cells",
    "_ops",
    "_apply",
    "_repr",
    "_table",
    "_handle",
    "_inplace",
    "_pickled",
    "_signatures",
    "_operators",
    "_placement",
    "_show",
    "_methods",
    "_numpy",
    "_array",
    "_verbs",
    "_create",
    "_born",
    "functional",
    "_explain",
    "_signature",
    "_results",
    "_program",
    "_jit",
    "_transaction",
    "_state",
    "__init__",
]
ROOMS = ["demo", "doctor", "cli", "__main__"]
ORDER = {name: rank for rank, name in enumerate(CORE + ROOMS)}

THE_DOOR = "_jaxapi"
PRIVATE_JAX = ("jax._src", "jax.extend", "jax.experimental", "jax.__version__", "jaxlib")
CORE_NEEDS = sys.stdlib_module_names | {"jax", "numpy", PACKAGE}
# Methods of the array draw with what is optional: one file may import it, when it is used.
CORE_USES = {"_show": {"treescope"}}

LONGEST_FILE = 400
LONGEST_FUNCTION = 60

Function = ast.FunctionDef | ast.AsyncFunctionDef


def imports(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields the line and the full name of everything that is imported anywhere under a node."""
    for child in ast.walk(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield child.lineno, alias.name
        elif isinstance(child, ast.ImportFrom):
            source = child.module or ""
            for alias in child.names:
                yield child.lineno, "." * child.level + f"{source}.{alias.name}".strip(".")


def is_under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def own_module(name: str) -> str | None:
    """Returns which module of mutarray an imported name belongs to; None for other packages."""
    if not is_under(name, PACKAGE):
        return None
    parts = name.split(".")
    # `from mutarray import zeros` asks the package, `from mutarray import _plan` a module in it.
    return parts[1] if len(parts) > 1 and parts[1] in ORDER else "__init__"


def order_faults(module: str, tree: ast.Module) -> Iterator[str]:
    if module not in ORDER:
        yield f"{module} is not in the order of files: add it to the design and to this test"
        return
    for line, name in imports(tree):
        if name.startswith("."):
            yield f"line {line}: {name} is relative: write the full name"
        other = own_module(name)
        if other is None or other == module:
            continue
        if ORDER[other] >= ORDER[module]:
            yield f"line {line}: {name} is in {other}, which is not above {module}"
    for function in (node for node in ast.walk(tree) if isinstance(node, Function)):
        for line, name in imports(function):
            if own_module(name):
                yield f"line {line}: {name} is imported inside {function.name}"


def door_faults(module: str, tree: ast.Module) -> Iterator[str]:
    if module == THE_DOOR:
        return
    named = list(imports(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            named.append((node.lineno, ast.unparse(node)))
    for line, name in named:
        for private in PRIVATE_JAX:
            if is_under(name, private):
                yield f"line {line}: {name} may be named in {THE_DOOR} only"


def need_faults(module: str, tree: ast.Module) -> Iterator[str]:
    if module not in CORE:
        return
    functions = (node for node in ast.walk(tree) if isinstance(node, Function))
    when_used = {line for function in functions for line, _ in imports(function)}
    for line, name in imports(tree):
        package = name.split(".")[0]
        if line in when_used and package in CORE_USES.get(module, ()):
            continue
        if package and package not in CORE_NEEDS:
            yield f"line {line}: the core does without {package}"


def size_faults(tree: ast.Module, lines: int) -> Iterator[str]:
    if lines > LONGEST_FILE:
        yield f"{lines} lines: more than {LONGEST_FILE}"
    for node in ast.walk(tree):
        if isinstance(node, Function):
            length = node.end_lineno - node.lineno + 1
            if length > LONGEST_FUNCTION:
                yield f"line {node.lineno}: {node.name} has {length} lines, not {LONGEST_FUNCTION}"


def faults(module: str, source: str) -> list[str]:
    tree = ast.parse(source)
    return [
        *order_faults(module, tree),
        *door_faults(module, tree),
        *need_faults(module, tree),
        *size_faults(tree, len(source.splitlines())),
    ]


def module_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda path: path.relative_to(SOURCE).as_posix()
)
def test_file_keeps_the_rules(path):
    assert faults(module_of(path), path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("room", ROOMS)
def test_the_core_does_without_the_rooms(room):
    assert all(ORDER[room] > ORDER[module] for module in CORE)


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("_plan", "from mutarray._cell import Cell", "not above _plan"),
        ("_plan", "import mutarray._cell", "not above _plan"),
        ("_plan", "from mutarray import _cell", "not above _plan"),
        ("_array", "import mutarray as mu", "in __init__, which is not above _array"),
        ("_array", "from mutarray import zeros", "in __init__, which is not above _array"),
        ("_plan", "from . import _select", "relative"),
        ("_plan", "from ._select import select", "relative"),
        ("_new", "", "not in the order"),
        ("_ops", "def f():\n    from mutarray import _plan", "inside f"),
        ("_plan", "import jax._src.core", "_jaxapi only"),
        ("_plan", "from jax._src import core", "_jaxapi only"),
        ("_plan", "from jax import _src", "_jaxapi only"),
        ("_plan", "import jax\nx = jax.experimental.foo.bar", "_jaxapi only"),
        ("cli", "from jax.extend import core", "_jaxapi only"),
        ("_plan", "import jax\nx = jax.__version__ > '1'", "_jaxapi only"),
        ("_plan", "import scipy.special", "without scipy"),
        ("_plan", "def f():\n    import rich", "without rich"),
        ("_plan", "def f():\n    import treescope", "without treescope"),
        ("_show", "import treescope", "without treescope"),
        ("_show", "def f():\n    import scipy", "without scipy"),
        ("_plan", "\n" * 401, "more than 400"),
        ("_plan", "def f():\n" + "    x = 1\n" * 60, "f has 61 lines"),
        ("_plan", "class A:\n  async def g(self):\n" + "    x = 1\n" * 60, "g has 61 lines"),
    ],
)
def test_a_fault_is_found(module, source, fault):
    assert any(fault in found for found in faults(module, source))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("_jaxapi", "from jax._src import core\nfrom jax.extend import backend"),
        ("_ops", "import numpy as np\nfrom mutarray import _plan\nfrom mutarray._eager import run"),
        ("_show", "def f():\n    from treescope import rendering_parts"),
        ("cli", "import rich\nimport mutarray as mu\nfrom mutarray.demo import digits"),
        ("demo", "from mutarray.demo.checks import Check\nfrom mutarray import zeros"),
        ("_plan", "def f():\n" + "    x = 1\n" * 59),
    ],
)
def test_what_keeps_the_rules_passes(module, source):
    assert faults(module, source) == []
