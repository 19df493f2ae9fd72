"""Servers that aren't ours: nginx for ranges and redirects, moto's S3. A missing one is skipped, and says so."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import system
from tests.remote.servers import FileServer

import weighbridge as wb
from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import RemoteError
from weighbridge.cli.main import main
from weighbridge.io.location import open_source

DATA = random.Random(3).randbytes(3_000_000)
CONF = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
  access_log {folder}/access.log; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  gzip on; gzip_types *; gzip_min_length 1;
  server {{
    listen 127.0.0.1:{port}; root {folder}/www;
    location /moved/ {{ return 302 http://127.0.0.1:{port}/$is_args; }}
    location /to/ {{ rewrite ^/to/(.*)$ /$1 redirect; }}
    location /whole/ {{ alias {folder}/www/; max_ranges 0; }}
    location /elsewhere/ {{ add_header X-Passed nginx always; proxy_pass http://$http_host$request_uri; }}
  }}
}}
"""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    nginx = system.require("nginx")
    folder = tmp_path_factory.mktemp("nginx")
    (folder / "www").mkdir()
    (folder / "www" / "model.bin").write_bytes(DATA)
    folder.chmod(0o755)
    for above in folder.parents:
        if above.name.startswith("pytest"):
            above.chmod(0o755)
    process, port = next(filter(None, (started(nginx, folder) for _ in range(9))))
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(60)


def started(nginx: str, folder: Path) -> tuple[subprocess.Popen[bytes], int] | None:
    """nginx and its port; None where another process took the port meanwhile."""
    port = free_port()
    user = "user root;" if os.getuid() == 0 else ""
    (folder / "conf").write_text(user + CONF.format(folder=folder, port=port))
    process = subprocess.Popen([nginx, "-c", str(folder / "conf"), "-p", str(folder)], stderr=subprocess.DEVNULL)
    while process.poll() is None:
        if (folder / "pid").exists():  # written once it listens
            return process, port
        time.sleep(0.05)
    return None


@pytest.mark.parametrize("place", ["model.bin", "to/model.bin", "whole/model.bin"])
def test_nginx_gives_the_bytes(nginx: str, place: str) -> None:
    with open_source(resolve_path(f"{nginx}/{place}")) as source:
        assert source.size == len(DATA)
        for at in (0, 1, 100_000, len(DATA) - 10):
            assert source.read(at, 10) == DATA[at : at + 10]
        assert source.read(0, len(DATA)) == DATA


def test_a_file_that_changes_on_nginx_is_seen(nginx: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = next(p for p in tmp_path_factory.getbasetemp().glob("nginx*/www") if p.is_dir()) / "changing.bin"
    path.write_bytes(DATA)
    with open_source(resolve_path(f"{nginx}/changing.bin")) as source:
        source.read(0, 10)
        path.write_bytes(bytes(len(DATA)))
        os.utime(path, (1, 1))
        with pytest.raises(RemoteError, match="has changed"):
            source.read(1_000_000, 1_000_000)


def test_a_missing_file_on_nginx(nginx: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["identify", f"{nginx}/none"]) == 2
    assert "no such file" in capsys.readouterr().err


@pytest.mark.parametrize("direct", [False, True])
def test_nginx_as_a_proxy(
    nginx: str, direct: bool, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """HTTP_PROXY names who is asked; NO_PROXY who isn't."""
    log = next(p for p in tmp_path_factory.getbasetemp().glob("nginx*/access.log"))
    monkeypatch.setenv("HTTP_PROXY", nginx)
    monkeypatch.setenv("http_proxy", nginx)
    if direct:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
    name = f"/elsewhere/{'direct' if direct else 'passed'}.bin"
    with FileServer({name: DATA}).running() as server:
        with open_source(resolve_path(f"{server.url}{name}")) as source:
            assert source.read(1_000_000, 100) == DATA[1_000_000:1_000_100]
        assert server.paths().count(name) == 2
        via = [r.headers.get("connection") == "close" for r in server.log if r.path == name]
    assert all(via) != direct  # nginx asks with HTTP/1.0 semantics, our client keeps its connections
    assert name in log.read_text() or direct


# ------------------------------------------------------------------------------------------------ S3


@pytest.fixture(params=["s3", "gs"])
def scheme(request: pytest.FixtureRequest, s3: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Google's XML API lists and reads as S3 does, so moto judges both."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", s3)
    return str(request.param)


def test_a_model_in_a_bucket(scheme: str, bucket: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.reports.makers import llama_folder

    folder = llama_folder(tmp_path / "m")
    for path in folder.iterdir():
        bucket.put_object(Bucket="models", Key=f"org/m/{path.name}", ACL="public-read", Body=path.read_bytes())  # type: ignore[attr-defined]
    assert main(["diff", f"{scheme}://models/org/m", str(folder)]) == 0
    (entry,) = wb.ls([f"{scheme}://models/org"]).entries
    here = wb.ls([folder]).entries[0]
    assert (entry.name, entry.address) == ("m", f"{scheme}://models/org/m")
    assert (entry.bytes, entry.files, entry.quantization, entry.trouble) == (
        here.bytes,
        here.files,
        here.quantization,
        None,
    )
    assert main(["verify", "-q", f"{scheme}://models/org/m", "--values"]) == 0
    assert main(["hash", f"{scheme}://models/org/m/config.json"]) == 0
    assert main(["inspect", f"{scheme}://models/org/none"]) == 2
    assert main(["inspect", f"{scheme}://"]) == 2
    assert main(["inspect", f"{scheme}://nobucket/x"]) == 2
    capsys.readouterr()


def test_an_object_that_changes_is_seen(scheme: str, bucket: object) -> None:
    put = bucket.put_object  # type: ignore[attr-defined]
    put(Bucket="models", Key="x.bin", ACL="public-read", Body=DATA)
    with open_source(resolve_path(f"{scheme}://models/x.bin")) as source:
        assert source.read(5, 100) == DATA[5:105]
        put(Bucket="models", Key="x.bin", ACL="public-read", Body=bytes(len(DATA)))
        with pytest.raises(RemoteError, match="has changed"):
            source.read(2_000_000, 100)


@pytest.mark.parametrize("kind", ["gs", "gcs", "az", "abfs"])
def test_other_buckets_without_credentials_say_what_to_set(
    kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")  # no test reaches the network
    monkeypatch.setattr("weighbridge.adapters.remote.buckets.reading.RETRIES", 0)
    assert main(["inspect", f"{kind}://bucket/x"]) == 2
    shown = capsys.readouterr().err
    assert "hint" in shown
    assert ("AZURE_STORAGE_ACCOUNT_NAME" in shown) == (kind in ("az", "abfs"))
