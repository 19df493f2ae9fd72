"""FlatBuffers: tables whose fields are found through a table of offsets, without a schema. Every access is checked
against the file's end. Reference: flatbuffers.dev/internals.

    root      u32 offset of the root table, 4 bytes of an identifier
    table     i32 distance back to its vtable; fields
    vtable    u16 its bytes, u16 bytes of the table, u16 offset of each field in the table (0: default)
    vector    u32 length, items; an item or field that is a table, vector or text is a u32 distance forward
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import Final

from weighbridge.base.errors import FormatError
from weighbridge.io.source import Source

_PAGE: Final = 16 << 10
_PAGES: Final = 16  # kept: a table, its vtable, its vectors and the tables that they lead to are far from each other
_TEXT: Final = 4096


class FlatBuffer:
    """Reads numbers of a file by pages. Tables have few bytes, and those of a kind are near each other."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._pages: dict[int, bytes] = {}

    def number(self, at: int, code: str) -> int:
        page, place = divmod(at, _PAGE)
        data = self._pages.get(page)
        if data is None or place + struct.calcsize(code) > len(data):
            self.source.check(at, struct.calcsize(code))
            if len(self._pages) == _PAGES:
                del self._pages[next(iter(self._pages))]
            start = page * _PAGE  # with the beginning of the next page, for numbers on the border
            data = self._pages[page] = self.source.read(start, min(_PAGE + 8, self.source.size - start))
        return int(struct.unpack_from(f"<{code}", data, place)[0])

    def root(self) -> FlatTable:
        return FlatTable(self, self.number(0, "I"))

    def follow(self, at: int) -> int:
        """The place that the offset at `at` leads to."""
        return at + self.number(at, "I")


class Vector:
    """`length` items of `width` bytes from `start` on."""

    def __init__(self, buffer: FlatBuffer, at: int, width: int) -> None:
        self.buffer, self.start, self.length = buffer, at + 4, buffer.number(at, "I")
        if self.length * width > buffer.source.size - self.start:
            raise FormatError("a vector is longer than the file", path=buffer.source.name, offset=at,
                              found=self.length)  # fmt: skip
        self.width = width

    def table(self, number: int) -> FlatTable:
        return FlatTable(self.buffer, self.buffer.follow(self.start + number * self.width))

    def numbers(self, code: str) -> list[int]:
        data = self.buffer.source.read(self.start, self.length * self.width)
        return list(struct.unpack(f"<{self.length}{code}", data))


class FlatTable:
    """A table at byte `at`."""

    def __init__(self, buffer: FlatBuffer, at: int) -> None:
        self.buffer, self.at = buffer, at

    @cached_property
    def _fields(self) -> tuple[int, ...]:
        vtable = self.at - self.buffer.number(self.at, "i")
        size = self.buffer.number(vtable, "H") if vtable >= 0 else 0
        if size < 4 or size % 2 or vtable + size > self.buffer.source.size:
            raise FormatError("a table has no proper vtable", path=self.buffer.source.name, offset=self.at)
        return tuple(self.buffer.number(vtable + at, "H") for at in range(4, size, 2))

    def place(self, field: int) -> int | None:
        """The place of a field; None if it has its default."""
        offset = self._fields[field] if field < len(self._fields) else 0
        return self.at + offset if offset else None

    def number(self, field: int, code: str, default: int = 0) -> int:
        place = self.place(field)
        return default if place is None else self.buffer.number(place, code)

    def vector(self, field: int, width: int = 4) -> Vector | None:
        place = self.place(field)
        return None if place is None else Vector(self.buffer, self.buffer.follow(place), width)

    def table(self, field: int) -> FlatTable | None:
        place = self.place(field)
        return None if place is None else FlatTable(self.buffer, self.buffer.follow(place))

    def text(self, field: int) -> str:
        vector = self.vector(field, 1)
        if vector is None:
            return ""
        return self.buffer.source.read(vector.start, min(vector.length, _TEXT)).decode("utf-8", "replace")
