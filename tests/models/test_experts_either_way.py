"""Experts of Qwen 3-VL MoE: as published, each the other way round than a linear layer, and as transformers 5 saves
them. The shapes decide, and both give the same GGUF."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.oracles import families, models

import weighbridge as wb

safe = pytest.importorskip("safetensors.numpy")
pytestmark = pytest.mark.oracle
CASE = families.CASES["qwen3-vl-moe"]


def turned(folder: Path, target: Path) -> Path:
    target.mkdir()
    tensors = safe.load_file(folder / "model.safetensors")
    for name in (n for n in tensors if ".experts." in n):
        tensors[name] = np.ascontiguousarray(tensors[name].swapaxes(1, 2))
    safe.save_file(tensors, target / "model.safetensors")
    (target / "config.json").write_bytes((folder / "config.json").read_bytes())
    return target


@pytest.mark.parametrize("dtype", ["f32", "q8_0"])
def test_both_forms_give_one_gguf(tmp_path: Path, dtype: str) -> None:
    published = models.build(CASE, tmp_path / "published")
    made = []
    for folder in (published, turned(published, tmp_path / "turned")):
        wb.convert(folder, tmp_path / f"{folder.name}.gguf", dtype=dtype, tokenizer=False, name="x")
        made.append((tmp_path / f"{folder.name}.gguf").read_bytes())
    assert made[0] == made[1]


def test_values_are_those_of_transformers_own_file(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    text = {
        "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 48, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 64, "num_experts": 3,
        "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "mrope_section": [3, 3, 2],
                            "mrope_interleaved": True},
    }  # fmt: skip
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64,
              "deepstack_visual_indexes": [0]}  # fmt: skip
    config = transformers.Qwen3VLMoeConfig(text_config=text, vision_config=vision)
    model = transformers.Qwen3VLMoeForConditionalGeneration(config)
    models.randomize(model, 7)
    model.save_pretrained(tmp_path / "m")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["model_type"] == "qwen3_vl_moe"
    wb.convert(tmp_path / "m", tmp_path / "m.gguf", dtype="f32", tokenizer=False)
    experts = model.model.language_model.layers[0].mlp.experts
    gate, up = experts.gate_up_proj.detach().numpy().reshape(3, 2, 48, 64).swapaxes(0, 1)
    with wb.open(tmp_path / "m.gguf") as found:
        assert np.array_equal(found["blk.0.ffn_gate_exps.weight"].numpy(), gate)
        assert np.array_equal(found["blk.0.ffn_up_exps.weight"].numpy(), up)
        assert np.array_equal(found["blk.0.ffn_down_exps.weight"].numpy(), experts.down_proj.detach().numpy())
