"""A small Arctic under its published names. See __init__.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, table
from tests.oracles.families.common import GQA, SPM
from tests.oracles.families.wrapped import Shapes

_CONFIG: dict[str, Any] = GQA | SPM | {
    "model_type": "arctic", "hidden_act": "silu", "rope_theta": 5000.0, "num_local_experts": 4,
    "num_experts_per_tok": 2, "moe_layer_frequency": 1, "parallel_attn_mlp_res": True, "use_residual": True,
    "attention_bias": False, "tie_word_embeddings": False, "sliding_window": None,
}  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False, "rope_theta": 1e6, "num_experts_per_tok": 1,
    "num_local_experts": 8, "parallel_attn_mlp_res": False, "moe_layer_frequency": 2, "use_residual": False,
    "attention_bias": False, "num_key_value_heads": 32,
}  # fmt: skip


def _shapes() -> Shapes:
    rows = (vocabularies.SPM_SIZE, 64)
    out: Shapes = {"model.embed_tokens.weight": rows, "model.norm.weight": (64,), "lm_head.weight": rows}
    for i in range(2):
        at = f"model.layers.{i}."
        out |= {f"{at}{name}_layernorm.weight": (64,) for name in ("input", "post_attention", "residual")}
        out |= {f"{at}self_attn.{part}_proj.weight": (32 if part in "kv" else 64, 64) for part in "qkvo"}
        out |= {f"{at}residual_mlp.w{n}.weight": (64, 64) for n in (1, 2, 3)}
        out[f"{at}block_sparse_moe.gate.weight"] = (4, 64)
        for e in range(4):
            expert = f"{at}block_sparse_moe.experts.{e}."
            out |= {f"{expert}w{n}.weight": (64, 96) if n == 2 else (96, 64) for n in (1, 2, 3)}
    return out


def _redefined(folder: Path) -> None:
    """The last pieces are other tokens, as Arctic's: two that are special, one that isn't."""
    path = folder / "tokenizer_config.json"
    size = vocabularies.SPM_SIZE
    texts = {0: ("<unk>", True), size - 3: ("<|plain|>", False), size - 2: ("<|im_start|>", True)}
    added = {str(i): {"content": text, "special": special} for i, (text, special) in texts.items()}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"added_tokens_decoder": added}))


CASES = table(
    Case("arctic", "ArcticForCausalLM", "spm", _CONFIG, shapes=_shapes(), defaults=_DEFAULTS, finish=_redefined),
)
UNSAID: dict[str, dict[str, Any]] = {
    "arctic": {"hidden_act": "relu", "attention_bias": True, "moe_layer_frequency": 2, "parallel_attn_mlp_res": False}
    | {"use_residual": False, "rope.rope_type": "yarn", "sliding_window": 4},
}
