"""Codecs of block types, and blocks as structured arrays.

blocks = view("Q4_0", src)           blocks["d"] [n] f16, blocks["qs"] [n, 16] u8: the fields of `base/dtypes.py`
data = pack("Q4_0", d=d, qs=codes)   the same way back
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from weighbridge.base.dtypes import BY_NAME, OLD, SCALARS, Field
from weighbridge.tensors.reference.floats import Array, Bytes, Decoder, Encoder, WeightedEncoder, widen

#: Arrays by name: one row per block.
Parts = Mapping[str, Array]


class Unpacking(NamedTuple):
    """How a block's values follow from its parts. `parts` gives them: scales, codes and whatever else is packed into
    bits, each [blocks, n] for runs of block / n elements, in the elements' order; `table`: what codes are numbers into.
    `formula`: an expression of the parts in Python's notation, computed in f32."""

    formula: str
    parts: Callable[[Bytes], Parts]


class Codec(NamedTuple):
    """A block type's codec: its scales as f32, and its operations (None: not supported). `weighted` is None if the
    type ignores an importance matrix, `encode` if it requires one."""

    scales: Decoder
    decode: Decoder
    encode: Encoder | None = None
    weighted: WeightedEncoder | None = None
    unpacking: Unpacking | None = None


@cache
def structure(name: str) -> np.dtype[Any]:
    """The fields of a block as a numpy dtype, without padding."""
    fields = (BY_NAME.get(name) or OLD[name]).fields
    return np.dtype([(f.name, f"<{SCALARS[f.scalar]}", (f.count,) if f.count > 1 else ()) for f in fields])


def scalars(field: Field, raw: Bytes) -> Array:
    """The numbers in the bytes of one field."""
    return raw.view(f"<{SCALARS[field.scalar]}")


def view(name: str, src: Bytes) -> Array:
    """Stored blocks as a structured array [n]."""
    return src.reshape(-1).view(structure(name))


def pack(name: str, **fields: Array) -> Bytes:
    """Stored blocks of their fields, each [n] or [n, count] or of as many elements. Integers keep their low bits."""
    layout = structure(name)
    first = next(iter(fields.values()))
    count = first.size // max(1, int(np.prod(layout[next(iter(fields))].shape)))
    out = np.empty(count, layout)
    for field, values in fields.items():
        out[field] = values.reshape(out[field].shape)
    return out.view(np.uint8)


def half_scales(name: str, *fields: str) -> Decoder:
    """Reads the f16 scales in these fields, block by block."""

    def scales(src: Bytes) -> Array:
        blocks = view(name, src)
        return widen("F16", np.stack([blocks[field] for field in fields], axis=1).view(np.uint8).reshape(-1))

    return scales
