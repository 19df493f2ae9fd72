"""Tar archives, as far as models need them: the place of each member's bytes. Nothing is unpacked, nothing is written.

    [header: 512 bytes] [data, padded to 512] ... [two blocks of zeros]

A header's checksum must be right; a name longer than its field comes from a GNU or pax member in front of it. What
follows the zeros is no longer part of the archive for any reader. Reference: POSIX.1-2024 pax (ustar and extended
headers), GNU tar's manual (basic tar format); proven against Python's tarfile.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import MIB
from weighbridge.io.source import Source

BLOCK: Final = 512
# A name in a pax or GNU header: PATH_MAX is 4096 bytes, and a pax header may contain more than the name.
_EXTENDED: Final = MIB
_SHORT: Final = 8 * BLOCK
_REGULAR: Final = frozenset(b"\x0007")
_LINKS: Final = {0x31: "hard link", 0x32: "symbolic link"}
_OTHER: Final = {0x33: "character device", 0x34: "block device", 0x35: "folder", 0x36: "pipe"}
_SPARSE: Final = 0x53


_HIGH: Final = bytes(range(128, 256))


class TarMember(NamedTuple):
    """One member: its header at `at`, its data in bytes [start, start + size). `kind`: file, or another type.
    `link`: the target of a link."""

    name: str
    kind: str
    at: int
    start: int
    size: int
    link: str = ""


class _Overrides(NamedTuple):
    """What extended headers before a member override in its own header."""

    name: str | None = None
    link: str | None = None
    size: int | None = None
    sparse: bool = False

    def over(self, common: _Overrides) -> _Overrides:
        """The overrides of this member, else those of all members."""
        return _Overrides(
            common.name if self.name is None else self.name, common.link if self.link is None else self.link,
            common.size if self.size is None else self.size, self.sparse or common.sparse,
        )  # fmt: skip


def begins(source: Source) -> bool:
    """Whether a tar begins here: its first header's checksum is right."""
    return source.size >= BLOCK and is_header(source.read(0, BLOCK))


def is_header(block: bytes) -> bool:
    """Whether the checksum of a header is right."""
    declared = _digits(block[148:156])
    return bool(declared) and declared in _sums(block)


def members(source: Source, *, strict: bool = True) -> Iterator[TarMember]:
    """The members, in order. FormatError at the first broken header; UnsupportedError for unsupported kinds of
    members. If not `strict`, a last member with truncated data is included, and long extended headers aren't read."""
    at, common, own = 0, _Overrides(), _Overrides()
    while source.size - at >= BLOCK:
        block = source.read(at, BLOCK)
        if not any(block):
            break
        _check(block, source, at)
        kind, size = block[156], _number(block[124:136], source, at)
        body, start = at + BLOCK, at
        if kind in b"xgLK":
            text = _extended(source, body, size, _EXTENDED if strict else _SHORT)
            at = body + -(-size // BLOCK) * BLOCK
            if kind == ord("g"):
                common = _pax(text, common, source, start)
            else:
                own = _pax(text, own, source, start) if kind == ord("x") else _gnu(text, own, kind)
            continue
        member = _member(block, own.over(common), start, size)
        if strict and member.size > source.size - body:
            raise FormatError("a member's data extends beyond the file", path=source.name, offset=start,
                              field=repr(member.name), found=member.size)  # fmt: skip
        yield member
        at, own = body + -(-member.size // BLOCK) * BLOCK, _Overrides()
    else:
        if strict and at < source.size:
            raise FormatError("the archive ends inside a header", path=source.name, offset=at)


def _member(block: bytes, given: _Overrides, at: int, size: int) -> TarMember:
    kind = block[156]
    name = given.name if given.name is not None else _name(block)
    link = given.link if given.link is not None else _text(block[157:257])
    what = "file" if kind in _REGULAR else _LINKS.get(kind) or _OTHER.get(kind) or f"member of type {kind:#04x}"
    if kind == _SPARSE or given.sparse:
        what = "sparse file"
    if kind == 0 and name.endswith("/"):  # the mark of a folder in tars before POSIX
        what = "folder"
    length = given.size if given.size is not None else size
    holds = what in ("file", "sparse file") or what.startswith("member")
    return TarMember(name, what, at, at + BLOCK, length if holds else 0, link if kind in _LINKS else "")


def _name(block: bytes) -> str:
    prefix = _text(block[345:500]) if block[257:263] == b"ustar\0" else ""
    name = _text(block[:100])
    return f"{prefix}/{name}" if prefix else name


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _check(block: bytes, source: Source, at: int) -> None:
    if not is_header(block):
        raise FormatError("a header's checksum is wrong", path=source.name, offset=at, found=block[148:156])


def _sums(block: bytes) -> tuple[int, int]:
    """A header's checksum, and as some writers before POSIX summed: with signed bytes."""
    rest = block[:148] + 8 * b" " + block[156:]
    total = sum(rest)
    return total, total - 256 * (len(rest) - len(rest.translate(None, _HIGH)))


def _number(field: bytes, source: Source, at: int) -> int:
    """Octal digits, or (GNU) a big-endian number with the highest bit set."""
    number = _digits(field)
    if number is None or number < 0:
        raise FormatError("a member's size isn't an octal number", path=source.name, offset=at, found=field)
    return number


def _digits(field: bytes) -> int | None:
    """A number as Python's tarfile parses it, which is laxer than POSIX."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big", signed=field[0] == 0xFF)
    try:
        return int(field.partition(b"\0")[0].decode("ascii").strip() or "0", 8)
    except ValueError:
        return None


def is_canonical(block: bytes) -> bool:
    """Whether all readers agree on a header's size and checksum."""
    return all(field[0] in (0x80, 0xFF) or _OCTAL.fullmatch(field) for field in (block[124:136], block[148:156]))


_OCTAL: Final = re.compile(rb" *[0-7]*[ \0]*")


def _extended(source: Source, at: int, size: int, most: int) -> bytes:
    if size > most:
        raise UnsupportedError(
            f"{source.name}: an extended header of {size} bytes", hint="it isn't an archive of a model"
        )
    return source.read(at, size)


def _gnu(text: bytes, given: _Overrides, kind: int) -> _Overrides:
    value = _text(text)
    return given._replace(name=value) if kind == ord("L") else given._replace(link=value)


def _pax(text: bytes, given: _Overrides, source: Source, at: int) -> _Overrides:
    """Records `length key=value\\n`, the length counting itself."""
    place = 0
    while place < len(text):
        match = re.compile(rb"(\d{1,7}) ").match(text, place)
        end = place + int(match[1]) if match else 0
        if match is None or end <= match.end() or end > len(text) or text[end - 1 : end] != b"\n":
            raise FormatError("an extended header is damaged", path=source.name, offset=at + BLOCK + place)
        key, _, value = text[match.end() : end - 1].partition(b"=")
        given = _record(given, key, value, source, at)
        place = end
    return given


def _record(given: _Overrides, key: bytes, value: bytes, source: Source, at: int) -> _Overrides:
    if key == b"path":
        return given._replace(name=value.decode("utf-8", "surrogateescape").rstrip("/"))
    if key == b"linkpath":
        return given._replace(link=value.decode("utf-8", "surrogateescape"))
    if key == b"size":
        if not re.fullmatch(rb"\d{1,20}", value):
            raise FormatError("a size isn't a number", path=source.name, offset=at, found=value[:40])
        return given._replace(size=int(value))
    return given._replace(sparse=True) if key.startswith(b"GNU.sparse.") else given
