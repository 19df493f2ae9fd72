"""`wb imatrix --engine transformers` judges the forward pass: the same file, for each kind of module; what it doesn't
run is refused or listed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.forward.texts import CTX, built, read_imatrix, written
from tests.oracles import models

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.cli.main import main

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

#: Of each entry's largest sum.
TOLERANCE = 1e-4
#: A case for each kind of module: separate and joint matrices, transposed ones, experts of one tensor and of three,
#: with biases, shared experts, parallel blocks, latent attention with a low rank of queries and without.
CASES = [
    "llama", "gpt2", "falcon", "bloom", "phi2", "cohere2", "gemma3", "starcoder2", "gptneox", "mixtral", "qwen2moe",
    "qwen3moe", "gpt-oss", "ernie4.5-moe", "deepseek-v2-lite", "deepseek-v3", "kimi-k2",
]  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("text"))


@pytest.mark.parametrize("name", CASES)
def test_both_engines_make_the_same_matrix(tmp_path: Path, text: Path, name: str) -> None:
    folder = built(name, tmp_path)
    given: dict[str, Any] = {"text": [str(text)], "context": CTX, "chunks": 2}
    own = wb.imatrix(folder, tmp_path / "own.gguf", **given)
    other = wb.imatrix(folder, tmp_path / "other.gguf", engine="transformers", **given)
    assert (own.missing, own.unseen) == (other.missing, other.unseen) == ([], own.unseen)
    expected, found = read_imatrix(tmp_path / "other.gguf"), read_imatrix(tmp_path / "own.gguf")
    assert found.entries.keys() == expected.entries.keys()
    for tensor, entry in found.entries.items():
        sums = expected.entries[tensor].sums
        assert np.array_equal(entry.counts, expected.entries[tensor].counts), tensor
        assert np.abs(entry.sums - sums).max() < TOLERANCE * sums.max(), tensor


def test_heads_of_latent_attention_have_sums_of_their_own(tmp_path: Path, text: Path) -> None:
    """As llama-imatrix writes them: one row of all heads' sums and one count, which quantizing takes head by head."""
    case = models.CASES["deepseek-v3"]
    wide = replace(case, options=case.options | {"qk_nope_head_dim": 32, "v_head_dim": 32})
    folder, out = models.build(wide, tmp_path / "wide"), tmp_path / "imatrix.gguf"
    wb.imatrix(folder, out, text=[str(text)], context=CTX, chunks=2)
    entries = read_imatrix(out).entries
    for part in ("k_b", "v_b"):
        entry = entries[f"blk.0.attn_{part}.weight"]
        assert entry.sums.shape == (1, 4 * 32)
        assert entry.counts.tolist() == [2 * CTX]
        heads = entry.sums.reshape(4, 32)
        assert np.abs(heads - heads.mean(0)).max() > 0.1 * heads.mean()
    plan = wb.plan_quantize(folder, tmp_path / "small.gguf", "Q4_0", imatrix=out)
    assert all(row.weighted for row in plan.rows if "attn_k_b" in row.name or "attn_v_b" in row.name)
    assert plan.weights["blk.0.attn_k_b.weight"].shape == (4, 32)


def test_matrices_that_are_not_multiplied_with_are_listed(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """transformers renames the experts of Granite in memory, so their inputs aren't seen."""
    folder, out = built("granite-moe", tmp_path), tmp_path / "i.gguf"
    line = ["imatrix", str(folder), str(out), "--engine", "transformers", "--text", str(text), "--context", str(CTX)]
    assert main([*line, "--chunks", "1"]) == 0
    assert "no entry: the run didn't multiply with blk.0.ffn_down_exps.weight" in capsys.readouterr().err
    assert "blk.0.ffn_down_exps.weight" not in read_imatrix(out).entries


def test_a_family_that_only_transformers_runs(tmp_path: Path, text: Path) -> None:
    folder = built("mamba", tmp_path)
    given: dict[str, Any] = {"text": [str(text)], "context": CTX, "chunks": 1}
    with pytest.raises(UnsupportedError, match="mamba models isn't computed") as caught:
        wb.imatrix(folder, tmp_path / "i.gguf", **given)
    assert "--engine transformers" in str(caught.value.hint)
    wb.imatrix(folder, tmp_path / "i.gguf", engine="transformers", **given)
    assert "blk.0.ssm_in.weight" in read_imatrix(tmp_path / "i.gguf").entries


def test_what_transformers_does_not_load_is_refused(tmp_path: Path, text: Path) -> None:
    folder, out = built("llama", tmp_path), tmp_path / "i.gguf"
    given: dict[str, Any] = {"text": [str(text)], "context": CTX, "engine": "transformers"}
    wb.convert(folder, tmp_path / "m.gguf", dtype="f32")
    wb.convert(folder, tmp_path / "mlx", to="mlx", q_bits=4, q_group_size=32)
    wb.convert(folder, tmp_path / "packed", scheme="w8a16", q_group_size=32)
    for source, words in (("m.gguf", "reads a model folder"), ("mlx", "is packed"), ("packed", "is packed")):
        with pytest.raises(UsageError, match=words) as caught:
            wb.imatrix(tmp_path / source, out, **given)
        assert str(caught.value.hint).startswith("wb convert")
    plm = built("plm", tmp_path)
    with pytest.raises(UnsupportedError, match="transformers doesn't load"):
        wb.imatrix(plm, out, **given)
    assert not out.exists()


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_without_torch_the_extra_is_named(
    tmp_path: Path, text: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = built("llama", tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnsupportedError, match=f"engine transformers needs the package {package}") as caught:
        wb.imatrix(folder, tmp_path / "i.gguf", text=[str(text)], context=CTX, engine="transformers")
    assert caught.value.hint == 'pip install "weighbridge[transformers]"'
