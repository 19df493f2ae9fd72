"""The scanner of zip archives: every member is scanned by its content. A zip tells each fact twice, and
readers believe different halves; where the halves differ the archive is refused and all that any reader might see is
scanned.

What PyTorch's reader and Python's `zipfile` each take was measured: torch finds members by a binary search without
regard to case and believes the directory alone; zipfile keeps the last of several that share a name, and compares names
with the local headers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import SNIFF_HEAD
from weighbridge.containers.archive import zip as zips
from weighbridge.containers.archive.zip_records import STORED
from weighbridge.io.source import Source
from weighbridge.reports.scan import programs
from weighbridge.reports.scan.archive import streams, zip_ambiguity
from weighbridge.reports.scan.detect import is_storage
from weighbridge.reports.scan.model import (
    Budget,
    MemberPath,
    Nested,
    Piece,
    ScanFinding,
    ScanRule,
    ScanVerdict,
    Skipped,
    escape,
    finding,
)
from weighbridge.reports.scan.pickle import scanner as pickles

_M, _NOTE = ScanVerdict.MALFORMED, ScanVerdict.DATA_ONLY

RULES: Final[Mapping[str, ScanRule]] = MappingProxyType(
    {
        "zip/duplicate": ScanRule(_M, "two members have one name: readers take different ones"),
        "zip/case": ScanRule(_M, "two members' names differ in case only: torch takes them for one, others do not"),
        "zip/local-header": ScanRule(_M, "a local header contradicts the directory (name, method, size or checksum)"),
        "zip/hidden-member": ScanRule(_M, "a member that the directory does not list: readers from the front see it"),
        "zip/overlap": ScanRule(_M, "two members share bytes"),
        "zip/prefix": ScanRule(_M, "bytes before the archive: other programs may take it for another kind of file"),
        "zip/several-ends": ScanRule(_M, "more than one end record: readers find different directories"),
        "zip/no-end": ScanRule(_M, "the directory at the end is missing"),
        "zip/directory": ScanRule(_M, "the directory is damaged, or is not where the end record says"),
        "zip/count": ScanRule(_M, "the end record counts more or fewer members than there are"),
        "zip/zip64": ScanRule(_M, "the zip64 records are damaged, or contradict the plain ones"),
        "zip/name": ScanRule(_M, "a name that leads out of the folder, or that readers cut or change (.., \\, NUL)"),
        "zip/encrypted": ScanRule(_M, "a member is marked encrypted or as a patch; some readers read it all the same"),
        "zip/method": ScanRule(_M, "a compression that some readers have and others lack"),
        "zip/folder": ScanRule(_M, "a folder that holds bytes: readers take or skip them"),
        "zip/link": ScanRule(_M, "a symbolic link out of the folder, which some programs make when they unpack"),
        "zip/outside": ScanRule(_M, "a member lies outside the archive"),
        "zip/several-checkpoints": ScanRule(_M, "several data.pkl in different folders: readers take different ones"),
        "zip/volumes": ScanRule(_M, "a part of an archive of several volumes"),
        "zip/gap": ScanRule(_NOTE, "bytes between members that belong to none"),
    }
)  # fmt: skip

# Words of the strict reader's errors -> the rule; the first that fits.
_REASONS: Final = (
    ("no end of a zip", "zip/no-end"),
    ("count is wrong", "zip/count"),
    ("doesn't begin", "zip/prefix"),
    ("directory isn't where", "zip/directory"),
    ("zip64", "zip/zip64"),
    ("two end records", "zip/zip64"),
    ("disagree", "zip/local-header"),
    ("has two sizes", "zip/local-header"),
    ("overlap", "zip/overlap"),
    ("one name", "zip/duplicate"),
    ("name", "zip/name"),
    ("outside", "zip/outside"),
    ("encrypted", "zip/encrypted"),
    ("compressed by", "zip/method"),
    ("volumes", "zip/volumes"),
)
_ZIPPED: Final = (b"PK\x03\x04", b"PK\x05\x06")
_FOLDER_BIT: Final = 0x10
_PATH: Final = 4096
_LINK: Final = 0xA  # S_IFLNK, of the attributes that Unix writes


def scan(source: Source, place: MemberPath, budget: Budget) -> Iterator[Piece]:
    """What is wrong with an archive, and its members. Nothing where the bytes are no zip (a NeMo archive may be a
    tar)."""
    if not source.head(4).startswith(_ZIPPED) and not zip_ambiguity.ends(source):
        return
    try:
        archive = zips.read(source)
    except (FormatError, UnsupportedError) as error:
        yield from _disputed(source, place, budget, error)
        return
    names = [m.name for m in archive.members]
    yield from programs.findings(source, place, names)
    yield from _declared(source, place, _name_faults(names))
    yield from _ends(source, place, archive.tail)
    yield from _folders(source, place, archive)
    yield from _gaps(source, place, budget, archive)
    for m in archive.members:
        budget.spend(0 if m.method == STORED else min(m.size, SNIFF_HEAD), 1)
        if m.method == STORED and _is_numbers(source, m):
            continue
        with zips.open_member(source, m, archive) as inner:
            yield Nested(inner, place.inside(m.name))


def _is_numbers(source: Source, member: zips.ZipMember) -> bool:
    """Whether a stored member is a storage that is nothing else to anybody: checkpoints have thousands."""
    head = source.read(member.start, min(member.size, pickles.FEW))
    return pickles.is_idle(head, member.size) and is_storage(member.name, head)


# ---- what the strict reader lets pass ----


def _declared(source: Source, place: MemberPath, faults: Iterable[tuple[str, str]]) -> Iterator[ScanFinding]:
    for rule, words in faults:
        yield finding(RULES, rule, source, place, words)


def _name_faults(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    folded: dict[str, str] = {}
    checkpoints: set[str] = set()
    for name in names:
        other = folded.setdefault(name.casefold(), name)
        if other != name:
            yield "zip/case", f"{escape(other)} and {escape(name)}"
        if _leads_out(name):
            yield "zip/name", f"a member is called {escape(name)}"
        if name.lower().endswith("/data.pkl") or name.lower() == "data.pkl":
            checkpoints.add(name.casefold())
    if len(checkpoints) > 1:
        yield "zip/several-checkpoints", f"{len(checkpoints)} members are called data.pkl"


def _leads_out(name: str) -> bool:
    parts = name.replace("\\", "/").split("/")
    return ".." in parts or "." in parts or name.startswith("/") or "\\" in name or "\0" in name or ":" in name[:3]


def _ends(source: Source, place: MemberPath, tail: int) -> Iterator[ScanFinding]:
    """An end record in the comment of the last one."""
    real = [end for end in zip_ambiguity.ends(source) if end >= tail]
    if len(real) > 1:
        words = f"end records at bytes {', '.join(str(e) for e in sorted(real))}"
        yield finding(RULES, "zip/several-ends", source, place, words, at=real[0])


def _folders(source: Source, place: MemberPath, archive: zips.Archive) -> Iterator[ScanFinding]:
    if not archive.entries:
        return
    members = {m.name: m for m in archive.members}
    first, last = archive.entries[0][0], archive.entries[-1][1]
    raw = source.read(first, last - first)
    for start, _, name in archive.entries:
        attributes = int.from_bytes(raw[start - first + 38 : start - first + 42], "little")
        if attributes >> 28 == _LINK and name in members:
            yield from _link(source, place, members[name], start)
        marked = attributes & _FOLDER_BIT or name.endswith("/")
        if marked and name in members and members[name].size:
            words = f"{escape(name)} holds {members[name].size} bytes"
            yield finding(RULES, "zip/folder", source, place, words, at=start)


def _leads_away(name: str, target: str) -> bool:
    """Whether a link called `name` leads out of the archive's folder."""
    folder = name.rpartition("/")[0]
    return streams.leads_out(target if target.startswith("/") or not folder else f"{folder}/{target}")


