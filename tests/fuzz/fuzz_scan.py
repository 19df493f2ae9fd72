"""Invariant: any bytes give a report whose rules are known, and a payload that opens a pickle is never called data."""

from __future__ import annotations

import sys

import harness
from tests.reports.scan import vectors as v

from weighbridge.io.source import BytesSource
from weighbridge.reports.scan.engine import scan_source
from weighbridge.reports.scan.model import RULES, ScanVerdict

_OPENING = b"\x80\x02" + v.SYSTEM


def target(data: bytes) -> None:
    report = scan_source(BytesSource(data), "x")
    assert all(f.rule in RULES for f in report.findings)
    if data.startswith(_OPENING):
        assert report.verdict is ScanVerdict.DANGEROUS


def seeds() -> list[bytes]:
    cases = [c.data for c in (*v.PICKLES, *v.ZIPS) if len(c.data) < 10_000]
    return [*cases, v.p(v.TENSOR), v.legacy(v.TENSOR), _OPENING + b"0" + v.TENSOR + b"."]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds))
