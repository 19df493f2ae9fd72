"""Every form of address x every command that reads: the answer for the file here, or a refusal that says why. And for
each kind of place: the version in its list is that of its answers, and another one once the file is another."""

from __future__ import annotations

import base64
import hashlib
import os
import shlex
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.conversion.test_forms import gguf
from tests.remote.azure_service import ACCOUNT, KEY, BlobService
from tests.remote.servers import FileServer, Hub
from tests.remote.test_stores_of_others import manifest

from weighbridge.adapters.remote import extra
from weighbridge.adapters.remote.schemes import SCHEMES, resolve_path
from weighbridge.base.errors import RemoteError
from weighbridge.cli.main import main
from weighbridge.io import ranges
from weighbridge.io.location import RemotePath, open_source

NAME = "tiny.gguf"


class Stored(NamedTuple):
    """`address`: of the model; `put`: replaces its bytes."""

    address: str
    put: Callable[[bytes], Any]


@contextmanager
def on_web(data: bytes, user: str = "") -> Iterator[Stored]:
    def ask(handler: Any, request: Any) -> bool:
        if not user or request.headers.get("authorization") == f"Basic {base64.b64encode(user.encode()).decode()}":
            return False
        handler.reply(request, 401, b"", {})
        return True

    with FileServer({f"/m/{NAME}": data}, extra=ask).running() as server:
        put = lambda new: server.files.__setitem__(f"/m/{NAME}", new)  # noqa: E731
        yield Stored(f"{server.url.replace('//', f'//{user}@' if user else '//')}/m/{NAME}", put)


@contextmanager
def on_ipv6(data: bytes) -> Iterator[Stored]:
    """A server at ::1 that sends whole files."""
    files = {f"/m/{NAME}": data}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = files.get(self.path)
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body or b"")))
            self.send_header("ETag", f'"{hash(body)}"')
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6

    try:
        server = Server(("::1", 0), Handler)
    except OSError as error:
        pytest.skip(f"NOT CHECKED: IPv6 ({error})")
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield Stored(f"http://[::1]:{server.server_address[1]}/m/{NAME}", lambda new: files.update({f"/m/{NAME}": new}))
    server.shutdown()
    server.server_close()


@contextmanager
def on_azure(data: bytes, scheme: str, patch: pytest.MonkeyPatch) -> Iterator[Stored]:
    service = BlobService()
    service.containers.add("models")
    put = lambda new: service.blobs.__setitem__(("models", f"m/{NAME}"), (new, {}))  # noqa: E731
    put(data)
    with service.running() as endpoint:
        patch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
        for name, value in (("ACCOUNT_NAME", ACCOUNT), ("ACCOUNT_KEY", KEY), ("ENDPOINT", endpoint)):
            patch.setenv(f"AZURE_STORAGE_{name}", value)
        yield Stored(f"{scheme}://models/m/{NAME}", put)


@contextmanager
def on_s3(data: bytes, scheme: str, request: pytest.FixtureRequest, patch: pytest.MonkeyPatch) -> Iterator[Stored]:
    bucket = request.getfixturevalue("bucket")
    patch.setenv("STORAGE_EMULATOR_HOST", request.getfixturevalue("s3"))
    put = lambda new: bucket.put_object(Bucket="models", Key=f"m/{NAME}", ACL="public-read", Body=new)  # noqa: E731
    put(data)
    yield Stored(f"{scheme}://models/m/{NAME}", put)


@contextmanager
def on_hub(data: bytes, folder: Path, connect: Callable[..., None]) -> Iterator[Stored]:
    folder.mkdir()
    (folder / NAME).write_bytes(data)
    with Hub(folder).running() as hub:
        connect(hub)
        yield Stored(f"hf://org/model/{NAME}", lambda new: None)  # at a commit nothing changes


@contextmanager
def on_registry(data: bytes) -> Iterator[Stored]:
    blob = f"/blob/{hashlib.sha256(data).hexdigest()}"
    with FileServer({blob: data}).running() as cdn, FileServer().running() as server:
        server.files["/v2/me/tiny/manifests/latest"] = manifest(data)
        server.faults.redirect = lambda path: f"{cdn.url}{blob}" if "/blobs/" in path else None
        yield Stored(f"ollama://{server.url.removeprefix('http://')}/me/tiny", lambda new: None)


#: Every scheme, and every form in which its addresses come.
PLACES = ("http", "http ipv6", "http password", "hf", "s3", "gs", "gcs", "az", "abfs", "ollama")
CHANGING = ("http", "http ipv6", "s3", "gs", "az")


