"""Sets of pickled shards (`pytorch_model.bin.index.json`) that contradict their index: told as of safetensors sets,
and refused where a tensor would be missing or another than the index says."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import weighbridge as wb
from weighbridge.base.errors import FormatError
from weighbridge.containers import sharded
from weighbridge.reports.scan.model import ScanVerdict

torch = pytest.importorskip("torch")
safe = pytest.importorskip("safetensors.torch")
pytestmark = pytest.mark.oracle

INDEX = "pytorch_model.bin.index.json"
A, B, GONE = (f"pytorch_model-0000{n}-of-00002.bin" for n in (1, 2, 3))
TENSORS = {name: torch.arange(12.0).reshape(3, 4) * (n + 1) for n, name in enumerate("abcd")}
GOOD = {A: ("a", "b"), B: ("c", "d")}
MAP = {name: file for file, names in GOOD.items() for name in names}


class Case(NamedTuple):
    """`map`: what the index says; `files`: what is in the shards; `rules`: what `verify` tells, errors if `refused`;
    `refused`: a part of the message of opening it."""

    map: Mapping[str, Any]
    files: Mapping[str, Any]
    rules: frozenset[str]
    refused: str | None


def one(*rules: str) -> frozenset[str]:
    return frozenset(f"sharded/{rule}" if "/" not in rule else rule for rule in rules)


CASES = {
    "good": Case(MAP, GOOD, one(), None),
    "a tensor in the other shard": Case({**MAP, "a": B}, GOOD, one("misplaced-tensor"), "but it is in"),
    "two swapped": Case({**MAP, "a": B, "c": A}, GOOD, one("misplaced-tensor"), "but it is in"),
    "a tensor that no shard has": Case({**MAP, "e": A}, GOOD, one("missing-tensor"), "no shard has it"),
    "a tensor that the index lacks": Case({"a": A, "b": A, "c": B}, GOOD, one("unlisted-tensor"), None),
    "the same in both": Case(MAP, {A: ("a", "b"), B: ("c", "d", "a")}, one("repeated-tensor"), None),
    "in both and unlisted": Case({"b": A, "c": B, "d": B}, {A: ("a", "b"), B: ("c", "d", "a")},
                                 one("unlisted-tensor", "ambiguous-tensor"), "the index lists none"),
    "a missing shard": Case(MAP, {A: ("a", "b")}, one("missing-shard"), "is missing"),
    "a shard of no set": Case({**MAP, "e": GONE}, GOOD, one("missing-shard", "numbering"), "is missing"),
    "a folder above": Case({**MAP, "e": f"../{A}"}, GOOD, one("index/traversal"), "not a plain file name"),
    "an absolute path": Case({**MAP, "e": "/etc/passwd"}, GOOD, one("index/traversal"), "not a plain file name"),
    "a drive": Case({**MAP, "e": "C:\\x.bin"}, GOOD, one("index/traversal"), "not a plain file name"),
    "a number for a name": Case({**MAP, "e": 1}, GOOD, one("index/traversal"), "not a string"),
    "values that look like notes of ties": Case(
        {**MAP, "e": A, "f": A}, {A: ("a", "b", ("e", "a"), ("f", [1, 2])), B: ("c", "d")}, one("missing-tensor"),
        "no shard has it"),
}  # fmt: skip


def make(folder: Path, case: Case) -> Path:
    for file, names in case.files.items():
        state: dict[str, Any] = dict(n if isinstance(n, tuple) else (n, TENSORS[n].clone()) for n in names)
        torch.save(state, folder / file)
    total = sum(TENSORS[n].nbytes for names in case.files.values() for n in names if isinstance(n, str))
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": dict(case.map)}))
    return folder


def told(folder: Path) -> set[str]:
    found = wb.verify(folder).findings
    return {f.rule for f in found if f.rule.startswith(("sharded/", "index/"))}


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_told(name: str, tmp_path: Path) -> None:
    assert told(make(tmp_path, CASES[name])) == CASES[name].rules


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("by", ["folder", "index"])
def test_what_would_give_other_weights_is_refused(name: str, by: str, tmp_path: Path) -> None:
    case = CASES[name]
    path = make(tmp_path, case) / (INDEX if by == "index" else "")
    before = sorted(os.listdir(tmp_path))
    if case.refused:
        with pytest.raises(FormatError, match=case.refused):
            wb.open(path)
        with pytest.raises(FormatError, match=case.refused):
            wb.convert(path, tmp_path / "out.safetensors")
        assert sorted(os.listdir(tmp_path)) == before
        return
    wb.convert(path, tmp_path / "out.safetensors")
    got = safe.load_file(tmp_path / "out.safetensors")
    assert got.keys() == TENSORS.keys()
    assert all(torch.equal(got[n], TENSORS[n]) for n in TENSORS)


def test_of_a_tensor_in_two_shards_the_one_counts_that_the_index_names(tmp_path: Path) -> None:
    make(tmp_path, CASES["the same in both"])
    torch.save({"c": TENSORS["c"], "d": TENSORS["d"], "a": TENSORS["a"] + 1}, tmp_path / B)
    with wb.open(tmp_path) as model:
        assert torch.equal(model["a"].torch(), TENSORS["a"])


def test_a_scan_tells_of_names_that_lead_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    torch.save({"e": TENSORS["a"]}, tmp_path / A)  # it exists, and is not opened
    report = wb.scan(make(tmp_path / "set", CASES["a folder above"]))
    assert (report.verdict, report.scanned) == (ScanVerdict.DANGEROUS, 3)
    assert "index/outside" in {f.rule for file in report.files for f in file.findings}


@pytest.mark.mutation
@pytest.mark.parametrize("check", ["_check_listed", "_check_unlisted"])
def test_without_a_check_a_set_would_pass(check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded, check, lambda *_: None)
    folders = {name: tmp_path / str(n) for n, name in enumerate(CASES)}
    for folder in folders.values():
        folder.mkdir()
    assert any(told(make(folder, CASES[name])) != CASES[name].rules for name, folder in folders.items())
