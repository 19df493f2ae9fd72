"""Settings by which our key-values differ from the reference's: exactly those that the page lists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.models.record_reference import record, write
from tests.models.reference_cases import golden
from tests.models.reference_settings import CASES
from tests.oracles.reference_page import PAGE

import weighbridge as wb

_ROW = re.compile(r"^\| `(?P<class_>\w+)` \| [^|]+ \| `(?P<key>[^`]+)` \|", re.MULTILINE)


def listed() -> set[tuple[str, str]]:
    return {(m["class_"], m["key"]) for m in _ROW.finditer(PAGE.read_text("utf-8"))}


@pytest.mark.parametrize("name", CASES)
def test_the_page_lists_what_differs(name: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="NOTHING HERE WAS PROVED: install requirements/oracles.txt")
    case = CASES[name]
    wb.convert(write(case, tmp_path), tmp_path / "ours.gguf", dtype="f32", tokenizer=False)
    ours, reference = (
        {key: (kind, value) for key, kind, value in found["keys"]}
        for found in (record(gguf, tmp_path / "ours.gguf"), golden("reference_settings")[name])
    )
    differ = {key for key in {*ours, *reference} if ours.get(key) != reference.get(key)}
    # The tokenizer's half is left out of both: its keys, and the vocabulary's size.
    differ = {key for key in differ if not key.startswith(("general.", "tokenizer.")) and "vocab_size" not in key}
    assert differ
    assert differ == {key for class_, key in listed() if class_ == case.config["architectures"][0]}


def test_every_row_has_a_case() -> None:
    assert {class_ for class_, _ in listed()} == {case.config["architectures"][0] for case in CASES.values()}
