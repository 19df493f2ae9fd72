"""The records of a written zip archive: stored members, no clock in the bytes, checksums known before or after."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

from weighbridge.base.errors import UsageError
from weighbridge.base.spec import Spec
from weighbridge.containers.archive.zip_records import (
    CENTRAL,
    CENTRAL_FORM,
    DESCRIPTOR,
    END,
    END64,
    END64_FORM,
    END_FORM,
    FULL16,
    FULL32,
    LOCAL,
    LOCAL_FORM,
    LOCATOR,
    LOCATOR_FORM,
    STORED,
    UTF8,
    ZIP64,
)  # fmt: skip
from weighbridge.containers.base import Layout, Slot

# MS-DOS 1980-01-01 (and the time 0): no clock in the bytes.
_DATE: Final = 0x21
_VERSION, _VERSION64 = 20, 45
_UNIX: Final = 3 << 8
_MODE: Final = 0o100644 << 16
_PAD_ID: Final = int.from_bytes(b"FB", "little")  # the extra field by which torch.save aligns its members


class NewMember(NamedTuple):
    """A member to be written: the bytes `head`, then perhaps a tensor (name and spec)."""

    name: str
    head: bytes = b""
    tensor: tuple[str, Spec] | None = None

    @property
    def size(self) -> int:
        return len(self.head) + (self.tensor[1].nbytes if self.tensor else 0)


class PlacedMember(NamedTuple):
    """A stored member with its local header at `at` and its data in bytes [start, start + size). `extra`: the extra
    fields of the local header."""

    name: bytes
    size: int
    at: int
    start: int
    extra: bytes
    flags: int

    @property
    def zip64(self) -> bytes:
        """The extra field of the directory entry, for numbers beyond 32 bits."""
        return zip64_field(self.size, self.at)


def archive_layout(format: str, files: Sequence[NewMember], align: int, notes: tuple[str, ...] = ()) -> Layout:
    """A zip of stored members; each one's data starts at a multiple of `align`. Checksums are written after the data,
    as `Layout.fixups`. UsageError for names that are dangerous to unpack."""
    members: list[PlacedMember] = []
    end = 0
    for file in files:
        name, extra = checked_name(file.name), zip64_field(file.size, 0)
        bare = end + LOCAL_SIZE + len(name) + len(extra)
        pad = -bare % align
        if 0 < pad < 4:  # an extra field has 4 bytes at least
            pad += align
        if pad:
            extra += struct.pack("<HH", _PAD_ID, pad - 4).ljust(pad, b"Z")
        members.append(PlacedMember(name, file.size, end, bare + pad, extra, 0 if name.isascii() else UTF8))
        end = bare + pad + file.size
    slots = tuple(Slot(*file.tensor, member.start + len(file.head))
                  for file, member in zip(files, members, strict=True) if file.tensor)  # fmt: skip

    def frame(crcs: Sequence[int]) -> list[tuple[int, bytes]]:
        pieces, directory = [], b""
        for m, crc in zip(members, crcs, strict=True):
            size, wide = min(m.size, FULL32), _VERSION64 if m.zip64 else _VERSION
            version = _VERSION64 if m.size >= FULL32 else _VERSION
            pieces.append((m.at, local_header(m, version=version, date=_DATE, crc=crc, size=size)))
            directory += directory_entry(m, crc, version=wide, made_by=_UNIX | wide, date=_DATE, mode=_MODE)
        return [*pieces, (end, directory + end_records(len(members), end, len(directory)))]

    def fixups(digests: Mapping[str, int]) -> list[tuple[int, bytes]]:
        crcs = [zlib.crc32(file.head) for file in files]
        return frame([crc_joined(crc, digests[f.tensor[0]], f.tensor[1].nbytes) if f.tensor else crc
                      for f, crc in zip(files, crcs, strict=True)])  # fmt: skip

    pieces = frame([0] * len(members))
    size = end + len(pieces[-1][1])
    pieces += [(m.start, file.head) for m, file in zip(members, files, strict=True) if file.head]
    return Layout(format, tuple(sorted(pieces)), slots, size, notes, fixups)


# A drive of Windows: `C:x` is relative to the current folder of that drive.
_DRIVE: Final = re.compile(r"[A-Za-z]:")


def checked_name(name: str) -> bytes:
    """A member's name as UTF-8. UsageError if unpacking it could write outside its folder: a path that begins at a root
    or a drive, or has steps `.` or `..` (and `a/./b` would be `a/b`)."""
    try:
        raw = name.encode()
    except UnicodeEncodeError:
        raise UsageError(f"a tensor's name is not valid Unicode: {name!r}") from None
    leads_away = not {"", ".", ".."}.isdisjoint(name.split("/")) or "\\" in name or _DRIVE.match(name)
    if "\0" in name or leads_away or len(raw) > FULL16:
        raise UsageError(f"no member of a zip should be called {name!r}", hint="rename the tensor")
    return raw


# ---- records ----------------------------------------------------------------------------------------------------

LOCAL_SIZE: Final = LOCAL_FORM.size


def zip64_field(size: int, at: int) -> bytes:
    """The extra field for numbers beyond 32 bits: both sizes and the offset. Empty without any."""
    numbers = [n for n in (size, size, at) if n >= FULL32]
    return struct.pack(f"<HH{len(numbers)}Q", ZIP64, 8 * len(numbers), *numbers) if numbers else b""


def local_header(m: PlacedMember, *, version: int = 0, date: int = 0, crc: int = 0, size: int = 0) -> bytes:
    """A member's bytes [at, start). torch leaves checksum and sizes open, and has a descriptor after the data."""
    fields = (LOCAL, version, m.flags, STORED, 0, date, crc, size, size, len(m.name), len(m.extra))
    return LOCAL_FORM.pack(*fields) + m.name + m.extra


