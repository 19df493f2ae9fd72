"""`scan(paths)`: what may be in model files besides numbers, file by file, each with all that is nested in it.

    for report in reports(paths): ...      one file at a time, in a fixed order: a million files take no more memory
    scan(paths) -> ScanReport              all of them together

Nothing that a file holds is run, imported or unpacked to disk. The engine opens, asks `kinds` what it is, lets every
look of the table at it, follows what they find nested, and folds their findings into verdicts. What a file costs is
bounded by one budget for all that is in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase, translate
from functools import cache
from types import MappingProxyType
from typing import Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import SCAN_FILES, SCAN_HELD
from weighbridge.io.source import FileSource, Source
from weighbridge.reports.scan import walk
from weighbridge.reports.scan.detect import STORAGE, kind_of
from weighbridge.reports.scan.model import (
    Budget,
    FileReport,
    MemberPath,
    Nested,
    OverLimit,
    ScanFinding,
    Scanner,
    ScanReport,
    ScanRule,
    ScanVerdict,
    Skipped,
    escape,
    finding,
    worst,
)
from weighbridge.reports.scan.registry import EVERY, OTHERWISE, SCANNERS

Progress = Callable[[int, int, str], None]

#: Rules of the engine itself.
RULES: Final = MappingProxyType(
    {
        "scan/broken": ScanRule(ScanVerdict.MALFORMED, "what it is by its first bytes it is not as a whole"),
        "scan/limit": ScanRule(ScanVerdict.MALFORMED, "looking into all of it would take more than a scan allows"),
    }
)


def _scanners(kind: str, place: MemberPath) -> tuple[bool, list[Scanner]]:
    """Whether some row is for such a file, by kind or by name; and all looks that are at it."""
    rows = _of_kind(kind)
    name = place.name.lower()
    if _named().match(name):
        more = [r.scanner for r in SCANNERS if kind not in r.kinds and any(fnmatchcase(name, n) for n in r.names)]
    else:
        more = []
    every = EVERY if kind != STORAGE else ()
    return bool(rows or more), [*every, *(rows or [OTHERWISE]), *more]


@cache
def _of_kind(kind: str) -> list[Scanner]:
    return [r.scanner for r in SCANNERS if kind in r.kinds]


@cache
def _named() -> re.Pattern[str]:
    """Every name that some row has; few files have one."""
    return re.compile("|".join(translate(n) for r in SCANNERS for n in r.names) or r"(?!)")


@dataclass
class _Scan:
    """One file at work."""

    budget: Budget = field(default_factory=Budget)
    findings: list[ScanFinding] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    more: int = 0
    leaves: int = 0  # parts that were looked into and hold no others

    def into(self, part: Nested) -> str:
        """Let every look that fits at a part, and at what is nested in it. Its kind."""
        kind, place = part.kind or kind_of(part.source, part.place), part.place
        known, scanners = _scanners(kind, place)
        inner = len(self.skipped)
        parts = 0
        for scanner in scanners:
            try:
                parts += self._take(scanner(part.source, place, self.budget))
            except OverLimit as error:
                self._over(place, error)
            except FormatError as error:
                at = error.offset if error.offset is not None and error.offset < part.source.size else None
                self.add(finding(RULES, "scan/broken", part.source, place, error.reason, at=at))
            except UnsupportedError as error:
                self.skip(place, kind, error.message)
            except OSError as error:
                self.skip(place, kind, error.strerror or str(error))
        if not known and not parts:
            self.skip(place, kind, "no look of ours knows this kind of file")
        elif not parts and len(self.skipped) == inner:
            self.leaves += 1
        return kind

    def _take(self, pieces: Iterator[ScanFinding | Skipped | Nested]) -> int:
        """How many of the pieces are parts."""
        parts = 0
        for piece in pieces:
            match piece:
                case ScanFinding():
                    self.add(piece)
                case Skipped():
                    self.skipped.append(piece)
                case Nested():
                    parts += 1
                    self.budget.enter()
                    self.into(piece)
                    self.budget.leave()
        return parts

    def add(self, finding: ScanFinding) -> None:
        if self.budget.findings > 0:
            self.budget.findings -= 1
            self.findings.append(finding)
        else:
            self.more += 1
            self._keep_worst(finding)

    def _keep_worst(self, finding: ScanFinding) -> None:
        """The list is full: one that is worse than the mildest takes its place, so that the verdict stays right."""
        mildest = min(range(len(self.findings)), key=lambda i: self.findings[i].verdict.rank)
        if finding.verdict.rank > self.findings[mildest].verdict.rank:
            self.findings[mildest] = finding

    def skip(self, place: MemberPath, what: str, why: str) -> None:
        self.skipped.append(Skipped(place.path, place.members, what, why))

    def _over(self, place: MemberPath, error: OverLimit) -> None:
        self.add(ScanFinding("scan/limit", RULES["scan/limit"].verdict, error.message, place.path, place.members))
        self.skip(place, "the rest", error.message)


def scan_source(source: Source, path: str) -> FileReport:
    """The report on one source."""
    work = _Scan()
    kind = work.into(Nested(source, MemberPath(path)))
    least = ScanVerdict.DATA_ONLY if work.leaves else ScanVerdict.NOT_SCANNED
    ordered = tuple(sorted(work.findings, key=_order))
    return FileReport(
        path, kind, source.size, worst((least, *(f.verdict for f in ordered))), not work.skipped, ordered,
        tuple(work.skipped), work.more,
    )  # fmt: skip


def _order(f: ScanFinding) -> tuple[int, tuple[str, ...], int, str, str]:
    return -f.verdict.rank, f.members, -1 if f.offset is None else f.offset, f.rule, f.message


_PREAD: Final = hasattr(os, "pread")


class _InMemory(Source):
    """A small file, read once: archives have many places to look at, and what was looked at is what it was."""

    def __init__(self, file: FileSource) -> None:
        self.name, self.size, self.file = file.name, file.size, file
        self.data = os.pread(file.fileno(), file.size, 0) if _PREAD else file.read(0, file.size)
        if len(self.data) != file.size:  # it shrinks while it is read: said as of any file
            file.read(0, file.size)

    def _readinto(self, offset: int, out: memoryview) -> int:
        out[:] = self.data[offset : offset + len(out)]
        return len(out)

    def read(self, offset: int, length: int) -> bytes:
        data = self.data[offset : offset + length] if offset >= 0 else b""
        if len(data) != length:
            self.check(offset, length)
        return data

    def location(self, offset: int) -> tuple[FileSource, int] | None:
        return self.file, offset


def scan_file(path: str) -> FileReport:
    """The report on one file. One that can't be opened has a report that says why."""
    try:
        with FileSource(path) as source:
            return scan_source(source if source.size > SCAN_HELD else _InMemory(source), path)
    except FormatError as error:  # it shrinks while it is read
        return _closed(path, "unreadable", error.reason)
    except OSError as error:
        return _closed(path, "unreadable", error.strerror or str(error))
    except UnsupportedError as error:
        return _closed(path, "special", error.message)


