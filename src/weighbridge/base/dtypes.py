"""The type table: one row per number type. Parsers, planner, kernels and docs all read it.

A type is stored in *atoms*: the smallest run of elements that is a whole number of bytes. That is one element of a
plain dtype, two of a 4-bit float (four of a 6-bit one), and one block of a ggml block type.

A block type's row names the fields of one block. Its size, byte order (`swap_plan`), the structured arrays of
the numpy codecs (`tensors/reference/codec.py`), the C++ structs (`native/block_types.hpp`) and the drawings in the docs
all derive from the fields. `register` adds a type that isn't shipped.

Sources: safetensors `Dtype` (safetensors/src/tensor.rs 0.8.0, also the order of `RANK`), ggml `type_traits` and block
structs (ggml.c, ggml-common.h of llama.cpp b11549, ids 0..42), numpy/ml_dtypes and torch by their own names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.plugins import BLOCK_TYPES, plugins
from weighbridge.base.records import dataclass
from weighbridge.base.words import suggest


class Kind(StrEnum):
    """The interpretation of a type's bits."""

    BOOL = "bool"
    INT = "int"
    UINT = "uint"
    FLOAT = "float"
    COMPLEX = "complex"
    BLOCK = "block"  # a ggml block: several elements that share scales


# A quantizer ignores an importance matrix, uses it if there is one, or requires it
# (ggml_quantize_requires_imatrix).
Importance = Literal["ignored", "used", "required"]

