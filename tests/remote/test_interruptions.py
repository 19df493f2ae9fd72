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
from dataclasses import replace
from typing import Any

import pytest
from tests.remote.servers import FileServer, Request

from weighbridge.adapters.remote import http
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
        self.server = FileServer({"/x": bytes(9 << 20), "/y": DATA}, extra=self.answer)

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
    "by Ctrl-C, in parts": f"source.read(100_000, {2 * REQUEST})",
    "by Ctrl-C, a neighbour": "prepare([path.parent / 'y'])",
}
#: The file at a URL, of a process whose retries last longer than the test.
WEB = """
import sys
from dataclasses import replace
from weighbridge.adapters.remote import http
from weighbridge.adapters.remote.schemes import resolve_path
from weighbridge.io.location import open_source, prepare
http.RETRY_POLICY = replace(http.RETRY_POLICY, between_bytes=600.0)
path = resolve_path({url!r} + "/x")
source = open_source(path)
"""
BUCKET = """
import os, sys
os.environ |= {{"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_ENDPOINT_URL": {url!r}}}
from weighbridge.adapters.remote.buckets import objects, reading
from weighbridge.io.ranges import RangeSource
source = RangeSource(objects.BucketFile(reading.open_store("s3", "b"), "x", "s3://b/x", 9 << 20, ""))
"""


class Mute(Busy):
    """A server that takes a request and doesn't answer."""

    def __init__(self, which: str = "bytes=") -> None:
        super().__init__(which)
        self.over = threading.Event()

    def answer(self, handler: Any, request: Request) -> bool:
        spec = f"{request.path} {request.headers.get('range', '')}"
        if self.which not in spec or spec.startswith("/x bytes=0-"):
            return False
        self.asked.set()
        self.over.wait(2 * SOON)
        raise ConnectionAbortedError

    @contextmanager
    def running(self) -> Iterator[str]:
        with super().running() as url:
            try:
                yield url
            finally:
                self.over.set()


def check_end(server: Busy, opened: str, name: str) -> None:
    """A process that waits for `server` ends soon."""
    with server.running() as url:
        words = [sys.executable, "-c", opened.format(url=url) + ENDS[name]]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                assert server.asked.wait(SOON)
                if "Ctrl-C" in name:
                    process.send_signal(signal.SIGINT)
                _, errors = process.communicate(b"\n", timeout=SOON)
                # Ctrl-C during `threading.Event.wait` may raise "RuntimeError: release unlocked lock" instead.
                interrupted = "Ctrl-C" in name and b"KeyboardInterrupt" in errors
                assert process.returncode in (0, -signal.SIGINT) or interrupted, errors.decode()
            finally:
                process.kill()


@pytest.mark.parametrize("server", [Busy, Mute])
@pytest.mark.parametrize("name", ENDS)
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_the_end_of_a_process_ends_the_wait(name: str, server: type[Busy]) -> None:
    check_end(server("/y" if "neighbour" in name else "bytes="), WEB, name)


@pytest.mark.parametrize("server", [Busy, Mute])
@pytest.mark.parametrize("name", [name for name in ENDS if "neighbour" not in name])
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_the_end_of_a_process_ends_the_wait_for_a_bucket(name: str, server: type[Busy]) -> None:
    pytest.importorskip("obstore")
    check_end(server(), BUCKET, name)


def test_a_read_that_a_mute_server_blocks_ends_with_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    mute = Mute()
    monkeypatch.setattr(http, "RETRY_POLICY", replace(http.RETRY_POLICY, between_bytes=600.0))
    with mute.running() as url, ThreadPoolExecutor(1) as pool:
        source = open_source(resolve_path(f"{url}/x"))
        found = pool.submit(source.read, 500_000, 1000)
        assert mute.asked.wait(SOON)
        source.close()
        with pytest.raises(CancelledError):
            found.result(SOON)
