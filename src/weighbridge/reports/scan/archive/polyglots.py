"""Scanners that run on every file: its name, and whether it is a second file besides the one that it begins as."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.base.limits import MIB, ZIP_TAIL
from weighbridge.containers.archive import tar, zip_peek
from weighbridge.containers.sniff.probe import Probe
from weighbridge.io.source import Source
from weighbridge.reports.scan.hdf5.structure import starts
from weighbridge.reports.scan.model import Budget, MemberPath, Nested, Piece, ScanRule, ScanVerdict, escape, finding

_M = ScanVerdict.MALFORMED

RULES: Final[Mapping[str, ScanRule]] = MappingProxyType(
    {
        "file/odd-name": ScanRule(_M, "name with control characters, which a terminal obeys or shows as another name"),
        "file/also-tar": ScanRule(_M, "tar archive that is another file to other readers"),
        "file/also-hdf5": ScanRule(_M, "HDF5 file that is another file to other readers"),
        "file/appended-zip": ScanRule(_M, "zip archive behind another file: some readers see the one, some the other"),
    }
)
#: How a zip ends, and what honestly has one behind it: a program that unpacks itself, a llamafile.
_END: Final = b"PK\x05\x06"
_UNPACKED: Final = 16 * MIB  # of a compressed member, whose end comes last
_INSIDE: Final = "(as a zip)"
_PROGRAMS: Final = frozenset({b"MZ", b"\x7fE", b"#!"})


def odd_letters(text: str) -> str:
    """The first character that a terminal obeys or that changes the order of others; "" where there is none."""
    return next((c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")), "")


def name(source: Source, place: MemberPath, budget: Budget) -> Iterator[Piece]:
    """The name of a file or member."""
    text = place.members[-1] if place.members else place.name
    odd = "" if text.isprintable() else odd_letters(text)
    if odd:
        half = unicodedata.category(odd) == "Cs"  # how Python shows a byte that is no UTF-8
        what = "a byte that isn't UTF-8" if half else unicodedata.name(odd, "a control character").lower()
        words = f"the name {escape(text)} has {what} (U+{ord(odd):04X}) in it"
        yield finding(RULES, "file/odd-name", source, place, words)


def appended(source: Source, place: MemberPath, budget: Budget) -> Iterator[Piece]:
    """A zip at the end of what begins as something else. Programs honestly have one: llamafiles, self-extractors."""
    if place.members[-1:] == (_INSIDE,) or (source.sequential and source.size > _UNPACKED):
        return
    length = min(source.size, ZIP_TAIL)
    if _END not in source.read(source.size - length, length):
        return
    probe = Probe(source)
    directory = zip_peek.directory(probe)
    budget.spend(members=len(directory.members) if directory else 0)
    if not directory or not directory.members:
        return
    starts = [m.offset for m in directory.members if zip_peek.payload(probe, m) is not None]
    if directory.shift < 0 and not starts:
        return  # the directory alone, of another archive
    if source.head(2) not in _PROGRAMS or not starts:
        words = f"a zip archive with {len(directory.members)} members" + (
            f" begins at byte {min(starts)}" if starts else ""
        )
        yield finding(RULES, "file/appended-zip", source, place, words, at=min(starts, default=None))
    yield Nested(source, place.inside(_INSIDE), "zip")


def as_tar(source: Source, place: MemberPath, budget: Budget) -> Iterator[Piece]:
    """What begins as something else and is a tar to tarfile."""
    if source.size >= tar.BLOCK and tar.begins(source):
        yield finding(RULES, "file/also-tar", source, place, "tarfile reads it as an archive", at=0)
        yield Nested(source, place.inside("(as a tar)"), "tar")


def as_hdf5(source: Source, place: MemberPath, budget: Budget, *, known: bool = True) -> Iterator[Piece]:
    """What begins as something else and is HDF5 to its library, which looks for the start at 512, 1024, 2048 ...
    `known`: what it begins as is a format of its own, and no block for the user of the HDF5 file."""
    if source.sequential and source.size > _UNPACKED:
        return
    found = starts(source)
    if found and known:
        yield finding(RULES, "file/also-hdf5", source, place, "HDF5 begins there", at=found[0])
    if found:
        yield Nested(source, place.inside("(as HDF5)"), "hdf5")
