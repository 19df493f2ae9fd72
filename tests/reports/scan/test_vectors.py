"""Every technique on record against the verdict that it must get; and each rule is one that some file needs."""

from __future__ import annotations

import pytest
from tests.reports.scan.vectors import PICKLES, ZIPS, Case

from weighbridge.io.source import BytesSource
from weighbridge.reports.scan.engine import scan_source
from weighbridge.reports.scan.model import RULES, FileReport, ScanVerdict, worst

CASES = [*PICKLES, *ZIPS]


def scan(data: bytes) -> FileReport:
    return scan_source(BytesSource(data), "x")


def rules(report: FileReport) -> frozenset[str]:
    return frozenset(f.rule for f in report.findings if f.verdict is not ScanVerdict.DATA_ONLY)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_verdict_and_rules(case: Case) -> None:
    report = scan(case.data)
    assert (report.verdict, rules(report)) == (case.verdict, case.rules)


# By a file's name: `test_scan`; of tensors and arrays: `test_indices`, `test_scanners`.
ELSEWHERE = {
    "pickle/not-one", "pickle/indices", "pickle/index-outside", "pickle/storage-length", "pickle/array-opcodes",
    "pickle/array-limit",
}  # fmt: skip
OWN = [rule for rule in RULES if rule.startswith(("pickle/", "zip/")) and rule not in ELSEWHERE]


@pytest.mark.mutation
@pytest.mark.parametrize("rule", [r for r in OWN if RULES[r].verdict is not ScanVerdict.DATA_ONLY])
def test_without_a_rule_some_file_would_pass_for_milder(rule: str) -> None:
    milder = []
    for case in CASES:
        if rule in case.rules:
            left = [f.verdict for f in scan(case.data).findings if f.rule != rule]
            milder.append(worst((ScanVerdict.DATA_ONLY, *left)).rank < case.verdict.rank)
    assert any(milder)
