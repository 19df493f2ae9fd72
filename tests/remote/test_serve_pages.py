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

import weighbridge as wb
from weighbridge.adapters.remote.schemes import local_path
from weighbridge.adapters.serving import index_page
from weighbridge.cli.main import main
from weighbridge.conversion.forms.shelf import ModelFolder

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
    page = index_page.repository("<b>", {}, {"<i>": "<u>"}, (), '"><script>', token=False)
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
    with ModelFolder(tmp_path, ("Q8_0",)) as shelf:
        assert set(shelf.repositories()) >= {"m", "models-org-m", "models-other-m", "models-org-m-GGUF"}
        assert all("model.safetensors" in (shelf.files(n) or {}) for n in ("m", "models-org-m", "models-other-m"))


def test_a_repository_of_the_hub_s_cache_has_its_name(tmp_path: Path) -> None:
    llama_folder(tmp_path / "models--org--m" / "snapshots" / ("a" * 40), shards=1)
    (tmp_path / "models--org--m" / "refs").mkdir()
    (tmp_path / "models--org--m" / "refs" / "main").write_text("a" * 40)
    with ModelFolder(tmp_path, ()) as shelf:
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
    with ModelFolder(tmp_path, ("mlx-4bit",)) as shelf:
        assert shelf.repositories() == (expected, f"{expected}-mlx-4bit")
        for name in shelf.repositories():
            utils.validate_repo_id(f"local/{name}")


def test_a_form_s_name_never_hides_a_model(tmp_path: Path) -> None:
    for folder in ("m-GGUF", "m"):
        llama_folder(tmp_path / folder, shards=1)
    with ModelFolder(tmp_path, ("Q8_0",)) as shelf:
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


#: A link out of the served folder -> what it stands for. In `{here}/models`, next to an honest model.
LINKS = {
    "the weights of a model": "models/m/model.safetensors",
    "a GGUF": "models/x.gguf",
    "a whole model": "models/linked",
}


@pytest.mark.parametrize("name", LINKS)
def test_nothing_is_computed_through_a_link_that_leaves_the_folder(name: str, tmp_path: Path) -> None:
    outside = llama_folder(tmp_path / "outside", shards=1)
    llama_folder(tmp_path / "models" / "honest", shards=1)
    wb.convert(outside, tmp_path / "x.gguf", tokenizer=False)
    link = tmp_path / LINKS[name]
    if name == "the weights of a model":
        llama_folder(link.parent, shards=1)
        link.unlink()
        link.symlink_to(outside / "model.safetensors")
    else:
        link.symlink_to(tmp_path / "x.gguf" if name == "a GGUF" else outside)
    with ModelFolder(tmp_path / "models", ("safetensors",)) as shelf:
        made = {r: sorted(shelf.files(r) or {}) for r in shelf.repositories() if r.endswith("-safetensors")}
        assert "model.safetensors" in made.pop("honest-safetensors")
        if name == "the weights of a model":
            assert made == {"m-safetensors": []}
            assert "link out of the folder" in shelf.reasons("m-safetensors")["safetensors"]
        else:
            assert made == {}
            assert shelf.outside == [link.name]


def test_a_link_that_is_named_is_served(tmp_path: Path) -> None:
    wb.convert(llama_folder(tmp_path / "outside", shards=1), tmp_path / "x.gguf", tokenizer=False)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "l.gguf").symlink_to(tmp_path / "x.gguf")
    with ModelFolder(tmp_path / "elsewhere" / "l.gguf", ("Q8_0",)) as shelf:
        assert [file for r in shelf.repositories() for file in shelf.files(r) or {}]


def test_the_cache_of_the_hub_is_served_by_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = tmp_path / "hub" / "models--org--m"
    for place in ("snapshots/abc", "blobs", "refs"):
        (folder / place).mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    for number, file in enumerate(sorted(llama_folder(tmp_path / "m", shards=1).iterdir())):
        file.rename(folder / "blobs" / f"{number:040x}")
        (folder / "snapshots" / "abc" / file.name).symlink_to(f"../../blobs/{number:040x}")
    with ModelFolder(local_path("hf://org/m"), ("safetensors",)) as shelf:
        assert shelf.repositories() == ("m", "m-safetensors")
        for repository in shelf.repositories():
            assert "model.safetensors" in (shelf.files(repository) or {})
    assert main(["serve", "hf://org/other"]) == 2
    assert "wb fetch hf://org/other DIR" in capsys.readouterr().err
