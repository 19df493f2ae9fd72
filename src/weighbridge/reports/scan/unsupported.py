"""Kinds that aren't scanned, each with the reason; of some, what their bytes tell all the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.limits import MIB
from weighbridge.io.source import Source
from weighbridge.reports.scan.model import Budget, MemberPath, Piece, Scanner, ScanRule, ScanVerdict, Skipped, finding

RULES: Final[Mapping[str, ScanRule]] = MappingProxyType(
    {
        "file/program": ScanRule(ScanVerdict.UNKNOWN_CODE, "program or library of the machine's own code"),
        "onnx/outside": ScanRule(ScanVerdict.DANGEROUS, "ONNX tensor whose data is a file outside the folder"),
        "savedmodel/operator": ScanRule(ScanVerdict.DANGEROUS, "SavedModel operator that touches files or runs Python"),
    }
)
_SEARCHED: Final = 64 * MIB
_PACKED: Final = "this kind of archive is not unpacked: unpack it and scan the folder"
#: Kind -> why it isn't scanned.
WHY: Final[Mapping[str, str]] = MappingProxyType(
    {
        "7z": _PACKED, "rar": _PACKED,
        "tf-savedmodel": "the graph is not read; operators such as ReadFile and PyFunc touch files or run Python",
        "onnx": "the graph is not read; tensors may lie in files elsewhere, operators may come from libraries",
        "tflite": "the operators are not read", "executorch": "the program is not read",
        "coreml": "the model's program is not read",
        "llamafile": "it is a program; the model in it can be scanned when it is taken out",
        "executable": "machine code is not read",
        "sqlite": "databases are not read", "pdf": "documents are not read", "modelfile": "it names other files",
    }
)  # fmt: skip


class _Sign(NamedTuple):
    """Files of `kind` that contain `pattern` break `rule`."""

    kind: str
    pattern: re.Pattern[bytes]
    rule: str
    words: str
    consequence: str


_SIGNS: Final = (
    _Sign("onnx", re.compile(rb"location\x12.(?:/|\.\./|[A-Za-z]:|[^\0]{0,200}/\.\./)", re.DOTALL), "onnx/outside",
          "tensor data in a file outside the folder", "Loaders read that file as weights."),
    _Sign("tf-savedmodel", re.compile(rb"\b(?:ReadFile|WriteFile|MatchingFiles|EagerPyFunc|PyFunc|PyFuncStateless)\b"),
          "savedmodel/operator", "an operator that touches files or runs Python", "The graph runs it when called."),
)  # fmt: skip


def of(kind: str) -> Scanner:
    """The scanner of a kind in `WHY`."""
    return partial(scan, kind)


def scan(kind: str, source: Source, place: MemberPath, budget: Budget) -> Iterator[Piece]:
    """Reports that a file isn't scanned, and the signs of harm that its bytes show all the same."""
    yield Skipped(place.path, place.members, kind, WHY[kind])
    if kind == "executable":
        yield finding(RULES, "file/program", source, place, "a program or library", consequence="Whoever starts it or "
                    "loads it as a library runs it.")  # fmt: skip
    for sign in _SIGNS:
        if sign.kind == kind:
            yield from _signed(sign, source, place, budget)


def _signed(sign: _Sign, source: Source, place: MemberPath, budget: Budget) -> Iterator[Piece]:
    size = min(source.size, _SEARCHED, budget.nbytes)
    budget.spend(size)
    match = sign.pattern.search(source.read(0, size))
    if match is not None:
        yield finding(RULES, sign.rule, source, place, sign.words, at=match.start(), consequence=sign.consequence)
