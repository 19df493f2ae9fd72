"""THE type table: one row a number type. Everything that must know a type (parsers, planner, kernels, docs) looks here.

A type is stored in *atoms*: the smallest run of elements that is a whole number of bytes. One element of a plain
dtype, two of a 4-bit float (four of a 6-bit one), 32 or 256 of a ggml block type.

Sources: safetensors `Dtype` (safetensors/src/tensor.rs 0.8.0, also the order of `rank`), ggml `type_traits` (ggml.c of
llama.cpp b11549, ids 0..42), numpy/ml_dtypes and torch by their own names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal

from weighbridge.base.errors import UsageError


class Kind(StrEnum):
    """What the bits of a type mean."""

    BOOL = "bool"
    INT = "int"
    UINT = "uint"
    FLOAT = "float"
    COMPLEX = "complex"
    BLOCK = "block"  # a ggml block: several elements that share scales


# Of a type that is quantized to: ignored, used where there is one, or required (ggml_quantize_requires_imatrix).
Importance = Literal["ignored", "used", "required"]


@dataclass(frozen=True, slots=True)
class DType:
    """One number type: `block` elements are stored in `size` bytes (one atom)."""

    name: str
    kind: Kind
    block: int
    size: int
    safetensors: str | None = None  # its name in a safetensors header
    ggml: int | None = None  # its ggml_type id
    numpy: str | None = None  # numpy or ml_dtypes name of one element; None where numpy can't hold it
    torch: str | None = None  # attribute of torch
    word: int = field(default=1)  # bytes of the largest scalar inside (what a byte-order swap must respect)
    importance: Importance = "ignored"  # what an importance matrix is to its quantizer

    @property
    def bits(self) -> float:
        """Bits per element."""
        return self.size * 8 / self.block

    @property
    def plain(self) -> bool:
        """True where one element is one whole numpy scalar."""
        return self.block == 1

    @property
    def is_float(self) -> bool:
        return self.kind is Kind.FLOAT

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<{self.name}>"


def _plain(name: str, kind: Kind, size: int, **names: str | int | None) -> DType:
    return DType(name, kind, 1, size, safetensors=name if names.pop("st", 1) else None, word=size, **names)  # type: ignore[arg-type]


def _ggml(name: str, number: int, block: int, size: int, importance: Importance = "ignored", *, word: int = 2) -> DType:
    return DType(name, Kind.BLOCK, block, size, ggml=number, word=word, importance=importance)


_F, _I, _U = Kind.FLOAT, Kind.INT, Kind.UINT

# Plain rows stand in the order of the reference's enum: its writer sorts by it, descending (see `RANK`).
TABLE: Final = (
    _plain("BOOL", Kind.BOOL, 1, numpy="bool", torch="bool"),
    DType("F4", _F, 2, 1, safetensors="F4", torch="float4_e2m1fn_x2"),
    DType("F6_E2M3", _F, 4, 3, safetensors="F6_E2M3"),
    DType("F6_E3M2", _F, 4, 3, safetensors="F6_E3M2"),
    _plain("U8", _U, 1, numpy="uint8", torch="uint8"),
    _plain("I8", _I, 1, ggml=24, numpy="int8", torch="int8"),
    _plain("F8_E5M2", _F, 1, numpy="float8_e5m2", torch="float8_e5m2"),
    _plain("F8_E4M3", _F, 1, numpy="float8_e4m3fn", torch="float8_e4m3fn"),
    _plain("F8_E8M0", _F, 1, numpy="float8_e8m0fnu", torch="float8_e8m0fnu"),
    _plain("F8_E4M3FNUZ", _F, 1, numpy="float8_e4m3fnuz", torch="float8_e4m3fnuz"),
    _plain("F8_E5M2FNUZ", _F, 1, numpy="float8_e5m2fnuz", torch="float8_e5m2fnuz"),
    _plain("I16", _I, 2, ggml=25, numpy="int16", torch="int16"),
    _plain("U16", _U, 2, numpy="uint16", torch="uint16"),
    _plain("F16", _F, 2, ggml=1, numpy="float16", torch="float16"),
    _plain("BF16", _F, 2, ggml=30, numpy="bfloat16", torch="bfloat16"),
    _plain("I32", _I, 4, ggml=26, numpy="int32", torch="int32"),
    _plain("U32", _U, 4, numpy="uint32", torch="uint32"),
    _plain("F32", _F, 4, ggml=0, numpy="float32", torch="float32"),
    DType("C64", Kind.COMPLEX, 1, 8, safetensors="C64", numpy="complex64", torch="complex64", word=4),
    _plain("F64", _F, 8, ggml=28, numpy="float64", torch="float64"),
    _plain("I64", _I, 8, ggml=27, numpy="int64", torch="int64"),
    _plain("U64", _U, 8, numpy="uint64", torch="uint64"),
    # Not in safetensors.
    DType("C128", Kind.COMPLEX, 1, 16, numpy="complex128", torch="complex128", word=8),
    # ggml block types. Ids 4, 5, 31-33, 36-38 were removed upstream and must be refused.
    _ggml("Q4_0", 2, 32, 18, "used"),
    _ggml("Q4_1", 3, 32, 20, "used"),
    _ggml("Q5_0", 6, 32, 22, "used"),
    _ggml("Q5_1", 7, 32, 24, "used"),
    _ggml("Q8_0", 8, 32, 34),
    _ggml("Q8_1", 9, 32, 36),
    _ggml("Q2_K", 10, 256, 84, "used"),
    _ggml("Q3_K", 11, 256, 110, "used"),
    _ggml("Q4_K", 12, 256, 144, "used"),
    _ggml("Q5_K", 13, 256, 176, "used"),
    _ggml("Q6_K", 14, 256, 210, "used"),
    _ggml("Q8_K", 15, 256, 292, word=4),
    _ggml("IQ2_XXS", 16, 256, 66, "required"),
    _ggml("IQ2_XS", 17, 256, 74, "required"),
    _ggml("IQ3_XXS", 18, 256, 98, "used"),
    _ggml("IQ1_S", 19, 256, 50, "required"),
    _ggml("IQ4_NL", 20, 32, 18, "used"),
    _ggml("IQ3_S", 21, 256, 110, "used"),
    _ggml("IQ2_S", 22, 256, 82, "used"),
    _ggml("IQ4_XS", 23, 256, 136, "used"),
    _ggml("IQ1_M", 29, 256, 56, "used"),
    _ggml("TQ1_0", 34, 256, 54),
    _ggml("TQ2_0", 35, 256, 66),
    _ggml("MXFP4", 39, 32, 17, word=1),
    _ggml("NVFP4", 40, 64, 36, word=1),
    _ggml("Q1_0", 41, 128, 18),
    _ggml("Q2_0", 42, 64, 18),
)

# Blocks of files before GGUF (llama.cpp, March to May 2023), under ids that mean others now: scales of 32 bits, nibbles
# of neighbours (V1) in one byte. They are read and made into today's, never written; no table above knows them.
OLD: Final = MappingProxyType(
    {
        name: DType(name, Kind.BLOCK, block, size)
        for name, block, size in (
            ("Q4_0_V1", 32, 20), ("Q4_1_V1", 32, 24), ("Q4_2", 16, 10), ("Q4_3", 16, 12), ("Q5_0_V1", 32, 22),
            ("Q5_1_V1", 32, 24), ("Q8_0_V1", 32, 36), ("Q4_0_V2", 32, 20), ("Q4_1_V2", 32, 24),
        )
    }
)  # fmt: skip

BY_NAME: Final = MappingProxyType({t.name: t for t in TABLE})
BY_SAFETENSORS: Final = MappingProxyType({t.safetensors: t for t in TABLE if t.safetensors})
BY_GGML: Final = MappingProxyType({t.ggml: t for t in TABLE if t.ggml is not None})
BY_NUMPY: Final = MappingProxyType({t.numpy: t for t in TABLE if t.numpy})
# Place in the reference's enum = place in its writer's order (larger first).
RANK: Final = MappingProxyType({t.name: i for i, t in enumerate(TABLE) if t.safetensors})

# What people type for a type, besides its own name in any case.
_ALIASES: Final = MappingProxyType(
    {
        "FP32": "F32", "FLOAT32": "F32", "FLOAT": "F32", "FP16": "F16", "FLOAT16": "F16", "HALF": "F16",
        "BFLOAT16": "BF16", "FP64": "F64", "FLOAT64": "F64", "DOUBLE": "F64", "FP8": "F8_E4M3", "F8_E4M3FN": "F8_E4M3",
        "FLOAT8_E4M3FN": "F8_E4M3", "FLOAT8_E5M2": "F8_E5M2",
    }
)  # fmt: skip


def dtype(name: str | DType) -> DType:
    """The row for a type's name as people write it (any case, `fp16`, `torch.bfloat16`). UsageError if none."""
    if isinstance(name, DType):
        return name
    key = name.upper().removeprefix("TORCH.")
    found = BY_NAME.get(_ALIASES.get(key, key)) or BY_NUMPY.get(name.lower())
    if found is None:
        raise UsageError(f"no number type is called {name!r}", hint=f"known: {', '.join(BY_NAME)}")
    return found


F32: Final = BY_NAME["F32"]
F16: Final = BY_NAME["F16"]
BF16: Final = BY_NAME["BF16"]
F64: Final = BY_NAME["F64"]
U8: Final = BY_NAME["U8"]
U32: Final = BY_NAME["U32"]
I32: Final = BY_NAME["I32"]
Q8_0: Final = BY_NAME["Q8_0"]
Q4_0: Final = BY_NAME["Q4_0"]
Q4_1: Final = BY_NAME["Q4_1"]
