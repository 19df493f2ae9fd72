"""What a browser finds, what repositories are called, and which files are in them."""

from __future__ import annotations

import base64
import hashlib
import re
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.remote.test_serve import ask, models, serving
from tests.reports.makers import llama_folder

from weighbridge.adapters.serving import index_page
from weighbridge.conversion.forms.shelf import Shelf

__all__ = ["models"]


@pytest.fixture(scope="module")
def url(models: Path) -> Iterator[str]:
    yield from serving(models)


def test_a_browser_finds_every_file(url: str) -> None:
    """By links alone, from the address to the first bytes of each file."""
    found = set()
    for page in re.findall(r'href="([^"]+)"', ask(url, Accept="text/html").body.decode()):
        for file in re.findall(r'href="([^"]+)"', ask(url + page, Accept="text/html").body.decode()):
            assert ask(url + file, Range="bytes=0-3").status == 206
            found.add(urllib.parse.unquote(file).rpartition("/")[2])
    assert {"tiny.gguf", "tiny-Q8_0.gguf", "tiny-Q4_K_M.gguf", "model.safetensors"} <= found


def test_the_page_loads_and_runs_nothing(url: str) -> None:
    answer = ask(url, Accept="text/html")
    text, policy = answer.body.decode(), answer.headers["Content-Security-Policy"]
    assert not re.search(r"<script|<img|<link|\bsrc=|\bon\w+=|https?://(?!127\.0\.0\.1)", text)
    assert policy.startswith("default-src 'none'")
    (style,) = re.findall(r"<style>(.*?)</style>", text)
    assert f"'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'" in policy


@pytest.mark.parametrize("path", ["", "local/tiny-GGUF"])
def test_a_page_as_text_names_the_environment(path: str, url: str) -> None:
    answer = ask(f"{url}/{path}")
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert f"export HF_ENDPOINT={url}" in answer.body.decode()
    assert ("ollama pull --insecure" in answer.body.decode()) == bool(path)


def test_names_and_hosts_are_escaped() -> None:
    page = index_page.repository("<b>", {}, {"<i>": "<u>"}, '"><script>', token=False)
    assert not re.search(r"<(b|i|u|script)>", page.html())
    assert "HF_ENDPOINT=http://127.0.0.1" in page.text()


def test_pages_ask_for_the_token(models: Path) -> None:
    for url in serving(models, token="s3cret"):
        assert ask(f"{url}/local/tiny").status == 401
        answer = ask(url)
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"].startswith("Basic")
        for given, status in ((b":s3cret", 200), (b"s3cret:", 401), (b"s3cret", 401), (b"\xff", 401)):
            assert ask(url, Authorization=f"Basic {base64.b64encode(given).decode()}").status == status
        assert ask(url, Authorization="Basic ?").status == 401


@pytest.mark.parametrize("path", ["", "local/tiny", "api/models", "v2/", "v2/local/tiny/manifests/Q8_0"])
def test_without_a_token_no_other_name_leads_here(path: str, url: str) -> None:
    """A page of another site can have its own name point to this machine (DNS rebinding)."""
    assert ask(f"{url}/{path}", Host="evil.example:80").status == 421
    assert ask(f"{url}/{path}", Host="localhost:80").status == 200
    assert ask(f"{url}/{path}", Host="[::1]:80").status == 200


def test_models_of_one_name_are_all_served(tmp_path: Path) -> None:
    commit = "a" * 40
    for folder in ("m", f"models--org--m/snapshots/{commit}", f"models--other--m/snapshots/{commit}"):
        llama_folder(tmp_path / folder, shards=1)
    for cached in tmp_path.glob("models--*"):
        (cached / "refs").mkdir()
        (cached / "refs" / "main").write_text(commit)
    with Shelf(tmp_path, ("Q8_0",)) as shelf:
        assert set(shelf.repositories()) >= {"m", "models-org-m", "models-other-m", "models-org-m-GGUF"}
        assert all("model.safetensors" in (shelf.files(n) or {}) for n in ("m", "models-org-m", "models-other-m"))


def test_a_repository_of_the_hub_s_cache_has_its_name(tmp_path: Path) -> None:
    llama_folder(tmp_path / "models--org--m" / "snapshots" / ("a" * 40), shards=1)
    (tmp_path / "models--org--m" / "refs").mkdir()
    (tmp_path / "models--org--m" / "refs" / "main").write_text("a" * 40)
    with Shelf(tmp_path, ()) as shelf:
        assert shelf.repositories() == ("m",)


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("my model", "my-model"),
        ("a--b", "a-b"),
        ("..x", "x"),
        ("模型", "model"),
        ("x" * 200, "x" * 60),
        ("a..b", "a.b"),
    ],
)
def test_names_are_what_clients_take(folder: str, expected: str, tmp_path: Path) -> None:
    utils = pytest.importorskip("huggingface_hub.utils")
    llama_folder(tmp_path / folder, shards=1)
    with Shelf(tmp_path, ("mlx-4bit",)) as shelf:
        assert shelf.repositories() == (expected, f"{expected}-mlx-4bit")
        for name in shelf.repositories():
            utils.validate_repo_id(f"local/{name}")


def test_a_form_s_name_never_hides_a_model(tmp_path: Path) -> None:
    for folder in ("m-GGUF", "m"):
        llama_folder(tmp_path / folder, shards=1)
    with Shelf(tmp_path, ("Q8_0",)) as shelf:
        names = shelf.repositories()
        assert len(names) == len(set(names)) == 4


def test_files_in_subfolders_are_served_and_links_elsewhere_are_not(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    folder = llama_folder(tmp_path / "models" / "m", shards=1)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (tmp_path / "secret").write_text("secret")
    (folder / "secret.txt").symlink_to(tmp_path / "secret")
    for url in serving(tmp_path / "models"):
        api = hub.HfApi(endpoint=url, token=False)
        assert "1_Pooling/config.json" in api.list_repo_files("local/m")
        assert ask(f"{url}/local/m/resolve/main/secret.txt").status == 404
        assert "secret.txt: a link" in ask(f"{url}/local/m").body.decode()
        top = list(api.list_repo_tree("local/m"))
        assert [type(e).__name__ for e in top if e.path == "1_Pooling"] == ["RepoFolder"]
        assert [e.path for e in api.list_repo_tree("local/m", "1_Pooling")] == ["1_Pooling/config.json"]
        (info,) = api.get_paths_info("local/m", ["config.json", "none"])
        assert info.size == (folder / "config.json").stat().st_size
        assert ask(f"{url}/api/models/local/m/tree/main/none").status == 404
        assert ask(f"{url}/api/models/org/m").status == 404
