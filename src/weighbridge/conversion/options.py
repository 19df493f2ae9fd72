"""Which number type for which tensor, and the options of a conversion. Policy lives here and nowhere else: tables of
architectures know names and shapes, packings know bits, this knows what is wanted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from weighbridge.base.dtypes import BF16, BY_NAME, F16, F32, DType, Kind, dtype
from weighbridge.base.errors import UsageError
from weighbridge.base.ftypes import FILE_TYPES
from weighbridge.base.limits import MEMORY
from weighbridge.base.spec import Spec

# More threads than this gain nothing: a conversion is bound by the disk, and each one holds slabs.
_MOST_JOBS: Final = 8


@dataclass(frozen=True)
class ConvertOptions:
    """What a caller may say of a conversion; the defaults keep everything as it is.

    `dtype`: the number type of the weights by name, `auto` (GGUF: the type most of the source is in) or None (keep).
    `tokenizer=False` leaves the vocabulary out: a folder without tokenizer files, a GGUF that takes token ids only.
    `rms_eps` and `context_length`: what a file from before GGUF doesn't say of its model. `q_*`: the quantization of an
    MLX folder, as mlx_lm.convert calls it. `scheme`: that of a Hugging Face folder (conversion/schemes/plan.py), with
    `q_bits`, `q_group_size` and `symmetric` where it takes them. `inexact`: what becomes of a quantized tensor that no
    type of the target holds exactly: its values as floats, the nearest type with the same codes and rounded scales, or
    a refusal. `allow_expand`: write a pickle's expanded views (stride 0) also where together they are more than a GiB
    larger than the bytes they are of. `arch_file`: a table of the caller's own for the model's family. `max_shard_size`
    in bytes, `max_shard_tensors`: when given, the target is a sharded set. `resume`: what an interrupted run has done
    stays beside the target, and is gone on with. `lora`: an adapter that is merged into the
    weights. `base`: the model that a source, which is an adapter itself, is for.
    `tp`: the target is a folder with a file for each of so many ranks of a tensor-parallel group.
    """

    dtype: str | None = None
    max_shard_size: int | None = None
    max_shard_tensors: int | None = None
    pre: str | None = None
    tokenizer: bool = True
    name: str | None = None
    align: int | None = None
    allow_requantize: bool = False
    rms_eps: float | None = None
    context_length: int | None = None
    q_bits: int | None = None
    q_group_size: int | None = None
    q_mode: str | None = None
    q_recipe: str | None = None
    scheme: str | None = None
    symmetric: bool | None = None
    inexact: Literal["float", "near", "refuse"] = "float"
    max_memory: int | None = None
    allow_expand: bool = False
    overwrite: bool = False
    resume: bool = False
    jobs: int | None = None
    arch_file: str | os.PathLike[str] | None = None
    lora: str | os.PathLike[str] | None = None
    base: str | os.PathLike[str] | None = None
    tp: int | None = None

    def __post_init__(self) -> None:
        for field in ("max_shard_size", "max_shard_tensors", "align", "max_memory", "jobs"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise UsageError(f"{field} must be at least 1", hint=f"not {value}")

    @property
    def sharded(self) -> bool:
        return self.max_shard_size is not None or self.max_shard_tensors is not None

    @property
    def workers(self) -> int:
        return self.jobs or min(os.cpu_count() or 1, _MOST_JOBS)

    @property
    def memory(self) -> int:
        return self.max_memory or MEMORY


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
