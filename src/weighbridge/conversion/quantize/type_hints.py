"""Type names that llama.cpp doesn't have: where they come from, and what to use instead."""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class TypeOrigin(NamedTuple):
    """Where a type comes from, and a hint on what to use instead."""

    source: str
    hint: str


_IK: Final = "a type of the fork ik_llama.cpp"
_REPACKED: Final = "llama.cpp removed it in November 2024 and repacks weights for the CPU at load time"

# Name (upper case) -> origin; the first match wins. Sources: ggml.h of llama.cpp b11549 (removed ids), of
# ik_llama.cpp; the model cards of unsloth and bartowski.
_ORIGINS: Final = (
    (r"Q4_0_(4_4|4_8|8_8)", TypeOrigin(_REPACKED, "use Q4_0")),
    (r"IQ4_NL_(4_4|4_8|8_8)", TypeOrigin(_REPACKED, "use IQ4_NL")),
    (r"Q4_[23]", TypeOrigin("llama.cpp removed it in May 2023", "use Q4_K_S")),
    (r"(IQ|Q)\w*_R(4|8|16)", TypeOrigin(f"{_IK} (rows interleaved)", "use the same type without _R4, or the fork")),
    (r"IQ[2-6]_(K|KS|KSS|KL|KT|KL|K_S|K_M)", TypeOrigin(_IK, "use Q4_K_M, IQ4_XS or IQ3_S, or the fork")),
    (r"IQ1_(KT|BN|S_R4)|IQ2_BN|Q6_0|Q8_KV|Q8_K16|Q8_K128", TypeOrigin(_IK, "use the fork")),
    (r"UD[-_].*", TypeOrigin("a mixture by unsloth that differs from model to model",
                        "copy the types of the published file: --tensor-type-file")),
    (r"Q[2-8]_K_XL", TypeOrigin("a mixture that each publisher defines differently",
                            "use the _L or _M type, with --tensor-type for single tensors")),
    (r"Q[2456]_K_L|Q3_K_XL", TypeOrigin("a mixture by bartowski: embeddings and output in Q8_0",
                                    "use the _M type with --token-embedding-type q8_0 --output-tensor-type q8_0")),
    (r"Q8_1|Q8_K", TypeOrigin("a type for arithmetic only, not for storage", "use Q8_0")),
    (r"NVFP4", TypeOrigin("only the converter writes it, from a model that is NVFP4 already",
                      "set it per tensor: --tensor-type REGEX=nvfp4")),
    (r"MXFP4", TypeOrigin("llama-quantize calls it MXFP4_MOE: experts in MXFP4, the rest in Q8_0", "use MXFP4_MOE")),
)  # fmt: skip


def origin(name: str) -> TypeOrigin | None:
    """The origin of a type that llama.cpp lacks; `name` in upper case."""
    return next((found for pattern, found in _ORIGINS if re.fullmatch(pattern, name)), None)
