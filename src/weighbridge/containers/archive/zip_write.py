"""The records of a written zip archive: stored members, no clock in the bytes, checksums known before or after."""

from __future__ import annotations

import struct
from functools import cache
from typing import Final, NamedTuple

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
)

# MS-DOS 1980-01-01, 00:00: no clock in the bytes.
_TIME, _DATE = 0, 0x21
_VERSION, _VERSION64 = 20, 45
_UNIX: Final = 3 << 8
_MODE: Final = 0o100644 << 16
_PAD_ID: Final = int.from_bytes(b"FB", "little")  # the extra field by which torch.save aligns its members


class NewMember(NamedTuple):
    """A stored member to be written: local header at `at`, its data in bytes [start, start + size)."""

    name: str
    size: int
    at: int
    start: int


def place(name: str, size: int, at: int, align: int) -> NewMember:
    """A stored member whose local header is at `at` and whose data starts at a multiple of `align`."""
    bare = at + LOCAL_FORM.size + len(name.encode()) + len(_zip64(size, size) if size >= FULL32 else b"")
    start = -(-bare // align) * align
    if 0 < start - bare < 4:  # an extra field has 4 bytes at least
        start += align
    return NewMember(name, size, at, start)


def _flags(name: str) -> int:
    return 0 if name.isascii() else UTF8


def _zip64(*numbers: int) -> bytes:
    return struct.pack(f"<HH{len(numbers)}Q", ZIP64, 8 * len(numbers), *numbers)


def local_header(m: NewMember, crc: int) -> bytes:
    """A member's bytes [at, start)."""
    raw, wide = m.name.encode(), m.size >= FULL32
    size = FULL32 if wide else m.size
    extra = _zip64(m.size, m.size) if wide else b""
    pad = m.start - m.at - LOCAL_FORM.size - len(raw) - len(extra)
    if pad:
        extra += struct.pack("<HH", _PAD_ID, pad - 4).ljust(pad, b"Z")
    version = _VERSION64 if wide else _VERSION
    form = (LOCAL, version, _flags(m.name), STORED, _TIME, _DATE, crc, size, size, len(raw), len(extra))
    return LOCAL_FORM.pack(*form) + raw + extra


def directory_entry(m: NewMember, crc: int) -> bytes:
    raw = m.name.encode()
    numbers = [n for n in (m.size, m.size, m.at) if n >= FULL32]
    extra = _zip64(*numbers) if numbers else b""
    version = _VERSION64 if numbers else _VERSION
    size, at = min(m.size, FULL32), min(m.at, FULL32)
    head = (CENTRAL, _UNIX | version, version, _flags(m.name), STORED, _TIME, _DATE, crc, size, size)
    return CENTRAL_FORM.pack(*head, len(raw), len(extra), 0, 0, 0, _MODE, at) + raw + extra


def end_records(count: int, start: int, size: int) -> bytes:
    """The end records after a directory of `count` entries in bytes [start, start + size)."""
    plain = END_FORM.pack(END, 0, 0, min(count, FULL16), min(count, FULL16), min(size, FULL32), min(start, FULL32), 0)
    if count < FULL16 and size < FULL32 and start < FULL32:
        return plain
    wide = END64_FORM.pack(END64, 44, _UNIX | _VERSION64, _VERSION64, 0, 0, count, count, size, start)
    return wide + LOCATOR_FORM.pack(LOCATOR, 0, start + size, 1) + plain


# ---- writing as torch does: no sizes in the local header, a descriptor behind the data -------------------------

LOCAL_SIZE: Final = LOCAL_FORM.size


def zip64_field(size: int, at: int) -> bytes:
    """The extra field for values beyond 32 bits: both sizes and the offset."""
    numbers = (*((size, size) if size >= FULL32 else ()), *((at,) if at >= FULL32 else ()))
    return _zip64(*numbers) if numbers else b""


def local_form(flags: int, name: int, extra: int) -> bytes:
    """The fixed part of a local header that leaves checksum and sizes open; `name` and `extra` are lengths."""
    return LOCAL_FORM.pack(LOCAL, 0, flags, STORED, 0, 0, 0, 0, 0, name, extra)


def descriptor(crc: int, size: int, *, wide: bool) -> bytes:
    return DESCRIPTOR + struct.pack("<IQQ" if wide else "<3I", crc, size, size)


def directory_form(flags: int, crc: int, size: int, at: int, name: int, extra: int) -> bytes:
    """The fixed part of a directory entry."""
    size, at = min(size, FULL32), min(at, FULL32)
    return CENTRAL_FORM.pack(CENTRAL, 0, 0, flags, STORED, 0, 0, crc, size, size, name, extra, 0, 0, 0, 0, at)


def end_records64(count: int, start: int, size: int, made_by: int) -> bytes:
    """The end records with the zip64 ones, whether they are needed or not."""
    wide = END64_FORM.pack(END64, 44, made_by, _VERSION64, 0, 0, count, count, size, start)
    few = min(count, FULL16)
    plain = END_FORM.pack(END, 0, 0, few, few, min(size, FULL32), min(start, FULL32), 0)
    return wide + LOCATOR_FORM.pack(LOCATOR, 0, start + size, 1) + plain


# ---- checksums ------------------------------------------------------------------------------------------------


def crc_joined(first: int, second: int, length: int) -> int:
    """The CRC-32 of two stretches one after the other, from the CRC of each and the second one's length.

    A CRC is a polynomial over GF(2), the highest bit standing for x^0: `length` zero bytes behind the first stretch
    multiply its CRC by x^(8 * length), modulo the CRC's own polynomial (zlib's crc32_combine, which Python lacks)."""
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
