"""Every technique on record against the verdict that it must get; and each rule is one that some file needs."""

from __future__ import annotations

import pytest
from tests.reports.scan.vectors import PICKLES, ZIPS, Case

from weighbridge.io.source import BytesSource
from weighbridge.reports.scan import engine
from weighbridge.reports.scan.archive import zip_scanner
from weighbridge.reports.scan.engine import scan_source
from weighbridge.reports.scan.model import FileReport, ScanVerdict, worst
from weighbridge.reports.scan.pickle import policy
from weighbridge.reports.scan.pickle import scanner as pickles

CASES = [*PICKLES, *ZIPS]


def scan(data: bytes) -> FileReport:
    return scan_source(BytesSource(data), "x")


def rules(report: FileReport) -> frozenset[str]:
    return frozenset(f.rule for f in report.findings if f.verdict is not ScanVerdict.DATA_ONLY)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_verdict_and_rules(case: Case) -> None:
    report = scan(case.data)
    assert (report.verdict, rules(report)) == (case.verdict, case.rules)


RULES = {**policy.RULES, **pickles.RULES, **zip_scanner.RULES, **engine.RULES}


# Told by a file's name, by a budget: `test_scan`.
ELSEWHERE = {"pickle/not-one", *engine.RULES}


@pytest.mark.mutation
@pytest.mark.parametrize(
    "rule", [r for r in RULES if RULES[r].verdict is not ScanVerdict.DATA_ONLY and r not in ELSEWHERE]
)
def test_without_a_rule_some_file_would_pass_for_milder(rule: str) -> None:
    milder = []
    for case in CASES:
        if rule in case.rules:
            left = [f.verdict for f in scan(case.data).findings if f.rule != rule]
            milder.append(worst((ScanVerdict.DATA_ONLY, *left)).rank < case.verdict.rank)
    assert any(milder)
