"""Zip archives, as far as weights need them: their members, each stored or deflated, and the pieces of a written one.

    [local header, name, extra, data (, descriptor)] ... [central directory] [end record]

A zip tells each fact twice, in the local header and in the central directory, and readers that believe different ones
see different files. Here both must agree, members must not overlap, two members must not share a name, and the archive
must begin at the first byte. Counts are bounded by the bytes left. Reference: PKWARE APPNOTE 6.3.10 (4.3.7 local
header, 4.3.9 descriptor, 4.3.12 directory, 4.3.14-16 end records, 4.5.3 zip64).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import SLAB, ZIP_TAIL
from weighbridge.containers.base import Region
from weighbridge.io.inflate import InflateSource
from weighbridge.io.source import Source

STORED, DEFLATED = 0, 8
_LOCAL, _CENTRAL, _END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_END64, _LOCATOR, _DESCRIPTOR = b"PK\x06\x06", b"PK\x06\x07", b"PK\x07\x08"
_LOCAL_FORM: Final = struct.Struct("<4s5H3I2H")
_CENTRAL_FORM: Final = struct.Struct("<4s6H3I5H2I")
_END_FORM: Final = struct.Struct("<4s4H2IH")
_END64_FORM: Final = struct.Struct("<4sQ2H2I4Q")
_LOCATOR_FORM: Final = struct.Struct("<4sIQI")
_ENCRYPTED, _HAS_DESCRIPTOR, _PATCH, _STRONG, _UTF8, _MASKED = 1, 1 << 3, 1 << 5, 1 << 6, 1 << 11, 1 << 13
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_ZIP64_ID: Final = 1
_NEAR: Final = 512


class Member(NamedTuple):
    """One file of an archive: local header at `at`, its data in bytes [start, start + packed), then perhaps a
    descriptor up to `end`."""

    name: str
    method: int
    crc: int
    packed: int
    size: int
    at: int
    start: int
    end: int


class Archive(NamedTuple):
    """`members` in the order of their bytes; directory entries at `entries` (start, end, name); end records from
    `tail` on."""

    members: tuple[Member, ...]
    entries: tuple[tuple[int, int, str], ...]
    tail: int


class _Entry(NamedTuple):
    """A directory entry, with zip64 numbers in their places."""

    name: str
    raw: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    at: int


def read(source: Source) -> Archive:
    """The members of an archive. FormatError where it contradicts itself; UnsupportedError for what can't be read."""
    tail, count, size, start = _find_directory(source)
    raw = source.read(start, size)
    entries: list[_Entry] = []
    places: list[tuple[int, int, str]] = []
    at = 0
    while at < size:
        entry, end = _directory_entry(raw, at, start, source.name)
        entries.append(entry)
        places.append((start + at, start + end, entry.name))
        at = end
    if len(entries) != count:
        raise FormatError(
            "the directory's count is wrong", path=source.name, offset=tail, expected=len(entries), found=count
        )
    members = sorted((_member(source, e, start) for e in entries), key=lambda m: m.at)
    _check_members(members, source.name)
    return Archive(tuple(members), tuple(places), tail)


def open_member(source: Source, member: Member) -> Source:
    """A member's bytes: a window where it is stored, an unpacking source where it is deflated."""
    name = f"{source.name}::{member.name}"
    if member.method == STORED:
        return source.window(member.start, member.size, name)
    return InflateSource(source, member.start, member.packed, member.size, name, member.crc)


def checksum(source: Source, member: Member) -> int:
    """The CRC-32 of a member's bytes, all of which are read."""
    with open_member(source, member) as inner:
        crc = 0
        for at in range(0, inner.size, SLAB):
            crc = zlib.crc32(inner.read(at, min(SLAB, inner.size - at)), crc)
        return crc


# ---- the end, the directory -----------------------------------------------------------------------------------


def _find_directory(source: Source) -> tuple[int, int, int, int]:
    """Where the end records begin; the directory's number of entries, size and start."""
    base = max(source.size - ZIP_TAIL, 0)
    tail = source.read(base, source.size - base)
    at = tail.rfind(_END)
    # The comment may hold anything: the record is the one whose comment ends with the file.
    while at >= 0 and (len(tail) - at < 22 or at + 22 + int.from_bytes(tail[at + 20 : at + 22], "little") != len(tail)):
        at = tail.rfind(_END, 0, at)
    if at < 0:
        hint = "is it cut off? download or copy it again" if source.head(4) == _LOCAL else None
        raise FormatError("no end of a zip archive", path=source.name, offset=source.size, hint=hint)
    _, disk, first, here, count, size, start, _ = _END_FORM.unpack_from(tail, at)
    end = base + at
    if _FULL16 in (disk, first, here, count) or _FULL32 in (size, start) or tail[max(at - 20, 0) : at][:4] == _LOCATOR:
        end, disk, first, here, count, size, start = _zip64_end(source, end, (disk, first, here, count, size, start))
    if (disk, first) != (0, 0) or here != count:
        raise UnsupportedError(f"{source.name}: a zip of several volumes", hint="join it first: zip -s 0")
    if start + size != end:
        raise FormatError("the directory isn't where the end record says", path=source.name, offset=end,
                          expected=f"end at {end}", found=start + size)  # fmt: skip
    return end, count, size, start


