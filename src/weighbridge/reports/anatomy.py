"""Describes each byte of a file: the regions that a container declares with their first bytes, the tensor element at an
offset, and the kinds of bytes over the file.

    anatomy(path, at=0x1234)            -> AnatomyReport with the one region there, and the position inside it
    anatomy(path, start=0, end=4096)    -> AnatomyReport with the regions that overlap the range
"""

from __future__ import annotations

import collections
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final

from weighbridge.base.errors import UsageError
from weighbridge.base.options import accepting
from weighbridge.base.records import dataclass
from weighbridge.containers.base import Entry, Region
from weighbridge.containers.opening import format_of
from weighbridge.io.location import open_source
from weighbridge.io.source import Source
from weighbridge.reports import lenient, tensor_path
from weighbridge.reports.options import AnatomyOptions

SCHEMA: Final = "weighbridge/anatomy/1"


@dataclass(frozen=True, slots=True)
class RegionRow:
    """A region: bytes [start, end), their meaning, and the first bytes in hexadecimal."""

    start: int
    end: int
    length: int
    kind: str
    label: str
    value: str
    head: str


@dataclass(frozen=True, slots=True)
class TensorPosition:
    """A byte inside a tensor: the element (or block of a packed type), its index, and the byte of the element."""

    tensor: str
    dtype: str
    element: int
    index: tuple[int, ...]
    byte: int
    words: str


@dataclass(frozen=True, slots=True)
class KindTotal:
    """All bytes of one kind."""

    kind: str
    regions: int
    nbytes: int
    share: float


@dataclass(frozen=True, slots=True)
class AnatomyReport:
    """`parts`: the requested regions. `shares`: of the whole file. `at` and `place`: the result for `at=`."""

    path: str
    format: str
    nbytes: int
    region_count: int
    parts: tuple[RegionRow, ...]
    shares: tuple[KindTotal, ...]
    strip: tuple[str, ...] = ()
    at: int | None = None
    place: TensorPosition | None = None
    schema: str = SCHEMA


@accepting(AnatomyOptions)
def anatomy(path: str | os.PathLike[str], options: AnatomyOptions) -> AnatomyReport:
    """Returns the regions of the file at `path` (`PATH::tensor`: of that tensor). `cells`: the resolution of `strip`,
    the prevailing kind of bytes in each of that many equal pieces of the file."""
    at, start, end, kind = options.at, options.start, options.end, options.kind
    file, name = tensor_path.split(path)
    if file.is_dir():
        raise UsageError(f"{file} is a folder", hint="name one of its files")
    with open_source(file) as source:
        form = format_of(source)
        if at is not None:
            start, end = at, at + 1
        end = source.size if end is None else end
        if not 0 <= start <= end or start > source.size or (at is not None and at >= source.size):
            raise UsageError(f"{source.name} has no bytes {start} to {end}", hint=f"its size is {source.size:,} bytes")
        sums, band = _Sums(), _Strip(source.size, options.cells)
        regions = band.count(sums.count(form.regions(source)))
        selected = (
            r
            for r in regions
            if r.start < end and r.end > start and (name is None or r.label == name) and (not kind or r.kind in kind)
        )
        first = next(selected, None)
        chosen = [] if first is None else list(islice(chain((first,), selected), options.limit))
        collections.deque(regions, 0)  # counts the rest of the file
        if name is not None and first is None:
            tensor_path.entry(form.parse(source), name, file)  # reports similar names
        if unknown := next((name for name in kind if name not in sums.kinds), None):
            hint = f"it has {', '.join(sorted(sums.kinds))}"
            raise UsageError(f"{file} has no region of the kind {unknown!r}", hint=hint)
        parts = []
        for r in chosen:
            data = source.read(r.start, min(r.end - r.start, options.head))
            parts.append(RegionRow(r.start, r.end, r.end - r.start, r.kind, r.label, r.value, data.hex()))
        return AnatomyReport(
            path=os.fspath(file),
            format=form.name,
            nbytes=source.size,
            region_count=sums.regions,
            parts=tuple(parts),
            shares=sums.shares(source.size),
            strip=tuple(band.kinds()),
            at=at,
            place=_place(source, form.name, first, at) if at is not None and first is not None else None,
        )