def descriptor(m: PlacedMember, crc: int) -> bytes:
    return DESCRIPTOR + struct.pack("<IQQ" if m.zip64 else "<3I", crc, m.size, m.size)


def directory_entry(
    m: PlacedMember, crc: int, *, version: int = 0, made_by: int = 0, date: int = 0, mode: int = 0
) -> bytes:
    size, extra = min(m.size, FULL32), m.zip64
    fields = (CENTRAL, made_by, version, m.flags, STORED, 0, date, crc, size, size, len(m.name), len(extra))
    return CENTRAL_FORM.pack(*fields, 0, 0, 0, mode, min(m.at, FULL32)) + m.name + extra


def end_records(count: int, start: int, size: int) -> bytes:
    """The end records after a directory of `count` entries in bytes [start, start + size)."""
    if count < FULL16 and size < FULL32 and start < FULL32:
        return END_FORM.pack(END, 0, 0, count, count, size, start, 0)
    return end_records64(count, start, size, _UNIX | _VERSION64)


def end_records64(count: int, start: int, size: int, made_by: int) -> bytes:
    """The end records with the zip64 ones, whether they are needed or not."""
    wide = END64_FORM.pack(END64, 44, made_by, _VERSION64, 0, 0, count, count, size, start)
    few = min(count, FULL16)
    plain = END_FORM.pack(END, 0, 0, few, few, min(size, FULL32), min(start, FULL32), 0)
    return wide + LOCATOR_FORM.pack(LOCATOR, 0, start + size, 1) + plain


# ---- checksums ------------------------------------------------------------------------------------------------


def crc_joined(first: int, second: int, length: int) -> int:
    """The CRC-32 of two stretches one after the other, from the CRC of each and the second one's length.

    A CRC is a polynomial over GF(2) whose highest bit is x^0: `length` zero bytes after the first stretch multiply its
    CRC by x^(8 * length), modulo the CRC's polynomial (zlib's crc32_combine, which Python lacks)."""
    power = 0
    while length:
        if length & 1:
            first = _times(_shift(power), first)
        length, power = length >> 1, power + 1
    return first ^ second


@cache
def _shift(power: int) -> int:
    """x^(8 * 2^power)."""
    return 1 << 23 if power == 0 else _times(_shift(power - 1), _shift(power - 1))


def _times(a: int, b: int) -> int:
    product = 0
    while a:
        if a & 1 << 31:
            product ^= b
        a, b = a << 1 & FULL32, b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


_POLYNOMIAL: Final = 0xEDB88320
