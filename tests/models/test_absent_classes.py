"""Classes that no GGUF of llama.cpp's graphs can be made of: the error has the reason and the next step, and other
targets keep every tensor."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.oracles import tree

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError

REASONS = {
    "BitNetForCausalLM": "computes SiLU in place of its squared ReLU",
    "UltravoxModel": "its language model is another model",
}


@pytest.fixture(params=REASONS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    names = ("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "lm_head.weight")
    source = tmp_path / request.param
    source.mkdir()
    save_file({n: rng.standard_normal((8, 8), np.float32) for n in names}, source / "model.safetensors")
    (source / "config.json").write_text(json.dumps({"architectures": [request.param], "model_type": "other"}))
    return source


def test_a_gguf_is_refused_with_the_reason_and_the_next_step(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=folder.name) as refused:
        wb.convert(folder, tmp_path / "a.gguf")
    assert REASONS[folder.name] in (refused.value.hint or "")
    assert "wb convert SRC DST" in (refused.value.hint or "")
    assert not (tmp_path / "a.gguf").exists()


def test_other_targets_keep_every_tensor(folder: Path, tmp_path: Path) -> None:
    original = load_file(folder / "model.safetensors")
    wb.convert(folder, tmp_path / "a.safetensors")
    wb.rename(folder, tmp_path / "b.safetensors", add_prefix="lm.")
    copied, renamed = load_file(tmp_path / "a.safetensors"), load_file(tmp_path / "b.safetensors")
    assert copied.keys() == original.keys()
    assert renamed.keys() == {f"lm.{name}" for name in original}
    assert all(np.array_equal(copied[n], a) and np.array_equal(renamed[f"lm.{n}"], a) for n, a in original.items())


@pytest.mark.parametrize(
    ("stated", "command"),
    [
        ("meta-llama/Llama-3.2-1B-Instruct", "--with-mmproj --text-model hf://meta-llama/Llama-3.2-1B-Instruct"),
        (None, "--with-mmproj --text-model TEXT"),
        (7, "--with-mmproj --text-model TEXT"),
    ],
)
@pytest.mark.parametrize("both", [False, True])
def test_the_language_model_of_an_ultravox_is_named(stated: object, command: str, both: bool, tmp_path: Path) -> None:
    save_file({"multi_modal_projector.ln_pre.weight": np.ones(8, np.float32)}, tmp_path / "model.safetensors")
    config = {"architectures": ["UltravoxModel"], "model_type": "ultravox", "text_model_id": stated}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError) as refused:
        wb.convert(tmp_path, tmp_path / "a.gguf", with_mmproj=both)
    hint = refused.value.hint or ""
    assert command in hint
    assert "wb convert SRC DST.gguf --mmproj" in hint


@pytest.mark.oracle
def test_only_one_graph_has_the_norms_of_a_bitnet_and_it_computes_silu() -> None:
    """Why there is no GGUF of a BitNetForCausalLM: squared ReLU is in graphs without norms before the last matrices."""
    graphs = {path.stem: path.read_text("utf-8") for path in (tree.require() / "src" / "models").glob("*.cpp")}
    assert [name for name, text in graphs.items() if "ffn_sub_norm" in text or "attn_sub_norm" in text] == ["bitnet"]
    assert "LLM_FFN_SILU" in graphs["bitnet"]
    assert "RELU" not in graphs["bitnet"]
    assert any("LLM_FFN_RELU_SQR" in text for text in graphs.values())
