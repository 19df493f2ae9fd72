"""The facts of a bill of materials, whatever its format: the model's description, its origin, and its files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.limits import MIB
from weighbridge.base.records import dataclass
from weighbridge.io.digest import GIT
from weighbridge.io.filesystem import cached_repository
from weighbridge.io.location import RemotePath
from weighbridge.models.config.card import read_card, scalar, scalars
from weighbridge.models.open import WHOLE, open_headers
from weighbridge.reports import sidecars
from weighbridge.reports.hash.digests import files_of
from weighbridge.reports.inspect.report import InspectReport, report_of
from weighbridge.reports.sbom.licences import StatedLicence, of_card, of_metadata
from weighbridge.reports.select import Selection

_CARD: Final = "README.md"
_HUB: Final = re.compile(
    r"(?:(?:https?://)?huggingface\.co/|hf://)?(?:datasets/)?([A-Za-z0-9][\w.-]*/[\w.-]+?)(?:@[\w.-]+)?/?"
)

_ADDRESS: Final = re.compile(r"hf://(?:models/)?([\w.-]+/[\w.-]+)")


@dataclass(frozen=True, slots=True)
class BomFile:
    """`sha256`: None if unknown. `git`: git's id of the content, if the Hub lists it. `listed`: the digest comes from a
    listing, not from the bytes."""

    name: str
    path: Path
    nbytes: int
    sha256: str | None = None
    git: str | None = None
    listed: bool = False


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A model that this one was made from, as metadata names it. `repository`: on the Hub, if it is a name there.
    `files`, `bases`: of one that is at hand, its weights and its own base models."""

    name: str
    place: str
    repository: str | None = None
    url: str | None = None
    version: str | None = None
    relation: str | None = None
    licences: tuple[StatedLicence, ...] = ()
    files: tuple[BomFile, ...] = ()
    bases: tuple[BaseModel, ...] = ()


@dataclass(frozen=True, slots=True)
class BomFacts:
    """`repository`, `commit`: of the Hub. `family`: such as llama; `architecture`: such as LlamaForCausalLM.
    `settings`: further facts by name, as texts. `licences`: all statements."""

    name: str
    files: tuple[BomFile, ...]
    licences: tuple[StatedLicence, ...]
    bases: tuple[BaseModel, ...]
    datasets: tuple[str, ...]
    settings: Mapping[str, str]
    card: tuple[StatedLicence, ...] = ()
    organization: str | None = None
    repository: str | None = None
    commit: str | None = None
    version: str | None = None
    description: str | None = None
    family: str | None = None
    architecture: str | None = None
    task: str | None = None
    trouble: str | None = None

    @property
    def url(self) -> str | None:
        """The model's page on the Hub."""
        return f"https://huggingface.co/{self.repository}" if self.repository else None


def collect(path: str | os.PathLike[str], *, weights_only: bool = False) -> BomFacts:
    """Collects the facts of the model at `path` from headers and small files. `weights_only`: of its files only those.
    Raises as `open_headers` does."""
    place = resolve_path(path)
    with open_headers(place, WHOLE).model as model:
        card, trouble = read_card(model.place.read(_CARD, MIB))
        metadata, (repository, commit) = model.metadata, origin_of(model.place.folder)
        report = report_of(model, (), Selection(limit=0))
        facts = report.model
        name, weights = _text(metadata, card, "name"), model.place.files
        title = model.place.title if place.is_dir() else weights[0].stem
        origins = (o.get("repo_url") or o.get("url") or o.get("name") or "" for o in _listed(metadata, "dataset"))
        datasets = (match[1] if (match := _HUB.fullmatch(text)) else text for text in origins if text)
        in_card, in_file = of_card(card, _CARD), of_metadata(metadata, weights[0].name)
        organization = (repository or "").rpartition("/")[0] or _text(metadata, card, "organization")
        return BomFacts(
            name=repository.rpartition("/")[2] if repository else name or title,
            files=tuple(list_files_of(place, weights, everything=not weights_only)),
            licences=(*in_card, *in_file),
            card=in_card,
            bases=tuple(base_models(card, metadata, weights[0].name)),
            datasets=tuple(dict.fromkeys((*scalars(card.get("datasets")), *datasets))),
            settings=dict(settings_of(report)),
            organization=organization or None,
            repository=repository,
            commit=commit,
            version=_text(metadata, card, "version"),
            description=_text(metadata, card, "description"),
            family=facts.family,
            architecture=facts.architecture,
            task=scalar(card.get("pipeline_tag")),
            trouble=trouble,
        )


