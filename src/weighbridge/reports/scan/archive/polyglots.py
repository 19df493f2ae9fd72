"""Scanners that run on every file: its name, and whether it is a second format besides the one that it starts as."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import MIB, ZIP_TAIL
from weighbridge.base.words import plural
from weighbridge.containers.archive import tar, zip_peek
from weighbridge.containers.archive.zip_records import END
from weighbridge.containers.hdf5.structure import SIGNATURE, starts
from weighbridge.containers.sniff.probe import Probe
from weighbridge.io.source import Source
from weighbridge.reports.scan.model import Part, Piece, escape

_UNPACKED: Final = 16 * MIB  # of a compressed member, whose end is unpacked last
_INSIDE: Final = "(as a zip)"
#: First bytes of files that legitimately end with a zip: self-extracting programs, llamafiles.
_PROGRAMS: Final = frozenset({b"MZ", b"\x7fE", b"#!"})


def may_be_more(data: bytes) -> bool:
    """Whether one of the scanners below may find something in a whole file. A quick test with false positives."""
    return END in data or SIGNATURE in data or (len(data) >= tar.BLOCK and tar.is_header(data[: tar.BLOCK]))


def odd_letter(text: str) -> str:
    """The first character that a terminal obeys or that reorders others, or ""."""
    return next((c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")), "")


def letter_name(letter: str) -> str:
    """The name and code point of a character."""
    # Python shows a byte that isn't UTF-8 as half of a surrogate pair.
    surrogate = unicodedata.category(letter) == "Cs"
    name = "a byte that isn't UTF-8" if surrogate else unicodedata.name(letter, "a control character").lower()
    return f"{name} (U+{ord(letter):04X})"


def name(part: Part) -> Iterator[Piece]:
    """Checks the name of a file or member."""
    text = part.place.members[-1] if part.place.members else part.place.name
    if not text.isprintable() and (letter := odd_letter(text)):
        yield part.finding("file/odd-name", f"the name {escape(text)} contains {letter_name(letter)}")


def appended(part: Part) -> Iterator[Piece]:
    """Finds a zip at the end of a different format."""
    source = part.source
    if part.place.members[-1:] == (_INSIDE,) or (source.sequential and source.size > _UNPACKED):
        return
    length = min(source.size, ZIP_TAIL)
    if END not in source.read(source.size - length, length):
        return
    probe = Probe(source)
    directory = zip_peek.directory(probe)
    part.budget.spend(members=len(directory.members) if directory else 0)
    if not directory or not directory.members:
        return
    offsets = [m.offset for m in directory.members if zip_peek.payload(probe, m) is not None]
    if directory.shift < 0 and not offsets:
        return  # only the directory of some archive
    if offsets and _is_member(source, min(offsets), directory.members):
        return
    if source.head(2) not in _PROGRAMS or not offsets:
        begin = f" begins at byte {min(offsets)}" if offsets else ""
        message = f"a zip archive with {plural(len(directory.members), 'member')}{begin}"
        yield part.finding("file/appended-zip", message, at=min(offsets, default=None))
    yield part.inside(_INSIDE, source, "zip")


def _is_member(source: Source, at: int, listed: Sequence[zip_peek.ListedMember]) -> bool:
    """Whether the zip that begins at `at`, with these members, is a file of a tar, which is scanned by itself."""
    with suppress(FormatError, UnsupportedError):
        for member in tar.members(source) if tar.begins(source) else ():
            if member.kind == "file" and member.start == at:
                inside = zip_peek.directory(Probe(source.window(at, member.size)))
                return inside is not None and [m.name for m in inside.members] == [m.name for m in listed]
    return False


def as_tar(part: Part) -> Iterator[Piece]:
    """Finds a tar, as tarfile reads it, in a file that starts as another format."""
    if part.source.size >= tar.BLOCK and tar.begins(part.source):
        yield part.finding("file/also-tar", "tarfile reads it as an archive", at=0)
        yield part.inside("(as a tar)", part.source, "tar")


def as_hdf5(part: Part, *, has_format: bool = True) -> Iterator[Piece]:
    """Finds HDF5 in a file that starts as another format: its library looks for the start at 512, 1024, 2048 ...
    `has_format`: the file has a format besides, so that its start isn't just the user block of the HDF5 file."""
    if part.source.sequential and part.source.size > _UNPACKED:
        return
    if offsets := starts(part.source):
        if has_format:
            yield part.finding("file/also-hdf5", "HDF5 begins here", at=offsets[0])
        yield part.inside("(as HDF5)", part.source, "hdf5")
