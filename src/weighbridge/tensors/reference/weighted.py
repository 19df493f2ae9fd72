"""Encoding Q4_0, Q4_1, Q5_0, Q5_1 with weights of the columns (an importance matrix) in plain numpy: bytes equal to
llama.cpp's quantize_row_*_impl (ggml-quants.c, b11549, x86-64 build). A block is one part of a search."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import numpy as np

from weighbridge.tensors.reference import simple as reference
from weighbridge.tensors.reference.kquants_encode import Q4_WEIGHTED, Q5_WEIGHTED, parts_of, weights_of
from weighbridge.tensors.reference.search import Ints, Ranges, Signed, search_ranges, search_signed
from weighbridge.tensors.reference.simple import (
    QK,
    Bytes,
    Floats,
    Lost,
    half_bits,
    pack_5bit,
    pack_nibbles,
    quiet,
    scale_loss,
)

Q4_0_SEARCH: Final = Signed(32, 8)
Q5_0_SEARCH: Final = Signed(32, 16)


def _row_weights(rows: Floats, columns: Floats) -> Floats:
    """The mean square is that of the whole row."""
    return weights_of(rows, columns, rows.shape[1], 1.0).reshape(-1, QK)


def _weighted_signed(how: Signed, rows: Floats, columns: Floats) -> tuple[Floats, Ints]:
    return search_signed(how, parts_of(QK, rows), _row_weights(rows, columns))


def weighted_q4_0(rows: Floats, columns: Floats) -> tuple[Bytes, Lost]:
    with quiet():
        d, q = _weighted_signed(Q4_0_SEARCH, rows, columns)
    return np.concatenate([half_bits(d), pack_nibbles(q)], axis=1).reshape(-1), scale_loss(d)


def weighted_q5_0(rows: Floats, columns: Floats) -> tuple[Bytes, Lost]:
    with quiet():
        d, q = _weighted_signed(Q5_0_SEARCH, rows, columns)
    return np.concatenate([half_bits(d), pack_5bit(q)], axis=1).reshape(-1), scale_loss(d)


def _weighted_range(how: Ranges, rows: Floats, columns: Floats) -> tuple[Floats, Ints]:
    """[d, m], codes."""
    scale, least, codes = search_ranges(how, parts_of(QK, rows), _row_weights(rows, columns))
    return np.concatenate([scale, -least], axis=1), codes


def weighted_q4_1(rows: Floats, columns: Floats) -> tuple[Bytes, Lost]:
    with quiet():
        d, q = _weighted_range(Q4_WEIGHTED, rows, columns)
    return np.concatenate([half_bits(d).reshape(-1, 4), pack_nibbles(q)], axis=1).reshape(-1), scale_loss(d)


def weighted_q5_1(rows: Floats, columns: Floats) -> tuple[Bytes, Lost]:
    with quiet():
        d, q = _weighted_range(Q5_WEIGHTED, rows, columns)
    return np.concatenate([half_bits(d).reshape(-1, 4), pack_5bit(q)], axis=1).reshape(-1), scale_loss(d)


# The rows of `reference.BLOCKS`, with this way added.
BLOCKS: Final = MappingProxyType(
    {
        name: reference.BLOCKS[name]._replace(weighted=encoder)
        for name, encoder in (
            ("Q4_0", weighted_q4_0),
            ("Q4_1", weighted_q4_1),
            ("Q5_0", weighted_q5_0),
            ("Q5_1", weighted_q5_1),
        )
    }
)
