"""Scans model files for code and other hazards, file by file, each with everything nested in it.

    for report in reports(paths): ...      one file at a time, in a fixed order: memory use doesn't grow with the files
    scan(paths) -> ScanReport              all of them together

Nothing in a file is run, imported or unpacked to disk. The engine opens each file, detects its kind, runs every scanner
that the registry has for it, follows nested parts, and folds the findings into verdicts. One budget bounds the cost of
a file with everything in it. A failure in one part is a finding, and the scan continues.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field, replace
from itertools import count
from typing import Final

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.limits import SCAN_FILES, SCAN_IN_MEMORY, SNIFF_HEAD
from weighbridge.base.options import accepting
from weighbridge.base.records import dataclass
from weighbridge.io.location import is_remote, open_source, path_text
from weighbridge.io.source import FileSource, Source
from weighbridge.reports.options import ScanOptions
from weighbridge.reports.scan import walk
from weighbridge.reports.scan.detect import kind_of
from weighbridge.reports.scan.model import (
    RULES,
    Budget,
    FileReport,
    MemberPath,
    OverLimit,
    Part,
    ScanFinding,
    ScanReport,
    ScanVerdict,
    Skipped,
    escape,
    worst,
)
from weighbridge.reports.scan.names import is_accepted
from weighbridge.reports.scan.pickle import whole_file
from weighbridge.reports.scan.registry import is_special, scanners_for

Progress = Callable[[int, int, str], None]

_ACCEPTED: Final = "scan/accepted"


@dataclass
class _Scan:
    """The scan of one file. `libraries`: packages whose classes the user accepts."""

    budget: Budget
    libraries: frozenset[str] = frozenset()
    findings: list[tuple[int, int, ScanFinding]] = field(default_factory=list)  # a heap, the mildest first
    skipped: list[Skipped] = field(default_factory=list)
    more: int = 0
    leaves: int = 0  # parts that were scanned and contain no others
    order: count[int] = field(default_factory=count)
    open: set[tuple[int, str]] = field(default_factory=set)  # sources being scanned, each with its kind

    def scan_part(self, part: Part) -> str:
        """Runs every scanner on a part and on the parts nested in it. Returns its kind."""
        kinds: list[str] = [part.kind] if part.kind else []
        self._guard(part, lambda: kinds.append(kind_of(part.source, part.place)) if not kinds else None)
        kind = kinds[0] if kinds else "unknown"
        reading = id(part.source), kind
        if reading in self.open:  # a pickle that is HDF5 that is a pickle
            return kind
        self.open.add(reading)
        supported, scanners = scanners_for(kind, part.place)
        skipped, nested = len(self.skipped), [0]

        for scanner in scanners:

            def take_pieces(scanner=scanner) -> None:  # type: ignore[no-untyped-def]
                for piece in scanner(part):
                    nested[0] += isinstance(piece, Part)
                    if isinstance(piece, ScanFinding):
                        self.add(piece)
                    elif isinstance(piece, Skipped):
                        self.skipped.append(piece)
                    else:
                        self.budget.enter(min(piece.source.size, SNIFF_HEAD))
                        try:
                            self.scan_part(piece)
                        finally:
                            self.budget.leave()

            self._guard(part, take_pieces)
        if not supported and not nested[0]:
            self.skipped.append(part.skipped(kind, "unsupported file type"))
        elif not nested[0] and len(self.skipped) == skipped:
            self.leaves += 1
        self.open.discard(reading)
        return kind

    def _guard(self, part: Part, action: Callable[[], None]) -> None:
        """Runs `action`; its failure is a finding on the part."""
        try:
            action()
        except OverLimit as error:
            self.add(part.finding("scan/limit", error.message))
            self.skipped.append(part.skipped("the rest", error.message))
        except FormatError as error:
            at = error.offset if error.offset is not None and error.offset < part.source.size else None
            self.add(part.finding("scan/broken", error.reason, at=at))
        except UnsupportedError as error:
            self.skipped.append(part.skipped(part.kind or "part", error.message))
        except OSError as error:
            self.skipped.append(part.skipped(part.kind or "part", error.strerror or str(error)))
        except Exception as error:
            self.add(part.finding("scan/failure", f"{type(error).__name__}: {error}"))

    def add(self, finding: ScanFinding) -> None:
        """Keeps a finding. Of too many the worst are kept, so that the verdict stays right."""
        if finding.verdict is ScanVerdict.UNKNOWN_CODE and finding.name and is_accepted(finding.name, self.libraries):
            finding = replace(finding, verdict=RULES[_ACCEPTED].verdict, rule=_ACCEPTED, consequence="")
        entry = finding.verdict.rank, -next(self.order), finding
        if self.budget.findings > 0:
            self.budget.findings -= 1
            heapq.heappush(self.findings, entry)
        else:
            self.more += 1
            heapq.heappushpop(self.findings, entry)


def scan_source(source: Source, path: str, libraries: frozenset[str] = frozenset()) -> FileReport:
    """The report on one source. `libraries`: packages whose classes are accepted."""
    work = _Scan(Budget(size=source.size), libraries)
    kind = work.scan_part(Part(source, MemberPath(path), work.budget))
    least = ScanVerdict.DATA_ONLY if work.leaves else ScanVerdict.NOT_SCANNED
    findings = tuple(sorted(
        (f for *_, f in work.findings),
        key=lambda f: (-f.verdict.rank, f.members, -1 if f.offset is None else f.offset, f.rule, f.message),
    ))  # fmt: skip
    verdict = worst((least, *(f.verdict for f in findings)))
    return FileReport(path, kind, source.size, verdict, not work.skipped, findings, tuple(work.skipped), work.more)


_PREAD: Final = hasattr(os, "pread")


class _InMemory(Source):
    """A small file, read once: archives are read in many places, and all scanners see the same bytes."""

    def __init__(self, file: Source) -> None:
        self.name, self.size, self.file = file.name, file.size, file
        if _PREAD and isinstance(file, FileSource):
            self.data = os.pread(file.fileno(), file.size, 0)
        else:
            self.data = file.read(0, file.size)
        if len(self.data) != file.size:  # the file shrank: raises the usual error
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


def scan_file(path: str, libraries: frozenset[str] = frozenset()) -> FileReport:
    """The report on one file. If it can't be opened the report has the reason."""
    try:
        if not is_remote(path) and not is_special(os.path.basename(path)):
            data = whole_file.read_pickle(path)
            if data and whole_file.is_plain(data):
                return FileReport(path, "pickle", len(data), ScanVerdict.DATA_ONLY, True)
        with open_source(resolve_path(path)) as source:
            return scan_source(source if source.size > SCAN_IN_MEMORY else _InMemory(source), path, libraries)
    except FormatError as error:  # the file shrinks while it is read
        return _unscanned(path, "unreadable", error.reason)
    except OSError as error:
        return _unscanned(path, "unreadable", error.strerror or str(error))
    except UnsupportedError as error:
        return _unscanned(path, "special", error.message)


