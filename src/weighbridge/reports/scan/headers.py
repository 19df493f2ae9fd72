"""Looks at GGUF and safetensors: names and texts in their headers that a terminal obeys, and chat templates."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.containers.base import Finding, Index, Severity, Stage
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.io.source import Source
from weighbridge.reports.scan.archive.polyglots import odd_letters
from weighbridge.reports.scan.model import (
    Budget,
    MemberPath,
    Piece,
    ScanFinding,
    ScanRule,
    ScanVerdict,
    escape,
    finding,
)
from weighbridge.reports.scan.template import scanner as templates

RULES: Final[Mapping[str, ScanRule]] = MappingProxyType(
    {
        "header/odd-name": ScanRule(ScanVerdict.MALFORMED, "tensor or key whose name has control characters in it"),
        "header/odd-text": ScanRule(
            ScanVerdict.MALFORMED, "text in the metadata with the escape sequences of a terminal"
        ),
        "header/damaged": ScanRule(ScanVerdict.MALFORMED, "GGUF that is cut off, or whose header no reader takes"),
    }
)
_SHOWN: Final = 10
_TEMPLATE: Final = "tokenizer.chat_template"
# What terminals obey, and what turns the order of letters round. Newlines and tabs are honest in a text.
_OBEYED: Final = frozenset("\x1b\x9b\x90\x9d\x07\x08\u202a\u202b\u202d\u202e\u2066\u2067\u2068")


def scan_gguf(source: Source, place: MemberPath, budget: Budget) -> Iterator[Piece]:
    """A GGUF's names, texts and chat templates, and whether all of it is there."""
    index = gguf.parse(source, level="lenient")
    yield from _header(index, source, place, budget)
    yield from (finding(RULES, "header/damaged", source, place, escape(f.message)) for f in _damage(index)[:1])
    for key, value in index.metadata.items():
        if key.startswith(_TEMPLATE) and isinstance(value, str):
            yield from templates.check(value, source, place, escape(key))


def _damage(index: Index) -> list[Finding]:
    """The errors at which llama.cpp stops reading."""
    stops = (Stage.HEADER, Stage.DATA)
    return [f for f in index.findings if f.severity is Severity.ERROR and gguf.RULES[f.rule].refused in stops]


def scan_safetensors(source: Source, place: MemberPath, budget: Budget) -> Iterator[Piece]:
    """A safetensors file's names and metadata."""
    index = safetensors.parse(source)
    yield from _header(index, source, place, budget)
    for key, value in index.metadata.items():
        if "chat_template" in key and isinstance(value, str):
            yield from templates.check(value, source, place, escape(key))


def _header(index: Index, source: Source, place: MemberPath, budget: Budget) -> Iterator[ScanFinding]:
    budget.spend(members=1)
    names = [*(e.name for e in index.entries), *index.metadata]
    for name in [n for n in names if not n.isprintable() and odd_letters(n)][:_SHOWN]:
        yield _odd("header/odd-name", f"the name {escape(name)}", odd_letters(name), source, place)
    texts = [(k, v) for k, v in index.metadata.items() if isinstance(v, str)]
    for key, text in texts:
        odd = next((c for c in text if c in _OBEYED), "") if not text.isprintable() else ""
        if odd:
            yield _odd("header/odd-text", f"the text of {escape(key)}", odd, source, place)


def _odd(rule: str, what: str, odd: str, source: Source, place: MemberPath) -> ScanFinding:
    letter = unicodedata.name(odd, "a control character").lower()
    words = f"{what} has {letter} (U+{ord(odd):04X}) in it"
    return finding(RULES, rule, source, place, words, consequence="A tool that prints it as it is shows what it wants.")
