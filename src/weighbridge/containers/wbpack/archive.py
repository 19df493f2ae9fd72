"""The structure of a packed file: its metadata, its records, the places of its chunks.

A packed file is a Safetensors file. Its tensors are of type U8 and hold the packed bytes of the original's tensors,
under their names and in the order of the original's bytes; the last one is the index. docs/wbpack.md specifies it.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

import msgspec

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import MIB
from weighbridge.base.records import dataclass
from weighbridge.containers.base import Index
from weighbridge.containers.formats import PACKED_KEY, PACKED_SIGN
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.io.source import Source

#: The version of written files, and those that are read: 2 added pairs of floats.
VERSION: Final = "2"
VERSIONS: Final = ("1", VERSION)
INDEX: Final = "wbpack.index"
#: Names of the bytes between tensors: headers, padding.
UNNAMED: Final = "wbpack.bytes."
#: Bytes of a chunk of the original in written files, and the least and most in files that are read.
CHUNK: Final = MIB
CHUNKS: Final = (4096, MIB)
#: Bytes that a packed chunk may have more than the original's.
OVERHEAD: Final = 64
LEAST: Final = 16  # bytes of the shortest packed chunk
RECORD: Final = struct.Struct("<QQII")
NO_BASE: Final = 0xFFFFFFFF
SIZE: Final = struct.Struct("<I")


class BaseFile(msgspec.Struct, frozen=True):
    """A file that deltas refer to."""

    name: str
    size: int
    sha256: str


class PackedRecord(NamedTuple):
    """Bytes [start, end) of the original, in chunks from number `first` on. `base`: the number of the base's file, with
    the bytes from `base_offset` on; None without a base."""

    start: int
    end: int
    first: int
    base: int | None
    base_offset: int


class PackedChunk(NamedTuple):
    """Bytes [start, start + size) of the original, packed in bytes [at, at + packed) of the file."""

    number: int
    start: int
    size: int
    at: int
    packed: int
    base: int | None
    base_offset: int


@dataclass(frozen=True)
class PackedArchive:
    """`name`, `size`, `sha256`: of the original. `chunk`: the bytes of a whole chunk. `places`: where each packed chunk
    begins, and the end of the last."""

    name: str
    size: int
    sha256: str
    chunk: int
    bases: tuple[BaseFile, ...]
    records: tuple[PackedRecord, ...]
    places: array[int]

    def chunks(self, start: int, end: int) -> Iterator[PackedChunk]:
        """The chunks with the original's bytes [start, end), in their order."""
        at = start
        number = bisect_right(self.records, start, key=lambda record: record.start) - 1
        while at < end:
            record = self.records[number]
            for k in range((at - record.start) // self.chunk, -(-(min(end, record.end) - record.start) // self.chunk)):
                start, place = record.start + k * self.chunk, self.places[record.first + k]
                yield PackedChunk(
                    record.first + k, start, min(self.chunk, record.end - start), place,
                    self.places[record.first + k + 1] - place, record.base, record.base_offset + k * self.chunk,
                )  # fmt: skip
            at, number = record.end, number + 1


def is_packed(source: Source) -> bool:
    """Whether a file begins as packed files do."""
    return source.head(8 + len(PACKED_SIGN))[8:] == PACKED_SIGN


def read_archive(source: Source) -> PackedArchive:
    """The structure of a packed file. FormatError unless metadata, index and entries agree; UnsupportedError for
    another version."""
    index = safetensors.parse_stored(source)
    text = index.metadata
    if (version := text.get(PACKED_KEY)) not in VERSIONS:
        raise UnsupportedError(f"{source.name} is packed in version {version} of the format", hint="update weighbridge")
    numbers = [text.get(f"{PACKED_KEY}.{key}", "") for key in ("size", "chunk")]
    for key, value in zip(("size", "chunk"), numbers, strict=True):
        if not (value.isascii() and value.isdigit() and len(value) <= 19):
            raise _wrong(source, key, "a number", repr(value[:80]))
    size, chunk = map(int, numbers)
    if not CHUNKS[0] <= chunk <= CHUNKS[1] or chunk & (chunk - 1):
        raise _wrong(source, "chunk", "a power of two from 4 KiB to 1 MiB", chunk)
    sha256 = text.get(f"{PACKED_KEY}.sha256", "")
    if len(sha256) != 64 or sha256.strip("0123456789abcdef"):
        raise _wrong(source, "sha256", "64 hex digits", repr(sha256[:80]))
    files = text.get(f"{PACKED_KEY}.bases", "[]")
    try:
        bases = msgspec.json.decode(files, type=tuple[BaseFile, ...])
    except msgspec.MsgspecError as error:
        raise _wrong(source, "bases", "a list of files", error) from None
    if any(base.size < 0 for base in bases):
        raise _wrong(source, "bases", "sizes that aren't negative", files[:80])
    records, places = _records(source, index, size, chunk, bases)
    return PackedArchive(text.get(f"{PACKED_KEY}.name", ""), size, sha256, chunk, bases, records, places)


def _wrong(source: Source, field: str, expected: object, actual: object) -> FormatError:
    return FormatError("a packed file's metadata is wrong", path=source.name, field=f"{PACKED_KEY}.{field}",
                       expected=expected, found=actual)  # fmt: skip


def _records(
    source: Source, index: Index, size: int, chunk: int, bases: Sequence[BaseFile]
) -> tuple[tuple[PackedRecord, ...], array[int]]:
    """The records and the places of the chunks. All counts are bounded by the index's bytes."""
    *parts, last = index.entries or (None,)
    if last is None or last.name != INDEX:
        raise FormatError("a packed file has no index at its end", path=source.name, expected=INDEX,
                          found=last and last.name)  # fmt: skip
    data = source.read(last.offset, last.nbytes)

    def wrong(message: str, expected: object, actual: object) -> FormatError:
        return FormatError(message, path=source.name, offset=last.offset, field=INDEX, expected=expected, found=actual)

    head = RECORD.size * len(parts)
    if len(data) < head:
        raise wrong("the index is too short", f"{head} bytes", len(data))
    records: list[PackedRecord] = []
    start = first = 0
    for length, offset, number, zero in RECORD.iter_unpack(data[:head]):
        base = None if number == NO_BASE else number
        if zero or not length or (base is not None and (base >= len(bases) or offset + length > bases[base].size)):
            raise wrong("a record is wrong", "a length, and a place in a base", (length, offset, number, zero))
        records.append(PackedRecord(start, start + length, first, base, offset))
        start, first = start + length, first - -length // chunk
    if start != size:
        raise wrong("the records don't make the original", f"{size} bytes", start)
    if len(data) != head + SIZE.size * first:
        raise wrong("the index has the wrong size", f"{first} chunks", (len(data) - head) / SIZE.size)
    sizes = [n for (n,) in SIZE.iter_unpack(data[head:])]
    if sizes and (min(sizes) < LEAST or max(sizes) > chunk + OVERHEAD):
        raise wrong("a chunk has an impossible size", f"{LEAST} to {chunk + OVERHEAD}", (min(sizes), max(sizes)))
    places = array("Q", accumulate(sizes, initial=index.data_start[0]))
    for entry, (record, following) in zip(parts, pairwise([*records, PackedRecord(0, 0, first, None, 0)]), strict=True):
        span = places[record.first], places[following.first]
        if span != (entry.offset, entry.offset + entry.nbytes):
            raise wrong(f"the chunks of {entry.name} aren't its bytes", (entry.offset, entry.nbytes), span)
    return tuple(records), places


def metadata(name: str, size: int, sha256: str, bases: Sequence[BaseFile]) -> dict[str, str]:
    """The metadata of a packed file. The key with the version sorts first, so every packed file begins alike."""
    values = {
        "bases": msgspec.json.encode(bases).decode(), "chunk": str(CHUNK), "name": name, "sha256": sha256,
        "size": str(size),
    }  # fmt: skip
    return {PACKED_KEY: VERSION} | {f"{PACKED_KEY}.{key}": value for key, value in values.items()}
