"""Decodes ggml's blocks from before GGUF, and converts them to current ones. In plain numpy.

    V1, until 2023-05-12    element 2i is the low half of byte i, 2i + 1 the high one; Q4_0, Q4_1, Q8_0 have F32 scales
    V2, until 2023-05-19    element i is the low half of byte i, i + 16 the high one, as now; the F32 scales remain
    Q4_2, Q4_3              16 elements and F16 scales; gone with V2

    Q4_0: d, nibbles    (q - 8) d        Q4_1: d, m, nibbles    q d + m        Q8_0: d, 32 x i8    q d
    Q5_0: d(F16), 32 fifth bits, nibbles    (q - 16) d           Q5_1: d, m (F16), bits, nibbles    q d + m

The fifth bits were always bit i for element i, so Q5 blocks of V1 need only moved bits. The scales of the other types
are rounded to F16, to nearest even: exact for F16 numbers, and otherwise off by 1/2048 at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from weighbridge.base.dtypes import BY_NAME, OLD, DType
from weighbridge.base.imports.lazy import lazy_module
from weighbridge.tensors import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weighbridge.tensors.reference import blocks32, codec
    from weighbridge.tensors.reference.floats import Array, Bytes
else:
    blocks32 = lazy_module("weighbridge.tensors.reference.blocks32")
    codec = lazy_module("weighbridge.tensors.reference.codec")


class LegacyForm(NamedTuple):
    """How codes are arranged: `neighbours` in one byte, or halves of the block. `zero`: the code that means zero.
    `current_type`: the current type it is upgraded to, if any."""

    neighbours: bool
    zero: int
    current_type: str | None


FORMS: Final[Mapping[str, LegacyForm]] = MappingProxyType(
    {
        "Q4_0_V1": LegacyForm(True, 8, "Q4_0"),
        "Q4_1_V1": LegacyForm(True, 0, "Q4_1"),
        "Q4_2": LegacyForm(True, 8, None),
        "Q4_3": LegacyForm(True, 0, None),
        "Q5_0_V1": LegacyForm(True, 16, "Q5_0"),
        "Q5_1_V1": LegacyForm(True, 0, "Q5_1"),
        "Q8_0_V1": LegacyForm(False, 0, "Q8_0"),
        "Q4_0_V2": LegacyForm(False, 8, "Q4_0"),
        "Q4_1_V2": LegacyForm(False, 0, "Q4_1"),
    }
)
#: Types that are decoded here, and not by a kernel.
DECODED: Final = frozenset(OLD.values())


def current_type(dtype: DType) -> DType | None:
    """The current type that an old one can be upgraded to without decoding; None if there is none."""
    name = FORMS[dtype.name].current_type if dtype in DECODED else None
    return None if name is None else BY_NAME[name]


def exact(dtype: DType) -> bool:
    """Whether the upgrade is lossless for any values."""
    return dtype.fields[0].scalar == "f16"


def decode(dtype: DType, data: Bytes, out: NDArray[np.float32]) -> None:
    """Values in F32, computed in F32 as llama.cpp of the time did."""
    parts = _parts(dtype, data)
    values = (parts["q"] - FORMS[dtype.name].zero).astype(np.float32) * parts["d"]
    if "m" in parts:
        values += parts["m"]
    out[:] = values.reshape(-1)


def unpacking(dtype: DType) -> codec.Unpacking:
    """How the values of an old type's block follow from its parts."""
    zero = FORMS[dtype.name].zero
    codes = f"d * (q - {zero})" if zero else "d * q"
    minimum = " + m" if any(field.name == "m" for field in dtype.fields) else ""
    return codec.Unpacking(codes + minimum, partial(_parts, dtype))


def _parts(dtype: DType, data: Bytes) -> codec.Parts:
    blocks = codec.view(dtype.name, data)
    codes = _codes(FORMS[dtype.name], blocks["qs"]).astype(np.int32)
    if _has(blocks, "qh"):
        codes |= blocks32.fifth_bits(blocks["qh"])
    scales = {name: blocks[name].astype(np.float32)[:, None] for name in ("d", "m") if _has(blocks, name)}
    return {**scales, "q": codes}


def repack(dtype: DType, data: Bytes, out: Bytes) -> None:
    """Today's blocks of the same numbers."""
    form, blocks = FORMS[dtype.name], codec.view(dtype.name, data)
    fields: dict[str, Array] = {name: blocks[name] for name in blocks.dtype.names or ()}
    with np.errstate(over="ignore"):  # real files have no scale beyond F16; such a scale becomes infinite
        fields |= {name: fields[name].astype(np.float16) for name in ("d", "m") if name in fields}
    if blocks["qs"].dtype == np.uint8:
        fields["qs"] = blocks32.pack_nibbles(_codes(form, blocks["qs"]).astype(np.int32))
    out[:] = codec.pack(form.current_type or "", **fields)


def _has(blocks: Array, field: str) -> bool:
    return field in (blocks.dtype.names or ())


def _codes(form: LegacyForm, quants: Array) -> Array:
    """One number an element, in order."""
    if quants.dtype == np.int8:
        return quants
    low, high = quants & 15, quants >> 4
    if form.neighbours:
        return np.stack((low, high), axis=2).reshape(len(quants), -1)
    return np.concatenate((low, high), axis=1)
