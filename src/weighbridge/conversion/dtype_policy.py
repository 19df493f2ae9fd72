"""Chooses the dtype of each tensor of a target. Family tables know names and shapes, packings know bits; what is wanted
is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Final

from weighbridge.base.dtypes import BF16, BY_NAME, F16, F32, DType, Kind, dtype
from weighbridge.base.errors import UsageError
from weighbridge.base.ftypes import FILE_TYPES
from weighbridge.base.spec import Spec

# llama.cpp's file types that the converter writes (general.file_type), by the type of most weights.
FTYPES: Final = MappingProxyType({name: FILE_TYPES[name].number for name in ("F32", "F16", "Q8_0", "BF16")})

# ... and by the block type that tensors were quantized in already, where they are kept in it.
KEPT_FTYPES: Final = MappingProxyType(
    {name: FILE_TYPES[name].number for name in ("Q4_0", "Q4_1", "Q8_0", "Q5_0", "Q5_1", "NVFP4")}
    | {"MXFP4": FILE_TYPES["MXFP4_MOE"].number}
)

# Tensors that ggml's graphs take in F32 only (conversion/base.py `prepare_tensors` of llama.cpp b11549): everything of
# one dimension, norms, whatever isn't a `.weight`, and these.
_F32_ALWAYS: Final = (
    "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "position_embd.weight", "token_types.weight",
    "ssm_conv1d.weight", "shortconv.conv.weight", "altup_correct_coef.weight", "altup_predict_coef.weight",
)  # fmt: skip


def gguf_dtype(name: str, spec: Spec, wanted: DType) -> DType:
    """The type of a GGUF tensor as the reference converter chooses it. A row that isn't whole blocks of the wanted type
    falls back to F16, as there; the caller tells it as a loss."""
    weight = name.endswith((".weight", ".lora_a", ".lora_b"))
    if len(spec.shape) <= 1 or name.endswith(("_norm.weight", *_F32_ALWAYS)) or not weight:
        return F32
    if spec.shape[-1] % wanted.block:
        return F16
    return wanted


# What a GGUF can hold of a tensor that arrives quantized, where its parameters fit exactly.
EXACT_BLOCKS: Final = tuple(
    BY_NAME[d] for d in ("Q1_0", "Q2_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "NVFP4")
)


def gguf_wanted(name: str | None, specs: Iterable[Spec]) -> DType:
    """The type that was asked for; `auto` or nothing: BF16 or F16 where the first matrix is that, else F16, as the
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
    """The type of a tensor in a container of plain types: floats are cast where a type is asked for, others stay."""
    kept = spec.dtype
    if name is None or name == "auto" or kept.kind is not Kind.FLOAT:
        return kept
    wanted = dtype(name)
    if wanted.kind is Kind.BLOCK:
        raise UsageError(f"{wanted} is a type of GGUF files", hint="give the target the extension .gguf")
    return wanted
