"""Chooses the dtype of each tensor of a target. Family tables define names and shapes, packings bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from weighbridge.base.dtypes import BF16, BY_NAME, F16, F32, I32, I64, DType, DTypeLike, Kind, dtype, requested_dtype
from weighbridge.base.errors import UsageError
from weighbridge.base.ftypes import FILE_TYPES
from weighbridge.base.spec import Spec
from weighbridge.conversion.options import SMALLEST_EXACT
from weighbridge.conversion.quantize import type_hints

# llama.cpp's file types that the converter writes (general.file_type), by the type of most weights.
FTYPES: Final = MappingProxyType({name: FILE_TYPES[name].number for name in ("F32", "F16", "Q8_0", "BF16")})

# ... or by the block type of tensors that stay quantized.
KEPT_FTYPES: Final = MappingProxyType(
    {name: FILE_TYPES[name].number for name in ("Q4_0", "Q4_1", "Q8_0", "Q5_0", "Q5_1", "NVFP4")}
    | {"MXFP4": FILE_TYPES["MXFP4_MOE"].number}
)

# Tensors that ggml's graphs accept only in F32 (conversion/base.py `prepare_tensors` of llama.cpp b11549):
# one-dimensional ones, norms, all names that don't end in `.weight`, and these.
_F32_ALWAYS: Final = (
    "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "position_embd.weight", "token_types.weight",
    "ssm_conv1d.weight", "ssm_conv1d_q.weight", "ssm_conv1d_k.weight", "ssm_conv1d_v.weight",
    "shortconv.conv.weight", "altup_correct_coef.weight", "altup_predict_coef.weight",
    "indexer.proj.weight", "time_mix_first.weight", "time_mix_w1.weight", "time_mix_w2.weight",
    "time_mix_decay_w1.weight", "time_mix_decay_w2.weight", "time_mix_lerp_fused.weight",
)  # fmt: skip

#: The tokens of a draft model's vocabulary, which graphs use as indices (eagle3.cpp, dflash.cpp).
TOKEN_MAP: Final = "d2t"


def gguf_dtype(name: str, spec: Spec, requested: DType, f32: Sequence[str] = ()) -> DType:
    """The dtype that the reference converter chooses for a GGUF tensor.

    If a row isn't whole blocks of the `requested` type, that is F16. The caller reports this fallback as a loss.
    `f32`: of the family's GGUF dialect.
    """
    weight = name.endswith((".weight", ".lora_a", ".lora_b"))
    if name == TOKEN_MAP:
        return I64
    if spec.dtype.kind is Kind.INT:
        return I32
    if len(spec.shape) <= 1 or name.endswith(("_norm.weight", *_F32_ALWAYS)) or not weight:
        return F32
    if f32 and any(part in name for part in f32):
        return F32
    return F16 if spec.shape[-1] % requested.block else requested


def kept_dtype(name: str, spec: Spec, source: str, kept: Mapping[str, str]) -> DType | None:
    """The dtype of a matrix in a family whose reference ignores the requested one; None if the usual rules apply.

    `kept`: that dtype by the dtype or packing of the source.
    """
    if len(spec.shape) <= 1 or name.endswith("_norm.weight") or source not in kept:
        return None
    dtype = BY_NAME[kept[source]]
    return F16 if spec.shape[-1] % dtype.block else dtype


# The types that can store a quantized source in a GGUF, if its parameters fit exactly.
EXACT_BLOCKS: Final = tuple(
    BY_NAME[d] for d in ("Q1_0", "Q2_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "NVFP4")
)


def requested_gguf_dtype(name: DTypeLike | None, specs: Iterable[Spec]) -> DType:
    """The requested dtype of a GGUF's matrices.

    For `auto` or None: BF16 or F16 if the first such matrix has that dtype, else F16. The reference converter guesses
    like this, because a config's torch_dtype is often wrong.
    """
    if name not in (None, "auto"):
        requested = dtype(name)
        if requested.name not in FTYPES:
            names = ", ".join(map(str.lower, FTYPES))
            unknown = UsageError(f"a GGUF isn't cast to {requested}", hint=f"wb convert writes GGUFs in {names}")
            raise type_hints.refusal(requested.name) or unknown
        return requested
    return next((s.dtype for s in specs if len(s.shape) > 1 and s.dtype in (BF16, F16)), F16)


def is_cast(name: DTypeLike) -> bool:
    """Whether weights of a GGUF are cast to this type. Others are types of `wb quantize`, or unknown."""
    with suppress(UsageError):
        requested = requested_dtype(name)
        return requested is None or requested.name in FTYPES
    return False


def plain_dtype(name: DTypeLike | None, spec: Spec) -> DType:
    """The dtype of a tensor in a container of plain dtypes: floats and blocks are cast to `name`, others are kept."""
    kept = spec.dtype
    if name in (None, "auto", SMALLEST_EXACT) or kept.kind not in (Kind.FLOAT, Kind.BLOCK):
        return kept
    requested = dtype(name)
    if requested.kind is Kind.BLOCK:
        raise UsageError(f"{requested} is a type of GGUF files", hint="give the target the extension .gguf")
    return requested