def _closed(path: str, kind: str, why: str) -> FileReport:
    missed = Skipped(path, (), kind, why)
    return FileReport(path, kind, 0, ScanVerdict.NOT_SCANNED, False, (), (missed,))


# ---- paths ----


def reports(paths: Iterable[str | os.PathLike[str]], progress: Progress | None = None) -> Iterator[FileReport]:
    """The reports on all files, one by one."""
    for number, met in enumerate(walk.files(paths)):
        yield scan_file(met.path) if met.why is None else _passed(met.path, met.why, met.rule)
        if progress:
            progress(number + 1, 0, met.path)


def _passed(path: str, why: str, rule: str | None) -> FileReport:
    """The report on what is not entered or followed; where a rule says so it is a finding, too."""
    if rule is None:
        return _closed(path, "folder", why)
    finding = ScanFinding(rule, walk.RULES[rule].verdict, escape(why), path, consequence=walk.CONSEQUENCE)
    return replace(_closed(path, "link", escape(why)), verdict=finding.verdict, findings=(finding,))


def fold(paths: tuple[str, ...], every: Iterable[FileReport]) -> ScanReport:
    """Reports as one. Of very many files only those that found something are kept."""
    counts = dict.fromkeys((v.value for v in ScanVerdict), 0)
    kept: list[FileReport] = []
    complete, unreadable, nbytes = True, 0, 0
    for report in every:
        counts[report.verdict.value] += 1
        complete &= report.complete
        unreadable += report.kind == "unreadable"
        nbytes += report.nbytes
        if len(kept) < SCAN_FILES or (len(kept) < 2 * SCAN_FILES and report.findings):
            kept.append(report)
    overall = worst(tuple(ScanVerdict(v) for v, n in counts.items() if n))
    return ScanReport(paths, overall, complete, counts, tuple(kept), sum(counts.values()), unreadable, nbytes)


def scan(*paths: str | os.PathLike[str], progress: Progress | None = None) -> ScanReport:
    """What files and folders hold besides data, and the verdicts. FileNotFoundError where a path is none."""
    named = tuple(os.fspath(p) for p in paths)
    return fold(named, reports(named, progress))


def failed(report: ScanReport, fail_on: ScanVerdict | None) -> bool:
    """Whether any file's verdict is at least as bad as `fail_on`; NOT_LOOKED_INTO: or anything was passed over."""
    if fail_on is None:
        return False
    if fail_on is ScanVerdict.NOT_SCANNED:
        return not report.complete or report.verdict.rank > ScanVerdict.DATA_ONLY.rank
    return report.verdict.rank >= fail_on.rank
