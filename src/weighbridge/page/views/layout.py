"""A map of a file: every byte by its kind, and the regions that moved between two files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Final

from weighbridge.base import gc_pause
from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.base.limits import VIEW_DETAIL, VIEW_REGIONS
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.containers.base import Entry, Index, Region
from weighbridge.containers.frameworks.tensor_list import tiled_whole
from weighbridge.containers.opening import format_of
from weighbridge.io.location import open_source
from weighbridge.reports import tensor_path

SCHEMA: Final = "weighbridge/layout-map/1"
_PAGE: Final = 4096


@dataclass(frozen=True, slots=True)
class LayoutMap:
    """The regions of a file in order, as columns. Region i covers bytes [start[i], start[i + 1]) (the last one ends at
    `size`), is of kind `kinds[kind[i]]` (as in `wb anatomy`) and is labelled `labels[i]`. `detailed`: the header is
    divided too; with very many tensors it is one region."""

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
    """A region at different places or with different sizes in two files; -1 in a file that lacks it. `shift`: how far
    it moved, None if only one file has it."""

    kind: str
    label: str
    a_start: int
    a_size: int
    b_start: int
    b_size: int
    shift: int | None


def layout_map(path: str | os.PathLike[str], index: Index | None = None) -> LayoutMap:
    """Returns the map of one file. `index`: the file's index, if it is already parsed. Raises UsageError for a folder,
    and for a file with more regions than `VIEW_REGIONS`."""
    file, _ = tensor_path.split(path)
    if file.is_dir():
        raise UsageError(f"{file} is a folder", hint="name one of its files")
    with gc_pause.paused(), open_source(file) as source:
        form = format_of(source)
        coarse: Iterable[Region] | None = None
        with suppress(WeighbridgeError):
            index = index or form.parse(source)
            if has_many(index):  # one region for the header
                tensors = _tensor_regions(index.entries, index.data_start[0], index.files[0].size)
                coarse = chain([Region(0, index.data_start[0], "header")], tensors)
        regions = form.regions(source) if coarse is None else coarse
        return map_of(os.fspath(file), form.name, source.size, regions, detailed=coarse is None)


def map_of(path: str, format: str, size: int, regions: Iterable[Region], *, detailed: bool = True) -> LayoutMap:
    """Returns the map of a file of these regions. Raises UsageError for more than `VIEW_REGIONS`."""
    kinds: dict[str, int] = {}
    start, kind, labels = [], [], []
    for region in regions:
        if region.end > region.start:
            start.append(region.start)
            kind.append(kinds.setdefault(region.kind, len(kinds)))
            labels.append(region.label)
    if len(start) > VIEW_REGIONS:
        raise UsageError(f"{path} has {plural(len(start), 'region')}", hint=f"the limit is {VIEW_REGIONS:,}")
    return LayoutMap(path, format, size, tuple(kinds), tuple(start), tuple(kind), tuple(labels), detailed=detailed)


def data_regions(entries: Iterable[Entry], size: int) -> list[Region]:
    """Returns the regions of a file of `size` bytes that contains these tensors, each with its frame."""
    return tiled_whole(sorted(entries, key=lambda entry: entry.offset), size, "frame")


def has_many(index: Index) -> bool:
    """Returns whether an index describes a single file with a header before the data, and with more than
    `VIEW_DETAIL` tensors, for which listing the regions of the header takes too long."""
    return len(index) > VIEW_DETAIL and len(index.files) == 1 and index.data_start[0] > 0


def _tensor_regions(entries: Iterable[Entry], start: int, end: int) -> Iterator[Region]:
    """Yields the tensors and the gaps between them, from `start` to `end`."""
    for entry in sorted(entries, key=lambda e: e.offset):
        yield _gap(start, entry.offset)
        yield Region(max(start, entry.offset), entry.offset + entry.nbytes, "tensor", entry.name)
        start = max(start, entry.offset + entry.nbytes)
    yield _gap(start, end)


def _gap(start: int, end: int) -> Region:
    """Returns the bytes between tensors; a gap larger than any alignment isn't padding."""
    return Region(start, end, "padding" if end - start < _PAGE else "unknown")


def regions_near(index: Index, lo: int, hi: int) -> Iterator[Region]:
    """Yields the regions that contain bytes [lo, hi), after the header of a file that `has_many`."""
    near = [e for e in index.entries if e.offset < hi and e.offset + e.nbytes > lo]
    start = max((e.offset + e.nbytes for e in index.entries if e.offset + e.nbytes <= lo), default=index.data_start[0])
    end = min((e.offset for e in index.entries if e.offset >= hi), default=index.files[0].size)
    for region in _tensor_regions(near, max(start, index.data_start[0]), end):
        if region.start < hi and region.end > max(lo, region.start):
            entry = index.by_name.get(region.label)
            yield Region(region.start, region.end, region.kind, region.label, str(entry.spec)) if entry else region


_Key = tuple[str, str, int]  # kind, label, ordinal among regions with this kind and label
_Extent = tuple[int, int]  # start, size


def moves(a: LayoutMap, b: LayoutMap) -> tuple[RegionMove, ...]:
    """Returns the regions with another place or size in `b`, or in one file only: in the order of `a`, then those only
    in `b`. Padding is omitted, since it has no name."""
    left, right = dict(_extents(a)), dict(_extents(b))
    changes = []
    for key in dict.fromkeys((*left, *right)):
        before, after = left.get(key), right.get(key)
        if before != after:
            shift = after[0] - before[0] if before and after else None
            changes.append(RegionMove(key[0], key[1], *(before or (-1, -1)), *(after or (-1, -1)), shift))
    return tuple(changes)


def _extents(layout: LayoutMap) -> Iterator[tuple[_Key, _Extent]]:
    counts: dict[tuple[str, str], int] = {}
    ends = (*layout.start[1:], layout.size)
    for start, end, number, label in zip(layout.start, ends, layout.kind, layout.labels, strict=True):
        name = layout.kinds[number], label
        if name[0] != "padding":
            counts[name] = counts.get(name, 0) + 1
            yield (*name, counts[name]), (start, end - start)