def _zip64_end(source: Source, end: int, plain: tuple[int, ...]) -> tuple[int, ...]:
    """The zip64 end record's numbers where there is one, else the plain ones."""
    if end < 20 or source.read(end - 20, 4) != _LOCATOR:
        return (end, *plain)
    _, _, at, _ = _LOCATOR_FORM.unpack(source.read(end - 20, 20))
    if at + _END64_FORM.size > end - 20:
        raise FormatError("the zip64 end record lies outside", path=source.name, offset=end - 20, found=at)
    magic, length, _, _, disk, first, here, count, size, start = _END64_FORM.unpack(source.read(at, _END64_FORM.size))
    if magic != _END64 or at + 12 + length != end - 20:
        raise FormatError("the zip64 end record is damaged", path=source.name, offset=at)
    wide = (disk, first, here, count, size, start)
    for short, long in zip(plain, wide, strict=True):
        if short not in (long, _FULL16, _FULL32):
            raise FormatError("the two end records differ", path=source.name, offset=at, expected=short, found=long)
    return (at, *wide)


def _directory_entry(raw: bytes, at: int, base: int, path: str) -> tuple[_Entry, int]:
    if len(raw) - at < _CENTRAL_FORM.size or not raw.startswith(_CENTRAL, at):
        raise FormatError("no directory entry", path=path, offset=base + at, expected=_CENTRAL, found=raw[at : at + 4])
    fields = _CENTRAL_FORM.unpack_from(raw, at)
    _, _, _, flags, method, _, _, crc, packed, size, n_name, n_extra, n_comment, disk, _, _, place = fields
    middle = at + _CENTRAL_FORM.size + n_name
    end = middle + n_extra + n_comment
    if end > len(raw):
        raise FormatError("a directory entry is cut off", path=path, offset=base + at)
    extra = raw[middle : middle + n_extra]
    size, packed, place, disk = _widened(extra, (size, packed, place), disk, path, base + at)
    if disk:
        raise UnsupportedError(f"{path}: a zip of several volumes", hint="join it first: zip -s 0")
    raw_name = raw[at + _CENTRAL_FORM.size : middle]
    try:
        name = raw_name.decode("utf-8" if flags & _UTF8 else "cp437")
    except UnicodeDecodeError:
        raise FormatError("a member's name is not UTF-8", path=path, offset=base + at, found=raw_name) from None
    return _Entry(name, raw_name, flags, method, crc, packed, size, place), end


def _extras(extra: bytes, path: str, place: int) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if at + 4 + length > len(extra):
            raise FormatError("an extra field is cut off", path=path, offset=place)
        yield kind, extra[at + 4 : at + 4 + length]
        at += 4 + length


def _widened(extra: bytes, fields: tuple[int, ...], disk: int, path: str, place: int) -> tuple[int, ...]:
    """Sizes, place and disk, those that are saturated taken from the zip64 field in its fixed order (4.5.3)."""
    if _FULL32 not in fields and disk != _FULL16:
        return (*fields, disk)
    wide = b"".join(value for kind, value in _extras(extra, path, place) if kind == _ZIP64_ID)
    out, at = [], 0
    for value, full, width in (*((f, _FULL32, 8) for f in fields), (disk, _FULL16, 4)):
        if value == full and at + width <= len(wide):
            value, at = int.from_bytes(wide[at : at + width], "little"), at + width
        elif value == full:
            raise FormatError("a zip64 number is missing", path=path, offset=place)
        out.append(value)
    return tuple(out)


# ---- members --------------------------------------------------------------------------------------------------


