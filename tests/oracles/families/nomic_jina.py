"""The small models of embedding models whose classes hide variants that transformers doesn't compute: plain_nomic.py
does. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, table
from tests.oracles.families.publishers import Shapes, _dense, _norm


def _nomic_shapes() -> Shapes:
    """nomic-embed-text-v2-moe: experts in every second layer."""
    out: Shapes = {
        "embeddings.word_embeddings.weight": (vocabularies.XLMR_SIZE, 64),
        "embeddings.token_type_embeddings.weight": (1, 64),
        **_norm("emb_ln"),
    }
    for i in range(4):
        at = f"encoder.layers.{i}"
        out |= _dense(f"{at}.attn.Wqkv", 192, 64) | _dense(f"{at}.attn.out_proj", 64, 64)
        out |= _norm(f"{at}.norm1") | _norm(f"{at}.norm2")
        if i % 2 == 0:
            out |= _dense(f"{at}.mlp.fc1", 96, 64) | _dense(f"{at}.mlp.fc2", 64, 96)
            continue
        out |= {f"{at}.mlp.experts.mlp.w{n}": (6 * 96, 64) for n in (1, 2)}
        out |= {f"{at}.mlp.router.layer.weight": (6, 64), f"{at}.mlp.experts.bias": (64,)}
    return out


_NOMIC_SAID: dict[str, Any] = {
    "model_type": "nomic_bert", "n_embd": 64, "n_inner": 96, "n_layer": 4, "n_head": 4, "n_positions": 2048,
    "max_trained_positions": 2048, "type_vocab_size": 1, "layer_norm_epsilon": 5e-2, "pad_token_id": 1,
    "activation_function": "gelu", "causal": False, "prenorm": False, "qkv_proj_bias": True, "mlp_fc1_bias": True,
    "mlp_fc2_bias": True, "rotary_emb_base": 500, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None, "num_experts": 6, "moe_every_n_layers": 2, "moe_top_k": 2,
    "moe_normalize_expert_weights": False, "num_shared_experts": 0, "expert_choice_router": False,
}  # fmt: skip
# what transformers 4 left to the published words, and 5's class, which knows none of these, has as its defaults
_NOMIC_WORDS: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 16,
    "layer_norm_eps": 5e-2, "max_position_embeddings": 514,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}  # fmt: skip
_NOMIC_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "head_dim": 64,
    "max_position_embeddings": 512, "hidden_act": "gelu",
    "vocab_size": 250048, "n_embd": 768, "n_inner": 3072, "n_layer": 12, "n_head": 12, "n_positions": 2048,
    "max_trained_positions": 2048, "type_vocab_size": 1, "layer_norm_epsilon": 1e-5, "pad_token_id": 1,
    "activation_function": "gelu", "causal": False, "prenorm": False, "qkv_proj_bias": True, "mlp_fc1_bias": True,
    "mlp_fc2_bias": True, "rotary_emb_base": 10000.0, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None, "num_experts": 8, "moe_top_k": 2,
    "moe_normalize_expert_weights": False, "num_shared_experts": 0, "expert_choice_router": False,
}  # fmt: skip

CASES = table(
    # nomic-embed-text-v2-moe, in the words of its published config
    Case(
        "nomic-bert-moe",
        "NomicBertModel",
        "xlmr",
        _NOMIC_SAID,
        shapes=_nomic_shapes(),
        defaults=_NOMIC_DEFAULTS,
        spreads=(
            (("norm1.weight", "norm2.weight", "emb_ln.weight"), (1.0, 0.25)),
            (("Wqkv.weight",), (0.0, 0.2)),
            (("router.layer.weight",), (0.0, 0.5)),
            (("experts.bias",), (0.0, 0.0)),  # which llama.cpp's graph doesn't add
        ),
        hparams=_NOMIC_WORDS,
        words={"n_embd": 768, "n_inner": 3072, "n_layer": 12, "n_head": 12, "moe_every_n_layers": 2},
        judged=False,  # the reference puts <mask> at the number that it has in the published vocabulary
        gelu=True,
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "nomic-bert-moe": {
        "activation_function": "swiglu",
        "causal": True,
        "prenorm": True,
        "rotary_emb_fraction": 0.5,
        "rotary_emb_interleaved": True,
        "moe_normalize_expert_weights": True,
        "num_shared_experts": 1,
        "expert_choice_router": True,
        "rope.rope_type": "linear",
    },
}
