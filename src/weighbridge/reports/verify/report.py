"""Verifies a file, a set or a model folder, and reports all findings at once.

    verify(path) -> VerifyReport      headers, sets, config, tokenizer: no tensor is read
    verify(path, values=True)         every number as well

The rules are tables: `RULES` here (files, folder, config ...), `RULES` in `values.py`, and those of the containers,
whose findings are passed on. Findings are data, sorted, with stable ids; only a missing path raises an exception.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final, Literal

from weighbridge.base.errors import FormatError
from weighbridge.base.options import accepting
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.containers.base import Finding, Severity
from weighbridge.io.location import path_text
from weighbridge.models.arch.registry import read_family
from weighbridge.models.locate import path_of_step
from weighbridge.reports.lenient import broken
from weighbridge.reports.options import VerifyOptions
from weighbridge.reports.signature.model import SignatureReport
from weighbridge.reports.verify import digests as verify_digests
from weighbridge.reports.verify import distributed as verify_distributed
from weighbridge.reports.verify import imatrix as verify_imatrix
from weighbridge.reports.verify import licences as verify_licences
from weighbridge.reports.verify import model as verify_model
from weighbridge.reports.verify import packing as verify_packing
from weighbridge.reports.verify import pairs as verify_pairs
from weighbridge.reports.verify import ranks as verify_ranks
from weighbridge.reports.verify import rules as verify_rules
from weighbridge.reports.verify import runs as verify_runs
from weighbridge.reports.verify import signature as verify_signature
from weighbridge.reports.verify import values as verify_values
from weighbridge.reports.verify.repo import Progress, Repo
from weighbridge.reports.verify.rules import Check, Flaw
from weighbridge.reports.verify.values import ValueRule

SCHEMA: Final = "weighbridge/verify/1"

#: Every rule here that needs no tensor data, in the order of the docs.
RULES: Final[tuple[Check, ...]] = (
    *verify_rules.RULES, *verify_digests.RULES, *verify_ranks.RULES, *verify_imatrix.RULES, *verify_model.RULES,
    *verify_pairs.RULES, *verify_licences.RULES, *verify_signature.RULES, *verify_distributed.RULES,
    *verify_runs.RULES,
)  # fmt: skip

#: Those that compare tensors with each other.
VALUE_RULES: Final = (*verify_packing.VALUE_RULES, *verify_distributed.VALUE_RULES)

_RANK: Final = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a tool loads a file, from the findings that would stop it. `accepts` is None if Weighbridge doesn't know
    the tool's requirements. `stage`: the step at which the tool stops (GGUF: header, data, model); empty if it loads
    the file. `option`: of the tool, for a file that accompanies a model; empty for a model."""

    path: str
    tool: str
    accepts: bool | None
    stage: str = ""
    option: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class VerifyReport:
    """`verdict`: "ok", "failed" (a finding is an error), or "not-checked" (no file has a format that verify checks).
    `ok`: no finding is an error. `unchecked`: files of other formats. `values`: whether every number was read.
    `digests`: the number of files compared with the digest in their store's name for them, or in a remote listing.
    `signature`: None if none was given. A report is true if the verdict is "ok"."""

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
    signature: SignatureReport | None = None
    schema: str = SCHEMA

    def __bool__(self) -> bool:
        return self.verdict == "ok"

    def __repr__(self) -> str:
        counts = f"{plural(self.errors, 'error')}, {plural(self.warnings, 'warning')}, {plural(self.infos, 'note')}"
        return f"<VerifyReport {self.path}: {self.verdict}, {counts}>"

    def worst(self) -> Severity | None:
        """The severity of the worst finding."""
        return min((f.severity for f in self.findings), key=_RANK.__getitem__, default=None)


