"""Invariant: any bytes give entries inside the file, of distinct names, or a FormatError."""

from __future__ import annotations

import struct
import sys
from typing import get_args

import harness

from weighbridge.containers.ggml import imatrix
from weighbridge.io.source import BytesSource


def target(data: bytes) -> None:
    found = imatrix.parse(BytesSource(data))
    assert len({r.name for r in found.records}) == len(found.records) > 0
    for record in found.records:
        assert record.values > 0
        assert record.values % record.matrices == 0
        for offset, count in (
            (record.sum2, record.values),
            (record.counts, record.matrices),
            (record.inputs, record.values),
        ):
            assert offset is None or 0 < offset <= len(data) - 4 * count


def seeds() -> list[bytes]:
    good = []
    for form in get_args(imatrix.ImatrixForm):
        parts = [
            imatrix.ImatrixPart("blk.0.ffn_down.weight", 1, 3, calls=2),
            imatrix.ImatrixPart("blk.0.ffn_up_exps.weight", 2, 4, inputs=True),
        ]
        place = imatrix.layout(parts, form, datasets=["a.txt"], chunks=5, chunk_size=512)
        out = bytearray(place.size)
        for at, piece in place.pieces:
            out[at : at + len(piece)] = piece
        good.append(bytes(out))
    return [*good, struct.pack("<ii1siif", 1, 1, b"x", 1, 1, 0.5)]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds))
