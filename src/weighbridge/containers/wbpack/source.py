"""The original of a packed file as a source: decoded chunk by chunk, at any place."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from weighbridge.base.errors import FormatError
from weighbridge.containers.wbpack.archive import PackedArchive, PackedChunk
from weighbridge.containers.wbpack.codec import is_delta, unpack_chunk
from weighbridge.io.bases import open_base
from weighbridge.io.source import Source

_CACHE = 16 << 20  # bytes of decoded chunks that are kept: readers of slabs meet each chunk twice at most


class OriginalSource(Source):
    """The original's bytes. Each chunk is checked when it is decoded. `bases`: the files that deltas refer to; if None,
    they are searched for when the first delta is read (`io/bases.py`). Closing it closes the packed file."""

    def __init__(self, packed: Source, archive: PackedArchive, bases: Sequence[Source] | None = None) -> None:
        self.packed, self.archive, self.size = packed, archive, archive.size
        self.name, self.remote = packed.name, packed.remote
        self._bases = bases
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, memoryview] = OrderedDict()

    @property
    def fetched(self) -> int:
        return self.packed.fetched

    @property
    def stored(self) -> int:
        return self.packed.size

    def _readinto(self, offset: int, out: memoryview) -> int:
        end = offset + len(out)
        for chunk in self.archive.chunks(offset, end):
            low, high = max(offset, chunk.start), min(end, chunk.start + chunk.size)
            target = out[low - offset : high - offset]
            with self._lock:
                data = self._kept.get(chunk.number)
            if data is None and len(target) == chunk.size:
                self._decode(chunk, target)
                continue
            if data is None:
                data = self._decode(chunk, memoryview(bytearray(chunk.size)))
                with self._lock:
                    self._kept[chunk.number] = data
                    while len(self._kept) * self.archive.chunk > _CACHE:
                        self._kept.popitem(last=False)
            target[:] = data[low - chunk.start : high - chunk.start]
        return len(out)

    def _decode(self, chunk: PackedChunk, out: memoryview) -> memoryview:
        packed = memoryview(bytearray(chunk.packed))
        self.packed.readinto(chunk.at, packed)
        base = b""
        if is_delta(packed):
            if chunk.base is None:
                raise FormatError(
                    "a chunk is a delta, but its record has no base", path=self.packed.name, offset=chunk.at
                )
            with self._lock:
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
        return out

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
