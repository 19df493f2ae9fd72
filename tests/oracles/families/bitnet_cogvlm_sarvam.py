"""Small BitNets, CogVLMs and Sarvams, of code that came with the weights. See __init__.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, table
from tests.oracles.families.common import GQA, SPM
from tests.oracles.families.published import PUBLISHED
from tests.oracles.families.remote import CASES as REMOTE
from tests.oracles.families.wrapped import Shapes, decoder, whole

_BITNET: dict[str, Any] = GQA | SPM | {
    "model_type": "bitnet", "vocab_size": vocabularies.SPM_SIZE, "rope_theta": 5000.0, "hidden_act": "silu",
    "attention_bias": False, "tie_word_embeddings": True, "weight_bits": 1, "input_bits": 8,
}  # fmt: skip
_LLAMA_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6, "bos_token_id": 1, "eos_token_id": 2, "rope_theta": 10000.0,
}  # fmt: skip


def _bitnet() -> Shapes:
    """A Llama with norms in front of the last matrix of attention and of the feed forward."""
    out = decoder(head="")
    out["model.embed_tokens.weight"] = (vocabularies.SPM_SIZE, 64)
    for i in (0, 1):
        out[f"model.layers.{i}.self_attn.inner_attn_ln.weight"] = (64,)
        out[f"model.layers.{i}.mlp.ffn_layernorm.weight"] = (96,)
    return out


def _cogvlm() -> Shapes:
    """A Llama with two sets of matrices."""
    out: Shapes = {name: shape for name, shape in decoder().items() if "_proj." not in name}
    for i in (0, 1):
        for part in ("language", "vision"):
            out[f"model.layers.{i}.self_attn.{part}_expert_query_key_value.weight"] = (192, 64)
            out[f"model.layers.{i}.self_attn.{part}_expert_dense.weight"] = (64, 64)
            out[f"model.layers.{i}.mlp.{part}_mlp.gate_proj.weight"] = (96, 64)
            out[f"model.layers.{i}.mlp.{part}_mlp.up_proj.weight"] = (96, 64)
            out[f"model.layers.{i}.mlp.{part}_mlp.down_proj.weight"] = (64, 96)
    return out


_COGVLM: dict[str, Any] = {k: v for k, v in PUBLISHED.items() if k not in ("num_key_value_heads", "rope_theta")} | {
    "model_type": "cogvlm"
}
# As llama.cpp loads them; the reference leaves them out, since their names have a "vision_".
_EXPERTS = {
    f"blk.{i}.{theirs}.weight": f"model.layers.{i}.{name}.weight"
    for i in (0, 1)
    for theirs, name in {
        "vis_attn_qkv": "self_attn.vision_expert_query_key_value", "vis_attn_output": "self_attn.vision_expert_dense",
        "vis_gate": "mlp.vision_mlp.gate_proj", "vis_up": "mlp.vision_mlp.up_proj",
        "vis_down": "mlp.vision_mlp.down_proj",
    }.items()
}  # fmt: skip
_SARVAM: dict[str, Any] = {k: v for k, v in REMOTE["ling2"].options.items() if k != "partial_rotary_factor"} | {
    "model_type": "sarvam_moe", "vocab_size": vocabularies.BPE_SIZE,
}  # fmt: skip
CASES = table(
    Case(
        "bitnet",
        "BitnetForCausalLM",
        "spm",
        _BITNET,
        shapes=_bitnet(),
        defaults=_LLAMA_DEFAULTS | {"tie_word_embeddings": True, "attention_bias": False},
        unheld=frozenset({"weight_bits", "input_bits"}),
        ternary=True,
    ),
    whole(
        "cogvlm",
        "CogVLMForCausalLM",
        _COGVLM,
        _cogvlm(),
        ("model.vision.",),
        hparams={"num_key_value_heads": 4},  # without which the reference fails
        kept=_EXPERTS,
        defaults=_LLAMA_DEFAULTS | {"tie_word_embeddings": False, "pad_token_id": 0},
    ),
    replace(
        REMOTE["ling2"],
        name="sarvam",
        config="SarvamMoEForCausalLM",
        tokenizer="none",
        options=_SARVAM,
        head="SarvamMoEForCausalLM",
        runs=False,
        recorded=(),
        taken="bailing_moe",
        zero_mean=("expert_bias",),
    ),
)  # fmt: skip
UNSAID: dict[str, dict[str, Any]] = {
    "sarvam": {"hidden_act": "relu", "use_bias": True, "use_qkv_bias": True, "score_function": "softmax"}
    | {"use_qk_norm": False, "moe_router_enable_expert_bias": False, "num_shared_experts": 2}
    | {"partial_rotary_factor": 0.5},
    "bitnet": {"hidden_act": "relu2", "attention_bias": True, "rope.rope_type": "dynamic"}
    | {"tie_word_embeddings": False, "weight_bits": 2, "input_bits": 4},
    "cogvlm": {"hidden_act": "relu", "rope.rope_type": "dynamic", "rope.rope_theta": 5000.0},
}
