"""Protocol Buffers: the fields of a message, one after the other, without a schema.

    field   varint (number << 3 | type); by type 0 a varint, 1 eight bytes, 2 a length and as many bytes, 5 four bytes

Long payloads are skipped. Reference: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import PROTOBUF_FIELDS
from weighbridge.io.source import Source

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED: Final = MappingProxyType({FIXED64: 8, FIXED32: 4})
_LONGEST: Final = 10  # bytes of a varint
_WINDOW: Final = 4096


class ProtoField(NamedTuple):
    """`value`: the number of a varint. The payload is bytes [start, end) of the source."""

    number: int
    kind: int
    value: int
    start: int
    end: int


class Messages:
    """Reads the messages in a source through a window."""

    def __init__(self, source: Source) -> None:
        self.source, self._left = source, PROTOBUF_FIELDS
        self._data, self._base = b"", 0

    def fields(self, at: int, end: int) -> Iterator[ProtoField]:
        """The fields of the message in bytes [at, end). Raises FormatError if it isn't one."""
        while at < end:
            tag, start = self.varint(at, end)
            number, kind, value = tag >> 3, tag & 7, 0
            if kind == VARINT:
                value, stop = self.varint(start, end)
            elif kind == BYTES:
                length, start = self.varint(start, end)
                stop = start + length
            elif kind in _FIXED:
                stop = start + _FIXED[kind]
            else:
                raise self.error("a field has an unknown wire type", at)
            if stop > end or not number:
                raise self.error("a field is longer than its message" if number else "a field has number 0", at)
            self._left -= 1
            if self._left < 0:
                raise UnsupportedError(f"{self.source.name} has more than {PROTOBUF_FIELDS:,} fields")
            yield ProtoField(number, kind, value, start, stop)
            at = stop

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """A number, and the offset after it."""
        value = 0
        length, start = min(_LONGEST, end - at), at - self._base
        if start < 0 or start + length > len(self._data):
            self._base, start = at, 0
            self._data = self.source.read(at, max(min(_WINDOW, self.source.size - at), 0))
        for place, byte in enumerate(self._data[start : start + length]):
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF, at + place + 1
        raise self.error("a number has no end", at)

    def varints(self, start: int, end: int) -> Iterator[int]:
        """The numbers of a packed field."""
        while start < end:
            value, start = self.varint(start, end)
            yield value

    def signed(self, field: ProtoField) -> Iterator[int]:
        """The numbers of a repeated int64 field, packed or not."""
        for value in (field.value,) if field.kind == VARINT else self.varints(field.start, field.end):
            yield value - (1 << 64) if value >> 63 else value

    def text(self, field: ProtoField, most: int) -> str:
        """A field's text, cut after `most` bytes."""
        return self.source.read(field.start, min(field.end - field.start, most)).decode("utf-8", "replace")

    def length_before(self, start: int, end: int) -> int:
        """The offset of the length before the message in bytes [start, end)."""
        length = varint(end - start)
        if self.source.read(start - len(length), len(length)) != length:
            raise UnsupportedError(f"{self.source.name}: the length before byte {start} is written in an unusual form")
        return start - len(length)

    def error(self, reason: str, at: int) -> FormatError:
        return FormatError(reason, path=self.source.name, offset=at)


def varint(number: int) -> bytes:
    """The shortest bytes of a number."""
    low, rest = number & 0x7F, number >> 7
    return bytes((low | 0x80,)) + varint(rest) if rest else bytes((low,))