def _text(metadata: Mapping[str, Any], card: Mapping[str, Any], name: str) -> str | None:
    """A fact of a GGUF, else of the card."""
    value = metadata.get(f"general.{name}")
    return value if isinstance(value, str) and value else scalar(card.get(f"model_{name}")) or scalar(card.get(name))


def origin_of(folder: Path) -> tuple[str | None, str | None]:
    """Returns a model's repository on the Hub and its commit: of an address, or of a folder in the Hub's cache."""
    if isinstance(folder, RemotePath):
        match = _ADDRESS.match(str(folder))
        return match[1] if match else None, folder.commit
    cached = cached_repository(folder)
    return cached, folder.resolve().name if cached else None


def list_files_of(place: Path, weights: Sequence[Path], *, everything: bool = True) -> Iterator[BomFile]:
    """Yields all files of a folder, or those of the weights. Digests that a store lists are taken over."""
    inside = place.is_dir() and everything
    for path in files_of(place) if inside else weights:
        name = path.relative_to(place).as_posix() if inside else path.name
        nbytes = path.stat().st_size
        listed = path.digest if isinstance(path, RemotePath) else None
        sha256 = listed[1] if listed and listed[0] == "sha256" else None
        git = listed[1] if listed and listed[0] == GIT else None
        yield BomFile(name, path, nbytes, sha256, git, sha256 is not None)


def base_models(card: Mapping[str, Any], metadata: Mapping[str, Any], file: str) -> Iterator[BaseModel]:
    """Yields the base models of the card, then those of a GGUF that the card doesn't name."""
    relation, names = scalar(card.get("base_model_relation")), set[str]()
    for name in scalars(card.get("base_model")):
        base = _base(name, _CARD, relation)
        names.add((base.repository or base.name).lower())
        yield base
    for number, origin in enumerate(_listed(metadata, "base_model")):
        url, title = origin.get("repo_url") or origin.get("url"), origin.get("name")
        base = _base(
            str(url or title or ""), f"{file}: general.base_model.{number}", None, title, origin.get("version")
        )
        if base.name and (base.repository or base.name).lower() not in names:
            yield base


def _base(
    text: str, place: str, relation: str | None, title: str | None = None, version: str | None = None
) -> BaseModel:
    match = _HUB.fullmatch(text.strip())
    url = f"https://huggingface.co/{match[1]}" if match else text if "://" in text else None
    name = match[1].rpartition("/")[2] if match else title or text
    return BaseModel(name, place, match[1] if match else None, url, version, relation)


def _listed(metadata: Mapping[str, Any], kind: str) -> Iterator[dict[str, str]]:
    """Yields the texts of `general.KIND.N.*`."""
    count = metadata.get(f"general.{kind}.count")
    for number in range(min(count, 64) if isinstance(count, int) else 0):
        start = f"general.{kind}.{number}."
        yield {
            key: value for key in ("name", "organization", "version", "url", "repo_url")
            if isinstance(value := metadata.get(start + key), str) and value
        }  # fmt: skip


def settings_of(report: InspectReport) -> Iterator[tuple[str, str]]:
    """Yields sizes and types, as names and texts."""
    facts = report.model
    numbers = {
        "format": report.format, "parameters": report.parameters, "tensors": report.tensor_count,
        "bits_per_weight": None if report.bits_per_weight is None else f"{report.bits_per_weight:.4g}",
        "quantization": facts.quantization.words or facts.quantization.method if facts.quantization else None,
        "context_length": facts.context_length, "layers": facts.layers, "vocabulary": facts.vocab_size,
        "adapter": "LoRA" if facts.adapter else None,
    }  # fmt: skip
    yield from ((name, str(value)) for name, value in numbers.items() if value is not None)
    for row in report.dtypes:
        yield f"bytes.{row.dtype}", str(row.nbytes)


def base_licences(path: str | os.PathLike[str]) -> tuple[StatedLicence, ...]:
    """Returns the licences in a base model's card: a README.md, or that of a folder."""
    place = resolve_path(path)
    file = place / _CARD if place.is_dir() else place
    file.stat()  # raises the system's own error
    card, _ = read_card(sidecars.read(file, MIB))
    return of_card(card, str(path))
