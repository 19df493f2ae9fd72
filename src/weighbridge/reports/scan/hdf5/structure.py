"""The frame of an HDF5 file: its superblock, and numbers of the widths that it sets.

Everything here is little-endian. Addresses are relative to the superblock; all ones stand for "none". Reference: HDF5
File Format Specification 3.0.
"""

from __future__ import annotations

from typing import Final

from weighbridge.base.errors import FormatError
from weighbridge.io.source import Source
from weighbridge.reports.scan.model import OverLimit

SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
_FIRST: Final = 512  # where a superblock may begin besides 0; each further place is twice as far
_SUPERBLOCK: Final = 128
_WIDTHS: Final = (2, 4, 8, 16, 32)
_LEAST: Final = 64 << 10  # that may be read of the smallest file


def starts(source: Source) -> list[int]:
    """Where in `source` a superblock begins."""
    places, at = [0], _FIRST
    while at + len(SIGNATURE) <= source.size:
        places.append(at)
        at *= 2
    return [p for p in places if p + len(SIGNATURE) <= source.size and source.read(p, len(SIGNATURE)) == SIGNATURE]


class Fields:
    """The fields of a stretch of bytes, one behind the other. FormatError where it is too short."""

    def __init__(self, data: bytes, at: int, offsets: int, lengths: int, name: str) -> None:
        self.data, self.at, self.place = data, at, 0
        self.offsets, self.lengths, self.name = offsets, lengths, name

    @property
    def left(self) -> int:
        return len(self.data) - self.place

    def take(self, size: int) -> bytes:
        if size < 0 or size > self.left:
            raise FormatError(
                "a part of it is too short", path=self.name, offset=self.at + self.place, expected=f"{size} bytes",
                found=f"{self.left} left",
            )  # fmt: skip
        self.place += size
        return self.data[self.place - size : self.place]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def numbers(self, *sizes: int) -> list[int]:
        return [self.number(size) for size in sizes]

    def length(self) -> int:
        return self.number(self.lengths)

    def address(self) -> int | None:
        """An address; None where it is undefined."""
        value = self.number(self.offsets)
        return None if value == (1 << 8 * self.offsets) - 1 else value

    def text(self, end: bytes = b"\0") -> bytes:
        """Bytes up to `end`, and step over it."""
        found = self.data.find(end, self.place)
        return self.take((found if found >= 0 else len(self.data)) + len(end) - self.place)[: -len(end)]

    def sign(self, sign: bytes) -> None:
        """FormatError unless `sign` stands here."""
        found = self.take(len(sign))
        if found != sign:
            raise FormatError(
                "a block is none", path=self.name, offset=self.at + self.place - len(sign), expected=sign, found=found
            )

    def part(self, size: int) -> Fields:
        """The next `size` bytes as fields of their own."""
        at = self.at + self.place
        return Fields(self.take(size), at, self.offsets, self.lengths, self.name)


class Hdf5:
    """An HDF5 file whose superblock is at `base`. What is read of it is bounded by a multiple of its size, since an
    honest file's structure is read once: OverLimit beyond."""

    def __init__(self, source: Source, base: int) -> None:
        self.source, self.base, self.allowance = source, base, 4 * source.size + _LEAST
        self.offsets, self.lengths = 8, 8
        self.declared: int | None = None  # the base address that the superblock names
        self.driver: int | None = None
        self.extension: int | None = None
        self.cached: tuple[int | None, int | None] | None = None  # of the root group, outside its header
        self.root = self._superblock()

    def pay(self, size: int) -> None:
        self.allowance -= size
        if self.allowance < 0:
            raise OverLimit("parts of the HDF5 file are used again and again")

    def fields(self, address: int, size: int) -> Fields:
        """`size` bytes at `address`."""
        self.pay(size + 16)
        at = self.base + address
        return Fields(self.source.read(at, size), at, self.offsets, self.lengths, self.source.name)

    def upto(self, address: int, size: int) -> Fields:
        """As many of `size` bytes as there are."""
        return self.fields(address, max(min(size, self.source.size - self.base - address), 0))

    def wrong(self, why: str, at: int | None = None) -> FormatError:
        return FormatError(why, path=self.source.name, offset=at)

    def _superblock(self) -> int:
        f = self.upto(0, _SUPERBLOCK)
        f.sign(SIGNATURE)
        version = f.number(1)
        if version > 3:
            raise self.wrong("an HDF5 of a version that doesn't exist", self.base + 8)
        if version < 2:
            f.take(4)
        f.offsets, f.lengths = f.numbers(1, 1)
        if f.offsets not in _WIDTHS or f.lengths not in _WIDTHS:
            raise self.wrong("addresses of an HDF5 file have a width that no file has", self.base)
        self.offsets, self.lengths = f.offsets, f.lengths
        root = self._old(f, version) if version < 2 else self._new(f)
        if root is None:
            raise self.wrong("the HDF5 file has no root group", self.base)
        return root

    def _old(self, f: Fields, version: int) -> int | None:
        f.take(9 if version == 0 else 13)
        self.declared = f.address()
        f.address(), f.address()
        self.driver = f.address()
        f.address()
        root = f.address()
        kind = f.number(4)
        f.take(4)
        self.cached = (f.address(), f.address()) if kind == 1 else None
        return root

    def _new(self, f: Fields) -> int | None:
        f.take(1)
        self.declared = f.address()
        self.extension = f.address()
        f.address()
        return f.address()
