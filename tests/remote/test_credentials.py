"""Web servers that ask for a user and a password: given in the address or in ~/.netrc, sent to that server alone, and
never shown."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.conversion.test_forms import gguf
from tests.remote.servers import FileServer, Request

import weighbridge as wb
from weighbridge.adapters.remote.connections import origin_of
from weighbridge.adapters.remote.credentials import credentials_for
from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.base.plain import plain
from weighbridge.cli.main import main
from weighbridge.io.location import open_source, split_credentials, split_tensor

USER, PASSWORD = "me", "s3cr:et/#"
QUOTED = "s3cr:et%2F%23"
WANTED = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def ask(handler: Any, request: Request) -> bool:
    if request.headers.get("authorization") == WANTED:
        return False
    handler.reply(request, 401, b"", {"WWW-Authenticate": 'Basic realm="models"'})
    return True


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf(tmp_path_factory.mktemp("credentials"))


@pytest.fixture
def server(model: Path) -> Iterator[FileServer]:
    with FileServer({"/m/tiny.gguf": model.read_bytes()}, extra=ask).running() as running:
        yield running


def address(server: FileServer, password: str = QUOTED) -> str:
    return f"{server.url.replace('//', f'//{USER}:{password}@')}/m/tiny.gguf"


def netrc(path: Path, machine: str = "machine 127.0.0.1", mode: int = 0o600) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(f"{machine} login {USER} password {PASSWORD}\n")
    path.chmod(mode)
    return path


#: {url}: the address; {here}: a folder.
COMMANDS = (
    "identify {url}", "inspect {url}", "inspect {url} --json", "inspect {url}::token_embd.weight", "verify {url}",
    "hash {url}", "hash {url} --tensors --json", "scan {url}", "scan {url} --json", "get {url} token_embd.weight",
    "diff {url} {url}", "anatomy {url} --map", "fetch {url} {here}/out --dry-run", "fit {url}",
    "convert {url} {here}/o.safetensors --dry-run", "quantize {url} {here}/q.gguf q8_0 --dry-run --json",
    "serve {url}", "edit {url} --set general.name=x", "ship lmstudio {url}", "view {url} -o {here}/page.html",
    "explain {url}", "fleet hash {url} --to {here}/fleet", "ls {url}", "du {url}", "prove {url} {url}",
    "arch check {url}", "arch {url}", "{url}",
)  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.parametrize("right", [True, False])
def test_no_command_shows_or_keeps_a_password(
    words: str, right: bool, server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = address(server, QUOTED if right else "wr0ng%2Fs3cr:et")
    code = main(words.format(url=url, here=tmp_path).split())
    assert code != 70
    shown = capsys.readouterr()
    texts = [shown.out, shown.err, *(p.read_text(errors="replace") for p in tmp_path.rglob("*") if p.is_file())]
    for secret in ("s3cr", "czNjc", WANTED):
        assert not any(secret in text for text in texts), words


def test_the_bytes_come_with_the_password(server: FileServer, model: Path) -> None:
    with open_source(resolve_path(address(server))) as source:
        assert source.read(0, source.size) == model.read_bytes()
    with open_source(resolve_path(f"{server.url}/m/tiny.gguf")) as source:  # known from now on, in this process
        assert source.size == model.stat().st_size


@pytest.mark.parametrize("named", [True, False])
def test_netrc(named: bool, server: FileServer, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = netrc(tmp_path / ("elsewhere" if named else "home/.netrc"))
    if named:
        monkeypatch.setenv("NETRC", str(path))
    with open_source(resolve_path(f"{server.url}/m/tiny.gguf")) as source:
        assert source.read(0, 4) == b"GGUF"


@pytest.mark.parametrize(
    ("machine", "mode", "words"),
    [
        ("machine 127.0.0.1", 0o644, "can't be used"),
        ("machine other.example", 0o600, "has no entry for 127.0.0.1"),
        ("machin 127.0.0.1", 0o600, "can't be used"),
        (None, 0o600, "~/.netrc"),
    ],
)
def test_a_refusal_names_the_next_step(
    machine: str | None, mode: int, words: str, server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if machine:
        netrc(tmp_path / "home/.netrc", machine, mode)
    assert main(["identify", f"{server.url}/m/tiny.gguf"]) == 2
    shown = capsys.readouterr().err
    assert "denies access (401)" in shown
    assert words in shown.replace("\n", " ")
    assert PASSWORD not in shown


@pytest.mark.parametrize("how", ["address", "netrc"])
def test_no_other_server_gets_it(how: str, server: FileServer, model: Path, tmp_path: Path) -> None:
    """A redirect to another port of the same host is another server."""
    with FileServer({"/m/tiny.gguf": model.read_bytes()}).running() as other:
        server.faults.redirect = lambda path: f"{other.url}{path}"
        if how == "netrc":
            netrc(tmp_path / "home/.netrc")
        url = address(server) if how == "address" else f"{server.url}/m/tiny.gguf"
        with open_source(resolve_path(url)) as source:
            assert source.read(0, source.size) == model.read_bytes()
        assert server.log[0].headers["authorization"] == WANTED
        assert other.log
        assert not any("authorization" in request.headers for request in other.log)


REPORTS: Mapping[str, Callable[[str], Any]] = {
    **{act.__name__: act for act in (wb.inspect, wb.identify, wb.verify, wb.hash, wb.scan, wb.anatomy)},
    "prove": lambda url: wb.prove(url, url),
    "diff": lambda url: wb.diff(url, url),
}


@pytest.mark.parametrize("name", REPORTS)
def test_no_report_of_the_python_api_shows_it(name: str, server: FileServer) -> None:
    report = REPORTS[name](address(server))
    assert "s3cr" not in repr(report)
    assert "s3cr" not in json.dumps(plain(report))


def test_no_object_of_the_python_api_shows_it(server: FileServer, tmp_path: Path) -> None:
    url = address(server)
    with wb.open(url) as opened:
        assert "s3cr" not in repr(opened)
    for act in (lambda: wb.plan_fetch(url, tmp_path / "o"), lambda: wb.plan_convert(url, tmp_path / "o.safetensors")):
        with act() as plan:
            assert "s3cr" not in f"{plan.source}{plan!r}"
    with pytest.raises((WeighbridgeError, OSError)) as error:
        wb.inspect(f"{url}.missing")
    assert "s3cr" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("http://[::1]:9101/x.gguf", ("http://[::1]:9101/x.gguf", "", "")),
        ("http://[::1]:9101/x.gguf::a::b", ("http://[::1]:9101/x.gguf", "::", "a::b")),
        ("http://u:p@[fe80::1]/x.gguf::a[0]", ("http://u:p@[fe80::1]/x.gguf", "::", "a[0]")),
        ("http://h/x[1].gguf::a", ("http://h/x[1].gguf", "::", "a")),
        ("hf://o/m::a", ("hf://o/m", "::", "a")),
        ("ollama://me/x:tag::a", ("ollama://me/x:tag", "::", "a")),
        ("model.gguf::a::b", ("model.gguf", "::", "a::b")),
    ],
)
def test_where_a_tensor_is_named(text: str, parts: tuple[str, str, str]) -> None:
    assert split_tensor(text) == parts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://u:p@h:1/a@b", ("http://h:1/a@b", "u:p")),
        ("https://token@h/x?sig=a@b", ("https://h/x?sig=a@b", "token")),
        ("http://h/a@b", ("http://h/a@b", None)),
        ("hf://o/m@v1", ("hf://o/m@v1", None)),
        ("s3://b/a@c", ("s3://b/a@c", None)),
        ("a@b", ("a@b", None)),
    ],
)
def test_what_is_secret_in_an_address(text: str, expected: tuple[str, str | None]) -> None:
    assert split_credentials(text) == expected


def test_a_password_that_is_not_quoted_is_not_shown() -> None:
    with pytest.raises(UsageError, match="no valid port") as error:
        split_credentials("http://me:s3cr#et@h/x")
    assert "s3cr" not in f"{error.value}{error.value.hint}"


def test_a_name_without_a_password(tmp_path: Path) -> None:
    address, _ = split_credentials("http://h/x")
    assert credentials_for(origin_of(address)).headers == {}
    assert urlsplit(address).hostname == "h"
