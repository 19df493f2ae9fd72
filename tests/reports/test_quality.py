"""The quality report: numbers against numpy on decoded tensors by the reference's decoders; its page and picture."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.oracles import quantize_cases

import weighbridge
from weighbridge.base.errors import UsageError
from weighbridge.cli.main import main
from weighbridge.reports.diff.quality import QualityReport

pytest.importorskip("gguf")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("quality")
    quantize_cases.prepare(made)
    return made


@pytest.fixture(scope="module")
def report(folder: Path) -> QualityReport:
    weighbridge.quantize(folder / "experts.gguf", folder / "out.gguf", "Q5_0")
    return weighbridge.compare_quantized(
        folder / "experts.gguf", folder / "out.gguf", imatrix=folder / "imatrix-experts.gguf", jobs=2
    )


def decoded(path: Path) -> dict[str, tuple[str, np.ndarray]]:
    """Every tensor's values by gguf's decoders."""
    import gguf

    return {
        t.name: (t.tensor_type.name, gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64))
        for t in gguf.GGUFReader(path).tensors
    }


def test_numbers_are_those_of_the_decoded_tensors(folder: Path, report: QualityReport) -> None:
    before, after = decoded(folder / "experts.gguf"), decoded(folder / "out.gguf")
    changed = [name for name, (kind, _) in after.items() if kind != before[name][0]]
    assert [q.name for q in report.tensors] == changed
    total_error = total_power = 0.0
    for q in report.tensors:
        a, b = before[q.name][1], after[q.name][1]
        error, power = ((a - b) ** 2).sum(), (a**2).sum()
        total_error, total_power = total_error + error, total_power + power
        assert q.nmse == pytest.approx(error / power, rel=1e-9)
        assert q.max_error == pytest.approx(np.abs(a - b).max(), rel=1e-9)
        assert q.cosine == pytest.approx((a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum()), rel=1e-9)
        assert (q.type, q.shape) == (after[q.name][0], a.shape)
    assert report.nmse == pytest.approx(total_error / total_power, rel=1e-9)
    assert sum(report.types.values()) == report.bytes


def test_weights_are_those_of_each_expert_s_columns(folder: Path, report: QualityReport) -> None:
    before, after = decoded(folder / "experts.gguf"), decoded(folder / "out.gguf")
    q = next(q for q in report.tensors if q.name == "blk.2.ffn_down_exps.weight")
    sums, tokens = quantize_cases._weights(q.name, q.shape)
    weights = (sums / np.float32(tokens)).astype(np.float64)[:, None, :]
    weights[1] = 1  # an expert that was never used
    a, b = before[q.name][1], after[q.name][1]
    assert q.weighted == pytest.approx((weights * (a - b) ** 2).sum() / (weights * a**2).sum(), rel=1e-6)
    assert next(q for q in report.tensors if q.name == "token_embd.weight").weighted is None


def test_the_same_whatever_the_threads(folder: Path, report: QualityReport) -> None:
    again = weighbridge.compare_quantized(
        folder / "experts.gguf", folder / "out.gguf", imatrix=folder / "imatrix-experts.gguf", jobs=1
    )
    assert again == report


@pytest.mark.usefixtures("report")  # which writes out.gguf
def test_another_model_is_named(folder: Path) -> None:
    with pytest.raises(UsageError, match="not the same model"):
        weighbridge.compare_quantized(folder / "dense.gguf", folder / "out.gguf")


@pytest.mark.parametrize("suffix", [".json", ".html", ".svg"])
def test_the_command_writes_it(folder: Path, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = tmp_path / "out.gguf", tmp_path / f"report{suffix}"
    assert main(["quantize", str(folder / "dense.gguf"), str(out), "Q4_0", "--report", str(page)]) == 0
    said, text = capsys.readouterr().out, page.read_text("utf-8")
    assert "NMSE" in said
    if suffix == ".json":
        data = json.loads(text)
        assert data["schema"] == "weighbridge/quality/1"
        assert data["worst"][0] in said
        assert {t["type"] for t in data["tensors"]} == {"Q4_0", "Q6_K"}
    else:
        assert "blk.0.attn_q.weight" in text
        start = text.index("<svg")
        picture = ElementTree.fromstring(text[start : text.index("</svg>") + 6])
        dots = [e for e in picture.iter() if e.tag.endswith("circle")]
        assert len(dots) == 8 * 7 + 2


def test_what_stands_in_the_way_is_told_before_the_work(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["quantize", str(folder / "dense.gguf"), str(tmp_path / "out.gguf"), "Q4_0", "--report"]
    assert main([*words, str(tmp_path / "report.png")]) == 2
    assert ".svg" in capsys.readouterr().err
    (tmp_path / "report.svg").touch()
    assert main([*words, str(tmp_path / "report.svg")]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert not (tmp_path / "out.gguf").exists()