#: Scalars of block fields, as numpy and `struct` name them. `mixed`: bytes that ggml reads both one by one and as
#: words, so that their byte order is undefined.
SCALARS: Final = MappingProxyType(
    {"f16": "e", "f32": "f", "u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "mixed": "B"}
)
_SCALAR_SIZES: Final = MappingProxyType({"f32": 4, "u32": 4, "f16": 2, "u16": 2, "i16": 2})


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a block: `count` scalars (see `SCALARS`) at byte `offset`."""

    name: str
    scalar: str
    count: int
    offset: int

    @property
    def itemsize(self) -> int:
        """Bytes of one scalar."""
        return _SCALAR_SIZES.get(self.scalar, 1)

    @property
    def size(self) -> int:
        """Bytes of the field."""
        return self.itemsize * self.count


_FIELD: Final = re.compile(r"(\w+): (\w+)(?:\[(\d+)\])?")


def parse_fields(text: str) -> tuple[Field, ...]:
    """The fields of a block written as `d: f16, qs: u8[16]`, in file order. ValueError for anything else."""
    fields: list[Field] = []
    for part in text.split(", "):
        match = _FIELD.fullmatch(part)
        if match is None or match[2] not in SCALARS:
            raise ValueError(
                f"{part!r} isn't NAME: SCALAR or NAME: SCALAR[COUNT] with a scalar of {', '.join(SCALARS)}"
            )
        at = fields[-1].offset + fields[-1].size if fields else 0
        fields.append(Field(match[1], match[2], int(match[3] or 1), at))
    return tuple(fields)


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """One number type: `block` elements are stored in `size` bytes (one atom). Each type is a single object, so types
    compare by identity."""

    name: str
    kind: Kind
    block: int
    size: int
    safetensors: str | None = None  # its name in a safetensors header
    ggml: int | None = None  # its ggml_type id
    numpy: str | None = None  # numpy or ml_dtypes name of one element; None if numpy has no such type
    torch: str | None = None  # attribute of torch
    word: int = 1  # bytes of the largest scalar inside
    importance: Importance = "ignored"
    fields: tuple[Field, ...] = ()  # block types only

    @property
    def bits(self) -> float:
        """Bits per element."""
        return self.size * 8 / self.block

    @property
    def plain(self) -> bool:
        """Whether one element is exactly one numpy scalar."""
        return self.block == 1

    @property
    def is_float(self) -> bool:
        return self.kind is Kind.FLOAT

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __reduce__(self) -> tuple[Callable[[str], DType], tuple[str]]:
        return unpickled, (self.name,)


def unpickled(name: str) -> DType:
    """The single object of a type."""
    return OLD.get(name) or dtype(name)


def _plain(name: str, kind: Kind, size: int, **names: str | int | None) -> DType:
    return DType(name, kind, 1, size, safetensors=name if names.pop("st", 1) else None, word=size, **names)  # type: ignore[arg-type]


def block_type(name: str, ggml: int | None, block: int, fields: str, importance: Importance = "ignored") -> DType:
    """The row of a block type. `block`: elements per block; `fields`: in file order, as `d: f16, qs: u8[16]`."""
    parsed = parse_fields(fields)
    size, word = sum(f.size for f in parsed), max(f.itemsize for f in parsed)
    return DType(name, Kind.BLOCK, block, size, ggml=ggml, word=word, importance=importance, fields=parsed)


_F, _I, _U = Kind.FLOAT, Kind.INT, Kind.UINT

# Plain rows are in the order of the reference's enum, by which its writer sorts, descending (see `RANK`).
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
    block_type("Q4_0", 2, 32, "d: f16, qs: u8[16]", "used"),
    block_type("Q4_1", 3, 32, "d: f16, m: f16, qs: u8[16]", "used"),
    block_type("Q5_0", 6, 32, "d: f16, qh: u32, qs: u8[16]", "used"),
    block_type("Q5_1", 7, 32, "d: f16, m: f16, qh: u32, qs: u8[16]", "used"),
    block_type("Q8_0", 8, 32, "d: f16, qs: i8[32]"),
    block_type("Q8_1", 9, 32, "d: f16, s: f16, qs: i8[32]"),
    block_type("Q2_K", 10, 256, "scales: u8[16], qs: u8[64], d: f16, dmin: f16", "used"),
    block_type("Q3_K", 11, 256, "hmask: u8[32], qs: u8[64], scales: u8[12], d: f16", "used"),
    block_type("Q4_K", 12, 256, "d: f16, dmin: f16, scales: u8[12], qs: u8[128]", "used"),
    block_type("Q5_K", 13, 256, "d: f16, dmin: f16, scales: u8[12], qh: u8[32], qs: u8[128]", "used"),
    block_type("Q6_K", 14, 256, "ql: u8[128], qh: u8[64], scales: i8[16], d: f16", "used"),
    block_type("Q8_K", 15, 256, "d: f32, qs: i8[256], bsums: i16[16]"),
    block_type("IQ2_XXS", 16, 256, "d: f16, qs: mixed[64]", "required"),
    block_type("IQ2_XS", 17, 256, "d: f16, qs: u16[32], scales: u8[8]", "required"),
    block_type("IQ3_XXS", 18, 256, "d: f16, qs: u8[64], signs: u32[8]", "used"),
    block_type("IQ1_S", 19, 256, "d: f16, qs: u8[32], qh: u16[8]", "required"),
    block_type("IQ4_NL", 20, 32, "d: f16, qs: u8[16]", "used"),
    block_type("IQ3_S", 21, 256, "d: f16, qs: u8[64], qh: u8[8], signs: u8[32], scales: u8[4]", "used"),
    block_type("IQ2_S", 22, 256, "d: f16, qs: u8[32], signs: u8[32], qh: u8[8], scales: u8[8]", "used"),
    block_type("IQ4_XS", 23, 256, "d: f16, scales_h: u16, scales_l: u8[4], qs: u8[128]", "used"),
    block_type("IQ1_M", 29, 256, "qs: u8[32], qh: u8[16], scales: u16[4]", "used"),
    block_type("TQ1_0", 34, 256, "qs: u8[48], qh: u8[4], d: f16"),
    block_type("TQ2_0", 35, 256, "qs: u8[64], d: f16"),
    block_type("MXFP4", 39, 32, "e: u8, qs: u8[16]"),
    block_type("NVFP4", 40, 64, "d: u8[4], qs: u8[32]"),
    block_type("Q1_0", 41, 128, "d: f16, qs: u8[16]"),
    block_type("Q2_0", 42, 64, "d: f16, qs: u8[16]"),
)

# Blocks of files before GGUF (llama.cpp, March to May 2023), whose ids mean other types now: scales of 32 bits, nibbles
# of neighbours (V1) in one byte. They are read and converted to today's types, never written; no table above lists
# them.
OLD: Final = MappingProxyType(
    {
        t.name: t
        for t in (
            block_type("Q4_0_V1", None, 32, "d: f32, qs: u8[16]"),
            block_type("Q4_1_V1", None, 32, "d: f32, m: f32, qs: u8[16]"),
            block_type("Q4_2", None, 16, "d: f16, qs: u8[8]"),
            block_type("Q4_3", None, 16, "d: f16, m: f16, qs: u8[8]"),
            block_type("Q5_0_V1", None, 32, "d: f16, qh: u32, qs: u8[16]"),
            block_type("Q5_1_V1", None, 32, "d: f16, m: f16, qh: u32, qs: u8[16]"),
            block_type("Q8_0_V1", None, 32, "d: f32, qs: i8[32]"),
            block_type("Q4_0_V2", None, 32, "d: f32, qs: u8[16]"),
            block_type("Q4_1_V2", None, 32, "d: f32, m: f32, qs: u8[16]"),
        )
    }
)

_by_name: Final = {t.name: t for t in TABLE}
_by_ggml: Final = {t.ggml: t for t in TABLE if t.ggml is not None}
# Views: registered types appear in both.
BY_NAME: Final = MappingProxyType(_by_name)
BY_GGML: Final = MappingProxyType(_by_ggml)
BY_SAFETENSORS: Final = MappingProxyType({t.safetensors: t for t in TABLE if t.safetensors})
BY_NUMPY: Final = MappingProxyType({t.numpy: t for t in TABLE if t.numpy})
#: Types of numpy itself: those of ml_dtypes lose their names in numpy's own files.
NUMPY_OWN: Final = frozenset(t.name for t in TABLE if t.numpy and not t.numpy.startswith(("bfloat", "float8")))
# Position in the reference's enum, by which its writer sorts (larger first).
RANK: Final = MappingProxyType({t.name: i for i, t in enumerate(TABLE) if t.safetensors})

# Other common names of types.
_ALIASES: Final = MappingProxyType(
    {
        "FP32": "F32", "FLOAT32": "F32", "FLOAT": "F32", "FP16": "F16", "FLOAT16": "F16", "HALF": "F16",
        "BFLOAT16": "BF16", "FP64": "F64", "FLOAT64": "F64", "DOUBLE": "F64", "FP8": "F8_E4M3", "F8_E4M3FN": "F8_E4M3",
        "FLOAT8_E4M3FN": "F8_E4M3", "FLOAT8_E5M2": "F8_E5M2",
    }
)  # fmt: skip


def register(row: DType) -> None:
    """Adds a block type that isn't shipped (`block_type` makes its row). Use `tensors.reference.registry.register`,
    which also adds the codec. UsageError if the name or the ggml id is taken."""
    if row.kind is not Kind.BLOCK or not row.fields:
        raise UsageError(f"{row} has no block fields", hint="make the row with base.dtypes.block_type")
    if row.name.upper() in (*_by_name, *_ALIASES) or row.ggml in _by_ggml:
        raise UsageError(f"a number type {row} or with the ggml id {row.ggml} exists already")
    if row.name != row.name.upper():
        raise UsageError(f"the name of the number type {row} isn't in upper case")
    _by_name[row.name] = row
    if row.ggml is not None:
        _by_ggml[row.ggml] = row


def by_name(name: str) -> DType | None:
    """The type of this name, shipped or of a plug-in."""
    return _by_name.get(name) or (_by_name.get(name) if _load_plugged() else None)


def by_ggml(number: int) -> DType | None:
    """The type of this ggml id, shipped or of a plug-in."""
    return _by_ggml.get(number) or (_by_ggml.get(number) if _load_plugged() else None)


def _load_plugged() -> bool:
    """Imports the block types of installed packages, which register themselves. Whether there are any."""
    types = plugins(BLOCK_TYPES, DType)
    for name, row in types.items():
        if _by_name.get(row.name) is not row:
            raise UnsupportedError(f"the plug-in {name!r} of {BLOCK_TYPES} can't be used: its module doesn't register "
                                   f"{row}", hint="call weighbridge.tensors.reference.registry.register")  # fmt: skip
    return bool(types)


#: A number type: a name in any common spelling, or a dtype or scalar type of torch, numpy, ml_dtypes, JAX or MLX. These
#: have no common base class.
DTypeLike: TypeAlias = object


def dtype(named: DTypeLike) -> DType:
    """The row of a number type: by name in any common spelling (any case, `fp16`, `torch.bfloat16`), or by a dtype or
    scalar type of a framework. UsageError if there is none."""
    if isinstance(named, DType):
        return named
    if isinstance(named, str):
        name = named
    elif isinstance(named, type):  # Python's numbers are ambiguous: float is F64 to numpy and F32 to torch
        name = named.__name__ if named.__module__ != "builtins" else str(named)
    else:
        attribute = getattr(named, "name", None)
        name = attribute if isinstance(attribute, str) else str(named)
    key = name.rpartition(".")[2]
    row = BY_NUMPY.get(key.lower()) or by_name(_ALIASES.get(key.upper(), key.upper()))
    if row is None:
        hint = suggest(key.upper(), BY_NAME, f"known: {', '.join(BY_NAME)}")
        raise UsageError(f"no number type is called {name!r}", hint=hint)
    return row


def requested_dtype(named: DTypeLike | None) -> DType | None:
    """The type that a `dtype=` argument asks for; None if it keeps the type of the values (None, "auto")."""
    return None if named is None or (isinstance(named, str) and named.lower() == "auto") else dtype(named)


F32: Final = BY_NAME["F32"]
F16: Final = BY_NAME["F16"]
BF16: Final = BY_NAME["BF16"]
F64: Final = BY_NAME["F64"]
U8: Final = BY_NAME["U8"]
U32: Final = BY_NAME["U32"]
I32: Final = BY_NAME["I32"]
I64: Final = BY_NAME["I64"]
Q8_0: Final = BY_NAME["Q8_0"]
Q4_0: Final = BY_NAME["Q4_0"]
Q4_1: Final = BY_NAME["Q4_1"]

# ------------------------------------------------------------------------------------------------ microscaled types

E8M0: Final = BY_NAME["F8_E8M0"]
E4M3: Final = BY_NAME["F8_E4M3"]


#: The magnitudes of E2M1 and E2M3 in the order of their codes (OCP MX 1.0, 5.3.3 and 5.3.2).
E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M3: Final = (*(n / 8 for n in range(8)), *((1 + n / 8) * 2**e for e in range(3) for n in range(8)))


class MicroscaledType(NamedTuple):
    """Small floats that share a scale per `group` of columns: value = element * scale. Elements of 4 bits are E2M1, of
    6 bits E2M3, of 8 bits E4M3; a scale is a power of two (E8M0) or an E4M3.

    bits      of an element
    largest   the largest element
    mlx       whether MLX has a mode of this name
    block     the ggml block type with the same codes and scales

    Sources: OCP MX 1.0; NVFP4 as TensorRT Model Optimizer writes it."""

    name: str
    group: int
    bits: int
    largest: float
    scale: DType
    mlx: bool = True
    block: DType | None = None


MICROSCALED: Final = MappingProxyType(
    {
        row.name: row
        for row in (
            MicroscaledType("mxfp4", 32, 4, 6.0, E8M0, block=BY_NAME["MXFP4"]),
            MicroscaledType("mxfp6", 32, 6, 7.5, E8M0, mlx=False),
            MicroscaledType("mxfp8", 32, 8, 448.0, E8M0),
            MicroscaledType("nvfp4", 16, 4, 6.0, E4M3, block=BY_NAME["NVFP4"]),
        )
    }
)
MXFP4: Final = MICROSCALED["mxfp4"]
MXFP6: Final = MICROSCALED["mxfp6"]
MXFP8: Final = MICROSCALED["mxfp8"]
NVFP4: Final = MICROSCALED["nvfp4"]
#: The 4-bit types by the type of their scales, and those that ggml has by its block type.
FOUR_BITS: Final = MappingProxyType({row.scale: row for row in (MXFP4, NVFP4)})
BY_BLOCK: Final = MappingProxyType({row.block: row for row in MICROSCALED.values() if row.block})


def swap_plan(dtype: DType) -> tuple[int, ...]:
    """Returns the original place of each byte of an atom in the other byte order. Raises UnsupportedError if the order
    is undefined. A big-endian GGUF also swaps the scalars inside every block, so a swap is a fixed permutation of an
    atom's bytes, and swapping twice restores them. (gguf-py 0.19 leaves bf16 and block data of big-endian files
    little-endian. Such a file can't be recognised.)"""
    if any(f.scalar == "mixed" for f in dtype.fields) or not (dtype.plain or dtype.fields):
        raise UnsupportedError(f"the byte order of {dtype} data can't be changed", hint="get a little-endian file")
    plain = ((dtype.word, dtype.size // dtype.word),)
    plan: list[int] = []
    for word, count in [(f.itemsize, f.count) for f in dtype.fields] or plain:
        for _ in range(count):
            plan += range(len(plan) + word - 1, len(plan) - 1, -1)
    return tuple(plan)


def swap(dtype: DType, data: bytearray | memoryview) -> None:
    """Swaps whole atoms in place: one strided copy per pair of bytes that trade places."""
    for to, origin in enumerate(swap_plan(dtype)):
        if to < origin:
            data[to :: dtype.size], data[origin :: dtype.size] = (
                bytes(data[origin :: dtype.size]),
                bytes(data[to :: dtype.size]),
            )
