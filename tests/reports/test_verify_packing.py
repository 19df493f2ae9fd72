"""Packed weights with something wrong: what `verify` says of each, and that nothing else does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.reports import bad_packings
from tests.reports.bad_packings import BAD, GOOD, P

from weighbridge.reports.verify import packing as verify_packing
from weighbridge.reports.verify import report as module
from weighbridge.reports.verify.report import RULES, VerifyReport, verify

OURS = {rule.id for rule in (*verify_packing.RULES, *verify_packing.VALUE_RULES)}


def rules(report: VerifyReport) -> set[str]:
    return {f.rule for f in report.findings if f.rule in OURS or f.rule.startswith("values/")}


def found_by(name: str, folder: Path) -> VerifyReport:
    bad = BAD[name]
    return verify(bad_packings.write(folder, bad.arrays(), bad.config), values=True)


@pytest.mark.parametrize("name", GOOD)
def test_whole_ones_have_no_findings(name: str, tmp_path: Path) -> None:
    arrays, config = GOOD[name]
    assert rules(verify(bad_packings.write(tmp_path / "m", arrays(), config), values=True)) == set()


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_told_and_nothing_else(name: str, tmp_path: Path) -> None:
    report = found_by(name, tmp_path / "m")
    assert rules(report) == BAD[name].rules
    told = [f for f in report.findings if f.rule in BAD[name].rules]
    assert any(BAD[name].words in f"{f.message} {f.hint}" for f in told), told
    assert all(f.path for f in told)


@pytest.mark.mutation
@pytest.mark.parametrize("rule", sorted(OURS - {"config/quantization"}))
def test_each_rule_is_needed(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(name for name, bad in BAD.items() if rule in bad.rules)
    monkeypatch.setattr(module, "RULES", tuple(r for r in RULES if r.id != rule))
    monkeypatch.setattr(module, "VALUE_RULES", tuple(r for r in module.VALUE_RULES if r.id != rule))
    assert rules(found_by(name, tmp_path / "m")) == BAD[name].rules - {rule}


def test_every_bad_weight_is_told_and_the_others_are_read(tmp_path: Path) -> None:
    """One that can't be read doesn't hide the next; of many, some are named and the others counted."""
    arrays: bad_packings.Arrays = {}
    for i in range(15):
        part = bad_packings.gptq()
        part["g_idx"] = np.full_like(part["g_idx"], 9) if i else part["g_idx"]
        arrays |= {f"{i}.{name}": a for name, a in part.items()}
    report = verify(bad_packings.write(tmp_path / "m", arrays, bad_packings.GPTQ))
    told = [f.message for f in report.findings if f.rule == "config/packing"]
    assert len(told) == 10
    assert sum("g_idx names a group" in words for words in told) == 10
    assert any("(and 4 more weights)" in words for words in told)


def test_what_many_weights_share_is_said_once(tmp_path: Path) -> None:
    arrays = {f"{i}.{name}": a for i in range(5) for name, a in bad_packings.mlx(5).items()}
    (told,) = (f for f in verify(bad_packings.write(tmp_path / "m", arrays, bad_packings.MLX)).findings
               if f.rule == "config/bits")  # fmt: skip
    assert "5 weights are 5 bits in groups of 64" in told.message
    assert f"first {P}.0.weight" in told.message


def test_hqq_settings_are_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = f"open({str(mark)!r}, 'w')".encode()
    folder = bad_packings.write(tmp_path / "m", bad_packings.hqq(code), bad_packings.HQQ)
    assert "config/hqq-code" in rules(verify(folder, values=True))
    assert not mark.exists()
