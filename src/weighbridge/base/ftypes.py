"""The file types of GGUF: `general.file_type`, llama.cpp's `llama_ftype` (include/llama.h, b11549), one row each.

A file type names the type of most tensors in a file; tensors may have other types. Its letters S, M, L name mixtures of
types (`conversion/quantize/ftypes.toml` has their rules).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.dtypes import BY_NAME, DType

#: Added to the number if the type was guessed from the tensors (LLAMA_FTYPE_GUESSED).
GUESSED: Final = 1024


class FileType(NamedTuple):
    """`type`: of most tensors; None if llama-quantize has no rule. `counted`: its rules number layers by counting
    tensors of a role, not by the number in the name. `writable`: llama-quantize knows its name."""

    name: str
    number: int
    type: DType | None
    aliases: tuple[str, ...] = ()
    counted: bool = False
    writable: bool = True


def _same(name: str, number: int, *, counted: bool = False) -> FileType:
    return FileType(name, number, BY_NAME[name], counted=counted)


def _mix(name: str, number: int, dtype: str, *aliases: str, counted: bool = False) -> FileType:
    return FileType(name, number, BY_NAME[dtype], aliases, counted)


TABLE: Final = (
    _same("F32", 0),
    _same("F16", 1),
    _same("Q4_0", 2),
    _same("Q4_1", 3),
    _same("Q8_0", 7),
    _same("Q5_0", 8),
    _same("Q5_1", 9),
    _same("Q2_K", 10),
    _mix("Q3_K_S", 11, "Q3_K"),
    _mix("Q3_K_M", 12, "Q3_K", "Q3_K"),
    _mix("Q3_K_L", 13, "Q3_K"),
    _mix("Q4_K_S", 14, "Q4_K"),
    _mix("Q4_K_M", 15, "Q4_K", "Q4_K"),
    _mix("Q5_K_S", 16, "Q5_K"),
    _mix("Q5_K_M", 17, "Q5_K", "Q5_K"),
    _same("Q6_K", 18),
    _same("IQ2_XXS", 19, counted=True),
    _same("IQ2_XS", 20, counted=True),
    _mix("Q2_K_S", 21, "Q2_K"),
    _mix("IQ3_XS", 22, "IQ3_S"),
    _same("IQ3_XXS", 23),
    _same("IQ1_S", 24, counted=True),
    _same("IQ4_NL", 25),
    _same("IQ3_S", 26),
    _mix("IQ3_M", 27, "IQ3_S"),
    _mix("IQ2_S", 28, "IQ2_XS", counted=True),
    _mix("IQ2_M", 29, "IQ2_S", counted=True),
    _same("IQ4_XS", 30),
    _same("IQ1_M", 31, counted=True),
    _same("BF16", 32),
    _same("TQ1_0", 36),
    _same("TQ2_0", 37),
    _mix("MXFP4_MOE", 38, "MXFP4", counted=True),
    FileType("NVFP4", 39, None, writable=False),
    _same("Q1_0", 40),
    _same("Q2_0", 41),
)
FILE_TYPES: Final = MappingProxyType({t.name: t for t in TABLE})
BY_NUMBER: Final = MappingProxyType({t.number: t for t in TABLE})
