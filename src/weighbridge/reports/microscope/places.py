"""Bytes of a file beside their meaning.

with FileLens(path) as lens:
    lens.bytes(0, 4096) -> ByteView
"""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from weighbridge.base import gc_pause
from weighbridge.base.closeable import Closing
from weighbridge.base.errors import UsageError
from weighbridge.base.limits import VIEW_BYTES
from weighbridge.containers.base import Index, Region
from weighbridge.containers.opening import format_of
from weighbridge.io.location import open_source
from weighbridge.reports import lenient, tensor_path
from weighbridge.reports.anatomy import TensorPosition, place
from weighbridge.reports.view.layout import has_many, regions_near

SCHEMA: Final = "weighbridge/bytes/1"


@dataclass(frozen=True, slots=True)
class ByteMeaning:
    """A region of the file, [start, end), that meets the view. `kind`, `label` and `value` as in `wb anatomy`. `first`:
    of a tensor, the element (or block) that the view begins in; `atom`: bytes of one."""

    start: int
    end: int
    kind: str
    label: str
    value: str
    first: TensorPosition | None = None
    atom: int = 0


@dataclass(frozen=True, slots=True)
class ByteView:
    """Bytes from `offset` on, in hexadecimal, and the regions that they lie in, which leave no gap. `size`: of the
    whole file."""

    path: str
    format: str
    size: int
    offset: int
    data: str
    regions: tuple[ByteMeaning, ...]
    schema: str = SCHEMA


class FileLens(Closing):
    """One file, opened once; its regions are found once, those of a file of very many tensors on demand.
    `index`: the file's own, where it is known. UsageError for a folder."""

    def __init__(self, path: str | os.PathLike[str], index: Index | None = None) -> None:
        self._path, _ = tensor_path.split(path)
        self._given = index
        self._near: tuple[int, int, list[Region]] = (0, 0, [])  # bytes, and the regions they lie in
        if self._path.is_dir():
            raise UsageError(f"{self._path} is a folder", hint="name one file in it")
        self._source = open_source(self._path)
        try:
            self._format = format_of(self._source)
        except BaseException:
            self._source.close()
            raise

    @property
    def size(self) -> int:
        return self._source.size

    def bytes(self, offset: int, size: int) -> ByteView:
        """Up to `size` bytes from `offset` on. UsageError outside of the file, and for more than `VIEW_BYTES`."""
        if not 0 <= offset <= self.size:
            raise UsageError(f"no byte {offset:,} in {self._path}", hint=f"it has {self.size:,} bytes")
        if not 0 <= size <= VIEW_BYTES:
            raise UsageError(f"{size:,} bytes at once", hint=f"at most {VIEW_BYTES:,}")
        end = min(offset + size, self.size)
        return ByteView(
            path=os.fspath(self._path),
            format=self._format.name,
            size=self.size,
            offset=offset,
            data=self._source.read(offset, end - offset).hex(),
            regions=tuple(self._meaning(r, offset) for r in self._between(offset, end)),
        )

    @cached_property
    def _regions(self) -> list[Region]:
        with gc_pause.paused():
            return [r for r in self._format.regions(self._source) if r.end > r.start]

    @cached_property
    def _starts(self) -> list[int]:
        return [r.start for r in self._regions]

    @cached_property
    def _index(self) -> Index | None:
        return self._given or lenient.lenient(self._source, self._format.name)[0]

    def _between(self, start: int, end: int) -> list[Region]:
        if start >= end:
            return []
        if self._index is not None and has_many(self._index):
            return self._of_many(self._index, start, end)
        first, last = bisect_right(self._starts, start) - 1, bisect_right(self._starts, end - 1)
        return self._regions[max(first, 0) : last]

    def _of_many(self, index: Index, start: int, end: int) -> list[Region]:
        """Regions of tensors by the index; those of the header all at once, of which the ones around are kept."""
        if start >= index.data_start[0]:
            return list(regions_near(index, start, end))
        lo, hi, near = self._near
        if not (lo <= start and end <= hi):
            lo, hi = max(0, start - VIEW_BYTES), end + VIEW_BYTES
            with gc_pause.paused():
                near = [r for r in self._format.regions(self._source) if r.end > max(lo, r.start) and r.start < hi]
            self._near = lo, hi, near
        return [r for r in near if r.end > start and r.start < end]

    def _meaning(self, region: Region, offset: int) -> ByteMeaning:
        entry = self._index.by_name.get(region.label) if self._index and region.kind == "tensor" else None
        at = max(offset, region.start)
        # A compressed tensor's offsets refer to the decompressed bytes, so these bytes belong to no element.
        if entry is None or entry.file or not entry.offset <= at < entry.offset + entry.nbytes:
            return ByteMeaning(region.start, region.end, region.kind, region.label, region.value)
        size = entry.dtype.size
        return ByteMeaning(region.start, region.end, region.kind, region.label, region.value, place(entry, at), size)

    def close(self) -> None:
        self._source.close()
