"""Writes a model's bill of materials: `wb sbom`.

    sbom(path) -> SbomReport          CycloneDX 1.6; `report.text()` is the file
    sbom(path, format="spdx")         SPDX 3.0.1

The same model gives the same bytes: the serial number follows from the content, and there is a time only if one is
given.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from weighbridge.base.errors import UsageError
from weighbridge.base.options import Progress, ProgressKeyword, accepting, option
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.containers.base import Finding, Severity
from weighbridge.io.location import RemotePath, path_text
from weighbridge.io.options import JobsOptions
from weighbridge.reports.hash.digests import Tally, hash_file, map_parallel
from weighbridge.reports.sbom import cyclonedx, spdx
from weighbridge.reports.sbom.facts import BaseModel, BomFacts, BomFile, base_licences, collect
from weighbridge.reports.sbom.licences import StatedLicence, contradiction, differ

Path = str | os.PathLike[str]
_FORMATS: Final[Mapping[str, Callable[[BomFacts, str, str | None], dict[str, Any]]]] = {
    "cyclonedx": cyclonedx.document, "spdx": spdx.document,
}  # fmt: skip
# The name space of the serial numbers (a random UUID).
_NAMESPACE: Final = uuid.UUID("5a1d2b90-6c1e-4c0b-9a0e-6d1f6f0c7a35")


@dataclass(frozen=True, kw_only=True)
class SbomOptions(JobsOptions, ProgressKeyword):
    format: Literal["cyclonedx", "spdx"] = option("cyclonedx (1.6) or spdx (3.0.1) [cyclonedx].", "cyclonedx")
    hash_remote: bool = option("Also hash remote files that list no SHA-256, which reads them.", False)
    base_card: Path | Sequence[Path] = option(
        "Model card of the base model, or its folder, to compare the licences. Repeatable.", (), metavar="PATH",
        kind="path",
    )  # fmt: skip
    timestamp: str | None = option(
        "Time in the document: ISO 8601 or seconds [SOURCE_DATE_EPOCH, else none].", metavar="TIME"
    )


@dataclass(frozen=True, slots=True, repr=False)
class SbomReport:
    """`document`: the bill of materials. `unhashed`: files without a SHA-256 in it. `findings`: about the licences.
    A report is true if all findings are notes."""

    path: str
    format: str
    document: Mapping[str, Any]
    files: int
    unhashed: tuple[str, ...]
    findings: tuple[Finding, ...]
    schema: str = "weighbridge/sbom/1"

    def text(self) -> str:
        """The document as a file."""
        return text_of(self.document)

    def __bool__(self) -> bool:
        return all(finding.severity is Severity.INFO for finding in self.findings)

    def __repr__(self) -> str:
        return f"<SbomReport {self.path}: {self.format}, {plural(self.files, 'file')}>"


@accepting(SbomOptions)
def sbom(path: str | os.PathLike[str], options: SbomOptions) -> SbomReport:
    """Makes the bill of materials of a model: architecture, licences, base models, and the SHA-256 of every file. A
    remote file is hashed only with `hash_remote`; the digests that its store lists are taken over."""
    timestamp = parse_time(options.timestamp)
    facts = collect(path)
    if options.hash_remote and not any(isinstance(file.path, RemotePath) for file in facts.files):
        raise UsageError("--hash-remote applies to remote files", hint="local files are always hashed")
    cards = [options.base_card] if isinstance(options.base_card, str | os.PathLike) else options.base_card
    files = hashed(facts.files, options.jobs, options.progress, remote=options.hash_remote)
    if len(cards) > len(facts.bases):
        named = plural(len(facts.bases), "base model")
        raise UsageError(f"the model names {named}, but {plural(len(cards), 'card')} were given by --base-card")
    licences = [base_licences(card) for card in cards] + [()] * (len(facts.bases) - len(cards))
    bases = tuple(replace(base, licences=stated) for base, stated in zip(facts.bases, licences, strict=True))
    facts = replace(facts, files=files, bases=bases)
    return SbomReport(
        path=path_text(path),
        format=options.format,
        document=document_of(facts, options.format, timestamp),
        files=len(facts.files),
        unhashed=tuple(file.name for file in facts.files if file.sha256 is None),
        findings=tuple(licence_findings(facts, facts.bases[: len(cards)])),
    )


def document_of(facts: BomFacts, format: str, timestamp: str | None) -> dict[str, Any]:
    """Returns the document of a format, with a serial number that follows from the content."""
    write = _FORMATS[format]
    content = json.dumps(write(facts, str(uuid.UUID(int=0)), timestamp), sort_keys=True).encode()
    return write(facts, str(uuid.uuid5(_NAMESPACE, hashlib.sha256(content).hexdigest())), timestamp)


def text_of(document: Mapping[str, Any]) -> str:
    """Returns a document as a file."""
    return json.dumps(document, indent=2) + "\n"


def parse_time(text: str | None) -> str | None:
    """Returns the time as ISO 8601 in UTC. Raises UsageError if it isn't one."""
    source = "--timestamp" if text is not None else "SOURCE_DATE_EPOCH"
    text = text if text is not None else os.environ.get(source)
    if text is None:
        return None
    try:
        if text.lstrip("-").isdigit():
            moment = datetime.datetime.fromtimestamp(int(text), datetime.UTC)
        else:
            moment = datetime.datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        hint = "write 2026-01-31T12:00:00Z, or seconds since 1970"
        raise UsageError(f"{source} {text}: not a time", hint=hint) from None


