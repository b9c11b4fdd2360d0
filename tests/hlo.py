"""Reads compiled programs: what they communicate, copy and allocate."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
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


_OPENING = re.compile(r"^(?:ENTRY )?%?(\S+) \(.*\{$")
_CALLS = re.compile(
    r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.-]+)"
    r"|\bbranch_computations=\{([^}]*)\}"
)
_LOOP = re.compile(r"\bcondition=%?([\w.-]+), body=%?([\w.-]+)")

# What gives as many bytes as a block without touching more than a part of it, and names for it.
IN_PLACE = (
    "bitcast",
    "call",
    "conditional",
    "dynamic-update-slice",
    "fusion",  # what is in it is looked at by itself
    "get-tuple-element",
    "opt-barrier",
    "parameter",
    "scatter",
    "tuple",
    "while",
)


class Instruction(NamedTuple):
    """One line of a program: what it does, and the bytes that it gives on one device."""

    name: str
    nbytes: int


def instructions(compiled: Any) -> list[Instruction]:
    """The instructions of a compiled program, those inside fusions and loops included."""
    return _instructions(compiled.as_text().splitlines())


def _instructions(lines: Iterable[str]) -> list[Instruction]:
    found = []
    for line in lines:
        match = _RESULT.search(line)
        if match:
            found.append(Instruction(match[2].removesuffix("-start"), _nbytes(match[1])))
    return found


def _computations(compiled: Any) -> dict[str, list[str]]:
    """The lines of each computation of a program, by its name."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in compiled.as_text().splitlines():
        match = _OPENING.match(line)
        if match:
            lines = found.setdefault(match[1], [])
        else:
            lines.append(line)
    return found


def in_loops(compiled: Any) -> list[Instruction]:
    """The instructions that run once in each round of a loop, with those of what it calls."""
    computations = _computations(compiled)
    text = compiled.as_text()
    waiting = [name for pair in _LOOP.findall(text) for name in pair]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for one, several in _CALLS.findall("\n".join(computations[name])):
            waiting += [n.strip().removeprefix("%") for n in (one or several).split(",")]
    return _instructions(line for name in seen for line in computations[name])


def rewrites_in_loops(compiled: Any, nbytes: int) -> list[Instruction]:
    """What goes through so many bytes in each round of a loop: copies, and whatever else."""
    return [i for i in in_loops(compiled) if i.nbytes >= nbytes and i.name not in IN_PLACE]


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
