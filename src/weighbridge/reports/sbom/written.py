"""The bill of materials of a model that this program writes: of the written files, with the sources as ancestors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import UsageError
from weighbridge.base.options import Progress
from weighbridge.base.records import dataclass
from weighbridge.containers.base import Finding, Severity
from weighbridge.io.location import RemotePath, is_remote
from weighbridge.io.sink import check_target, write_file
from weighbridge.reports.sbom.facts import BaseModel, BomFacts, collect
from weighbridge.reports.sbom.report import base_findings, document_of, hashed, licence_findings, parse_time, text_of

_SUFFIXES: Final = {"cyclonedx": ".cdx.json", "spdx": ".spdx.json"}


class BomSource(NamedTuple):
    """A model that another one is made from. `relation`: as the Hub calls it (quantized, merge, adapter), or
    converted."""

    path: str | os.PathLike[str]
    relation: str


@dataclass(frozen=True)
class WrittenBill:
    """The bill of materials `path` of the model that will be at `target`."""

    path: Path
    target: Path
    sources: tuple[BaseModel, ...]
    jobs: int | None = None
    overwrite: bool = False

    @property
    def format(self) -> str:
        return "spdx" if self.path.name.lower().endswith(_SUFFIXES["spdx"]) else "cyclonedx"

    def check(self) -> None:
        """Raises the error of a file that can't be written."""
        check_target(self.path, overwrite=self.overwrite, folder=False)
        parse_time(None)

    def write(self, progress: Progress | None = None) -> tuple[Finding, ...]:
        """Hashes the written files and those of the sources, and writes the file. Returns the findings on licences."""
        facts = collect(self.target)
        facts = replace(facts, files=hashed(facts.files, self.jobs, progress))
        digests = iter(hashed(tuple(file for base in self.sources for file in base.files), self.jobs, progress))
        bases = tuple(replace(base, files=tuple(next(digests) for _ in base.files)) for base in self.sources)
        listed = {_key(base) for source in bases for base in (source, *source.bases)}
        facts = replace(facts, bases=(*bases, *(base for base in facts.bases if _key(base) not in listed)))
        document = document_of(facts, self.format, parse_time(None))
        write_file(self.path, text_of(document).encode(), overwrite=self.overwrite)
        return tuple(findings(facts, bases))


def written_bill(
    path: str | os.PathLike[str] | None, target: Path, sources: Sequence[BomSource], *,
    folder: bool, jobs: int | None, overwrite: bool,
) -> WrittenBill:  # fmt: skip
    """Plans the bill of materials of a model that will be written to `target`. `path`: None for a file next to it.
    `folder`: whether the target is one. Raises UsageError for a target elsewhere, whose bytes would have to be read
    again, and for a path that it occupies."""
    if isinstance(target, RemotePath):
        raise UsageError(
            f"--sbom doesn't apply to {target}: its files would have to be read back to hash them",
            hint=f"afterwards: wb sbom {target} -o FILE --hash-remote; or write to this machine first",
        )
    if path is not None and is_remote(path):
        raise UsageError(f"--sbom {os.fspath(path)}: it is written to this machine", hint="name a path")
    title = target.name if folder else target.stem
    place = target.parent / f"{title}{_SUFFIXES['cyclonedx']}" if path is None else Path(path)
    if place.absolute() == target.absolute() or target.absolute() in place.absolute().parents:
        raise UsageError(
            f"--sbom {place} is the target, or in it, and lists the target's files", hint="name a file next to it"
        )
    return WrittenBill(place, target, tuple(map(ancestor_of, sources)), jobs, overwrite)


def ancestor_of(source: BomSource) -> BaseModel:
    """Returns a source as an ancestor: its origin, its weights' files, the licences that it states, its own
    ancestors."""
    facts = collect(source.path, weights_only=True)
    title = facts.repository or resolve_path(source.path).name
    return BaseModel(
        name=facts.name,
        place="the source",
        repository=facts.repository,
        url=facts.url,
        version=facts.commit or facts.version,
        relation=source.relation,
        licences=tuple(replace(each, place=f"{each.place} of {title}") for each in facts.licences),
        files=facts.files,
        bases=facts.bases,
    )


def _key(base: BaseModel) -> str:
    return (base.repository or base.name).lower()


def findings(facts: BomFacts, sources: Sequence[BaseModel]) -> Iterator[Finding]:
    """Yields contradictions of licences along the chain: between the model, its sources, and theirs. What couldn't be
    compared is a note."""
    yield from licence_findings(replace(facts, bases=tuple(sources)), sources)
    if not facts.licences:
        for source in sources:
            if source.licences and all(licence.row and licence.row.limits for licence in source.licences):
                limited = " or ".join(licence.text for licence in source.licences)
                message = f"the model states no licence; {source.licences[0].place} states {limited}"
                yield Finding("licence/none", Severity.WARNING, message, source.place,
                              hint="state one that the source's licence allows")  # fmt: skip
    for source in sources:
        for base in source.bases:
            yield from base_findings(source.licences, base, has_card=True)
