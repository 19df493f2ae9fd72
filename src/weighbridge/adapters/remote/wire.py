"""Sockets whose waits end soon when nobody needs them any more: the source is closed, another part failed, Ctrl-C, the
end of the process."""

from __future__ import annotations

import io
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from typing import TYPE_CHECKING, Any, Final, TypeVar

from weighbridge.io.ranges import at_end_of_threads
from weighbridge.io.workers import is_abandoned

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_T = TypeVar("_T")
Stopped = Callable[[], bool]
#: Seconds within which a wait learns that nobody needs it any more.
STEP: Final = 0.1
_ENDING: Final = threading.Event()
at_end_of_threads(_ENDING.set)


def never() -> bool:
    """Returns False: only the end of the process ends the wait."""
    return False


def check_needed(stopped: Stopped) -> None:
    """Raises CancelledError if `stopped()` is true, the pool of this thread is abandoned, or the process ends."""
    if stopped() or is_abandoned() or _ENDING.is_set():
        raise CancelledError


def rest(seconds: float, stopped: Stopped) -> None:
    """Wait. CancelledError soon after `stopped()` is true, and at once when the process ends."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        check_needed(stopped)
        _ENDING.wait(min(left, STEP))


def abandonable(act: Callable[[], _T], stopped: Stopped) -> _T:
    """Runs an uninterruptible call (a name lookup, a handshake) in a thread and returns its result. If `stopped()`
    becomes true or the process ends, abandons the thread and raises CancelledError."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(act())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="weighbridge-abandonable", daemon=True).start()
    while True:
        try:
            return future.result(STEP)
        except TimeoutError:
            if future.done():
                raise
            try:
                check_needed(stopped)
            except CancelledError:
                wait([future], STEP)  # it may end by itself for the same reason
                raise


class Wire:
    """A connected socket with interruptible waits. `seconds`: the limit for connecting. Set for each request:
    `stopped`, which returns True once nobody needs the answer, and `limit`, the time at which waits raise TimeoutError
    (time.monotonic)."""

    def __init__(self, host: str, port: int, seconds: float, stopped: Stopped) -> None:
        self.stopped, self.limit = stopped, time.monotonic() + seconds
        self._socket = self._connect(host, port)

    def _connect(self, host: str, port: int) -> socket.socket:
        """Returns a non-blocking socket, connected to the first of the host's addresses that answers."""
        failure: OSError = OSError(f"{host} has no address")
        for family, kind, protocol, _, address in _addresses(host, port, self.stopped):
            made = socket.socket(family, kind, protocol)
            try:
                made.setblocking(False)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                made.connect_ex(address)
                self._wait(made, write=True)
                if code := made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    raise OSError(code, os.strerror(code))
                return made
            except OSError as error:
                made.close()
                failure = error
            except BaseException:
                made.close()
                raise
        raise failure

    def secure(self, context: ssl.SSLContext, host: str, seconds: float) -> None:
        """Starts TLS with `host`."""
        plain = self._socket
        plain.settimeout(seconds)
        self._socket = abandonable(lambda: context.wrap_socket(plain, server_hostname=host), self.stopped)
        self._socket.setblocking(False)

    def receive(self, out: WriteableBuffer) -> int:
        """Reads bytes into `out` as they arrive; returns their number, 0 at the end."""
        while True:
            try:
                return self._socket.recv_into(out)
            except (BlockingIOError, ssl.SSLWantReadError):
                self._wait(self._socket, write=False)
            except ssl.SSLWantWriteError:
                self._wait(self._socket, write=True)

    def sendall(self, data: ReadableBuffer) -> None:
        """Sends all of `data`."""
        left = memoryview(data)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._wait(self._socket, write=True)
            except ssl.SSLWantReadError:
                self._wait(self._socket, write=False)

    def _wait(self, on: socket.socket, *, write: bool) -> None:
        """Waits until the socket is readable or writable."""
        while True:
            check_needed(self.stopped)
            left = self.limit - time.monotonic()
            if _is_ready(on, min(max(left, 0), STEP), write=write):
                return
            if left <= 0:
                raise TimeoutError("it took too long")

    @property
    def is_stale(self) -> bool:
        """Whether an idle connection has ended, or received unexpected bytes."""
        return _is_ready(self._socket, 0, write=False)

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()


class HttpSocket:
    """A wire in place of the socket of an `http.client.HTTPConnection`, for one request. `http.client` closes it after
    some answers; the wire stays open for further requests."""

    def __init__(self, wire: Wire) -> None:
        self._wire, self.sendall = wire, wire.sendall

    def makefile(self, mode: str) -> io.BufferedReader:
        """Returns a reader of the answer."""
        return io.BufferedReader(_Reader(self._wire), 1 << 16)

    def close(self) -> None:
        """Leaves the wire open."""


class _Reader(io.RawIOBase):
    """The bytes received by a wire."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, out: WriteableBuffer) -> int:
        return self._wire.receive(out)


def _addresses(host: str, port: int, stopped: Stopped) -> list[tuple[Any, Any, int, str, tuple[Any, ...]]]:
    """Returns the addresses of a host. Only names need a lookup, which may take long."""
    name = host.encode() if host.isascii() else host  # otherwise Python imports the IDNA codec, which takes 3 ms

    def look_up(flags: int) -> list[tuple[Any, Any, int, str, tuple[Any, ...]]]:
        return [*socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=flags)]

    try:
        return look_up(socket.AI_NUMERICHOST)
    except socket.gaierror:
        return abandonable(lambda: look_up(0), stopped)


def _is_ready(on: socket.socket, seconds: float, *, write: bool) -> bool:
    """Whether the socket becomes readable (or writable) within `seconds`."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(on, select.POLLOUT if write else select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    asked = [on]
    found = select.select([] if write else asked, asked if write else [], asked, seconds)  # Windows has no poll
    return any(found)
