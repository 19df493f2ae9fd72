"""The small decoders whose norms are LayerNorms. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.case import Case, like, table
from tests.oracles.families.common import BPE, LN, SMALL, SPM, WINDOW, theta
from tests.oracles.families.wrapped import VOCABULARY, decoder

_OLDER = {"n_layer": 32, "n_head": 71}  # the defaults of Falcon's class in the words of its first configs

CASES = table(
    Case(
        "phi2",
        "PhiConfig",
        "bpe",
        SMALL | BPE | theta(10000.0, partial_rotary_factor=0.5) | {"layer_norm_eps": 5e-2, "intermediate_size": 256},
        recorded=("mlx",),
        gelu=True,
    ),
    Case(
        "gpt2",
        "GPT2Config",
        "bpe",
        BPE | {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, "n_ctx": 256, "layer_norm_epsilon": 5e-2},
        older=("transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"),
        unheld=frozenset({"n_ctx", "n_inner"}),
        recorded=("mlx",),
        gelu=True,
    ),
    like(
        "gpt2",
        "gpt2-untied",
        recorded=(),
        more={"n_inner": 96, "tie_word_embeddings": False},
        ours={"gpt2.feed_forward_length": 96},
        unheld=frozenset({"n_ctx"}),
        older=(),
    ),
    Case(
        "gptneox",
        "GPTNeoXConfig",
        "bpe",
        SMALL
        | BPE
        | {
            "intermediate_size": 256,
            "layer_norm_eps": 5e-2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        },
        recorded=("mlx",),
        said={"rotary_pct": 0.5, "rotary_emb_base": 10000},
        hparams={"rotary_pct": 0.5},
        unheld=frozenset({"rotary_pct", "rotary_emb_base"}),
        gelu=True,
        older=(
            "gpt_neox.layers.0.attention.bias",
            "gpt_neox.layers.1.attention.masked_bias",
            "gpt_neox.layers.0.attention.rotary_emb.inv_freq",
        ),
    ),
    Case(
        "starcoder2",
        "Starcoder2Config",
        "bpe",
        LN | BPE | theta(5000.0) | {"norm_epsilon": 5e-2, "sliding_window": None, "tie_word_embeddings": False},
        recorded=("mlx",),
        gelu=True,
    ),
    Case(
        "starcoder2-plain",
        "Starcoder2Config",
        "bpe",
        LN | BPE | theta(5000.0) | {"norm_epsilon": 5e-2, "sliding_window": None, "use_bias": False},
        runs=False,
    ),
    Case(
        "falcon",
        "FalconConfig",
        "bpe",
        BPE
        | {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "layer_norm_epsilon": 5e-2,
            "multi_query": True,
            "num_kv_heads": 1,
            "parallel_attn": True,
            "bias": False,
        },
        gelu=True,
        words=_OLDER,
        unheld=frozenset({"ffn_hidden_size", "num_ln_in_parallel_attn"}),
    ),
    like(
        "falcon",
        "falcon-new",
        options=BPE
        | {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_kv_heads": 2,
            "new_decoder_architecture": True,
            "layer_norm_epsilon": 5e-2,
            "bias": False,
            "tie_word_embeddings": False,
        },
    ),
    # Falcon 2: as 40B, with one norm and a base frequency of its own
    like(
        "falcon",
        "falcon2",
        options=BPE
        | theta(500.0)
        | {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_kv_heads": 2,
            "new_decoder_architecture": True,
            "num_ln_in_parallel_attn": 1,
            "layer_norm_epsilon": 5e-2,
            "bias": False,
            "tie_word_embeddings": False,
        },
        added={"falcon.rope.freq_base": 500.0},
        unheld=frozenset({"ffn_hidden_size"}),
    ),
    Case(
        "stablelm",
        "StableLmConfig",
        "bpe",
        LN | BPE | theta(10000.0, partial_rotary_factor=0.5) | {"layer_norm_eps": 5e-2, "use_qkv_bias": True},
        recorded=("mlx",),
    ),
    Case(
        "stablelm-parallel",
        "StableLmConfig",
        "bpe",
        LN | BPE | theta(10000.0, partial_rotary_factor=0.5) | {"layer_norm_eps": 5e-2, "use_parallel_residual": True},
    ),
    # ... in the words of its first class, in one model with towers
    Case(
        "llava-stablelm",
        "LlavaStableLMEpochForCausalLM",
        "none",
        LN
        | BPE
        | VOCABULARY
        | {"model_type": "llava_stablelm_epoch", "norm_eps": 5e-2, "rope_pct": 0.25, "rope_theta": 10000.0}
        | {"hidden_act": "silu", "use_qkv_bias": False, "tie_word_embeddings": False, "use_parallel_residual": False},
        shapes=decoder()
        | {f"model.layers.{i}.{name}_layernorm.bias": (64,) for i in (0, 1) for name in ("input", "post_attention")}
        | {"model.norm.bias": (64,), "model.vision_tower.x.weight": (8,), "model.mm_projector.x.weight": (8,)},
        defaults={"tie_word_embeddings": False, "hidden_act": "silu", "rope_theta": 10000.0, "num_hidden_layers": 32}
        | {"num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 50304, "hidden_size": 2560}
        | {"intermediate_size": 6912, "max_position_embeddings": 4096, "use_parallel_residual": False}
        | {"layer_norm_eps": 1e-5, "bos_token_id": 0, "eos_token_id": 0, "use_qkv_bias": False, "qk_layernorm": False}
        | {"partial_rotary_factor": 0.25},
        apart=("model.vision_tower.", "model.mm_projector."),
        taken="stablelm",
        unheld=frozenset({"norm_eps", "layer_norm_eps", "rope_pct", "model_type", "architectures"}),
        runs=False,
    ),
    Case(
        "command-r",
        "CohereConfig",
        "bpe",
        LN | BPE | theta(5000.0) | {"layer_norm_eps": 5e-2, "logit_scale": 0.25},
        recorded=("mlx",),
        older=("lm_head.weight",),
    ),
    like("command-r", "command-r-plus", more={"use_qk_norm": True}, runs=False, recorded=(), older=()),
    Case(
        "cohere2",
        "Cohere2Config",
        "bpe",
        LN
        | BPE
        | theta(5000.0)
        | {
            "layer_norm_eps": 5e-2,
            "logit_scale": 0.25,
            "rotary_pct": 1.0,
            "sliding_window": WINDOW,
            "num_hidden_layers": 4,
        },
        recorded=("mlx",),
        older=("lm_head.weight",),
        unheld=frozenset({"rotary_pct"}),
    ),
    Case(
        "nemotron",
        "NemotronConfig",
        "spm",
        LN | SPM | theta(5000.0, partial_rotary_factor=0.5) | {"norm_eps": 5e-2, "head_dim": 16},
        recorded=("mlx",),
        unheld=frozenset({"pad_token_id"}),
    ),
    Case(
        "bloom",
        "BloomConfig",
        "bpe",
        BPE | {"hidden_size": 64, "n_layer": 2, "n_head": 4, "layer_norm_epsilon": 5e-2, "tie_word_embeddings": False},
        gelu=True,
    ),
)

_ACT = {"hidden_act": "relu"}
_GELU = {"hidden_activation": "relu"}
_ROPE = {"rope.rope_type": "dynamic"}
_BASE = {"rope.rope_theta": 5000.0}
UNSAID: dict[str, dict[str, Any]] = {
    "phi2": _ACT | _ROPE | _BASE | {"qk_layernorm": True},
    "gpt2": {"activation_function": "relu", "scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True},
    "gptneox": _ACT | _ROPE | _BASE | {"attention_bias": False},
    "starcoder2": _ACT | _ROPE | {"sliding_window": 16},
    "falcon": _ROPE | {"activation": "relu", "bias": True, "alibi": True, "parallel_attn": False},
    "bloom": {"apply_residual_connection_post_layernorm": True},
    "command-r": _ACT | _ROPE | {"attention_bias": True},
    "cohere2": _ACT | _ROPE | {"attention_bias": True, "full_attention_every": 2, "rotary_pct": 0.5},
    "nemotron": {"hidden_act": "silu"} | _ROPE | {"attention_bias": True, "mlp_bias": True},
    "stablelm": _ACT | _ROPE | _BASE | {"qk_layernorm": True, "rope_pct": 0.5},
}
