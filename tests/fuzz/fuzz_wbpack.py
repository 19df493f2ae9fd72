"""Invariant: any bytes are a packed file whose every chunk is read or refused, alike by numpy and the extension."""

from __future__ import annotations

import sys

import harness
from tests.containers import packed_files as made
from tests.containers.packed_files import DELTA, DELTAS, PAIRS, PLAIN, PREFIX, RAW, ROTATED, SPARSE, Part

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.native import native
from weighbridge.containers.wbpack.archive import read_archive
from weighbridge.containers.wbpack.source import OriginalSource
from weighbridge.io.source import BytesSource
from weighbridge.tensors.reference import planes

_OLD = bytes(i % 251 for i in range(3000))
_NEW = bytes((b + (i % 50 == 0)) % 256 for i, b in enumerate(_OLD))
_MOST = 64  # chunks


def outcome(unpack: object, packed: bytes, base: bytes, size: int) -> object:
    out = bytearray(size)
    try:
        unpack(memoryview(packed), memoryview(base), memoryview(out))  # type: ignore[operator]
    except ValueError as error:
        return str(error)
    return bytes(out)


def target(data: bytes) -> None:
    packed = BytesSource(data)
    archive = read_archive(packed)
    assert sum(r.end - r.start for r in archive.records) == archive.size
    source = OriginalSource(packed, archive, [BytesSource(_OLD) for _ in archive.bases])
    for number, chunk in enumerate(archive.chunks(0, archive.size)):
        assert chunk.at + chunk.packed <= len(data)
        if number >= _MOST:
            break
        try:
            whole = source.read(chunk.start, chunk.size)
        except (FormatError, UnsupportedError):
            whole = b""
        if native is not None and chunk.size <= 1 << 14:
            stored = data[chunk.at : chunk.at + chunk.packed]
            base = bytes(chunk.size if stored[9] in DELTAS else 0)
            unpackers = native.unpack_chunk, planes.unpack_chunk
            results = [outcome(unpack, stored, base, chunk.size) for unpack in unpackers]
            assert results[0] == results[1]
            assert not whole or base or results[0] == whole


def seeds() -> list[bytes]:
    few = bytes(i % 7 if i % 3 else 0 for i in range(3000))
    base = {"name": "base", "size": 3000, "sha256": "0" * 64}
    return [
        made.small(),
        made.packed_file(
            [
                Part("a", few, 2, ROTATED, (PREFIX, SPARSE)),
                Part("b", few, 1, PLAIN, (SPARSE,)),
                Part("c", few, 2, PAIRS, (RAW, PREFIX)),
            ]
        ),
        made.packed_file([Part("w", _NEW, 2, DELTA, (SPARSE, RAW), _OLD)], bases=[base]),
    ]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds))
