"""Small Chameleons. See __init__.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.oracles import vocabularies
from tests.oracles.case import Case, like, table
from tests.oracles.families.common import BPE, GQA
from tests.oracles.families.wrapped import VOCABULARY, Shapes

# The reference fails unless there are as many heads of keys as of queries.
_CONFIG: dict[str, Any] = GQA | BPE | VOCABULARY | {
    "model_type": "chameleon", "num_key_value_heads": 4, "hidden_act": "silu", "rope_theta": 5000.0, "swin_norm": True,
    "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
    "vq_config": {
        "embed_dim": 16, "latent_channels": 16, "num_embeddings": 8, "base_channels": 32, "channel_multiplier": [1],
        "num_res_blocks": 1, "resolution": 32,
    },
    "vocabulary_map": {"<image>": 7},
}  # fmt: skip


def _shapes(*, biased: bool, pairs: int = 4) -> Shapes:
    rows = (vocabularies.BPE_SIZE, 64)
    out: Shapes = {"model.embed_tokens.weight": rows, "model.norm.weight": (64,), "lm_head.weight": rows}
    for i in range(2):
        at = f"model.layers.{i}."
        out |= {f"{at}{name}_layernorm.weight": (64,) for name in ("input", "post_attention")}
        out |= {f"{at}self_attn.{part}_proj.weight": (16 * pairs if part in "kv" else 64, 64) for part in "qkvo"}
        out |= {f"{at}self_attn.{part}_proj.bias": (16 * pairs if part in "kv" else 64,) for part in "qkvo" if biased}
        heads = {"q": 4, "k": pairs}
        out |= {f"{at}self_attn.{p}_norm.{kind}": (n, 16) for p, n in heads.items() for kind in ("weight", "bias")}
        out |= {f"{at}mlp.{part}_proj.weight": (96, 64) for part in ("gate", "up")}
        out[f"{at}mlp.down_proj.weight"] = (64, 96)
    return out


def _with_equal_heads(folder: Path) -> None:
    """As in the model of one rank: the reference writes the norm of the first head for all of them."""
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = {n: t[:1].repeat(len(t), 1) if "_norm." in n and t.ndim == 2 else t for n, t in load_file(path).items()}
    save_file(tensors, path, {"format": "pt"})


CASES = table(
    Case(
        "chameleon",
        "ChameleonForConditionalGeneration",
        "bpe",
        _CONFIG,
        shapes=_shapes(biased=False),
        finish=_with_equal_heads,
        settings={"vocabulary_map": {"<image>": 7}},
        runs=False,  # llama.cpp's graph needs a vocabulary with 8,192 tokens of images
        beside=("model.vqmodel.quantize.embedding.weight",),
        unheld=frozenset({"vq_config", "vocabulary_map", "image_token_id"}),
    ),
    like(
        "chameleon",
        "chameleon-bias",
        {"attention_bias": True, "swin_norm": False, "num_key_value_heads": 2},
        tokenizer="none",
        shapes=_shapes(biased=True, pairs=2),
    ),
)
UNSAID: dict[str, dict[str, Any]] = {"chameleon": {"hidden_act": "relu", "mlp_bias": True, "rope.rope_type": "yarn"}}
