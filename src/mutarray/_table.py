"""Rows of text in columns, for a terminal and for a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence

Rows = Sequence[Sequence[str]]


def as_text(rows: Rows) -> str:
    """The rows one below the other, each column as wide as its widest entry."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(entry.ljust(width) for entry, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def as_html(rows: Rows) -> str:
    """The rows as an HTML table, of which the first is the head."""
    head, *body = [
        "".join(f"<{tag}>{html.escape(entry)}</{tag}>" for entry in row)
        for row, tag in zip(rows, ["th", *["td"] * (len(rows) - 1)], strict=True)
    ]
    lines = "".join(f"<tr>{line}</tr>" for line in body)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
