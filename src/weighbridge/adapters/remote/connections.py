"""HTTP/1.1 over kept-alive connections, with the standard library's `http.client`: proxies, trusted certificates,
and answers whose bodies are read directly into their destination. `http` interprets the answers."""

from __future__ import annotations

import base64
import http.client
import os
import ssl
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import SplitResult, quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from weighbridge.adapters.remote.extra import package
from weighbridge.adapters.remote.wire import STEP, HttpSocket, Stopped, Wire, check_needed
from weighbridge.base.errors import RemoteError

_PORTS: Final = {"http": 80, "https": 443}
_PROXY_DENIES: Final = 407
#: Characters that a URL keeps; all others are percent-encoded.
SAFE: Final = "%/:?#[]@!$&'()*+,;=~"
_REST: Final = 16 << 10  # bytes of an answer that nobody wants: so few are read, so that the connection can be kept
#: How a connection ends that the server has closed.
_ENDED: Final = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
#: Where systems keep the certificates that they trust, for a Python that was built for another one.
_TRUSTED: Final = (
    *("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"),
    *("/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem", "/etc/pki/tls/cert.pem"),
)


def authority(host: str) -> str:
    """A host as an address has it."""
    return f"[{host}]" if ":" in host else host.encode("idna").decode()


class WebOrigin(NamedTuple):
    """Where requests go: what credentials are given for."""

    scheme: str
    host: str
    port: int


def origin_of(url: str) -> WebOrigin:
    """Returns a URL's origin. Raises ValueError if it has no HTTP scheme, no host or an invalid port."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{parts.scheme or 'nothing'}:// names no server of HTTP")
    return WebOrigin(parts.scheme, parts.hostname, _PORTS[parts.scheme] if parts.port is None else parts.port)


def trusted() -> ssl.SSLContext:
    """Returns the trusted certificates: SSL_CERT_FILE, SSL_CERT_DIR, else the system's."""
    named = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
    if sys.platform in ("win32", "darwin") and not named:
        system: ssl.SSLContext = package("truststore", "reading over HTTPS").SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return system
    made = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if not named and not paths.cafile and not paths.capath and (found := [p for p in _TRUSTED if os.path.isfile(p)]):
        made.load_verify_locations(found[0])
    return made


class Answer:
    """The answer to one request. Header names are in lower case."""

    def __init__(self, url: str, origin: WebOrigin, wire: Wire, response: http.client.HTTPResponse) -> None:
        self.url, self.origin, self.status = url, origin, response.status
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in reversed(response.getheaders())}
        self._wire, self._response = wire, response

    def receive(self, out: memoryview, seconds: float) -> int:
        """Reads bytes of the body into `out` as they arrive; returns their number, 0 at the end. Raises OSError or
        HTTPException if the connection broke, or nothing arrived for `seconds`."""
        self._wire.limit = time.monotonic() + seconds
        response = self._response
        if response.chunked or response.length is None or response.fp is None:
            part = response.read1(len(out))[: len(out)]
            out[: len(part)] = part
            return len(part)
        # Like read1, without an intermediate buffer.
        got = response.fp.readinto1(out[: response.length]) if response.length else 0
        response.length -= got
        return got

    @property
    def is_whole(self) -> bool:
        """Whether the body is complete, if the server announced its length."""
        response = self._response
        return response.isclosed() if response.chunked or response.length is None else response.length == 0

    def end(self) -> bool:
        """Ends the use of the answer; returns whether the connection can be reused."""
        response, self._wire.limit = self._response, time.monotonic()  # don't wait for more bytes
        with suppress(OSError, http.client.HTTPException, CancelledError):
            if response.chunked:
                response.read1(1)  # the end of the body
            elif not response.will_close and response.length and response.length <= _REST:
                response.read()
        kept = not response.will_close and self.is_whole
        response.close()
        return kept


class ProxyError(Exception):
    """A proxy that doesn't answer or refuses. `lasting`: whether it will again."""

    def __init__(self, why: str, *, lasting: bool = False) -> None:
        super().__init__(why)
        self.lasting = lasting


class _Proxy(NamedTuple):
    origin: WebOrigin
    headers: Mapping[str, str]

    @property
    def name(self) -> str:
        return f"the proxy {authority(self.origin.host)}:{self.origin.port}"


