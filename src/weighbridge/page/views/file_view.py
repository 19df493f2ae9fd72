"""Bytes of a file with the regions that contain them.

with FileView(path) as file:
    file.bytes(0, 4096) -> ByteView
"""

from __future__ import annotations

import os
from bisect import bisect_right
from functools import cached_property
from typing import Final

from weighbridge.base import gc_pause
from weighbridge.base.closeable import Closing
from weighbridge.base.errors import UsageError
from weighbridge.base.limits import VIEW_BYTES
from weighbridge.base.records import dataclass
from weighbridge.containers.base import Index, Region
from weighbridge.containers.formats import DISTRIBUTED_DATA
from weighbridge.containers.opening import format_of
from weighbridge.io.location import open_source
from weighbridge.page.views.layout import has_many, regions_near
from weighbridge.reports import lenient, tensor_path
from weighbridge.reports.anatomy import TensorPosition, place

SCHEMA: Final = "weighbridge/bytes/1"


@dataclass(frozen=True, slots=True)
class ByteMeaning:
    """A region of the file, [start, end), that overlaps the view. `kind`, `label` and `value`: as in `wb anatomy`.
    `first`: the tensor element or block at the start of the view; `atom`: its size in bytes."""

    start: int
    end: int
    kind: str
    label: str
    value: str
    first: TensorPosition | None = None
    atom: int = 0


@dataclass(frozen=True, slots=True)
class ByteView:
    """Bytes from `offset` in hexadecimal, and the regions that contain them, without gaps. `size`: of the file."""

    path: str
    format: str
    size: int
    offset: int
    data: str
    regions: tuple[ByteMeaning, ...]
    schema: str = SCHEMA


class FileView(Closing):
    """An open file, whose regions are found once, or on demand if it has very many tensors.

    `index`: the file's index, if it is already parsed; `regions`: those of a file that another file describes. Raises
    UsageError for a folder."""

    def __init__(
        self, path: str | os.PathLike[str], index: Index | None = None, regions: list[Region] | None = None
    ) -> None:
        self._path, _ = tensor_path.split(path)
        self._parsed, self._described = index, regions
        self._near: tuple[int, int, list[Region]] = (0, 0, [])  # start, end, and the regions between them
        if self._path.is_dir():
            raise UsageError(f"{self._path} is a folder", hint="name one of its files")
        self._source = open_source(self._path)
        try:
            self._format = None if regions is not None else format_of(self._source)
        except BaseException:
            self._source.close()
            raise

    @property
    def size(self) -> int:
        return self._source.size

    def bytes(self, offset: int, size: int) -> ByteView:
        """Returns up to `size` bytes from `offset`. Raises UsageError outside of the file, and above `VIEW_BYTES`."""
        if not 0 <= offset <= self.size:
            raise UsageError(f"{self._path} has no byte {offset:,}", hint=f"its size is {self.size:,} bytes")
        if not 0 <= size <= VIEW_BYTES:
            raise UsageError(f"can't show {size:,} bytes at once", hint=f"the limit is {VIEW_BYTES:,}")
        end = min(offset + size, self.size)
        return ByteView(
            path=os.fspath(self._path),
            format=self._format.name if self._format else DISTRIBUTED_DATA,
            size=self.size,
            offset=offset,
            data=self._source.read(offset, end - offset).hex(),
            regions=tuple(self._meaning(r, offset) for r in self._regions_between(offset, end)),
        )

    @cached_property
    def _regions(self) -> list[Region]:
        if self._format is None:
            return self._described or []
        with gc_pause.paused():
            return [r for r in self._format.regions(self._source) if r.end > r.start]

    @cached_property
    def _index(self) -> Index | None:
        return self._parsed or (lenient.lenient(self._source, self._format.name)[0] if self._format else None)

    def _regions_between(self, start: int, end: int) -> list[Region]:
        if start >= end:
            return []
        if self._format is None or self._index is None or not has_many(self._index):
            first = bisect_right(self._regions, start, key=lambda region: region.start) - 1
            last = bisect_right(self._regions, end - 1, key=lambda region: region.start)
            return self._regions[max(first, 0) : last]
        if start >= self._index.data_start[0]:
            return list(regions_near(self._index, start, end))
        lo, hi, near = self._near
        if not (lo <= start and end <= hi):  # parses the whole header again, so regions around the view are kept
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
