"""Reads files that may be broken, for reports: returns a partial index, and findings instead of exceptions."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError
from weighbridge.containers import reader
from weighbridge.containers.base import Finding, Index, Rule, Severity
from weighbridge.io.source import Source

#: The rules of findings for errors that end the reading of a file or a set.
ENDS: Final = MappingProxyType(
    {
        "FORMAT/broken": Rule(Severity.ERROR, "the rest can't be read (GGUF has a rule for each case)"),
        "FORMAT/unread": Rule(Severity.WARNING, "possibly valid, but of a kind that this version doesn't read"),
        "gguf/split": Rule(Severity.ERROR, "parts of a split that don't form one model"),
        "values/changed": Rule(Severity.ERROR, "the file changed while it was read"),
    }
)


def lenient(source: Source, form: str) -> tuple[Index | None, tuple[Finding, ...]]:
    """Returns the readable part of a file's index, and all findings of its container."""
    try:
        index, findings = reader(form).examine(source)
    except FormatError as error:
        # GGUF's errors have rules; other parsers only stop.
        return None, (broken(getattr(error, "rule", f"{form}/broken"), error, source.name),)
    except (UnsupportedError, RefusedError) as error:
        message = error.message.removeprefix(f"{source.name}: ")  # the finding has the place
        return None, (Finding(f"{form}/unread", Severity.WARNING, message, source.name, hint=error.hint),)
    return index, tuple(replace(f, path=f.path or source.name) for f in findings)


def broken(rule: str, error: FormatError, path: str) -> Finding:
    """Returns an error of a parser as a finding."""
    message = str(FormatError(error.reason, expected=error.expected, found=error.found))
    return Finding(rule, Severity.ERROR, message, error.path or path, error.offset, error.field, error.hint)
