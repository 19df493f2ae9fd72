"""Small EuroBERTs, NeoBERTs and Jina 5, Youtu, Solar Open, DBRX, Nanbeige and Phi-4 vision. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, like, table
from tests.oracles.families.common import BPE, GQA, SMALL, theta
from tests.oracles.families.published import PLAIN, PUBLISHED
from tests.oracles.families.wrapped import Shapes, decoder, whole

_ROWS = vocabularies.BPE_SIZE
_MOE_SPREADS = ((("mlp.gate.weight",), (0.0, 0.1)),)
_LATENT: dict[str, Any] = SMALL | BPE | theta(5000.0) | {
    "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 24, "rms_norm_eps": 1e-6,
}  # fmt: skip
_MOE: dict[str, Any] = {
    "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
}  # fmt: skip


def _latent(front: str = "model.", layers: int = 2) -> Shapes:
    """The latent attention of a DeepSeek V3, and norms around it."""
    one: Shapes = {
        "input_layernorm.weight": (64,), "post_attention_layernorm.weight": (64,),
        "self_attn.q_a_proj.weight": (32, 64), "self_attn.q_a_layernorm.weight": (32,),
        "self_attn.q_b_proj.weight": (96, 32), "self_attn.kv_a_proj_with_mqa.weight": (40, 64),
        "self_attn.kv_a_layernorm.weight": (32,), "self_attn.kv_b_proj.weight": (160, 32),
        "self_attn.o_proj.weight": (64, 96),
    }  # fmt: skip
    out = {f"{front}layers.{i}.{name}": shape for i in range(layers) for name, shape in one.items()}
    return out | {
        f"{front}embed_tokens.weight": (_ROWS, 64),
        f"{front}norm.weight": (64,),
        "lm_head.weight": (_ROWS, 64),
    }


def dense(at: str) -> Shapes:
    """A gated feed forward."""
    return {f"{at}gate_proj.weight": (96, 64), f"{at}up_proj.weight": (96, 64), f"{at}down_proj.weight": (64, 96)}


def chosen(at: str, *, shared: str = "shared_experts.", bias: str = "gate.e_score_correction_bias") -> Shapes:
    """Four experts, what chooses among them with a bias, and a shared one."""
    small: Shapes = {"gate_proj.weight": (32, 64), "up_proj.weight": (32, 64), "down_proj.weight": (64, 32)}
    out: Shapes = {f"{at}gate.weight": (4, 64)} | ({f"{at}{bias}": (4,)} if bias else {})
    for where in (*(f"experts.{e}." for e in range(4)), *((shared,) if shared else ())):
        out |= {f"{at}{where}{name}": shape for name, shape in small.items()}
    return out


def predicting(at: str) -> Shapes:
    """What a layer that predicts one token more has beside the others'."""
    rows = (_ROWS, 64)
    return {
        f"{at}embed_tokens.weight": rows, f"{at}enorm.weight": (64,), f"{at}hnorm.weight": (64,),
        f"{at}eh_proj.weight": (64, 128), f"{at}shared_head.norm.weight": (64,), f"{at}shared_head.head.weight": rows,
    }  # fmt: skip


_LITE: dict[str, Any] = _LATENT | _MOE | {
    "vocab_size": _ROWS, "model_type": "glm4_moe_lite", "hidden_act": "silu", "tie_word_embeddings": False,
    "attention_bias": False, "rope_interleave": True, "head_dim": 8,
}  # fmt: skip
_LITE_UNHELD = PLAIN | {"rope_interleave", "qk_head_dim"}

_NEO: dict[str, Any] = {
    "model_type": "neobert", "hidden_size": 64, "intermediate_size": 144, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_length": 256, "norm_eps": 3e-3, "vocab_size": 600, "pad_token_id": 0,
}  # fmt: skip


def _neobert(front: str = "") -> Shapes:
    one: Shapes = {
        "attention_norm.weight": (64,), "ffn_norm.weight": (64,), "qkv.weight": (192, 64), "wo.weight": (64, 64),
        "ffn.w12.weight": (192, 64), "ffn.w3.weight": (64, 96),
    }  # fmt: skip
    layers = {f"{front}transformer_encoder.{i}.{name}": shape for i in (0, 1) for name, shape in one.items()}
    return layers | {f"{front}encoder.weight": (600, 64), f"{front}layer_norm.weight": (64,)}


