"""Small DeepSeek V4s: hyper-connections, compressed attention, experts chosen by a table. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles import published_packings
from tests.oracles.case import Case, table
from tests.oracles.families.common import BPE, GQA, WINDOW
from tests.oracles.families.wrapped import VOCABULARY, Shapes

_BPE = VOCABULARY["vocab_size"]
_RATIOS = [0, 4, 128, 4, 0]  # the last: of the layer that predicts further tokens
_HASHED = 1


def _compressor(at: str, head: int, ratio: int) -> Shapes:
    wide = head * (2 if ratio == 4 else 1)
    return {
        f"{at}.ape": (ratio, wide), f"{at}.norm.weight": (head,), f"{at}.wkv.weight": (wide, 64),
        f"{at}.wgate.weight": (wide, 64),
    }  # fmt: skip


def _attention(at: str, ratio: int) -> Shapes:
    out: Shapes = {
        f"{at}.attn_sink": (4,), f"{at}.wq_a.weight": (32, 64), f"{at}.q_norm.weight": (32,),
        f"{at}.wq_b.weight": (384, 32), f"{at}.wkv.weight": (96, 64), f"{at}.kv_norm.weight": (96,),
        f"{at}.wo_a.weight": (96, 192), f"{at}.wo_b.weight": (64, 96),
    }  # fmt: skip
    if ratio:
        out |= _compressor(f"{at}.compressor", 96, ratio)
    if ratio == 4:
        out |= {f"{at}.indexer.wq_b.weight": (96, 32), f"{at}.indexer.weights_proj.weight": (2, 64)}
        out |= _compressor(f"{at}.indexer.compressor", 48, ratio)
    return out


def _layer(at: str, ratio: int, *, hashed: bool) -> Shapes:
    out: Shapes = {f"{at}.attn_norm.weight": (64,), f"{at}.ffn_norm.weight": (64,), f"{at}.ffn.gate.weight": (6, 64)}
    out |= _attention(f"{at}.attn", ratio)
    out |= {f"{at}.ffn.gate.tid2eid": (_BPE, 2)} if hashed else {f"{at}.ffn.gate.bias": (6,)}
    for part in ("attn", "ffn"):
        out |= {f"{at}.hc_{part}_fn": (24, 256), f"{at}.hc_{part}_base": (24,), f"{at}.hc_{part}_scale": (3,)}
    for expert in (*(f"experts.{e}" for e in range(6)), "shared_experts"):
        for name, shape in (("w1", (32, 64)), ("w2", (64, 32)), ("w3", (32, 64))):
            out[f"{at}.ffn.{expert}.{name}.weight"] = shape
    return out


_TOP: Shapes = {
    "embed.weight": (_BPE, 64), "norm.weight": (64,), "head.weight": (_BPE, 64), "hc_head_fn": (4, 256),
    "hc_head_base": (4,), "hc_head_scale": (1,),
}  # fmt: skip


def dspark_shapes(stages: int, targets: int, rank: int) -> Shapes:
    """The draft inside a folder: blocks as those without compressed attention, and what the first and last have."""
    out: Shapes = {}
    for i in range(stages):
        out |= _layer(f"mtp.{i}", 0, hashed=False)
    out |= {"mtp.0.main_proj.weight": (64, targets * 64), "mtp.0.main_norm.weight": (64,)}
    last = f"mtp.{stages - 1}"
    out |= {f"{last}.markov_head.markov_w{n}.weight": (_BPE, rank) for n in (1, 2)}
    out[f"{last}.confidence_head.proj.weight"] = (1, 64 + rank)
    return out | {f"{last}.{n}": s for n, s in _TOP.items() if n.startswith(("norm.", "hc_"))}


def _shapes(*, sees: bool = False) -> Shapes:
    """`sees`: with a bias for the tokens of images."""
    out = dict(_TOP)
    for i, ratio in enumerate(_RATIOS[:-1]):
        out |= _layer(f"layers.{i}", ratio, hashed=i < _HASHED)
        if sees:
            out[f"layers.{i}.ffn.gate.bias_vl"] = (6,)
    return out


DEEPSEEK_V4: dict[str, Any] = (
    {key: value for key, value in GQA.items() if key != "intermediate_size"}
    | BPE
    | {
        "model_type": "deepseek_v4", "num_hidden_layers": 4, "num_key_value_heads": 1, "moe_intermediate_size": 32,
        "head_dim": 96, "q_lora_rank": 32, "qk_rope_head_dim": 16, "num_experts_per_tok": 2, "n_routed_experts": 6,
        "n_shared_experts": 1, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "norm_topk_prob": True,
        "routed_scaling_factor": 1.5, "compress_ratios": _RATIOS, "num_hash_layers": _HASHED, "swiglu_limit": 1.5,
        "sliding_window": WINDOW, "o_groups": 2, "o_lora_rank": 48, "index_n_heads": 2, "index_head_dim": 48,
        "index_topk": 8, "hc_mult": 4, "hc_sinkhorn_iters": 5, "hc_eps": 1e-4, "num_nextn_predict_layers": 1,
        "rope_theta": 5000.0, "compress_rope_theta": 20000.0, "hidden_act": "silu", "attention_bias": False,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 8.0,
            "beta_slow": 1.0,
        },
        "tie_word_embeddings": False,
    }
)  # fmt: skip

#: What a config says of the draft in its folder.
DSPARK: dict[str, Any] = {
    "dspark_block_size": 5, "dspark_noise_token_id": _BPE - 9, "dspark_target_layer_ids": [1, 2, 3],
    "dspark_markov_rank": 32, "num_nextn_predict_layers": 1, "compress_ratios": [*_RATIOS[:-1], 0, 0],
}  # fmt: skip
SPREADS = (
    (("ffn.gate.weight",), (0.0, 0.1)),
    (("hc_attn_scale", "hc_ffn_scale", "hc_head_scale"), (1.0, 0.25)),
)

_BESIDE = ("mtp.0.norm.weight", "vision.norm.weight", "aligner.w1.weight", "image_newline")
_UNHELD = frozenset({"topk_method"})
CASES = table(
    # in floats, which the reference takes of no expert
    Case(
        "deepseek4",
        "DeepseekV4ForCausalLM",
        "bpe",
        DEEPSEEK_V4,
        shapes=_shapes(),
        judged=False,
        spreads=SPREADS,
        recorded=("types",),
        unheld=_UNHELD,
        beside=_BESIDE,
        alone=("head.weight",),
        runs=False,  # llama.cpp b11549 divides by zero where it makes the cache of a small one
    ),
    # ... and with biases for the tokens of images
    Case(
        "deepseek4-vision",
        "DeepseekV4ForCausalLM",
        "none",
        DEEPSEEK_V4,
        shapes=_shapes(sees=True),
        unheld=_UNHELD,
        older=("layers.0.ffn.gate.bias",),
        alone=("head.weight",),
    ),
    # ... as it is published: llama.cpp rounds what it multiplies with blocks to 8 bits
    Case(
        "deepseek4-published",
        "DeepseekV4ForCausalLM",
        "bpe",
        DEEPSEEK_V4,
        shapes=_shapes(),
        packed=published_packings.deepseek_v4,
        golden=False,
        runs=False,
        returns=False,  # but its matrices in FP8 become Q8_0
        unheld=_UNHELD,
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "deepseek4": {"hidden_act": "gelu", "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}
    | {"topk_method": "greedy", "rope.rope_type": "longrope"},
}
