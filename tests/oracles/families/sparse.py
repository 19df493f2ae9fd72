"""Small decoders with experts, and such as are one part of a larger model. See __init__.py."""

from __future__ import annotations

from typing import Any

from tests.oracles.case import Case
from tests.oracles.families.common import BPE, GQA, WINDOW

# llama.cpp rounds the bounds of yarn's ramp (`truncate`), the model's own code doesn't.
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 8.0,
    "beta_slow": 1.0,
    "truncate": False,
}
_GPT_OSS: dict[str, Any] = GQA | BPE | {
    "head_dim": 24, "intermediate_size": 96, "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": WINDOW,
    "rope_parameters": _YARN,
}  # fmt: skip
_ROUNDED = {"rope_parameters": _YARN | {"truncate": True}}

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        # gpt-oss: biases and sinks everywhere, gate and up row by row in one tensor, its experts the other way round
        Case("gpt-oss", "GptOssConfig", "bpe", _GPT_OSS, recorded=("mlx", "mxfp4"), settings=_ROUNDED),
        # ... and as it is published: llama.cpp rounds what it multiplies with MXFP4 to 8 bits
        Case("gpt-oss-mxfp4", "GptOssConfig", "bpe", _GPT_OSS, mxfp4=True, v4=True, settings=_ROUNDED, runs=False),
    )
}

_ACT = {"hidden_act": "relu"}
UNSAID: dict[str, dict[str, Any]] = {
    "gpt-oss": _ACT
    | {"rope.rope_type": "dynamic", "rope.truncate": True, "attention_bias": False, "full_attention_every": 3}
    | {"swiglu_alpha": 1.0, "swiglu_limit": 5.0, "tie_word_embeddings": True},
}
