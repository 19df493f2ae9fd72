"""Scans zip archives, with every member. A zip states each fact twice, and readers trust different copies. If the
copies differ the archive is reported as malformed, and everything that any reader might see is scanned.

The behaviour of PyTorch's reader and of Python's `zipfile` was measured: torch finds members by a case-insensitive
binary search and trusts only the directory; zipfile keeps the last of several members with the same name, and compares
names with the local headers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import SNIFF_HEAD
from weighbridge.base.words import plural
from weighbridge.containers.archive import zip as zips
from weighbridge.containers.archive.zip_records import STARTS, STORED, ZipFault
from weighbridge.reports.scan.archive import programs, streams, zip_ambiguity
from weighbridge.reports.scan.detect import is_storage
from weighbridge.reports.scan.model import Part, Piece, ScanFinding, escape
from weighbridge.reports.scan.pickle import scanner as pickles

#: Code of the strict reader's errors -> the rule. An error without a code, such as a file that shrinks, is the
#: directory's.
RULES_OF: Final[Mapping[str, str]] = MappingProxyType(
    {
        ZipFault.NO_END: "zip/no-end",
        ZipFault.COUNT: "zip/count",
        ZipFault.PREFIX: "zip/prefix",
        ZipFault.DIRECTORY: "zip/directory",
        ZipFault.ZIP64: "zip/zip64",
        ZipFault.LOCAL_HEADER: "zip/local-header",
        ZipFault.OVERLAP: "zip/overlap",
        ZipFault.DUPLICATE: "zip/duplicate",
        ZipFault.NAME: "zip/name",
        ZipFault.OUTSIDE: "zip/outside",
        ZipFault.ENCRYPTED: "zip/encrypted",
        ZipFault.METHOD: "zip/method",
        ZipFault.VOLUMES: "zip/volumes",
        "": "zip/directory",
    }
)
_FOLDER_BIT: Final = 0x10
_PATH: Final = 4096
_MOST_PACKED: Final = 1032  # bytes that one byte of deflate can unpack to
_HIDDEN: Final = 64  # members in one gap that are scanned
_LINK: Final = 0xA  # S_IFLNK, of the attributes that Unix writes


def scan(part: Part) -> Iterator[Piece]:
    """Scans an archive's structure and its members. Yields nothing if the bytes aren't a zip (a NeMo archive may be a
    tar)."""
    source = part.source
    if not source.head(4).startswith(STARTS) and not zip_ambiguity.ends(source):
        return
    try:
        archive = zips.read(source)
    except (FormatError, UnsupportedError) as error:
        yield from _scan_disputed(part, error)
        return
    names = [m.name for m in archive.members]
    yield from programs.findings(part, names)
    yield from _check_names(part, names)
    ends = [end for end in zip_ambiguity.ends(source) if end >= archive.tail]
    if len(ends) > 1:  # in the comment of the last one
        yield part.finding("zip/several-ends", f"end records at bytes {', '.join(map(str, sorted(ends)))}", at=ends[0])
    yield from _check_attributes(part, archive)
    at, first = 0, archive.entries[0][0] if archive.entries else archive.tail
    for begin, end in (*((m.at, m.end) for m in archive.members), (first, first)):
        if begin > at:
            yield from _scan_gap(part, at, begin)
        at = end
    for m in archive.members:
        part.budget.spend(members=1)
        if m.method != STORED:
            part.budget.unpack(min(m.size, SNIFF_HEAD), min(m.size, _MOST_PACKED * m.packed))
        else:  # checkpoints have thousands of storages that are only numbers to any reader
            head = source.read(m.start, min(m.size, pickles.FEW))
            if pickles.is_idle(head, m.size) and is_storage(m.name, head):
                continue
        with zips.open_member(source, m, archive) as inner:
            yield part.inside(m.name, inner)


# ---- archives that the strict reader accepts ----


def _check_names(part: Part, names: Iterable[str]) -> Iterator[ScanFinding]:
    folded: dict[str, str] = {}
    checkpoints: set[str] = set()
    for name in names:
        twin = folded.setdefault(name.casefold(), name)
        if twin != name:
            yield part.finding("zip/case", f"{escape(twin)} and {escape(name)}")
        steps = name.replace("\\", "/").split("/")
        if ".." in steps or "." in steps or name.startswith("/") or "\\" in name or "\0" in name or ":" in name[:3]:
            yield part.finding("zip/name", f"a member is called {escape(name)}")
        if name.lower().endswith("/data.pkl") or name.lower() == "data.pkl":
            checkpoints.add(name.casefold())
    if len(checkpoints) > 1:
        message = f"{plural(len(checkpoints), 'member', 'are')} called data.pkl"
        yield part.finding("zip/several-checkpoints", message)


def _check_attributes(part: Part, archive: zips.Archive) -> Iterator[ScanFinding]:
    """Finds symbolic links out of the folder, and folder entries with data, by the directory's attributes."""
    if not archive.entries:
        return
    members = {m.name: m for m in archive.members}
    first, last = archive.entries[0][0], archive.entries[-1][1]
    raw = part.source.read(first, last - first)
    for start, _, name in archive.entries:
        attributes = int.from_bytes(raw[start - first + 38 : start - first + 42], "little")
        if name not in members:
            continue
        if attributes >> 28 == _LINK:
            with zips.open_member(part.source, members[name]) as inner:
                target = inner.head(_PATH).decode("utf-8", "replace")
            if members[name].size > _PATH or streams.link_leads_out(name, target):
                yield part.finding("zip/link", f"{escape(name)} is a link to {escape(target)}", at=start)
        if (attributes & _FOLDER_BIT or name.endswith("/")) and members[name].size:
            yield part.finding("zip/folder", f"{escape(name)} holds {plural(members[name].size, 'byte')}", at=start)


