"""Chooses the dtype of each tensor of a target. Family tables have names and shapes, packings have bits; this module
decides on dtypes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.base.dtypes import BF16, BY_NAME, F16, F32, I32, DType, Kind, dtype
from weighbridge.base.errors import UsageError
from weighbridge.base.ftypes import FILE_TYPES
from weighbridge.base.spec import Spec

# llama.cpp's file types that the converter writes (general.file_type), by the type of most weights.
FTYPES: Final = MappingProxyType({name: FILE_TYPES[name].number for name in ("F32", "F16", "Q8_0", "BF16")})

# ... or by the block type in which tensors are already quantized, if they are kept in it.
KEPT_FTYPES: Final = MappingProxyType(
    {name: FILE_TYPES[name].number for name in ("Q4_0", "Q4_1", "Q8_0", "Q5_0", "Q5_1", "NVFP4")}
    | {"MXFP4": FILE_TYPES["MXFP4_MOE"].number}
)

# Tensors that ggml's graphs accept in F32 only (conversion/base.py `prepare_tensors` of llama.cpp b11549):
# one-dimensional ones, norms, all whose names don't end in `.weight`, and these.
_F32_ALWAYS: Final = (
    "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "position_embd.weight", "token_types.weight",
    "ssm_conv1d.weight", "ssm_conv1d_q.weight", "ssm_conv1d_k.weight", "ssm_conv1d_v.weight",
    "shortconv.conv.weight", "altup_correct_coef.weight", "altup_predict_coef.weight",
    "indexer.proj.weight", "time_mix_first.weight", "time_mix_w1.weight", "time_mix_w2.weight",
    "time_mix_decay_w1.weight", "time_mix_decay_w2.weight", "time_mix_lerp_fused.weight",
)  # fmt: skip


def gguf_dtype(name: str, spec: Spec, wanted: DType) -> DType:
    """The dtype of a GGUF tensor as the reference converter chooses it. If a row isn't whole blocks of the requested
    type it falls back to F16, as in the reference; the caller reports that as a loss."""
    weight = name.endswith((".weight", ".lora_a", ".lora_b"))
    if spec.dtype.kind is Kind.INT:
        return I32
    if len(spec.shape) <= 1 or name.endswith(("_norm.weight", *_F32_ALWAYS)) or not weight:
        return F32
    return _whole_blocks(spec, wanted)


def kept_dtype(name: str, spec: Spec, source: str, kept: Mapping[str, str]) -> DType | None:
    """The dtype that a matrix has whatever is requested, for a family whose reference goes by the source: `kept`, by
    the dtype or packing of that. None where the usual rules count."""
    if len(spec.shape) <= 1 or name.endswith("_norm.weight") or source not in kept:
        return None
    return _whole_blocks(spec, BY_NAME[kept[source]])


def _whole_blocks(spec: Spec, wanted: DType) -> DType:
    return F16 if spec.shape[-1] % wanted.block else wanted


# The types in which a GGUF can store a quantized source, if its parameters fit exactly.
EXACT_BLOCKS: Final = tuple(
    BY_NAME[d] for d in ("Q1_0", "Q2_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "NVFP4")
)


def gguf_wanted(name: str | None, specs: Iterable[Spec]) -> DType:
    """The requested dtype; for `auto` or none: BF16 or F16 if the first matrix has that dtype, else F16, as the
    reference converter guesses (a config's torch_dtype is often wrong)."""
    if name not in (None, "auto"):
        wanted = dtype(name)
        if wanted.name not in FTYPES:
            known = ", ".join(map(str.lower, FTYPES))
            raise UsageError(f"wb convert writes GGUFs in {known}", hint=f"for others: wb quantize SRC DST {wanted}")
        return wanted
    first = next((s.dtype for s in specs if len(s.shape) > 1 and s.dtype in (BF16, F16)), F16)
    return first


def plain_dtype(name: str | None, spec: Spec) -> DType:
    """The dtype of a tensor in a container of plain dtypes: floats and blocks become the one that is requested, others
    stay."""
    kept = spec.dtype
    if name is None or name == "auto" or kept.kind not in (Kind.FLOAT, Kind.BLOCK):
        return kept
    wanted = dtype(name)
    if wanted.kind is Kind.BLOCK:
        raise UsageError(f"{wanted} is a type of GGUF files", hint="give the target the extension .gguf")
    return wanted
