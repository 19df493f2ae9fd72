"""Who may ask the server of the page, and what: no browser here, plain requests."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.page.conftest import running, serving

import weighbridge as wb
from weighbridge.base.errors import UsageError
from weighbridge.cli.main import main
from weighbridge.page.viewing import ServedPage

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")


@pytest.fixture(scope="module")
def view(models: Path) -> Iterator[ServedPage]:
    with wb.view(models / "f16.gguf", browser=False) as made:
        yield made


def get(url: str, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """A request with the page's token, unless the headers (`x_token`) give another."""
    parts = urlsplit(url)
    given = {"x-token": parts.fragment.removeprefix("t=")} | {k.replace("_", "-"): v for k, v in headers.items()}
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    connection.request(method, path, headers=given)
    response = connection.getresponse()
    found = response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
    connection.close()
    return found


def test_the_page_needs_no_token_and_holds_no_data(view: ServedPage) -> None:
    status, headers, body = get(view.url, "/", x_token="")
    assert status == 200
    assert headers["content-type"].startswith("text/html")
    assert b"f16.gguf" not in body
    assert b"token_embd" not in body


@pytest.mark.parametrize("path", ["/", "/api/start", "/api/nothing"])
def test_every_answer_carries_the_policy(view: ServedPage, path: str) -> None:
    headers = get(view.url, path)[1]
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert policy["script-src"].startswith("'sha256-")
    assert policy["style-src"].startswith("'sha256-")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert "set-cookie" not in headers
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("token", ["", "wrong", "\u00e9"])
def test_a_wrong_token_gets_nothing(view: ServedPage, token: str) -> None:
    status, _, body = get(view.url, "/api/start", x_token=token)
    assert status == 403
    assert "wb view" in json.loads(body)["hint"]


def test_tokens_are_long_and_new(models: Path, view: ServedPage) -> None:
    with wb.view(models / "f16.gguf", browser=False) as other:
        tokens = {urlsplit(v.url).fragment.removeprefix("t=") for v in (view, other)}
    assert len(tokens) == 2
    assert all(len(token) >= 32 for token in tokens)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", ""])
@pytest.mark.parametrize("path", ["/", "/api/start"])
def test_another_host_is_refused(view: ServedPage, host: str, path: str) -> None:
    assert get(view.url, path, host=host.format(port=urlsplit(view.url).port))[0] == 421


def test_localhost_is_this_host(view: ServedPage) -> None:
    assert get(view.url, "/api/start", host=f"localhost:{urlsplit(view.url).port}")[0] == 200


