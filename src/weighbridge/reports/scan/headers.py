"""Scans the headers of GGUF and safetensors files: names and texts that a terminal obeys, and chat templates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from weighbridge.containers.base import Index, Severity, Stage
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.reports.scan.archive.polyglots import letter_name, odd_letter
from weighbridge.reports.scan.model import Part, Piece, ScanFinding, escape
from weighbridge.reports.scan.template import scanner as templates

_SHOWN: Final = 10
# Characters that terminals obey or that reorder other characters. Newlines and tabs are normal in text.
_OBEYED: Final = frozenset("\x1b\x9b\x90\x9d\x07\x08\u202a\u202b\u202d\u202e\u2066\u2067\u2068")


def scan_gguf(part: Part) -> Iterator[Piece]:
    """Scans a GGUF's names, texts and chat templates, and checks that the file is complete."""
    index = gguf.parse(part.source, level="lenient")
    yield from _scan_header(index, part)
    for f in index.findings:  # the errors at which llama.cpp stops reading
        if f.severity is Severity.ERROR and gguf.RULES[f.rule].refused in (Stage.HEADER, Stage.DATA):
            yield part.finding("header/damaged", escape(f.message))
            break
    yield from _scan_templates(index, part, lambda key: key.startswith("tokenizer.chat_template"))


def scan_safetensors(part: Part) -> Iterator[Piece]:
    """Scans a safetensors file's names and metadata."""
    index = safetensors.parse_stored(part.source)
    yield from _scan_header(index, part)
    yield from _scan_templates(index, part, lambda key: "chat_template" in key)


def _scan_templates(index: Index, part: Part, is_template: Callable[[str], bool]) -> Iterator[ScanFinding]:
    for key, value in index.metadata.items():
        if is_template(key) and isinstance(value, str):
            yield from templates.check(value, part, escape(key))


def _scan_header(index: Index, part: Part) -> Iterator[ScanFinding]:
    part.budget.spend(members=1)
    consequence = "A tool that prints it unescaped shows whatever the file wants."
    names = [*(e.name for e in index.entries), *index.metadata]
    for name in [n for n in names if not n.isprintable() and odd_letter(n)][:_SHOWN]:
        message = f"the name {escape(name)} contains {letter_name(odd_letter(name))}"
        yield part.finding("header/odd-name", message, consequence=consequence)
    for key, text in index.metadata.items():
        letter = next((c for c in text if c in _OBEYED), "") if isinstance(text, str) and not text.isprintable() else ""
        if letter:
            message = f"the text of {escape(key)} contains {letter_name(letter)}"
            yield part.finding("header/odd-text", message, consequence=consequence)
