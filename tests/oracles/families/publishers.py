"""The small models of families whose code came with their weights and that no class of transformers computes: plain.py
does. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, table
from tests.oracles.families.common import BPE, GQA, SMALL, WINDOW

Shapes = dict[str, tuple[int, ...]]
_BPE = vocabularies.BPE_SIZE


def _layers(count: int, one: Shapes, front: str) -> Shapes:
    return {f"{front}{i}.{name}": shape for i in range(count) for name, shape in one.items()}


def _dense(name: str, rows: int, columns: int) -> Shapes:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def _norm(name: str) -> Shapes:
    return {f"{name}.weight": (64,), f"{name}.bias": (64,)}


_JINA: Shapes = {
    "embeddings.word_embeddings.weight": (vocabularies.WORDPIECE_SIZE, 64),
    "embeddings.token_type_embeddings.weight": (3, 64),
    **_norm("embeddings.LayerNorm"),
    **_layers(
        2,
        {
            **_dense("attention.self.query", 64, 64),
            **_dense("attention.self.key", 64, 64),
            **_dense("attention.self.value", 64, 64),
            **_dense("attention.output.dense", 64, 64),
            **_norm("attention.output.LayerNorm"),
            "mlp.gated_layers.weight": (192, 64),
            **_dense("mlp.wo", 64, 96),
            **_norm("mlp.layernorm"),
        },
        "encoder.layer.",
    ),
    **_dense("pooler.dense", 64, 64),
}
_JINA_SAID: dict[str, Any] = {
    "model_type": "bert", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 256, "type_vocab_size": 3, "layer_norm_eps": 5e-2, "pad_token_id": 0,
    "position_embedding_type": "alibi", "feed_forward_type": "geglu", "hidden_act": "gelu",
}  # fmt: skip
_JINA_DEFAULTS: dict[str, Any] = {
    "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512, "type_vocab_size": 2, "initializer_range": 0.02, "layer_norm_eps": 1e-12,
    "pad_token_id": 0, "position_embedding_type": "absolute", "feed_forward_type": "original", "use_cache": True,
    "emb_pooler": None,
}  # fmt: skip

_BLOCKS = ((2, 256), (None, 512), (0, 256), (4, 512), (0, None), (1, 768))  # heads to a key, and the width


def _deci(block: tuple[int | None, int | None]) -> dict[str, Any]:
    """A layer as the config says it: `None` heads to a key: a linear layer, 0: no attention."""
    group, wide = block
    attention = {"n_heads_in_group": group or None, "no_op": group == 0, "replace_with_linear": group is None}
    scale = None if wide is None else wide * 3 / 128
    return {"attention": attention, "ffn": {"ffn_mult": scale, "no_op": wide is None, "replace_with_linear": False}}


def _deci_shapes() -> Shapes:
    out: Shapes = {"model.embed_tokens.weight": (_BPE, 64), "model.norm.weight": (64,), "lm_head.weight": (_BPE, 64)}
    for i, (group, wide) in enumerate(_BLOCKS):
        at = f"model.layers.{i}"
        if group != 0:
            out[f"{at}.input_layernorm.weight"] = (64,)
        if group is None:
            out[f"{at}.self_attn.linear_attn.weight"] = (64, 64)
        elif group:
            rows = {"q": 64, "k": 64 // group, "v": 64 // group, "o": 64}
            out |= {f"{at}.self_attn.{part}_proj.weight": (n, 64) for part, n in rows.items()}
        if wide:
            out[f"{at}.post_attention_layernorm.weight"] = (64,)
            out |= {f"{at}.mlp.{part}_proj.weight": (wide, 64) for part in ("gate", "up")}
            out[f"{at}.mlp.down_proj.weight"] = (64, wide)
    return out


_DECI_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "hidden_act": "silu",
    "initializer_range": 0.02, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "tie_word_embeddings": False,
    "attention_bias": False, "mlp_bias": False, "rope_theta": 10000.0, "rope_scaling": None, "bos_token_id": 1,
    "eos_token_id": 2, "block_configs": None, "head_dim": 128,  # in the code
}  # fmt: skip

_DEEPSEEK_DEFAULTS: dict[str, Any] = {
    "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008, "moe_intermediate_size": 1407,
    "num_hidden_layers": 30, "num_attention_heads": 32, "num_key_value_heads": 32, "n_shared_experts": None,
    "n_routed_experts": None, "num_experts_per_tok": None, "moe_layer_freq": 1, "first_k_dense_replace": 0,
    "norm_topk_prob": False, "scoring_func": "softmax", "hidden_act": "silu", "max_position_embeddings": 2048,
    "initializer_range": 0.02, "rms_norm_eps": 1e-6, "bos_token_id": 100000, "eos_token_id": 100001,
    "tie_word_embeddings": False, "rope_theta": 10000.0, "rope_scaling": None, "attention_bias": False,
}  # fmt: skip


def _deepseek_shapes(keys: int = 32) -> Shapes:
    def swiglu(at: str, wide: int) -> Shapes:
        wides: Shapes = {f"{at}.{part}_proj.weight": (wide, 64) for part in ("gate", "up")}
        return wides | {f"{at}.down_proj.weight": (64, wide)}

    out: Shapes = {"model.embed_tokens.weight": (_BPE, 64), "model.norm.weight": (64,), "lm_head.weight": (_BPE, 64)}
    for i in range(3):
        at = f"model.layers.{i}"
        out |= {f"{at}.{name}_layernorm.weight": (64,) for name in ("input", "post_attention")}
        out |= {
            f"{at}.self_attn.{p}_proj.weight": (rows, 64) for p, rows in zip("qkvo", (64, keys, keys, 64), strict=True)
        }
        out |= {f"{at}.mlp.gate.weight": (6, 64)} if i else swiglu(f"{at}.mlp", 96)
        for part, wide in (*((f"experts.{e}", 32) for e in range(6)), ("shared_experts", 64)) if i else ():
            out |= swiglu(f"{at}.mlp.{part}", wide)
    return out


_OCR_DEFAULTS = _DEEPSEEK_DEFAULTS | {"routed_scaling_factor": 1.0, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
_OCR: dict[str, Any] = GQA | BPE | {
    "num_hidden_layers": 3, "num_key_value_heads": 4, "moe_intermediate_size": 32, "n_routed_experts": 6,
    "n_shared_experts": 2, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "norm_topk_prob": False,
    "scoring_func": "softmax", "moe_layer_freq": 1, "rope_theta": 2000.0, "tie_word_embeddings": False,
    "hidden_act": "silu", "rope_scaling": None, "attention_bias": False, "qk_rope_head_dim": 0,
    "qk_nope_head_dim": 0, "v_head_dim": 0, "use_mla": False, "routed_scaling_factor": 1.0, "topk_method": "greedy",
}  # fmt: skip
_OCR_APART = (
    "model.sam_model.",
    "model.vision_model.",
    "model.projector.",
    "model.image_newline",
    "model.view_seperator",
)
_OCR_TOWERS = tuple(f"{start}x.weight" if start.endswith(".") else start for start in _OCR_APART)
_MIMO: dict[str, Any] = SMALL | BPE | {
    "model_type": "mimo_v2", "num_hidden_layers": 3, "num_key_value_heads": 1, "head_dim": 24, "v_head_dim": 20,
    "moe_intermediate_size": 32, "n_routed_experts": 6, "num_experts_per_tok": 2, "sliding_window": WINDOW,
    "attention_value_scale": 0.707, "hybrid_layer_pattern": [0, 1, 0], "moe_layer_freq": [0, 1, 1],
    "swa_head_dim": 24, "swa_v_head_dim": 20, "swa_num_attention_heads": 4,
    "topk_method": "noaux_tc", "scoring_func": "sigmoid", "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
    "rope_theta": 5000.0, "swa_rope_theta": 500.0, "partial_rotary_factor": 8 / 24,
    "layernorm_epsilon": 3e-3, "rms_norm_eps": 3e-3,
    "tie_word_embeddings": False, "hidden_act": "silu", "attention_bias": False, "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False, "num_nextn_predict_layers": 3, "routed_scaling_factor": None,
}  # fmt: skip
_MIMO_DEFAULTS: dict[str, Any] = {
    "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu", "max_position_embeddings": 32768,
    "layernorm_epsilon": 1e-6, "tie_word_embeddings": False, "rope_theta": 10000.0, "attention_bias": False,
    "partial_rotary_factor": 1.0, "norm_topk_prob": True, "attention_projection_layout": "split", "head_dim": 128,
    "v_head_dim": 128, "swa_num_key_value_heads": 32, "moe_intermediate_size": 22016,
}  # fmt: skip
_MIMO_WORDS: dict[str, Any] = {
    "hybrid_layer_pattern": [0] * 32, "moe_layer_freq": [0] * 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "swa_rope_theta": 10000.0,
}  # fmt: skip
# what a GGUF holds in the words of transformers' class, of which it can't be told
_MIMO_SAME = frozenset({
    "hybrid_layer_pattern", "moe_layer_freq", "swa_head_dim", "swa_v_head_dim", "swa_num_attention_heads",
    "topk_method", "scoring_func", "topk_group", "n_group", "add_swa_attention_sink_bias",
    "add_full_attention_sink_bias", "attention_projection_layout", "layernorm_epsilon", "routed_scaling_factor",
    "rms_norm_eps", "rope_sliding",
})  # fmt: skip

# ... and those that it has where it can
_MIMO_OWN = frozenset({
    "attention_projection_layout", "hybrid_layer_pattern", "moe_layer_freq", "n_group", "topk_group",
    "add_swa_attention_sink_bias", "layernorm_epsilon",
})  # fmt: skip
_MIMO_GUESSES = ("assuming the class MiMoV2FlashForCausalLM: a mimo2 GGUF of MiMoV2ForCausalLM is the same",)


def _mimo_shapes(fused: bool, windowed: int) -> Shapes:
    out: Shapes = {"model.embed_tokens.weight": (_BPE, 64), "model.norm.weight": (64,), "lm_head.weight": (_BPE, 64)}
    for i in range(6):
        at, heads = f"model.layers.{i}" if i < 3 else f"model.mtp.layers.{i - 3}", 1 if i in (0, 2) else windowed
        second = "post_attention" if i < 3 else "pre_mlp"
        out |= {f"{at}.{name}_layernorm.weight": (64,) for name in ("input", second)}
        rows = {"q": 96, "k": heads * 24, "v": heads * 20}
        split: Shapes = {f"{at}.self_attn.{part}_proj.weight": (n, 64) for part, n in rows.items()}
        out |= {f"{at}.self_attn.qkv_proj.weight": (sum(rows.values()), 64)} if fused else split
        out[f"{at}.self_attn.o_proj.weight"] = (64, 80)
        out |= {f"{at}.self_attn.attention_sink_bias": (4,)} if heads > 1 else {}
        out |= {f"{at}.{name}.weight": (64,) for name in ("enorm", "hnorm", "final_layernorm") if i >= 3}
        out |= {f"{at}.eh_proj.weight": (64, 128)} if i >= 3 else {}
        sparse = i in (1, 2)
        out |= {f"{at}.mlp.gate.weight": (6, 64), f"{at}.mlp.gate.e_score_correction_bias": (6,)} if sparse else {}
        for part, wide in ((f"experts.{e}.", 32) for e in range(6)) if sparse else (("", 96),):
            out |= {f"{at}.mlp.{part}{name}_proj.weight": (wide, 64) for name in ("gate", "up")}
            out[f"{at}.mlp.{part}down_proj.weight"] = (64, wide)
    return out


def _mimo(name: str, layout: str, windowed: int, **more: Any) -> Case:
    """`windowed`: how many keys a layer with a window has; transformers' class has twice as many as in others."""
    shapes = _mimo_shapes(layout == "fused_qkv", windowed)
    return Case(
        name,
        "MiMoV2ForCausalLM",
        "bpe",
        _MIMO | {"attention_projection_layout": layout, "swa_num_key_value_heads": windowed},
        shapes=shapes,
        defaults=_MIMO_DEFAULTS,
        words=_MIMO_WORDS | {"attention_projection_layout": layout},
        hparams={"rms_norm_eps": None},  # which would have another place among the keys
        further={n: s for n, s in shapes.items() if ".mtp." in n},
        spreads=((("mlp.gate.weight",), (0.0, 0.1)),),
        **more,
    )


