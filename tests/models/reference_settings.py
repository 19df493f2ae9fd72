"""Configs with a setting by which our key-values differ from the reference's: see golden/reference_settings.json.

docs/reference-differences.md lists them. `python -m tests.models.reference_settings` records anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.models.reference_cases import GQA, SMALL, Case

GOLDEN = Path(__file__).parent / "golden" / "reference_settings.json"
_MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
_WINDOWS = {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 16}


def _case(class_: str, model_type: str, **settings: Any) -> Case:
    config = {"architectures": [class_], "model_type": model_type, **settings}
    return Case(model_type, config, groups=("only head",), outtype="f32")


CASES = {
    "qwen": _case(
        "QWenLMHeadModel", "qwen", **SMALL | {"intermediate_size": 128}, kv_channels=16, layer_norm_epsilon=1e-5,
        max_position_embeddings=256, rotary_emb_base=10000.0,
    ),
    "phi": _case(
        "PhiForCausalLM", "phi", **SMALL, max_position_embeddings=256, layer_norm_eps=1e-5, partial_rotary_factor=0.5
    ),
    "camembert": _case(
        "CamembertModel", "camembert", **SMALL, max_position_embeddings=258, layer_norm_eps=1e-5, pad_token_id=1,
        type_vocab_size=1, bos_token_id=5,
    ),
    "ernie4_5_moe": _case(
        "Ernie4_5_MoeForCausalLM", "ernie4_5_moe", **GQA, moe_intermediate_size=64, moe_k=2, moe_num_experts=4,
        moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_interval=1, moe_layer_end_index=1,
        rms_norm_eps=1e-5, head_dim=16, tie_word_embeddings=False, use_bias=False,
    ),
    "solar_open": _case(
        "SolarOpenForCausalLM", "solar_open", **GQA, **_MOE, n_routed_experts=4, n_shared_experts=1, head_dim=16,
        first_k_dense_replace=0, rms_norm_eps=1e-5, n_group=1, topk_group=1, routed_scaling_factor=1.0,
        norm_topk_prob=True, rope_theta=1e6, attention_bias=False,
    ),
    "afmoe": _case(
        "AfmoeForCausalLM", "afmoe", **GQA, **_MOE, **_WINDOWS, num_experts=4, num_shared_experts=1, route_scale=1.0,
        num_dense_layers=1, rms_norm_eps=1e-5, global_attn_every_n_layers=2, route_norm=True, mup_enabled=True,
        rope_theta=10000.0,
    ),
    "exaone_moe": _case(
        "ExaoneMoeForCausalLM", "exaone_moe", **GQA, **_MOE, **_WINDOWS, num_experts=4, num_shared_experts=1,
        first_k_dense_replace=1, rms_norm_eps=1e-5, sliding_window_pattern="LG", n_group=1, topk_group=1,
        routed_scaling_factor=2.5, norm_topk_prob=True, mlp_layer_types=["dense", "sparse"],
    ),
    "cohere2_moe": _case(
        "Cohere2MoeForCausalLM", "cohere2_moe", **GQA, **_WINDOWS, num_experts=4, num_experts_per_tok=2,
        num_shared_experts=0, first_k_dense_replace=1, layer_norm_eps=1e-5, logit_scale=0.5, rope_theta=10000.0,
        norm_topk_prob=True,
    ),
}  # fmt: skip

if __name__ == "__main__":
    from tests.models.record_reference import record_all

    record_all(CASES, GOLDEN)
