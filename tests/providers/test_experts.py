"""Experts are stacked, and gate and up fused, whatever the dialect and the packing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import weighbridge as wb
from weighbridge.adapters.numpy import to_numpy
from weighbridge.base.dtypes import F32

CONFIG = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 80,
    "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 128, "tie_word_embeddings": False,
}  # fmt: skip
GATE, UP = (f"layers.0.moe.experts.{x}.weight" for x in ("gate", "up"))


def arrays() -> dict[str, np.ndarray]:
    rng, p = np.random.default_rng(0), "model.layers.0."
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (80, 64), "lm_head.weight": (80, 64)}
    shapes |= {"model.norm.weight": (64,), p + "block_sparse_moe.gate.weight": (4, 64)}
    shapes |= {p + f"{x}_layernorm.weight": (64,) for x in ("input", "post_attention")}
    shapes |= {p + f"self_attn.{x}_proj.weight": (64 if x in "qo" else 32, 64) for x in "qkvo"}
    for e in range(4):
        expert = f"{p}block_sparse_moe.experts.{e}."
        shapes |= {expert + "w1.weight": (96, 64), expert + "w3.weight": (96, 64), expert + "w2.weight": (64, 96)}
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize(("kind", "type_name"), [("hf", "F32"), ("q8_0.gguf", "Q8_0"), ("mlx", "mlx-affine-4")])
def test_gate_and_up_are_one_stack(kind: str, type_name: str, tmp_path: Path) -> None:
    hf, source = tmp_path / "hf", tmp_path / kind
    wb.save(arrays(), hf)
    (hf / "config.json").write_text(json.dumps(CONFIG))
    if kind == "mlx":
        wb.convert(hf, source, to=wb.MlxOptions(q_bits=4, q_group_size=32))
    elif kind != "hf":
        wb.convert(hf, source, dtype="q8_0", tokenizer=False)
    with wb.provider(source) as weights:
        assert (weights.config.experts, weights.config.experts_used) == (4, 2)
        assert weights.shape(GATE) == (4, 96, 64)
        fused = weights.fuse(GATE, UP)
        assert (fused.single, fused.reason, fused.axis) == (True, "", 1)
        assert fused.parts[0].type.name == type_name
        want = np.concatenate([weights.get(name, dtype="f32") for name in (GATE, UP)], axis=1)
        assert np.array_equal(to_numpy(fused.tensor, F32), want)
        assert weights.buffer(GATE, UP).nbytes == weights.nbytes(GATE) + weights.nbytes(UP)