def _unscanned(path: str, kind: str, reason: str) -> FileReport:
    return FileReport(path, kind, 0, ScanVerdict.NOT_SCANNED, False, (), (Skipped(path, (), kind, reason),))


# ---- paths ----


def reports(
    paths: Iterable[str | os.PathLike[str]], progress: Progress | None = None, libraries: Iterable[str] = ()
) -> Iterator[FileReport]:
    """The reports on all files, one by one."""
    accepted = accepted_libraries(libraries)
    for number, entry in enumerate(walk.files(paths)):
        yield scan_file(entry.path, accepted) if entry.reason is None else passed(entry.path, entry.reason, entry.rule)
        if progress:
            progress(number + 1, 0, entry.path)


def accepted_libraries(libraries: Iterable[str]) -> frozenset[str]:
    """The names of packages. Raises UsageError for text that can't be one."""
    names = frozenset(libraries)
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"{name!r} is not the name of a package", hint="--allow-library sklearn")
    return names


def unknown_libraries(report: ScanReport) -> tuple[str, ...]:
    """The packages whose classes are unknown code in a report, and which `--allow-library` would accept."""
    names = [f.name for file in report.files for f in file.findings if f.verdict is ScanVerdict.UNKNOWN_CODE and f.name]
    packages = dict.fromkeys(name.partition(".")[0] for name in names)
    return tuple(p for p in packages if any(is_accepted(name, {p}) for name in names))


def passed(path: str, reason: str, rule: str | None) -> FileReport:
    """The report on a path that isn't followed. Git's history, which no loader reads, leaves a folder's scan
    complete."""
    report = _unscanned(path, "folder" if rule is None else "link", escape(reason))
    if rule is None:
        return replace(report, complete=reason == walk.GIT_HISTORY)
    finding = ScanFinding(rule, RULES[rule].verdict, escape(reason), path, consequence=walk.CONSEQUENCE)
    return replace(report, verdict=finding.verdict, findings=(finding,))


def fold(paths: tuple[str, ...], every: Iterable[FileReport]) -> ScanReport:
    """Combines reports into one. Of very many files only those with findings are kept."""
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
    overall = worst(ScanVerdict(v) for v, n in counts.items() if n)
    scanned = sum(counts.values())
    complete &= scanned > 0  # a folder without files doesn't count as scanned
    return ScanReport(paths, overall, complete, counts, tuple(kept), scanned, unreadable, unproven, nbytes)


@accepting(ScanOptions)
def scan(*paths: str | os.PathLike[str], options: ScanOptions) -> ScanReport:
    """Scans files and folders for anything besides data. Raises FileNotFoundError if a path doesn't exist."""
    return fold(tuple(path_text(p) for p in paths), reports(paths, options.progress, options.allow_library))


def failed(
    report: ScanReport, fail_on: ScanVerdict | None, *, allow_unproven: bool = False, allow_unscanned: bool = False
) -> bool:
    """Whether a file's verdict is at least as bad as `fail_on` (None: never fails), or a part couldn't be followed or
    wasn't scanned, unless that is allowed."""
    if fail_on is None:
        return False
    bad = any(n and ScanVerdict(v).rank >= fail_on.rank for v, n in report.counts.items())
    return bad or (report.unproven > 0 and not allow_unproven) or not (report.complete or allow_unscanned)