_NEO_DEFAULTS: dict[str, Any] = {
    "vocab_size": 30064, "hidden_size": 768, "num_hidden_layers": 28, "num_attention_heads": 12,
    "intermediate_size": 3072, "max_length": 1024, "norm_eps": 1e-5,
}  # fmt: skip
_EURO: dict[str, Any] = GQA | {
    "model_type": "eurobert", "vocab_size": _ROWS, "rope_theta": 10000.0, "hidden_act": "silu",
    "attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip

_EMBED: dict[str, Any] = GQA | BPE | {
    "model_type": "llama_bidirec", "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
    "rope_theta": 2000.0,
}  # fmt: skip
_EMBED_SCALED: dict[str, Any] = {
    "head_dim": 24,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}  # fmt: skip
_EMBED_ADDED = {"llama-embed.attention.causal": False, "llama-embed.pooling_type": 1}
_WIDER = {"q_proj": (96, 64), "k_proj": (48, 64), "v_proj": (48, 64), "o_proj": (64, 96)}
_EMBED_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "hidden_act": "silu",
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "bos_token_id": 1, "eos_token_id": 2,
    "rope_theta": 10000.0, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip

_NANBEIGE: dict[str, Any] = {
    "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 70000000.0, "tie_word_embeddings": False,
}  # fmt: skip


def _wide() -> Shapes:
    """A decoder whose heads are twice as wide."""
    ends = {
        "q_proj.weight": (128, 64),
        "k_proj.weight": (64, 64),
        "v_proj.weight": (64, 64),
        "o_proj.weight": (64, 128),
    }
    return {n: next((w for end, w in ends.items() if n.endswith(end)), s) for n, s in decoder().items()}


CASES = table(
    Case(
        "glm4.7-flash-further",
        "Glm4MoeLiteForCausalLM",
        "none",
        _LITE | {"num_nextn_predict_layers": 1},
        shapes=_latent(layers=3)
        | dense("model.layers.0.mlp.")
        | chosen("model.layers.1.mlp.")
        | chosen("model.layers.2.mlp.")
        | predicting("model.layers.2."),
        head="Glm4MoeLiteForCausalLM",
        runs=False,
        unheld=_LITE_UNHELD,
        recorded=("mlx",),
        spreads=_MOE_SPREADS,
    ),
    Case(
        "youtu",
        "YoutuForCausalLM",
        "none",
        _LATENT
        | {
            "vocab_size": _ROWS,
            "model_type": "youtu",
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "attention_bias": False,
            "rope_interleave": True,
            "head_dim": 8,
        },
        shapes=_latent() | dense("model.layers.0.mlp.") | dense("model.layers.1.mlp."),
        head="YoutuForCausalLM",
        runs=False,
        unheld=_LITE_UNHELD,
    ),
    whole(
        "youtu-vl",
        "YoutuVLForConditionalGeneration",
        _LATENT
        | {
            "vocab_size": _ROWS,
            "model_type": "youtu_vl",
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "attention_bias": False,
            "rope_interleave": True,
            "head_dim": 8,
        },
        _latent() | dense("model.layers.0.mlp.") | dense("model.layers.1.mlp."),
        ("siglip2.", "merger."),
        unheld=_LITE_UNHELD,
        taken="youtu",
        part_type="youtu",
    ),
    Case(
        "solar-open",
        "SolarOpenForCausalLM",
        "none",
        PUBLISHED
        | _MOE
        | {"model_type": "solar_open", "head_dim": 16, "attention_bias": False, "partial_rotary_factor": 1.0},
        shapes={n: s for n, s in decoder().items() if ".mlp." not in n}
        | dense("model.layers.0.mlp.")
        | chosen("model.layers.1.mlp."),
        head="SolarOpenForCausalLM",
        runs=False,
        taken="glm4_moe",
        unheld=PLAIN,
        spreads=_MOE_SPREADS,
        recorded=("mlx",),
    ),
    Case(
        "eurobert",
        "EuroBertModel",
        "none",
        _EURO,
        shapes=decoder(front="", head=""),
        runs=False,
        unheld=frozenset({"pad_token_id"}),
        hparams={"classifier_pooling": None},
    ),
    # Llama Embed Nemotron
    Case(
        "llama-embed",
        "LlamaBidirectionalModel",
        "bpe",
        _EMBED | {"head_dim": 16},
        shapes=decoder(front="", head=""),
        defaults=_EMBED_DEFAULTS,
        added=_EMBED_ADDED,
    ),
    # ... with scaled positions, as published, beside which transformers 5 reads no tokenizer
    Case(
        "llama-embed-scaled",
        "LlamaBidirectionalModel",
        "none",
        _EMBED | _EMBED_SCALED,
        shapes={n: _WIDER.get(n.split(".")[-2], s) for n, s in decoder(front="", head="").items()},
        defaults=_EMBED_DEFAULTS,
        added=_EMBED_ADDED,
    ),
    Case(
        "jina-v5",
        "JinaEmbeddingsV5Model",
        "none",
        _EURO,
        shapes=decoder(front="", head=""),
        runs=False,
        head="JinaEmbeddingsV5Model",
        unheld=frozenset({"pad_token_id"}),
        hparams={"classifier_pooling": None},
        part_type="eurobert",
    ),
    Case(
        "eurobert-masked",
        "EuroBertForMaskedLM",
        "none",
        _EURO,
        shapes=decoder(head=""),
        runs=False,
        beside=("lm_head.weight", "classifier.weight", "dense.weight"),
        head="EuroBertForMaskedLM",
        unheld=frozenset({"pad_token_id"}),
        hparams={"classifier_pooling": None, "architectures": ["EuroBertModel"]},
    ),
    Case("neobert", "NeoBERT", "none", _NEO, shapes=_neobert(), runs=False, defaults=_NEO_DEFAULTS),
    Case(
        "neobert-lm",
        "NeoBERTLMHead",
        "none",
        _NEO,
        shapes=_neobert("model.") | {"decoder.weight": (600, 64)},
        head="NeoBERTLMHead",
        apart=("decoder.",),
        runs=False,
        defaults=_NEO_DEFAULTS,
    ),
    Case(
        "neobert-labels",
        "NeoBERTForSequenceClassification",
        "none",
        _NEO | {"id2label": {"0": "bad", "1": "fair", "2": "good"}},
        shapes=_neobert("model.")
        | {"dense.weight": (64, 64), "dense.bias": (64,), "classifier.weight": (3, 64), "classifier.bias": (3,)},
        head="NeoBERTForSequenceClassification",
        runs=False,
        defaults=_NEO_DEFAULTS,
    ),
    Case(
        "dbrx",
        "DbrxConfig",
        "none",
        BPE
        | {
            "d_model": 64,
            "n_heads": 4,
            "n_layers": 2,
            "max_seq_len": 256,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 1.5, "rope_theta": 5000.0},
            "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
        },
        unheld=frozenset({"num_key_value_heads", "attn_config", "ffn_config"}),
        told=("config.json: rope_parameters.rope_theta",),  # which transformers 5 rotates by
    ),
    # ... that also says its base where transformers 5 reads it
    like("dbrx", "dbrx-rotated", theta(5000.0), told=(), recorded=("mlx",)),
    Case(
        "nanbeige",
        "NanbeigeForCausalLM",
        "none",
        PUBLISHED | {"model_type": "nanbeige", "num_loops": 2, "skip_loop_final_norm": True, "head_dim": 32},
        shapes=_wide(),
        runs=False,
        defaults=_NANBEIGE,
        recorded=("mlx",),
    ),
    like("nanbeige", "nanbeige-plain", options=PUBLISHED | {"model_type": "nanbeige"}, shapes=decoder()),
    whole(
        "phi4-vision",
        "Phi4ForCausalLMV",
        PUBLISHED
        | {"model_type": "phi4-siglip", "original_max_position_embeddings": 256, "partial_rotary_factor": 1.0},
        {
            n: s
            for n, s in decoder().items()
            if not any(p in n for p in ("q_proj", "k_proj", "v_proj", "gate_p", "up_p"))
        }
        | {f"model.layers.{i}.self_attn.qkv_proj.weight": (128, 64) for i in (0, 1)}
        | {f"model.layers.{i}.mlp.gate_up_proj.weight": (192, 64) for i in (0, 1)},
        ("model.vision_tower.", "model.mm_projector."),
        taken="phi3",
        part_type="phi3",
        unheld=PLAIN,
    ),
)
_SILENT = {"hidden_act": "relu", "rope.rope_type": "dynamic"}
UNSAID: dict[str, dict[str, Any]] = {
    "glm4moelite": {**_SILENT, "attention_bias": True, "rope_interleave": False, "rms_norm_eps": 1e-4},
    "youtu": {**_SILENT, "attention_bias": True, "rope_interleave": False, "rms_norm_eps": 1e-4},
    "solar-open": {**_SILENT, "scoring_func": "softmax", "n_group": 2, "attention_bias": True},
    "llama-embed": {"hidden_act": "gelu", "attention_bias": True, "mlp_bias": True, "rope.rope_type": "longrope"},
    "eurobert": {**_SILENT, "attention_bias": True, "mlp_bias": True},
    "dbrx": {"ffn_config.moe_normalize_expert_weights": 2.0},
    "nanbeige": _SILENT,
}