# more blocks of keys than the probe has: without flash attention llama.cpp's graph picks none
_M3: dict[str, Any] = GQA | BPE | {
    "model_type": "minimax_m3_vl_text", "num_hidden_layers": 3, "head_dim": 32, "rotary_dim": 16,
    "intermediate_size": 32, "dense_intermediate_size": 96, "shared_intermediate_size": 96, "num_local_experts": 6,
    "num_experts_per_tok": 2, "n_shared_experts": 3, "routed_scaling_factor": 2.5, "rope_theta": 5000.0,
    "moe_layer_freq": [0, 1, 1], "scoring_func": "sigmoid", "use_qk_norm": True, "tie_word_embeddings": False,
    "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
    "sparse_attention_config": {
        "sparse_num_index_heads": 2, "sparse_index_dim": 16, "sparse_topk_blocks": 8, "sparse_block_size": 16,
        "sparse_local_block": 1, "sparse_attention_freq": [0, 1, 1],
    },
}  # fmt: skip
# which transformers' class takes away, and the reference asks for
_M3_WORDS = {key: _M3[key] for key in ("sparse_attention_config", "moe_layer_freq", "n_shared_experts", "scoring_func")}
# which a GGUF gives back in the words of transformers' class
_M3_SAME = frozenset({
    "sparse_attention_config", "moe_layer_freq", "scoring_func", "use_qk_norm",
})  # fmt: skip


