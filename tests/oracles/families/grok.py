"""Small models of Grok 1 and 2, under the names of the files that the reference converter reads. See __init__.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.oracles.case import Case, like, table
from tests.oracles.families.common import BPE, GQA
from tests.oracles.families.wrapped import VOCABULARY, Shapes, decoder

_BPE = VOCABULARY["vocab_size"]
_TWO: dict[str, Any] = GQA | BPE | VOCABULARY | {
    "model_type": "git", "head_dim": 16, "moe_intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2,
    "embedding_multiplier_scale": 2.5, "output_multiplier_scale": 0.75, "residual_moe": True, "rope_theta": 5000.0,
    "final_logit_softcapping": 12, "attn_logit_softcapping": 4.0, "router_logit_softcapping": 0.0,
    "sliding_window_size": -1, "global_attn_every_n": 1, "rope_type": "original",
    "original_max_position_embeddings": 32, "scaling_factor": 8.0, "extrapolation_factor": 1.0, "attn_factor": 1.0,
    "beta_fast": 8, "beta_slow": 1, "tie_word_embeddings": False,
}  # fmt: skip
_ONE: dict[str, Any] = GQA | BPE | VOCABULARY | {
    "model_type": "grok", "num_local_experts": 4, "num_experts_per_tok": 2, "attn_output_multiplier": 0.3,
    "embedding_multiplier_scale": 2.5, "output_multiplier_scale": 0.75, "rope_theta": 5000.0,
}  # fmt: skip


def _two() -> Shapes:
    out: Shapes = {}
    for name, shape in decoder().items():
        name = name.replace("input_layernorm", "pre_attn_norm").replace("post_attention_layernorm", "post_attn_norm")
        out[name] = shape
    for i in (0, 1):
        at = f"model.layers.{i}."
        out |= {f"{at}pre_moe_norm.weight": (64,), f"{at}post_moe_norm.weight": (64,)}
        out[f"{at}block_sparse_moe.gate.weight"] = (4, 64)
        for e in range(4):
            expert = f"{at}block_sparse_moe.experts.{e}."
            out |= {f"{expert}w1.weight": (32, 64), f"{expert}w2.weight": (64, 32), f"{expert}w3.weight": (32, 64)}
    return out


def _one() -> Shapes:
    out: Shapes = {"transformer.in_out_embed.weight": (_BPE, 64), "transformer.rms_norm.weight": (64,)}
    for i in (0, 1):
        at = f"transformer.decoder_layer.{i}."
        out |= {f"{at}rms_norm{n}.weight": (64,) for n in ("", "_1", "_2", "_3")}
        heads = {"query": (64, 64), "key": (32, 64), "value": (32, 64), "linear": (64, 64)}
        out |= {f"{at}multi_head_attention.{part}.weight": shape for part, shape in heads.items()}
        out[f"{at}router.weight"] = (4, 64)
        for e in range(4):
            expert = f"{at}moe.{e}."
            out |= {f"{expert}linear.weight": (96, 64), f"{expert}linear_1.weight": (64, 96)}
            out[f"{expert}linear_v.weight"] = (96, 64)
    return out


def _template(folder: Path) -> None:
    """Writes a chat template, without which the reference converter refuses tokenizer.json."""
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")


_DEFAULTS: dict[str, Any] = {"attn_logit_softcapping": 30.0, "hidden_act": "gelu", "rope_theta": 10000.0}
_SPREADS = ((("router.weight", "block_sparse_moe.gate.weight"), (0.0, 0.1)),)
CASES = table(
    Case(
        "grok2",
        "Grok1ForCausalLM",
        "bpe",
        _TWO,
        shapes=_two(),
        defaults=_DEFAULTS | {"tie_word_embeddings": False, "layer_norm_eps": 1e-12},
        unheld=frozenset({"sliding_window_size", "global_attn_every_n"}),
        spreads=_SPREADS,
        gelu=True,
        finish=_template,
    ),
    # ... without the dense feed forward, and with what llama.cpp's graph doesn't compute
    like(
        "grok2",
        "grok2-plain",
        options={k: v for k, v in _TWO.items() if k != "router_logit_softcapping"}
        | {"residual_moe": False, "attn_temperature_len": 1024},
        shapes={name: shape for name, shape in _two().items() if ".mlp." not in name},
        told=("config.json: attn_temperature_len",),
    ),
    Case(
        "grok1",
        "GrokForCausalLM",
        "bpe",
        _ONE,
        shapes=_one(),
        defaults=_DEFAULTS | {"tie_word_embeddings": True},
        spreads=_SPREADS,
        gelu=True,
        finish=_template,
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "grok": {"hidden_act": "silu", "sliding_window_size": 64, "global_attn_every_n": 2}
    | {"router_logit_softcapping": 30.0, "attn_temperature_len": 64},
    "grok1": {"hidden_act": "silu"},
}
