"""`ollama://` and `lmstudio://`: the store on this machine first, then Ollama's registry."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from tests.remote.servers import FileServer

import weighbridge as wb
from weighbridge.adapters.remote import lmstudio
from weighbridge.adapters.remote.ollama import OllamaName, parse_name
from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.cli.main import main
from weighbridge.models.locate import locate

GGUF = b"GGUF" + (3).to_bytes(4, "little") + bytes(16)
SHA = "a4e5e156ddec27e286f75328784d7106b60a4eb1d246e950a001a3f944fbda99"


def manifest(weights: bytes = GGUF) -> bytes:
    config = b"{}"
    layers = [("application/vnd.ollama.image.model", weights), ("application/vnd.ollama.image.license", b"MIT")]
    row = lambda media, data: {  # noqa: E731
        "mediaType": media, "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data),
    }  # fmt: skip
    return json.dumps(
        {"schemaVersion": 2, "config": row("application/vnd.docker.container.image.v1+json", config),
         "layers": [row(*layer) for layer in layers]}
    ).encode()  # fmt: skip


def store(folder: Path, name: str = "registry.ollama.ai/library/llama3.2/3b") -> Path:
    path = folder / "manifests" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(manifest())
    (folder / "blobs").mkdir(exist_ok=True)
    (folder / "blobs" / f"sha256-{SHA}").write_bytes(GGUF)
    return folder


@pytest.mark.parametrize(
    ("text", "expected", "shown"),
    [
        ("llama3.2", ("registry.ollama.ai", "library", "llama3.2", "latest"), "llama3.2:latest"),
        ("me/x", ("registry.ollama.ai", "me", "x", "latest"), "me/x:latest"),
        ("hf.co/bartowski/X-GGUF:Q4_K_M", ("hf.co", "bartowski", "X-GGUF", "Q4_K_M"), "hf.co/bartowski/X-GGUF:Q4_K_M"),
        ("localhost:5000/a/b:c", ("localhost:5000", "a", "b", "c"), "localhost:5000/a/b:c"),
        ("UPPER:Tag", ("registry.ollama.ai", "library", "UPPER", "Tag"), "UPPER:Tag"),
        ("http://ollama.com/a/b", ("ollama.com", "a", "b", "latest"), "ollama.com/a/b:latest"),
        ("x-", ("registry.ollama.ai", "library", "x-", "latest"), "x-:latest"),
    ],
)
def test_names(text: str, expected: tuple[str, ...], shown: str) -> None:
    """The table that Ollama's own package gives (types/model/name.go)."""
    assert parse_name(text) == OllamaName(*expected)
    assert str(parse_name(text)) == shown


@pytest.mark.parametrize(
    "text", ["-x", "x:y:z", "a.b/c", "a..b/c", "a/b/c/d", "a/b@sha256:0000", "", "m" * 81, "../x", "a/../b"]
)
def test_names_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_name(text)


def test_a_model_of_the_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path / "ollama")
    assert resolve_path("ollama://llama3.2:3b").read_bytes() == GGUF
    assert main(["hash", "ollama://llama3.2:3b"]) == 0
    assert SHA in capsys.readouterr().out


def test_verify_compares_every_blob_of_a_model(tmp_path: Path) -> None:
    folder = store(tmp_path / "ollama")

    def found() -> tuple[int, list[str]]:
        report = wb.verify("ollama://llama3.2:3b")
        return report.digests, [f.rule for f in report.findings if f.rule.startswith("file/")]

    assert found() == (1, ["file/unreadable", "file/unreadable"])  # config and license aren't there
    for data in (b"{}", b"MIT"):
        (folder / "blobs" / f"sha256-{hashlib.sha256(data).hexdigest()}").write_bytes(data)
    assert found() == (3, [])
    (folder / "blobs" / f"sha256-{hashlib.sha256(b'MIT').hexdigest()}").write_bytes(b"GPL")
    assert found() == (3, ["file/digest"])


def test_a_store_without_the_weights_says_so(tmp_path: Path) -> None:
    store(tmp_path / "ollama")
    (tmp_path / "ollama" / "blobs" / f"sha256-{SHA}").unlink()
    with pytest.raises(FormatError, match="not the weights"):
        resolve_path("ollama://llama3.2:3b")


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"config":{},"layers":[]}', b'{"config":1,"layers":2}'])
def test_manifests_that_are_none(text: bytes, tmp_path: Path) -> None:
    folder = store(tmp_path / "ollama")
    (folder / "manifests/registry.ollama.ai/library/llama3.2/3b").write_bytes(text)
    with pytest.raises(FormatError, match=r"manifest|layer"):
        resolve_path("ollama://llama3.2:3b")


def test_a_model_of_a_registry_is_read_by_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    with FileServer({f"/blob/{SHA}": GGUF}).running() as cdn, FileServer().running() as server:
        server.files["/v2/me/tiny/manifests/latest"] = manifest()
        server.faults.redirect = lambda path: f"{cdn.url}/blob/{SHA}" if "/blobs/" in path else None
        name = server.url.removeprefix("http://")
        assert main(["hash", f"ollama://{name}/me/tiny"]) == 0
        assert SHA in capsys.readouterr().out
        assert "vnd.docker" in server.log[0].headers["accept"]
        assert main(["hash", f"ollama://{name}/me/none"]) == 2
        (note,) = locate(f"ollama://{name}/me/tiny").notes
        assert "license" in note


def test_lm_studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home" / ".lmstudio"
    model = home / "models" / "publisher" / "Tiny-GGUF" / "tiny-Q4_K_M.gguf"
    model.parent.mkdir(parents=True)
    model.write_bytes(GGUF)
    assert resolve_path("lmstudio://publisher/Tiny-GGUF/tiny-Q4_K_M.gguf") == model
    assert resolve_path("lmstudio://Tiny-GGUF") == model.parent
    for text in ("lmstudio://", "lmstudio://none", "lmstudio://../home"):
        with pytest.raises(UsageError):
            resolve_path(text)
    moved = tmp_path / "elsewhere"
    (home / "settings.json").write_text(json.dumps({"downloadsFolder": str(moved)}))
    assert lmstudio.models_folder() == moved
