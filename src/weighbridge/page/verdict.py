"""The verdict on top of a page: the kind of model, whether it is whole, safe, loadable and fits this machine, and
warnings. It combines the reports of `wb identify`, `verify`, `scan` and `fit`, and judges nothing itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import field
from enum import StrEnum
from typing import Final

from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.containers.base import Severity
from weighbridge.containers.formats import IMATRIX_DAT
from weighbridge.models.clients import LLAMA_CPP, ClientVerdict, loads
from weighbridge.models.llamacpp.rules import COMPANION, accompanies
from weighbridge.models.lora.forms import adapter_form
from weighbridge.models.open import open_headers
from weighbridge.page.views.judged_steps import JudgedStep, judged_steps
from weighbridge.reports.identify import IdentifyReport, identify
from weighbridge.reports.scan.model import ScanFinding, ScanReport, ScanVerdict, Use
from weighbridge.reports.verify.report import VerifyReport

_SHOWN: Final = 200  # findings


class Level(StrEnum):
    """How bad something is, the worst first. UNCHECKED: nothing is known about it."""

    DANGER = "danger"
    ERROR = "error"
    UNPROVEN = "unproven"
    WARNING = "warning"
    INFO = "info"
    UNCHECKED = "unchecked"
    OK = "ok"


_RANKS: Final = {level: rank for rank, level in enumerate(Level)}
_SEVERITIES: Final = {Severity.ERROR: Level.ERROR, Severity.WARNING: Level.WARNING, Severity.INFO: Level.INFO}
_SCANNED: Final = {
    ScanVerdict.DANGEROUS: Level.DANGER, ScanVerdict.MALFORMED: Level.ERROR, ScanVerdict.UNKNOWN_CODE: Level.UNPROVEN,
    ScanVerdict.UNPROVEN: Level.UNPROVEN, ScanVerdict.DATA_ONLY: Level.INFO, ScanVerdict.NOT_SCANNED: Level.UNPROVEN,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class VerdictAnswer:
    """The answer to one question about a model. `{needs}` and other names in `text` are replaced by sizes in `nbytes`.
    `why`: it wasn't checked."""

    question: str
    level: Level
    text: str
    nbytes: dict[str, int] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True, slots=True)
class VerdictBanner:
    """A warning above everything. `detail`: the reason or the consequence. `step`: of a pickle, that it is about."""

    level: Level
    text: str
    detail: str
    step: JudgedStep | None = None


@dataclass(frozen=True, slots=True)
class JudgedFinding:
    """A finding of `verify` or `scan` (`report`). `word`: its severity or verdict. `path`: the file, or ""."""

    level: Level
    report: str
    word: str
    message: str
    rule: str
    path: str
    tensor: str | None = None
    step: JudgedStep | None = None


@dataclass(frozen=True, slots=True)
class PageVerdict:
    """`reports`: the verdicts of `verify` and `scan`, the worst first. `findings`: the first 200, the worst first;
    `more`: the number of the others."""

    answers: tuple[VerdictAnswer, ...]
    banners: tuple[VerdictBanner, ...]
    reports: tuple[tuple[Level, str, str], ...]
    findings: tuple[JudgedFinding, ...]
    more: int


def verdict(path: str, verified: VerifyReport, scanned: ScanReport) -> PageVerdict:
    """Returns the verdict on the model at `path` from its reports, and from those that it makes here."""
    steps = judged_steps(f for file in scanned.files for f in file.findings)
    identity, client = identify(path), _client(path, verified)
    verify_rows = (
        JudgedFinding(_SEVERITIES[f.severity], "verify", f.severity.value, f.message, f.rule, f.path or "", f.tensor)
        for f in verified.findings
    )
    rows = sorted((*_scan_rows(scanned, steps), *verify_rows), key=lambda row: _RANKS[row.level])
    answers = (
        VerdictAnswer("What it is", Level.WARNING if identity.name_lies else Level.OK, _kind(identity)),
        _whole(verified), _safe(scanned), _loaded(client, identity), _fits(path, client),
    )  # fmt: skip
    banners = (*_safety_banners(scanned, steps, verified), *_damage_banners(verified, client))
    warned = f", {plural(verified.warnings, 'warning')}" if verified.verdict == "ok" and verified.warnings else ""
    reports = (
        (answers[2].level, "scan", scanned.verdict.value), (answers[1].level, "verify", f"{verified.verdict}{warned}"),
    )  # fmt: skip
    return PageVerdict(
        answers=answers,
        banners=tuple(sorted(banners, key=lambda banner: _RANKS[banner.level])),
        reports=tuple(sorted(reports, key=lambda report: _RANKS[report[0]])),
        findings=tuple(rows[:_SHOWN]),
        more=max(0, len(rows) - _SHOWN),
    )


