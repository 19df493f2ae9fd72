"""A small Muse Glimmer, its language model. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, table
from tests.oracles.families.common import BPE, GQA, WINDOW, theta
from tests.oracles.families.wrapped import Shapes

_TEXT: dict[str, Any] = GQA | BPE | theta(5000.0) | {
    "num_hidden_layers": 4, "head_dim": 32, "sliding_window": WINDOW, "qk_scale_factor": 2.5, "output_multiplier": 0.6,
    "final_logit_softcapping": 15.0, "vocab_size": vocabularies.BPE_SIZE, "hidden_activation": "silu",
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "layer_rope_theta": [5000.0, 0, 5000.0, 0], "post_norm_eps": 1e-8, "model_type": "muse_glimmer_text",
}  # fmt: skip
_VISION: dict[str, Any] = {
    "patch_size": 4, "pos_emb_height": 4, "pos_emb_width": 4, "num_attention_heads": 2, "num_hidden_layers": 1,
    "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 16,
}  # fmt: skip


def _shapes() -> Shapes:
    at = "model.language_model."
    out: Shapes = {
        f"{at}embed_tokens.weight": (vocabularies.BPE_SIZE, 64), f"{at}norm.weight": (64,),
        "lm_head.weight": (vocabularies.BPE_SIZE, 64),
    }  # fmt: skip
    norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    layer: Shapes = {
        **{f"{name}_layernorm.weight": (64,) for name in norms},
        **{f"self_attn.{name}_proj.weight": (128, 64) for name in ("q", "gate")},
        **{f"self_attn.{name}_proj.weight": (64, 64) for name in ("k", "v")},
        "self_attn.o_proj.weight": (64, 128), "mlp.gate_proj.weight": (96, 64), "mlp.up_proj.weight": (96, 64),
        "mlp.down_proj.weight": (64, 96),
    }  # fmt: skip
    return out | {f"{at}layers.{n}.{name}": shape for n in range(4) for name, shape in layer.items()}


CASES = table(
    Case(
        "muse-glimmer",
        "MuseGlimmerForConditionalGeneration",
        "bpe",
        {
            "model_type": "muse_glimmer",
            "text_config": _TEXT,
            "vision_config": _VISION,
            "out_hidden_size": 128,
            "projector_hidden_size": 48,
        },
        shapes=_shapes(),
        beside=("model.vision_tower.ln_pre.weight",),
        recorded=("mlx",),
        part_type="muse_glimmer_text",
        defaults={"model_type": "muse_glimmer"},
        taken="muse_glimmer",
        unheld=frozenset(
            {
                "layer_rope_theta",
                "model_type",
                "vision_config",
                "out_hidden_size",
                "projector_hidden_size",
                "vocab_size",
            }
        ),
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "muse-glimmer": {
        "hidden_activation": "gelu",
        "attention_bias": True,
        "post_norm_eps": 1e-6,
        "window_rotates": False,
    }
    | {"rope.rope_type": "llama3"},
}