def test_another_origin_is_refused(view: ServedPage) -> None:
    assert get(view.url, "/api/start", origin="https://evil.example")[0] == 403
    assert get(view.url, "/api/start", origin=f"http://127.0.0.1:{urlsplit(view.url).port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_only_get_is_answered(view: ServedPage, method: str) -> None:
    assert get(view.url, "/api/start", method)[0] == 405


@pytest.mark.parametrize(
    "path",
    ["/api/nothing", "/api/summary", "/api/summary?model=1", "/api/summary?model=-1", "/api/summary?model=0&path=x",
     "/api/layout?model=0&file=9", "/api/summary?model=99999999999999999999", "/api/summary?model=%D9%A1",
     "/api/layout?model=0&file=..%2F..%2Fetc%2Fpasswd"],
)  # fmt: skip
def test_bad_questions_are_refused(view: ServedPage, path: str) -> None:
    status, _, body = get(view.url, path)
    assert status == 422
    assert json.loads(body)["error"]


@pytest.mark.parametrize("path", ["/static/main.js", "/../pyproject.toml", "/api/../../x", "/f16.gguf"])
def test_nothing_else_is_served(view: ServedPage, path: str) -> None:
    assert get(view.url, path)[0] == 404


def test_only_this_machine_can_connect(view: ServedPage) -> None:
    port = urlsplit(view.url).port
    assert port is not None
    others = {str(row[4][0]) for row in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for address in others:
        if not address.startswith("127."):
            with pytest.raises(OSError), socket.create_connection((address, port), timeout=10):
                pass


def test_a_port_that_is_taken_is_named(models: Path, view: ServedPage) -> None:
    with pytest.raises(UsageError, match="another port"):
        wb.view(models / "f16.gguf", browser=False, port=urlsplit(view.url).port or 0)


def test_the_server_ends_when_nobody_looks(models: Path) -> None:
    view = wb.view(models / "f16.gguf", browser=False, idle=0.001)
    waiting = threading.Thread(target=view.wait)
    waiting.start()
    waiting.join(60)
    assert not waiting.is_alive()
    with pytest.raises(OSError):
        get(view.url, "/")
    view.stop()


@pytest.mark.costly
def test_control_c_ends_the_command(models: Path) -> None:
    with running(models / "f16.gguf") as (url, process):
        assert get(url, "/api/start")[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


@pytest.mark.parametrize("slow", [False, True])
def test_who_waits_when_the_server_ends_is_let_go(
    models: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, slow: bool
) -> None:
    """However long the answer takes, the server ends at once and complains about nothing."""
    from weighbridge.page import endpoints
    from weighbridge.page.endpoints import Endpoint

    begun, go_on = threading.Event(), threading.Event()

    def waits(*_: object, **given: object) -> int:
        begun.set()
        assert go_on.wait(60)
        return 1

    table = {**endpoints.ENDPOINTS, "metadata": Endpoint(waits, ("model",), slow=slow)}
    monkeypatch.setattr(endpoints, "ENDPOINTS", table)
    view = wb.view(models / "f16.gguf", browser=False)
    found: list[tuple[int, dict[str, str], bytes]] = []
    asking = threading.Thread(target=lambda: found.append(get(view.url, "/api/metadata?model=0")))
    asking.start()
    assert begun.wait(60)
    ending = threading.Thread(target=view._server.stop)
    ending.start()
    asking.join(60)
    ending.join(60)
    go_on.set()
    view.stop()
    assert (found[0][0], json.loads(found[0][2])["error"]) == (200 if slow else 503, "the server has ended")
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == []


def test_a_notebook_shows_the_page_in_a_frame_that_reaches_nothing(view: ServedPage) -> None:
    text = view._repr_html_()
    assert text.startswith('<iframe sandbox="allow-scripts" srcdoc="')
    assert "connect-src &#x27;none&#x27;" in text
    assert view.url.partition("#t=")[2] not in text + repr(view)


def test_importing_the_server_loads_no_framework() -> None:
    code = "import sys, weighbridge.adapters.serving.page_server; print('starlette' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--port", "1", "-o", "p.html"], "--port"), (["--no-browser", "-o", "p.html"], "--browser"),
     (["--idle", "3", "-o", "p.html"], "--idle"), (["--overwrite"], "--overwrite"), (["--values"], "--values")],
)  # fmt: skip
def test_options_that_dont_apply_are_refused(
    models: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert main(["view", str(models / "f16.gguf"), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_what_is_no_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(tmp_path / "none.gguf"), "--no-browser"]) == 2
    assert "none.gguf" in capsys.readouterr().err


def test_slow_answers_are_lines(models: Path, view: ServedPage) -> None:
    status, headers, body = get(view.url, "/api/findings?model=0")
    assert (status, headers["content-type"]) == (200, "application/x-ndjson")
    answer = json.loads(body.splitlines()[-1])["answer"]
    assert ["ok", "verify", wb.verify(models / "f16.gguf").verdict] in answer["reports"]


@pytest.mark.parametrize(
    "question", ["bytes?model=0&file=0&offset=0&length=65537", "bytes?model=0&file=0&offset=9999999999&length=1",
                 "block?model=0&tensor=0&number=999999999", "tokens?model=0&text="],
)  # fmt: skip
def test_answers_have_limits(view: ServedPage, question: str) -> None:
    status, _, body = get(view.url, f"/api/{question}")
    assert status == 422
    assert json.loads(body)["error"]
    most = json.loads(get(view.url, "/api/bytes?model=0&file=0&offset=0&length=65536")[2])
    assert len(bytes.fromhex(most["data"])) == 65536


def test_a_slow_answer_is_made_once_for_all_who_wait(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weighbridge.page import endpoints
    from weighbridge.page.data import PageData
    from weighbridge.page.endpoints import Endpoint

    begun, made = threading.Event(), []
    go_on = threading.Event()

    def slow(data: PageData, model: int, tensor: int, control: object) -> int:
        begun.set()
        assert go_on.wait(60)
        made.append(tensor)
        return tensor

    table = {**endpoints.ENDPOINTS, "statistics": Endpoint(slow, ("model", "tensor"), slow=True)}
    monkeypatch.setattr(endpoints, "ENDPOINTS", table)
    found: list[bytes] = []
    with PageData(models / "f16.gguf") as data:
        given = {"model": "0", "tensor": "3"}
        waiting = [threading.Thread(target=lambda: found.append(data.answer("statistics", given))) for _ in range(4)]
        for thread in waiting:
            thread.start()
        assert begun.wait(60)
        go_on.set()
        for thread in waiting:
            thread.join(60)
    assert (made, found) == ([3], [b"3"] * 4)


def test_only_the_files_of_the_command_are_read(view: ServedPage, models: Path) -> None:
    """No parameter is a path: a name that looks like one is a search text, or a member of the file itself."""
    from weighbridge.page.data import _TEXTS
    from weighbridge.page.endpoints import ENDPOINTS

    words = {name: set(endpoint.params) & _TEXTS for name, endpoint in ENDPOINTS.items()}
    assert {name: found for name, found in words.items() if found} == {
        "tokens": {"text"}, "rendered": {"template", "conversation"}, "reference": {"template", "conversation"},
        "pickle": {"member"},
    }  # fmt: skip
    secret = models / "q4.gguf"
    for question in (
        f"pickle?model=0&file=0&member={secret}&start=0",
        f"rendered?model=0&template={secret}&conversation={secret}&prompt=1",
    ):
        status, _, body = get(view.url, f"/api/{question}")
        assert status == 422 or "error" in json.loads(body.splitlines()[-1])


def test_a_page_is_asked_for_values_alone_when_wanted(view: ServedPage) -> None:
    """What the page asks by itself reads headers: those questions are quick and kept."""
    from weighbridge.page.data import _FIRST
    from weighbridge.page.endpoints import ENDPOINTS

    assert all(ENDPOINTS[name].cached and not ENDPOINTS[name].slow for name, _ in _FIRST)


@pytest.mark.costly
def test_two_models_need_two(models: Path, view: ServedPage) -> None:
    assert get(view.url, "/api/moves?a=0&b=1&file=0")[0] == 422
    for url in serving(models / "f16.gguf", models / "q4.gguf"):
        found = json.loads(get(url, "/api/moves?a=0&b=1&file=0")[2])
        kinds = [row["kind"] for row in found["rows"]]
        assert kinds == sorted(kinds, key="tensor".__ne__)
        assert kinds[0] == "tensor"
