"""Scans compressed streams and tar archives: what is in them is scanned as files of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.base.limits import MIB
from weighbridge.containers.archive import tar as tars
from weighbridge.io.decompress import UnpackSource, codec_of
from weighbridge.io.source import Source
from weighbridge.reports.scan.model import (
    Budget,
    MemberPath,
    Nested,
    Piece,
    ScanFinding,
    ScanRule,
    ScanVerdict,
    escape,
    finding,
)

_M, _UNPROVEN = ScanVerdict.MALFORMED, ScanVerdict.UNPROVEN

RULES: Final[Mapping[str, ScanRule]] = MappingProxyType(
    {
        "stream/damaged": ScanRule(_M, "compressed stream that breaks off or is damaged"),
        "stream/not-unpacked": ScanRule(_UNPROVEN, "compressed stream that only loaders unpack"),
        "stream/trailing-bytes": ScanRule(
            ScanVerdict.MALFORMED, "bytes behind a compressed stream, which readers pass over"
        ),
        "tar/outside": ScanRule(ScanVerdict.DANGEROUS, "member or link that leads out of the folder it is unpacked to"),
        "tar/special-member": ScanRule(_M, "member that is neither a file nor a folder nor a link"),
        "tar/sparse": ScanRule(_UNPROVEN, "sparse member, whose map of holes only some readers follow"),
        "tar/odd-number": ScanRule(_M, "header whose numbers some readers take and others don't"),
        "tar/repeated-name": ScanRule(
            ScanVerdict.MALFORMED, "two members of one name: readers take the first or the last"
        ),
        "tar/trailing-bytes": ScanRule(
            ScanVerdict.MALFORMED, "bytes behind the end of a tar, which some readers go on with"
        ),
    }
)
_OUTSIDE: Final = "Unpacking it writes or reads a file elsewhere on the system."
_RUN_BEFORE: Final = "A loader takes what comes before the damage; what was found in that counts."


def stream(source: Source, place: MemberPath, budget: Budget) -> Iterator[Piece]:
    """A file that is one compressed stream."""
    codec = codec_of(source.head(16))
    if codec is None:
        return
    inner = UnpackSource(source, codec, f"{source.name} ({codec})", lambda count: budget.spend(count))
    if not inner.size and inner.trouble and codec == "zlib":
        return  # two bytes are a weak sign: it is something else
    yield Nested(inner, place.inside(f"({codec})"))
    if inner.trouble:
        words = f"the {codec} stream is damaged after {inner.size} unpacked bytes: {inner.trouble}"
        yield finding(RULES, "stream/damaged", source, place, words, consequence=_RUN_BEFORE)
    rest = source.read(inner.trailing, min(source.size - inner.trailing, MIB))
    if rest.strip(b"\0") or len(rest) == MIB:
        words = f"{source.size - inner.trailing} bytes follow the {codec} stream"
        yield finding(RULES, "stream/trailing-bytes", source, place, words, at=inner.trailing)
        yield Nested(source.window(inner.trailing, source.size - inner.trailing), place.inside("(trailing bytes)"))


def not_unpacked(source: Source, place: MemberPath, budget: Budget) -> Iterator[Piece]:
    """A stream of a compression that Python doesn't have, and joblib and others do."""
    yield finding(RULES, "stream/not-unpacked", source, place, "what is compressed isn't scanned",
                  consequence="joblib and others unpack it when they load it: unpack it and scan that")  # fmt: skip


# ---- tar ------------------------------------------------------------------------------------------------------


def tar(source: Source, place: MemberPath, budget: Budget) -> Iterator[Piece]:
    """A tar archive: every file in it, and names that lead elsewhere."""
    if not tars.begins(source):
        return
    seen: set[str] = set()
    end = 0
    for member in tars.members(source):
        budget.spend(members=1)
        end = member.start + -(-member.size // tars.BLOCK) * tars.BLOCK
        yield from _member(source, place, member, seen)
    at = _nonzero(source, end, budget)
    if at is not None:
        words = f"bytes that are not zero follow the archive's end at byte {end}"
        yield finding(RULES, "tar/trailing-bytes", source, place, words, at=at)
        yield Nested(source.window(at, source.size - at), place.inside("(trailing bytes)"))


def _member(source: Source, place: MemberPath, m: tars.TarMember, seen: set[str]) -> Iterator[ScanFinding | Nested]:
    name = m.name.removeprefix("./")
    if not tars.is_canonical(source.read(m.at, tars.BLOCK)):
        yield finding(RULES, "tar/odd-number", source, place, f"the header of {m.name!r} has odd numbers", at=m.at)
    if leads_out(m.name) or (m.link and leads_out(_target(m))):
        words = f"{m.kind} {m.name!r}" + (f" leads to {m.link!r}" if m.link else " leads out of its folder")
        yield finding(RULES, "tar/outside", source, place, words, at=m.at, consequence=_OUTSIDE)
    if name in seen and m.kind != "folder":
        words = f"a second member is called {m.name!r}"
        yield finding(RULES, "tar/repeated-name", source, place, words, at=m.at)
    seen.add(name)
    if m.kind == "file":
        if m.size:
            yield Nested(source.window(m.start, m.size, f"{source.name}::{escape(m.name)}"), place.inside(m.name))
    elif m.kind == "sparse file":
        words = f"{m.name!r} is a sparse file: only the bytes that are stored are scanned, not where they go"
        yield finding(RULES, "tar/sparse", source, place, words, at=m.at)
        yield Nested(source.window(m.start, m.size), place.inside(m.name))
    elif m.kind != "folder" and not m.link:
        words = f"{m.name!r} is a {m.kind}"
        yield finding(RULES, "tar/special-member", source, place, words, at=m.at)


def _target(m: tars.TarMember) -> str:
    """The target of a link, from the archive's root: a symbolic link is relative to its own folder."""
    folder = m.name.rpartition("/")[0] if m.kind == "symbolic link" else ""
    return f"{folder}/{m.link}" if folder and not m.link.startswith("/") else m.link


_ROOTED: Final = re.compile(r"[/\\]|[A-Za-z]:")


def leads_out(name: str) -> bool:
    """Whether a path in an archive leaves the folder that the archive is unpacked to, on any system."""
    depth = 0
    for step in re.split(r"[/\\]", name):
        depth += -1 if step == ".." else step not in ("", ".")
        if depth < 0:
            return True
    return bool(_ROOTED.match(name))


def _nonzero(source: Source, start: int, budget: Budget) -> int | None:
    """The offset of the block with the first byte from `start` on that is not zero."""
    for at in range(start, source.size, MIB):
        piece = source.read(at, min(MIB, source.size - at))
        budget.spend(len(piece))
        rest = piece.lstrip(b"\0")
        if rest:
            return at + (len(piece) - len(rest)) // tars.BLOCK * tars.BLOCK
    return None
