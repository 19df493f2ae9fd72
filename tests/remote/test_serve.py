"""Our server, with clients that aren't ours: huggingface_hub, transformers, Ollama's requests; and our own."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.conversion.test_forms import gguf

import weighbridge as wb
from weighbridge.cli.main import main
from weighbridge.conversion.forms.shelf import ModelFolder

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")
from weighbridge.adapters.serving import hub_server
from weighbridge.shipping.ollama.pull import PullableModels

FORMS = ("Q8_0", "Q4_K_M", "safetensors")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf(tmp_path_factory.mktemp("serve")).parent


def serving(
    models: Path,
    token: str | None = None,
    log: list[tuple[str, str, str | None]] | None = None,
    note: Callable[[str], None] = print,
) -> Iterator[str]:
    """`log`: gets method, path and range of every request; `note`: what Ollama doesn't get."""
    uvicorn = pytest.importorskip("uvicorn")
    with ModelFolder(models, FORMS) as shelf:
        app = hub_server.app(shelf, PullableModels(shelf, note), token)

        async def logged(scope: Any, receive: Any, send: Any) -> None:
            if log is not None and scope["type"] == "http":
                query = f"?{scope['query_string'].decode()}" if scope["query_string"] else ""
                asked = dict(scope["headers"]).get(b"range")
                log.append((scope["method"], scope["path"] + query, asked and asked.decode()))
            await app(scope, receive, send)

        config = uvicorn.Config(logged, port=0, log_level="warning", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        server.should_exit = True
        thread.join(60)


@pytest.fixture(scope="module")
def url(models: Path) -> Iterator[str]:
    yield from serving(models)


@pytest.fixture(scope="module")
def quantized(models: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    out = tmp_path_factory.mktemp("q") / "q.gguf"
    wb.quantize(models / "tiny.gguf", out, "Q4_K_M")
    return out.read_bytes()


def ask(url: str, **headers: str) -> SimpleNamespace:
    request = urllib.request.Request(url, headers={k.replace("_", "-"): v for k, v in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return SimpleNamespace(status=answer.status, headers=answer.headers, body=answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return SimpleNamespace(status=error.code, headers=error.headers, body=error.read())


def test_huggingface_hub_downloads_a_form(url: str, quantized: bytes, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    api = hub.HfApi(endpoint=url, token=False)
    assert list(api.list_repo_files("local/tiny-GGUF")) == ["tiny-Q8_0.gguf", "tiny-Q4_K_M.gguf"]
    folder = hub.snapshot_download(
        "local/tiny-GGUF", endpoint=url, cache_dir=tmp_path, allow_patterns=["*Q4_K_M*"], token=False
    )
    assert Path(folder, "tiny-Q4_K_M.gguf").read_bytes() == quantized


@pytest.mark.slow
def test_safetensors_of_the_form_open_in_transformers(url: str, tmp_path: Path) -> None:
    """A process of its own, as huggingface_hub reads HF_ENDPOINT at import."""
    pytest.importorskip("transformers")
    code = (
        "from transformers import AutoConfig\n"
        "from huggingface_hub import snapshot_download\n"
        "from safetensors import safe_open\n"
        "folder = snapshot_download('local/tiny-safetensors')\n"
        "print(AutoConfig.from_pretrained('local/tiny-safetensors').hidden_size)\n"
        "print(len(safe_open(folder + '/model.safetensors', 'np').keys()))\n"
    )
    env = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["256", "21"], done.stderr[-2000:]


def test_our_own_commands_read_from_it(
    url: str, quantized: bytes, connect: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    connect(SimpleNamespace(endpoint=url))
    assert main(["fetch", "hf://local/tiny-GGUF", str(tmp_path / "o"), "--include", "*Q4_K_M*"]) == 0
    assert (tmp_path / "o" / "tiny-Q4_K_M.gguf").read_bytes() == quantized
    assert main(["hash", f"ollama://{url.removeprefix('http://')}/local/tiny:q4_k_m"]) == 0
    assert hashlib.sha256(quantized).hexdigest() in capsys.readouterr().out


FILE = "local/tiny-GGUF/resolve/main/tiny-Q4_K_M.gguf"


@pytest.mark.parametrize(
    ("asked", "status", "start", "end"),
    [
        ("bytes=0-99", 206, 0, 100),
        ("bytes=-100", 206, -100, None),
        ("bytes=1000-", 206, 1000, None),
        ("bytes=5000-100000000", 206, 5000, None),
        ("bytes=100000000-", 416, 0, 0),
        ("bytes=5-2", 416, 0, 0),
        ("bytes=-", 400, 0, 0),
        ("bytes=a-b", 400, 0, 0),
        ("items=0-5", 200, 0, None),
        ("bytes=0-1,5-6", 200, 0, None),
    ],
)
def test_ranges(asked: str, status: int, start: int, end: int | None, url: str, quantized: bytes) -> None:
    answer = ask(f"{url}/{FILE}", Range=asked)
    assert answer.status == status
    if status < 300:
        assert answer.body == quantized[start:end]
    if status == 206:
        first = start % len(quantized)
        assert answer.headers["Content-Range"] == f"bytes {first}-{first + len(answer.body) - 1}/{len(quantized)}"


def test_a_range_of_another_version_is_the_whole_file(url: str, quantized: bytes) -> None:
    etag = ask(f"{url}/{FILE}", Range="bytes=0-0").headers["ETag"]
    assert ask(f"{url}/{FILE}", Range="bytes=0-9", If_Range=etag).body == quantized[:10]
    assert ask(f"{url}/{FILE}", Range="bytes=0-9", If_Range='"other"').body == quantized


@pytest.mark.parametrize(
    "path",
    [
        "local/tiny/resolve/main/../../../etc/passwd", "local/tiny/resolve/main/%2e%2e/%2e%2e/etc/passwd",
        "local/tiny/resolve/main//etc/passwd", "local/..%2ftiny/resolve/main/x", "local/tiny/resolve/v9/tiny.gguf",
        "api/models/local/none", "api/models/local/tiny/revision/v9", "local/tiny/resolve/main/none", "etc/passwd",
    ],
)  # fmt: skip
def test_names_are_looked_up_and_never_joined(path: str, url: str) -> None:
    assert ask(f"{url}/{path}").status == 404


def test_a_token_where_one_is_asked_for(models: Path) -> None:
    for url in serving(models, token="s3cret"):
        assert ask(f"{url}/{FILE}", Range="bytes=0-3").status == 401
        assert ask(f"{url}/{FILE}", Range="bytes=0-3", Authorization="Bearer wrong").status == 401
        assert ask(f"{url}/{FILE}", Range="bytes=0-3", Authorization="Bearer s3cret").body == b"GGUF"
        assert ask(f"{url}/v2/local/tiny/manifests/Q8_0").status == 401


def test_others_than_this_machine_need_a_token(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(models), "--host", "0.0.0.0"]) == 2
    assert "--token" in capsys.readouterr().err


@pytest.mark.costly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_cleanly(number: signal.Signals, models: Path) -> None:
    words = [sys.executable, "-m", "weighbridge", "serve", str(models), "--port", "0"]
    process: Any = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    url = process.stderr.readline().split()[-1]
    assert ask(f"{url}/api/models").status == 200
    process.send_signal(number)
    assert process.wait(60) == 0
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
