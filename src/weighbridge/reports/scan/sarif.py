"""Converts a scan to SARIF 2.1.0 (OASIS, 2020), for services that collect the findings of many tools.

The location of a finding is the file; the path into nested archives is a logical location, and a known offset is a byte
region of the file. A skipped part is a notification of the run, not a result.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, Final
from urllib.parse import quote

from weighbridge import __version__
from weighbridge.reports.scan.model import RULES, ScanFinding, ScanReport, ScanVerdict, Skipped

_SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS: Final = {
    ScanVerdict.DANGEROUS: "error",
    ScanVerdict.MALFORMED: "error",
    ScanVerdict.UNKNOWN_CODE: "warning",
    ScanVerdict.UNPROVEN: "warning",
    ScanVerdict.DATA_ONLY: "note",
}


def sarif(report: ScanReport) -> dict[str, Any]:
    """The report as a SARIF log: one run, with one result per finding."""
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
             "toolExecutionNotifications": [_notification(s, n) for n, file in enumerate(report.files)
                                            for s in file.skipped]}
        ],
        "artifacts": [
            {"location": {"uri": _uri(file.path)}, "length": file.nbytes,
             "properties": {"kind": file.kind, "verdict": file.verdict.value, "complete": file.complete}}
            for file in report.files
        ],
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


def _result(f: ScanFinding, ids: list[str], file: int) -> dict[str, Any]:
    text = f.message + (f": {f.consequence}" if f.consequence else "")
    properties = {"opcode": f.opcode, "name": f.name, "use": f.use and f.use.value, "arguments": list(f.arguments),
                  "offset": f.offset, "verdict": f.verdict.value}  # fmt: skip
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(f.path), "index": file}}
    if f.file_offset is not None:
        physical["region"] = {"byteOffset": f.file_offset, "byteLength": 0}
    location: dict[str, Any] = {"physicalLocation": physical}
    if f.members:
        location["logicalLocations"] = [{"fullyQualifiedName": "!".join(f.members), "kind": "member"}]
    return {
        "ruleId": f.rule,
        "ruleIndex": ids.index(f.rule),
        "level": _LEVELS[f.verdict],
        "message": {"text": text},
        "locations": [location],
        "properties": {key: value for key, value in properties.items() if value not in (None, [])},
    }


def _notification(skipped: Skipped, file: int) -> dict[str, Any]:
    inside = f" (in {'!'.join(skipped.members)})" if skipped.members else ""
    place = {"physicalLocation": {"artifactLocation": {"uri": _uri(skipped.path), "index": file}}}
    text = f"not scanned: {skipped.what}{inside}: {skipped.why}"
    return {"level": "warning", "message": {"text": text}, "locations": [place]}


def _uri(path: str) -> str:
    """A relative path as a relative reference, an absolute one as a file URI (RFC 3986)."""
    pure = PurePath(path)
    return pure.as_uri() if pure.is_absolute() else quote(pure.as_posix().encode("utf-8", "surrogateescape"))
