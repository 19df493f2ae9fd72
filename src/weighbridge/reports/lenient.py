"""Reads files that may be broken, for reports: an index as far as possible, and findings instead of exceptions."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError
from weighbridge.containers import reader
from weighbridge.containers.base import Finding, Index, Rule, Severity
from weighbridge.io.source import Source

#: Findings made from errors that end the reading of a file or a set: id -> severity, description.
ENDS: Final = MappingProxyType(
    {
        "FORMAT/broken": Rule(Severity.ERROR, "the rest can't be read (GGUF has a rule for each case)"),
        "FORMAT/unread": Rule(Severity.WARNING, "perhaps right, but of a kind that this version doesn't read"),
        "gguf/split": Rule(Severity.ERROR, "parts of a split that can't be one model"),
        "values/changed": Rule(Severity.ERROR, "file that changed while it was read"),
    }
)


def lenient(source: Source, form: str) -> tuple[Index | None, tuple[Finding, ...]]:
    """The index of a file as far as possible, and all of its container's findings."""
    try:
        index, findings = reader(form).examine(source)
    except FormatError as error:
        # GGUF's errors are rules of its table; other parsers just stop.
        return None, (broken(getattr(error, "rule", f"{form}/broken"), error, source.name),)
    except (UnsupportedError, RefusedError) as error:
        words = error.message.removeprefix(f"{source.name}: ")  # the finding has the place
        return None, (Finding(f"{form}/unread", Severity.WARNING, words, source.name, hint=error.hint),)
    return index, tuple(replace(f, path=f.path or source.name) for f in findings)


def broken(rule: str, error: FormatError, path: str) -> Finding:
    """An error of a parser as a finding."""
    words = str(FormatError(error.reason, expected=error.expected, found=error.found))
    return Finding(rule, Severity.ERROR, words, error.path or path, error.offset, error.field, error.hint)
