"""TensorFlow's table files, which are LevelDB's: sorted keys with values, in blocks.

    [data blocks] [metaindex block] [index block] [footer: 2 handles, padding, 57 fb 80 8b 24 75 47 db]
    block     entries, u32 offsets of restarts, u32 their number; then u8 compression, u32 checksum
    entry     varints: bytes shared with the last key, bytes of the rest, bytes of the value; the rest; the value
    handle    varints: offset and size of a block

Reference: tensorflow/tsl/lib/io (format.cc, block.cc, table_format.txt) of TensorFlow 2.21.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import TABLE_KEY
from weighbridge.containers.base import Region
from weighbridge.containers.formats import TABLE_MAGIC as MAGIC
from weighbridge.containers.protobuf import Messages
from weighbridge.io.source import Source

FOOTER: Final = 48
_TRAILER: Final = 5  # of a block: compression and checksum
_MASK: Final = 0xA282EAD8
# CRC-32C (Castagnoli), reflected polynomial 82F63B78.
_CRC_TABLE: Final = tuple(
    reduce(lambda crc, _: crc >> 1 ^ (0x82F63B78 if crc & 1 else 0), range(8), byte) for byte in range(256)
)


class TableEntry(NamedTuple):
    """A key, and the bytes [start, end) of its value."""

    key: bytes
    start: int
    end: int


def entries(source: Source) -> Iterator[TableEntry]:
    """The entries of a table in the order of their keys. Raises FormatError if the table is damaged."""
    at = source.size - FOOTER
    if at < 0 or source.read(source.size - len(MAGIC), len(MAGIC)) != MAGIC:
        raise FormatError("the footer of a TensorFlow table is missing", path=source.name, offset=max(at, 0),
                          hint="the file is cut off, or something else: download or copy it again")  # fmt: skip
    reader, seen = Messages(source), 0
    _, _, at = _handle(reader, at, source.size)
    start, length, _ = _handle(reader, at, source.size)
    for handle in _block(reader, start, length):
        at, size, _ = _handle(reader, handle.start, handle.end)
        seen += size
        if seen > source.size:
            raise FormatError("blocks of the table overlap", path=source.name, offset=handle.start)
        yield from _block(reader, at, size)


def footer(source: Source) -> Region:
    return Region(source.size - FOOTER, source.size, "magic", "footer of the table")


def _handle(reader: Messages, at: int, end: int) -> tuple[int, int, int]:
    """The offset and size of a block, and the offset after its handle."""
    offset, at = reader.varint(at, end)
    size, at = reader.varint(at, end)
    if offset + size + _TRAILER > reader.source.size - FOOTER:
        raise reader.error("a block is outside the table", at)
    return offset, size, at


def _block(reader: Messages, at: int, size: int) -> Iterator[TableEntry]:
    """The entries of one block."""
    source = reader.source
    trailer = source.read(at + size, _TRAILER)
    if trailer[0]:
        raise UnsupportedError(f"{source.name}: a block of the table is compressed",
                               hint="save the checkpoint again with a current TensorFlow")  # fmt: skip
    if masked_crc(source, at, size + 1) != int.from_bytes(trailer[1:], "little"):
        raise FormatError("a block of the table doesn't have its checksum", path=source.name, offset=at,
                          hint="download or copy it again")  # fmt: skip
    count = int.from_bytes(source.read(at + size - 4, 4), "little") if size >= 4 else 0
    end = at + size - 4 * (count + 1)
    if end < at:
        raise FormatError("a block of the table is too short", path=source.name, offset=at)
    key = b""
    while at < end:
        shared, at = reader.varint(at, end)
        unshared, at = reader.varint(at, end)
        length, at = reader.varint(at, end)
        if shared > len(key) or unshared + length > end - at or shared + unshared > TABLE_KEY:
            raise FormatError("an entry of the table is impossible", path=source.name, offset=at)
        key = key[:shared] + source.read(at, unshared)
        at += unshared + length
        yield TableEntry(key, at - length, at)


def crc32c(data: bytes, crc: int = 0) -> int:
    """The CRC-32C of bytes, continuing that of the bytes before."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked_crc(source: Source, at: int, size: int) -> int:
    """The checksum of bytes as TensorFlow stores it (tsl/lib/hash/crc32c.h)."""
    crc = 0
    for start in range(at, at + size, 1 << 16):
        crc = crc32c(source.read(start, min(1 << 16, at + size - start)), crc)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
