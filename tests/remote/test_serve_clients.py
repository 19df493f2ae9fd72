"""Our server, with what llama.cpp does: its own download code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.remote.test_serve import ask, models, quantized, serving

from weighbridge.adapters.runtimes import llamacpp_api

__all__ = ["models", "quantized"]
#: As the Hub's tokens look: llama.cpp brings no other.
TOKEN = "hf_" + "a1" * 20


@pytest.fixture(scope="module")
def log() -> list[tuple[str, str, str | None]]:
    return []


@pytest.fixture(scope="module")
def url(models: Path, log: list[tuple[str, str, str | None]]) -> Iterator[str]:
    yield from serving(models, TOKEN, log)


#: `llama-server -hf NAME` up to the loading: common_models_handler_init, then _apply (common/arg.h).
DOWNLOAD = """
import ctypes as c, os, sys, xllamacpp
from xllamacpp import xllamacpp as module
library, params = c.CDLL(module.__file__), xllamacpp.CommonParams()
params.model.hf_repo, params.hf_token = sys.argv[1:]
handler, common_params = c.create_string_buffer(1 << 16), id(params) + object.__basicsize__
SERVER = 12
init = library[sys.stdin.readline().strip()]
init.argtypes = [c.c_void_p, c.c_void_p, c.c_int]
init(handler, common_params, SERVER)
apply = library[sys.stdin.readline().strip()]
apply.argtypes = [c.c_void_p, c.c_void_p, c.c_void_p]
apply(handler, common_params, None)
print("at", params.model.path, flush=True)
os._exit(0)
"""
INIT = "_Z26common_models_handler_initRK13common_params13llama_example"
APPLY = "_Z27common_models_handler_applyR21common_models_handlerR13common_paramsP24common_download_callback"


def llama_cpp(url: str, name: str, home: Path, token: str = TOKEN) -> Path:
    """The file that `-hf NAME` downloads."""
    pytest.importorskip("xllamacpp", reason="NOT CHECKED: llama.cpp's -hf needs the package xllamacpp")
    library = llamacpp_api.library()
    if not (hasattr(library, INIT) and hasattr(library, APPLY)):
        pytest.skip("NOT CHECKED: this xllamacpp doesn't export llama.cpp's download")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "LLAMA_", "MODEL_ENDPOINT"))}
    env |= {"HF_ENDPOINT": url, "HF_HOME": str(home)}
    words = [sys.executable, "-c", DOWNLOAD, name, token]
    done = subprocess.run(words, env=env, input=f"{INIT}\n{APPLY}\n", capture_output=True, text=True, timeout=300)
    assert "\nat " in f"\n{done.stdout}", done.stderr[-2000:]
    return Path(f"\n{done.stdout}".rpartition("\nat ")[2].strip())


def requests_of_llama_cpp(commit: str) -> list[tuple[str, str, str | None]]:
    """Method, path, range."""
    repository, file = "/api/models/local/tiny-GGUF", f"/local/tiny-GGUF/resolve/{commit}/tiny-Q4_K_M.gguf"
    return [("GET", f"{repository}/refs", None), ("GET", f"{repository}/tree/{commit}?recursive=true", None),
            ("HEAD", file, None), ("GET", file, None)]  # fmt: skip


def test_llama_cpp_s_hf_downloads_a_form(
    url: str, quantized: bytes, log: list[tuple[str, str, str | None]], tmp_path: Path
) -> None:
    log.clear()
    path = llama_cpp(url, "local/tiny-GGUF:Q4_K_M", tmp_path)
    assert path.read_bytes() == quantized
    assert log == requests_of_llama_cpp(path.parent.name)


def test_llama_cpp_s_hf_resumes(
    url: str, quantized: bytes, log: list[tuple[str, str, str | None]], tmp_path: Path
) -> None:
    first = llama_cpp(url, "local/tiny-GGUF:Q4_K_M", tmp_path)
    blob = first.resolve()
    blob.rename(f"{blob}.downloadInProgress")
    os.truncate(f"{blob}.downloadInProgress", 100_000)
    first.unlink()
    log.clear()
    assert llama_cpp(url, "local/tiny-GGUF:Q4_K_M", tmp_path).read_bytes() == quantized
    assert log[-1][2] == "bytes=100000-"


def test_llama_cpp_s_requests_answered(url: str, quantized: bytes) -> None:
    """The requests above without llama.cpp."""
    allowed = {"Authorization": f"Bearer {TOKEN}"}
    refs = json.loads(ask(f"{url}/api/models/local/tiny-GGUF/refs", **allowed).body)
    (commit,) = {branch["targetCommit"] for branch in refs["branches"] if branch["name"] == "main"}
    _, tree, head, get = requests_of_llama_cpp(commit)
    (row,) = (r for r in json.loads(ask(url + tree[1], **allowed).body) if r["path"] == "tiny-Q4_K_M.gguf")
    assert (row["type"], len(row["oid"]), row["size"]) == ("file", 40, len(quantized))
    with urllib.request.urlopen(urllib.request.Request(url + head[1], method="HEAD", headers=allowed)) as answer:
        assert answer.headers["Accept-Ranges"] == "bytes"
        assert int(answer.headers["Content-Length"]) == len(quantized)
    assert ask(url + get[1], **allowed).body == quantized
