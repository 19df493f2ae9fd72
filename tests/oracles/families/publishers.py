"""The small models of families whose code came with their weights and that no class of transformers computes: plain.py
does. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case
from tests.oracles.families.common import BPE, GQA, SMALL

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


def _deepseek_shapes() -> Shapes:
    def swiglu(at: str, wide: int) -> Shapes:
        wides: Shapes = {f"{at}.{part}_proj.weight": (wide, 64) for part in ("gate", "up")}
        return wides | {f"{at}.down_proj.weight": (64, wide)}

    out: Shapes = {"model.embed_tokens.weight": (_BPE, 64), "model.norm.weight": (64,), "lm_head.weight": (_BPE, 64)}
    for i in range(3):
        at = f"model.layers.{i}"
        out |= {f"{at}.{name}_layernorm.weight": (64,) for name in ("input", "post_attention")}
        out |= {f"{at}.self_attn.{p}_proj.weight": (rows, 64) for p, rows in zip("qkvo", (64, 32, 32, 64), strict=True)}
        out |= {f"{at}.mlp.gate.weight": (6, 64)} if i else swiglu(f"{at}.mlp", 96)
        for part, wide in (*((f"experts.{e}", 32) for e in range(6)), ("shared_experts", 64)) if i else ():
            out |= swiglu(f"{at}.mlp.{part}", wide)
    return out


CASES: dict[str, Case] = {
    case.name: case
    for case in (
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
}
UNSAID: dict[str, dict[str, Any]] = {
    "deci": {"hidden_act": "gelu", "attention_bias": True, "mlp_bias": True, "rope.rope_type": "yarn"},
    "deepseek-moe": {"hidden_act": "gelu", "attention_bias": True, "norm_topk_prob": True, "scoring_func": "sigmoid"},
    "jina-bert-v2": {"position_embedding_type": "absolute", "feed_forward_type": "original"},
}
