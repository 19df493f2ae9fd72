"""The steps of pickles that findings of a scan are about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.limits import PICKLE_READING
from weighbridge.base.records import dataclass
from weighbridge.containers.opening import format_of
from weighbridge.io.location import open_source
from weighbridge.io.source import Source
from weighbridge.reports.scan.model import ScanFinding, ScanVerdict
from weighbridge.unpickle.explain import explain
from weighbridge.unpickle.machine import Machine

_FILES: Final = 32  # whose pickles are followed
_FINDINGS: Final = 200  # per file


@dataclass(frozen=True, slots=True)
class JudgedStep:
    """Step `number` of the pickle `member` in the file at `path`."""

    path: str
    member: str
    number: int


def judged_steps(findings: Iterable[ScanFinding]) -> dict[ScanFinding, JudgedStep]:
    """Returns the step of each finding within a pickle. Notes, and findings in nested archives, have none."""
    by_file: dict[str, list[ScanFinding]] = {}
    for finding in findings:
        if finding.offset is not None and finding.verdict is not ScanVerdict.DATA_ONLY and len(finding.members) < 2:
            by_file.setdefault(finding.path, []).append(finding)
    steps: dict[ScanFinding, JudgedStep] = {}
    for path, judged in list(by_file.items())[:_FILES]:
        with suppress(WeighbridgeError, OSError), open_source(resolve_path(path)) as source:
            steps.update(_steps_in(source, path, judged[:_FINDINGS]))
    return steps


def _steps_in(source: Source, path: str, findings: list[ScanFinding]) -> Iterator[tuple[ScanFinding, JudgedStep]]:
    for member, pickle, offset in format_of(source).pickles_in(source):
        pending = {f: at for f in findings if (at := _position(f, member, offset, pickle.size)) is not None}
        for number, step in enumerate(explain(Machine(pickle, 0, PICKLE_READING)) if pending else ()):
            for finding in [f for f, at in pending.items() if step.at <= at < step.end]:
                del pending[finding]
                yield finding, JudgedStep(path, member, number)
            if not pending:
                break


def _position(finding: ScanFinding, member: str, offset: int, size: int) -> int | None:
    """Returns the finding's byte in the pickle `member` at `offset` of the file (-1: compressed), None if elsewhere."""
    if finding.members:
        return finding.offset if finding.members[0] == member else None
    if finding.file_offset is None or offset < 0:
        return None
    at = finding.file_offset - offset
    return at if 0 <= at < size else None
