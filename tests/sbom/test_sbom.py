"""Bills of materials: valid by the published schemas, the same for the same model, with the digests of hashlib and the
facts of the card; licences that contradict each other are reported."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.llama import make_folder
from tests.reports import makers as m

import weighbridge as wb
from weighbridge.cli.main import main
from weighbridge.models.config.card import front_matter
from weighbridge.reports.sbom import licences
from weighbridge.reports.sbom.cyclonedx import package_url
from weighbridge.reports.sbom.licences import StatedLicence, contradiction, differ, of_card, of_metadata, table

CARD = {
    "license": "apache-2.0", "base_model": ["meta-llama/Llama-3.1-8B", "a base without an owner"],
    "base_model_relation": "finetune", "pipeline_tag": "text-generation", "datasets": ["squad", "org/data"],
    "version": 1.5,
}  # fmt: skip
KEYS = [
    ("general.architecture", "str", "llama"), ("general.name", "str", "My \u6a21 model"),
    ("general.organization", "str", "Me & Co"), ("general.license", "str", "other"),
    ("general.license.name", "str", "My Licence 2.0"), ("general.license.link", "str", "https://example.org/licence"),
    ("general.base_model.count", "u32", 2), ("general.base_model.0.name", "str", "Base"),
    ("general.base_model.0.repo_url", "str", "https://huggingface.co/org/base"),
    ("general.base_model.1.name", "str", "Other"), ("general.base_model.1.version", "str", "2"),
    ("general.dataset.count", "u32", 1), ("general.dataset.0.repo_url", "str", "https://huggingface.co/datasets/org/d"),
    ("general.file_type", "u32", 1),
]  # fmt: skip


def gguf(path: Path, keys: list[tuple[str, str, Any]] | None = None) -> Path:
    rows = {name: (kind, value) for name, kind, value in (KEYS if keys is None else keys)}
    path.write_bytes(m.gguf(rows, {"token_embd.weight": ("F16", (4, 32))}))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = make_folder(tmp_path / "model", words=True)
    return with_card(made, CARD)


def with_card(folder: Path, card: Mapping[str, Any]) -> Path:
    (folder / "README.md").write_text(front_matter(card) + "\n# A model\n")
    return folder


def places(folder: Path) -> dict[str, Path]:
    """Models with much, little and strange metadata."""
    bare = make_folder(folder.parent / "bare")
    odd = with_card(make_folder(folder.parent / "odd"), {
        "license": ["mit", "no such licence", "other", "llama3.1"], "license_name": "<b>\u202e", "license_link": "x y",
        "base_model": ["../..", "", "https://example.org/a b", "a" * 5000], "datasets": [{"a": 1}, "\u00e9"],
    })  # fmt: skip
    return {"folder": folder, "gguf": gguf(folder.parent / "m.gguf"), "bare": bare, "odd": odd,
            "file": bare / "model.safetensors"}  # fmt: skip


MODELS = ["folder", "gguf", "bare", "odd", "file"]


# ---- the schemas ----


@pytest.mark.oracle
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("timestamp", [None, "2026-01-31T12:00:00Z"])
def test_cyclonedx_accepts_it(folder: Path, name: str, timestamp: str | None) -> None:
    """By the schema that CycloneDX's own library brings, without unknown keys."""
    validation = pytest.importorskip("cyclonedx.validation.json")
    schema = pytest.importorskip("cyclonedx.schema").SchemaVersion.V1_6
    report = wb.sbom(places(folder)[name], timestamp=timestamp)
    assert validation.JsonStrictValidator(schema).validate_str(report.text()) is None
    spoiled = report.text().replace('"machine-learning-model"', '"model"')
    assert validation.JsonStrictValidator(schema).validate_str(spoiled) is not None


def spdx_objects(text: str) -> Any:
    """The objects that SPDX's bindings, made from its SHACL model, read."""
    model = pytest.importorskip("spdx_python_model.bindings.v3_0_1.model")
    objects = model.SHACLObjectSet()
    model.JSONLDDeserializer().read(io.BytesIO(text.encode()), objects)
    return model, objects


@pytest.mark.oracle
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("timestamp", [None, "2026-01-31T12:00:00Z"])
def test_spdx_reads_it(folder: Path, name: str, timestamp: str | None) -> None:
    """By SPDX's own classes: every property has a known name and type, required ones exist, every reference has a
    target; written again it has the same elements."""
    report = wb.sbom(places(folder)[name], format="spdx", timestamp=timestamp)
    model, objects = spdx_objects(report.text())
    assert objects.link() == set()
    [package] = [o for o in objects.foreach_type(model.SpdxDocument)]
    assert [type(root).__name__ for root in package.rootElement] == ["ai_AIPackage"]
    again = io.BytesIO()
    model.JSONLDSerializer().write(objects, again)
    graph = json.loads(again.getvalue())["@graph"]
    assert {e.get("spdxId") for e in graph} == {e.get("spdxId") for e in report.document["@graph"]}


