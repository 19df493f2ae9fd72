"""Which bytes of files tensors are made of, announced before they are read.

The system then has them under way when a page of a mapping is touched, and fetches nothing beside them: a fault in a
page that isn't there reads a window around it, which for one rank's slice is mostly other ranks' bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from weighbridge.base.limits import MIB
from weighbridge.io.page_cache import available_memory, populate
from weighbridge.io.source import Fetch, FileSource, Source
from weighbridge.tensors.nodes import LogicalTensor, Node, QuantizedTensor, RowRange, Stored

#: Less isn't announced where it needn't be exact: it is one window of the system's own read-ahead.
_WORTH: Final = 8 * MIB


class SourceRange(NamedTuple):
    """Bytes of a source."""

    source: Source
    offset: int
    length: int


def source_ranges(node: Node, lo: int, hi: int) -> Iterator[SourceRange]:
    """The bytes of sources that rows lo..hi come from."""
    todo = [RowRange(node, lo, hi)]
    while todo:
        node, lo, hi = todo.pop()
        if isinstance(node, Stored):
            width = node.spec.row_bytes
            yield SourceRange(node.source, node.offset + lo * width, (hi - lo) * width)
        else:
            todo += node.needs(lo, hi)


def by_source(found: Iterable[SourceRange]) -> Iterator[tuple[Source, list[tuple[int, int]]]]:
    """Each source with its (offset, length) ranges."""
    ranges: dict[int, tuple[Source, list[tuple[int, int]]]] = {}
    for source, offset, length in found:
        ranges.setdefault(id(source), (source, []))[1].append((offset, length))
    yield from ranges.values()


def prefetch(tensors: Iterable[LogicalTensor]) -> None:
    """Have exactly the bytes of local files read that tensors are made of; returns when all are under way."""
    for source, ranges in by_source(_joined(_local(tensors))):
        source.advise(ranges)


def prefetch_behind(tensors: Iterable[LogicalTensor], *, private: bool = False) -> None:
    """As `prefetch`, but returns at once. Announces nothing where it is little, or more than half of the memory that
    is available. What can be a view of its file is mapped too, in its `private` mapping or the other."""
    views: list[LogicalTensor] = []
    others: list[LogicalTensor] = []
    for tensor in tensors:
        (views if _is_view(tensor) else others).append(tensor)
    found = [_joined(_local(some)) for some in (views, others)]
    if _WORTH <= sum(part.length for parts in found for part in parts) <= (available_memory() or 0) // 2:
        for parts, mapped in zip(found, (True, False), strict=True):
            for source, ranges in by_source(parts):
                if isinstance(source, FileSource):
                    source.advise_behind(ranges, _populating(source.map(private)) if mapped else None)


def _populating(view: memoryview) -> Fetch:
    """Maps pages of a mapping, which lives until that has ended."""
    mapping = np.frombuffer(view, np.uint8)
    start = mapping.ctypes.data
    return lambda offset, length: offset + length <= mapping.size and populate(start + offset, length)


def _is_view(tensor: LogicalTensor) -> bool:
    """Whether the values of a tensor may be those of its file."""
    return isinstance(tensor, Node) and tensor.spec.dtype.plain and view_place(tensor) is not None


def view_place(node: Node) -> tuple[FileSource, int] | None:
    """The file, and the offset in it, in whose mapping the bytes of `node` lie as an array's do; None where they must
    be computed or aren't aligned there."""
    if not isinstance(node, Stored) or node.swap or not node.spec.nbytes:
        return None
    place, dtype = node.source.location(node.offset), node.spec.dtype
    # A whole element, not its largest scalar: torch loads a complex128 as 16 aligned bytes, and crashes elsewhere.
    return None if place is None or place[1] % (dtype.size if dtype.plain else dtype.word) else place


def _local(tensors: Iterable[LogicalTensor]) -> Iterator[SourceRange]:
    """In terms of files, of which a source may be a window."""
    for tensor in tensors:
        for node in tensor.members.values() if isinstance(tensor, QuantizedTensor) else (tensor,):
            for source, offset, length in source_ranges(node, 0, node.spec.rows):
                if length and (place := source.location(offset)) is not None:
                    yield SourceRange(*place, length)


def _joined(found: Iterable[SourceRange]) -> list[SourceRange]:
    """File by file in the order of offsets, neighbours as one."""
    out: list[SourceRange] = []
    for part in sorted(found, key=lambda part: (part.source.name, part.offset)):
        last = out[-1] if out else None
        if last is not None and last.source is part.source and last.offset + last.length >= part.offset:
            end = max(last.offset + last.length, part.offset + part.length)
            out[-1] = last._replace(length=end - last.offset)
        else:
            out.append(part)
    return out
