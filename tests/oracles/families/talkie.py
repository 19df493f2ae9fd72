"""Small Talkies under their published names. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.case import Case, table
from tests.oracles.families.common import BPE
from tests.oracles.families.wrapped import VOCABULARY, Shapes

_BPE = VOCABULARY["vocab_size"]
_EPSILON = 1.1920928955078125e-07  # torch.finfo(torch.float32).eps
_CONFIG: dict[str, Any] = BPE | VOCABULARY | {
    "model_type": "talkie", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 32,
    "intermediate_size": 96, "rope_theta": 5000.0, "max_position_embeddings": 256,
}  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40, "head_dim": 128,
    "intermediate_size": 13696, "vocab_size": 65540, "rope_theta": 1e6, "max_position_embeddings": 2048,
}  # fmt: skip
_SHAPES: Shapes = {"model.embed.weight": (_BPE, 64), "lm_head": (_BPE, 64), "lm_head_gain.w_g": (1,)}
for _layer in range(2):
    _at = f"model.blocks.{_layer}."
    _SHAPES |= {f"{_at}attn.attn_{part}.weight": (128, 64) for part in ("query", "key", "value")}
    _SHAPES |= {f"{_at}mlp.mlp_{part}.weight": (96, 64) for part in ("gate", "linear")}
    _SHAPES |= {f"{_at}{part}.a_g": (1,) for part in ("attn_gain", "mlp_gain", "embed_skip")}
    _SHAPES |= {
        f"{_at}attn.attn_resid.weight": (64, 128), f"{_at}mlp.mlp_resid.weight": (64, 96),
        f"{_at}attn.head_gain.head_g": (4,),
    }  # fmt: skip
CASES = table(
    Case(
        "talkie",
        "TalkieForCausalLM",
        "bpe",
        _CONFIG | {"rms_norm_eps": _EPSILON},
        shapes=_SHAPES,
        defaults=_DEFAULTS,
        recorded=("mlx",),
        unheld=frozenset({"rms_norm_eps"}),
        spreads=((("head_g", "w_g"), (1.0, 0.25)), (("a_g",), (0.5, 0.2))),
    ),
    # ... whose config leaves out the epsilon
    Case("talkie-silent", "TalkieForCausalLM", "none", _CONFIG, shapes=_SHAPES, defaults=_DEFAULTS),
)
UNSAID: dict[str, dict[str, Any]] = {"talkie": {"rms_norm_eps": 1e-5, "rope.rope_type": "yarn"}}
