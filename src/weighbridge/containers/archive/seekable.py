"""Zstandard's seekable format: frames, and a table of their sizes in a skippable frame at the end, so any place is read
without what is before it.

    0x184D2A5E, u32 bytes of the table and footer
    for each frame: u32 packed bytes, u32 bytes [, u32 checksum]
    u32 frames, u8 flags (128: with checksums), 0x8F92EAB1

Reference: facebook/zstd, contrib/seekable_format/zstd_seekable_compression_format.md. The frames' own checksums are
compared, those of the table aren't."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import MIB
from weighbridge.io.decompress import decompressed
from weighbridge.io.source import Source, UnpackedSource

_FOOTER: Final = struct.Struct("<IBI")
_HEAD: Final = struct.Struct("<II")
_TABLE_MAGIC: Final = 0x184D2A5E
_MAGIC: Final = 0x8F92EAB1
_CHECKSUMS: Final = 128
_RESERVED: Final = 0x7C
_LARGEST: Final = 64 * MIB  # bytes of a frame that is decoded in memory


class ZstdFrame(NamedTuple):
    """Bytes [start, start + size), in bytes [at, at + packed) of the stream."""

    number: int
    start: int
    size: int
    at: int
    packed: int


def frames_of(source: Source) -> list[ZstdFrame]:
    """The frames of a stream by its table. Empty without a table, or if it has frames of more than 64 MiB or doesn't
    fit the file: the stream is decoded as a whole then."""
    if source.size < _HEAD.size + _FOOTER.size:
        return []
    count, flags, magic = _FOOTER.unpack(source.read(source.size - _FOOTER.size, _FOOTER.size))
    row = 12 if flags & _CHECKSUMS else 8
    size = row * count + _FOOTER.size
    if magic != _MAGIC or flags & _RESERVED or size > source.size - _HEAD.size:
        return []
    start = source.size - size - _HEAD.size
    if _HEAD.unpack(source.read(start, _HEAD.size)) != (_TABLE_MAGIC, size):
        return []
    rows = list(struct.iter_unpack(f"<{row // 4}I", source.read(start + _HEAD.size, row * count)))
    if sum(row[0] for row in rows) != start or any(row[1] > _LARGEST for row in rows):
        return []
    places, starts = ([*accumulate((row[n] for row in rows), initial=0)] for n in (0, 1))
    return [
        ZstdFrame(number, start, row[1], at, row[0])
        for number, (row, at, start) in enumerate(zip(rows, places, starts, strict=False))
    ]


class SeekableSource(UnpackedSource[ZstdFrame]):
    """The content of a stream with a table. Closing it leaves the stream open."""

    def __init__(self, packed: Source, frames: Sequence[ZstdFrame]) -> None:
        super().__init__(packed, frames[-1].start + frames[-1].size)
        self.frames = frames
        self._starts = [frame.start for frame in frames]

    def chunks(self, start: int, end: int) -> Iterator[ZstdFrame]:
        for number in range(bisect_right(self._starts, start) - 1, len(self.frames)):
            if self._starts[number] >= end:
                return
            if self.frames[number].size:
                yield self.frames[number]

    def decode(self, chunk: ZstdFrame, out: memoryview) -> None:
        data = self.packed.read(chunk.at, chunk.packed)
        try:
            content = decompressed("zstd", data, chunk.size)
        except ValueError as error:
            raise FormatError(f"a frame can't be decoded: {error}", path=self.name, offset=chunk.at) from None
        if len(content) != chunk.size:
            raise FormatError("a frame has another size than the table lists", path=self.name, offset=chunk.at,
                              expected=chunk.size, found=len(content))  # fmt: skip
        out[:] = content
