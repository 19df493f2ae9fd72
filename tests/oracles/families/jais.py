"""Small models of Jais, as published (no class in transformers). See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.case import Case, table
from tests.oracles.families.common import BPE
from tests.oracles.families.wrapped import VOCABULARY, Shapes

_BPE = VOCABULARY["vocab_size"]
_CONFIG: dict[str, Any] = BPE | VOCABULARY | {
    "model_type": "jais", "n_layer": 2, "n_embd": 96, "n_head": 6, "n_inner": 128, "n_positions": 256,
    "layer_norm_epsilon": 3e-3, "activation_function": "swiglu", "position_embedding_type": "alibi",
    "mup_scale_qk_dot_by_d": True, "mup_embeddings_scale": 2.5, "mup_output_alpha": 2.2, "mup_width_scale": 0.25,
    "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "tie_word_embeddings": False,
    "alibi_scaling": None,
}  # fmt: skip


def _shapes(heads: int, *, tied: bool = False) -> Shapes:
    out: Shapes = {"transformer.wte.weight": (_BPE, 96), "transformer.relative_pe.slopes": (heads, 1)}
    out |= {"transformer.ln_f.weight": (96,), "transformer.ln_f.bias": (96,)}
    out |= {} if tied else {"lm_head.weight": (_BPE, 96)}
    for i in (0, 1):
        at = f"transformer.h.{i}."
        widths = {"attn.c_attn": (96, 288), "attn.c_proj": (96, 96), "mlp.c_fc": (96, 128), "mlp.c_fc2": (96, 128)}
        for name, (rows, columns) in {**widths, "mlp.c_proj": (128, 96)}.items():
            out |= {f"{at}{name}.weight": (rows, columns), f"{at}{name}.bias": (columns,)}
        for norm in ("ln_1", "ln_2"):
            out |= {f"{at}{norm}.weight": (96,), f"{at}{norm}.bias": (96,)}
    return out


_DEFAULTS: dict[str, Any] = {
    "n_layer": 12, "vocab_size": 50257, "n_embd": 768, "n_positions": 1024, "n_head": 12, "layer_norm_epsilon": 1e-5,
    "bos_token_id": 50256, "eos_token_id": 50256, "tie_word_embeddings": True, "activation_function": "gelu_new",
    "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "position_embedding_type": "learned",
    "mup_scale_qk_dot_by_d": False,
}  # fmt: skip
_SPREADS = (
    (("wte.weight", "lm_head.weight"), (0.0, 0.5)),
    (("ln_1.weight", "ln_2.weight", "ln_f.weight"), (1.0, 0.25)),
)
_FACTORS = frozenset({"mup_embeddings_scale", "mup_output_alpha", "mup_width_scale"})
_MADE = _FACTORS | {"embedding_factor", "output_factor", "embeddings_scale", "width_scale"}
_OTHER: dict[str, Any] = {key: value for key, value in _CONFIG.items() if key not in _FACTORS} | {
    "n_head": 4, "embeddings_scale": 0.75, "width_scale": 1.0, "tie_word_embeddings": True,
}  # fmt: skip
CASES = table(
    Case(
        "jais",
        "JAISLMHeadModel",
        "bpe",
        _CONFIG,
        shapes=_shapes(6),
        defaults=_DEFAULTS,
        spreads=_SPREADS,
        unheld=_MADE,
        alone=("transformer.relative_pe.slopes",),
        folded=True,
        flags=("--no-lazy",),  # else it can't read a slope
    ),
    # ... in the newer words, whose output is the embedding
    Case(
        "jais-tied",
        "JAISLMHeadModel",
        "bpe",
        _OTHER,
        shapes=_shapes(4, tied=True),
        defaults=_DEFAULTS,
        spreads=_SPREADS,
        unheld=_MADE | {"tie_word_embeddings"},
        alone=("transformer.relative_pe.slopes",),
        folded=True,
        flags=("--no-lazy",),  # else it can't read a slope
        kept={"output.weight": "transformer.wte.weight"},
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "jais": {"activation_function": "gelu_new", "position_embedding_type": "learned", "mup_scale_qk_dot_by_d": False}
    | {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True, "alibi_scaling": {"type": "linear"}},
}
