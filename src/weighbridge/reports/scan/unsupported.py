"""Kinds that aren't scanned, each with the reason. Some are searched for known harmful bytes all the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.base.limits import MIB
from weighbridge.reports.scan.model import Part, Piece

_SEARCHED: Final = 64 * MIB
#: Kind -> why it isn't scanned.
WHY: Final[Mapping[str, str]] = MappingProxyType(
    {
        "rar": "archives of this kind aren't unpacked: unpack it and scan the folder",
        "tf-savedmodel": "the graph isn't read; operators such as ReadFile and PyFunc access files or run Python",
        "onnx": "the operators aren't read; they may come from libraries",
        "tflite": "the operators aren't read", "executorch": "the program isn't read",
        "coreml": "the model's program isn't read",
        "llamafile": "it is a program; extract its model and scan that",
        "executable": "machine code isn't read",
        "sqlite": "databases aren't read", "pdf": "documents aren't read", "modelfile": "it names other files",
    }
)  # fmt: skip
_OPERATORS: Final = re.compile(rb"\b(?:ReadFile|WriteFile|MatchingFiles|EagerPyFunc|PyFunc|PyFuncStateless)\b")


def scan(kind: str, part: Part) -> Iterator[Piece]:
    """Reports that a file isn't scanned, and signs of harm in its bytes."""
    yield part.skipped(kind, WHY[kind])
    if kind == "executable":
        yield part.finding("file/program", "a program or library",
                           consequence="Whoever starts it or loads it as a library runs it.")  # fmt: skip
    if kind == "tf-savedmodel":
        size = min(part.source.size, _SEARCHED, part.budget.nbytes)
        part.budget.spend(size)
        if match := _OPERATORS.search(part.source.read(0, size)):
            yield part.finding("savedmodel/operator", "an operator that accesses files or runs Python",
                               at=match.start(), consequence="The graph runs it when called.")  # fmt: skip
