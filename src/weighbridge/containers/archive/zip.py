"""Zip archives, as far as weights need them: their members, each stored or deflated.

    [local header, name, extra, data (, descriptor)] ... [central directory] [end record]

A zip states each fact twice, in the local header and in the central directory, and readers that trust different ones
see different files. Here both must agree, members must not overlap, two members must not share a name, and the archive
must begin at the first byte. Counts are bounded by the remaining bytes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import SLAB, ZIP_TAIL
from weighbridge.base.words import plural
from weighbridge.containers.archive.zip_records import (
    CENTRAL,
    DEFLATED,
    DESCRIPTOR,
    ENCRYPTED,
    END,
    END64,
    END64_FORM,
    END_FORM,
    FULL16,
    FULL32,
    HAS_DESCRIPTOR,
    LOCAL,
    LOCAL_FORM,
    LOCATOR,
    LOCATOR_FORM,
    STORED,
    UNREADABLE,
    UTF8,
    ZipFault,
    central_entry,
    extra_fields,
    widened,
)  # fmt: skip
from weighbridge.containers.base import Region
from weighbridge.io.inflate import InflateSource
from weighbridge.io.source import Source, Window

LOCAL_HEADER: Final = "local header of "  # the label of a region begins with it, then comes the member's name
_NEAR: Final = 512


class ZipMember(NamedTuple):
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

    members: tuple[ZipMember, ...]
    entries: tuple[tuple[int, int, str], ...]
    tail: int


class _Entry(NamedTuple):
    """A directory entry with its name decoded and zip64 numbers in their places."""

    name: str
    raw: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    at: int


def read(source: Source) -> Archive:
    """The members of an archive. FormatError if it contradicts itself, UnsupportedError for unsupported features."""
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
        raise FormatError("the directory's count is wrong", code=ZipFault.COUNT, path=source.name, offset=tail,
                          expected=len(entries), found=count)  # fmt: skip
    members = sorted((_member(source, e, start) for e in entries), key=lambda m: m.at)
    names: set[str] = set()
    at = 0
    for m in members:
        if m.at < at:
            raise FormatError("two members overlap", code=ZipFault.OVERLAP, path=source.name, offset=m.at,
                              field=repr(m.name), expected=f">= {at}")  # fmt: skip
        if m.name in names:
            raise FormatError("two members have one name", code=ZipFault.DUPLICATE, path=source.name, offset=m.at,
                              field=repr(m.name))  # fmt: skip
        names.add(m.name)
        at = m.end
    if members and members[0].at:
        raise FormatError("the archive doesn't begin at the first byte", code=ZipFault.PREFIX, path=source.name,
                          offset=0, found=members[0].at)  # fmt: skip
    return Archive(tuple(members), tuple(places), tail)


class StoredMember(Window):
    """A member in an archive that was read."""

    def __init__(self, archive: Archive, source: Source, member: ZipMember, name: str) -> None:
        super().__init__(source, member.start, member.size, name)
        self.archive, self.container, self.member = archive, source, member


class DeflatedMember(InflateSource):
    """A member in an archive that was read."""

    def __init__(self, archive: Archive, source: Source, member: ZipMember, name: str) -> None:
        super().__init__(source, member.start, member.packed, member.size, name, member.crc)
        self.archive, self.container, self.member = archive, source, member


def open_member(source: Source, member: ZipMember, archive: Archive | None = None) -> Source:
    """A member's bytes: a window if it is stored, a decompressing source if it is deflated. With `archive`, a source
    that also has the other members."""
    name = f"{source.name}::{member.name}"
    if archive is not None:
        return (StoredMember if member.method == STORED else DeflatedMember)(archive, source, member, name)
    if member.method == STORED:
        return source.window(member.start, member.size, name)
    return InflateSource(source, member.start, member.packed, member.size, name, member.crc)


def read_member(source: Source, member: ZipMember, limit: int) -> bytes:
    """A small member's content. FormatError if it has more than `limit` bytes."""
    if member.size > limit:
        raise FormatError("a member is too large", path=source.name, offset=member.at, field=repr(member.name),
                          expected=f"at most {limit} bytes", found=member.size)  # fmt: skip
    with open_member(source, member) as inner:
        return inner.read(0, inner.size)


def checksum(source: Source, member: ZipMember) -> int:
    """The CRC-32 of a member's bytes. Reads all of them."""
    with open_member(source, member) as inner:
        crc = 0
        for at in range(0, inner.size, SLAB):
            crc = zlib.crc32(inner.read(at, min(SLAB, inner.size - at)), crc)
        return crc


# ---- the end, the directory -----------------------------------------------------------------------------------


