"""Types that people ask for and llama.cpp doesn't have: whose they are, and what comes nearest."""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class Origin(NamedTuple):
    """Whose type it is, and what to ask for instead."""

    whose: str
    instead: str


_IK: Final = "a type of the fork ik_llama.cpp"
_REPACKED: Final = "llama.cpp dropped it in November 2024, it lays weights out for the CPU when it loads them"

# Name (whole, upper case) -> origin; the first that fits counts. Sources: ggml.h of llama.cpp b11549 (removed ids), of
# ik_llama.cpp; the model cards of unsloth and bartowski.
_ORIGINS: Final = (
    (r"Q4_0_(4_4|4_8|8_8)", Origin(_REPACKED, "ask for Q4_0")),
    (r"IQ4_NL_(4_4|4_8|8_8)", Origin(_REPACKED, "ask for IQ4_NL")),
    (r"Q4_[23]", Origin("llama.cpp dropped it in May 2023", "ask for Q4_K_S")),
    (r"(IQ|Q)\w*_R(4|8|16)", Origin(f"{_IK} (rows interleaved)", "ask for the same type without _R4, or use the fork")),
    (r"IQ[2-6]_(K|KS|KSS|KL|KT|KL|K_S|K_M)", Origin(_IK, "ask for Q4_K_M, IQ4_XS or IQ3_S, or use the fork")),
    (r"IQ1_(KT|BN|S_R4)|IQ2_BN|Q6_0|Q8_KV|Q8_K16|Q8_K128", Origin(_IK, "use the fork")),
    (r"UD[-_].*", Origin("a mixture by unsloth, whose type for each tensor comes with each model",
                        "take its types from the published file, with --tensor-type-file")),
    (r"Q[2-8]_K_XL", Origin("a mixture that model makers name so, each in another way",
                            "ask for the _L or _M type, with --tensor-type for single tensors")),
    (r"Q[2456]_K_L|Q3_K_XL", Origin("a mixture by bartowski: embeddings and output in Q8_0",
                                    "ask for the _M type with --token-embedding-type q8_0 --output-tensor-type q8_0")),
    (r"Q8_1|Q8_K", Origin("its blocks are for arithmetic only, no weights are stored in them", "ask for Q8_0")),
    (r"NVFP4", Origin("llama-quantize doesn't make it, only the converter, from a model that is NVFP4 already",
                      "ask for it by tensor: --tensor-type REGEX=nvfp4")),
    (r"MXFP4", Origin("llama-quantize calls it MXFP4_MOE: experts in MXFP4, the rest in Q8_0", "ask for MXFP4_MOE")),
)  # fmt: skip


def origin(name: str) -> Origin | None:
    """Where a type that llama.cpp lacks comes from; `name` in upper case."""
    return next((found for pattern, found in _ORIGINS if re.fullmatch(pattern, name)), None)
