"""Encoding IQ4_NL and IQ4_XS in plain numpy: bytes equal to llama.cpp's quantize_iq4_nl and quantize_iq4_xs
(ggml-quants.c, b11549, x86-64 build), with and without weights of the columns. The native twin is
`native/kernels/iq4_encode.cpp`.

32 elements (a run) get a scale with a sign by a search over 16 grids: the first maps the largest element to -127 with
the sign changed, the other fifteen are around the grid that maps it to -127. A weighted least-squares fit of each
decides. Then the codes are computed for the best scale, which IQ4_XS rounds to six bits first.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import numpy as np

from weighbridge.tensors.reference.blocks32 import pack_nibbles
from weighbridge.tensors.reference.codec import pack
from weighbridge.tensors.reference.floats import (
    Array,
    Bytes,
    Encoder,
    Floats,
    Lost,
    WeightedEncoder,
    ignore_fp_warnings,
    inverse,
    scale_loss,
    to_half,
)
from weighbridge.tensors.reference.lowbit import IQ4_VALUES, look_up
from weighbridge.tensors.reference.search import NOTHING, Ints, extreme, in_order, nearest

RUN: Final = 32
IQ4_N: Final = 256
IQ4_TRIES: Final = 7
IQ4_SCALE_ZERO: Final = 32  # scales of runs are -32..31, stored with this added


def nearest_iq4(x: Floats) -> Ints:
    """The nearest code; halfway it is the upper one, and of a NaN the last."""
    values = np.array(IQ4_VALUES, np.float32)
    middles = (values[1:] + values[:-1]) / np.float32(2)
    codes: Ints = (~(x[..., None] < middles)).sum(axis=-1).astype(np.int32)
    return codes


def search_iq4(x: Floats, w: Floats) -> Floats:
    """The scales [runs, 1] of runs [runs, 32]."""
    top = extreme(x)
    scale = best = np.zeros_like(top)
    for k in (None, *range(-IQ4_TRIES, IQ4_TRIES + 1)):
        if k is None:
            grid = np.float32(1) / (-top / np.float32(IQ4_VALUES[0]))
        else:
            grid = np.float32(k + IQ4_VALUES[0]) / top
        q = look_up(IQ4_VALUES, nearest_iq4(grid * x))
        sum_qx, sum_q2 = in_order(w * q * x), in_order(w * q * q)
        fitted = np.where(sum_q2 > 0, sum_qx / sum_q2, np.float32(0))
        better = np.array(True) if k is None else (sum_q2 > 0) & (sum_qx * sum_qx > best * sum_q2)
        scale, best = np.where(better, fitted, scale), np.where(better, fitted * sum_qx, best)
    return np.where(np.abs(top) < np.float32(NOTHING), np.float32(0), scale)


def _weights(x: Floats, columns: Floats | None) -> Floats:
    """Of blocks [blocks, elements]: squares, or importance times the root of square and twice the mean square."""
    if columns is None:
        return x * x
    size = x.shape[1]
    tiled = np.tile(columns.reshape(-1, size), (x.size // columns.size, 1))
    return tiled * np.sqrt(in_order(x * x) * np.float32(2 / size) + x * x)


def _nl(x: Floats, columns: Floats | None) -> tuple[Bytes, Lost]:
    x = x.reshape(-1, RUN)
    with ignore_fp_warnings():
        d = search_iq4(x, _weights(x, columns))
        q = nearest_iq4(inverse(d) * x)
    return pack("IQ4_NL", d=to_half(d), qs=pack_nibbles(q)), scale_loss(d)


def _xs(x: Floats, columns: Floats | None) -> tuple[Bytes, Lost]:
    x = x.reshape(-1, IQ4_N)
    with ignore_fp_warnings():
        scales = search_iq4(x.reshape(-1, RUN), _weights(x, columns).reshape(-1, RUN)).reshape(-1, IQ4_N // RUN)
        d = -extreme(scales) / np.float32(IQ4_SCALE_ZERO)
        codes = np.clip(nearest(inverse(d) * scales), -IQ4_SCALE_ZERO, IQ4_SCALE_ZERO - 1)
        q = nearest_iq4((inverse(d * codes.astype(np.float32))).reshape(-1, 1) * x.reshape(-1, RUN))
    stored = codes + IQ4_SCALE_ZERO
    upper: Array = (stored >> 4 << np.arange(0, 16, 2)).sum(axis=1)
    lower = stored[:, ::2] & 15 | (stored[:, 1::2] & 15) << 4
    return pack("IQ4_XS", d=to_half(d), scales_h=upper, scales_l=lower, qs=pack_nibbles(q)), scale_loss(d)


WEIGHTED: Final[MappingProxyType[str, WeightedEncoder]] = MappingProxyType({"IQ4_NL": _nl, "IQ4_XS": _xs})
ENCODE: Final[MappingProxyType[str, Encoder]] = MappingProxyType(
    {"IQ4_NL": lambda x: _nl(x, None), "IQ4_XS": lambda x: _xs(x, None)}
)
