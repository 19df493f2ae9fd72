"""The small models with state-space layers, alone and beside attention. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.case import Case
from tests.oracles.families.common import BPE

_SSM = (
    (("A_log", "mixer.D", "mamba.D", "dt_proj.bias", "dt_bias"), (0.0, 0.5)),
    (("conv1d.weight",), (0.0, 0.4)),
    (("norm_f.weight",), (1.0, 0.25)),
    (("embeddings.weight",), (0.0, 0.5)),
)
_MAMBA: dict[str, Any] = BPE | {
    "hidden_size": 64, "num_hidden_layers": 2, "state_size": 16, "layer_norm_epsilon": 5e-2,
}  # fmt: skip
_MAMBA2: dict[str, Any] = _MAMBA | {"head_dim": 32, "num_heads": 4, "n_groups": 2}
_LIMIT = frozenset({"time_step_limit"})  # none, which transformers spells in its own way


def _case(name: str, config: str, options: dict[str, Any], **more: Any) -> Case:
    return Case(name, config, more.pop("tokenizer", "bpe"), options, spreads=_SSM, **more)


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        _case("mamba", "MambaConfig", _MAMBA, recorded=("mlx",)),
        _case(
            "mamba-untied",
            "MambaConfig",
            _MAMBA | {"tie_word_embeddings": False, "time_step_rank": 8, "conv_kernel": 3},
        ),
        # ... and one that normalizes the time step, B and C
        _case(
            "falcon-mamba",
            "FalconMambaConfig",
            _MAMBA | {"mixer_rms_eps": 5e-2, "tie_word_embeddings": False},
            recorded=("mlx",),
        ),
        _case(
            "mamba2",
            "Mamba2Config",
            _MAMBA2,
            said={"intermediate_size": 128},  # mlx-lm asks for it
            recorded=("mlx",),
            prefixed="model.",
            unheld=_LIMIT,
        ),
        _case("mamba2-tied", "Mamba2Config", _MAMBA2 | {"n_groups": 1, "tie_word_embeddings": True}, unheld=_LIMIT),
    )
}

UNSAID: dict[str, dict[str, Any]] = {
    "mamba": {"hidden_act": "relu", "use_bias": True, "use_conv_bias": False, "expand": 3},
    "mamba2": {
        "hidden_act": "relu",
        "use_bias": True,
        "use_conv_bias": False,
        "expand": 3,
        "time_step_limit": [0.0, 1.0],
    },
}