def hashed(
    files: tuple[BomFile, ...], jobs: int | None, progress: Progress | None, *, remote: bool = False
) -> tuple[BomFile, ...]:
    """Adds the digests of local files, and of remote ones if asked for."""
    missing = [f for f in files if f.sha256 is None and (remote or not isinstance(f.path, RemotePath))]
    tally = Tally(sum(file.nbytes for file in missing), progress)
    digests = map_parallel(lambda f: hash_file(f.path, "sha256", tally.of(f.name)).digest, missing, jobs)
    computed = {file.path: digest for file, digest in zip(missing, digests, strict=True)}
    return tuple(replace(f, sha256=computed[f.path]) if f.path in computed else f for f in files)


def licence_findings(facts: BomFacts, with_cards: Sequence[BaseModel]) -> Iterator[Finding]:
    """Yields contradictions between the statements of licences, and statements that couldn't be compared.
    `with_cards`: the first base models, whose cards are at hand."""
    if facts.trouble:
        yield Finding("licence/card", Severity.WARNING, facts.trouble, "README.md")
    in_file = facts.licences[len(facts.card) :]
    if message := differ(facts.card, in_file):
        yield Finding("licence/differs", Severity.WARNING, message, in_file[0].place,
                      hint="state the same licence in the card and in the file")  # fmt: skip
    if not facts.licences:
        yield Finding("licence/none", Severity.INFO, "neither a card nor metadata states a licence")
    for licence in facts.licences:
        if licence.row is None:
            message = f"{licence.text!r} isn't a licence that SPDX or the Hub lists"
            yield Finding("licence/unknown", Severity.INFO, message, licence.place)
    for number, base in enumerate(facts.bases):
        yield from base_findings(facts.licences, base, has_card=number < len(with_cards))


def base_findings(licences: tuple[StatedLicence, ...], base: BaseModel, *, has_card: bool) -> Iterator[Finding]:
    """Yields a contradiction with a base model's licence, or that there is nothing to compare."""
    if message := contradiction(licences, base.licences):
        yield Finding("licence/contradiction", Severity.WARNING, message, base.place,
                      hint="choose a licence that the base model's licence allows")  # fmt: skip
    elif not (licences and base.licences) or not all(licence.row for licence in (*licences, *base.licences)):
        hint = None if has_card else "name its card: --base-card hf://ORG/NAME/README.md, or a folder"
        reason = (
            "one of the two has no entry in the table of licences"
            if licences and base.licences
            else ("the model states none" if base.licences else "it is unknown here")
        )
        message = f"not compared with the licence of {base.name}: {reason}"
        yield Finding("licence/not-compared", Severity.INFO, message, base.place, hint=hint)
