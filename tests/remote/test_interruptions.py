"""A wait for a server ends when nobody needs it any more: the source is closed, another part failed, Ctrl-C, the end of
the process. The servers here ask to wait longer than the tests do."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from tests.remote.servers import FileServer, Request

from weighbridge.adapters.remote.http import HttpClient, HttpFile
from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.base.errors import RemoteError
from weighbridge.io.location import open_source, prepare
from weighbridge.io.ranges import REQUEST, RangeCache, RangeSource

DATA = bytes(1 << 20)
SOON = 60  # seconds, of a loaded machine; the servers ask for more
LONG = {"Retry-After": "115"}


class Busy:
    """A server that asks for a long wait at each request for `which`, once the file's size is known."""

    def __init__(self, which: str = "bytes=") -> None:
        self.which, self.asked = which, threading.Event()
        self.server = FileServer({"/x": DATA, "/y": DATA}, extra=self.answer)

    def answer(self, handler: Any, request: Request) -> bool:
        spec = f"{request.path} {request.headers.get('range', '')}"
        if self.which not in spec or spec.startswith("/x bytes=0-"):
            return False
        handler.reply(request, 503, b"", LONG)
        self.asked.set()
        return True

    @contextmanager
    def running(self) -> Iterator[str]:
        with self.server.running():
            yield self.server.url


def test_a_closed_source_ends_the_wait() -> None:
    busy = Busy()
    with busy.running() as url, ThreadPoolExecutor(1) as pool:
        source = open_source(resolve_path(f"{url}/x"))
        found = pool.submit(source.read, 500_000, 1000)
        assert busy.asked.wait(SOON)
        source.close()
        with pytest.raises(CancelledError):
            found.result(SOON)


def test_a_part_that_fails_ends_the_wait_of_the_others() -> None:
    size, asked = 2 * REQUEST, threading.Event()

    def answer(handler: Any, request: Request) -> bool:
        if request.headers["range"].startswith("bytes=0-"):
            asked.wait(SOON)
            handler.reply(request, 418, b"", {})
        else:
            handler.reply(request, 503, b"", LONG)
            asked.set()
        return True

    with FileServer({"/x": b""}, extra=answer).running() as server, ThreadPoolExecutor(1) as pool:
        client = HttpClient(server.url)
        source = RangeSource(HttpFile(client, f"{server.url}/x", "x", size, ""), RangeCache(1 << 20))
        found = pool.submit(source.read, 0, size)
        with pytest.raises(RemoteError, match="418"):
            found.result(SOON)
        source.close()
        client.close()


def test_a_file_that_fails_ends_the_wait_for_its_neighbours() -> None:
    asked = threading.Event()

    def answer(handler: Any, request: Request) -> bool:
        if request.path == "/b":
            handler.reply(request, 503, b"", LONG)
            asked.set()
        elif request.path == "/a":
            asked.wait(SOON)
            handler.reply(request, 501, b"", {})
        return request.path in ("/a", "/b")

    with FileServer({"/x": DATA}, extra=answer).running() as server, ThreadPoolExecutor(1) as pool:
        folder = resolve_path(f"{server.url}/x").parent
        found = pool.submit(prepare, [folder / "a", folder / "b"])
        with pytest.raises(RemoteError, match="501"):
            found.result(SOON)


#: Ctrl-C inside `Thread.start`: the thread runs, but the pool has not noted it and doesn't stop it at the end.
BEGINS = """
import threading
from unittest.mock import patch
start = threading.Thread.start
def interrupted(thread):
    start(thread)
    raise KeyboardInterrupt
with patch.object(threading.Thread, "start", interrupted):
    source.read(500_000, 1000)
"""

#: What a process does while a server makes it wait, in another thread or in its own.
ENDS = {
    "without closing": "source.advise([(500_000, 1000)]); sys.stdin.readline()",
    "by Ctrl-C": "source.read(500_000, 1000)",
    "by Ctrl-C, a neighbour": "prepare([path.parent / 'y'])",
    "interrupted before the pool knows its thread": BEGINS,
}


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_the_end_of_a_process_ends_the_wait(name: str) -> None:
    busy = Busy("/y" if "neighbour" in name else "bytes=")
    with busy.running() as url:
        code = f"""
import sys
from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.io.location import open_source, prepare
path = resolve_path({url + "/x"!r})
source = open_source(path)
{ENDS[name]}
"""
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                assert busy.asked.wait(SOON)
                if "Ctrl-C" in name:
                    process.send_signal(signal.SIGINT)
                process.communicate(b"\n", timeout=SOON)
            finally:
                process.kill()
