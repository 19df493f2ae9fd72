"""TLS where the Hub or a proxy is asked: whose certificate is trusted, and what goes through a tunnel (CONNECT)."""

from __future__ import annotations

import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.remote.servers import FileServer, Hub
from tests.reports.makers import llama_folder

from weighbridge.adapters.remote import extra
from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.cli.main import main
from weighbridge.io.location import open_source

pytest.importorskip("httpx2")
trustme = pytest.importorskip("trustme")

DATA = bytes(range(256)) * 400
Connect = Callable[..., None]


@pytest.fixture
def authority() -> Any:
    return trustme.CA()


def context(authority: Any) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(made)
    return made


def trust(authority: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a new process that trusts the authority."""
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "ca.pem"))
    extra._kept.clear()


def test_a_hub_that_is_not_trusted(
    authority: Any, tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    hub = Hub(llama_folder(tmp_path / "model"))
    hub.hub.tls, hub.cdn.tls = context(authority), context(authority)
    with hub.running():
        connect(hub)
        assert main(["inspect", "hf://org/model"]) == 2
        shown = capsys.readouterr().err
        assert "the certificate of 127.0.0.1 isn't trusted" in shown
        assert "SSL_CERT_FILE" in shown
        assert not hub.requests
        trust(authority, tmp_path, monkeypatch)
        assert main(["verify", "-q", "hf://org/model", "--values"]) == 0


class _Tunnel(socketserver.StreamRequestHandler):
    """CONNECT, and bytes both ways until one side ends."""

    def handle(self) -> None:
        line = self.rfile.readline().decode()
        while self.rfile.readline() not in (b"\r\n", b""):
            pass
        self.server.lines.append(line.strip())  # type: ignore[attr-defined]
        if refusal := self.server.refusal:  # type: ignore[attr-defined]
            self.wfile.write(f"HTTP/1.1 {refusal}\r\nContent-Length: 0\r\n\r\n".encode())
            return
        host, _, port = line.split()[1].rpartition(":")
        with socket.create_connection((host, int(port)), 30) as far:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=_copy, args=(far, self.connection), daemon=True)
            back.start()
            _copy(self.connection, far)
            back.join(30)


def _copy(source: socket.socket, to: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            to.sendall(data)
    with suppress(OSError):
        to.shutdown(socket.SHUT_WR)


@contextmanager
def proxy(refusal: str = "") -> Iterator[tuple[str, list[str]]]:
    """A proxy's address, and the first lines of what it was asked."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Tunnel) as server:
        server.daemon_threads = True
        server.lines, server.refusal = [], refusal  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", server.lines  # type: ignore[attr-defined]
        server.shutdown()


def test_https_goes_through_the_tunnel_of_a_proxy(
    authority: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(authority, tmp_path, monkeypatch)
    with FileServer({"/x": DATA}, tls=context(authority)).running() as server, proxy() as (address, lines):
        monkeypatch.setenv("HTTPS_PROXY", address)
        with open_source(resolve_path(f"{server.url}/x")) as source:
            assert source.read(50_000, 1000) == DATA[50_000:51_000]
        assert lines
        assert set(lines) == {f"CONNECT {server.url.removeprefix('https://')} HTTP/1.1"}
        for _, tree in extra._kept.values():
            tree.client.close()


@pytest.mark.parametrize("refusal", ["407 Proxy Authentication Required", "503 Service Unavailable"])
def test_a_proxy_that_refuses(
    refusal: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with proxy(refusal) as (address, lines):
        monkeypatch.setenv("HTTPS_PROXY", address)
        assert main(["inspect", "https://models.invalid/x.gguf"]) == 2
        shown = capsys.readouterr().err
        assert refusal[:3] in shown
        assert f"the proxy {address.removeprefix('http://')}" in shown
        assert "HTTPS_PROXY" in shown
        assert lines[0] == "CONNECT models.invalid:443 HTTP/1.1"
        assert len(lines) == 1 or refusal.startswith("5")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_is_not_there(
    scheme: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"{scheme.upper()}_PROXY", "http://me:s3cret@127.0.0.1:1")
    assert main(["inspect", f"{scheme}://models.invalid/x.gguf"]) == 2
    shown = capsys.readouterr().err
    assert "no answer from the proxy 127.0.0.1:1" in shown
    assert "hint: check HTTP_PROXY" in shown
    assert "s3cret" not in shown


def test_a_proxy_that_asks_for_a_password(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with FileServer().running() as server:
        server.faults.status = (407, -1)
        monkeypatch.setenv("HTTP_PROXY", server.url)
        assert main(["inspect", "http://models.invalid/x.gguf"]) == 2
    shown = capsys.readouterr().err
    assert f"the proxy {server.url.removeprefix('http://')} denies access (407)" in shown
    assert "hint: check HTTP_PROXY" in shown
    assert len(server.log) == 1
