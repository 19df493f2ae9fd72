"""The figures of `make house` that must not get worse. `python -m tests.architecture.measure --show english` (or once,
names) lists the cases of each."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.architecture import house, measure

#: Odd constructions per 10,000 words; click, rich, starlette and httpx have 9.
ENGLISH = 12
#: Shares of all functions, and of all names. Lower these as the code gets plainer.
USED_ONCE = 0.128
PRONOUNS = 0.013
#: Lines and bytes of the family tables, and characters of a line.
TABLES, TABLE_BYTES, TABLE_LINE = 9_500, 778_000, 140  # families, drafts among them, and projectors


@pytest.mark.parametrize("paths", [house.modules(), measure.pages()], ids=["src", "docs"])
def test_the_english_is_plain(paths: list[Path]) -> None:
    rate, hits = measure.english(paths)
    assert rate < ENGLISH, hits[-20:]


def test_few_private_functions_are_used_once() -> None:
    functions, once = measure.used_once()
    assert len(once) / functions < USED_ONCE


def test_few_names_are_pronouns() -> None:
    bindings, named = measure.pronouns()
    assert len(named) / bindings < PRONOUNS


def test_family_tables_are_short() -> None:
    lines = measure.table_lines()
    assert [line for line in lines if len(line) > TABLE_LINE] == []
    assert (len(lines) <= TABLES, sum(map(len, lines)) <= TABLE_BYTES) == (True, True)


@pytest.mark.parametrize(
    ("text", "odd"),
    [
        ('"""What the target can\'t hold."""', 1),
        ('"""Data that the target can\'t hold."""', 0),
        ("# UsageError where the name is unknown, which lies beside it", 3),
        ('message = "the config says that it is no model"', 2),
    ],
)
def test_an_odd_construction_is_seen(text: str, odd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "module.py"
    page.write_text(f"{text}\n")
    monkeypatch.setattr(house, "ROOT", tmp_path)
    assert len(measure.english([page])[1]) == odd


def test_a_private_function_with_one_use_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "module.py"
    module.write_text("def _once():\n    pass\n\n\ndef _twice():\n    pass\n\n\n_once()\n_twice()\n_twice()\n")
    monkeypatch.setattr(house, "PACKAGE", tmp_path)
    assert [hit.text for hit in measure.used_once()[1]] == ["_once: 2 lines"]
