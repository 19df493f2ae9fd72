"""Models that lie elsewhere in the page: entries of stores, by the address that `wb ls` prints, and models behind a
server, whose bytes are fetched where somebody looks."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from tests.page.conftest import Visits
from tests.page.test_browser import ROWS, SHOWN, at, settled
from tests.remote.servers import FileServer, Hub
from tests.remote.test_tls import context, trust

from weighbridge.page.data import PageData
from weighbridge.page.endpoints import start
from weighbridge.reports.stores.listing import list_models

pytestmark = pytest.mark.costly

COMMIT = "b" * 40


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores and caches of its own, for this process and the command's."""
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "LLAMA_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))


def blob(folder: Path, data: bytes, prefix: str = "") -> str:
    digest = hashlib.sha256(data).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{prefix}{digest}").write_bytes(data)
    return digest


def in_ollama(folder: Path, model: Path) -> None:
    """`tiny:latest`, as Ollama keeps it."""
    data, kind = model.read_bytes(), "application/vnd.ollama.image.model"
    layer = {"mediaType": kind, "digest": f"sha256:{blob(folder / 'blobs', data, 'sha256-')}", "size": len(data)}
    config, kind = b'{"model_format": "gguf"}', "application/vnd.docker.container.image.v1+json"
    about = {"mediaType": kind, "digest": f"sha256:{blob(folder / 'blobs', config, 'sha256-')}", "size": len(config)}
    manifest = folder / "manifests" / "registry.ollama.ai" / "library" / "tiny" / "latest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"config": about, "layers": [layer]}))


def in_hub_cache(folder: Path, model: Path) -> None:
    """`org/tiny`, as huggingface_hub keeps it: links to blobs."""
    repository = folder / "models--org--tiny"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for path in model.iterdir():
        digest = blob(repository / "blobs", path.read_bytes())
        (snapshot / path.name).symlink_to(os.path.relpath(repository / "blobs" / digest, snapshot))


@pytest.mark.parametrize("store", ["ollama", "hub"])
def test_an_entry_of_a_store_is_shown(
    visit: Visits, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    if store == "ollama":
        in_ollama(tmp_path / "ollama", models / "q4.gguf")
    else:
        in_hub_cache(tmp_path / "hf" / "hub", models / "llama")
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (entry,) = list_models().entries
    assert entry.address is not None
    with visit.served(entry.address) as url:
        page = settled(visit(url))
        assert page.get_by_role("heading", level=1).inner_text().startswith("tiny")
        assert "verify: ok" in page.locator(".verdicts").inner_text()
        for panel, shown in SHOWN.items():
            settled(visit(at(url, panel, tensor=1))).wait_for_selector(shown)


@pytest.mark.parametrize("secure", [False, True])
def test_a_model_behind_an_address_is_shown(
    visit: Visits, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secure: bool
) -> None:
    """Only what is looked at is fetched."""
    server = FileServer({"/q4.gguf": models / "q4.gguf"})
    if secure:
        authority = pytest.importorskip("trustme").CA()
        server.tls = context(authority)
        trust(authority, tmp_path, monkeypatch)
    with server.running(), visit.served(f"{server.url}/q4.gguf") as url:
        page = visit(at(url, "tensors"))
        page.wait_for_selector(ROWS)
        assert page.get_by_role("heading", level=1).inner_text() == "q4.gguf"
        assert "fetched to open it" in page.locator("header .quiet").first.inner_text()
        page = settled(visit(at(url, "microscope", mode="bytes", at=0)))
        shown = bytes.fromhex("".join(page.locator(".hex i").all_inner_texts()))
        assert shown == (models / "q4.gguf").read_bytes()[:512]


def test_the_bytes_that_came_are_counted(models: Path) -> None:
    server = FileServer({"/q4.gguf": models / "q4.gguf"})
    with server.running(), PageData(f"{server.url}/q4.gguf") as data:
        fetched = start(data)["models"][0]["fetched"]
    assert 0 < fetched <= server.sent
    with PageData(models / "q4.gguf") as data:
        assert start(data)["models"][0]["fetched"] is None


def test_a_model_on_the_hub_is_shown(visit: Visits, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    with Hub(models / "llama").running() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        with visit.served("hf://org/model") as url:
            page = settled(visit(url))
            assert page.get_by_role("heading", level=1).inner_text() == "model"
            page = settled(visit(at(url, "numbers", tensor=0)))
            page.wait_for_selector(".u-wrap canvas")
