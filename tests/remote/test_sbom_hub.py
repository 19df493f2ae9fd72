"""The bill of materials of a repository: digests that the Hub lists, without a download; the rest on request."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.remote.servers import COMMIT, LFS, Hub
from tests.reports.makers import llama_folder

import weighbridge as wb

pytest.importorskip("huggingface_hub")
Connect = Callable[..., None]


@pytest.fixture
def hub(tmp_path: Path, connect: Connect) -> Iterator[Hub]:
    folder = llama_folder(tmp_path / "model")
    (folder / "README.md").write_text("---\nlicense: gpl-3.0\nbase_model: org/base\n---\n")
    (folder / "large.bin").write_bytes(b"x" * (LFS + 1))
    with Hub(folder).running() as hub:
        connect(hub)
        yield hub


def files(report: wb.SbomReport) -> dict[str, Any]:
    return {entry["name"]: entry for entry in report.document["components"]}


def properties(entry: Any) -> dict[str, str]:
    return {row["name"]: row["value"] for row in entry["properties"]}


def test_digests_that_the_hub_lists(hub: Hub) -> None:
    report = wb.sbom("hf://org/model")
    large = files(report)["large.bin"]
    assert large["hashes"][0]["content"] == hashlib.sha256(b"x" * (LFS + 1)).hexdigest()
    assert properties(large)["weighbridge:digest"] == "as listed by the store, not computed"
    card = files(report)["README.md"]
    data = (hub.folder / "README.md").read_bytes()
    assert properties(card)["weighbridge:git-blob"] == hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    assert properties(card)["weighbridge:digest"] == "not hashed"
    assert "hashes" not in card
    assert "README.md" in report.unhashed
    model = report.document["metadata"]["component"]
    assert model["purl"] == f"pkg:huggingface/org/model@{COMMIT}"
    assert (model["group"], model["name"], model["version"]) == ("org", "model", COMMIT)


@pytest.mark.parametrize("format", ["cyclonedx", "spdx"])
def test_the_others_on_request(hub: Hub, format: Any) -> None:
    report = wb.sbom("hf://org/model", format=format, hash_remote=True)
    assert report.unhashed == ()
    assert "not hashed" not in report.text()
    data = (hub.folder / "README.md").read_bytes()
    assert hashlib.sha256(data).hexdigest() in report.text()


def test_spdx_has_gits_identifiers(hub: Hub) -> None:
    data = (hub.folder / "README.md").read_bytes()
    gitoid = f"gitoid:blob:sha1:{hashlib.sha1(b'blob %d' % len(data) + bytes(1) + data).hexdigest()}"
    assert gitoid in wb.sbom("hf://org/model", format="spdx").text()


def test_the_base_models_card_from_the_hub(hub: Hub) -> None:
    local = hub.folder.parent / "derived"
    llama_folder(local)
    (local / "README.md").write_text("---\nlicense: mit\nbase_model: org/model\n---\n")
    for card in ("hf://org/model/README.md", "hf://org/model"):
        report = wb.sbom(local, base_card=card)
        assert [finding.rule for finding in report.findings] == ["licence/contradiction"]
        assert card in report.findings[0].message
