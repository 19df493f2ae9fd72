"""All codecs in one table per operation, keyed by the type's name.

DECODE[name](bytes) -> float32          ENCODE[name](float32) -> bytes, lost
                                        WEIGHTED[name](rows of float32, weights of the columns) -> bytes, lost

`register` adds a block type that isn't shipped.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import numpy as np

from weighbridge.base import dtypes
from weighbridge.base.errors import UsageError
from weighbridge.base.plugins import guard
from weighbridge.tensors.reference import blocks32, kquants, lowbit
from weighbridge.tensors.reference.codebooks import iq1_encode, iq4_encode, iq23_encode, iquants
from weighbridge.tensors.reference.codec import Codec
from weighbridge.tensors.reference.floats import (
    SCALAR,
    Array,
    Bytes,
    Decoder,
    Encoder,
    WeightedEncoder,
    aligned,
    plain_decoder,
    plain_encoder,
    widen,
)

_blocks: Final[dict[str, Codec]] = {}
_decode: Final[dict[str, Decoder]] = {name: plain_decoder(name) for name in SCALAR}
_encode: Final[dict[str, Encoder]] = {name: plain_encoder(name) for name in SCALAR}
_weighted: Final[dict[str, WeightedEncoder]] = {}

BLOCKS: Final = MappingProxyType(_blocks)
DECODE: Final = MappingProxyType(_decode)
ENCODE: Final = MappingProxyType(_encode)
WEIGHTED: Final = MappingProxyType(_weighted)


def _add(name: str, codec: Codec) -> None:
    _blocks[name], _decode[name] = codec, codec.decode
    if codec.encode:
        _encode[name] = codec.encode
    if codec.weighted:
        _weighted[name] = codec.weighted


def _shipped() -> dict[str, Codec]:
    tables = (blocks32, lowbit, kquants, iquants)
    codecs = {name: codec for module in tables for name, codec in module.CODECS.items()}
    for module in (iq4_encode, iq23_encode, iq1_encode):  # encoders over codebooks
        for name, weighted in module.WEIGHTED.items():
            codecs[name] = codecs[name]._replace(encode=module.ENCODE.get(name), weighted=weighted)
    return codecs


for _name, _codec in _shipped().items():
    _add(_name, _codec)


def register(row: dtypes.DType, codec: Codec) -> None:
    """Adds a block type that isn't shipped: its row (`base.dtypes.block_type`) and its codec. UsageError if the name
    or the ggml id is taken, or if the codec doesn't fit the row."""
    door = guard(row.name, codec.decode.__module__)
    guarded = codec._replace(**{name: door(part) for name, part in codec._asdict().items() if callable(part)})
    dtypes.register(row)
    values = np.asarray(guarded.decode(np.zeros(row.size, np.uint8)))
    if values.dtype != np.float32 or values.shape != (row.block,):
        raise UsageError(f"the codec of {row} decodes a block to {values.dtype}{list(values.shape)}, "
                         f"not float32[{row.block}]")  # fmt: skip
    _add(row.name, guarded)


def stats(name: str, src: Bytes) -> tuple[int, int, float | None, float | None]:
    """(NaN, Inf, minimum, maximum) of floats, or of a block type's scales; the extremes are over finite values."""
    if name in BLOCKS:
        values: Array = BLOCKS[name].scales(src)
    else:
        values = aligned(src, SCALAR[name]) if name == "F64" else widen(name, src)
    finite = values[np.isfinite(values)]
    nan, inf = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    # + 0.0: a zero is reported without its sign
    return (nan, inf, float(finite.min()) + 0.0, float(finite.max()) + 0.0) if finite.size else (nan, inf, None, None)
