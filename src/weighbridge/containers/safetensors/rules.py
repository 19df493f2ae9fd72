"""The rules of safetensors as a table, and a broken rule before it becomes an error or a finding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError
from weighbridge.containers.base import Finding, Rule, Severity

_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFO

RULES: Final[dict[str, Rule]] = {
    # Refused by the reference (tensor.rs 0.8.0: `read_metadata`, serde's derived readers, `validate`).
    "no-header": Rule(_E, "file shorter than the 8 bytes of the header's length"),
    "header-too-large": Rule(_E, "header longer than 100,000,000 bytes"),
    "header-cut": Rule(_E, "the file ends inside its header"),
    "utf8": Rule(_E, "header that isn't UTF-8"),
    "json": Rule(_E, "header that isn't one JSON object"),
    "metadata": Rule(_E, "__metadata__ isn't an object of strings"),
    "repeated-metadata": Rule(_E, "__metadata__ given twice"),
    "entry": Rule(_E, "entry that isn't an object of three fields"),
    "missing-field": Rule(_E, "entry without its dtype, shape or data_offsets"),
    "repeated-field": Rule(_E, "entry with a field given twice"),
    "dtype": Rule(_E, "unknown dtype"),
    "shape": Rule(_E, "shape that isn't a list of 64-bit natural numbers"),
    "offsets": Rule(_E, "data_offsets that aren't two 64-bit natural numbers"),
    "overflow": Rule(_E, "tensor whose size exceeds 64 bits"),
    "sub-byte": Rule(_E, "tensor of a sub-byte type that isn't a whole number of bytes"),
    "size": Rule(_E, "tensor with more or fewer bytes than its shape and dtype take"),
    "reversed": Rule(_E, "tensor that ends before it begins"),
    "hole": Rule(_E, "bytes between two tensors that belong to none"),
    "overlap": Rule(_E, "tensors share bytes"),
    "truncated": Rule(_E, "the file ends inside its tensor data"),
    "zipnn": Rule(_E, "tensor whose ZipNN stream is damaged"),
    "trailing-bytes": Rule(_E, "bytes after the last tensor"),
    # Accepted by the reference, against its README.
    "leading-space": Rule(_I, "white space before the header's brace", spec=True),
    "padding": Rule(_I, "header padded with other white space than spaces", spec=True),
    "metadata-null": Rule(_I, "__metadata__ is null", spec=True),
    "unknown-field": Rule(_W, "entry with an unknown field", spec=True),
    "array-entry": Rule(_W, "entry written as an array", spec=True),
    "object-dtype": Rule(_W, "dtype written as an object", spec=True),
    "repeated-name": Rule(_W, "tensor listed twice; the last entry counts", spec=True),
    "repeated-metadata-key": Rule(_W, "metadata key given twice; the last one counts", spec=True),
    # Legal, and worth knowing.
    "data-alignment": Rule(_I, "the data doesn't start at a multiple of 8"),
    "tensor-alignment": Rule(_I, "tensors that don't start at a multiple of their element's size"),
    "odd-name": Rule(_I, "tensor names that are empty or not printable"),
}


class Problem(NamedTuple):
    """One broken rule, with all parts of an error or a finding."""

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
        # A finding has separate fields for the place: the message is without it.
        message = str(FormatError(self.message, expected=self.expected, found=self.found))
        severity = RULES[self.rule].severity
        return Finding(f"safetensors/{self.rule}", severity, message, path, self.offset, self.tensor, self.hint)


class Problems(list[Problem]):
    """All problems of a file, in the order of discovery."""

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
