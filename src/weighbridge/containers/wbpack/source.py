"""The original of a packed file as a source: decoded chunk by chunk, at any place."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence

from weighbridge.base.errors import FormatError
from weighbridge.containers.wbpack.archive import PackedArchive, PackedChunk
from weighbridge.containers.wbpack.codec import is_delta, unpack_chunk
from weighbridge.io.bases import open_base
from weighbridge.io.source import Source, UnpackedSource


class OriginalSource(UnpackedSource[PackedChunk]):
    """The original's bytes. Each chunk is checked when it is decoded. `bases`: the files that deltas refer to; if None,
    they are searched for when the first delta is read (`io/bases.py`). Closing it closes the packed file."""

    coder = "wb pack"

    def __init__(self, packed: Source, archive: PackedArchive, bases: Sequence[Source] | None = None) -> None:
        super().__init__(packed, archive.size)
        self.archive = archive
        self._bases = bases
        self._opening = threading.Lock()

    @property
    def title(self) -> str:
        """The original's name; "" if it is unknown."""
        return self.archive.name

    @property
    def stored(self) -> int:
        return self.packed.size

    def chunks(self, start: int, end: int) -> Iterator[PackedChunk]:
        return self.archive.chunks(start, end)

    def decode(self, chunk: PackedChunk, out: memoryview) -> None:
        packed = memoryview(bytearray(chunk.packed))
        self.packed.readinto(chunk.at, packed)
        base = b""
        if is_delta(packed):
            if chunk.base is None:
                raise FormatError(
                    "a chunk is a delta, but its record has no base", path=self.packed.name, offset=chunk.at
                )
            with self._opening:
                if self._bases is None:
                    self._bases = [open_base(self.name, file.name, file.size) for file in self.archive.bases]
            base = self._bases[chunk.base].read(chunk.base_offset, chunk.size)
        try:
            unpack_chunk(packed, base, out)
        except ValueError as error:
            hint = "unpack it with the base that it was packed with" if base else "download or copy it again"
            raise FormatError(
                f"a chunk can't be unpacked: {error}", path=self.packed.name, offset=chunk.at, hint=hint
            ) from None

    def advise(self, ranges: Iterable[tuple[int, int]]) -> None:
        spans: list[tuple[int, int]] = []
        for offset, length in ranges:
            chunks = list(self.archive.chunks(offset, min(offset + length, self.size)))
            if chunks:
                spans.append((chunks[0].at, chunks[-1].at + chunks[-1].packed - chunks[0].at))
        self.packed.advise(spans)

    def close(self) -> None:
        for base in self._bases or ():
            base.close()
        self.packed.close()
