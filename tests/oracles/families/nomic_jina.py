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


def _adapted(name: str, rows: int, columns: int, turned: bool = False) -> Shapes:
    """A matrix and its adapters, those of an embedding with the rank behind."""
    at = f"{name}.parametrizations.weight"
    pair = ((5, rows, 4), (5, 4, columns)) if turned else ((5, 4, columns), (5, rows, 4))
    return {f"{at}.original": (rows, columns), f"{at}.0.lora_A": pair[0], f"{at}.0.lora_B": pair[1]}


def _jina_shapes() -> Shapes:
    """jina-embeddings-v3: an XLM-RoBERTa that rotates, with adapters of five tasks."""
    out = {
        **_adapted("embeddings.word_embeddings", vocabularies.XLMR_SIZE, 64, turned=True),
        **_adapted("embeddings.token_type_embeddings", 1, 64, turned=True),
        **_norm("emb_ln"),
        **_adapted("pooler.dense", 64, 64),
        "pooler.dense.bias": (64,),
    }
    for i in range(2):
        at = f"encoder.layers.{i}"
        wide = {"mixer.Wqkv": (192, 64), "mixer.out_proj": (64, 64), "mlp.fc1": (96, 64), "mlp.fc2": (64, 96)}
        for name, shape in wide.items():
            out |= _adapted(f"{at}.{name}", *shape) | {f"{at}.{name}.bias": shape[:1]}
        out |= _norm(f"{at}.norm1") | _norm(f"{at}.norm2")
    return {f"roberta.{name}": shape for name, shape in out.items()}


_TASKS = ["retrieval.query", "retrieval.passage", "separation", "classification", "text-matching"]
_JINA_SAID: dict[str, Any] = {
    "model_type": "xlm-roberta", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "hidden_act": "gelu", "max_position_embeddings": 258, "type_vocab_size": 1,
    "layer_norm_eps": 5e-2, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
    "position_embedding_type": "rotary", "rotary_emb_base": 500.0, "lora_adaptations": _TASKS, "lora_rank": 4,
    "lora_alpha": 1,
}  # fmt: skip
# the defaults of the publisher's XLMRobertaFlashConfig, and the tasks that are published
_JINA_DEFAULTS: dict[str, Any] = {
    "vocab_size": 250002, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
    "num_attention_heads": 16, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 8194, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1,
    "bos_token_id": 0, "eos_token_id": 2, "is_decoder": False, "position_embedding_type": "rotary",
    "rotary_emb_base": 10000.0, "lora_adaptations": _TASKS, "lora_rank": 4, "lora_alpha": 1,
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
    # jina-embeddings-v3 without a task
    Case(
        "jina-bert-v3",
        "XLMRobertaModel",
        "xlmr",
        _JINA_SAID,
        shapes=_jina_shapes(),
        defaults=_JINA_DEFAULTS,
        spreads=(
            (("norm1.weight", "norm2.weight", "emb_ln.weight"), (1.0, 0.25)),
            (("Wqkv.parametrizations.weight.original",), (0.0, 0.2)),
            (("word_embeddings.parametrizations.weight.original",), (0.0, 0.5)),
            (("lora_A", "lora_B"), (0.0, 0.0)),  # of which a GGUF holds none
        ),
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
        "parallel_block": True,
        "parallel_block_tied_norm": True,
        "scale_attn_weights": False,
        "scale_attn_by_inverse_layer_idx": True,
        "ffn_div": 2,
        "moe_normalize_expert_weights": True,
        "num_shared_experts": 1,
        "expert_choice_router": True,
        "rope.rope_type": "linear",
    },
    "jina-bert-v3": {"hidden_act": "relu", "is_decoder": True},
}
