"""`--sbom` of convert, quantize and merge: the written files, the sources as ancestors, licences along the chain."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.llama import llama_tensors, make_folder
from tests.mutation import Fault, assert_seen
from tests.sbom.test_sbom import properties, spdx_objects, with_card

import weighbridge as wb
from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.cli.main import main
from weighbridge.reports.sbom import written


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    for seed, name in enumerate(("base", "tuned")):
        make_folder(Path(name), tensors=llama_tensors(seed), words=True)
    with_card(Path("base"), {"license": "apache-2.0", "base_model": "org/root"})
    with_card(Path("tuned"), {"license": "cc-by-nc-4.0", "base_model": "org/base"})
    _adapter(Path("adapter"))
    return tmp_path


def _adapter(path: Path) -> None:
    path.mkdir()
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    wb.save({name.format("A"): np.ones((2, 64), np.float32), name.format("B"): np.ones((64, 2), np.float32)},
            path / "adapter_model.safetensors")  # fmt: skip
    (path / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"],
                    "base_model_name_or_path": "org/base"})
    )  # fmt: skip
    with_card(path, {"license": "mit"})


MIXTURE: Mapping[str, Any] = {
    "base_model": "base", "gate_mode": "random", "experts": [{"source_model": "base"}, {"source_model": "tuned"}],
}  # fmt: skip
RECIPE: Mapping[str, Any] = {"merge_method": "linear", "models": [
    {"model": "base+adapter", "parameters": {"weight": 1}}, {"model": "tuned", "parameters": {"weight": 1}},
]}  # fmt: skip
#: Name -> what writes `out/` + the target's name, and the ancestors with their relations.
WRITTEN: Mapping[str, tuple[str, Callable[..., Any], dict[str, str]]] = {
    "gguf": ("m.gguf", lambda dst, **k: wb.convert("base", dst, **k), {"base": "converted"}),
    "hf": ("hf", lambda dst, **k: wb.convert("base", dst, to="hf", dtype="f16", **k), {"base": "converted"}),
    "mlx": ("mlx", lambda dst, **k: wb.convert("base", dst, to="mlx", q_bits=4, q_group_size=32, **k),
            {"base": "converted"}),
    "scheme": ("w8", lambda dst, **k: wb.convert("base", dst, to="hf", scheme="w8a8", **k), {"base": "converted"}),
    "npz": ("m.npz", lambda dst, **k: wb.convert("base", dst, **k), {"base": "converted"}),
    "torch": ("m.pt", lambda dst, **k: wb.convert("base", dst, **k), {"base": "converted"}),
    "dcp": ("dcp", lambda dst, **k: wb.convert("base", dst, to="dcp", **k), {"base": "converted"}),
    "shards": ("set.v2", lambda dst, **k: wb.convert("base", dst, to="gguf", max_shard_tensors=8, **k),
               {"base": "converted"}),
    "adapter": ("a.gguf", lambda dst, **k: wb.convert("adapter", dst, base="base", **k), {"adapter": "converted"}),
    "vocab": ("v.gguf", lambda dst, **k: wb.convert("base", dst, vocab_only=True, **k), {"base": "converted"}),
    "lora": ("l.gguf", lambda dst, **k: wb.convert("base", dst, lora="adapter:0.5", **k),
             {"base": "converted", "adapter": "adapter"}),
    "q8_0": ("q.gguf", lambda dst, **k: wb.quantize("tuned", dst, "Q8_0", **k), {"tuned": "quantized"}),
    "q8_0-lora": ("q.gguf", lambda dst, **k: wb.quantize("base", dst, "Q8_0", lora="adapter", **k),
                  {"base": "quantized", "adapter": "adapter"}),
    "recipe": ("merged", lambda dst, **k: wb.merge(RECIPE, dst, **k),
               {"base": "merge", "adapter": "adapter", "tuned": "merge"}),
    "method": ("m.gguf", lambda dst, **k: wb.merge(["base", "tuned"], dst, method="slerp", t=0.5, dtype="q8_0", **k),
               {"base": "merge", "tuned": "merge"}),
    "mixture": ("moe", lambda dst, **k: wb.merge(MIXTURE, dst, **k), {"base": "merge", "tuned": "merge"}),
    "merge-lora": ("merged", lambda dst, **k: wb.merge(["base", "adapter"], dst, **k),
                   {"base": "merge", "adapter": "adapter"}),
}  # fmt: skip


def write(name: str, out: str = "out", sbom: str | Path = "auto", **keywords: Any) -> tuple[Any, Path, dict[str, Any]]:
    """Returns the result, the target and the document."""
    Path(out).mkdir(exist_ok=True)
    target, make, _ = WRITTEN[name]
    result = make(Path(out, target), sbom=sbom, **keywords)
    return result, Path(out, target), json.loads(Path(result.bill).read_text())


def digests(entries: Any) -> dict[str, str]:
    return {entry["name"]: entry["hashes"][0]["content"] for entry in entries}


def actual(place: Path) -> dict[str, str]:
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    return {
        (file.name if file == place else file.relative_to(place).as_posix()): hashlib.sha256(
            file.read_bytes()
        ).hexdigest()
        for file in files
    }


@pytest.mark.parametrize("name", WRITTEN)
def test_the_files_and_the_ancestors(name: str) -> None:
    result, target, document = write(name)
    place = target.name if target.is_dir() else target.stem  # set.v2 is a folder
    assert Path(result.bill) == target.parent / f"{place}.cdx.json"
    expected = actual(target)
    hidden = {file for file in expected if file.startswith(".") and name != "dcp"}
    found = digests(document["components"])
    assert found.items() <= expected.items()
    assert expected.keys() - found.keys() <= hidden | {".metadata"}
    ancestors = document["metadata"]["component"]["pedigree"]["ancestors"]
    relations = {entry["name"]: properties(entry)["relation"] for entry in ancestors}
    assert relations == WRITTEN[name][2]
    for entry in ancestors:
        weights = {file: digest for file, digest in actual(Path(entry["name"])).items() if ".safetensors" in file}
        assert digests(entry["components"]) == weights


@pytest.mark.parametrize("name", WRITTEN)
def test_the_same_work_gives_the_same_bytes(name: str) -> None:
    first, second = (Path(write(name, out)[0].bill).read_bytes() for out in ("one", "two"))
    assert first == second


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["gguf", "recipe", "q8_0-lora"])
def test_the_schemas_accept_it(name: str) -> None:
    validation = pytest.importorskip("cyclonedx.validation.json")
    schema = pytest.importorskip("cyclonedx.schema").SchemaVersion.V1_6
    _, _, document = write(name)
    assert validation.JsonStrictValidator(schema).validate_str(json.dumps(document)) is None
    result = write(name, "spdx", Path("b.SPDX.json"))[0]
    model, objects = spdx_objects(Path(result.bill).read_text())
    assert objects.link() == set()
    descents = [o for o in objects.foreach_type(model.Relationship) if o.relationshipType.endswith("descendantOf")]
    assert len(descents) >= len(WRITTEN[name][2])


def test_a_source_s_own_bases_are_its_ancestors() -> None:
    """The GGUF's metadata names them, too: as they are the source's, they aren't listed twice."""
    _, _, document = write("gguf")
    [source] = document["metadata"]["component"]["pedigree"]["ancestors"]
    assert [entry["name"] for entry in source["pedigree"]["ancestors"]] == ["root"]


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("gguf", {"licence/not-compared"}),  # org/root is unknown here
        ("q8_0", {"licence/not-compared"}),
        ("recipe", {"licence/contradiction", "licence/not-compared"}),  # the base's card: apache-2.0, tuned: nc
        ("mixture", {"licence/contradiction", "licence/not-compared"}),
        ("npz", {"licence/none", "licence/not-compared"}),
    ],
)
def test_licences_along_the_chain(name: str, rules: set[str]) -> None:
    result, _, _ = write(name)
    assert {finding.rule for finding in result.findings} == rules
    for finding in result.findings:
        if finding.rule == "licence/contradiction":
            assert "README.md of tuned states cc-by-nc-4.0" in finding.message