def _member(source: Source, e: _Entry, directory: int) -> Member:
    """The member of a directory entry, after its local header has confirmed it."""
    path = source.name
    if e.flags & (_ENCRYPTED | _STRONG | _MASKED | _PATCH):
        raise UnsupportedError(f"{path}: member {e.name!r} is encrypted or a patch", hint="unpack it with unzip first")
    if not e.raw or b"\0" in e.raw:  # some readers cut a name there, others don't
        raise FormatError("a member has no proper name", path=path, offset=e.at, field="name", found=e.raw)
    if e.method not in (STORED, DEFLATED):
        raise UnsupportedError(
            f"{path}: member {e.name!r} is compressed by method {e.method}", hint="store or deflate it"
        )
    if e.at + _LOCAL_FORM.size > directory:
        raise FormatError(
            "a member lies outside", path=path, offset=e.at, field=repr(e.name), expected=f"< {directory}"
        )
    # One read for the header, and often for the data and its descriptor too: archives have 100,000 small members.
    near = source.read(e.at, min(_NEAR, directory - e.at))
    fields = _LOCAL_FORM.unpack_from(near)
    magic, _, flags, method, _, _, crc, packed, size, n_name, n_extra = fields
    start = e.at + _LOCAL_FORM.size + n_name + n_extra
    if start + e.packed > directory:
        raise FormatError("a member's data lies outside", path=path, offset=start, field=repr(e.name), found=e.packed)
    if start - e.at > len(near):
        near = source.read(e.at, start - e.at)
    middle = _LOCAL_FORM.size + n_name
    name, extra = near[_LOCAL_FORM.size : middle], near[middle : middle + n_extra]
    size, packed, _, _ = _widened(extra, (size, packed, 0), 0, path, e.at)
    told = (magic, name, method, flags & (_ENCRYPTED | _UTF8))
    if told != (_LOCAL, e.raw, e.method, e.flags & (_ENCRYPTED | _UTF8)):
        raise _disagree(e, path, "name, method or flags", told)
    numbers, wanted = (crc, packed, size), (e.crc, e.packed, e.size)
    # With a descriptor the local header may leave them open.
    if numbers != wanted and not (
        flags & _HAS_DESCRIPTOR and all(n in (w, 0) for n, w in zip(numbers, wanted, strict=True))
    ):
        raise _disagree(e, path, "checksum and sizes", numbers, wanted)
    if e.method == STORED and e.packed != e.size:
        raise FormatError("a stored member has two sizes", path=path, offset=e.at, expected=e.size, found=e.packed)
    end = start + e.packed
    if flags & _HAS_DESCRIPTOR:
        inside = near[end - e.at : end - e.at + 24]
        end += _descriptor(inside if len(inside) == 24 else source.read(end, min(24, directory - end)), e)
    return Member(e.name, e.method, e.crc, e.packed, e.size, e.at, start, end)


def _disagree(e: _Entry, path: str, what: str, found: object, expected: object = None) -> FormatError:
    words = f"local header and directory disagree on a member's {what}"
    return FormatError(words, path=path, offset=e.at, field=repr(e.name), expected=expected, found=found)


def _descriptor(there: bytes, e: _Entry) -> int:
    """The length of the descriptor that `there` begins with: with or without its mark, with 32- or 64-bit sizes."""
    for mark in (_DESCRIPTOR, b""):
        for form in ("<3I", "<IQQ"):
            try:
                wanted = mark + struct.pack(form, e.crc, e.packed, e.size)
            except struct.error:  # more than 32 bits
                continue
            if there.startswith(wanted):
                return len(wanted)
    return 0


def _check_members(members: list[Member], path: str) -> None:
    seen: set[str] = set()
    at = 0
    for m in members:
        if m.at < at:
            raise FormatError("two members overlap", path=path, offset=m.at, field=repr(m.name), expected=f">= {at}")
        if m.name in seen:
            raise FormatError("two members have one name", path=path, offset=m.at, field=repr(m.name))
        seen.add(m.name)
        at = m.end
    if members and members[0].at:
        raise FormatError("the archive doesn't begin at the first byte", path=path, offset=0, found=members[0].at)


def regions(source: Source, inner: Callable[[Source, Member], list[Region]]) -> list[Region]:
    """Every byte of an archive, named; `inner` names those of a member's data, where it has any. Where the archive
    can't be read, what is unknown is called so."""
    try:
        archive = read(source)
    except (FormatError, UnsupportedError):
        return [Region(0, source.size, "unknown")] if source.size else []
    out: list[Region] = []
    for m in archive.members:
        at = out[-1].end if out else 0
        if at < m.at:
            out.append(Region(at, m.at, "unknown"))
        out.append(Region(m.at, m.start, "header", f"local header of {m.name}"))
        out += inner(source, m) if m.packed else []
        if m.end > m.start + m.packed:
            out.append(Region(m.start + m.packed, m.end, "checksum", f"descriptor of {m.name}"))
    first = archive.entries[0][0] if archive.entries else archive.tail
    at = out[-1].end if out else 0
    if at < first:
        out.append(Region(at, first, "unknown"))
    out += [Region(start, end, "name", f"directory entry of {name}") for start, end, name in archive.entries]
    return [*out, Region(archive.tail, source.size, "header", "end of the archive", f"{len(archive.members)} members")]