@accepting(VerifyOptions)
def verify(path: str | os.PathLike[str], options: VerifyOptions) -> VerifyReport:
    """Verifies a file, an index or a folder. Raises FileNotFoundError if `path` doesn't exist, and
    UsageError if `mmproj` isn't a projector or `path` has no language model for it."""
    if options.step is not None:
        path = path_of_step(path, options.step)
    families = (read_family(Path(options.arch_file)),) if options.arch_file else ()
    with (
        _joined(path, options) as place,
        Repo(place, options.progress, values=options.values, families=families, mmproj=options.mmproj) as repo,
    ):
        verify_pairs.check_given(repo)
        signature = verify_signature.prepare(repo, options)
        every = [_finding(rule, flaw) for rule in RULES for flaw in rule.check(repo)]
        every += [f for check in verify_rules.PASSED_ON.values() for f in check(repo)]
        every += _check_values(repo, options.progress) if options.values else ()
        findings = tuple(sorted(
            dict.fromkeys(every),
            key=lambda f: (_RANK[f.severity], f.path or "", -1 if f.offset is None else f.offset, f.tensor or "",
                           f.rule, f.message),
        ))  # fmt: skip
        checked = bool(repo.checked or signature)
        count = {severity: sum(f.severity is severity for f in findings) for severity in Severity}
        return VerifyReport(
            path=path_text(path),
            verdict="failed" if count[Severity.ERROR] else "ok" if checked else "not-checked",
            ok=checked and not count[Severity.ERROR],
            errors=count[Severity.ERROR],
            warnings=count[Severity.WARNING],
            infos=count[Severity.INFO],
            findings=findings,
            verdicts=tuple(_verdicts(repo, findings)),
            files=len(repo.files),
            tensors=sum(len(f.parsed[1]) for f in repo.weights) + sum(len(m.index) for _, m in repo.orbax.models),
            nbytes=sum(f.size for f in repo.files),
            values=options.values,
            unchecked=tuple(f.name for f in repo.unchecked if not verify_signature.is_signature(f, signature)),
            digests=len(verify_digests.listed(repo)),
            signature=signature.report if signature else None,
        )


def _joined(path: str | os.PathLike[str], options: VerifyOptions) -> AbstractContextManager[str | os.PathLike[str]]:
    """The path, with the config of the options if there is one."""
    if options.config is None:
        return nullcontext(path)
    from weighbridge.models.joined_folder import joined_path  # late: few weights get a config

    return joined_path(path, options.config)


def _finding(rule: Check | ValueRule, f: Flaw) -> Finding:
    path = None if f.path is None else str(f.path)
    return Finding(rule.id, rule.severity, f.message, path, f.offset, f.tensor, f.hint)


def _check_values(repo: Repo, progress: Progress | None) -> Iterator[Finding]:
    try:
        damaged = list(verify_values.damaged(repo))
        yield from damaged
        skip = {(f.path, f.tensor) for f in damaged}
        yield from (_finding(rule, flaw) for rule, flaw in verify_values.check_values(repo, progress, skip))
        yield from (_finding(rule, flaw) for rule in VALUE_RULES for flaw in rule.check(repo))
    except FormatError as error:  # the file shrank while it was read
        yield broken("values/changed", error, str(repo.path))


def _verdicts(repo: Repo, findings: Iterable[Finding]) -> Iterator[Verdict]:
    """Whether the programs for which the files are made would load them, whatever the specification requires:
    llama.cpp each GGUF, mlx-lm a folder in its format."""
    from weighbridge.models.clients import MLX_LM, is_for_mlx_lm
    from weighbridge.models.llamacpp import rules as gguf
    from weighbridge.models.llamacpp.candidate import Candidate
    from weighbridge.models.mlxlm.rules import accepts

    if repo.config and repo.model is not None and is_for_mlx_lm(repo.config, repo.model):
        accepted = accepts(tuple(findings))
        yield Verdict(str(repo.root), MLX_LM, accepted, "model" if accepted is False else "")
    files = [f for f in repo.files if f.format == "gguf"]
    by_path: dict[str, list[Finding]] = {str(f.path): [] for f in files}
    for finding in findings:
        by_path.get(finding.path or "", []).append(finding)
    for file in files:
        path, index = str(file.path), file.index
        if index is None:  # our parser is more lenient than any loader's
            yield Verdict(path, "llama.cpp", False, "header")
            continue
        option = gguf.option_of(Candidate(index.metadata, {}))
        found = [f for f in by_path[path] if not option or f.rule != gguf.COMPANION]
        yield Verdict(path, "llama.cpp", gguf.accepts(found, option), gguf.stage_of(found), option)


def failed(report: VerifyReport, fail_on: Severity = Severity.ERROR) -> bool:
    """Whether any finding is at least as bad as `fail_on`."""
    return any(_RANK[f.severity] <= _RANK[fail_on] for f in report.findings)
