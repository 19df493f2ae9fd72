"""Tar archives, as far as models need them: the place of each member's bytes. Nothing is unpacked or written.

    [header: 512 bytes] [data, padded to 512] ... [two blocks of zeros]

A header's checksum must be right; a GNU or pax member before it has a name that is longer than its field. No reader
looks at the bytes after the zeros. Reference: POSIX.1-2024 pax (ustar and extended headers), GNU tar's manual (basic
tar format); tested against Python's tarfile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import MIB
from weighbridge.containers.base import Region
from weighbridge.io.source import Source

BLOCK: Final = 512
# A name in a pax or GNU header: PATH_MAX is 4096 bytes, and a pax header may contain more than the name.
_EXTENDED: Final = MIB
_SHORT: Final = 8 * BLOCK
_REGULAR: Final = frozenset(b"\x0007")
_LINKS: Final = {0x31: "hard link", 0x32: "symbolic link"}
_OTHER: Final = {0x33: "character device", 0x34: "block device", 0x35: "folder", 0x36: "pipe"}
_SPARSE: Final = 0x53
_ZEROS: Final = 64 * BLOCK  # the most zeros between members


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
    """The fields of a header that extended headers before it override."""

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
    summed = block[:148] + 8 * b" " + block[156:]
    total = sum(summed)
    signed = total - 256 * (len(summed) - len(summed.translate(None, _HIGH)))  # as some writers before POSIX
    return bool(declared) and declared in (total, signed)


def members(source: Source, *, strict: bool = True) -> Iterator[TarMember]:
    """The members, in order. FormatError at the first broken header; UnsupportedError for unsupported kinds of
    members. If not `strict`, a last member with truncated data is included, and long extended headers aren't read."""
    at, common, single = 0, _Overrides(), _Overrides()
    while source.size - at >= BLOCK:
        block = source.read(at, BLOCK)
        if not any(block):
            break
        if not is_header(block):
            raise FormatError("a header's checksum is wrong", path=source.name, offset=at, found=block[148:156])
        kind, size = block[156], _digits(block[124:136])
        if size is None or size < 0:
            raise FormatError("a member's size isn't an octal number", path=source.name, offset=at,
                              found=block[124:136])  # fmt: skip
        body, start = at + BLOCK, at
        if kind in b"xgLK":
            if size > (_EXTENDED if strict else _SHORT):
                raise UnsupportedError(f"{source.name}: an extended header of {size} bytes",
                                       hint="it isn't an archive of a model")  # fmt: skip
            text = source.read(body, size)
            at = body + -(-size // BLOCK) * BLOCK
            if kind == ord("g"):
                common = _pax(text, common, source, start)
            elif kind == ord("x"):
                single = _pax(text, single, source, start)
            elif kind == ord("L"):
                single = single._replace(name=_text(text))
            else:
                single = single._replace(link=_text(text))
            continue
        overrides = single.over(common)
        kind, name = block[156], overrides.name
        if name is None:
            prefix = _text(block[345:500]) if block[257:263] == b"ustar\0" else ""
            name = f"{prefix}/{_text(block[:100])}" if prefix else _text(block[:100])
        link = overrides.link if overrides.link is not None else _text(block[157:257])
        label = "file" if kind in _REGULAR else _LINKS.get(kind) or _OTHER.get(kind) or f"member of type {kind:#04x}"
        if kind == _SPARSE or overrides.sparse:
            label = "sparse file"
        if kind == 0 and name.endswith("/"):  # the mark of a folder in tars before POSIX
            label = "folder"
        length = overrides.size if overrides.size is not None else size
        has_data = label in ("file", "sparse file") or label.startswith("member")
        member = TarMember(name, label, start, start + BLOCK, length if has_data else 0, link if kind in _LINKS else "")
        if strict and member.size > source.size - body:
            raise FormatError("a member's data extends beyond the file", path=source.name, offset=start,
                              field=repr(member.name), found=member.size)  # fmt: skip
        yield member
        at, single = body + -(-member.size // BLOCK) * BLOCK, _Overrides()
    else:
        if strict and at < source.size:
            raise FormatError("the archive ends inside a header", path=source.name, offset=at)


def gap(source: Source, start: int, end: int) -> list[Region]:
    """The bytes between members: zeros up to a whole block, and extended headers."""
    if start == end:
        return []
    block = -(-start // BLOCK) * BLOCK
    if start < block < end:
        return gap(source, start, block) + gap(source, block, end)
    if end - start >= BLOCK and is_header(source.read(start, BLOCK)):
        return [Region(start, end, "header", "extended tar header")]
    zeros = end - start <= _ZEROS and not any(source.read(start, end - start))
    return [Region(start, end, "padding" if zeros else "unknown")]


def filled(source: Source, regions: Iterable[Region]) -> list[Region]:
    """`regions` in order, and those between them."""
    out: list[Region] = []
    for region in sorted(regions, key=lambda r: r.start):
        out += gap(source, out[-1].end if out else 0, region.start)
        out.append(region)
    return out + gap(source, out[-1].end if out else 0, source.size)


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _digits(field: bytes) -> int | None:
    """Octal digits, or (GNU) a big-endian number with the highest bit set, as Python's tarfile parses them, which is
    laxer than POSIX."""
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


def _pax(text: bytes, overrides: _Overrides, source: Source, at: int) -> _Overrides:
    """`overrides` with those of the records `length key=value\\n`, whose length counts itself."""
    place = 0
    while place < len(text):
        match = re.compile(rb"(\d{1,7}) ").match(text, place)
        end = place + int(match[1]) if match else 0
        if match is None or end <= match.end() or end > len(text) or text[end - 1 : end] != b"\n":
            raise FormatError("an extended header is damaged", path=source.name, offset=at + BLOCK + place)
        key, _, value = text[match.end() : end - 1].partition(b"=")
        place = end
        if key == b"path":
            overrides = overrides._replace(name=value.decode("utf-8", "surrogateescape").rstrip("/"))
        elif key == b"linkpath":
            overrides = overrides._replace(link=value.decode("utf-8", "surrogateescape"))
        elif key == b"size":
            if not re.fullmatch(rb"\d{1,20}", value):
                raise FormatError("a size isn't a number", path=source.name, offset=at, found=value[:40])
            overrides = overrides._replace(size=int(value))
        elif key.startswith(b"GNU.sparse."):
            overrides = overrides._replace(sparse=True)
    return overrides
