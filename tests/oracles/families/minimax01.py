"""Small MiniMax Text-01 and M1s, as their publisher's files name them. See __init__.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.oracles.case import Case, like, table
from tests.oracles.families.common import BPE, GQA
from tests.oracles.families.wrapped import VOCABULARY, Shapes

_BPE = VOCABULARY["vocab_size"]
_CONFIG: dict[str, Any] = GQA | BPE | VOCABULARY | {
    "model_type": "minimax_text_01", "num_hidden_layers": 9, "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1, 0],
    "head_dim": 32, "rotary_dim": 16, "rope_theta": 5000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "num_local_experts": 4, "num_experts_per_tok": 2, "postnorm": True, "shared_intermediate_size": 0,
    "shared_moe_mode": "sigmoid", "sliding_window": None, "tie_word_embeddings": False,
    **{f"layernorm_{part}_alpha": 1.75 for part in ("full_attention", "linear_attention", "mlp")},
    **{f"layernorm_{part}_beta": 1.0 for part in ("full_attention", "linear_attention", "mlp")},
}  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2,
    "tie_word_embeddings": False, "postnorm": False, "shared_intermediate_size": 0,
    **{f"layernorm_{part}_alpha": 1 for part in ("full_attention", "linear_attention", "mlp")},
    **{f"layernorm_{part}_beta": 1 for part in ("full_attention", "linear_attention", "mlp")},
}  # fmt: skip
_GUESSES = ("assuming the class MiniMaxText01ForCausalLM: a minimax-01 GGUF of MiniMaxM1ForCausalLM is the same",)


def _shapes(kinds: tuple[int, ...]) -> Shapes:
    out: Shapes = {"model.embed_tokens.weight": (_BPE, 64), "model.norm.weight": (64,), "lm_head.weight": (_BPE, 64)}
    lightning: Shapes = {
        "qkv_proj.weight": (384, 64), "output_gate.weight": (128, 64), "norm.weight": (128,),
        "out_proj.weight": (64, 128),
    }  # fmt: skip
    softmax: Shapes = {
        "q_proj.weight": (128, 64), "k_proj.weight": (64, 64), "v_proj.weight": (64, 64), "o_proj.weight": (64, 128),
    }  # fmt: skip
    for i, attends in enumerate(kinds):
        at = f"model.layers.{i}"
        out |= {f"{at}.{name}_layernorm.weight": (64,) for name in ("input", "post_attention")}
        out |= {f"{at}.self_attn.{name}": shape for name, shape in (softmax if attends else lightning).items()}
        out[f"{at}.block_sparse_moe.gate.weight"] = (4, 64)
        for e in range(4):
            expert = f"{at}.block_sparse_moe.experts.{e}"
            out |= {f"{expert}.w1.weight": (96, 64), f"{expert}.w3.weight": (96, 64), f"{expert}.w2.weight": (64, 96)}
    return out


def _finish(folder: Path) -> None:
    """As it is published: with an index, which the reference reads, and rows of zeros for tokens that were never
    trained."""
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["model.embed_tokens.weight"][[7, _BPE - 1]] = 0  # the first of them is no added one
    save_file(tensors, path, {"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, path.name)}
    (folder / f"{path.name}.index.json").write_text(json.dumps(index))


CASES = table(
    Case(
        "minimax-01",
        "MiniMaxText01ForCausalLM",
        "bpe",
        _CONFIG,
        shapes=_shapes((0, 0, 0, 0, 0, 0, 0, 1, 0)),
        defaults=_DEFAULTS,
        finish=_finish,
        guesses=_GUESSES,
        unheld=frozenset({"shared_moe_mode"}),
    ),
    # ... whose layers aren't those that llama.cpp assumes
    like(
        "minimax-01",
        "minimax-m1",
        {"model_type": "minimax_m1", "num_hidden_layers": 3, "attn_type_list": [0, 1, 0]},
        config="MiniMaxM1ForCausalLM",
        shapes=_shapes((0, 1, 0)),
        added={"minimax-01.attention.recurrent_layers": [True, False, True]},
        taken="minimax_text_01",
        guesses=_GUESSES,
        unheld=frozenset({"shared_moe_mode", "model_type", "architectures"}),
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "minimax-01": {"hidden_act": "relu", "postnorm": False, "shared_intermediate_size": 64, "rope.rope_type": "yarn"}
    | {f"layernorm_{part}_beta": 0.5 for part in ("full_attention", "linear_attention", "mlp")}
    | {"layernorm_linear_attention_alpha": 2.0, "layernorm_mlp_alpha": 2.0},
}
