"""Reads compiled programs: what they communicate, copy and allocate."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)

_BITS = {"pred": 8, "s4": 4, "u4": 4, "bf16": 16, "f8": 8, "c64": 64, "c128": 128}
_SHAPE = re.compile(r"\b(pred|bf16|[suf]\d+|c64|c128|f8\w+)\[([\d,]*)\]")
_RESULT = re.compile(r"=\s*(\(.*?\)|\S+)\s+([a-z][a-z0-9-]*)\(")


class Instruction(NamedTuple):
    """One line of a program: what it does, and the bytes that it gives on one device."""

    name: str
    nbytes: int


def instructions(compiled: Any) -> list[Instruction]:
    """The instructions of a compiled program, those inside fusions and loops included."""
    found = []
    for line in compiled.as_text().splitlines():
        match = _RESULT.search(line)
        if match:
            found.append(Instruction(match[2].removesuffix("-start"), _nbytes(match[1])))
    return found


def _nbytes(text: str) -> int:
    total = 0
    for kind, dims in _SHAPE.findall(text):
        bits = _BITS.get(kind) or int(re.sub(r"\D", "", kind[:3]) or 8)
        total += math.prod(int(d) for d in dims.split(",") if d) * bits // 8
    return total


def collectives(compiled: Any) -> list[Instruction]:
    """What the devices send to each other."""
    return [i for i in instructions(compiled) if i.name in COLLECTIVES]


def copies(compiled: Any) -> list[Instruction]:
    """What is copied on a device, by itself or in a fusion."""
    return [i for i in instructions(compiled) if i.name == "copy"]


def temporary(compiled: Any) -> int:
    """The bytes that a device needs besides arguments and results."""
    return compiled.memory_analysis().temp_size_in_bytes


def aliased(compiled: Any) -> int:
    """The bytes of arguments on a device whose buffers become results."""
    return compiled.memory_analysis().alias_size_in_bytes