def _find_directory(source: Source) -> tuple[int, int, int, int]:
    """The offset of the end records; the directory's number of entries, size and start."""
    base = max(source.size - ZIP_TAIL, 0)
    tail = source.read(base, source.size - base)
    at = tail.rfind(END)
    # The comment may contain anything: the record is the one whose comment ends with the file.
    while at >= 0 and (len(tail) - at < 22 or at + 22 + int.from_bytes(tail[at + 20 : at + 22], "little") != len(tail)):
        at = tail.rfind(END, 0, at)
    if at < 0:
        hint = "is it cut off? download or copy it again" if source.head(4) == LOCAL else None
        raise FormatError("no end of a zip archive", code=ZipFault.NO_END, path=source.name, offset=source.size,
                          hint=hint)  # fmt: skip
    _, disk, first, on_disk, count, size, start, _ = END_FORM.unpack_from(tail, at)
    end = base + at
    if FULL16 in (disk, first, on_disk, count) or FULL32 in (size, start) or tail[max(at - 20, 0) : at][:4] == LOCATOR:
        plain = (disk, first, on_disk, count, size, start)
        end, disk, first, on_disk, count, size, start = _zip64_end(source, end, plain)
    if (disk, first) != (0, 0) or on_disk != count:
        raise UnsupportedError(f"{source.name}: a zip of several volumes", code=ZipFault.VOLUMES,
                               hint="join it first: zip -s 0")  # fmt: skip
    if start + size != end:
        raise FormatError("the directory isn't at the place in the end record", code=ZipFault.DIRECTORY,
                          path=source.name, offset=end, expected=f"end at {end}", found=start + size)  # fmt: skip
    return end, count, size, start


def _zip64_end(source: Source, end: int, plain: tuple[int, ...]) -> tuple[int, ...]:
    """The numbers of the zip64 end record if there is one, else the plain ones."""
    if end < 20 or source.read(end - 20, 4) != LOCATOR:
        return (end, *plain)
    _, _, at, _ = LOCATOR_FORM.unpack(source.read(end - 20, 20))
    if at + END64_FORM.size > end - 20:
        raise FormatError("the zip64 end record is outside the file", code=ZipFault.ZIP64, path=source.name,
                          offset=end - 20, found=at)  # fmt: skip
    magic, length, _, _, *wide = END64_FORM.unpack(source.read(at, END64_FORM.size))
    if magic != END64 or at + 12 + length != end - 20:
        raise FormatError("the zip64 end record is damaged", code=ZipFault.ZIP64, path=source.name, offset=at)
    for short, long in zip(plain, wide, strict=True):
        if short not in (long, FULL16, FULL32):
            raise FormatError("the two end records differ", code=ZipFault.ZIP64, path=source.name, offset=at,
                              expected=short, found=long)  # fmt: skip
    return (at, *wide)


def _directory_entry(raw: bytes, at: int, base: int, path: str) -> tuple[_Entry, int]:
    entry = central_entry(raw, at)
    if entry is None:
        raise FormatError("no directory entry", code=ZipFault.DIRECTORY, path=path, offset=base + at,
                          expected=CENTRAL, found=raw[at : at + 4])  # fmt: skip
    if entry.end > len(raw):
        raise FormatError("a directory entry is cut off", code=ZipFault.DIRECTORY, path=path, offset=base + at)
    size, packed, place, disk = _widened(entry.extra, (entry.size, entry.packed, entry.at), entry.disk, path, base + at)
    if disk:
        raise UnsupportedError(f"{path}: a zip of several volumes", code=ZipFault.VOLUMES,
                               hint="join it first: zip -s 0")  # fmt: skip
    try:
        name = entry.name.decode("utf-8" if entry.flags & UTF8 else "cp437")
    except UnicodeDecodeError:
        raise FormatError("a member's name is not UTF-8", code=ZipFault.NAME, path=path, offset=base + at,
                          found=entry.name) from None  # fmt: skip
    return _Entry(name, entry.name, entry.flags, entry.method, entry.crc, packed, size, place), entry.end


def _widened(extra: bytes, numbers: tuple[int, ...], disk: int, path: str, place: int) -> list[int]:
    """Sizes, offset and disk as 64-bit numbers. FormatError if one is missing."""
    if FULL32 not in numbers and disk != FULL16:
        return [*numbers, disk]
    if any(len(value) < length for _, length, value in extra_fields(extra)):
        raise FormatError("an extra field is cut off", code=ZipFault.DIRECTORY, path=path, offset=place)
    wide = [n for n in widened(extra, numbers, disk) if n is not None]
    if len(wide) <= len(numbers):
        raise FormatError("a zip64 number is missing", code=ZipFault.ZIP64, path=path, offset=place)
    return wide


# ---- members --------------------------------------------------------------------------------------------------


