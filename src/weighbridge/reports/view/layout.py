"""A file as a map: every byte by what it is, and what moved from one file to another."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from weighbridge.base import gc_pause
from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.base.limits import VIEW_DETAIL, VIEW_REGIONS
from weighbridge.containers.base import Entry, Index, Region
from weighbridge.containers.format import Format
from weighbridge.containers.opening import format_of
from weighbridge.io.location import open_source
from weighbridge.io.source import Source
from weighbridge.reports import tensor_path

SCHEMA: Final = "weighbridge/layout-map/1"
_PAGE: Final = 4096


@dataclass(frozen=True, slots=True)
class LayoutMap:
    """The regions of a file in order, as columns. Region i is bytes [start[i], start[i + 1]) (the last ends at `size`),
    of the kind `kinds[kind[i]]` (as in `wb anatomy`) and about `labels[i]`. `detailed`: the header is divided too; it
    is one region where there are too many tensors to name each byte about them."""

    path: str
    format: str
    size: int
    kinds: tuple[str, ...]
    start: tuple[int, ...]
    kind: tuple[int, ...]
    labels: tuple[str, ...]
    detailed: bool
    schema: str = SCHEMA


@dataclass(frozen=True, slots=True)
class RegionMove:
    """A region that two files have, or one of them, at other places or of another size; -1 where a file hasn't it.
    `shift`: how far it moved; None for one that only one file has."""

    kind: str
    label: str
    a_start: int
    a_size: int
    b_start: int
    b_size: int
    shift: int | None


def layout_map(path: str | os.PathLike[str], index: Index | None = None) -> LayoutMap:
    """The map of one file. `index`: the file's own, where it is known. UsageError for a folder, and for a file of more
    regions than anybody can look through."""
    file, _ = tensor_path.split(path)
    if file.is_dir():
        raise UsageError(f"{file} is a folder", hint="name one file in it")
    with gc_pause.paused(), open_source(file) as source:
        form = format_of(source)
        many = _many(source, form, index)
        kinds: dict[str, int] = {}
        start, kind, labels = [], [], []
        for region in _coarse(many) if many else form.regions(source):
            if region.end > region.start:
                start.append(region.start)
                kind.append(kinds.setdefault(region.kind, len(kinds)))
                labels.append(region.label)
        if len(start) > VIEW_REGIONS:
            raise UsageError(f"{file} has {len(start):,} regions", hint=f"at most {VIEW_REGIONS:,} can be shown")
        return LayoutMap(
            os.fspath(file),
            form.name,
            source.size,
            tuple(kinds),
            tuple(start),
            tuple(kind),
            tuple(labels),
            many is None,
        )


def _many(source: Source, form: Format, index: Index | None) -> Index | None:
    """The index of a file whose many tensors lie one after the other behind one header; None of others."""
    with suppress(WeighbridgeError):
        index = index or form.parse(source)
        return index if has_many(index) else None
    return None


def has_many(index: Index) -> bool:
    """Whether an index is that of one file of so many tensors that naming each byte about them takes too long."""
    return len(index) > VIEW_DETAIL and len(index.files) == 1 and index.data_start[0] > 0


def _coarse(index: Index) -> Iterator[Region]:
    """The regions of a file by its index: header, tensors, and what lies between them."""
    yield Region(0, index.data_start[0], "header")
    yield from _tensors(index.entries, index.data_start[0], index.files[0].size)


def _tensors(entries: Iterable[Entry], at: int, size: int) -> Iterator[Region]:
    """Tensors, and what lies between them, from `at` to `size`."""
    for entry in sorted(entries, key=lambda e: e.offset):
        yield _gap(at, entry.offset)
        yield Region(max(at, entry.offset), entry.offset + entry.nbytes, "tensor", entry.name)
        at = max(at, entry.offset + entry.nbytes)
    yield _gap(at, size)


def regions_near(index: Index, lo: int, hi: int) -> Iterator[Region]:
    """The regions that bytes [lo, hi) lie in, of a file that `has_many`, behind its header."""
    near = [e for e in index.entries if e.offset < hi and e.offset + e.nbytes > lo]
    at = max((e.offset + e.nbytes for e in index.entries if e.offset + e.nbytes <= lo), default=index.data_start[0])
    size = min((e.offset for e in index.entries if e.offset >= hi), default=index.files[0].size)
    for region in _tensors(near, max(at, index.data_start[0]), size):
        if region.start < hi and region.end > max(lo, region.start):
            entry = index.by_name.get(region.label)
            yield Region(region.start, region.end, region.kind, region.label, str(entry.spec)) if entry else region


def _gap(start: int, end: int) -> Region:
    """Bytes between tensors: more than any alignment asks for are no padding."""
    return Region(start, end, "padding" if end - start < _PAGE else "unknown")


_Key = tuple[str, str, int]  # kind, label, how many of the same kind and label come before
_Extent = tuple[int, int]  # start, size


def moves(a: LayoutMap, b: LayoutMap) -> tuple[RegionMove, ...]:
    """The regions of `a` and `b` that lie at another place, are of another size, or that only one of them has; in the
    order of `a`, then those of `b` alone. Padding, which has no name, is left out."""
    left, right = dict(_named(a)), dict(_named(b))
    keys = [*left, *(key for key in right if key not in left)]
    return tuple([_move(key, left.get(key), right.get(key)) for key in keys if left.get(key) != right.get(key)])


def _move(key: _Key, a: _Extent | None, b: _Extent | None) -> RegionMove:
    shift = b[0] - a[0] if a is not None and b is not None else None
    return RegionMove(key[0], key[1], *(a or (-1, -1)), *(b or (-1, -1)), shift)


def _named(of: LayoutMap) -> Iterator[tuple[_Key, _Extent]]:
    seen: dict[tuple[str, str], int] = {}
    ends = (*of.start[1:], of.size)
    for start, end, number, label in zip(of.start, ends, of.kind, of.labels, strict=True):
        name = of.kinds[number], label
        if name[0] != "padding":
            seen[name] = seen.get(name, 0) + 1
            yield (*name, seen[name]), (start, end - start)
