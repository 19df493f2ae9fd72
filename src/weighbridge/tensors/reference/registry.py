"""All codecs of `reference*.py` in one table a direction, keyed by the type's name.

DECODE[name](bytes) -> float32          ENCODE[name](float32) -> bytes, lost
                                        WEIGHTED[name](rows of float32, weights of the columns) -> bytes, lost
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import numpy as np

from weighbridge.tensors.reference import iq1_encode as reference_iq1encode
from weighbridge.tensors.reference import iq4_encode as reference_iq4encode
from weighbridge.tensors.reference import iq23_encode as reference_iqencode
from weighbridge.tensors.reference import iquants as reference_iq
from weighbridge.tensors.reference import kquants as reference_k
from weighbridge.tensors.reference import lowbit as reference_low
from weighbridge.tensors.reference import simple as reference
from weighbridge.tensors.reference import weighted as reference_weighted
from weighbridge.tensors.reference.simple import SCALAR, Array, Bytes, aligned, plain_decoder, plain_encoder, widen

_ROWS: Final = {
    **reference.BLOCKS,
    **reference_weighted.BLOCKS,
    **reference_low.BLOCKS,
    **reference_k.BLOCKS,
    **reference_iq.BLOCKS,
}
_BOOKS: Final = (reference_iq4encode, reference_iqencode, reference_iq1encode)  # encoders over codebooks
BLOCKS: Final = MappingProxyType(
    _ROWS
    | {
        name: _ROWS[name]._replace(encode=module.ENCODE.get(name), weighted=weighted)
        for module in _BOOKS
        for name, weighted in module.WEIGHTED.items()
    }
)
DECODE: Final = MappingProxyType(
    {name: plain_decoder(name) for name in SCALAR} | {name: block.decode for name, block in BLOCKS.items()}
)
ENCODE: Final = MappingProxyType(
    {name: plain_encoder(name) for name in SCALAR}
    | {name: block.encode for name, block in BLOCKS.items() if block.encode}
)
WEIGHTED: Final = MappingProxyType({name: block.weighted for name, block in BLOCKS.items() if block.weighted})


def stats(name: str, src: Bytes) -> tuple[int, int, float | None, float | None]:
    """(NaN, Inf, minimum, maximum) of floats, or of a block type's scales; the extremes are over finite values."""
    if name in BLOCKS:
        values: Array = BLOCKS[name].scales(src)
    else:
        values = aligned(src, SCALAR[name]) if name == "F64" else widen(name, src)
    finite = values[np.isfinite(values)]
    nan, inf = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    # + 0.0: a zero is told without its sign
    return (nan, inf, float(finite.min()) + 0.0, float(finite.max()) + 0.0) if finite.size else (nan, inf, None, None)
