"""Configs that leave out or null what their class doesn't need: they convert, as the class reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.oracles.published_configs import make_folder, ours

SMALL: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "head_dim": 16}
#: model -> config, and the keys without the architecture's name (None: not written)
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Solar Open: every layer has experts": (
        {**SMALL, **EXPERTS, "architectures": ["SolarOpenForCausalLM"], "model_type": "solar_open",
         "intermediate_size": None, "moe_intermediate_size": 32, "n_routed_experts": 4},
        {"feed_forward_length": None, "expert_feed_forward_length": 32.0},
    ),
    "Granite MoE: no shared expert": (
        {**SMALL, "architectures": ["GraniteMoeSharedForCausalLM"], "model_type": "granitemoeshared",
         "num_experts_per_tok": 2, "intermediate_size": 96, "shared_intermediate_size": 0, "num_local_experts": 4},
        {"feed_forward_length": 96.0, "expert_shared_feed_forward_length": None},
    ),
    "Qwen2-VL: modeling_qwen2_vl.py's sections": (
        {"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl",
         "text_config": {**SMALL, "model_type": "qwen2_vl_text", "intermediate_size": 96}},
        {"rope.dimension_sections": [16.0, 24.0, 24.0, 0.0]},
    ),
    "Qwen3-VL: modeling_qwen3_vl.py's sections": (
        {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
         "text_config": {**SMALL, "model_type": "qwen3_vl_text", "intermediate_size": 96, "head_dim": 16}},
        {"rope.dimension_sections": [24.0, 20.0, 20.0, 0.0]},
    ),
    "Cohere 2 MoE: no dense layer": (
        {**SMALL, **EXPERTS, "architectures": ["Cohere2MoeForCausalLM"], "model_type": "cohere2_moe",
         "intermediate_size": 32, "num_experts": 4, "first_k_dense_replace": 0, "layer_norm_eps": 1e-5,
         "layer_types": ["full_attention", "sliding_attention"]},
        {"feed_forward_length": None, "expert_feed_forward_length": 32.0, "leading_dense_block_count": 0.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_config_that_leaves_out_what_its_class_does_not_need_converts(name: str, tmp_path: Path) -> None:
    config, wanted = CASES[name]
    keys = {key.partition(".")[2]: value for key, value in ours(make_folder(config, tmp_path / "model")).keys}
    assert {key: keys.get(key) for key in wanted} == wanted
