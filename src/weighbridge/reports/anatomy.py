"""What each byte of a file means: the regions that a container names, with their first bytes; what lies at one offset,
down to the element of a tensor; and how the file divides among kinds of bytes.

    anatomy(path, at=0x1234)            -> AnatomyReport with the one region there, and the place inside it
    anatomy(path, start=0, end=4096)    -> AnatomyReport with the regions that meet the range
"""

from __future__ import annotations

import collections
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

from weighbridge.base.errors import UsageError
from weighbridge.containers.base import Entry, Region
from weighbridge.containers.opening import format_of
from weighbridge.io.location import open_source
from weighbridge.io.source import Source
from weighbridge.reports import lenient, tensor_path

SCHEMA: Final = "weighbridge/anatomy/1"

#: Bytes of a region that a report includes: a hexdump of a whole tensor helps nobody.
HEAD: Final = 64


@dataclass(frozen=True, slots=True)
class RegionRow:
    """A region: bytes [start, end), their meaning, and the first of them in hexadecimal."""

    start: int
    end: int
    length: int
    kind: str
    label: str
    value: str
    head: str


@dataclass(frozen=True, slots=True)
class TensorPosition:
    """The inside of a tensor at one byte: which element (or block of a packed type), its index, which byte of it."""

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
    """`parts` are the requested regions, `shares` covers the whole file. `at` and `place`: the answer to `at=`."""

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


def anatomy(
    path: str | os.PathLike[str],
    *,
    at: int | None = None,
    start: int = 0,
    end: int | None = None,
    kinds: Sequence[str] = (),
    limit: int | None = None,
    head: int = HEAD,
    cells: int = 64,
) -> AnatomyReport:
    """The regions of the file at `path` (`PATH::tensor`: of that tensor). `cells`: the resolution of `strip`, the
    prevailing kind of bytes in each of that many equal pieces of the file."""
    file, name = tensor_path.split(path)
    if file.is_dir():
        raise UsageError(f"{file} is a folder", hint="name one file in it")
    with open_source(file) as source:
        form = format_of(source)
        start, end = _range(source, at, start, end)
        sums, band = _Sums(), _Strip(source.size, cells)
        each = band.over(sums.over(form.each_region(source)))
        wanted = (r for r in _meeting(each, start, end) if _wanted(r, name, kinds))
        first = next(wanted, None)
        chosen = [] if first is None else list(islice(chain((first,), wanted), limit))
        collections.deque(each, 0)  # the rest of the file
        if name is not None and first is None:
            tensor_path.entry(form.parse(source), name, file)  # reports similar names
        return AnatomyReport(
            path=os.fspath(file),
            format=form.name,
            nbytes=source.size,
            region_count=sums.count,
            parts=tuple(_part(source, r, head) for r in chosen),
            shares=sums.shares(source.size),
            strip=tuple(band.kinds()),
            at=at,
            place=_place(source, form.name, first, at) if at is not None and first is not None else None,
        )


def _range(source: Source, at: int | None, start: int, end: int | None) -> tuple[int, int]:
    if at is not None:
        start, end = at, at + 1
    end = source.size if end is None else end
    if not 0 <= start <= end or start > source.size or (at is not None and at >= source.size):
        raise UsageError(f"no bytes {start} to {end} in {source.name}", hint=f"it has {source.size:,} bytes")
    return start, end


def _meeting(regions: Iterable[Region], start: int, end: int) -> Iterator[Region]:
    return (r for r in regions if r.start < end and r.end > start)


def _wanted(region: Region, name: str | None, kinds: Sequence[str]) -> bool:
    return (name is None or region.label == name) and (not kinds or region.kind in kinds)


def _part(source: Source, r: Region, head: int) -> RegionRow:
    data = source.read(r.start, min(r.end - r.start, head))
    return RegionRow(r.start, r.end, r.end - r.start, r.kind, r.label, r.value, data.hex())


class _Sums:
    """How many regions of each kind there are, and how many bytes they take."""

    def __init__(self) -> None:
        self.count, self.kinds = 0, dict[str, list[int]]()

    def over(self, regions: Iterable[Region]) -> Iterator[Region]:
        """The regions, each of which is added."""
        for r in regions:
            self.count += 1
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
    """How many bytes of each kind each of `cells` equal pieces of a file has."""

    def __init__(self, size: int, cells: int) -> None:
        self.size, self.count = size, min(cells, size)
        self.sums: list[dict[str, int]] = [{} for _ in range(self.count)]

    def over(self, regions: Iterable[Region]) -> Iterator[Region]:
        """The regions, in the order of their bytes, each of which is added."""
        cell = 0
        for r in regions:
            while cell < self.count and self._end(cell) <= r.start:
                cell += 1
            within = cell
            while within < self.count and self._end(within - 1) < r.end:
                part = min(r.end, self._end(within)) - max(r.start, self._end(within - 1))
                self.sums[within][r.kind] = self.sums[within].get(r.kind, 0) + part
                within += 1
            yield r

    def _end(self, cell: int) -> int:
        return self.size * (cell + 1) // self.count

    def kinds(self) -> Iterator[str]:
        """The kind that most of each piece consists of."""
        return (max(sums, key=lambda kind: sums[kind]) if sums else "unknown" for sums in self.sums)


def strip(regions: Iterable[Region], size: int, cells: int) -> Iterator[str]:
    """The kind that most of each of `cells` equal pieces of the file consists of."""
    band = _Strip(size, cells)
    collections.deque(band.over(regions), 0)
    return band.kinds()


def _place(source: Source, form: str, region: Region, at: int) -> TensorPosition | None:
    """The place of `at` in the tensor of `region`."""
    if region.kind != "tensor":
        return None
    index, _ = lenient.lenient(source, form)
    entry = index.by_name.get(region.label) if index else None
    # A compressed tensor's offsets refer to the decompressed bytes, so this byte belongs to no element.
    if entry is None or entry.file or not entry.offset <= at < entry.offset + entry.nbytes:
        return None
    return place(entry, at)


def place(entry: Entry, at: int) -> TensorPosition:
    """Which element of a tensor the byte at `at` belongs to."""
    atom, byte = divmod(at - entry.offset, entry.dtype.size)
    element = atom * entry.dtype.block
    indices: list[int] = []
    rest = element
    for n in reversed(entry.shape):
        rest, i = divmod(rest, n)
        indices.insert(0, i)
    where = ", ".join(map(str, indices))
    size, block = entry.dtype.size, entry.dtype.block
    what = f"element [{where}]" if block == 1 else f"the block of {block} elements that begins at [{where}]"
    return TensorPosition(
        entry.name, entry.dtype.name, element, tuple(indices), byte, f"byte {byte} of {size} of {what}"
    )


def hexdump(head: str, start: int, width: int = 16) -> Iterator[tuple[int, str, str]]:
    """Lines of (offset, hexadecimal, text) of the bytes that a part carries."""
    data = bytes.fromhex(head)
    for i in range(0, len(data), width):
        row = data[i : i + width]
        yield start + i, row.hex(" "), "".join(chr(b) if 32 <= b < 127 else "." for b in row)
