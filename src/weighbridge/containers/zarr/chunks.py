"""The decoded chunks of arrays of zarr, one after the other, as one source."""

from __future__ import annotations

import struct
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import MIB
from weighbridge.containers.archive.spool import SpooledSource
from weighbridge.containers.frameworks.sstable import crc32c
from weighbridge.containers.zarr.ocdbt import StoredValue
from weighbridge.io.decompress import decompressed, pieces
from weighbridge.io.source import BytesSource, DecodedSource, Source

_SPOOLED: Final = 64 * MIB  # larger pieces are decoded into a temporary file as far as they are read
_OPEN: Final = 4  # such files
_PLACE: Final = struct.Struct("<QQ")
_EMPTY: Final = (1 << 64) - 1


class StoredPiece(NamedTuple):
    """Bytes [start, start + size) of the source: piece `at` of `among` in a value, which is a shard if
    `sharded`. Without a value they are zero."""

    number: int
    start: int
    size: int
    name: str
    value: StoredValue | None
    at: int
    among: int
    codec: str
    sharded: bool


class DecodedPieces(DecodedSource[StoredPiece]):
    """The decoded pieces. `file`: opens a data file by its path."""

    is_part = True

    def __init__(self, name: str, stored: Sequence[StoredPiece], file: Callable[[str], Source]) -> None:
        super().__init__(name, stored[-1].start + stored[-1].size if stored else 0)
        self.pieces, self._file = stored, file
        self._starts = [piece.start for piece in stored]
        self._spools: OrderedDict[int, SpooledSource] = OrderedDict()
        self._spooling = threading.Lock()

    def chunks(self, start: int, end: int) -> Iterator[StoredPiece]:
        for number in range(bisect_right(self._starts, start) - 1, len(self.pieces)):
            if self._starts[number] >= end:
                return
            yield self.pieces[number]

    def _readinto(self, offset: int, out: memoryview) -> int:
        piece = next(self.chunks(offset, offset + 1), None)
        if piece is None or piece.size <= _SPOOLED or not piece.codec or offset + len(out) > piece.start + piece.size:
            return super()._readinto(offset, out)
        with self._spooling:
            if piece.number not in self._spools:
                parts = pieces(self.bytes_of(piece), piece.codec)
                self._spools[piece.number] = SpooledSource(parts, piece.size, piece.name)
                while len(self._spools) > _OPEN:
                    self._spools.popitem(last=False)[1].close()
            self._spools[piece.number].readinto(offset - piece.start, out)
        return len(out)

    def decode(self, chunk: StoredPiece, out: memoryview) -> None:
        source = self.bytes_of(chunk)
        data = source.read(0, source.size) if source.size else bytes(chunk.size)
        try:
            plain = decompressed(chunk.codec, data, chunk.size) if chunk.codec and source.size else data
        except ValueError as error:
            raise FormatError(f"a chunk can't be unpacked: {error}", path=source.name, field=chunk.name) from None
        if len(plain) != chunk.size:
            raise FormatError("a chunk has another size than its array's", path=source.name, field=chunk.name,
                              expected=f"{chunk.size} bytes", found=len(plain))  # fmt: skip
        out[:] = plain

    def bytes_of(self, piece: StoredPiece) -> Source:
        """The stored bytes of a piece; none if it isn't stored, so its values are zero."""
        if piece.value is None:
            return BytesSource(b"", self.name)
        inline = piece.value.inline
        value = (
            BytesSource(inline, f"{self.name}::{piece.name}")
            if inline is not None
            else self._file(piece.value.file).window(piece.value.offset, piece.value.length)
        )
        return in_shard(value, piece) if piece.sharded else value


def in_shard(value: Source, piece: StoredPiece) -> Source:
    """The bytes of a piece in a shard. Raises FormatError if the shard's index is wrong."""
    size = _PLACE.size * piece.among
    if value.size < size + 4:
        raise FormatError("a shard is shorter than its index", path=value.name, field=piece.name)
    index = value.read(value.size - size - 4, size + 4)
    if crc32c(index[:-4]) != int.from_bytes(index[-4:], "little"):
        raise FormatError("the index of a shard doesn't have its checksum", path=value.name, field=piece.name)
    offset, length = _PLACE.unpack_from(index, _PLACE.size * piece.at)
    return BytesSource(b"", value.name) if offset == length == _EMPTY else value.window(offset, length)