def _link(source: Source, place: MemberPath, member: zips.ZipMember, at: int) -> Iterator[ScanFinding]:
    """A symbolic link that leads out of the folder."""
    with zips.open_member(source, member) as inner:
        target = inner.head(_PATH).decode("utf-8", "replace")
    if member.size > _PATH or _leads_away(member.name, target):
        words = f"{escape(member.name)} is a link to {escape(target)}"
        yield finding(RULES, "zip/link", source, place, words, at=at)


def _gaps(source: Source, place: MemberPath, budget: Budget, archive: zips.Archive) -> Iterator[Piece]:
    """Bytes between members: a member that the directory does not list may hide there."""
    at = 0
    first = archive.entries[0][0] if archive.entries else archive.tail
    for begin, end in (*((m.at, m.end) for m in archive.members), (first, first)):
        if begin > at:
            hidden = [seen for place_ in zip_ambiguity.headers(source, at, begin)
                      for seen in _first(zip_ambiguity.walked(source, place_, place_ + 1, {}))]  # fmt: skip
            rule, words = ("zip/hidden-member", f"{escape(hidden[0].name)} is not in the directory") if hidden else (
                "zip/gap", f"{begin - at} bytes belong to no member")  # fmt: skip
            yield finding(RULES, rule, source, place, words, at=at)
            for seen in hidden:
                size = seen.packed or begin - seen.start
                yield from _part(source, place, budget, seen._replace(packed=min(size, max(begin - seen.start, 0))))
        at = end