# ---- writing --------------------------------------------------------------------------------------------------

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
    """A stored member whose local header stands at `at` and whose data starts at a multiple of `align`."""
    bare = at + _LOCAL_FORM.size + len(name.encode()) + len(_zip64(size, size) if size >= _FULL32 else b"")
    start = -(-bare // align) * align
    if 0 < start - bare < 4:  # an extra field has 4 bytes at least
        start += align
    return NewMember(name, size, at, start)


def _flags(name: str) -> int:
    return 0 if name.isascii() else _UTF8


def _zip64(*numbers: int) -> bytes:
    return struct.pack(f"<HH{len(numbers)}Q", _ZIP64_ID, 8 * len(numbers), *numbers)


def local_header(m: NewMember, crc: int) -> bytes:
    """A member's bytes [at, start)."""
    raw, wide = m.name.encode(), m.size >= _FULL32
    size = _FULL32 if wide else m.size
    extra = _zip64(m.size, m.size) if wide else b""
    pad = m.start - m.at - _LOCAL_FORM.size - len(raw) - len(extra)
    if pad:
        extra += struct.pack("<HH", _PAD_ID, pad - 4).ljust(pad, b"Z")
    version = _VERSION64 if wide else _VERSION
    form = (_LOCAL, version, _flags(m.name), STORED, _TIME, _DATE, crc, size, size, len(raw), len(extra))
    return _LOCAL_FORM.pack(*form) + raw + extra


def directory_entry(m: NewMember, crc: int) -> bytes:
    raw = m.name.encode()
    numbers = [n for n in (m.size, m.size, m.at) if n >= _FULL32]
    extra = _zip64(*numbers) if numbers else b""
    version = _VERSION64 if numbers else _VERSION
    size, at = min(m.size, _FULL32), min(m.at, _FULL32)
    head = (_CENTRAL, _UNIX | version, version, _flags(m.name), STORED, _TIME, _DATE, crc, size, size)
    return _CENTRAL_FORM.pack(*head, len(raw), len(extra), 0, 0, 0, _MODE, at) + raw + extra


def end_records(count: int, start: int, size: int) -> bytes:
    """What follows a directory of `count` entries in bytes [start, start + size)."""
    plain = _END_FORM.pack(
        _END, 0, 0, min(count, _FULL16), min(count, _FULL16), min(size, _FULL32), min(start, _FULL32), 0
    )
    if count < _FULL16 and size < _FULL32 and start < _FULL32:
        return plain
    wide = _END64_FORM.pack(_END64, 44, _UNIX | _VERSION64, _VERSION64, 0, 0, count, count, size, start)
    return wide + _LOCATOR_FORM.pack(_LOCATOR, 0, start + size, 1) + plain


# ---- writing as torch does: no sizes in the local header, a descriptor behind the data -------------------------

LOCAL_SIZE: Final = _LOCAL_FORM.size


def zip64_field(size: int, at: int) -> bytes:
    """The extra field of what doesn't fit 32 bits: both sizes, the place."""
    numbers = (*((size, size) if size >= _FULL32 else ()), *((at,) if at >= _FULL32 else ()))
    return _zip64(*numbers) if numbers else b""


def local_form(flags: int, name: int, extra: int) -> bytes:
    """The fixed part of a local header that leaves checksum and sizes open; `name` and `extra` are lengths."""
    return _LOCAL_FORM.pack(_LOCAL, 0, flags, STORED, 0, 0, 0, 0, 0, name, extra)


def descriptor(crc: int, size: int, *, wide: bool) -> bytes:
    return _DESCRIPTOR + struct.pack("<IQQ" if wide else "<3I", crc, size, size)


def directory_form(flags: int, crc: int, size: int, at: int, name: int, extra: int) -> bytes:
    """The fixed part of a directory entry."""
    size, at = min(size, _FULL32), min(at, _FULL32)
    return _CENTRAL_FORM.pack(_CENTRAL, 0, 0, flags, STORED, 0, 0, crc, size, size, name, extra, 0, 0, 0, 0, at)


def end_records64(count: int, start: int, size: int, made_by: int) -> bytes:
    """The end records with the zip64 ones, whether they are needed or not."""
    wide = _END64_FORM.pack(_END64, 44, made_by, _VERSION64, 0, 0, count, count, size, start)
    few = min(count, _FULL16)
    plain = _END_FORM.pack(_END, 0, 0, few, few, min(size, _FULL32), min(start, _FULL32), 0)
    return wide + _LOCATOR_FORM.pack(_LOCATOR, 0, start + size, 1) + plain


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
        a, b = a << 1 & _FULL32, b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


_POLYNOMIAL: Final = 0xEDB88320