class _Sums:
    """Counts the regions and bytes of each kind."""

    def __init__(self) -> None:
        self.regions, self.kinds = 0, dict[str, list[int]]()

    def count(self, regions: Iterable[Region]) -> Iterator[Region]:
        """Yields the regions, and counts each."""
        for r in regions:
            self.regions += 1
            row = self.kinds.setdefault(r.kind, [0, 0])
            row[0] += 1
            row[1] += r.end - r.start
            yield r

    def shares(self, size: int) -> tuple[KindTotal, ...]:
        ordered = sorted(self.kinds.items(), key=lambda row: (-row[1][1], row[0]))
        return tuple(
            KindTotal(kind, n, nbytes, round(nbytes / size, 6) if size else 0.0) for kind, (n, nbytes) in ordered
        )


class _Strip:
    """Counts the bytes of each kind in each of `cells` equal pieces of a file."""

    def __init__(self, size: int, cells: int) -> None:
        self.size, self.cells = size, min(cells, size)
        self.sums: list[dict[str, int]] = [{} for _ in range(self.cells)]

    def count(self, regions: Iterable[Region]) -> Iterator[Region]:
        """Yields the regions, which are in order, and counts each."""
        first = 0
        for r in regions:
            while first < self.cells and self._end(first) <= r.start:
                first += 1
            cell = first
            while cell < self.cells and self._end(cell - 1) < r.end:
                nbytes = min(r.end, self._end(cell)) - max(r.start, self._end(cell - 1))
                self.sums[cell][r.kind] = self.sums[cell].get(r.kind, 0) + nbytes
                cell += 1
            yield r

    def _end(self, cell: int) -> int:
        return self.size * (cell + 1) // self.cells

    def kinds(self) -> Iterator[str]:
        """Yields the prevailing kind of each piece."""
        return (max(sums, key=lambda kind: sums[kind]) if sums else "unknown" for sums in self.sums)


def strip(regions: Iterable[Region], size: int, cells: int) -> Iterator[str]:
    """Yields the prevailing kind of bytes in each of `cells` equal pieces of the file."""
    band = _Strip(size, cells)
    collections.deque(band.count(regions), 0)
    return band.kinds()


def _place(source: Source, form: str, region: Region, at: int) -> TensorPosition | None:
    """Returns the position of `at` in the tensor of `region`."""
    if region.kind != "tensor":
        return None
    index, _ = lenient.lenient(source, form)
    entry = index.by_name.get(region.label) if index else None
    # A compressed tensor's offsets refer to the decompressed bytes, so this byte belongs to no element.
    if entry is None or entry.file or not entry.offset <= at < entry.offset + entry.nbytes:
        return None
    return place(entry, at)


def place(entry: Entry, at: int) -> TensorPosition:
    """Returns the position of the byte `at` in a tensor."""
    size, block = entry.dtype.size, entry.dtype.block
    atom, byte = divmod(at - entry.offset, size)
    indices = coordinates(entry.shape, atom * block)
    text = ", ".join(map(str, indices))
    part = f"element [{text}]" if block == 1 else f"the block of {block} elements that begins at [{text}]"
    return TensorPosition(entry.name, entry.dtype.name, atom * block, indices, byte, f"byte {byte} of {size} of {part}")


def coordinates(shape: Sequence[int], element: int) -> tuple[int, ...]:
    """Returns the coordinates of an element, numbered in C order."""
    indices: list[int] = []
    for n in reversed(shape):
        element, i = divmod(element, n)
        indices.insert(0, i)
    return tuple(indices)


def hexdump(head: str, start: int, width: int = 16) -> Iterator[tuple[int, str, str]]:
    """Yields lines of (offset, hexadecimal, text) of a region's first bytes."""
    data = bytes.fromhex(head)
    for i in range(0, len(data), width):
        row = data[i : i + width]
        yield start + i, row.hex(" "), "".join(chr(b) if 32 <= b < 127 else "." for b in row)