def _scan_gap(part: Part, at: int, end: int) -> Iterator[Piece]:
    """Scans bytes that belong to no member: a member that the directory doesn't list may hide there."""
    hidden = zip_ambiguity.headers(part.source, at, end)
    member = next(hidden, None)
    if member is not None:
        yield part.finding("zip/hidden-member", f"{escape(member.name)} is not in the directory", at=at)
    else:
        yield part.finding("zip/gap", f"{plural(end - at, 'byte')} outside any member", at=at)
    for _ in range(_HIDDEN):
        if member is None:
            return
        size = member.packed or end - member.start
        yield from _scan_viewed(part, member._replace(packed=min(size, max(end - member.start, 0))))
        member = next(hidden, None)
    yield part.skipped("hidden members", f"more than {_HIDDEN} may be between two of the archive's")


# ---- archives that the strict reader refuses ----


def _scan_disputed(part: Part, error: FormatError | UnsupportedError) -> Iterator[Piece]:
    reason, at, about = error.message, None, ""
    if isinstance(error, FormatError):
        reason, at, about = error.reason, error.offset, f": {error.field}" if error.field else ""
    findings = [
        part.finding(
            RULES_OF[error.code], reason + about, at=at, consequence="programs see different members in this file"
        )
    ]
    members = list(zip_ambiguity.listed(part.source))
    part.budget.spend(members=len(members))
    yield from programs.findings(part, [m.name for m in members])
    by_offset = {m.at: m for m in members}
    begin = min(by_offset, default=0)
    walked = [m for at in {0, begin} for m in zip_ambiguity.walked(part.source, at, part.source.size, by_offset)]
    part.budget.spend(members=len(walked))
    findings += _check_names(part, dict.fromkeys(m.name for m in members))
    if begin and not any(m.at == 0 for m in walked):
        findings.append(part.finding("zip/prefix", f"{plural(begin, 'byte')} before the archive", at=0))
    findings += [part.finding("zip/hidden-member", f"{escape(m.name)} is not listed", at=m.at)
                 for m in walked if members and m.at not in by_offset]  # fmt: skip
    names = Counter(m.name for m in dict.fromkeys(members))
    findings += [part.finding("zip/duplicate", f"{plural(count, 'member')} named {escape(name)}")
                 for name, count in names.items() if count > 1]  # fmt: skip
    yield from {(f.rule, f.message): f for f in findings}.values()
    for m in dict.fromkeys((*members, *walked)):
        yield from _scan_viewed(part, m)


def _scan_viewed(part: Part, m: zip_ambiguity.ViewedMember) -> Iterator[Piece]:
    part.budget.spend(0 if m.method == STORED else m.packed, 1)
    inner = zip_ambiguity.contents(part.source, m)
    if inner is None:
        member = part.inside(escape(m.name), part.source)
        yield member.skipped("member", f"compressed by method {m.method}")
        return
    part.budget.unpack(0 if m.method == STORED else inner.size)
    yield part.inside(m.name, inner)
