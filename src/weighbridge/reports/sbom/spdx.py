"""SPDX 3.0.1 as JSON-LD, with the classes of the AI profile: an `ai_AIPackage` that contains files.

https://spdx.github.io/spdx-spec/v3.0.1/. Conformance to the profile `ai` isn't claimed: it requires the time of the
model's release, which no metadata states. SPDX requires a time of creation; without one it is the start of 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from weighbridge import __version__
from weighbridge.reports.sbom.cyclonedx import file_properties, package_url
from weighbridge.reports.sbom.facts import BaseModel, BomFacts, BomFile
from weighbridge.reports.sbom.licences import StatedLicence

_CONTEXT: Final = "https://spdx.org/rdf/3.0.1/spdx-context.jsonld"
_NO_TIME: Final = "1970-01-01T00:00:00Z"
_CREATION: Final = "_:creation"


def document(facts: BomFacts, identifier: str, timestamp: str | None) -> dict[str, Any]:
    """Returns the document. `identifier`: a UUID. `timestamp`: None if unknown."""
    graph = _Graph(f"https://spdx.org/spdxdocs/weighbridge-{identifier}")
    tool, agent = f"weighbridge {__version__}", "weighbridge"
    creation = {
        "type": "CreationInfo", "@id": _CREATION, "specVersion": "3.0.1", "created": timestamp or _NO_TIME,
        "createdBy": [graph.id("agent")], "createdUsing": [graph.id("tool")],
    } | ({} if timestamp else {"comment": "the time of creation is unknown"})  # fmt: skip
    graph.add("SoftwareAgent", "agent", name=agent)
    graph.add("Tool", "tool", name=tool)
    model = graph.add("ai_AIPackage", "model", **model_package(facts, graph))
    files = [graph.add("software_File", f"file-{number}", **_file(file)) for number, file in enumerate(facts.files)]
    graph.relate("contains", model, files)
    add_bases(graph, model, "base", facts.bases)
    for number, name in enumerate(facts.datasets):
        data = graph.add("dataset_DatasetPackage", f"dataset-{number}", name=name, dataset_datasetType=["noAssertion"])
        graph.relate("trainedOn", model, [data])
    graph.license(model, facts.licences)
    profiles = ["core", "software", "simpleLicensing"]
    root = {"type": "SpdxDocument", "spdxId": graph.id("document"), "creationInfo": _CREATION, "name": facts.name,
            "profileConformance": profiles, "rootElement": [model]}  # fmt: skip
    return {"@context": _CONTEXT, "@graph": [creation, root, *graph.elements]}


class _Graph:
    """The elements of a document below one IRI."""

    def __init__(self, base: str) -> None:
        self.base, self.elements = base, list[dict[str, Any]]()

    def id(self, name: str) -> str:
        return f"{self.base}#{name}"

    def add(self, kind: str, key: str, /, **fields: Any) -> str:
        """Adds an element, and returns its IRI. Fields without a value are left out."""
        values = {field: value for field, value in fields.items() if value not in (None, [])}
        self.elements.append({"type": kind, "spdxId": self.id(key), "creationInfo": _CREATION, **values})
        return self.id(key)

    def relate(self, kind: str, source: str, targets: list[str]) -> None:
        key = f"relationship-{len(self.elements)}"
        self.add("Relationship", key, **{"from": source, "to": targets, "relationshipType": kind})

    def license(self, element: str, licences: Iterable[StatedLicence], *, places: bool = True) -> None:
        """States the licences of an element, each once; one without an identifier as a separate text."""
        for licence in {licence.reference: licence for licence in reversed([*licences])}.values():
            key = f"licence-{len(self.elements)}"
            mapping = []
            if licence.reference.startswith("LicenseRef-"):
                text = self.add("simplelicensing_SimpleLicensingText", f"{key}-text", name=licence.title,
                                simplelicensing_licenseText=licence.link or licence.title)  # fmt: skip
                mapping = [{"type": "DictionaryEntry", "key": licence.reference, "value": text}]
            expression = self.add(
                "simplelicensing_LicenseExpression", key, simplelicensing_licenseExpression=licence.reference,
                simplelicensing_customIdToUri=mapping, comment=f"stated in {licence.place}" if places else None,
            )  # fmt: skip
            self.relate("hasDeclaredLicense", element, [expression])


def model_package(facts: BomFacts, graph: _Graph) -> dict[str, Any]:
    supplier = graph.add("Organization", "supplier", name=facts.organization) if facts.organization else None
    single = facts.files[0] if len(facts.files) == 1 else None
    return {
        "name": facts.name,
        "description": facts.description,
        "suppliedBy": supplier,
        "software_packageVersion": facts.commit or facts.version,
        "software_downloadLocation": facts.url,
        "software_packageUrl": package_url(facts.repository, facts.commit) if facts.repository else None,
        "software_primaryPurpose": "model",
        "verifiedUsing": _hashes(single) if single else None,
        "ai_typeOfModel": [text for text in (facts.family, facts.architecture) if text],
        "ai_domain": [facts.task] if facts.task else [],
        "ai_hyperparameter": [
            {"type": "DictionaryEntry", "key": key, "value": value} for key, value in facts.settings.items()
        ],
    }


def add_bases(graph: _Graph, model: str, key: str, bases: Sequence[BaseModel]) -> None:
    """Adds the base models of a model, with their files and their own base models."""
    for number, base in enumerate(bases):
        ancestor = graph.add("ai_AIPackage", f"{key}-{number}", **base_package(base))
        graph.relate("descendantOf", model, [ancestor])
        graph.license(ancestor, base.licences, places=False)
        files = [
            graph.add("software_File", f"{key}-{number}-file-{n}", **_file(file)) for n, file in enumerate(base.files)
        ]
        if files:
            graph.relate("contains", ancestor, files)
        add_bases(graph, ancestor, f"{key}-{number}-base", base.bases)


def base_package(base: BaseModel) -> dict[str, Any]:
    return {
        "name": base.name,
        "comment": f"stated in {base.place}" + (f" as {base.relation}" if base.relation else ""),
        "software_packageVersion": base.version,
        "software_downloadLocation": base.url,
        "software_packageUrl": package_url(base.repository) if base.repository else None,
        "software_primaryPurpose": "model",
    }


def _file(file: BomFile) -> dict[str, Any]:
    gitoid = f"gitoid:blob:sha1:{file.git}" if file.git else None
    comment = ", ".join(f"{name}: {value}" for name, value in file_properties(file) if name != "git-blob")
    return {
        "name": file.name,
        "verifiedUsing": _hashes(file),
        "software_contentIdentifier": [{
            "type": "software_ContentIdentifier", "software_contentIdentifierType": "gitoid",
            "software_contentIdentifierValue": gitoid,
        }] if gitoid else [],
        "comment": comment,
    }  # fmt: skip


def _hashes(file: BomFile) -> list[dict[str, str]]:
    return [{"type": "Hash", "algorithm": "sha256", "hashValue": file.sha256}] if file.sha256 else []
