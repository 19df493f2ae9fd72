"""Small models of Qwen 4: the language model, and a layer that predicts further tokens. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, like, table
from tests.oracles.families.hybrids import _QWEN35_EYES, _QWEN35_MOE, _SECTIONS, _SSM
from tests.oracles.families.wrapped import Shapes

# The indexer leaves out most of the probe's tokens; of few heads all may say 0 of a block, and chance would choose.
_TEXT: dict[str, Any] = _QWEN35_MOE | {
    "rope_parameters": _SECTIONS,
    "hc_count": 3, "hc_lowrank": 32, "ple_layer_ids": [2], "ngram_size": 3, "heads_per_ngram": 4,
    "split_ngram_parts": 1,
    "ngram_vocab_size_base": 50, "make_ngram_vocab_size_divisible_by": 4, "ple_conv_kernel_size": 3,
    "indexer_n_heads": 16, "indexer_kv_heads": 1, "indexer_head_dim": 128, "indexer_budget": 24,
    "indexer_compress_ratio": 4, "output_gate_type": "sigmoid",
}  # fmt: skip
_LAYERS = [*["linear_attention"] * 3, "full_attention"]  # as published; transformers writes another word
_SAID: dict[str, Any] = {"layer_types": _LAYERS, "mtp_num_hidden_layers": 0}
_UNHELD = frozenset({
    "ngram_vocab_size_base", "make_ngram_vocab_size_divisible_by", "seed", "mtp_num_hidden_layers", "ple_rows",
    "ple_head_sizes", "number_of_conv_states", "rope", "rope_parameters", "layer_types",
})  # fmt: skip
# the restored folder has one shard, of as many rows as the table
_SHARDS = _UNHELD | {"split_ngram_parts", "ple_rows // split_ngram_parts", "full_attention_interval"}


def _streams(at: str) -> Shapes:
    return {
        f"{at}.hc_norm.weight": (192,), f"{at}.input_mix_weight_down.weight": (32, 192),
        f"{at}.input_mix_weight_up.weight": (192, 32),
    }  # fmt: skip


def _further() -> Shapes:
    out: Shapes = {
        "mtp.fc_embedding.weight": (64, 64), "mtp.fc_hidden.weight": (64, 64),
        "mtp.pre_fc_norm_embedding.weight": (64,),
        "mtp.pre_fc_norm_hidden.weight": (192,), **_streams("mtp.hyper_connection_mixer"),
    }  # fmt: skip
    own: Shapes = {
        "self_attn.q_proj.weight": (128, 64), "self_attn.k_proj.weight": (32, 64), "self_attn.v_proj.weight": (32, 64),
        "self_attn.o_proj.weight": (64, 64), "self_attn.q_norm.weight": (32,), "self_attn.k_norm.weight": (32,),
        "self_attn.indexer.index_qk_proj.weight": (2176, 64), "self_attn.indexer.q_layernorm.weight": (128,),
        "self_attn.indexer.k_layernorm.weight": (128,), "mlp.gate.weight": (6, 64),
        "mlp.shared_expert_gate.weight": (1, 64), "mlp.shared_expert.gate_proj.weight": (128, 64),
        "mlp.shared_expert.up_proj.weight": (128, 64), "mlp.shared_expert.down_proj.weight": (64, 128),
        **{f"mlp.experts.{e}.{part}_proj.weight": (96, 64) for e in range(6) for part in ("gate", "up")},
        **{f"mlp.experts.{e}.down_proj.weight": (64, 96) for e in range(6)},
    }  # fmt: skip
    for part in ("attn", "mlp"):
        own |= _streams(f"{part}_hyper_connection")
        own[f"{part}_hyper_connection.block_inject_weight.weight"] = (3, 192)
    return out | {f"mtp.layers.0.{name}": shape for name, shape in own.items()}


CASES = table(
    Case(
        "qwen4exp",
        "Qwen4ExpTextConfig",
        "qwen",
        _TEXT,
        spreads=_SSM,
        said=_SAID,
        ours={"qwen4exp.attention.compress_ratios": [0, 0, 0, 4]},
        flags=("--no-mtp",),
        recorded=("hf5",),
        unheld=_UNHELD,
        words={"partial_rotary_factor": 1.0},
    ),
    # ... with a layer that predicts further tokens, and without n-grams
    like(
        "qwen4exp",
        "qwen4exp-further",
        {"ple_layer_ids": [], "tie_word_embeddings": True},
        said={"layer_types": _LAYERS, "mtp_num_hidden_layers": 1},
        further=_further(),
        recorded=("hf5",),
        flags=(),
        unheld=_UNHELD | {"split_ngram_parts", "heads_per_ngram", "ple_conv_kernel_size"},
        ours={"qwen4exp.attention.compress_ratios": [0, 0, 0, 4, 4]},
    ),
    like(
        "qwen4exp",
        "qwen4exp-seeing",
        config="Qwen4ExpConfig",
        options={
            "text_config": _TEXT
            | {
                "vocab_size": vocabularies.QWEN_SIZE,
                "split_ngram_parts": 2,
                "rope_parameters": _SECTIONS | {"mrope_section": [2, 1, 1]},
            },
            "vision_config": _QWEN35_EYES,
            "image_token_id": 9,
        },
        head="Qwen4ExpForConditionalGeneration",
        said={"full_attention_interval": 2},
        unheld=_SHARDS,
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "qwen4exp": {"norm_topk_prob": False, "hidden_act": "gelu", "attention_bias": True, "output_gate_type": "silu"}
    | {"indexer_kv_heads": 2, "ple_layer_count": 2, "linear_value_head_dim": 64, "rope.rope_type": "llama3"},
}
