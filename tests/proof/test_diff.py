"""`wb diff` over dialects: one model in three forms has no difference, a quantized one small ones everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import weighbridge
from weighbridge.reports.diff.report import diff


@pytest.mark.oracle
def test_one_model_in_three_dialects(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    """A Hugging Face folder, its GGUF (rows permuted, other names) and its MLX folder are one model."""
    folder = folder_of("llama3-v4")
    weighbridge.convert(folder, tmp_path / "a.gguf", dtype="f32", pre="llama-bpe")
    weighbridge.convert(folder, tmp_path / "mlx", to="mlx")
    for other in (tmp_path / "a.gguf", tmp_path / "mlx"):
        found = diff(folder, other)
        assert found.same, found.tensors
        assert set(found.counts.values()) == {0, found.counts["equal"]}
    weighbridge.convert(folder, tmp_path / "q.gguf", dtype="q8_0", pre="llama-bpe")
    found = diff(folder, tmp_path / "q.gguf")
    assert found.names == "canonical"
    assert found.counts["values"] > 10
    assert all(0 < (c.nmse or 0) < 1e-3 and (c.cosine or 0) > 0.999 for c in found.tensors)
