"""Lays an existing file out again, with slots in the places of its tensors. All other bytes are repeated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import FRAME
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Entry, Layout, Slot
from weighbridge.io.source import Source


class Replacement(NamedTuple):
    """Bytes [start, end) of the existing file. `content` replaces them: bytes, and slots as name and spec."""

    start: int
    end: int
    content: tuple[bytes | tuple[str, Spec], ...]

    @property
    def growth(self) -> int:
        """The bytes by which the file grows."""
        sizes = (len(c) if isinstance(c, bytes) else c[1].nbytes for c in self.content)
        return sum(sizes) - (self.end - self.start)


def tensor_parts(entries: Iterable[Entry]) -> list[Replacement]:
    """The data of tensors. Tensors that share their bytes are one slot, under the name of the first."""
    first: dict[tuple[int, int], Entry] = {}
    for entry in entries:
        if entry.nbytes:
            first.setdefault((entry.offset, entry.nbytes), entry)
    return [Replacement(at, at + size, ((entry.name, entry.spec),)) for (at, size), entry in first.items()]


def relaid(format: str, source: Source, parts: Iterable[Replacement]) -> Layout:
    """The layout of the file `source` with these parts. Raises UnsupportedError if parts overlap, or if the file has
    too many bytes around them."""
    ordered = sorted(parts, key=lambda part: part.start)
    frame = source.size - sum(part.end - part.start for part in ordered)
    if frame > FRAME:
        raise UnsupportedError(f"{source.name}: {frame:,} bytes around the tensors, more than {FRAME:,}")
    pieces: list[tuple[int, bytes]] = []
    slots: list[Slot] = []
    at = size = 0
    for part in (*ordered, Replacement(source.size, source.size, ())):
        if part.start < at:
            raise UnsupportedError(f"{source.name}: two tensors overlap at byte {part.start}")
        for content in (source.read(at, part.start - at), *part.content):
            if isinstance(content, bytes):
                pieces.append((size, content))
                size += len(content)
            else:
                slots.append(Slot(*content, size))
                size += content[1].nbytes
        at = part.end
    return Layout(format, tuple(piece for piece in pieces if piece[1]), tuple(slots), size)
