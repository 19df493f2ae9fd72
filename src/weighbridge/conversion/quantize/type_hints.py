"""Type names that llama.cpp lacks: their origin, and alternatives."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.errors import UsageError
from weighbridge.base.ftypes import FILE_TYPES


class TypeOrigin(NamedTuple):
    """The origin of a type, and a hint at alternatives. `{closest}` in it: llama.cpp's closest type."""

    source: str
    hint: str


_IK: Final = "a type of the fork ik_llama.cpp"
_REPACKED: Final = "llama.cpp removed it in November 2024 and repacks weights for the CPU at load time"
_FORK: Final = "the closest type is {closest}; or use the fork"
_SCHEME: Final = "wb convert SRC FOLDER --to hf --scheme {scheme}; the closest type of a GGUF is {closest}"

# Name (upper case) -> origin; the first match wins. Sources: ggml.h of llama.cpp b11549 (removed ids), of
# ik_llama.cpp; the model cards of unsloth and bartowski.
_ORIGINS: Final = (
    (r"Q4_0_(4_4|4_8|8_8)", TypeOrigin(_REPACKED, "use Q4_0")),
    (r"IQ4_NL_(4_4|4_8|8_8)", TypeOrigin(_REPACKED, "use IQ4_NL")),
    (r"Q4_[23]", TypeOrigin("llama.cpp removed it in May 2023", "use Q4_K_S")),
    (r"(IQ|Q)\w*_R(4|8|16)", TypeOrigin(f"{_IK} (rows interleaved)", _FORK)),
    (r"IQ[2-6]_(K|KS|KSS|KL|KT|KL|K_S|K_M)", TypeOrigin(_IK, _FORK)),
    (r"IQ1_(KT|BN|S_R4)|IQ2_BN|Q6_0|Q8_KV|Q8_K16|Q8_K128", TypeOrigin(_IK, _FORK)),
    (r"UD[-_].*", TypeOrigin("a mixture by unsloth that differs from model to model",
                        "the closest type is {closest}; --tensor-type-file copies the types of the published file")),
    (r"Q[2456]_K_L|Q3_K_XL", TypeOrigin("a mixture by bartowski: embeddings and output in Q8_0",
                                    "use {closest} with --token-embedding-type q8_0 --output-tensor-type q8_0")),
    (r"Q[2-8]_K_XL", TypeOrigin("a mixture that each publisher defines differently",
                            "the closest type is {closest}, with --tensor-type for single tensors")),
    (r"Q8_1|Q8_K", TypeOrigin("a type for arithmetic only, not for storage", "use Q8_0")),
    (r"NVFP4", TypeOrigin("only the converter writes it, from a model that is already NVFP4",
                      "set it per tensor: --tensor-type REGEX=nvfp4")),
    (r"MXFP4", TypeOrigin("llama-quantize calls it MXFP4_MOE: experts in MXFP4, the rest in Q8_0", "use MXFP4_MOE")),
    (r"B?NF4|FP4|INT4|4BIT|4[-_]BITS?|U?INT4", TypeOrigin("a type of 4 bits of other tools", _SCHEME)),
    (r"U?INT8|8BIT|8[-_]BITS?|Q8|LLM[._]INT8", TypeOrigin("a type of 8 bits of other tools", _SCHEME)),
    (r"F(P|LOAT)?8.*", TypeOrigin("floats of 8 bits are a type of Hugging Face folders", _SCHEME)),
    (r"EXL[23].*|HQQ.*|AQLM|QUIP.*|VPTQ", TypeOrigin("a format of another engine, which isn't written",
                                                "wb quantize SRC DST.gguf Q4_K_M")),
)  # fmt: skip
# Digit in a name -> llama.cpp's type of that many bits: of its k-quants, and of its i-quants.
_BY_BITS: Final = MappingProxyType({"1": "IQ1_M", "2": "Q2_K", "3": "Q3_K_M", "4": "Q4_K_M", "5": "Q5_K_M",
                                    "6": "Q6_K", "8": "Q8_0"})  # fmt: skip
_I_QUANTS: Final = MappingProxyType({"2": "IQ2_S", "3": "IQ3_S", "4": "IQ4_XS"})
# Digit in a name -> the scheme of Hugging Face folders of that many bits.
_SCHEMES: Final = MappingProxyType({"4": "w4a16", "8": "w8a16"})


def refusal(name: str) -> UsageError | None:
    """The error for a cast of weights to a type of this name, with an alternative; None if the name is unknown."""
    upper = name.upper()
    if upper in FILE_TYPES and FILE_TYPES[upper].writable:
        return UsageError(f"{upper} is a type of `wb quantize`", hint=f"wb quantize SRC DST.gguf {upper}")
    row = origin(upper)
    return row and UsageError(f"weights aren't cast to {name}: {row.source}", hint=row.hint)


def origin(name: str) -> TypeOrigin | None:
    """The origin of a type that llama.cpp lacks; `name` in upper case."""
    from weighbridge.conversion.schemes.table import SCHEMES

    scheme = name.lower().replace("-", "_")
    if scheme in SCHEMES:
        row: TypeOrigin | None = TypeOrigin("a scheme of Hugging Face folders", _SCHEME)
    else:
        scheme = "fp8" if name.startswith("F") and "8" in name else _SCHEMES.get(_bits(name), "w4a16")
        row = next((row for pattern, row in _ORIGINS if re.fullmatch(pattern, name)), None)
    return row and row._replace(hint=row.hint.format(closest=closest(name), scheme=scheme))


def _bits(name: str) -> str:
    digit = re.search("[1-8]", name)
    return digit[0] if digit else "4"


def closest(name: str) -> str:
    """llama.cpp's file type closest to a name in upper case, by its bits."""
    plain = re.sub(r"^UD[-_]|_R(4|8|16)$|_X?L$", "", name)
    if plain in FILE_TYPES and FILE_TYPES[plain].writable:
        return plain
    return (_I_QUANTS if "IQ" in name else _BY_BITS).get(_bits(name)) or _BY_BITS.get(_bits(name), "Q4_K_M")