def _m3_shapes(front: str = "model.", head: str = "lm_head.") -> Shapes:
    out: Shapes = {f"{front}embed_tokens.weight": (_BPE, 64), f"{front}norm.weight": (64,), f"{head}weight": (_BPE, 64)}

    def swiglu(at: str, wide: int, parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> Shapes:
        gate, up, down = (f"{at}.{part}.weight" for part in parts)
        return {gate: (wide, 64), up: (wide, 64), down: (64, wide)}

    for i in range(3):
        at, moe = f"{front}layers.{i}", f"{front}layers.{i}.block_sparse_moe"
        out |= {f"{at}.{name}_layernorm.weight": (64,) for name in ("input", "post_attention")}
        out |= {f"{at}.self_attn.{p}_proj.weight": (rows, 64) for p, rows in zip("qkv", (128, 64, 64), strict=True)}
        out |= {f"{at}.self_attn.o_proj.weight": (64, 128)}
        out |= {f"{at}.self_attn.{part}_norm.weight": (32,) for part in "qk"}
        if i == 0:
            out |= swiglu(f"{at}.mlp", 96)
            continue
        out |= {f"{at}.self_attn.index_{p}_proj.weight": (rows, 64) for p, rows in (("q", 32), ("k", 16))}
        out |= {f"{at}.self_attn.index_{part}_norm.weight": (16,) for part in "qk"}
        out |= {f"{moe}.gate.weight": (6, 64), f"{moe}.e_score_correction_bias": (6,)}
        out |= swiglu(f"{moe}.shared_experts", 96)
        for e in range(6):
            out |= swiglu(f"{moe}.experts.{e}", 32, ("w1", "w3", "w2"))
    return out


CASES = table(
    # Llama Nemotron: keys and widths by layer, a linear layer for attention, no attention, no feed forward
    Case(
        "deci",
        "DeciLMForCausalLM",
        "bpe",
        {key: value for key, value in SMALL.items() if key != "intermediate_size"}
        | BPE
        | {
            "model_type": "nemotron-nas",
            "num_hidden_layers": len(_BLOCKS),
            "block_configs": [*map(_deci, _BLOCKS)],
            "rms_norm_eps": 3e-3,
            "rope_theta": 2000.0,
            "tie_word_embeddings": False,
            "hidden_act": "silu",
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
        shapes=_deci_shapes(),
        judged=False,  # its tokenizer is of a size that the reference knows alone
        defaults=_DECI_DEFAULTS,
        words={"block_configs": [_deci((1, 256))] * _DECI_DEFAULTS["num_hidden_layers"]},
        recorded=("mlx",),
    ),
    # DeepSeek MoE 16B: a dense layer, then chosen and shared experts
    Case(
        "deepseek-moe",
        "DeepseekForCausalLM",
        "bpe",
        GQA
        | BPE
        | {
            "model_type": "deepseek",
            "num_hidden_layers": 3,
            "moe_intermediate_size": 32,
            "n_routed_experts": 6,
            "n_shared_experts": 2,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "norm_topk_prob": False,
            "scoring_func": "softmax",
            "moe_layer_freq": 1,
            "rope_theta": 2000.0,
            "tie_word_embeddings": False,
            "hidden_act": "silu",
            "rope_scaling": None,
            "attention_bias": False,
        },
        shapes=_deepseek_shapes(),
        defaults=_DEEPSEEK_DEFAULTS,
        recorded=("mlx",),
    ),
    # MiMo-V2.5: queries, keys and values in one tensor, beside it the parts that see and hear
    _mimo(
        "mimo2-qkv",
        "fused_qkv",
        2,
        unheld=_MIMO_SAME - _MIMO_OWN,
        by_rank=tuple(f"model.layers.{i}.self_attn.qkv_proj.weight" for i in (0, 1)),
        beside=("visual.merger.mlp.0.weight", "audio_encoder.norm.weight", "speech_embeddings.0.weight"),
    ),
    # MiMo-V2.6, which a GGUF doesn't tell from the first
    _mimo(
        "mimo2-split",
        "split",
        4,
        unheld=_MIMO_SAME | {"model_type"},
        head="MiMoV2ForCausalLM",
        taken="mimo_v2_flash",
        guesses=_MIMO_GUESSES,
    ),
    # MiniMax M3: an indexer that picks blocks of keys
    Case(
        "minimax-m3",
        "MiniMaxM3SparseForCausalLM",
        "bpe",
        _M3,
        shapes=_m3_shapes(),
        hparams=_M3_WORDS,
        words={"n_shared_experts": 1},
        unheld=_M3_SAME,
        spreads=((("moe.gate.weight",), (0.0, 0.1)), (("norm.weight",), (0.0, 0.25))),
    ),
    # DeepSeek-OCR, Unlimited-OCR: their language models
    Case(
        "deepseek2-ocr",
        "DeepseekOCRForCausalLM",
        "bpe",
        _OCR | {"model_type": "deepseek_vl_v2"},
        runs=False,  # in llama.cpp; transformers has no class whose logits its could be compared with
        returns=False,  # the towers are in a file of their own: tests/models/test_projectors.py
        shapes=_deepseek_shapes(keys=64) | dict.fromkeys(_OCR_TOWERS, (8,)),
        apart=_OCR_APART,
        defaults=_OCR_DEFAULTS,
        words={"n_shared_experts": 1},
        unheld=frozenset({"topk_method", "qk_nope_head_dim"}),
        spreads=((("moe.gate.weight",), (0.0, 0.1)), (("norm.weight",), (0.0, 0.25))),
    ),
    Case(
        "deepseek2-ocr2",
        "DeepseekOCR2ForCausalLM",
        "none",
        _OCR | {"model_type": "deepseek_vl_v2", "language_config": {"architectures": ["DeepseekV2ForCausalLM"]}},
        head="DeepseekOCR2ForCausalLM",  # whose GGUF is that of the first; a projector tells
        shapes=_deepseek_shapes(keys=64) | {"model.qwen2_model.x.weight": (8,), "model.sam_model.x.weight": (8,)},
        apart=("model.qwen2_model.", "model.sam_model."),
        defaults=_OCR_DEFAULTS,
        words={"n_shared_experts": 1},
        unheld=frozenset({"topk_method", "qk_nope_head_dim", "language_config"}),
        spreads=((("moe.gate.weight",), (0.0, 0.1)), (("norm.weight",), (0.0, 0.25))),
    ),
    Case(
        "unlimited-ocr",
        "UnlimitedOCRForCausalLM",
        "none",
        _OCR | {"model_type": "unlimited-ocr", "sliding_window_size": 16, "norm_topk_prob": True},
        shapes=_deepseek_shapes(keys=64) | dict.fromkeys(_OCR_TOWERS, (8,)),
        apart=_OCR_APART,
        defaults=_OCR_DEFAULTS,
        words={"n_shared_experts": 1},
        unheld=frozenset({"topk_method", "qk_nope_head_dim"}),
        spreads=((("moe.gate.weight",), (0.0, 0.1)), (("norm.weight",), (0.0, 0.25))),
    ),
    # ... beside the part that sees
    Case(
        "minimax-m3-vl",
        "MiniMaxM3SparseForConditionalGeneration",
        "none",
        {"model_type": "minimax_m3_vl", "text_config": _M3 | {"vocab_size": _BPE}},
        shapes=_m3_shapes("language_model.model.", "language_model.lm_head.")
        | {"vision_tower.x.weight": (8,), "multi_modal_projector.x.weight": (8,), "patch_merge_mlp.x.weight": (8,)},
        head="MiniMaxM3SparseForConditionalGeneration",
        apart=("vision_tower.", "multi_modal_projector.", "patch_merge_mlp."),
        beside=("model.vision_tower.x.weight", "model.multi_modal_projector.x.weight"),
        hparams=_M3_WORDS,
        recorded=("mlx",),
        unheld=_M3_SAME,
        taken="minimax_m3_vl_text",
        runs=False,
    ),
    # Jina embeddings v2: no positions, attention that falls off with the distance
    Case(
        "jina-bert-v2",
        "JinaBertModel",
        "wordpiece",
        _JINA_SAID,
        shapes=_JINA,
        defaults=_JINA_DEFAULTS,
        spreads=(((".layernorm.weight",), (1.0, 0.25)), (("query.weight", "key.weight"), (0.0, 0.22))),
        beside=("cls.predictions.bias",),
        prefixed="bert.",
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "deci": {"hidden_act": "gelu", "attention_bias": True, "mlp_bias": True, "rope.rope_type": "yarn"},
    "deepseek-moe": {"hidden_act": "gelu", "attention_bias": True, "norm_topk_prob": True, "scoring_func": "sigmoid"}
    | {"moe_layer_freq": 2, "rope.rope_type": "yarn"},
    "deepseek2-ocr": {"hidden_act": "gelu", "attention_bias": True, "scoring_func": "sigmoid", "moe_layer_freq": 2}
    | {"rope.rope_type": "yarn", "n_group": 2, "use_mla": True, "qk_nope_head_dim": 8, "v_head_dim": 8}
    | {"topk_method": "noaux_tc", "num_key_value_heads": 2},
    "minimax-m3": {"scoring_func": "softmax", "use_qk_norm": False, "swiglu_alpha": 1.5, "swiglu_limit": 6.0}
    | {"rope.rope_type": "longrope"},
    "mimo2-qkv": {"hidden_act": "gelu", "attention_bias": True, "n_group": 2, "norm_topk_prob": False}
    | {"scoring_func": "softmax", "topk_method": "greedy", "routed_scaling_factor": 2.0, "rope.rope_type": "yarn"}
    | {"add_full_attention_sink_bias": True, "add_swa_attention_sink_bias": False, "n_shared_experts": 1},
    "jina-bert-v2": {"position_embedding_type": "absolute", "feed_forward_type": "original"},
}
