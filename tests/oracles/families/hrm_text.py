"""Small HRM-Texts. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.case import Case, like, table
from tests.oracles.families.common import BPE, SMALL, theta

_HRM: dict[str, Any] = SMALL | BPE | theta(5000.0) | {
    "rms_norm_eps": 3e-3, "head_dim": 24, "H_cycles": 2, "L_cycles": 1, "embedding_scale": 8.0, "prefix_lm": False,
}  # fmt: skip
CASES = table(
    Case(
        "hrm-text",
        "HrmTextConfig",
        "bpe",
        _HRM,
        spreads=((("z_L_init",), (0.0, 0.5)),),
        words={"num_hidden_layers": 16},  # of one stack: transformers counts a layer as often as it runs
    ),
    # ... of the published settings: a prompt's tokens see each other, and the scale follows from another setting
    like(
        "hrm-text",
        "hrm-text-prefix",
        {"prefix_lm": True, "embedding_scale": None, "tie_word_embeddings": True},
        tokenizer="none",
        told=("config.json: prefix_lm",),
    ),
)
UNSAID: dict[str, dict[str, Any]] = {
    "hrm_text": {"hidden_act": "gelu", "attention_bias": True, "mlp_bias": True, "rope.rope_type": "llama3"},
}