def _first(seen: Iterator[zip_ambiguity.Seen]) -> list[zip_ambiguity.Seen]:
    one = next(seen, None)
    return [one] if one else []


# ---- where the strict reader refuses ----


def _disputed(
    source: Source, place: MemberPath, budget: Budget, error: FormatError | UnsupportedError
) -> Iterator[Piece]:
    reason = error.reason if isinstance(error, FormatError) else error.message
    rule = next((rule for words, rule in _REASONS if words in reason), "zip/directory")
    at = error.offset if isinstance(error, FormatError) else None
    about = f": {error.field}" if isinstance(error, FormatError) and error.field else ""
    reported = finding(RULES, rule, source, place, reason + about, at=at,
                 consequence="programs see different members in this file")  # fmt: skip
    members = list(zip_ambiguity.listed(source))
    yield from programs.findings(source, place, [m.name for m in members])
    known = {m.at: m for m in members}
    begin = min(known, default=0)
    walked = [m for at in {0, begin} for m in zip_ambiguity.walked(source, at, source.size, known)]
    findings = [reported, *_declared(source, place, _name_faults(dict.fromkeys(m.name for m in members)))]
    if begin and not any(m.at == 0 for m in walked):
        findings.append(finding(RULES, "zip/prefix", source, place, f"{begin} bytes stand in front", at=0))
    hidden = [m for m in walked if m.at not in known]
    findings += [finding(RULES, "zip/hidden-member", source, place, f"{escape(m.name)} is not listed", at=m.at)
                 for m in hidden if members]  # fmt: skip
    names = Counter(m.name for m in dict.fromkeys(members))
    findings += [finding(RULES, "zip/duplicate", source, place, f"{count} members named {escape(name)}")
                 for name, count in names.items() if count > 1]  # fmt: skip
    yield from {(f.rule, f.message): f for f in findings}.values()
    for m in dict.fromkeys((*members, *walked)):
        yield from _part(source, place, budget, m)


def _part(source: Source, place: MemberPath, budget: Budget, m: zip_ambiguity.Seen) -> Iterator[Piece]:
    budget.spend(0 if m.method == STORED else m.packed, 1)
    inner = zip_ambiguity.contents(source, m)
    if inner is None:
        yield Skipped(place.path, (*place.members, escape(m.name)), "member", f"compressed by method {m.method}")
        return
    budget.spend(0 if m.method == STORED else inner.size)
    yield Nested(inner, place.inside(m.name))
