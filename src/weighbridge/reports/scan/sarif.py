"""A scan as SARIF 2.1.0 (OASIS, 2020), for services that collect the findings of many tools.

A finding's place is the file; the way into nested archives is a logical location, and the offset a region of bytes of
the file where there is one. What was not scanned is a notification of the run, not a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Any, Final
from urllib.parse import quote

from weighbridge import __version__
from weighbridge.reports.scan.model import FileReport, ScanFinding, ScanReport, ScanVerdict, Skipped
from weighbridge.reports.scan.rules import RULES

_SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS: Final = {
    ScanVerdict.DANGEROUS: "error",
    ScanVerdict.MALFORMED: "error",
    ScanVerdict.UNKNOWN_CODE: "warning",
    ScanVerdict.UNPROVEN: "warning",
    ScanVerdict.DATA_ONLY: "note",
}


def sarif(report: ScanReport) -> dict[str, Any]:
    """The report as a SARIF log: one run, one result a finding."""
    ids = sorted({f.rule for file in report.files for f in file.findings})
    driver = {
        "name": "Weighbridge",
        "version": __version__,
        "semanticVersion": __version__,
        "rules": [_rule(id) for id in ids],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {"executionSuccessful": not report.unreadable,
             "toolExecutionNotifications": list(_notifications(report.files))}
        ],
        "artifacts": [_artifact(file) for file in report.files],
        "results": [_result(f, ids, n) for n, file in enumerate(report.files) for f in file.findings],
        "properties": {"verdict": report.verdict.value, "complete": report.complete, "counts": dict(report.counts)},
    }  # fmt: skip
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(id: str) -> dict[str, Any]:
    rule = RULES[id]
    name = "".join(part.capitalize() for part in id.replace("/", "-").split("-"))
    return {
        "id": id,
        "name": name,
        "shortDescription": {"text": rule.text},
        "defaultConfiguration": {"level": _LEVELS[rule.verdict]},
        "properties": {"verdict": rule.verdict.value},
    }


def _artifact(file: FileReport) -> dict[str, Any]:
    properties = {"kind": file.kind, "verdict": file.verdict.value, "complete": file.complete}
    return {"location": {"uri": _uri(file.path)}, "length": file.nbytes, "properties": properties}


def _result(f: ScanFinding, ids: list[str], file: int) -> dict[str, Any]:
    text = f.message + (f": {f.consequence}" if f.consequence else "")
    seen = {"opcode": f.opcode, "name": f.name, "use": f.use and f.use.value, "arguments": list(f.arguments),
            "offset": f.offset, "verdict": f.verdict.value}  # fmt: skip
    return {
        "ruleId": f.rule,
        "ruleIndex": ids.index(f.rule),
        "level": _LEVELS[f.verdict],
        "message": {"text": text},
        "locations": [_location(f, file)],
        "properties": {key: value for key, value in seen.items() if value not in (None, [])},
    }


def _location(f: ScanFinding, file: int) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(f.path), "index": file}}
    if f.file_offset is not None:
        physical["region"] = {"byteOffset": f.file_offset, "byteLength": 0}
    out: dict[str, Any] = {"physicalLocation": physical}
    if f.members:
        out["logicalLocations"] = [{"fullyQualifiedName": "!".join(f.members), "kind": "member"}]
    return out


def _notifications(files: Iterable[FileReport]) -> Iterator[dict[str, Any]]:
    for number, file in enumerate(files):
        for missed in file.skipped:
            yield _notification(missed, number)


def _notification(missed: Skipped, file: int) -> dict[str, Any]:
    inside = f" (in {'!'.join(missed.members)})" if missed.members else ""
    place = {"physicalLocation": {"artifactLocation": {"uri": _uri(missed.path), "index": file}}}
    text = f"not scanned: {missed.what}{inside}: {missed.why}"
    return {"level": "warning", "message": {"text": text}, "locations": [place]}


def _uri(path: str) -> str:
    """A relative path as a reference, an absolute one as a file's address (RFC 3986)."""
    pure = PurePath(path)
    return pure.as_uri() if pure.is_absolute() else quote(pure.as_posix().encode("utf-8", "surrogateescape"))
