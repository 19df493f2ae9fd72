"""Small models of the families of late 2026 that transformers has a class for. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.case import Case
from tests.oracles.families.common import BPE, GQA, WINDOW, theta

_SWASH: dict[str, Any] = GQA | BPE | theta(5000.0) | {
    "num_hidden_layers": 5, "sliding_window": WINDOW, "layer_rope_theta": [0, 5000.0, 5000.0, 0, 5000.0],
    "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0, "attention_multiplier": 0.3,
}  # fmt: skip
# in the words of the first files, which is all that the reference reads
_SWASH_HPARAMS: dict[str, Any] = {"no_rope_layers": [0, 1, 1, 0, 1]}

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        # Granite 5: a window in three layers of four, layers without rotation, sinks
        Case("granite-swa", "GraniteSWAConfig", "bpe", _SWASH | {"tie_word_embeddings": False}, hparams=_SWASH_HPARAMS),
        # ... every layer rotates, biases
        Case(
            "granite-swa-bias",
            "GraniteSWAConfig",
            "none",
            _SWASH | {"layer_rope_theta": None, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
            said={"head_dim": 16},
            unheld=frozenset({"head_dim"}),
        ),
        # ... with experts, and one that every token takes
        Case(
            "granitemoe-swa",
            "GraniteMoeSWAConfig",
            "bpe",
            _SWASH | {"num_local_experts": 6, "num_experts_per_tok": 2, "shared_intermediate_size": 128},
            hparams=_SWASH_HPARAMS,
        ),
        # ... and without that one
        Case(
            "granitemoe-swa-plain",
            "GraniteMoeSWAConfig",
            "none",
            _SWASH | {"num_local_experts": 6, "num_experts_per_tok": 2, "layer_rope_theta": None},
            said={"head_dim": 16},
            unheld=frozenset({"head_dim"}),
        ),
    )
}
UNSAID: dict[str, dict[str, Any]] = {
    "granite-swa": {"hidden_act": "gelu", "rope_bases": 2, "rope.rope_type": "longrope"},
    "granitemoe-swa": {"hidden_act": "gelu", "rope_bases": 2, "attention_bias": True, "rope.rope_type": "longrope"},
}
