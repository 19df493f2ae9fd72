"""Faults of servers, one by one: each gives the right bytes or an error with the next step, never a mix."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.remote.servers import Faults, FileServer, Request
from tests.reports.makers import llama_folder

from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import RemoteError
from weighbridge.base.limits import MIB
from weighbridge.cli.main import main
from weighbridge.io.location import open_source

DATA = random.Random(2).randbytes(300_000)
NAME = "/models/a b.bin"


HEAD = b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-32767/300000\r\nTransfer-Encoding: chunked\r\n\r\n"


class Fault(NamedTuple):
    faults: Callable[[], Faults]
    error: str | None  # None: the bytes come anyway


FAULTS: dict[str, Fault] = {
    "503 twice": Fault(lambda: Faults(status=(503, 2)), None),
    "429 with Retry-After": Fault(lambda: Faults(status=(429, 1), retry_after="0"), None),
    "429 for hours": Fault(lambda: Faults(status=(429, 1), retry_after="7200"), "asks to wait 7200 s"),
    "503 for ever": Fault(lambda: Faults(status=(503, -1)), "answers 503"),
    "500 for ever": Fault(lambda: Faults(status=(500, -1)), "answers 500"),
    "403": Fault(lambda: Faults(status=(403, -1)), "denies access"),
    "dropped every 40,000 bytes": Fault(lambda: Faults(drop_after=40_000), None),
    "dropped at once": Fault(lambda: Faults(drop_after=0), "(ended early|empty|no answer)"),
    "answers without a body": Fault(lambda: Faults(truncate=0), "(ended early|empty)"),
    "no ranges": Fault(lambda: Faults(no_ranges=True), None),
    "no ranges, dropped": Fault(lambda: Faults(no_ranges=True, drop_after=250_000), "ended early"),
    "truncated": Fault(lambda: Faults(truncate=30_000), None),
    "another range": Fault(lambda: Faults(shift=5), "another range"),
    "nonsense as range": Fault(lambda: Faults(content_range="bytes 0-9"), "without saying which"),
    "unknown size": Fault(lambda: Faults(content_range="bytes 0-32767/*"), "without saying which"),
    "a range that is too long": Fault(lambda: Faults(content_range="bytes 0-299999/300000"), "another range"),
    "compressed": Fault(lambda: Faults(encoding="gzip"), "compressed"),
    "changes": Fault(lambda: Faults(changes_after=1), "has changed"),
    "changes, no ranges": Fault(lambda: Faults(changes_after=1, no_ranges=True), None),
    "one byte a second": Fault(lambda: Faults(drip=0.05), "too slowly"),
    "redirect in circles": Fault(lambda: Faults(redirect=lambda path: path), "in circles"),
    "redirect to a file": Fault(lambda: Faults(redirect=lambda path: "file:///etc/passwd"), "file://"),
    "redirect to nowhere": Fault(lambda: Faults(redirect=lambda path: "http://127.0.0.1:1/x"), "no answer from"),
    "no ETag": Fault(lambda: Faults(no_etag=True), None),
}  # fmt: skip
#: Heads and bodies that aren't HTTP, or are rare in it.
SYNTAX: dict[str, Fault] = {
    "a head that never ends": Fault(lambda: Faults(drip_head=0.05), "no answer from"),
    "in chunks": Fault(lambda: Faults(chunked=True), None),
    "in chunks, dropped": Fault(lambda: Faults(chunked=True, drop_after=40_000), None),
    "no HTTP": Fault(lambda: Faults(raw=b"220 ready\r\n\r\n"), "no answer from"),
    "no answer": Fault(lambda: Faults(raw=b""), "no answer from"),
    "a thousand headers": Fault(lambda: Faults(raw=b"HTTP/1.1 206 \r\n" + b"a: b\r\n" * 1000), "no answer from"),
    "a header of a megabyte": Fault(lambda: Faults(raw=b"HTTP/1.1 206 \r\na: " + bytes(MIB)), "no answer from"),
    "chunks of negative length": Fault(lambda: Faults(raw=HEAD + b"-5\r\nabc"), "(ended early|empty|another range)"),
    "chunks of no length": Fault(lambda: Faults(raw=HEAD + b"\r\n\r\nabc"), "(ended early|empty)"),
}  # fmt: skip
#: A change that nothing announces can't be seen; so those need an ETag.


def read(url: str) -> bytes:
    with open_source(resolve_path(url)) as source:
        parts = [source.read(at, min(70_000, source.size - at)) for at in range(0, source.size, 70_000)]
    return b"".join(parts)


@pytest.mark.parametrize("name", FAULTS | SYNTAX)
def test_a_fault_is_an_error_or_harmless(name: str) -> None:
    fault = (FAULTS | SYNTAX)[name]
    with FileServer({NAME: DATA}, fault.faults()).running() as server:
        url = f"{server.url}/models/a%20b.bin"
        if fault.error is None:
            assert read(url) == DATA
            return
        with pytest.raises((RemoteError, OSError), match=fault.error) as caught:
            read(url)
        assert isinstance(caught.value, RemoteError)
        assert caught.value.hint
        assert len(server.log) < 60


def test_no_server_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hash", "-q", "http://127.0.0.1:1/model.gguf"]) == 2
    assert "no answer from 127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize("every", [4_000, 65_536, 299_999])
def test_a_connection_that_is_dropped_every_so_often_is_taken_up_where_it_broke(every: int) -> None:
    with FileServer({NAME: DATA}, Faults(drop_after=every)).running() as server:
        assert read(f"{server.url}/models/a%20b.bin") == DATA
        starts = [int(r.headers["range"][6:].partition("-")[0]) for r in server.log]
        assert server.sent <= len(DATA) + 4 * every + 70_000
        assert len(set(starts)) >= len(DATA) // max(every, 70_000)


def test_a_missing_file_is_said_as_of_a_local_one(capsys: pytest.CaptureFixture[str]) -> None:
    with FileServer().running() as server:
        assert main(["identify", f"{server.url}/models/none.gguf"]) == 2
    assert "no such file" in capsys.readouterr().err


@pytest.mark.parametrize("status", [500, 503])
@pytest.mark.parametrize("failing", ["model-00002-of-00002.safetensors", "config.json"])
def test_a_server_that_fails_is_not_one_that_lacks_a_file(
    status: int, failing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {f"/m/{p.name}": p for p in llama_folder(tmp_path / "m").iterdir()}

    def answer(handler: Any, request: Request) -> bool:
        if request.path.endswith(failing):
            handler.reply(request, status, b"", {})
        return request.path.endswith(failing)

    with FileServer({**files}, extra=answer).running() as server:
        assert main(["verify", f"{server.url}/m/model.safetensors.index.json"]) == 2
    out, err = capsys.readouterr()
    assert f"{failing}: 127.0.0.1 answers {status}" in err
    assert "missing" not in out + err


@pytest.mark.parametrize("status", [400, 403, 404])
def test_a_server_that_denies_what_is_not_there(
    status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {f"/m/{p.name}": p for p in llama_folder(tmp_path / "m").iterdir()}

    def answer(handler: Any, request: Request) -> bool:
        if request.path not in files:
            handler.reply(request, status, b"", {})
        return request.path not in files

    with FileServer({**files}, extra=answer).running() as server:
        assert main(["verify", f"{server.url}/m/model.safetensors.index.json"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("lacking", [None, "x-00002-of-00003.gguf"])
def test_verify_asks_for_the_files_of_a_set_that_no_server_lists(
    lacking: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = llama_folder(tmp_path / "m")
    assert main(["convert", "--quiet", str(whole), str(tmp_path / "x.gguf"), "--no-tokenizer"]) == 0
    assert main(["split", "--quiet", str(tmp_path / "x.gguf"), str(tmp_path / "x"), "--max-shard-tensors", "8"]) == 0
    names = sorted(p.name for p in (tmp_path / "x").glob("*.gguf"))
    assert len(names) == 3
    with FileServer({f"/{name}": tmp_path / "x" / name for name in names if name != lacking}).running() as server:
        main(["verify", f"{server.url}/{names[0]}"])
    text = "".join(capsys.readouterr())
    assert ("split-missing" in text) is bool(lacking)
    assert f"{2 if lacking else 3} files" in text


def test_a_server_without_ranges_is_not_asked_for_a_large_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weighbridge.adapters.remote.http.WHOLE", 100_000)
    with FileServer({NAME: DATA}, Faults(no_ranges=True)).running() as server:
        with pytest.raises(RemoteError, match="whole files only"):
            read(f"{server.url}/models/a%20b.bin")
        assert len(server.log) == 1


def test_a_write_that_fails_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save

    data = save({"w": np.arange(200_000, dtype=np.float32)})
    with FileServer({"/m.safetensors": data}, Faults(changes_after=0)).running() as server:
        assert main(["convert", "--quiet", f"{server.url}/m.safetensors", str(tmp_path / "out.npz")]) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["http://", "https:///x", "http://127.0.0.1:1", "http://u:p@127.0.0.1:1/x"])
def test_addresses_that_name_no_file(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", url]) == 2
    assert "hint" in capsys.readouterr().err


@pytest.mark.parametrize("scheme", ["foo", "ftp", "file", "hff", "r2"])
def test_unknown_schemes_name_the_known_ones(scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"{scheme}://host/model.gguf"]) == 2
    assert "hf://" in capsys.readouterr().err


def test_credentials_stay_with_their_origin() -> None:
    from weighbridge.adapters.remote.http import HttpClient, HttpFile

    with FileServer({"/x": DATA}).running() as other, FileServer({"/x": DATA}).running() as first:
        client = HttpClient(first.url, {"Authorization": "Bearer s3cret", "Cookie": "a=b", "User-Agent": "test"})
        first.faults.redirect = lambda path: f"{other.url}/x"
        out = bytearray(10)
        file = HttpFile(client, f"{first.url}/x", "x", len(DATA), "", pinned=False)
        client.fetch(file, 5, memoryview(out), lambda: False)
        assert out == DATA[5:15]
        assert first.log[0].headers["authorization"] == "Bearer s3cret"
        assert not {"authorization", "cookie"} & other.log[0].headers.keys()
        assert other.log[0].headers["user-agent"] == "test"


def test_a_signed_address_that_ran_out_is_asked_for_again() -> None:
    from weighbridge.adapters.remote.http import HttpClient, HttpFile

    with FileServer({"/new": DATA}).running() as other, FileServer().running() as first:
        first.faults.redirect = lambda path: f"{other.url}/{'old' if len(first.log) == 1 else 'new'}"
        other.files["/old"] = DATA
        client = HttpClient(first.url)
        file = HttpFile(client, f"{first.url}/x", "x", len(DATA), "", pinned=False)
        out = bytearray(10)
        client.fetch(file, 0, memoryview(out), lambda: False)
        del other.files["/old"]
        client.fetch(file, 10, memoryview(out), lambda: False)
        assert out == DATA[10:20]
        assert (len(first.log), len(other.log)) == (2, 3)


def test_certificates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trustme = pytest.importorskip("trustme")
    import ssl

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with FileServer({"/x": DATA}, tls=context).running() as server:
        assert main(["hash", f"{server.url}/x"]) == 2
        assert "SSL_CERT_FILE" in capsys.readouterr().err
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        monkeypatch.setattr("weighbridge.adapters.remote.extra._kept", {})  # as in a new process
        assert read(f"{server.url}/x") == DATA
        with FileServer({"/x": DATA}).running() as plain:
            server.faults.redirect = lambda path: f"{plain.url}/x"
            with pytest.raises(RemoteError, match="http://"):
                read(f"{server.url}/y")
            assert not plain.log
