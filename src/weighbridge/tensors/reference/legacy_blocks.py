"""ggml's blocks as they were before GGUF, decoded, and made into today's. Written to be read; numpy alone.

    V1, until 2023-05-12    element 2i is the low half of byte i, 2i + 1 the high one; Q4_0, Q4_1, Q8_0 have F32 scales
    V2, until 2023-05-19    element i is the low half of byte i, i + 16 the high one, as today; the F32 scales remain
    Q4_2, Q4_3              16 elements and F16 scales; gone with V2

    Q4_0: d, nibbles    (q - 8) d        Q4_1: d, m, nibbles    q d + m        Q8_0: d, 32 x i8    q d
    Q5_0: d(F16), 32 fifth bits, nibbles    (q - 16) d           Q5_1: d, m (F16), bits, nibbles    q d + m

The fifth bits were always bit i for element i. So Q5 blocks of V1 become today's by moving bits; the others' scales are
rounded to F16, to nearest even, which is exact where they are F16 numbers, and else off by 1/2048 at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import BY_NAME, OLD, DType
from weighbridge.tensors.nodes.base import Bytes

_F32, _F16 = np.dtype("<f4"), np.dtype("<f2")


class Form(NamedTuple):
    """A block: `scales` numbers of type `scale` (d, then m), `fifth` bits or none, the elements. `today`: the type it
    becomes, where there is one."""

    scale: np.dtype[np.floating]
    scales: int
    fifth: bool
    bits: int
    neighbours: bool
    zero: int
    today: str | None


FORMS: Final[Mapping[str, Form]] = MappingProxyType(
    {
        "Q4_0_V1": Form(_F32, 1, False, 4, True, 8, "Q4_0"),
        "Q4_1_V1": Form(_F32, 2, False, 4, True, 0, "Q4_1"),
        "Q4_2": Form(_F16, 1, False, 4, True, 8, None),
        "Q4_3": Form(_F16, 2, False, 4, True, 0, None),
        "Q5_0_V1": Form(_F16, 1, True, 4, True, 16, "Q5_0"),
        "Q5_1_V1": Form(_F16, 2, True, 4, True, 0, "Q5_1"),
        "Q8_0_V1": Form(_F32, 1, False, 8, False, 0, "Q8_0"),
        "Q4_0_V2": Form(_F32, 1, False, 4, False, 8, "Q4_0"),
        "Q4_1_V2": Form(_F32, 2, False, 4, False, 0, "Q4_1"),
    }
)
#: Types that are decoded here, and not by a kernel.
DECODED: Final = frozenset(OLD.values())


def today(dtype: DType) -> DType | None:
    """The type of today that an old one becomes without decoding; None where there is none."""
    name = FORMS[dtype.name].today if dtype in DECODED else None
    return None if name is None else BY_NAME[name]


def exact(dtype: DType) -> bool:
    """Whether that loses nothing, whatever the numbers."""
    return FORMS[dtype.name].scale == _F16


def decode(dtype: DType, data: Bytes, out: NDArray[np.float32]) -> None:
    """Values in F32, computed in F32 as llama.cpp of the time did."""
    form, scales, fifth, quants = _parts(dtype, data)
    numbers = _elements(form, quants).astype(np.int32)
    if fifth is not None:
        numbers |= np.unpackbits(fifth, axis=1, bitorder="little").astype(np.int32) << 4
    values = (numbers - form.zero).astype(np.float32) * scales[:, :1].astype(np.float32)
    if form.scales == 2:
        values += scales[:, 1:].astype(np.float32)
    out[:] = values.reshape(-1)


def repack(dtype: DType, data: Bytes, out: Bytes) -> None:
    """Today's blocks of the same numbers."""
    form, scales, fifth, quants = _parts(dtype, data)
    with np.errstate(over="ignore"):  # no scale of an honest file is beyond F16; one that is becomes infinite
        halves = scales.astype(_F16)
    if form.bits == 4:
        elements = _elements(form, quants).view(np.uint8)
        quants = (elements[:, :16] | elements[:, 16:] << 4).astype(np.uint8)
    parts = [halves.view(np.uint8), *([] if fifth is None else [fifth]), quants]
    out[:] = np.concatenate(parts, axis=1).reshape(-1)


def _parts(dtype: DType, data: Bytes) -> tuple[Form, NDArray[np.floating], Bytes | None, Bytes]:
    """Form, scales [blocks, 1 or 2], fifth bits [blocks, 4], bytes of the elements."""
    form = FORMS[dtype.name]
    blocks = data.reshape(-1, dtype.size)
    end = form.scales * form.scale.itemsize
    scales = np.ascontiguousarray(blocks[:, :end]).view(form.scale)
    fifth = np.ascontiguousarray(blocks[:, end : end + 4]) if form.fifth else None
    return form, scales, fifth, blocks[:, end + (4 if form.fifth else 0) :]


def _elements(form: Form, quants: Bytes) -> NDArray[np.uint8] | NDArray[np.int8]:
    """One number an element, in order."""
    if form.bits == 8:
        return quants.astype(np.uint8).view(np.int8)
    low, high = quants & 15, quants >> 4
    if form.neighbours:
        return np.stack((low, high), axis=2).reshape(len(quants), -1)
    return np.concatenate((low, high), axis=1)
