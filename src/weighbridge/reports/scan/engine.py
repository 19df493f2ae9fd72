"""`scan(paths)`: what model files hold besides numbers, file by file, each with everything nested in it.

    for report in reports(paths): ...      one file at a time, in a fixed order: a million files take no more memory
    scan(paths) -> ScanReport              all of them together

Nothing that a file holds is run, imported or unpacked to disk. The engine opens each file, asks `detect` what it is,
runs every scanner that the registry has for it, follows what they find nested, and folds the findings into verdicts.
One budget bounds what a file costs with everything in it. Whatever goes wrong in one part is a finding; the scan goes
on.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from types import MappingProxyType
from typing import Final

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import SCAN_FILES, SCAN_IN_MEMORY
from weighbridge.io.location import is_remote, open_source
from weighbridge.io.source import FileSource, Source
from weighbridge.reports.scan import walk
from weighbridge.reports.scan.detect import kind_of
from weighbridge.reports.scan.model import (
    Budget,
    FileReport,
    MemberPath,
    Nested,
    OverLimit,
    Piece,
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
from weighbridge.reports.scan.pickle import whole_file
from weighbridge.reports.scan.registry import is_special, scanners_for

Progress = Callable[[int, int, str], None]

#: Rules of the engine itself.
RULES: Final = MappingProxyType(
    {
        "scan/broken": ScanRule(ScanVerdict.MALFORMED, "its first bytes say what it is, the rest contradicts them"),
        "scan/limit": ScanRule(ScanVerdict.UNPROVEN, "scanning all of it would take more than a scan allows"),
        "scan/failure": ScanRule(ScanVerdict.UNPROVEN, "the scanner failed on a part, which is a fault of the scanner"),
    }
)


@dataclass
class _Scan:
    """One file at work."""

    budget: Budget = field(default_factory=Budget)
    findings: list[tuple[int, int, ScanFinding]] = field(default_factory=list)  # a heap, the mildest first
    skipped: list[Skipped] = field(default_factory=list)
    more: int = 0
    leaves: int = 0  # parts that were scanned and hold no others
    order: count[int] = field(default_factory=count)

    def into(self, part: Nested) -> str:
        """Run every scanner for a part, and for what is nested in it. Its kind."""
        kinds: list[str] = [part.kind] if part.kind else []
        self._guarded(part, lambda: kinds.append(kind_of(part.source, part.place)) if not kinds else None)
        kind = kinds[0] if kinds else "unknown"
        known, scanners = scanners_for(kind, part.place)
        skipped, parts = len(self.skipped), [0]
        for scanner in scanners:
            self._guarded(part, lambda scanner=scanner: self._take(scanner, part, parts))  # type: ignore[misc]
        if not known and not parts[0]:
            self.skip(part.place, kind, "unsupported file type")
        elif not parts[0] and len(self.skipped) == skipped:
            self.leaves += 1
        return kind

    def _guarded(self, part: Nested, work: Callable[[], None]) -> None:
        """`work`, whose failure is a finding on the part."""
        place, source = part.place, part.source
        try:
            work()
        except OverLimit as error:
            self.add(finding(RULES, "scan/limit", source, place, error.message))
            self.skip(place, "the rest", error.message)
        except FormatError as error:
            at = error.offset if error.offset is not None and error.offset < source.size else None
            self.add(finding(RULES, "scan/broken", source, place, error.reason, at=at))
        except UnsupportedError as error:
            self.skip(place, part.kind or "part", error.message)
        except OSError as error:
            self.skip(place, part.kind or "part", error.strerror or str(error))
        except Exception as error:
            self.add(finding(RULES, "scan/failure", source, place, f"{type(error).__name__}: {error}"))

    def _take(self, scanner: Scanner, part: Nested, parts: list[int]) -> None:
        """The pieces that a scanner finds; `parts[0]` counts those that are nested."""
        for piece in scanner(part.source, part.place, self.budget):
            self._piece(piece, parts)

    def _piece(self, piece: Piece, parts: list[int]) -> None:
        if isinstance(piece, ScanFinding):
            self.add(piece)
        elif isinstance(piece, Skipped):
            self.skipped.append(piece)
        else:
            parts[0] += 1
            self.budget.enter()
            try:
                self.into(piece)
            finally:
                self.budget.leave()

    def add(self, found: ScanFinding) -> None:
        """Keep a finding. Of too many the worst are kept, so that the verdict stays right."""
        entry = found.verdict.rank, -next(self.order), found
        if self.budget.findings > 0:
            self.budget.findings -= 1
            heapq.heappush(self.findings, entry)
        else:
            self.more += 1
            heapq.heappushpop(self.findings, entry)

    def skip(self, place: MemberPath, what: str, why: str) -> None:
        self.skipped.append(Skipped(place.path, place.members, what, why))


def scan_source(source: Source, path: str) -> FileReport:
    """The report on one source."""
    work = _Scan()
    kind = work.into(Nested(source, MemberPath(path)))
    least = ScanVerdict.DATA_ONLY if work.leaves else ScanVerdict.NOT_SCANNED
    ordered = tuple(sorted((f for *_, f in work.findings), key=_order))
    verdict = worst((least, *(f.verdict for f in ordered)))
    return FileReport(path, kind, source.size, verdict, not work.skipped, ordered, tuple(work.skipped), work.more)


def _order(f: ScanFinding) -> tuple[int, tuple[str, ...], int, str, str]:
    return -f.verdict.rank, f.members, -1 if f.offset is None else f.offset, f.rule, f.message


_PREAD: Final = hasattr(os, "pread")


class _InMemory(Source):
    """A small file, read once: archives have many places to read, and all scanners see the same bytes."""

    def __init__(self, file: Source) -> None:
        self.name, self.size, self.file = file.name, file.size, file
        if _PREAD and isinstance(file, FileSource):
            self.data = os.pread(file.fileno(), file.size, 0)
        else:
            self.data = file.read(0, file.size)
        if len(self.data) != file.size:  # it shrank while it was read: the same error as for any file
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
        return self.file.location(offset)


def scan_file(path: str) -> FileReport:
    """The report on one file. One that can't be opened has a report that says why."""
    try:
        plain = _plain_report(path)
        if plain is not None:
            return plain
        with open_source(resolve_path(path)) as source:
            return scan_source(source if source.size > SCAN_IN_MEMORY else _InMemory(source), path)
    except FormatError as error:  # it shrinks while it is read
        return _closed(path, "unreadable", error.reason)
    except OSError as error:
        return _closed(path, "unreadable", error.strerror or str(error))
    except UnsupportedError as error:
        return _closed(path, "special", error.message)


