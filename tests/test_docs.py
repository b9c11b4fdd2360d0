"""Runs every Python block of README.md and of docs/*.md.

The blocks of one page run one after the other and share their names, as a reader would type them. A
block under a comment `<!-- no-run: reason -->` is compiled and not run. A text block right after a
block that runs is what that block prints; where its lines break plays no part.
"""

import contextlib
import io
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(
    r"^(?P<indent> *)```python[^\n]*\n(?P<code>.*?)^(?P=indent)```\s*?$", re.M | re.S
)
OUTPUT = re.compile(r"\s*```text\n(?P<text>.*?)^ *```\s*?$", re.M | re.S)
NO_RUN = re.compile(r"<!-- no-run: *\S.*?-->\s*\Z", re.S)


@dataclass(frozen=True)
class Block:
    line: int
    code: str
    runs: bool
    prints: str | None = None


def blocks(text: str) -> list[Block]:
    """Finds the Python blocks of a page, with the line that each begins on."""
    found = []
    for match in FENCE.finditer(text):
        indent = len(match["indent"])
        code = "".join(line[indent:] or "\n" for line in match["code"].splitlines(keepends=True))
        line = text.count("\n", 0, match.start("code")) + 1
        output = OUTPUT.match(text, match.end())
        prints = output["text"] if output else None
        found.append(Block(line, code, not NO_RUN.search(text[: match.start()]), prints))
    return found


def run(page: str, text: str) -> dict[str, object]:
    """Runs the blocks of a page and returns the names that they leave."""
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(text):
        # The empty lines make a traceback name the line of the page.
        code = compile("\n" * (block.line - 1) + block.code, page, "exec")
        if block.runs and block.prints is None:
            exec(code, names)
        elif block.runs:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(code, names)
            assert printed.getvalue().split() == block.prints.split(), f"{page}:{block.line}"
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_runs(page):
    run(str(page), page.read_text(encoding="utf-8"))


SAMPLE = """
# A page

```python
x = [1]
```

<!-- no-run: shows what fails -->
```python
x.append(undefined)
```

- in a list:

  ```python
  if x:
      x.append(2)
  ```

And text:

```text
not python
```
"""


def test_blocks_share_their_names_and_no_run_is_not_run():
    assert [(block.line, block.runs) for block in blocks(SAMPLE)] == [
        (5, True),
        (10, False),
        (16, True),
    ]
    assert run("sample", SAMPLE)["x"] == [1, 2]


def test_what_a_block_prints_is_what_the_page_shows():
    page = "```python\nprint('a  b')\nprint('c')\n```\n\n```text\na b\nc\n```\n"
    run("sample", page)
    for other in ("a b", "a b\nd"):
        with pytest.raises(AssertionError, match="sample:2"):
            run("sample", page.replace("a b\nc\n", other + "\n"))
    run("sample", page.replace("\n\n```text", "\n\nOf another sort:\n\n```text\nnot"))


def test_a_wrong_block_fails_with_the_line_of_the_page():
    with pytest.raises(ZeroDivisionError) as caught:
        run("sample", SAMPLE + "\n```python\nx = 1\n1 / 0\n```\n")
    assert str(caught.traceback[-1].path) == "sample"
    assert caught.traceback[-1].lineno + 1 == SAMPLE.count("\n") + 4


@pytest.mark.parametrize("reason", ["", "<!-- no-run: -->\n", "<!-- no-run: why -->\n\nMore.\n\n"])
def test_a_block_runs_unless_a_reason_stands_right_above_it(reason):
    with pytest.raises(NameError):
        run("sample", f"{reason}```python\nundefined\n```\n")


def test_a_block_that_is_not_run_is_compiled():
    with pytest.raises(SyntaxError):
        run("sample", "<!-- no-run: why -->\n```python\nx = \n```\n")
