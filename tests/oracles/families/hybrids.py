"""The small models with state-space layers, alone and beside attention. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.case import Case
from tests.oracles.families.common import BPE

_SSM = (
    (("A_log", "mixer.D", "dt_proj.bias", "dt_bias"), (0.0, 0.5)),
    (("conv1d.weight",), (0.0, 0.4)),
    (("norm_f.weight",), (1.0, 0.25)),
    (("embeddings.weight",), (0.0, 0.5)),
)
_MAMBA: dict[str, Any] = BPE | {
    "hidden_size": 64, "num_hidden_layers": 2, "state_size": 16, "layer_norm_epsilon": 5e-2,
}  # fmt: skip

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("mamba", "MambaConfig", "bpe", _MAMBA, spreads=_SSM, recorded=("mlx",)),
        Case(
            "mamba-untied",
            "MambaConfig",
            "bpe",
            _MAMBA | {"tie_word_embeddings": False, "time_step_rank": 8, "conv_kernel": 3},
            spreads=_SSM,
        ),
        # ... and one that normalizes the time step, B and C
        Case(
            "falcon-mamba",
            "FalconMambaConfig",
            "bpe",
            _MAMBA | {"mixer_rms_eps": 5e-2, "tie_word_embeddings": False},
            spreads=_SSM,
            recorded=("mlx",),
        ),
    )
}

UNSAID: dict[str, dict[str, Any]] = {
    "mamba": {"hidden_act": "relu", "use_bias": True, "use_conv_bias": False, "expand": 3},
}