@contextmanager
def stored(
    name: str, data: bytes, tmp: Path, request: pytest.FixtureRequest, patch: pytest.MonkeyPatch
) -> Iterator[Stored]:
    scheme = name.partition(" ")[0]
    if scheme in ("s3", "gs", "gcs", "az", "abfs"):
        pytest.importorskip("obstore", reason=f"NOT CHECKED: {scheme}:// needs obstore")
    made = {
        "http": lambda: on_web(data),
        "http ipv6": lambda: on_ipv6(data),
        "http password": lambda: on_web(data, "me:s3cret"),
        "hf": lambda: on_hub(data, tmp / "hub", request.getfixturevalue("connect")),
        "ollama": lambda: on_registry(data),
        **dict.fromkeys(("az", "abfs"), lambda: on_azure(data, scheme, patch)),
        **dict.fromkeys(("s3", "gs", "gcs"), lambda: on_s3(data, scheme, request, patch)),
    }
    with made[name]() as place:
        yield place


#: {0}: the model; {1}: a folder to write to.
SAME = (
    "identify {0}", "inspect {0}", "inspect {0}::token_embd.weight", "verify {0}", "verify {0} --values", "hash {0}",
    "hash {0} --tensors", "scan {0}", "get {0} token_embd.weight", "stats {0}::token_embd.weight", "anatomy {0}",
    "diff {0} {0}", "arch check {0}", "explain {0}", "convert {0} {1}/o.safetensors --dry-run",
    "quantize {0} {1}/q.gguf q8_0 --dry-run", "slice {0} {1}/s.gguf --layers 0 --dry-run",
    "merge {0} {1}/m.gguf --dry-run", "choose {0}",
)  # fmt: skip
#: Command -> what it says of any address.
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("edit {0}", "du {0}", "ship lmstudio {0} --dry-run"), "isn't a path on this machine"),
    "serve {0}": "isn't a path on this machine",
}


#: Only a registry's models have one.
LICENSE = '"not weights: the model\'s license in Ollama; ollama show --modelfile prints them"'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf(tmp_path_factory.mktemp("addresses"))


def test_every_scheme_has_its_place() -> None:
    shown = {name.partition(" ")[0] for name in PLACES}
    assert set(SCHEMES) == shown | {"https", "lmstudio"}  # test_tls; a path on this machine


def answer(words: str, source: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    folder.mkdir(exist_ok=True)
    code = main([*words.format(source, folder).split(), "--json"])
    shown = capsys.readouterr()
    public, text = source.replace("me:s3cret@", ""), shown.out or shown.err
    text = text.replace(LICENSE, "")
    for written in (f"{public}:latest/model.gguf", shlex.quote(public), public):
        text = text.replace(written, "MODEL")
    return code, text.replace(str(folder), "FOLDER")


@pytest.mark.parametrize("name", PLACES)
def test_a_command_answers_as_for_the_file_here(
    name: str, model: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    here = model if name != "ollama" else tmp_path / "model.gguf"  # what a registry calls the one file
    if here != model:
        here.symlink_to(model)
    with stored(name, model.read_bytes(), tmp_path, request, monkeypatch) as place:
        for words in SAME:
            expected = answer(words, os.fspath(here), tmp_path / "here", capsys)
            found = answer(words, place.address, tmp_path / "far", capsys)
            assert found[0] == expected[0], (words, found)
            lists_digests = name in ("hf", "ollama") and "digests" in expected[1]
            calls_it_otherwise = name == "ollama" and words.startswith("choose")
            if not (lists_digests or calls_it_otherwise):
                assert found[1] == expected[1], words
        for words, why in REFUSED.items():
            code, shown = answer(words, place.address, tmp_path / "far", capsys)
            assert (code, why in shown) == (2, True), (words, shown)


@pytest.mark.parametrize("name", CHANGING)
def test_the_version_of_a_list_is_that_of_the_answers(
    name: str, model: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file can be read, and is another one once it has changed, before it is read and midway."""
    data = model.read_bytes()
    with stored(name, data, tmp_path, request, monkeypatch) as place:
        path = resolve_path(place.address)
        with open_source(path) as source:
            assert source.read(0, source.size) == data
        before = version_of(path)
        extra._kept.clear()
        ranges.CACHED._files.clear()
        if name == "http ipv6":  # a server without ranges has sent the whole file: that one is read
            return
        with open_source(resolve_path(place.address)) as source:
            place.put(bytes(len(data)))
            with pytest.raises(RemoteError, match="has changed"):
                source.read(1 << 20, 1 << 20)
        extra._kept.clear()
        assert version_of(resolve_path(place.address)) != before


def version_of(path: Path) -> str:
    """What the list says, which is what the answers say."""
    assert isinstance(path, RemotePath)
    with open_source(path) as source:
        assert isinstance(source, ranges.RangeSource)
        assert source.version == path.version
    return path.version
