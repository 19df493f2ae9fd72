"""ZipNN's streams: bytes in chunks, each split into planes, each plane stored or in Huffman codes.

    0    "ZN", version (3 bytes), byte order, bit order, method, input, delta, lossy (3 bytes), streaming, log2 of the
         chunk, type
    16   u64 bytes of the original; u64 bytes of the stream
    32   input 2 (torch) or 3 (numpy): rank, then for each axis the bytes of its length (1, 2, 4, 8) and the length
         for each plane, then each chunk: u8 method (0 stored, 1 Huffman)
         for each plane, then each chunk: u64 end of its bytes, from the first of the plane
         the planes

Plane p has the bytes p, p + planes, ... of a chunk. With bit order 1, the sign of bf16 and f32 comes after the
exponent, which then is one byte: in runs of whole 4 bytes, so a chunk's last 1 to 3 bytes are unchanged. A Huffman
plane of one byte repeats that byte. References: zipnn 0.5.4 (zipnn.py, csrc/zipnn_core.c)."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import DIMS
from weighbridge.base.native import join_planes
from weighbridge.base.spec import Shape
from weighbridge.io.decompress import huffman_block
from weighbridge.io.source import Source, UnpackedSource

SIGN: Final = b"ZN\0"
HEAD: Final = 32
_LARGEST_PLANE: Final = 128 << 10  # that Huff0 encodes
_CHUNKS: Final = (10, 24)  # log2; the library's is 18
#: Bytes of the original for each byte of a stream, at most: a chunk of 4 planes in a byte each.
LARGEST_RATIO: Final = 1 << 14
_MINOR: Final = (3, 5)  # versions 0.x whose streams have this form
_SHAPED: Final = (2, 3)  # inputs with a shape: torch, numpy
_STORED, _HUFFMAN = 0, 1


class _Kind(NamedTuple):
    """How a type is split: the planes, the byte order in the header, the bits of floats whose sign is moved (or 0)."""

    type: str
    planes: int
    order: int
    sign: int = 0


#: The code of a type -> how it is split.
KINDS: Final = MappingProxyType({
    1: _Kind("F32", 4, 220, 32), 2: _Kind("F32", 4, 220, 32), 4: _Kind("F16", 2, 10), 5: _Kind("F16", 2, 10),
    6: _Kind("BF16", 2, 10, 16), 29: _Kind("F8_E4M3", 1, 10), 30: _Kind("F8_E5M2", 1, 10),
})  # fmt: skip


class ZipnnStream(NamedTuple):
    """A stream of bytes [at, at + packed) of a source, with `size` bytes of the original. `tables`: where its tables
    begin; `number`: of its first chunk."""

    at: int
    packed: int
    size: int
    kind: _Kind
    chunk: int
    tables: int
    shape: Shape | None
    number: int = 0

    @property
    def chunks(self) -> int:
        return -(-self.size // self.chunk)

    @property
    def data(self) -> int:
        return self.tables + 9 * self.chunks * self.kind.planes

    def plane_size(self, chunk: int, plane: int) -> int:
        """Bytes of a plane of a chunk."""
        size = min(self.chunk, self.size - chunk * self.chunk)
        return (size - plane + self.kind.planes - 1) // self.kind.planes


class ZipnnChunk(NamedTuple):
    """Bytes [start, start + size) of the original: chunk `place` of a stream."""

    number: int
    start: int
    size: int
    stream: ZipnnStream
    place: int


class _Plane(NamedTuple):
    """A plane of a chunk: its bytes [at, at + packed), the method, and its size."""

    at: int
    packed: int
    method: int
    size: int


def _wrong(source: Source, at: int, reason: str, **facts: Any) -> FormatError:
    return FormatError(f"a ZipNN stream is damaged: {reason}", path=source.name, offset=at, **facts)


def read_stream(source: Source, at: int, number: int = 0) -> ZipnnStream:
    """The stream at `at`. Raises FormatError if its header is wrong, UnsupportedError if it is a delta or lossy."""
    if source.size - at < HEAD:
        raise _wrong(source, at, "the file ends in its header", expected=f"{HEAD} bytes", found=source.size - at)
    head = source.read(at, HEAD)
    size, packed = struct.unpack_from("<QQ", head, 16)
    kind = KINDS.get(head[15])
    if head[:3] != SIGN or packed > source.size - at or packed < HEAD:
        raise _wrong(source, at, "its header is wrong", expected=f"ZN, at most {source.size - at} bytes", found=packed)
    if not _MINOR[0] <= head[3] <= _MINOR[1]:
        raise UnsupportedError(f"{source.name}: a stream of ZipNN 0.{head[3]}, which this version doesn't read",
                               hint="decode it with the zipnn package")  # fmt: skip
    if head[9] or any(head[10:13]):
        raise UnsupportedError(f"{source.name}: a ZipNN stream that is {'a delta' if head[9] else 'lossy'}",
                               hint="decode it with the zipnn package")  # fmt: skip
    if kind is None or head[5] != kind.order or head[6] > 1 or not _CHUNKS[0] <= head[14] <= _CHUNKS[1]:
        raise _wrong(source, at, "its type or order is unknown", found=(head[15], head[5], head[6], head[14]))
    shape, tables = read_shape(source, at) if head[8] in _SHAPED else (None, at + HEAD)
    chunk = min(1 << head[14], _LARGEST_PLANE) if kind.planes == 1 else 1 << head[14]
    kept = kind if head[6] else kind._replace(sign=0)
    stream = ZipnnStream(at, packed, size, kept, chunk, tables, shape, number)
    if stream.data > at + packed:
        raise _wrong(source, tables, "its tables don't fit", expected=f"{stream.data - at} bytes", found=packed)
    return stream


def read_shape(source: Source, at: int) -> tuple[Shape, int]:
    """The shape in a stream's header, and where it ends."""
    axes: list[int] = []
    rank, place = source.read(at + HEAD, 1)[0], at + HEAD + 1
    if rank > DIMS:
        raise _wrong(source, at, "its shape has too many axes", found=rank)
    for _ in range(rank):
        width = source.read(place, 1)[0]
        if width not in (1, 2, 4, 8):
            raise _wrong(source, place, "an axis of its shape is wrong", found=width)
        axes.append(int.from_bytes(source.read(place + 1, width), "little"))
        place += 1 + width
    return tuple(axes), place