@pytest.mark.oracle
@pytest.mark.parametrize(("old", "new"), [
    ('"ai_typeOfModel"', '"ai_typeOfModels"'), ('Purpose": "model"', 'Purpose": "modl"'),
    ('"algorithm": "sha256"', '"algorithm": "sha-256"'), ('"descendantOf"', '"childOf"'), ('"2026-01', '"26-01'),
])  # fmt: skip
def test_spdx_sees_a_fault(folder: Path, old: str, new: str) -> None:
    text = wb.sbom(folder, format="spdx", timestamp="2026-01-31T12:00:00Z").text()
    assert old in text
    spdx_objects(text)
    with pytest.raises((ValueError, TypeError, KeyError)):
        spdx_objects(text.replace(old, new))


@pytest.mark.oracle
def test_identifiers_are_those_of_spdx() -> None:
    """In the list that CycloneDX's schema takes from SPDX."""
    schema = pytest.importorskip("cyclonedx.schema._res")
    listed = set(json.loads((Path(schema.__path__[0]) / "spdx.SNAPSHOT.schema.json").read_text())["enum"])
    assert {row.spdx for row in table().values() if row.spdx} <= listed
    assert all(bool(row.spdx) != bool(row.name) for row in table().values())


@pytest.mark.oracle
@pytest.mark.parametrize(("repository", "commit"), [("org/name", None), ("a.b-c/d_e.f", "0" * 40), ("gpt2", "1")])
def test_package_urls_are_those_of_the_specification(repository: str, commit: str | None) -> None:
    packageurl = pytest.importorskip("packageurl")
    parsed = packageurl.PackageURL.from_string(package_url(repository, commit))
    owner, _, name = repository.rpartition("/")
    assert (parsed.type, parsed.namespace or "", parsed.name, parsed.version) == ("huggingface", owner, name, commit)
    assert parsed.to_string() == package_url(repository, commit)


# ---- the content ----


def component(report: wb.SbomReport) -> Any:
    return report.document["metadata"]["component"]


def properties(entry: Any) -> dict[str, str]:
    return {p["name"].removeprefix("weighbridge:"): p["value"] for p in entry.get("properties", ())}


def test_the_facts_of_a_folder(folder: Path) -> None:
    report = wb.sbom(folder)
    model = component(report)
    assert model["licenses"][0]["license"]["id"] == "Apache-2.0"
    assert model["version"] == "1.5"
    assert model["modelCard"]["modelParameters"] == {
        "task": "text-generation", "architectureFamily": "llama", "modelArchitecture": "LlamaForCausalLM",
        "datasets": [{"type": "dataset", "name": "squad"}, {"type": "dataset", "name": "org/data"}],
    }  # fmt: skip
    first, second = model["pedigree"]["ancestors"]
    assert (first["group"], first["name"], first["purl"]) == (
        "meta-llama", "Llama-3.1-8B", "pkg:huggingface/meta-llama/Llama-3.1-8B",
    )  # fmt: skip
    assert (second["name"], "purl" in second) == ("a base without an owner", False)
    inspected = wb.inspect(folder)
    assert properties(model)["parameters"] == str(inspected.parameters)
    assert properties(model)["bits_per_weight"] == f"{inspected.bits_per_weight:.4g}"


def test_the_facts_of_a_gguf(tmp_path: Path) -> None:
    report = wb.sbom(gguf(tmp_path / "m.gguf"))
    model = component(report)
    assert (model["name"], model["group"]) == ("My \u6a21 model", "Me & Co")
    assert model["licenses"][0]["license"] | {"properties": None} == {
        "name": "My Licence 2.0", "url": "https://example.org/licence", "acknowledgement": "declared",
        "properties": None,
    }  # fmt: skip
    assert [(a["name"], a.get("purl"), a.get("version")) for a in model["pedigree"]["ancestors"]] == [
        ("base", "pkg:huggingface/org/base", None), ("Other", None, "2"),
    ]  # fmt: skip
    assert model["modelCard"]["modelParameters"]["datasets"] == [{"type": "dataset", "name": "org/d"}]
    assert properties(model)["quantization"] == "F16"
    assert model["hashes"] == report.document["components"][0]["hashes"]


