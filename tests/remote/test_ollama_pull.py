"""`ollama pull` from our server, request by request as Ollama does it, into a store that the tests' own reader and our
commands read: what is pulled is what `wb ship ollama` writes."""

from __future__ import annotations

import hashlib
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.remote.test_serve import ask, models, quantized, serving
from tests.shipping import ollama_store
from tests.shipping.models import write_folder
from tests.shipping.test_adapters import write_adapter

import weighbridge as wb
from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import UnsupportedError
from weighbridge.conversion.forms.shelf import ModelFolder
from weighbridge.shipping.ollama.pull import PullableModels

__all__ = ["models", "quantized"]


@pytest.fixture(scope="module")
def open_url(models: Path) -> Iterator[str]:
    yield from serving(models)


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("models") / "tiny-llama")


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """As Ollama's CheckRedirect: another host's address is taken from the answer and not followed."""

    def redirect_request(self, *_: object) -> None:
        return None


class OllamaPull:
    """`ollama pull` (server/images.go PullModel, server/download.go), request by request.

    `least`: bytes of the shortest part; 100 MB in Ollama."""

    def __init__(self, url: str, repository: str, least: int = 100_000_000) -> None:
        self.base, self.least = f"{url}/v2/{repository}", least
        self.open = urllib.request.build_opener(NoRedirects).open

    def get(self, address: str, method: str = "GET", **headers: str) -> tuple[dict[str, str], bytes]:
        request = urllib.request.Request(address, method=method, headers={"User-Agent": "ollama/0", **headers})
        with self.open(request, timeout=60) as answer:
            return {k.lower(): v for k, v in answer.headers.items()}, answer.read()

    def pull(self, tag: str, root: Path, name: str) -> None:
        """The model in the store at `root` as library/NAME:TAG: each blob checked, then the manifest as it came."""
        accept = "application/vnd.docker.distribution.manifest.v2+json"
        raw = self.get(f"{self.base}/manifests/{tag}", Accept=accept)[1]
        manifest = json.loads(raw)
        for layer in (*manifest["layers"], manifest["config"]):
            path = root / "blobs" / layer["digest"].replace(":", "-")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.blob(layer["digest"]))
            path.chmod(0o644)
        path = root / "manifests/registry.ollama.ai/library" / name / tag
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)

    def blob(self, digest: str) -> bytes:
        address = f"{self.base}/blobs/{digest}"
        total = int(self.get(address, "HEAD")[0]["content-length"])
        size = min(max(total // 16, self.least), 1_000_000_000)
        direct = urllib.parse.urljoin(address, self.get(address)[0]["location"])  # "no Location header" else
        parts = [
            self.get(direct, Range=f"bytes={start}-{min(start + size, total) - 1}")[1]
            for start in range(0, total, size)
        ]
        data = b"".join(parts)
        assert f"sha256:{hashlib.sha256(data).hexdigest()}" == digest
        return data


@pytest.mark.parametrize("least", [100_000_000, 10_000])
def test_a_form_is_pulled(least: int, open_url: str, quantized: bytes, tmp_path: Path) -> None:
    OllamaPull(open_url, "local/tiny", least).pull("Q4_K_M", tmp_path, "tiny")
    pulled = ollama_store.read(tmp_path, "tiny", "Q4_K_M")
    assert pulled.one("model") == quantized
    assert pulled.config["file_type"] == "Q4_K_M"


@pytest.mark.costly
def test_what_is_pulled_is_what_ship_writes(folder: Path, tmp_path: Path) -> None:
    """Weights, template, params, licence, config: all of them, to the byte of the manifest."""
    notes: list[str] = []
    for url in serving(folder.parent, note=notes.append):
        OllamaPull(url, "local/tiny-llama").pull("Q8_0", tmp_path / "pulled", "tiny")
        OllamaPull(url, "local/tiny-llama").pull("Q8_0", tmp_path / "again", "tiny")
    wb.ship("ollama", folder, "tiny:Q8_0", type="Q8_0")
    pulled, shipped = (ollama_store.read(tmp_path / root, "tiny", "Q8_0") for root in ("pulled", "ollama"))
    assert [part for part, _ in pulled.layers] == ["model", "template", "params", "license"]
    assert pulled == shipped
    manifests = {p.read_bytes() for p in tmp_path.rglob("manifests/*/*/*/*")}
    assert len(manifests) == 1
    assert not notes


def test_ship_serve_pull_verify_is_a_circle(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model in one store, served under the name that it has there, pulled into another: the same manifest, with all
    layers of the first store."""
    wb.ship("ollama", folder, "me/tiny:q8", type="Q8_0", system="Be short.")
    for url in serving(resolve_path("ollama://me/tiny:q8")):
        monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "other"))
        for tag in ("Q8_0", "latest"):  # Q4_K_M can't be made of Q8_0
            OllamaPull(url, "local/tiny").pull(tag, tmp_path / "other", "tiny")
    before = ollama_store.read(tmp_path / "ollama", "tiny", "q8", "me")
    assert before.one("system") == b"Be short."
    for tag in ("Q8_0", "latest"):
        assert ollama_store.read(tmp_path / "other", "tiny", tag) == before
        assert wb.verify(f"ollama://tiny:{tag}").verdict == "ok"
    assert wb.diff("ollama://tiny:Q8_0", tmp_path / "other/blobs" / _digest(before.one("model")))


def _digest(data: bytes | None) -> str:
    return f"sha256-{hashlib.sha256(data or b'').hexdigest()}"


@pytest.mark.costly
def test_an_adapter_is_merged_in_forms_and_a_layer_where_the_file_is_given(folder: Path, tmp_path: Path) -> None:
    wb.convert(folder, tmp_path / "m" / "base.gguf", dtype="f16", parents=True)
    wb.convert(write_adapter(tmp_path / "adapter"), tmp_path / "m" / "adapter.gguf", base=folder)
    file = tmp_path / "m" / "Modelfile"
    file.write_text("FROM ./base.gguf\nADAPTER ./adapter.gguf\n")
    for url in serving(file):
        (name,) = {row["id"] for row in json.loads(ask(f"{url}/api/models").body) if "-" not in row["id"]}
        for tag in ("F16", "Q8_0"):
            OllamaPull(url, name).pull(tag, tmp_path / "ollama", "tiny")
        with pytest.raises(UnsupportedError, match="adapter"):  # a registry's is read from the store alone
            wb.open(f"ollama://{url.removeprefix('http://')}/{name}:F16")
    own, form = (ollama_store.read(tmp_path / "ollama", "tiny", tag) for tag in ("F16", "Q8_0"))
    assert own.one("model") == (tmp_path / "m" / "base.gguf").read_bytes()
    assert own.one("adapter") == (tmp_path / "m" / "adapter.gguf").read_bytes()
    wb.quantize(file, tmp_path / "merged.gguf", "Q8_0")
    assert (form.one("model"), form.one("adapter")) == ((tmp_path / "merged.gguf").read_bytes(), None)


@pytest.mark.costly
def test_a_template_that_cannot_be_translated_is_left_to_the_model(tmp_path: Path) -> None:
    write_folder(tmp_path / "m" / "odd", "{{ strftime_now('%d') }}{% for m in messages %}{{ m.content }}{% endfor %}")
    notes: list[str] = []
    for url in serving(tmp_path / "m", note=notes.append):
        OllamaPull(url, "local/odd").pull("Q8_0", tmp_path / "ollama", "odd")
    assert ollama_store.read(tmp_path / "ollama", "odd", "Q8_0").one("template") is None
    assert notes[0].startswith("odd:Q8_0: the chat template can't be translated")


def test_latest_is_the_file_itself_where_its_form_is_not_served(models: Path) -> None:
    with ModelFolder(models, ("Q8_0",)) as shelf:
        pullable = PullableModels(shelf, print)
        found = pullable.pulled("tiny", "latest")
        assert found is not None
        assert (models / "tiny.gguf").stat().st_size in [blob.size for blob in found.blobs.values()]
        assert pullable.pulled("tiny", "Q4_K_M") is None


def test_nothing_of_another_name_is_pulled(open_url: str) -> None:
    for name in ("tiny/manifests/Q9", "none/manifests/Q4_K_M", f"tiny/blobs/sha256:{'0' * 64}"):
        assert ask(f"{open_url}/v2/local/{name}").status == 404


def test_ollama_shows_why_a_form_is_not_there(tmp_path: Path) -> None:
    from tests.reports.makers import llama_folder

    llama_folder(tmp_path / "models" / "untokenized", shards=1)
    for url in serving(tmp_path / "models"):
        with pytest.raises(urllib.error.HTTPError) as error:
            OllamaPull(url, "local/untokenized").pull("Q4_K_M", tmp_path / "ollama", "untokenized")
        assert error.value.code == 400  # at 404 Ollama says that the file does not exist
        assert "tokenizer" in error.value.read().decode()
        error.value.close()
        for page in ("local/untokenized-GGUF", "api/models/local/untokenized-GGUF"):
            answer = ask(f"{url}/{page}")
            assert (answer.status, answer.headers["X-Error-Code"]) == (404, "RepoNotFound")
            assert "tokenizer" in answer.headers["X-Error-Message"]
