"""What each byte of a file means: the regions that a container names, with their first bytes; what lies at one offset,
down to the element of a tensor; and how the file divides among kinds of bytes.

    anatomy(path, at=0x1234)            -> AnatomyReport with the one region there, and the place inside it
    anatomy(path, start=0, end=4096)    -> AnatomyReport with the regions that meet the range
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
        regions = form.regions(source)
        start, end = _range(source, at, start, end)
        chosen = [r for r in _meeting(regions, start, end) if _wanted(r, name, kinds)]
        if name is not None and not chosen:
            tensor_path.entry(form.parse(source), name, file)  # reports similar names
        return AnatomyReport(
            path=os.fspath(file),
            format=form.name,
            nbytes=source.size,
            region_count=len(regions),
            parts=tuple(_part(source, r, head) for r in chosen[:limit]),
            shares=_shares(regions, source.size),
            strip=tuple(strip(regions, source.size, cells)),
            at=at,
            place=_place(source, form.name, chosen[0], at) if at is not None and chosen else None,
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


def _shares(regions: Iterable[Region], size: int) -> tuple[KindTotal, ...]:
    sums: dict[str, list[int]] = {}
    for r in regions:
        row = sums.setdefault(r.kind, [0, 0])
        row[0] += 1
        row[1] += r.end - r.start
    ordered = sorted(sums.items(), key=lambda row: (-row[1][1], row[0]))
    return tuple(KindTotal(kind, n, nbytes, round(nbytes / size, 6) if size else 0.0) for kind, (n, nbytes) in ordered)


def strip(regions: Sequence[Region], size: int, cells: int) -> Iterator[str]:
    """The kind that most of each of `cells` equal pieces of the file consists of."""
    at = 0
    for cell in range(min(cells, size)):
        lo, hi = size * cell // min(cells, size), size * (cell + 1) // min(cells, size)
        sums: dict[str, int] = {}
        while at < len(regions) and regions[at].start < hi:
            r = regions[at]
            sums[r.kind] = sums.get(r.kind, 0) + min(r.end, hi) - max(r.start, lo)
            if r.end > hi:
                break
            at += 1
        yield max(sums, key=lambda kind: sums[kind]) if sums else "unknown"


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
