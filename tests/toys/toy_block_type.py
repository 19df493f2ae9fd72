"""A block type as a third party adds it: one row with the fields of a block, one codec, one registration.

d    f16        scale of 16 elements
qs   i8[16]     x = d * q
"""

from __future__ import annotations

import numpy as np

from weighbridge.base.dtypes import block_type
from weighbridge.tensors.reference.codec import Codec, half_scales, pack, view
from weighbridge.tensors.reference.floats import Bytes, Floats, Lost, half, scale_loss, to_half

TOY = block_type("Q8_TOY", 7000, 16, "d: f16, qs: i8[16]")


def decode(src: Bytes) -> Floats:
    blocks = view(TOY.name, src)
    values: Floats = blocks["qs"].astype(np.float32) * half(blocks["d"])
    return values.reshape(-1)


def encode(x: Floats) -> tuple[Bytes, Lost]:
    rows = x.reshape(-1, TOY.block)
    d: Floats = np.abs(rows).max(axis=1, keepdims=True) / np.float32(127)
    codes = np.rint(rows / np.where(d == 0, np.float32(1), d))
    return pack(TOY.name, d=to_half(d), qs=codes.astype(np.int8)), scale_loss(d)


CODEC = Codec(half_scales(TOY.name, "d"), decode, encode)