# ---- answers ----

#: The question whose answer depends on the machine that the page is made on.
OF_THIS_MACHINE: Final = "Fits this machine"

_VARIANTS: Final = {
    "lora": "LoRA", "lora-adapter": "LoRA adapter", "imatrix": "importance matrix", "mmproj": "multimodal projector",
}  # fmt: skip


def _kind(identity: IdentifyReport) -> str:
    """Returns what the file is, and of what architecture: `GGUF LoRA adapter, llama`."""
    variant = _VARIANTS.get(identity.variant, identity.variant.replace("protocol-", "protocol "))
    title = (f"{identity.title} {variant}",) if identity.title == "GGUF" else (identity.title, variant)
    names = (*title, str(identity.detail.get("architecture", "")))
    return ", ".join(dict.fromkeys(name.strip() for name in names if name))


def _whole(verified: VerifyReport) -> VerdictAnswer:
    question = "Whole"
    if verified.verdict == "not-checked":
        return VerdictAnswer(question, Level.UNCHECKED, "completeness not checked")
    if verified.errors:
        return VerdictAnswer(question, Level.ERROR, f"broken: {plural(verified.errors, 'error')}")
    level = Level.WARNING if verified.warnings else Level.OK
    warned = f", {plural(verified.warnings, 'warning')}" if verified.warnings else ""
    return VerdictAnswer(question, level, f"complete{warned}{'' if verified.values else ' (values not checked)'}")


_SAFETY: Final = {
    ScanVerdict.DANGEROUS: "dangerous to load", ScanVerdict.MALFORMED: "malformed: loaders may disagree on it",
    ScanVerdict.UNKNOWN_CODE: "runs unknown code", ScanVerdict.UNPROVEN: "not proven safe",
    ScanVerdict.DATA_ONLY: "safe: data only", ScanVerdict.NOT_SCANNED: "safety not checked",
}  # fmt: skip


def _safe(scanned: ScanReport) -> VerdictAnswer:
    level = _SCANNED[scanned.verdict]
    if scanned.verdict is ScanVerdict.NOT_SCANNED:
        return VerdictAnswer("Safe", Level.UNCHECKED, _SAFETY[scanned.verdict])
    if scanned.verdict is ScanVerdict.DATA_ONLY:
        level = Level.OK if scanned.complete else Level.UNPROVEN
        text = _SAFETY[scanned.verdict] if scanned.complete else "not proven safe: parts were not scanned"
        return VerdictAnswer("Safe", level, text)
    return VerdictAnswer("Safe", level, _SAFETY[scanned.verdict])


def _client(path: str, verified: VerifyReport) -> ClientVerdict | None:
    """Returns the verdict of the program that the model is for; it is undecided for a whole file that accompanies a
    model. A damaged model isn't opened: `verify` has its verdict."""
    stopped = next((v for v in verified.verdicts if v.accepts is False), None)
    companion = next((f for f in verified.findings if f.rule == COMPANION), None)
    if companion is not None and stopped is None:
        return ClientVerdict(LLAMA_CPP, None, companion.message.removeprefix("file that "))
    with suppress(WeighbridgeError, OSError), open_headers(path).model as model:
        if model.format == IMATRIX_DAT:
            return ClientVerdict(LLAMA_CPP, None, accompanies("--imatrix"))
        if (form := adapter_form(model)) is not None:
            return ClientVerdict(form.client, None, f"accompanies a model: {form.client} applies it")
        if companion is None:
            return loads(model)
    if stopped is None:
        return None
    reason = next(
        (f.message for f in verified.findings if f.severity is Severity.ERROR), f"it stops at the {stopped.stage}"
    )
    return ClientVerdict(stopped.tool, False, reason)


def _loaded(client: ClientVerdict | None, identity: IdentifyReport) -> VerdictAnswer:
    question = "What runs it"
    if client is not None and client.accepts is not None:
        if client.accepts:
            return VerdictAnswer(question, Level.OK, f"{client.client} loads it")
        return VerdictAnswer(question, Level.ERROR, f"{client.client} would refuse it")
    if client is not None and client.why:
        return VerdictAnswer(question, Level.INFO, client.why)
    if client is not None and identity.format == "hf-model":
        return VerdictAnswer(question, Level.UNCHECKED, f"made for {client.client} (loading not checked)")
    return VerdictAnswer(question, Level.UNCHECKED, "loading not checked")


