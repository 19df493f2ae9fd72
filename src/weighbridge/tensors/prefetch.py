"""Announces the bytes of files that tensors consist of before they are read.

The system then reads exactly these bytes ahead. Without it, a page fault in a mapping reads a window around the page,
which for one rank's slice is mostly other ranks' bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from weighbridge.base.limits import MIB
from weighbridge.io.page_cache import Fetch, available_memory, populate, read_ahead
from weighbridge.io.source import FileSource, Source
from weighbridge.tensors import np
from weighbridge.tensors.nodes import LogicalTensor, Node, QuantizedTensor, RowRange, Stored

#: Fewer bytes aren't announced by `prefetch_behind`: they are one window of the system's read-ahead.
_WORTH: Final = 8 * MIB


class SourceRange(NamedTuple):
    """Bytes of a source."""

    source: Source
    offset: int
    length: int


def source_ranges(node: Node, lo: int, hi: int) -> Iterator[SourceRange]:
    """The bytes of sources that rows lo..hi depend on."""
    todo = [RowRange(node, lo, hi)]
    while todo:
        node, lo, hi = todo.pop()
        if isinstance(node, Stored):
            width = node.spec.row_bytes
            yield SourceRange(node.source, node.offset + lo * width, (hi - lo) * width)
        else:
            todo += node.needs(lo, hi)


def by_source(parts: Iterable[SourceRange]) -> Iterator[tuple[Source, list[tuple[int, int]]]]:
    """Each source with its (offset, length) ranges."""
    ranges: dict[int, tuple[Source, list[tuple[int, int]]]] = {}
    for source, offset, length in parts:
        ranges.setdefault(id(source), (source, []))[1].append((offset, length))
    yield from ranges.values()


def prefetch(tensors: Iterable[LogicalTensor]) -> None:
    """Starts reading exactly the bytes of local files that tensors consist of; returns when all reads have started."""
    for source, ranges in by_source(_merge(_local_ranges(tensors))):
        source.advise(ranges)


def prefetch_behind(tensors: Iterable[LogicalTensor], *, private: bool = False) -> None:
    """As `prefetch`, but returns at once. Does nothing for few bytes, or for more than half of the available memory.
    Tensors that can be views of their file are also mapped, in its `private` mapping or the shared one."""
    views: list[LogicalTensor] = []
    copies: list[LogicalTensor] = []
    for tensor in tensors:
        is_view = isinstance(tensor, Node) and tensor.spec.dtype.plain and view_place(tensor) is not None
        (views if is_view else copies).append(tensor)
    batches = [_merge(_local_ranges(batch)) for batch in (views, copies)]
    if _WORTH <= sum(part.length for parts in batches for part in parts) <= (available_memory() or 0) // 2:
        for parts, mapped in zip(batches, (True, False), strict=True):
            for source, ranges in by_source(parts):
                if isinstance(source, FileSource):
                    read_ahead(source, ranges, _page_loader(source.map(private)) if mapped else None)


def _page_loader(view: memoryview) -> Fetch:
    """A function that loads pages of a mapping and keeps the mapping alive."""
    mapping = np.frombuffer(view, np.uint8)
    start = mapping.ctypes.data
    return lambda offset, length: offset + length <= mapping.size and populate(start + offset, length)


def view_place(node: Node) -> tuple[FileSource, int] | None:
    """The file and the offset at which a mapping has the bytes of `node` as an aligned array; None if they must be
    computed or aren't aligned."""
    if not isinstance(node, Stored) or node.swap or not node.spec.nbytes:
        return None
    place, dtype = node.source.location(node.offset), node.spec.dtype
    # A whole element, not its largest scalar: torch loads a complex128 as 16 aligned bytes, and crashes elsewhere.
    return None if place is None or place[1] % (dtype.size if dtype.plain else dtype.word) else place


def _local_ranges(tensors: Iterable[LogicalTensor]) -> Iterator[SourceRange]:
    """The bytes of tensors as ranges of local files."""
    for tensor in tensors:
        for node in tensor.members.values() if isinstance(tensor, QuantizedTensor) else (tensor,):
            for source, offset, length in source_ranges(node, 0, node.spec.rows):
                if length and (place := source.location(offset)) is not None:
                    yield SourceRange(*place, length)


def _merge(parts: Iterable[SourceRange]) -> list[SourceRange]:
    """Ranges sorted by file and offset; adjacent ones become one."""
    out: list[SourceRange] = []
    for part in sorted(parts, key=lambda part: (part.source.name, part.offset)):
        last = out[-1] if out else None
        if last is not None and last.source is part.source and last.offset + last.length >= part.offset:
            end = max(last.offset + last.length, part.offset + part.length)
            out[-1] = last._replace(length=end - last.offset)
        else:
            out.append(part)
    return out
