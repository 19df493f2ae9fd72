"""The small decoders with something that no other has. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.case import Case
from tests.oracles.families.common import BPE, GQA, theta

# The class's own buffers are the same in every layer; published models may have others.
_XIELU: dict[str, tuple[int, ...]] = {
    f"model.layers.{i}.mlp.act_fn.{name}": () for i in (0, 1) for name in ("beta", "eps")
}
_XIELU_SPREADS = (((".alpha_p", ".alpha_n"), (0.5, 0.5)), ((".beta",), (0.5, 0.2)), ((".eps",), (-0.3, 0.1)))
_PUBLISHED = {"post_norm": False, "qk_norm": True, "mlp_bias": False}
_LLAMA3: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 2000.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
}
# norms of q and k hide a smaller epsilon
_APERTUS: dict[str, Any] = GQA | BPE | {"rms_norm_eps": 1e-2}

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        # Apertus: an activation with four numbers of its own in each layer
        Case(
            "apertus",
            "ApertusConfig",
            "bpe",
            _APERTUS | theta(5000.0),
            v4=True,
            said=_PUBLISHED,
            further=_XIELU,
            spreads=_XIELU_SPREADS,
            recorded=("mlx",),
        ),
        Case(
            "apertus-long",
            "ApertusConfig",
            "bpe",
            _APERTUS | _LLAMA3 | {"attention_bias": True, "head_dim": 32},
            further=_XIELU,
            spreads=_XIELU_SPREADS,
        ),
        Case(
            "apertus-bias",
            "ApertusConfig",
            "none",
            _APERTUS | _LLAMA3 | {"attention_bias": True},
            said=_PUBLISHED,
            recorded=("mlx",),
        ),
    )
}
UNSAID: dict[str, dict[str, Any]] = {
    "apertus": {
        "hidden_act": "gelu",
        "tie_word_embeddings": True,
        "qk_norm": False,
        "post_norm": True,
        "mlp_bias": True,
        "rope.rope_type": "longrope",
    },
}