def test_a_model_without_a_licence_from_a_limited_source_is_reported() -> None:
    result = wb.convert("tuned", "t.npz", sbom="auto")
    [finding] = [f for f in result.findings if f.rule == "licence/none" and f.severity == "warning"]
    assert "README.md of tuned states cc-by-nc-4.0" in finding.message


def test_the_seeded_fault_of_the_chain_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        result, _, _ = write("recipe", "x", overwrite=True)
        assert any(finding.rule == "licence/contradiction" for finding in result.findings)

    assert_seen(Fault(written, "licence_findings", lambda facts, known: iter(()), check), monkeypatch)


# ------------------------------------------------------------------------------------------ plans, refusals


def test_a_plan_lists_the_file_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert wb.plan_convert("base", "m.gguf", sbom="auto").describe()["bill"] == "m.cdx.json"
    assert wb.plan_convert("base", "m.gguf").describe()["bill"] is None
    for line in (["convert", "base", "m.gguf"], ["quantize", "base", "m.gguf", "q8_0"], ["merge", "base", "m.gguf"]):
        assert main([*line, "--dry-run", "--sbom", "x.spdx.json"]) == 0, line
        assert "x.spdx.json" in capsys.readouterr().out
    assert not Path("x.spdx.json").exists()


def test_the_command_without_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "base", "m.gguf", "--sbom", "--dtype", "f16"]) == 0
    assert "bill of materials: m.cdx.json" in capsys.readouterr().err
    assert main(["quantize", "tuned", "q.gguf", "q8_0", "--json", "--sbom"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["bill"], [f["rule"] for f in data["findings"]]) == ("q.cdx.json", ["licence/not-compared"])
    assert json.loads(Path("q.cdx.json").read_text())["bomFormat"] == "CycloneDX"


def test_an_existing_file_is_refused_before_anything_is_written() -> None:
    Path("m.cdx.json").write_text("mine")
    with pytest.raises(RefusedError, match="exists already"):
        wb.convert("base", "m.gguf", sbom="auto")
    assert not Path("m.gguf").exists()
    assert Path("m.cdx.json").read_text() == "mine"
    wb.convert("base", "m.gguf", sbom="auto", overwrite=True)
    assert Path("m.cdx.json").read_text() != "mine"


@pytest.mark.parametrize(
    ("target", "sbom", "message"),
    [
        ("m.gguf", "m.gguf", "is the target"),
        ("folder", "folder/bom.json", "or in it"),
        ("m.gguf", "s3://bucket/b.json", "written to this machine"),
        ("s3://bucket/m.gguf", "auto", "read back"),
        ("s3://bucket/m.gguf", "here.json", "read back"),
    ],
)
def test_what_is_refused(target: str, sbom: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)  # others' tests are offline
    keywords: dict[str, Any] = {"to": "hf"} if target == "folder" else {}
    with pytest.raises(UsageError, match=message) as caught:
        wb.plan_convert("base", target, sbom=sbom, **keywords)
    assert caught.value.hint


def test_a_time_that_is_none_is_refused_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(UsageError, match="not a time"):
        wb.convert("base", "m.gguf", sbom="auto")
    assert not Path("m.gguf").exists()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    result = wb.convert("base", "m.gguf", sbom="auto")
    assert json.loads(Path(result.bill or "").read_text())["metadata"]["timestamp"] == "1970-01-02T00:00:00Z"