def read_streams(source: Source) -> tuple[ZipnnStream, ...]:
    """The streams that fill a file."""
    streams: list[ZipnnStream] = []
    at = number = 0
    while at < source.size or not streams:
        stream = read_stream(source, at, number)
        streams.append(stream)
        at, number = at + stream.packed, number + stream.chunks
    return tuple(streams)


class DecodedStreams(UnpackedSource[ZipnnChunk]):
    """The bytes of the originals of streams, one after the other. Closing it closes the source if it is `owned`."""

    coder, title = "ZipNN", ""

    def __init__(self, source: Source, streams: Sequence[ZipnnStream], *, owned: bool = True) -> None:
        self._starts = [*accumulate((stream.size for stream in streams), initial=0)]
        super().__init__(source, self._starts[-1])
        self.streams, self._owned = streams, owned
        self._tables: dict[int, list[tuple[_Plane, ...]]] = {}

    @property
    def stored(self) -> int:
        return self.packed.size

    def chunks(self, start: int, end: int) -> Iterator[ZipnnChunk]:
        for number in range(bisect_right(self._starts, start) - 1, len(self.streams)):
            stream, first = self.streams[number], self._starts[number]
            if first >= end:
                return
            for k in range(max(start - first, 0) // stream.chunk, -(-min(end - first, stream.size) // stream.chunk)):
                at = k * stream.chunk
                yield ZipnnChunk(stream.number + k, first + at, min(stream.chunk, stream.size - at), stream, k)

    def planes(self, chunk: ZipnnChunk) -> tuple[_Plane, ...]:
        """The planes of a chunk. Raises FormatError if the stream's tables are wrong."""
        if chunk.stream.at not in self._tables:
            self._tables[chunk.stream.at] = read_tables(self.packed, chunk.stream)
        return self._tables[chunk.stream.at][chunk.place]

    def decode(self, chunk: ZipnnChunk, out: memoryview) -> None:
        planes = b"".join(self._plane(plane) for plane in self.planes(chunk))
        join_planes(chunk.stream.kind.planes, chunk.stream.kind.sign, planes, out)

    def _plane(self, plane: _Plane) -> bytes:
        data = self.packed.read(plane.at, plane.packed)
        if plane.method == _STORED:
            return data
        if len(data) == 1:
            return data * plane.size
        try:
            return huffman_block(data, plane.size)
        except ValueError as error:
            raise _wrong(self.packed, plane.at, f"a plane can't be decoded ({error})") from None

    def advise(self, ranges: Iterable[tuple[int, int]]) -> None:
        chunks = [chunk for start, length in ranges for chunk in self.chunks(start, min(start + length, self.size))]
        self.packed.advise((plane.at, plane.packed) for chunk in chunks for plane in self.planes(chunk))

    def close(self) -> None:
        if self._owned:
            self.packed.close()


def read_tables(source: Source, stream: ZipnnStream) -> list[tuple[_Plane, ...]]:
    """The planes of each chunk. Raises FormatError unless they fill the stream, and stored ones have their size."""
    count, planes = stream.chunks, stream.kind.planes
    total = count * planes
    data = source.read(stream.tables, 9 * total)
    ends = struct.unpack_from(f"<{total}Q", data, total)
    columns: list[list[_Plane]] = []
    first = stream.data
    for plane in range(planes):
        bounds = [0, *ends[plane * count : (plane + 1) * count]]
        spans = pairwise(bounds)
        methods = data[plane * count : (plane + 1) * count]
        sizes = (stream.plane_size(chunk, plane) for chunk in range(count))
        columns.append([_Plane(first + a, b - a, m, n) for (a, b), m, n in zip(spans, methods, sizes, strict=True)])
        first += bounds[-1]
    if first != stream.at + stream.packed or not all(plane_fits(plane) for column in columns for plane in column):
        raise _wrong(source, stream.tables, "its tables are wrong")
    return [*zip(*columns, strict=True)]


def plane_fits(plane: _Plane) -> bool:
    if plane.method == _STORED:
        return plane.packed == plane.size
    return plane.method == _HUFFMAN and 1 <= plane.packed < plane.size <= _LARGEST_PLANE
