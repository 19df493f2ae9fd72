"""The small models with state-space layers, alone and beside attention. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, like, table
from tests.oracles.families.common import BPE, GQA, LN, SPM, theta

_SSM = (
    (("A_log", "mixer.D", "mamba.D", "dt_proj.bias", "dt_bias"), (0.0, 0.5)),
    (("conv1d.weight",), (0.0, 0.4)),
    (("norm_f.weight",), (1.0, 0.25)),
    (("embeddings.weight",), (0.0, 0.5)),
)
_MAMBA: dict[str, Any] = BPE | {
    "hidden_size": 64, "num_hidden_layers": 2, "state_size": 16, "layer_norm_epsilon": 5e-2,
}  # fmt: skip
_MAMBA2: dict[str, Any] = _MAMBA | {"head_dim": 32, "num_heads": 4, "n_groups": 2}
_LIMIT = frozenset({"time_step_limit"})  # none, which transformers spells in its own way

_QWEN_NEXT: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 256, "head_dim": 32,
    "rms_norm_eps": 1e-6,  # llama.cpp takes it for the lengths of queries and keys too, transformers 1e-6
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.25},
    "linear_num_key_heads": 2, "linear_num_value_heads": 8, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 128,
    "bos_token_id": None, "eos_token_id": vocabularies.QWEN_TOKENS - 1, "pad_token_id": vocabularies.QWEN_TOKENS - 3,
}  # fmt: skip

# as published, though for text alone it is as if sections were none
_SECTIONS: dict[str, Any] = {
    "rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.25, "mrope_interleaved": True,
}  # fmt: skip
_QWEN35: dict[str, Any] = {k: v for k, v in _QWEN_NEXT.items() if "expert" not in k and "moe" not in k} | {
    "rope_parameters": _SECTIONS | {"mrope_section": [2, 1, 1]},
}  # fmt: skip
_QWEN35_MOE: dict[str, Any] = {k: v for k, v in _QWEN_NEXT.items() if k != "intermediate_size"} | {
    "rope_parameters": _SECTIONS | {"mrope_section": [2, 1, 1]}, "moe_intermediate_size": 96,
}  # fmt: skip
_FURTHER, _NONE = {"mtp_num_hidden_layers": 1}, {"mtp_num_hidden_layers": 0}
_QWEN35_EYES: dict[str, Any] = {
    "depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 4, "out_hidden_size": 64,
    "num_position_embeddings": 16,
}  # fmt: skip

_GRANITE: dict[str, Any] = GQA | BPE | theta(5000.0) | {
    "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 128,
    "mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_d_head": 32,
    "attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0,
}  # fmt: skip

_BAMBA: dict[str, Any] = GQA | BPE | theta(5000.0) | {
    "num_hidden_layers": 3, "attn_layer_indices": [1], "intermediate_size": 96, "rms_norm_eps": 5e-2,
    "mamba_n_heads": 4, "mamba_n_groups": 1, "mamba_d_state": 16, "mamba_d_head": 32,
}  # fmt: skip

_FALCON_H1: dict[str, Any] = GQA | BPE | theta(5000.0) | {
    "rms_norm_eps": 5e-2, "head_dim": 24, "mamba_d_ssm": 96, "mamba_n_heads": 3, "mamba_d_head": 32,
    "mamba_n_groups": 1, "mamba_d_state": 16, "embedding_multiplier": 1.3, "lm_head_multiplier": 0.7,
    "key_multiplier": 0.61, "attention_in_multiplier": 1.1, "attention_out_multiplier": 0.9, "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.83, "ssm_multipliers": [0.91, 1.13, 0.87, 1.07, 0.79], "mlp_multipliers": [0.77, 1.21],
}  # fmt: skip
_MULTIPLIERS = frozenset(key for key in _FALCON_H1 if "multiplier" in key)  # which are in a GGUF's weights

_LFM2: dict[str, Any] = GQA | BPE | theta(5000.0) | {
    "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "norm_eps": 5e-2,
    "intermediate_size": 128, "block_multiple_of": 32, "block_ffn_dim_multiplier": 1.3,
}  # fmt: skip
_LFM2.pop("rms_norm_eps")
_WIDTH = frozenset({"block_ffn_dim_multiplier", "block_multiple_of", "block_auto_adjust_ff_dim", "intermediate_size",
                    "full_attn_idxs", "block_ff_dim"})  # fmt: skip
_JAMBA: dict[str, Any] = GQA | SPM | {
    "num_hidden_layers": 5, "attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 2,
    "expert_layer_offset": 1, "num_experts": 4, "num_experts_per_tok": 2,
    "rms_norm_eps": 5e-2,
}  # fmt: skip

_NEMOTRON: dict[str, Any] = LN | BPE | {
    "head_dim": 32, "layer_norm_epsilon": 5e-2, "mamba_num_heads": 4, "mamba_head_dim": 32, "n_groups": 2,
    "ssm_state_size": 16, "num_key_value_heads": 1,
}  # fmt: skip
del _NEMOTRON["num_hidden_layers"]
_NEMOTRON_SAID: dict[str, Any] = {"rope_theta": 500.0, "rms_norm_eps": 5e-2}  # as published, though nothing rotates
_NEMOTRON_UNHELD = frozenset({"max_position_embeddings", "layers_block_type"})
_NEMOTRON_EXPERTS: dict[str, Any] = {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"], "n_routed_experts": 6,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 96,
    "routed_scaling_factor": 2.5,
}  # fmt: skip


def _case(name: str, config: str, options: dict[str, Any], **more: Any) -> Case:
    return Case(name, config, more.pop("tokenizer", "bpe"), options, spreads=_SSM, **more)


CASES = table(
    _case("mamba", "MambaConfig", _MAMBA, recorded=("mlx",)),
    _case(
        "mamba-untied",
        "MambaConfig",
        _MAMBA | {"tie_word_embeddings": False, "time_step_rank": 8, "conv_kernel": 3},
    ),
    # ... and one that normalizes the time step, B and C
    _case(
        "falcon-mamba",
        "FalconMambaConfig",
        _MAMBA | {"mixer_rms_eps": 5e-2, "tie_word_embeddings": False},
        recorded=("mlx",),
    ),
    _case(
        "mamba2",
        "Mamba2Config",
        _MAMBA2,
        said={"intermediate_size": 128},  # mlx-lm asks for it
        recorded=("mlx",),
        prefixed="model.",
        unheld=_LIMIT,
    ),
    _case("mamba2-tied", "Mamba2Config", _MAMBA2 | {"n_groups": 1, "tie_word_embeddings": True}, unheld=_LIMIT),
    # Qwen 3-Next: gated delta nets, attention with a gate in every fourth layer
    _case(
        "qwen3next",
        "Qwen3NextConfig",
        _QWEN_NEXT,
        tokenizer="qwen",
        recorded=("hf5", "mlx"),
        flags=("--no-mtp",),
        said=_NONE,
        unheld=frozenset(_FURTHER),
    ),
    # ... and as published, with a layer that predicts further tokens (of which its config doesn't speak)
    like("qwen3next", "qwen3next-further", said=_FURTHER, flags=(), unheld=frozenset(), mtp=True),
    _case(
        "qwen3next-odd",
        "Qwen3NextConfig",
        _QWEN_NEXT
        | {"layer_types": ["full_attention", "linear_attention", "linear_attention"], "num_hidden_layers": 3}
        | {"tie_word_embeddings": True},
        tokenizer="qwen",
        flags=("--no-mtp",),
        said={"full_attention_interval": 2},  # the list says more
        unheld=frozenset({"full_attention_interval"}),
    ),
    # Qwen 3.5: value heads that GGUFs have in another order; alone, and as published, one part of a model that sees
    _case(
        "qwen35",
        "Qwen3_5TextConfig",
        _QWEN35,
        tokenizer="qwen",
        flags=("--no-mtp",),
        said=_NONE,
        unheld=frozenset(_FURTHER),
        beside=("visual.x.weight",),
    ),
    _case(
        "qwen35-further",
        "Qwen3_5TextConfig",
        _QWEN35 | {"tie_word_embeddings": True},
        tokenizer="qwen",
        said=_FURTHER,
        mtp=True,
    ),
    like(
        "qwen35",
        "qwen35-odd",
        more={"layer_types": ["full_attention", "linear_attention", "linear_attention"], "num_hidden_layers": 3}
        | {"tie_word_embeddings": True, "linear_num_value_heads": 6, "rope_parameters": _SECTIONS},
        said={"full_attention_interval": 2},
        unheld=frozenset({"full_attention_interval", "rope", "rope_parameters"}),
    ),
    _case(
        "qwen35-seeing",
        "Qwen3_5Config",
        {
            "text_config": _QWEN35 | {"linear_num_value_heads": 2, "vocab_size": vocabularies.QWEN_SIZE},
            "vision_config": _QWEN35_EYES,
        },
        tokenizer="qwen",
        head="Qwen3_5ForConditionalGeneration",
        recorded=("mlx",),
        flags=("--no-mtp",),
    ),
    # ... and with experts
    _case(
        "qwen35moe",
        "Qwen3_5MoeTextConfig",
        _QWEN35_MOE | {"rope_parameters": _SECTIONS},
        tokenizer="qwen",
        recorded=("hf5",),
        unheld=frozenset({"rope", "rope_parameters", *_FURTHER}),  # as above
        flags=("--no-mtp",),
        said=_NONE,
    ),
    _case(
        "qwen35moe-further",
        "Qwen3_5MoeTextConfig",
        _QWEN35_MOE,
        tokenizer="qwen",
        said=_FURTHER,
        recorded=("hf5s",),
        mtp=True,
    ),
    _case(
        "qwen35moe-seeing",
        "Qwen3_5MoeConfig",
        {
            "text_config": _QWEN35_MOE | {"vocab_size": vocabularies.QWEN_SIZE},
            "vision_config": _QWEN35_EYES,
        },
        tokenizer="qwen",
        head="Qwen3_5MoeForConditionalGeneration",
        recorded=("hf5", "mlx"),
        flags=("--no-mtp",),
        said={"full_attention_interval": 2},  # the list says more
    ),
    # Granite 4: Mamba 2 and attention without positions, with experts and without
    _case(
        "granite-hybrid",
        "GraniteMoeHybridConfig",
        _GRANITE,
        # as published: the reference knows no other words
        said={"layer_types": ["mamba", "attention", "mamba"], "head_dim": 16},
        recorded=("mlx",),
        unheld=_LIMIT | {"max_position_embeddings", "head_dim"},
    ),
    _case(
        "granite-hybrid-dense",
        "GraniteMoeHybridConfig",
        _GRANITE
        | {
            "intermediate_size": 128,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "tie_word_embeddings": True,
            "mamba_n_groups": 1,
        },
        said={"layer_types": ["mamba", "attention", "mamba"]},
        recorded=("mlx",),
        unheld=_LIMIT | {"max_position_embeddings"},
    ),
    # Bamba: Mamba 2 and attention in which half of each head rotates
    _case(
        "bamba",
        "BambaConfig",
        _BAMBA,
        unheld=_LIMIT,
        ours={"granitehybrid.rope.dimension_count": 8},
        reordered={
            "blk.1.attn_q.weight": ("model.layers.1.self_attn.q_proj.weight", 4),
            "blk.1.attn_k.weight": ("model.layers.1.self_attn.k_proj.weight", 2),
        },
    ),
    like(
        "bamba",
        "bamba-tied",
        {"tie_word_embeddings": True, "mamba_n_groups": 2, "num_key_value_heads": 4},
        reordered={
            "blk.1.attn_q.weight": ("model.layers.1.self_attn.q_proj.weight", 4),
            "blk.1.attn_k.weight": ("model.layers.1.self_attn.k_proj.weight", 4),
        },
    ),
    # Granite 4 without any: attention with positions in all layers
    _case(
        "granite4-attention",
        "GraniteMoeHybridConfig",
        _GRANITE
        | {"layer_types": ["full_attention"] * 3, "intermediate_size": 128, "position_embedding_type": "rope"}
        | {"num_local_experts": 0, "num_experts_per_tok": 0, "tie_word_embeddings": True},
        said={"layer_types": ["attention"] * 3, "head_dim": 16},
        recorded=("mlx",),
        unheld=_LIMIT | {"head_dim", "mamba_d_head"},
    ),
    # Falcon-H1: attention and Mamba 2 beside one another, with multipliers
    _case("falcon-h1", "FalconH1Config", _FALCON_H1, recorded=("mlx",), unheld=_LIMIT | _MULTIPLIERS, folded=True),
    like(
        "falcon-h1",
        "falcon-h1-norm",
        more={"mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_n_groups": 2, "mamba_d_ssm": 128}
        | {"mamba_n_heads": 4, "num_key_value_heads": 4},
    ),
    # ... and one whose config leaves to the class what the reference reads as it is written
    _case(
        "falcon-h1-auto",
        "FalconH1Config",
        _FALCON_H1 | {"num_key_value_heads": 4},
        tokenizer="none",
        said={"num_key_value_heads": None, "mamba_d_head": "auto"},
        hparams={"num_key_value_heads": 4, "mamba_d_head": 32},
        unheld=_LIMIT | _MULTIPLIERS,
        folded=True,
    ),
    # LFM2: gated convolutions, attention in some layers; its feed forward's width is adjusted
    _case("lfm2", "Lfm2Config", _LFM2, recorded=("mlx",), said={"block_dim": 64}, unheld=_WIDTH),
    _case(
        "lfm2-plain",
        "Lfm2Config",
        _LFM2 | {"block_auto_adjust_ff_dim": False, "tie_word_embeddings": False},
        said={
            "layer_types": None,
            "full_attn_idxs": [1],
            "intermediate_size": 96,
            "block_ff_dim": 128,
        },  # as the first ones were published
        unheld=_WIDTH,
    ),
    _case(
        "lfm2moe",
        "Lfm2MoeConfig",
        {k: v for k, v in _LFM2.items() if not k.startswith("block_")}
        | {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_dense_layers": 1},
        recorded=("hf5", "mlx"),
    ),
    # Jamba: Mamba 1 with norms, attention without positions in every third layer, experts in every second
    _case("jamba", "JambaConfig", _JAMBA, tokenizer="spm", recorded=("hf5", "mlx")),
    _case(
        "jamba-single",
        "JambaConfig",
        _JAMBA | {"num_experts": 1, "num_experts_per_tok": 1, "tie_word_embeddings": True, "mamba_dt_rank": 8},
        tokenizer="spm",
        unheld=frozenset({"expert_layer_period", "expert_layer_offset"}),
    ),
    # Nemotron-H: layers of Mamba 2, of attention and of a feed forward, each alone
    _case(
        "nemotron-h",
        "NemotronHConfig",
        _NEMOTRON | {"layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp", "linear_attention"]},
        # as published: transformers 5 adds experts to every config and has other words for the layers
        hparams={"num_experts_per_tok": None, "n_routed_experts": None, "n_group": None, "topk_group": None}
        | {"hybrid_override_pattern": "M-*-M"},
        said=_NEMOTRON_SAID,
        recorded=("mlx", "hf5"),
        unheld=_LIMIT | _NEMOTRON_UNHELD,
    ),
    _case(
        "nemotron-h-silent",
        "NemotronHConfig",
        _NEMOTRON | {"layers_block_type": ["linear_attention", "mlp", "full_attention"]},
        tokenizer="none",
        hparams={"num_experts_per_tok": None, "n_routed_experts": None, "n_group": None, "topk_group": None}
        | {"hybrid_override_pattern": "M-*"},
        unheld=_LIMIT | _NEMOTRON_UNHELD,
    ),
    _case(
        "nemotron-h-moe",
        "NemotronHConfig",
        _NEMOTRON | _NEMOTRON_EXPERTS,
        said=_NEMOTRON_SAID,
        recorded=("mlx", "hf5"),
        beside=("mtp.layers.0.mixer.q_proj.weight",),
        unheld=_LIMIT | _NEMOTRON_UNHELD | {"intermediate_size"},
    ),
    _case(
        "nemotron-h-latent",
        "NemotronHConfig",
        _NEMOTRON | _NEMOTRON_EXPERTS | {"moe_latent_size": 32, "n_shared_experts": 2},
        unheld=_LIMIT | _NEMOTRON_UNHELD | {"intermediate_size"},
    ),
)

_NEMOTRON_UNSAID: dict[str, Any] = {
    "mlp_hidden_act": "relu",
    "mamba_hidden_act": "relu",
    "attention_bias": True,
    "mlp_bias": True,
    "use_bias": True,
    "mamba_proj_bias": True,
    "use_conv_bias": False,
    "sliding_window": 8,
    "time_step_limit": [0.0, 1.0],
    "rms_norm_eps": 1e-5,
}
UNSAID: dict[str, dict[str, Any]] = {
    "falcon-h1": {
        "hidden_act": "relu",
        "attention_bias": True,
        "mlp_bias": True,
        "projectors_bias": True,
        "mamba_conv_bias": False,
        "mamba_proj_bias": True,
        "mamba_d_head": 16,
        "rope.rope_type": "linear",
        "time_step_limit": [0.0, 1.0],
    },
    "nemotronh": _NEMOTRON_UNSAID,
    "nemotronhmoe": _NEMOTRON_UNSAID,
    "granite4": {"hidden_act": "relu", "attention_bias": True, "rope.rope_type": "dynamic"},
    "lfm2": {"conv_bias": True, "rope.rope_type": "dynamic", "block_auto_adjust_ff_dim": True},
    "lfm2moe": {
        "conv_bias": True,
        "use_expert_bias": False,
        "norm_topk_prob": False,
        "routed_scaling_factor": 2.0,
        "rope.rope_type": "dynamic",
    },
    "jamba": {"hidden_act": "relu", "mamba_expand": 3, "mamba_conv_bias": False, "mamba_proj_bias": True},
    "bamba": {
        "hidden_act": "relu",
        "attention_bias": True,
        "mlp_bias": True,
        "mamba_conv_bias": False,
        "mamba_expand": 3,
        "mamba_proj_bias": True,
        "rope.rope_type": "dynamic",
        "time_step_limit": [0.0, 1.0],
        "attn_rotary_emb": 6,
    },
    "granitehybrid": {
        "hidden_act": "relu",
        "attention_bias": True,
        "mamba_conv_bias": False,
        "mamba_expand": 3,
        "mamba_proj_bias": True,
        "position_embedding_type": "rope",
        "rope.rope_type": "dynamic",
        "time_step_limit": [0.0, 1.0],
    },
    "mamba": {"hidden_act": "relu", "use_bias": True, "use_conv_bias": False, "expand": 3},
    "qwen3next": {
        "hidden_act": "relu",
        "attention_bias": True,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [1],
        "norm_topk_prob": False,
        "rope.rope_type": "dynamic",
    },
    "qwen35": {
        "hidden_act": "relu",
        "attention_bias": True,
        "rope.rope_type": "dynamic",
        "rope.mrope_interleaved": False,
    },
    "qwen35moe": {
        "hidden_act": "relu",
        "attention_bias": True,
        "rope.rope_type": "dynamic",
        "rope.mrope_interleaved": False,
    },
    "mamba2": {
        "hidden_act": "relu",
        "use_bias": True,
        "use_conv_bias": False,
        "expand": 3,
        "time_step_limit": [0.0, 1.0],
    },
}
