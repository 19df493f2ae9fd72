"""Ctrl-C and SIGTERM end every command that runs long within seconds, wherever it is, and leave nothing behind: no
process, no mount, no half-written file under the target's name."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests import system
from tests.conversion.test_forms import gguf
from tests.remote.servers import FileServer, Request

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

SECONDS = 10.0  # that a loaded machine gets; the servers below ask for 115
SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: An end by Ctrl-C or SIGTERM: the ordinary one, or one that says what it was.
ENDED = {signal.SIGINT: (0, 130), signal.SIGTERM: (0, 143)}


class Running(NamedTuple):
    """`words`: the arguments; {model}: a file here, {far}: the same on a server that stops to answer after its first
    bytes. `ready`: what is printed when it runs, or None for a command that then waits for the server. `relative`:
    whether it is run in the folder of its arguments. `leaves`: what an interrupted run may leave, by its documentation.
    """

    words: str
    ready: str | None = None
    leaves: str = ""


COMMANDS: Mapping[str, Running] = {
    "serve": Running("serve {model} --port 0", "serving"),
    "view": Running("view {model} --no-browser", "http://127.0.0.1"),
    "mount": Running("mount {model} {here}/point --form q8_0", " at "),
    "mount, relative": Running("mount tiny.gguf point --form q8_0", " at "),
    "fetch": Running("fetch {far} {here}/out --no-resume"),
    "fetch that is resumed": Running("fetch {far} {here}/out", leaves=r"out\.partial.*"),
    "convert": Running("convert {far} {here}/out.safetensors"),
    "quantize": Running("quantize {far} {here}/out.gguf q4_0"),
    "hash": Running("hash {far}"),
    "verify": Running("verify {far} --values"),
    "scan": Running("scan {far}"),
    "diff": Running("diff {far} {model}"),
    "fleet hash": Running("fleet hash {far} -o {here}/fleet --processes 1", leaves="fleet.*"),
    "fleet convert": Running("fleet convert {far} --to gguf -o {here}/fleet --processes 1", leaves="fleet.*"),
}


class Silent:
    """A server of one file that answers for its first half and then asks to wait."""

    def __init__(self, data: bytes) -> None:
        self.asked, self.half = threading.Event(), len(data) // 2
        self.server = FileServer({"/tiny.gguf": data}, extra=self._answer)

    def _answer(self, handler: Any, request: Request) -> bool:
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
        if request.path != "/tiny.gguf" or (found and int(found[2]) < self.half):
            return False
        handler.reply(request, 503, b"", {"Retry-After": "115"})
        self.asked.set()
        return True


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf(tmp_path_factory.mktemp("signals"))


@contextmanager
def started(case: Running, model: Path, here: Path) -> Iterator[subprocess.Popen[str]]:
    """The command when it has come to its long part, in a process group of its own."""
    (here / "point").mkdir()
    shutil.copy(model, here / "tiny.gguf")
    silent = Silent(model.read_bytes())
    with silent.server.running():
        words = case.words.format(model=model, here=here, far=f"{silent.server.url}/tiny.gguf").split()
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        output = (here / "output").open("w+")
        process = subprocess.Popen(
            [sys.executable, "-m", "weighbridge", *words], cwd=here, stdout=output, stderr=output, text=True,
            start_new_session=True, env=environment,
        )  # fmt: skip
        try:
            until(lambda: process.poll() is not None or _runs(case, here / "output", silent.asked))
            assert process.poll() is None, (here / "output").read_text()
            yield process
        finally:
            output.close()
            _kill(process)
            if os.path.ismount(here / "point"):
                subprocess.run([system.require("libfuse"), "-u", "-z", str(here / "point")], check=False)


def _runs(case: Running, output: Path, asked: threading.Event) -> bool:
    return asked.is_set() if case.ready is None else case.ready in output.read_text()


def send(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Ctrl-C goes to all processes of a terminal, SIGTERM to the one that was started."""
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)


def _kill(process: subprocess.Popen[str]) -> None:
    if is_alive(process.pid):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(SECONDS)


def is_alive(group: int) -> bool:
    """Whether a process of this group is there."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def until(true: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_signal_ends_it_and_nothing_is_left(name: str, number: signal.Signals, model: Path, tmp_path: Path) -> None:
    case = COMMANDS[name]
    if name.startswith("mount"):
        system.require_package("mfusepy")
    elif name in ("serve", "view"):
        pytest.importorskip("uvicorn", reason=f"NOT CHECKED: {name} needs uvicorn")
    with started(case, model, tmp_path) as process:
        before = {p.name for p in tmp_path.iterdir()} if case.ready else {"point", "tiny.gguf", "output"}
        send(process, number)
        code = process.wait(SECONDS)
        shown = (tmp_path / "output").read_text()
        assert code in ENDED[number], shown
        assert "Traceback" not in shown
        until(lambda: not is_alive(process.pid), SECONDS)
        assert not os.path.ismount(tmp_path / "point")
        left = {p.name for p in tmp_path.iterdir()} - before
        assert all(re.fullmatch(case.leaves, one) for one in left), left


@pytest.mark.costly
def test_processes_of_a_fleet_end_with_their_driver(model: Path, tmp_path: Path) -> None:
    with started(COMMANDS["fleet hash"], model, tmp_path) as process:
        process.kill()
        process.wait(SECONDS)
        until(lambda: not is_alive(process.pid), SECONDS)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_mounted_file_that_is_open_keeps_nothing(number: signal.Signals, model: Path, tmp_path: Path) -> None:
    system.require_package("mfusepy")
    with started(COMMANDS["mount"], model, tmp_path) as process:
        file = os.open(tmp_path / "point" / "tiny-Q8_0.gguf", os.O_RDONLY)
        try:
            assert os.read(file, 4) == b"GGUF"
            send(process, number)
            assert process.wait(SECONDS) == 0
            assert not os.path.ismount(tmp_path / "point")
        finally:
            with suppress(OSError):  # its file system is gone
                os.close(file)
