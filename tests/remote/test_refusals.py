"""Places that can't be read: exit 2 with the next step, and never a traceback. One row of a table is one of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.remote.servers import FileServer, Hub

from weighbridge.adapters.remote.schemes import SCHEMES
from weighbridge.cli.main import main

#: Scheme -> the package without which it isn't read, and how it is written. Those of one web server need none.
EXTRAS = {
    "hf": ("huggingface_hub", "hf://o/m"),
    **{scheme: ("obstore", f"{scheme}://bucket/x") for scheme in ("s3", "gs", "gcs", "az", "abfs")},
}
BARE = {"http", "https", "ollama", "lmstudio"}


@contextmanager
def without(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if a package weren't installed."""
    with monkeypatch.context() as patch:
        for module in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
            patch.delitem(sys.modules, module)
        patch.setitem(sys.modules, name, None)
        yield


@pytest.mark.parametrize("scheme", EXTRAS)
def test_a_missing_extra_says_what_to_install(
    scheme: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, url = EXTRAS[scheme]
    with without(name, monkeypatch):
        assert main(["inspect", url]) == 2
    shown = capsys.readouterr().err
    assert f"needs the package {name}" in shown
    assert 'hint: pip install "weighbridge[remote]"' in shown


def test_every_scheme_has_its_row() -> None:
    assert set(EXTRAS) | BARE == set(SCHEMES)


def test_mount_asks_for_its_extra_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "access", lambda *_, **__: True)
    (tmp_path / "point").mkdir()
    with without("mfusepy", monkeypatch):
        assert main(["mount", str(tmp_path / "model.gguf"), str(tmp_path / "point")]) == 2
    shown = capsys.readouterr().err
    assert 'hint: pip install "weighbridge[mount]"' in shown
    assert "files at" not in shown


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="there the system's trust needs truststore")
def test_a_web_server_is_read_without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        without("huggingface_hub", monkeypatch), without("httpx2", monkeypatch), without("truststore", monkeypatch),
        FileServer({"/x": b"abc"}).running() as server,
    ):  # fmt: skip
        assert main(["hash", "-q", f"{server.url}/x"]) == 0


class Refusal(NamedTuple):
    address: str
    words: str
    hint: str


NAMES = "write s3://BUCKET/KEY"
#: Of a bucket `models` with `a/x.bin` and, below `b`, an object whose name leads out of it.
BUCKET = {
    "a bucket that isn't there": Refusal("s3://absent/x.gguf", "the bucket doesn't exist", "check the bucket's name"),
    "a bucket that isn't there, whole": Refusal("s3://absent", "the bucket doesn't exist", "check the bucket's name"),
    "an object that isn't there": Refusal("s3://models/a/y.gguf", "no such file or folder", ""),
    "a folder that isn't there": Refusal("s3://models/c/", "no such file or folder", ""),
    "no bucket": Refusal("s3://", "names no bucket", NAMES),
    "no bucket but a key": Refusal("s3:///x.gguf", "names no bucket", NAMES),
    "a bucket that can't be one": Refusal("s3://mo dels/x", "invalid", "check the bucket's name"),
    "up and out of the bucket": Refusal("s3://models/../secrets/x", "'..'", NAMES),
    "up within the bucket": Refusal("s3://models/a/../a/x.bin", "'..'", NAMES),
    "a name that is empty": Refusal("s3://models/a//x.bin", "empty", NAMES),
    "an object that leads out of its folder": Refusal("s3://models/b", "has '..'", "rename that object"),
    "its neighbour": Refusal("s3://models/b/x.bin", "has '..'", "rename that object"),
}
COMMANDS = (("inspect",), ("identify",), ("verify",), ("hash",), ("get", "w"))


def refused(address: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What every command says of an address: the same error with its next step."""
    shown = set()
    for command, *more in COMMANDS:
        assert main([command, address, *more]) == 2, command
        shown.add(capsys.readouterr().err.strip())
    assert len(shown) == 1, shown
    return shown.pop()


@pytest.mark.parametrize("name", BUCKET)
def test_what_a_bucket_refuses(name: str, bucket: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for key in ("a/x.bin", "b/x.bin", "b/../../up.bin"):
        bucket.put_object(Bucket="models", Key=key, Body=b"abc")
    address, words, hint = BUCKET[name]
    shown = refused(address, capsys)
    assert words in shown
    assert f"hint: {hint}" in shown or not hint


def test_a_bucket_that_denies_access(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("obstore")

    def deny(handler: Any, request: Any) -> bool:
        handler.reply(request, 403, b"<Error><Code>AccessDenied</Code></Error>", {})
        return True

    with FileServer(extra=deny).running() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        shown = refused("s3://models/x.gguf", capsys)
        assert "access is denied" in refused("S3://models/x.gguf", capsys)
    assert "access is denied" in shown
    assert "hint: set AWS_ACCESS_KEY_ID" in shown


#: What the Hub refuses -> its words and the next step.
HUB = {
    "gated": Refusal("hf://org/model", "is gated", "log in with `hf auth login`"),
    "private": Refusal(
        "hf://org/model", "the repository doesn't exist, or it is private", "log in with `hf auth login`"
    ),
    "absent": Refusal(
        "hf://org/other", "the repository doesn't exist, or it is private", "log in with `hf auth login`"
    ),
    "no such revision": Refusal("hf://org/model@v9", "the revision doesn't exist", "see the branches"),
    "no such file": Refusal("hf://org/model/x.gguf", "has no file", ""),
    "up and out": Refusal("hf://org/model/../x.gguf", "leaves the repository", ""),
    "no name": Refusal("hf://org", "", "write hf://ORG/NAME"),
}


@pytest.mark.parametrize("name", HUB)
def test_what_the_hub_refuses(
    name: str, tmp_path: Path, connect: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    closed = name in ("gated", "private")
    with Hub(folder, token="t" if closed else None, gated=name == "gated").running() as hub:
        connect(hub)
        address, words, hint = HUB[name]
        shown = refused(address, capsys)
    assert words in shown
    assert f"hint: {hint}" in shown or not hint


@pytest.mark.costly
@pytest.mark.parametrize("address", ["hf://org/model", "http://127.0.0.1:1/x.gguf", "ollama://127.0.0.1:1/me/x"])
def test_no_network(address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if address.startswith("hf"):
        constants = pytest.importorskip("huggingface_hub.constants")
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    shown = refused(address, capsys)
    assert "no answer from 127.0.0.1:1" in shown
    assert "hint: check the network" in shown


@pytest.mark.parametrize("port", ["99999", "x"])
def test_a_redirect_to_no_address(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with FileServer({"/y": b"abc"}).running() as server:
        server.faults.redirect = lambda path: f"http://127.0.0.1:{port}/x"
        shown = refused(f"{server.url}/x", capsys)
    assert "no valid address" in shown
    assert "no valid address" in refused(f"http://127.0.0.1:{port}/x.gguf", capsys)


def test_a_proxy_that_is_none_of_http(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HTTP_PROXY", "socks5://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    shown = refused("http://models.invalid/x.gguf", capsys)
    assert "socks5://" in shown
    assert "hint: set HTTP_PROXY" in shown
