"""The frame of an HDF5 file: its superblock, and fields of the widths that it sets.

Everything is little-endian. Addresses are relative to the superblock; all ones mean "undefined". Reference: HDF5 File
Format Specification 3.0.
"""

from __future__ import annotations

from typing import Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.io.source import Source

SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
_FIRST: Final = 512  # a superblock begins at 0, at 512 or at twice that, and so on
_SUPERBLOCK: Final = 128
_WIDTHS: Final = (2, 4, 8, 16, 32)
_LEAST: Final = 64 << 10  # bytes that may be read of the smallest file


def starts(source: Source) -> list[int]:
    """The offsets of the superblocks in `source`."""
    offsets, at = [0], _FIRST
    while at + len(SIGNATURE) <= source.size:
        offsets.append(at)
        at *= 2
    return [p for p in offsets if p + len(SIGNATURE) <= source.size and source.read(p, len(SIGNATURE)) == SIGNATURE]


class Fields:
    """Reads the consecutive fields of a range of bytes. Raises FormatError if it is too short. `offsets`, `lengths`:
    the bytes of an address and of a length."""

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
        """An address, or None if it is undefined."""
        value = self.number(self.offsets)
        return None if value == (1 << 8 * self.offsets) - 1 else value

    def text(self) -> str:
        """Text up to a NUL, which is skipped."""
        end = self.data.find(b"\0", self.place)
        return self.take((end if end >= 0 else len(self.data)) + 1 - self.place)[:-1].decode("utf-8", "replace")

    def expect(self, signature: bytes) -> None:
        """Raises FormatError unless `signature` is next."""
        if (actual := self.take(len(signature))) != signature:
            at = self.at + self.place - len(signature)
            raise FormatError(
                "a block has the wrong signature", path=self.name, offset=at, expected=signature, found=actual
            )

    def part(self, size: int) -> Fields:
        """The next `size` bytes as separate fields."""
        at = self.at + self.place
        return Fields(self.take(size), at, self.offsets, self.lengths, self.name)


class Hdf5:
    """An HDF5 file whose superblock is at `base`. A valid file's structure is read once, so reads are limited to a
    multiple of the file's size: `beyond` is raised otherwise."""

    def __init__(self, source: Source, base: int, beyond: type[UnsupportedError] = UnsupportedError) -> None:
        self.beyond = beyond
        self.source, self.base, self.allowance = source, base, 4 * source.size + _LEAST
        self.offsets, self.lengths = 8, 8
        self.driver: int | None = None
        self.extension: int | None = None
        self.cached: tuple[int | None, int | None] | None = None  # tree and heap of the root group, from its entry
        f = self.upto(0, _SUPERBLOCK)
        f.expect(SIGNATURE)
        version = f.number(1)
        if version > 3:
            raise self.error("unknown HDF5 version", base + 8)
        if version < 2:
            f.take(4)
        f.offsets, f.lengths = self.offsets, self.lengths = f.numbers(1, 1)
        if f.offsets not in _WIDTHS or f.lengths not in _WIDTHS:
            raise self.error("addresses of an invalid width", base)
        f.take({0: 9, 1: 13}.get(version, 1))
        self.declared = f.address()  # the base address in the superblock
        if version < 2:
            _, _, self.driver, _, root = (f.address() for _ in range(5))
            kind = f.number(4)
            f.take(4)
            self.cached = (f.address(), f.address()) if kind == 1 else None
        else:
            self.extension, _, root = f.address(), f.address(), f.address()
        if root is None:
            raise self.error("the HDF5 file has no root group", base)
        self.root = root

    def pay(self, size: int) -> None:
        self.allowance -= size
        if self.allowance < 0:
            raise self.beyond("parts of the HDF5 file are reused too often")

    def fields(self, address: int, size: int) -> Fields:
        """`size` bytes at `address`."""
        self.pay(size + 16)
        at = self.base + address
        return Fields(self.source.read(at, size), at, self.offsets, self.lengths, self.source.name)

    def upto(self, address: int, size: int) -> Fields:
        """At most `size` bytes at `address`, fewer at the end of the file."""
        return self.fields(address, max(min(size, self.source.size - self.base - address), 0))

    def error(self, reason: str, at: int | None = None) -> FormatError:
        return FormatError(reason, path=self.source.name, offset=at)
