"""Types of recognisers: the final answer (`Identity`), the answer of a recogniser (`Hit`), and a clipped view of the
bytes (`Probe`). Nothing here raises on short input: a read past the end returns fewer bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import Any, Final, Literal

from weighbridge.base.limits import SNIFF_HEAD, ZIP_TAIL
from weighbridge.base.records import dataclass
from weighbridge.io.source import Source

Confidence = Literal["certain", "likely", "guess"]


@dataclass(frozen=True, slots=True)
class Hit:
    """One recogniser's answer."""

    format: str
    variant: str = ""
    evidence: tuple[str, ...] = ()
    confidence: Confidence = "certain"
    detail: Mapping[str, Any] = field(default_factory=dict)
    damage: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of some bytes. `readable`: Weighbridge has a reader for the format. `damage`: visible damage."""

    format: str
    variant: str
    confidence: Confidence
    evidence: tuple[str, ...]
    detail: Mapping[str, Any]
    readable: bool
    title: str
    damage: tuple[str, ...] = ()
    advice: str | None = None


class Probe:
    """The bytes of a source, clipped to its size."""

    def __init__(self, source: Source, depth: int = 0) -> None:
        self.source, self.size, self.depth = source, source.size, depth
        self.head = source.head(SNIFF_HEAD)

    def at(self, offset: int, length: int) -> bytes:
        """The bytes [offset, offset + length), as far as they exist."""
        if offset < 0 or offset >= self.size or length <= 0:
            return b""
        end = min(offset + length, self.size)
        return self.head[offset:end] if end <= len(self.head) else self.source.read(offset, end - offset)

    def number(self, offset: int, code: str) -> int | None:
        """One integer of `struct` code (with its byte order) at `offset`; None if the file is too short."""
        data = self.at(offset, struct.calcsize(code))
        return struct.unpack(code, data)[0] if len(data) == struct.calcsize(code) else None

    @cached_property
    def tail(self) -> bytes:
        """The last bytes, in which a zip has its end record."""
        length = min(self.size, ZIP_TAIL)
        return self.at(self.size - length, length)

    @cached_property
    def text(self) -> str | None:
        """The head as text, None if it is binary. A UTF-8 sequence cut at the end is ignored."""
        data = self.head.removeprefix(b"\xef\xbb\xbf")
        if not data or any(byte in data for byte in _NOT_TEXT):
            return None
        for cut in range(4 if self.size > len(self.head) else 1):
            try:
                return data[: len(data) - cut].decode()
            except UnicodeDecodeError:
                continue
        return None


# Control characters that no text file has (NUL first: nearly every binary shows it at once).
_NOT_TEXT: Final = bytes(c for c in range(32) if c not in b"\t\n\r\f\b\x1b")