def test_a_snapshot_in_the_hubs_cache(folder: Path, tmp_path: Path) -> None:
    """Its files are links to blobs; repository and commit are those of its path."""
    repository = tmp_path / "hub" / "models--org--name"
    snapshot = repository / "snapshots" / ("c0ffee" + "0" * 34)
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for file in folder.iterdir():
        blob = repository / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        file.rename(blob)
        (snapshot / file.name).symlink_to(blob)
    model = component(wb.sbom(snapshot))
    assert model["purl"] == f"pkg:huggingface/org/name@{snapshot.name}"
    assert (model["group"], model["name"], model["version"]) == ("org", "name", snapshot.name)
    listed = {c["name"]: c["hashes"][0]["content"] for c in wb.sbom(snapshot).document["components"]}
    assert listed == {link.name: link.resolve().name for link in snapshot.iterdir()}


@pytest.mark.parametrize("format", ["cyclonedx", "spdx"])
def test_every_file_has_its_digest(folder: Path, format: Any) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "\u00e9.bin").write_bytes(b"x")
    expected = {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
                for p in folder.rglob("*") if p.is_file()}  # fmt: skip
    report = wb.sbom(folder, format=format)
    if format == "cyclonedx":
        listed = {c["name"]: c["hashes"][0]["content"] for c in report.document["components"]}
    else:
        files = [e for e in report.document["@graph"] if e["type"] == "software_File"]
        listed = {f["name"]: f["verifiedUsing"][0]["hashValue"] for f in files}
    assert listed == expected
    assert report.files == len(expected)
    assert report.unhashed == ()


