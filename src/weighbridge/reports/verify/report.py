"""Everything that can be wrong with a file, a set or a model folder, all findings at once.

    verify(path) -> VerifyReport            headers, sets, config, tokenizer: no tensor is read
    verify(path, values=True)         every number too

The rules are tables: `RULES` here (files, folder, config ...), `verify_values.RULES`, and those of the containers,
whose findings are passed on. Findings are data, sorted, with stable ids; an exception is for a path that isn't there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from weighbridge.base.errors import FormatError
from weighbridge.containers.base import Finding, Severity
from weighbridge.reports.lenient import broken
from weighbridge.reports.verify import digests as verify_digests
from weighbridge.reports.verify import imatrix as verify_imatrix
from weighbridge.reports.verify import model as verify_model
from weighbridge.reports.verify import packing as verify_packing
from weighbridge.reports.verify import ranks as verify_ranks
from weighbridge.reports.verify import rules as verify_rules
from weighbridge.reports.verify import values as verify_values
from weighbridge.reports.verify.repo import Progress, Repo, RepoFile
from weighbridge.reports.verify.rules import Check

SCHEMA: Final = "weighbridge/verify/1"

#: Every rule of ours that needs no tensor data. The order is that of the docs; findings are sorted.
RULES: Final[tuple[Check, ...]] = (
    *verify_rules.RULES, *verify_digests.RULES, *verify_ranks.RULES, *verify_imatrix.RULES, *verify_model.RULES,
)  # fmt: skip

_RANK: Final = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a tool loads a file as a model, by the findings that it would stop at; None where Weighbridge can't tell
    (it doesn't know which tensors the architecture has). `stage`: how far it gets (GGUF: header, data, model); empty
    where it loads it."""

    path: str
    tool: str
    accepts: bool | None
    stage: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class VerifyReport:
    """`verdict`: "ok", "failed" (a finding is an error), or "not-checked" (nothing here is of a format that verify
    checks). `ok`: no finding is an error. `unchecked`: files of formats that it doesn't check. `values`: whether every
    number was read. `digests`: files compared with the digest that a store calls them by. A report is true where the
    verdict is "ok"."""

    path: str
    verdict: Literal["ok", "failed", "not-checked"]
    ok: bool
    errors: int
    warnings: int
    infos: int
    findings: tuple[Finding, ...]
    verdicts: tuple[Verdict, ...]
    files: int
    tensors: int
    nbytes: int
    values: bool
    unchecked: tuple[str, ...] = ()
    digests: int = 0
    schema: str = SCHEMA

    def __bool__(self) -> bool:
        return self.verdict == "ok"

    def __repr__(self) -> str:
        counts = f"{self.errors} errors, {self.warnings} warnings, {self.infos} notes"
        return f"<VerifyReport {self.path}: {self.verdict}, {counts}>"

    def worst(self) -> Severity | None:
        """The severity of the worst finding."""
        return min((f.severity for f in self.findings), key=_RANK.__getitem__, default=None)


def verify(path: str | os.PathLike[str], *, values: bool = False, progress: Progress | None = None) -> VerifyReport:
    """All findings on what lies at `path`: a file, an index, a folder. FileNotFoundError where nothing does."""
    with Repo(path, progress) as repo:
        found = [*_checked(repo), *_passed_on(repo), *(_values(repo, progress) if values else ())]
        findings = tuple(sorted(dict.fromkeys(found), key=_order))
        count = {severity: sum(f.severity is severity for f in findings) for severity in Severity}
        return VerifyReport(
            path=os.fspath(path),
            verdict="failed" if count[Severity.ERROR] else "ok" if repo.checked else "not-checked",
            ok=bool(repo.checked) and not count[Severity.ERROR],
            errors=count[Severity.ERROR],
            warnings=count[Severity.WARNING],
            infos=count[Severity.INFO],
            findings=findings,
            verdicts=tuple(_verdicts(repo, findings)),
            files=len(repo.files),
            tensors=sum(len(f.index) for f in repo.weights if f.index),
            nbytes=sum(f.size for f in repo.files),
            values=values,
            unchecked=tuple(f.name for f in repo.unchecked),
            digests=len(verify_digests.named(repo)),
        )


def _checked(repo: Repo) -> Iterator[Finding]:
    for rule in RULES:
        for f in rule.check(repo):
            yield Finding(rule.id, rule.severity, f.message, f.path, f.offset, f.tensor, f.hint)


def _passed_on(repo: Repo) -> Iterator[Finding]:
    """Findings of the containers, which bring their ids and severities with them."""
    for check in verify_rules.PASSED_ON.values():
        yield from check(repo)


def _values(repo: Repo, progress: Progress | None) -> Iterator[Finding]:
    try:
        damaged = list(verify_values.damaged(repo))
        yield from damaged
        for rule, f in verify_values.found(repo, progress, {(f.path, f.tensor) for f in damaged}):
            yield Finding(rule.id, rule.severity, f.message, f.path, f.offset, f.tensor, f.hint)
        for packed in verify_packing.VALUE_RULES:
            for f in packed.check(repo):
                yield Finding(packed.id, packed.severity, f.message, f.path, f.offset, f.tensor, f.hint)
    except FormatError as error:  # a file that shrinks while it is read
        yield broken("values/changed", error, str(repo.path))


def _order(f: Finding) -> tuple[int, str, int, str, str, str]:
    return _RANK[f.severity], f.path or "", -1 if f.offset is None else f.offset, f.tensor or "", f.rule, f.message


def _verdicts(repo: Repo, findings: Iterable[Finding]) -> Iterator[Verdict]:
    """The GGUF files' third level: whether llama.cpp would load them, whatever the specification says."""
    files = [f for f in repo.files if f.format == "gguf"]
    mine: dict[str, list[Finding]] = {str(f.path): [] for f in files}
    for finding in findings:
        mine.get(finding.path or "", []).append(finding)
    for file in files:
        yield _verdict(file, mine[str(file.path)])


def _verdict(file: RepoFile, findings: Sequence[Finding]) -> Verdict:
    from weighbridge.containers.gguf.container import refused_at
    from weighbridge.models.llamacpp.rules import OPEN, REFUSED

    # What our lenient parser can't make an index of, nobody's can.
    stage = refused_at(findings).value or ("header" if file.index is None else "")
    rules = {finding.rule for finding in findings}
    stage = stage or ("model" if rules & (REFUSED | {verify_model.GGUF_SIZE}) else "")
    accepts = False if stage else None if rules & OPEN.keys() else True
    return Verdict(str(file.path), "llama.cpp", accepts, stage)


def failed(report: VerifyReport, fail_on: Severity = Severity.ERROR) -> bool:
    """Whether any finding is at least as bad as `fail_on`."""
    return any(_RANK[f.severity] <= _RANK[fail_on] for f in report.findings)