def _fits(path: str, client: ClientVerdict | None) -> VerdictAnswer:
    from weighbridge.fitting.report import fit  # late: takes a second to import

    question = OF_THIS_MACHINE
    if client is not None and client.accepts is None and client.why:
        return VerdictAnswer(question, Level.INFO, "memory depends on that model")
    try:
        report = fit(path)
    except (WeighbridgeError, OSError) as error:
        reason = error.message if isinstance(error, WeighbridgeError) else str(error)
        return VerdictAnswer(question, Level.UNCHECKED, "memory not checked", why=reason)
    nbytes = {"needs": report.needs, "missing" if report.free < 0 else "free": abs(report.free)}
    if report:
        fits = "fits" if report.verdict == "fits" else "just fits"
        return VerdictAnswer(question, Level.OK, f"{fits} this machine ({{needs}} needed, {{free}} free)", nbytes)
    spare = "{missing} missing" if report.free < 0 else "{free} free"
    if report.verdict == "partly":
        layers = f"{report.placement.offloaded} of {plural(report.placement.layers, 'layer')}"
        return VerdictAnswer(question, Level.WARNING, f"{layers} fit this machine's GPU ({{needs}} needed)", nbytes)
    return VerdictAnswer(question, Level.ERROR, f"doesn't fit this machine ({{needs}} needed, {spare})", nbytes)


# ---- banners ----


_ADVICE: Final = {
    ScanVerdict.DANGEROUS: "Don't load it.", ScanVerdict.MALFORMED: "Loaders may disagree on this file.",
    ScanVerdict.UNKNOWN_CODE: "Load it only if you trust its author.", ScanVerdict.UNPROVEN: "It is not proven safe.",
}  # fmt: skip


def _safety_banners(
    scanned: ScanReport, steps: dict[ScanFinding, JudgedStep], verified: VerifyReport
) -> Iterator[VerdictBanner]:
    """Yields the banner of the worst finding, or of an incomplete scan. Damage that `verify` finds too is left to its
    banner."""
    every = [f for file in scanned.files for f in file.findings if f.verdict is not ScanVerdict.DATA_ONLY]
    if every:
        worst = max(every, key=lambda f: f.verdict.rank)
        if not any(f.message.startswith(worst.message) for f in verified.findings if f.severity is Severity.ERROR):
            name = os.path.basename(worst.path)
            call = f"{worst.name}({', '.join(worst.arguments)})" if worst.name and worst.use is Use.CALLED else ""
            acts = f"Loading {name} runs `{call}`." if call else f"{name}: {worst.message}."
            detail = " ".join(filter(None, (_sentence(worst.consequence), _more(len(every) - 1, "finding"))))
            yield VerdictBanner(_SCANNED[worst.verdict], f"{acts} {_ADVICE[worst.verdict]}", detail, steps.get(worst))
    elif not scanned.complete and scanned.verdict is not ScanVerdict.NOT_SCANNED:
        skipped = next((s for file in scanned.files for s in file.skipped), None)
        reason = f"{skipped.what}: {skipped.why}" if skipped else "not everything was scanned"
        yield VerdictBanner(Level.UNPROVEN, "Not proven safe.", _sentence(reason))


def _damage_banners(verified: VerifyReport, client: ClientVerdict | None) -> Iterator[VerdictBanner]:
    """Yields the banner of the first error, and of a refusal for another reason."""
    errors = [f for f in verified.findings if f.severity is Severity.ERROR]
    refused = client if client is not None and client.accepts is False else None
    refusal = f"{refused.client} would refuse this model." if refused else ""
    if errors:
        first = errors[0]
        same = bool(refused and refused.why.startswith(first.message))
        name = os.path.basename(first.path or verified.path)
        details = (refusal if same else "", _sentence(first.hint or ""), _more(len(errors) - 1, "error"))
        yield VerdictBanner(Level.ERROR, f"Broken: {name}: {first.message}.", " ".join(filter(None, details)))
        if same:
            return
    if refused:
        yield VerdictBanner(Level.ERROR, refusal, _sentence(refused.why))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def _more(count: int, noun: str) -> str:
    return f"{plural(count, f'more {noun}')} in the summary." if count else ""


# ---- findings ----


def _scan_rows(scanned: ScanReport, steps: dict[ScanFinding, JudgedStep]) -> Iterator[JudgedFinding]:
    for file in scanned.files:
        for f in file.findings:
            note = f.verdict is ScanVerdict.DATA_ONLY
            called = f" with {', '.join(f.arguments)}" if f.arguments else ""
            yield JudgedFinding(
                _SCANNED[f.verdict], "scan", "note" if note else f.verdict.value, f"{f.message}{called}", f.rule,
                f.path, step=steps.get(f),
            )  # fmt: skip
        for s in file.skipped:
            yield JudgedFinding(Level.UNPROVEN, "scan", "not scanned", f"{s.what}: {s.why}", "", s.path)