class Connections:
    """At most `most` connections at the same time, to any origins. Limits in seconds: `connect` for a connection,
    `between_bytes` for the head of an answer."""

    def __init__(self, most: int, connect: float, between_bytes: float) -> None:
        self._connect, self._between_bytes = connect, between_bytes
        self._room = threading.BoundedSemaphore(most)
        self._lock = threading.Lock()
        self._idle: dict[WebOrigin, list[Wire]] = {}
        self._proxies: dict[WebOrigin, _Proxy | None] = {}
        self._context: ssl.SSLContext | None = None

    def get(self, url: str, headers: Mapping[str, str], stopped: Stopped) -> Answer:
        """Sends a GET and returns the answer, which must be passed to `end`. Raises OSError or HTTPException without
        an answer, ValueError for an invalid URL."""
        origin = origin_of(url)
        while not self._room.acquire(timeout=STEP):
            check_needed(stopped)
        try:
            while (wire := self._take_idle(origin)) is not None:
                with suppress(*_ENDED):  # closed while idle: try the next one
                    return self._send(wire, url, origin, headers, stopped)
            return self._send(self._open(origin, stopped), url, origin, headers, stopped)
        except BaseException:
            self._room.release()
            raise

    def end(self, answer: Answer) -> None:
        """Ends the use of an answer. Keeps its connection if the answer was read completely."""
        kept = False
        try:
            kept = answer.end()
        finally:
            self._room.release()
            with self._lock:
                if kept:
                    self._idle.setdefault(answer.origin, []).append(answer._wire)
            if not kept:
                answer._wire.close()

    def close(self) -> None:
        """Closes idle connections."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for wire in (wire for wires in idle.values() for wire in wires):
            wire.close()

    def _take_idle(self, origin: WebOrigin) -> Wire | None:
        """Returns an idle connection, if there is one."""
        while True:
            with self._lock:
                wires = self._idle.get(origin)
                wire = wires.pop() if wires else None
            if wire is None or not wire.is_stale:
                return wire
            wire.close()

    def _send(self, wire: Wire, url: str, origin: WebOrigin, headers: Mapping[str, str], stopped: Stopped) -> Answer:
        try:
            wire.stopped, wire.limit = stopped, time.monotonic() + self._between_bytes
            connection = http.client.HTTPConnection(origin.host, origin.port)
            connection.default_port, connection.sock = _PORTS[origin.scheme], HttpSocket(wire)
            target, more = self._target(urlsplit(url), origin)
            connection.request("GET", target, headers={**headers, **more})
            answer = Answer(url, origin, wire, connection.getresponse())
            proxy = self._proxies[origin]
            if proxy is not None and answer.status == _PROXY_DENIES:
                raise ProxyError(f"{proxy.name} denies access ({answer.status})", lasting=True)
            return answer
        except BaseException:
            wire.close()
            raise

    def _target(self, url: SplitResult, origin: WebOrigin) -> tuple[str, Mapping[str, str]]:
        """Returns a request's target, and headers for the proxy, which gets the full URL."""
        path = quote(url.path or "/", safe=SAFE) + (f"?{quote(url.query, safe=SAFE)}" if url.query else "")
        proxy = self._proxies[origin]
        if proxy is None or origin.scheme == "https":
            return path, {}
        return f"http://{url.netloc.rpartition('@')[2]}{path}", proxy.headers

    def _open(self, origin: WebOrigin, stopped: Stopped) -> Wire:
        """Returns a new connection."""
        with self._lock:
            if origin not in self._proxies:
                self._proxies[origin] = _proxy_for(origin)
            proxy = self._proxies[origin]
        to = proxy.origin if proxy else origin
        try:
            wire = Wire(to.host, to.port, self._connect, stopped)
        except OSError as error:
            if proxy:
                raise ProxyError(f"no answer from {proxy.name} ({type(error).__name__}: {error})") from None
            raise
        try:
            if proxy and origin.scheme == "https":
                _tunnel(wire, origin, proxy)
            if origin.scheme == "https":
                wire.secure(self._trusted(), origin.host, self._connect)
            return wire
        except BaseException:
            wire.close()
            raise

    def _trusted(self) -> ssl.SSLContext:
        with self._lock:
            if self._context is None:  # 20 ms, which a server without TLS doesn't cost
                self._context = trusted()
            return self._context


def _proxy_for(origin: WebOrigin) -> _Proxy | None:
    """The proxy that the environment or the system names for an origin (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY).
    RemoteError for one that isn't spoken to by plain HTTP."""
    known = getproxies()
    text = known.get(origin.scheme) or known.get("all")
    if not text or proxy_bypass(f"{origin.host}:{origin.port}"):
        return None
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if parts.scheme != "http" or not parts.hostname:
        hint = "set HTTP_PROXY and HTTPS_PROXY to http://HOST:PORT, or NO_PROXY to the server"
        raise RemoteError(f"the proxy for {origin.host} is none of http:// ({parts.scheme}://)", hint=hint)
    user = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}" if parts.username else ""
    secret = {"Proxy-Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"} if user else {}
    return _Proxy(WebOrigin("http", parts.hostname, parts.port or 80), secret)


def _tunnel(wire: Wire, origin: WebOrigin, proxy: _Proxy) -> None:
    """Asks the proxy to connect to an origin (RFC 9110, section 9.3.6). Raises ProxyError if it refuses."""
    host = authority(origin.host)
    lines = {"Host": f"{host}:{origin.port}", **proxy.headers}
    head = f"CONNECT {host}:{origin.port} HTTP/1.1\r\n" + "".join(f"{name}: {lines[name]}\r\n" for name in lines)
    wire.sendall(f"{head}\r\n".encode("ascii"))
    answer = http.client.HTTPResponse(HttpSocket(wire), method="CONNECT")  # type: ignore[arg-type]
    answer.begin()
    answer.close()
    if answer.status == _PROXY_DENIES:
        raise ProxyError(f"{proxy.name} denies access ({answer.status})", lasting=True)
    if answer.status != 200:
        words = f"{proxy.name} doesn't reach {host}:{origin.port} ({answer.status} {answer.reason})"
        raise ProxyError(words, lasting=answer.status < 500)
