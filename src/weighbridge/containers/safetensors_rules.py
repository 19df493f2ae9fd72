"""The rules of safetensors as a table, and what a broken one looks like before it becomes an error or a finding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError
from weighbridge.containers.base import Finding, Severity


class Rule(NamedTuple):
    """`severity` ERROR: the reference refuses. `spec`: the README forbids what the reference accepts."""

    severity: Severity
    spec: bool = False


_ERROR: Final = Rule(Severity.ERROR)
_ODD: Final = Rule(Severity.WARNING, spec=True)
_HARMLESS: Final = Rule(Severity.INFO, spec=True)
_NOTE: Final = Rule(Severity.INFO)

RULES: Final[dict[str, Rule]] = {
    # Refused by the reference (tensor.rs 0.8.0: `read_metadata`, serde's derived readers, `validate`).
    "no-header": _ERROR,
    "header-too-large": _ERROR,
    "header-cut": _ERROR,
    "utf8": _ERROR,
    "json": _ERROR,
    "metadata": _ERROR,
    "repeated-metadata": _ERROR,
    "entry": _ERROR,
    "missing-field": _ERROR,
    "repeated-field": _ERROR,
    "dtype": _ERROR,
    "shape": _ERROR,
    "offsets": _ERROR,
    "overflow": _ERROR,
    "sub-byte": _ERROR,
    "size": _ERROR,
    "reversed": _ERROR,
    "hole": _ERROR,
    "overlap": _ERROR,
    "truncated": _ERROR,
    "trailing-bytes": _ERROR,
    # Accepted by the reference, against its README.
    "leading-space": _HARMLESS,
    "padding": _HARMLESS,
    "metadata-null": _HARMLESS,
    "unknown-field": _ODD,
    "array-entry": _ODD,
    "object-dtype": _ODD,
    "repeated-name": _ODD,
    "repeated-metadata-key": _ODD,
    # Legal, and worth knowing.
    "data-alignment": _NOTE,
    "tensor-alignment": _NOTE,
    "odd-name": _NOTE,
}


class Problem(NamedTuple):
    """One broken rule, with all that an error or a finding says about it."""

    rule: str
    message: str
    offset: int | None
    tensor: str | None
    expected: Any
    found: Any
    hint: str | None

    def error(self, path: str) -> FormatError:
        field = None if self.tensor is None else f"tensor {self.tensor!r}"
        place = {"path": path, "offset": self.offset, "field": field}
        return FormatError(self.message, **place, expected=self.expected, found=self.found, hint=self.hint)  # type: ignore[arg-type]

    def finding(self, path: str) -> Finding:
        # The place has fields of its own in a finding: compose the words alone.
        words = str(FormatError(self.message, expected=self.expected, found=self.found))
        severity = RULES[self.rule].severity
        return Finding(f"safetensors.{self.rule}", severity, words, path, self.offset, self.tensor, self.hint)


class Problems(list[Problem]):
    """All that is wrong with a file, in the order it was met."""

    def add(
        self,
        rule: str,
        message: str,
        offset: int | None = None,
        tensor: str | None = None,
        *,
        expected: Any = None,
        found: Any = None,
        hint: str | None = None,
    ) -> None:
        self.append(Problem(rule, message, offset, tensor, expected, found, hint))

    def raise_first(self, path: str, strict: bool) -> None:
        """FormatError for the first problem that the reference (`strict`: the written format) refuses."""
        for problem in self:
            rule = RULES[problem.rule]
            if rule.severity is Severity.ERROR or (strict and rule.spec):
                raise problem.error(path)

    def findings(self, path: str) -> tuple[Finding, ...]:
        return tuple(p.finding(path) for p in self)

    def has(self, rules: Iterable[str]) -> bool:
        return not {p.rule for p in self}.isdisjoint(rules)
