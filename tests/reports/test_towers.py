"""A folder and its mmproj file, compared: only the towers count."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.models.projector_cases import golden, write_folder

import weighbridge as wb

#: Cases whose towers' config is inside another, which a comparison doesn't read: only the stored names are compared.
APART = ("qwen2.5-omni", "qwen3-asr")


@pytest.mark.parametrize("name", [name for name in golden() if name not in APART])
def test_the_towers_of_a_folder_equal_those_of_its_file(name: str, tmp_path: Path) -> None:
    folder, towers = write_folder(golden()[name], tmp_path / "model"), tmp_path / "mmproj.gguf"
    wb.convert(folder, towers, mmproj=True, dtype="f32")
    for first, second in ((folder, towers), (towers, folder)):
        report = wb.diff(first, second, tolerance=1e-2)
        assert report.names == "canonical"
        assert {kind for kind, count in report.counts.items() if count} <= {"equal", "type"}
    wb.quantize(towers, tmp_path / "small.gguf", "Q4_0")
    assert wb.diff(folder, tmp_path / "small.gguf").counts["values"]