def _plain_report(path: str) -> FileReport | None:
    """The report on a small pickle of plain data; None for anything else."""
    if is_remote(path) or is_special(os.path.basename(path)):
        return None
    data = whole_file.read_pickle(path)
    if not data or not whole_file.is_plain(data):
        return None
    return FileReport(path, "pickle", len(data), ScanVerdict.DATA_ONLY, True)


def _closed(path: str, kind: str, why: str) -> FileReport:
    missed = Skipped(path, (), kind, why)
    return FileReport(path, kind, 0, ScanVerdict.NOT_SCANNED, False, (), (missed,))


# ---- paths ----


def reports(paths: Iterable[str | os.PathLike[str]], progress: Progress | None = None) -> Iterator[FileReport]:
    """The reports on all files, one by one."""
    for number, met in enumerate(walk.files(paths)):
        yield scan_file(met.path) if met.why is None else passed(met.path, met.why, met.rule)
        if progress:
            progress(number + 1, 0, met.path)


def passed(path: str, why: str, rule: str | None) -> FileReport:
    """The report on what isn't entered or followed. A note on the history of git, which no loader reads, leaves a
    folder's scan complete."""
    closed = _closed(path, "folder" if rule is None else "link", escape(why))
    if rule is None:
        return replace(closed, complete=why == walk.GIT_HISTORY)
    found = ScanFinding(rule, walk.RULES[rule].verdict, escape(why), path, consequence=walk.CONSEQUENCE)
    return replace(closed, verdict=found.verdict, findings=(found,))


def fold(paths: tuple[str, ...], every: Iterable[FileReport]) -> ScanReport:
    """Reports as one. Of very many files only those that found something are kept."""
    counts = dict.fromkeys((v.value for v in ScanVerdict), 0)
    kept: list[FileReport] = []
    complete, unreadable, unproven, nbytes = True, 0, 0, 0
    for report in every:
        counts[report.verdict.value] += 1
        complete &= report.complete
        unreadable += report.kind == "unreadable"
        unproven += any(f.verdict is ScanVerdict.UNPROVEN for f in report.findings)
        nbytes += report.nbytes
        if len(kept) < SCAN_FILES or (len(kept) < 2 * SCAN_FILES and report.findings):
            kept.append(report)
    overall = worst(tuple(ScanVerdict(v) for v, n in counts.items() if n))
    scanned = sum(counts.values())
    complete &= scanned > 0  # a folder without files is no scanned one
    return ScanReport(paths, overall, complete, counts, tuple(kept), scanned, unreadable, unproven, nbytes)


def scan(*paths: str | os.PathLike[str], progress: Progress | None = None) -> ScanReport:
    """What files and folders hold besides data, and the verdicts. FileNotFoundError where a path is none."""
    named = tuple(os.fspath(p) for p in paths)
    return fold(named, reports(named, progress))


def failed(
    report: ScanReport, fail_on: ScanVerdict | None, *, allow_unproven: bool = False, allow_unscanned: bool = False
) -> bool:
    """Whether a file's verdict is at least as bad as `fail_on` (None: never fails), or something couldn't be followed
    or wasn't scanned, unless that is allowed."""
    if fail_on is None:
        return False
    bad = any(n and ScanVerdict(v).rank >= fail_on.rank for v, n in report.counts.items())
    return bad or (report.unproven > 0 and not allow_unproven) or not (report.complete or allow_unscanned)