@pytest.mark.parametrize("format", ["cyclonedx", "spdx"])
def test_the_same_model_gives_the_same_bytes(
    folder: Path, format: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    text = wb.sbom(folder, format=format).text()
    copy = shutil.copytree(folder, tmp_path / "elsewhere" / "model")
    assert wb.sbom(copy, format=format, jobs=1).text() == text
    assert str(tmp_path) not in text
    (copy / "config.json").write_text((copy / "config.json").read_text() + "\n")
    other = wb.sbom(copy, format=format).text()
    identifier = "serialNumber" if format == "cyclonedx" else '"type": "SpdxDocument"'
    assert other.partition(identifier)[2][:60] != text.partition(identifier)[2][:60] or format == "spdx"
    assert other != text
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1769860800")
    timed = wb.sbom(folder, format=format).text()
    assert timed == wb.sbom(folder, format=format, timestamp="2026-01-31T13:00:00+01:00").text()
    assert '"2026-01-31T12:00:00Z"' in timed
    assert "2026-01-31" not in text


@pytest.mark.parametrize("text", ["yesterday", "", "9" * 30, "2026-13-01"])
def test_times_that_are_none(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(wb.errors.UsageError, match="not a time"):
        wb.sbom(folder, timestamp=text)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", text)
    with pytest.raises(wb.errors.UsageError, match="SOURCE_DATE_EPOCH"):
        wb.sbom(folder)


def test_metadata_that_lies_about_its_size(tmp_path: Path) -> None:
    keys = [("general.architecture", "str", "llama"), ("general.base_model.count", "u32", 4_000_000_000),
            ("general.base_model.0.name", "str", "\x1b[31m"), ("general.license", "str", "," * 1000)]  # fmt: skip
    report = wb.sbom(gguf(tmp_path / "m.gguf", keys))
    assert [a["name"] for a in component(report)["pedigree"]["ancestors"]] == ["\x1b[31m"]
    assert "licenses" not in component(report)


# ---- licences ----


def stated(*tags: str, place: str = "README.md") -> tuple[StatedLicence, ...]:
    return of_card({"license": list(tags)}, place)


# Of the model, of its base model, and the reason that is given.
CONTRADICTIONS: list[tuple[str, str, str]] = [
    ("apache-2.0", "cc-by-nc-4.0", "excludes commercial use"), ("apache-2.0", "llama3.1", "own terms"),
    ("llama3", "llama3.1", "own terms"), ("mit", "gpl-3.0", "keep it"), ("MIT", "GPL-3.0-only", "keep it"),
    ("cc-by-4.0", "cc-by-nd-4.0", "changed copies"), ("cc-by-sa-4.0", "cc-by-nc-sa-4.0", "commercial"),
    ("gemma", "apple-amlr", "commercial"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "base", "reason"), CONTRADICTIONS)
def test_contradictions(model: str, base: str, reason: str) -> None:
    message = contradiction(stated(model), stated(base, place="base/README.md"))
    assert reason in message
    assert f"README.md states {model}" in message
    assert f"base/README.md states {base}" in message


@pytest.mark.parametrize(("model", "base"), [
    ("cc-by-nc-4.0", "apache-2.0"), ("llama3.1", "llama3.1"), ("llama3.1", "mit"), ("gpl-3.0", "agpl-3.0"),
    ("other", "llama3.1"), ("apache-2.0", "other"), ("apache-2.0", "no such licence"),
    ("cc-by-nc-nd-4.0", "cc-by-nd-4.0"),
])  # fmt: skip
def test_no_contradictions(model: str, base: str) -> None:
    assert contradiction(stated(model), stated(base)) == ""


def test_laws_of_contradiction() -> None:
    """None with itself, none with nothing, none to a licence without limits; a choice of licences is one of them."""
    for tag, row in table().items():
        assert contradiction(stated(tag), stated(tag)) == ""
        assert contradiction(stated(tag), ()) == contradiction((), stated(tag)) == ""
        for other in ("mit", "cc-by-nc-4.0", "llama3.1"):
            found = contradiction(stated(other), stated(tag))
            assert bool(found) <= bool(row.limits)
            assert contradiction(stated(other, tag), stated(tag)) == ""
            assert contradiction(stated(other), stated(tag, "mit")) == ""


@pytest.mark.mutation
@pytest.mark.parametrize("tag", [tag for tag, row in table().items() if row.limits])
def test_every_limit_matters(tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert contradiction(stated("mit"), stated(tag)) != ""
    rows = {**table(), tag: licences.LicenceRow(spdx="X")}
    monkeypatch.setattr(licences, "table", lambda: rows)
    assert contradiction(stated("mit"), stated(tag)) == ""


def test_two_statements_about_one_model() -> None:
    def file(text: str) -> tuple[StatedLicence, ...]:
        return of_metadata({"general.license": text}, "m.gguf")

    assert differ(stated("mit"), file("apache-2.0")) == "README.md states mit, but m.gguf states apache-2.0"
    assert differ(stated("apache-2.0"), file("Apache-2.0")) == ""
    assert differ(stated("mit", "apache-2.0"), file("apache-2.0,mit")) == ""
    assert differ(stated("mit"), file("")) == differ((), file("mit")) == ""


def rules(report: wb.SbomReport) -> list[str]:
    return [finding.rule for finding in report.findings]


def test_findings(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = tmp_path / "base"
    base.mkdir()
    with_card(base, {"license": "llama3.1"})
    report = wb.sbom(folder, base_card=base)
    assert rules(report) == ["licence/contradiction", "licence/not-compared"]
    assert not report
    [ancestor, _] = component(report)["pedigree"]["ancestors"]
    assert ancestor["licenses"][0]["license"]["name"] == "Llama 3.1 Community License Agreement"
    assert rules(wb.sbom(folder)) == ["licence/not-compared"] * 2
    assert main(["sbom", str(folder), "--base-card", str(base / "README.md"), "-o", str(tmp_path / "o.json")]) == 0
    assert "README.md states apache-2.0, but the base model's licence" in capsys.readouterr().err
    with_card(folder, {"license": "llama3.1", "base_model": "meta-llama/Llama-3.1-8B"})
    assert rules(wb.sbom(folder, base_card=[base])) == []
    with pytest.raises(wb.errors.UsageError, match="1 base model"):
        wb.sbom(folder, base_card=[base, base])
    with pytest.raises(FileNotFoundError):
        wb.sbom(folder, base_card=tmp_path / "none")
    with_card(folder, {"license": "very own"})
    assert rules(wb.sbom(folder)) == ["licence/unknown"]
    (folder / "README.md").write_text("---\n{\n---\n")
    assert rules(wb.sbom(folder)) == ["licence/card", "licence/none"]


def test_a_card_and_a_file_that_differ(tmp_path: Path) -> None:
    keys = [("general.architecture", "str", "llama"), ("general.license", "str", "mit")]
    gguf(tmp_path / "m.gguf", keys)
    with_card(tmp_path, {"license": "apache-2.0"})
    for finding in (*wb.sbom(tmp_path).findings, *wb.verify(tmp_path).findings):
        if finding.rule == "licence/differs":
            assert finding.message == "README.md states apache-2.0, but m.gguf states mit"
            assert finding.severity == "warning"
    assert "licence/differs" in rules(wb.sbom(tmp_path))
    assert "licence/differs" in [f.rule for f in wb.verify(tmp_path).findings]


def test_the_command(folder: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["sbom", str(folder)]) == 0
    printed = capsysbinary.readouterr().out
    assert printed == wb.sbom(folder).text().encode()
    assert main(["sbom", str(folder), "--json"]) == 0
    assert json.loads(capsysbinary.readouterr().out)["schema"] == "weighbridge/sbom/1"
    line = ["sbom", str(folder), "-o", str(tmp_path / "o.json")]
    assert main(line) == 0
    assert (tmp_path / "o.json").read_bytes() == printed
    assert main(line) == 2
    assert main([*line, "--overwrite"]) == 0
    assert main(["sbom", str(folder), "--overwrite"]) == 2
