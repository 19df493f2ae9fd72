"""CycloneDX 1.6 (ECMA-424): a component of type `machine-learning-model` with its files.

https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from weighbridge import __version__
from weighbridge.reports.sbom.facts import BaseModel, BomFacts, BomFile
from weighbridge.reports.sbom.licences import StatedLicence

_SCHEMA: Final = "http://cyclonedx.org/schema/bom-1.6.schema.json"
_MODEL: Final = "model"
_PREFIX: Final = "weighbridge:"


def document(facts: BomFacts, identifier: str, timestamp: str | None) -> dict[str, Any]:
    """Returns the document. `identifier`: a UUID. `timestamp`: None to leave it out."""
    return {
        "$schema": _SCHEMA,
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{identifier}",
        "version": 1,
        "metadata": {
            **({"timestamp": timestamp} if timestamp else {}),
            "tools": {"components": [{"type": "application", "name": "weighbridge", "version": __version__}]},
            "component": model_component(facts),
        },
        "components": [_file(number, file) for number, file in enumerate(facts.files)],
        "dependencies": [{"ref": _MODEL, "dependsOn": [_ref(number) for number in range(len(facts.files))]}],
    }


def model_component(facts: BomFacts) -> dict[str, Any]:
    single = facts.files[0] if len(facts.files) == 1 else None
    return _filled({
        "type": "machine-learning-model",
        "bom-ref": _MODEL,
        "group": facts.organization,
        "name": facts.name,
        "version": facts.commit or facts.version,
        "description": facts.description,
        "hashes": _hashes(single) if single else None,
        "licenses": _licences(facts.licences),
        "purl": package_url(facts.repository, facts.commit) if facts.repository else None,
        "pedigree": {"ancestors": [_ancestor(base) for base in facts.bases]} if facts.bases else None,
        "externalReferences": [{"type": "distribution", "url": facts.url}] if facts.url else None,
        "modelCard": model_card(facts),
        "properties": _properties(facts.settings.items()),
    })  # fmt: skip


def model_card(facts: BomFacts) -> dict[str, Any]:
    datasets = [
        _filled({"type": "dataset", "name": name, "contents": {"url": name} if "://" in name else None})
        for name in facts.datasets
    ]
    parameters = _filled({
        "task": facts.task, "architectureFamily": facts.family, "modelArchitecture": facts.architecture,
        "datasets": datasets or None,
    })  # fmt: skip
    return _filled({"modelParameters": parameters or None})


def _ancestor(base: BaseModel) -> dict[str, Any]:
    facts = {"relation": base.relation, "stated": base.place}
    return _filled({
        "type": "machine-learning-model",
        "group": base.repository.rpartition("/")[0] if base.repository else None,
        "name": base.name,
        "version": base.version,
        "hashes": _hashes(base.files[0]) if len(base.files) == 1 else None,
        "licenses": _licences(base.licences, places=False),
        "purl": package_url(base.repository) if base.repository else None,
        "pedigree": {"ancestors": [_ancestor(each) for each in base.bases]} if base.bases else None,
        "externalReferences": [{"type": "distribution", "url": base.url}] if base.url else None,
        "properties": _properties((name, text) for name, text in facts.items() if text),
        "components": [_file(None, file) for file in base.files] or None,
    })  # fmt: skip


def _file(number: int | None, file: BomFile) -> dict[str, Any]:
    """A file. `number`: of one of the model's."""
    return _filled({
        "type": "file",
        "bom-ref": None if number is None else _ref(number),
        "name": file.name,
        "hashes": _hashes(file),
        "properties": _properties(file_properties(file)),
    })  # fmt: skip


def file_properties(file: BomFile) -> Iterator[tuple[str, str]]:
    """Yields the facts of a file that formats have no field for."""
    yield "bytes", str(file.nbytes)
    if file.git:
        yield "git-blob", file.git
    if file.sha256 is None:
        yield "digest", "not hashed"
    elif file.listed:
        yield "digest", "as listed by the store, not computed"


def _ref(number: int) -> str:
    return f"file-{number}"


def _hashes(file: BomFile) -> list[dict[str, str]] | None:
    return [{"alg": "SHA-256", "content": file.sha256}] if file.sha256 else None


def _licences(licences: Sequence[StatedLicence], *, places: bool = True) -> list[dict[str, Any]] | None:
    """The statements, each licence once. `places`: with their places; not for a card elsewhere on this machine."""
    entries: dict[str, dict[str, Any]] = {}
    for licence in licences:
        row = licence.row
        named = {"id": row.spdx} if row and row.spdx else {"name": licence.title}
        entries.setdefault(licence.title, {"license": _filled({
            **named, "acknowledgement": "declared", "url": licence.link,
            "properties": _properties([("stated", licence.place)] if places else []),
        })})  # fmt: skip
    return [*entries.values()] or None


def _properties(pairs: Iterable[tuple[str, str]]) -> list[dict[str, str]] | None:
    return [{"name": f"{_PREFIX}{name}", "value": value} for name, value in pairs] or None


def package_url(repository: str, commit: str | None = None) -> str:
    """Returns the package URL of a repository on the Hub (https://github.com/package-url/purl-spec, huggingface)."""
    version = f"@{quote(commit, safe='')}" if commit else ""
    return f"pkg:huggingface/{'/'.join(quote(part, safe='') for part in repository.split('/'))}{version}"


def _filled(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}
