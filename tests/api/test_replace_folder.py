"""`overwrite` onto a folder keeps what the conversion doesn't write."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.reports import makers

import weighbridge as wb
from weighbridge.base.errors import RefusedError


def test_a_folder_with_foreign_files_is_refused_and_the_plan_names_them(tmp_path: Path) -> None:
    source = makers.llama_folder(tmp_path / "m")
    target = tmp_path / "out"
    wb.convert(source, target)
    wb.convert(source, target, overwrite=True)  # its own files only
    (target / "src").mkdir()
    (target / "src" / "train.py").write_text("mine")
    with wb.plan_convert(source, target, overwrite=True) as plan:
        assert any("src/train.py" in note and "in the way" in note for note in plan.describe()["notes"])
        with pytest.raises(RefusedError, match=r"src/train\.py"):
            plan.run()
    assert (target / "src" / "train.py").read_text() == "mine"
    with wb.plan_convert(source, target, replace_folder=True) as plan:
        assert any("will be deleted: src/train.py" in note for note in plan.describe()["notes"])
        plan.run()
    assert not (target / "src").exists()