def _member(source: Source, e: _Entry, directory: int) -> ZipMember:
    """The member of a directory entry, after its local header has confirmed it."""
    path = source.name
    if e.flags & UNREADABLE:
        raise UnsupportedError(f"{path}: member {e.name!r} is encrypted or a patch", code=ZipFault.ENCRYPTED,
                               hint="unpack it with unzip first")  # fmt: skip
    if not e.raw or b"\0" in e.raw:  # some readers cut a name there, others don't
        raise FormatError("a member has no proper name", code=ZipFault.NAME, path=path, offset=e.at, field="name",
                          found=e.raw)  # fmt: skip
    if e.method not in (STORED, DEFLATED):
        raise UnsupportedError(f"{path}: member {e.name!r} is compressed by method {e.method}", code=ZipFault.METHOD,
                               hint="store or deflate it")  # fmt: skip
    if e.at + LOCAL_FORM.size > directory:
        raise FormatError("a member is outside the archive's data", code=ZipFault.OUTSIDE, path=path, offset=e.at,
                          field=repr(e.name), expected=f"< {directory}")  # fmt: skip
    # One read for the header, and often for the data and its descriptor too: archives have 100,000 small members.
    near = source.read(e.at, min(_NEAR, directory - e.at))
    fields = LOCAL_FORM.unpack_from(near)
    magic, _, flags, method, _, _, crc, packed, size, n_name, n_extra = fields
    start = e.at + LOCAL_FORM.size + n_name + n_extra
    if start + e.packed > directory:
        raise FormatError("a member's data extends outside the archive's data", code=ZipFault.OUTSIDE, path=path,
                          offset=start, field=repr(e.name), found=e.packed)  # fmt: skip
    if start - e.at > len(near):
        near = source.read(e.at, start - e.at)
    middle = LOCAL_FORM.size + n_name
    name, extra = near[LOCAL_FORM.size : middle], near[middle : middle + n_extra]
    size, packed, _, _ = _widened(extra, (size, packed, 0), 0, path, e.at)
    local = (magic, name, method, flags & (ENCRYPTED | UTF8))
    if local != (LOCAL, e.raw, e.method, e.flags & (ENCRYPTED | UTF8)):
        raise _disagree(e, path, "name, method or flags", local)
    numbers, listed = (crc, packed, size), (e.crc, e.packed, e.size)
    # With a descriptor the local header may leave them open.
    open_ones = flags & HAS_DESCRIPTOR and all(n in (number, 0) for n, number in zip(numbers, listed, strict=True))
    if numbers != listed and not open_ones:
        raise _disagree(e, path, "checksum and sizes", numbers, listed)
    if e.method == STORED and e.packed != e.size:
        raise FormatError("a stored member has two sizes", code=ZipFault.LOCAL_HEADER, path=path, offset=e.at,
                          expected=e.size, found=e.packed)  # fmt: skip
    end = start + e.packed
    if flags & HAS_DESCRIPTOR:
        inside = near[end - e.at : end - e.at + 24]
        end += _descriptor(inside if len(inside) == 24 else source.read(end, min(24, directory - end)), e)
    return ZipMember(e.name, e.method, e.crc, e.packed, e.size, e.at, start, end)


def _disagree(e: _Entry, path: str, facts: str, local: object, listed: object = None) -> FormatError:
    message = f"local header and directory disagree on a member's {facts}"
    return FormatError(message, path=path, offset=e.at, field=repr(e.name), expected=listed, found=local,
                       code=ZipFault.LOCAL_HEADER)  # fmt: skip


def _descriptor(data: bytes, e: _Entry) -> int:
    """The length of the descriptor at the beginning of `data`: with or without its mark, with 32- or 64-bit sizes."""
    for mark in (DESCRIPTOR, b""):
        for form in ("<3I", "<IQQ"):
            try:
                descriptor = mark + struct.pack(form, e.crc, e.packed, e.size)
            except struct.error:  # more than 32 bits
                continue
            if data.startswith(descriptor):
                return len(descriptor)
    return 0


def regions(source: Source, inner: Callable[[Source, ZipMember], list[Region]]) -> list[Region]:
    """Every byte of an archive, named; `inner` names the bytes of a member's data. Unreadable bytes are "unknown"."""
    try:
        archive = read(source)
    except (FormatError, UnsupportedError):
        return [Region(0, source.size, "unknown")] if source.size else []
    out: list[Region] = []
    for m in archive.members:
        at = out[-1].end if out else 0
        if at < m.at:
            out.append(Region(at, m.at, "unknown"))
        out.append(Region(m.at, m.start, "header", f"{LOCAL_HEADER}{m.name}"))
        out += inner(source, m) if m.packed else []
        if m.end > m.start + m.packed:
            out.append(Region(m.start + m.packed, m.end, "checksum", f"descriptor of {m.name}"))
    first = archive.entries[0][0] if archive.entries else archive.tail
    at = out[-1].end if out else 0
    if at < first:
        out.append(Region(at, first, "unknown"))
    out += [Region(start, end, "name", f"directory entry of {name}") for start, end, name in archive.entries]
    return [
        *out,
        Region(archive.tail, source.size, "header", "end of the archive", plural(len(archive.members), "member")),
    ]
