"""Ranges of files over HTTP (RFC 9110, section 14): requests, and the interpretation of answers.

Rules. (1) Credentials are sent only to the origin (scheme, host, port) that they belong to, regardless of redirects;
a redirect from https to http is refused. (2) An answer is accepted only if it is the requested range of the version
that was first seen. (3) After a transient error (a dropped connection, 429, 5xx) the request is repeated from the
last byte received; waits are bounded per request and per process. (4) URLs reached by a redirect are credentials and
appear in no message.
"""

from __future__ import annotations

import random
import re
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from errno import ENOENT
from http.client import HTTPException, InvalidURL
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote, urljoin, urlsplit

from weighbridge.adapters.remote.connections import SAFE, Answer, Connections, ProxyError, origin_of
from weighbridge.adapters.remote.wire import Stopped, check_needed, never, rest
from weighbridge.base.errors import ChangedError, RemoteError
from weighbridge.base.limits import MIB
from weighbridge.base.records import dataclass
from weighbridge.io.ranges import CONNECTIONS

_TRY_AGAIN: Final = "check the network and the server, and try again"
_PROXY: Final = (
    "check HTTP_PROXY and HTTPS_PROXY (http://USER:PASSWORD@HOST:PORT); NO_PROXY names servers to ask directly"
)
_OTHERWISE: Final = "a proxy or the server is at fault: download the file by other means"
_T = TypeVar("_T")
#: Without range requests a file is read whole up to this size; larger ones are refused.
WHOLE: Final = 64 * MIB
HOPS: Final = 5
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_GONE: Final = frozenset({404, 410})
_CONTENT_RANGE: Final = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
_PART: Final = 256 << 10  # of a body, between which the rate is measured
_LEAST_WAIT: Final = 0.02  # counts for attempts that bring a few bytes each
_SECRETS: Final = frozenset({"authorization", "cookie"})


@dataclass(frozen=True)
class RetryPolicy:
    """Limits of retries and waits: seconds, bytes per second, numbers of attempts."""

    connect: float = 10.0
    between_bytes: float = 20.0
    least_rate: int = 1024  # over `between_bytes`: a slower connection counts as stuck
    tries: int = 5  # consecutive, without a new byte
    first_wait: float = 0.5  # doubles with each attempt
    longest_wait: float = 120.0  # that a server may ask for (Retry-After)
    in_all: float = 600.0  # of waiting per client


RETRY_POLICY = RetryPolicy()


class DeniedError(RemoteError):
    """The server refuses this request permanently."""


class TransientError(Exception):
    """An error that a retry may resolve. `wait`: seconds that the server asked for; `hint`: the next step if it
    persists."""

    def __init__(self, why: str, wait: float | None = None, hint: str = _TRY_AGAIN) -> None:
        super().__init__(why)
        self.wait, self.hint = wait, hint


class FirstAnswer(NamedTuple):
    """The answer to the first request of a file: size, version, first bytes."""

    size: int
    version: str
    head: bytes


@dataclass
class HttpFile:
    """A file at a URL. `version`: a strong ETag or a modification date ("" if the server sends neither), or the
    version given by the listing. `pinned`: whether every answer must have it as its ETag."""

    client: HttpClient
    url: str
    name: str
    size: int
    version: str
    pinned: bool = True
    _whole: bytes | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def fetch(self, offset: int, out: memoryview, stopped: Stopped) -> None:
        """Fills `out` with the bytes at `offset`. Raises RemoteError, or FileNotFoundError if the file is gone."""
        if self._whole is None:
            self.client.fetch(self, offset, out, stopped)
        if self._whole is not None:  # a server without ranges
            out[:] = self._whole[offset : offset + len(out)]

    def read_whole(self, response: Answer, stopped: Stopped) -> None:
        """Reads the answer of a server that ignores ranges, if it is short enough."""
        check_whole(self.name, self.size)
        with self._lock:
            data = bytearray(self.size)
            filled = self.client.receive(response, memoryview(data), stopped)
            if filled != self.size:
                raise TransientError("the answer ended early")
            self._whole = bytes(data)


class Retrier:
    """Repeats requests to one server after transient errors, within its `policy`."""

    def __init__(self) -> None:
        self.policy = RETRY_POLICY
        self._left = self.policy.in_all
        self._lock = threading.Lock()

    def retry(self, name: str, act: Callable[[], _T], progress: Callable[[], int], stopped: Stopped = never) -> _T:
        """Calls `act` until it succeeds, after each transient error again. Bounds the attempts without progress and all
        waits. Raises RemoteError when they are spent, CancelledError once `stopped()` is true or the process ends."""
        failures, before = 0, 0
        while True:
            try:
                return act()
            except TransientError as error:
                now = progress()
                failures, before = 0 if now > before else failures + 1, now
                rest(self._wait(name, error, failures), stopped)

    def _wait(self, name: str, error: TransientError, failures: int) -> float:
        """Returns the seconds until the next attempt. Raises RemoteError if there is none."""
        wait = error.wait
        if wait is None:
            wait = self.policy.first_wait * 2 ** (failures - 1) * random.uniform(0.7, 1.3) if failures else 0.0
        wait = max(wait, _LEAST_WAIT)
        if wait > self.policy.longest_wait:
            raise RemoteError(f"{name}: {error}", hint=f"the server asks to wait {wait:.0f} s: try again then")
        with self._lock:
            self._left -= wait
            spent = self._left < 0
        if failures >= self.policy.tries or spent:
            more = "; --resume continues an interrupted run" if spent else ""
            raise RemoteError(f"{name}: {error}", hint=f"{error.hint}{more}") from None
        return wait

    def is_slow(self, count: int, seconds: float) -> bool:
        """Whether `count` bytes in `seconds` are too few to continue."""
        return seconds > self.policy.between_bytes and count < self.policy.least_rate * seconds


class HttpClient(Retrier):
    """Connections to one origin and to its redirect targets. `headers` may contain credentials, which only the
    origin gets."""

    def __init__(
        self,
        origin: str,
        headers: Mapping[str, str] = MappingProxyType({}),
        *,
        advice: str = "check the credentials",
        explain: Callable[[Answer], Exception | None] = lambda response: None,
    ) -> None:
        """`advice`: the next step if access is denied. `explain`: the origin's reason for a refusal, if its headers
        contain more than the status."""
        super().__init__()
        try:
            self.origin = origin_of(origin)
        except ValueError as error:
            raise RemoteError(f"{origin}: no valid address: {error}", hint="check it") from None
        self.headers = {"Accept-Encoding": "identity", **headers}
        self.advice, self.explain = advice, explain
        self._moved: dict[str, str] = {}
        self._connections = Connections(CONNECTIONS, self.policy.connect, self.policy.between_bytes)

    def close(self) -> None:
        """Close idle connections; a later request opens new ones."""
        self._connections.close()

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:  # modules are gone when the program ends
        if hasattr(self, "_connections") and not ends():
            self.close()

    # ---------------------------------------------------------------- one file

    def first(self, url: str, name: str, length: int, stopped: Stopped = never) -> FirstAnswer:
        """Returns size, version and the first `length` bytes of an unknown file, in one request. Raises
        FileNotFoundError if it is missing."""
        return self.retry(name, lambda: self._first(url, name, length, stopped), lambda: 0, stopped)

    def _first(self, url: str, name: str, length: int, stopped: Stopped) -> FirstAnswer:
        with self._get(url, name, {"Range": f"bytes=0-{length - 1}"}, stopped) as response:
            if response.status == 416:
                found = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
                if found and found[3] == "0":
                    return FirstAnswer(0, _version(response), b"")
            self._check(response, name)
            total = _total(response, name, 0, length)
            if response.status == 200:  # no ranges: it is all or nothing
                check_whole(name, total)
                length = total
            head = bytearray(min(length, total))
            got = self.receive(response, memoryview(head), stopped)
            if got < (len(head) if response.status == 200 else min(len(head), 1)):
                raise TransientError("the answer ended early")
            return FirstAnswer(total, _version(response), bytes(head[:got]))

    def fetch(self, file: HttpFile, offset: int, out: memoryview, stopped: Stopped) -> None:
        """A range of a file, however many requests it takes. A server without ranges fills the file's own memory."""
        done = 0

        def some() -> None:
            nonlocal done
            while done < len(out) and file._whole is None:
                got = self._range(file, offset + done, out[done:], stopped)
                done += got
                if got == 0 and file._whole is None:
                    raise TransientError("the answer was empty")
                if done < len(out) and file._whole is None:
                    raise TransientError("the answer ended early")

        self.retry(file.name, some, lambda: done, stopped)

    def _range(self, file: HttpFile, offset: int, out: memoryview, stopped: Stopped) -> int:
        headers = {"Range": f"bytes={offset}-{offset + len(out) - 1}"}
        if file.pinned and file.version:
            headers["If-Range"] = file.version
        linked = None if file.pinned else file.version
        with self._get(file.url, file.name, headers, stopped, linked) as response:
            self._check(response, file.name)
            if file.pinned and file.version and _version(response) != file.version:
                raise changed(file.name)
            if response.status == 200:
                file.read_whole(response, stopped)
                return 0
            total = _total(response, file.name, offset, len(out))
            if total != file.size:
                raise changed(file.name)
            return self.receive(response, out, stopped)

    def receive(self, response: Answer, out: memoryview, stopped: Stopped) -> int:
        """The body into `out`: the bytes got before it was full, ended or broke. Too slow a body is a broken one."""
        done, since, mark = 0, time.monotonic(), 0
        try:
            while done < len(out) and (got := response.receive(out[done : done + _PART], self.policy.between_bytes)):
                check_needed(stopped)
                done += got
                if (now := time.monotonic()) - since > self.policy.between_bytes:
                    if self.is_slow(done - mark, now - since):
                        raise TransientError("the answer comes too slowly")
                    since, mark = now, done
        except (OSError, HTTPException):
            pass  # what came counts; the rest is asked for again
        return done

    def get(self, url: str, name: str, limit: int, headers: Mapping[str, str] = MappingProxyType({})) -> bytes:
        """A whole small answer (a manifest, a list) of at most `limit` bytes."""
        return self.answer(url, name, limit, headers)[0]

    def answer(
        self, url: str, name: str, limit: int, headers: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[bytes, Mapping[str, str]]:
        """A whole small answer and its headers."""

        def once() -> tuple[bytes, Mapping[str, str]]:
            with self._get(url, name, headers, never) as response:
                self._check(response, name)
                out, part = bytearray(), memoryview(bytearray(_PART))
                while got := self.receive(response, part, never):
                    out += part[:got]
                    if len(out) > limit:
                        hint = "check the address"
                        raise RemoteError(f"{name}: the answer is longer than {limit:,} bytes", hint=hint)
                if not response.is_whole:
                    raise TransientError("the answer ended early")
                return bytes(out), response.headers

        return self.retry(name, once, lambda: 0)

    # ---------------------------------------------------------------- one request

    @contextmanager
    def _get(
        self, url: str, name: str, headers: Mapping[str, str], stopped: Stopped, linked: str | None = None
    ) -> Iterator[Answer]:
        """Yields the final answer to a GET, after all redirects. `linked`: the version that the Hub sends with a
        redirect."""
        at, renewed = self._moved.get(url, url), False
        for _ in range(HOPS + 1):
            response = self._send(at, name, headers, stopped)
            try:
                if response.status not in _REDIRECTS:
                    moved = self._moved.pop(url, None) if response.status in (401, 403, 404, 410) else None
                    if moved is not None and not renewed:
                        at, renewed = url, True  # a signed address has run out: ask for a new one
                        continue
                    yield response
                    return
                at = self._redirected(response, at, name, linked)
            finally:
                self._connections.end(response)
            with self._lock:
                self._moved[url] = at
        self._moved.pop(url, None)
        raise RemoteError(f"{name}: the server redirects in circles", hint="check the address")

    def _send(self, url: str, name: str, headers: Mapping[str, str], stopped: Stopped) -> Answer:
        try:
            ours = origin_of(url) == self.origin
            sent = {k: v for k, v in self.headers.items() if ours or k.lower() not in _SECRETS} | dict(headers)
            return self._connections.get(url, sent, stopped)
        except ssl.SSLCertVerificationError as error:
            raise RemoteError(
                f"{name}: the certificate of {urlsplit(url).hostname} isn't trusted ({error.verify_message})",
                hint="check the address; SSL_CERT_FILE names a file of further certificates to trust",
            ) from None
        except ProxyError as error:
            if error.lasting:
                raise DeniedError(f"{name}: {error}", hint=_PROXY) from None
            raise TransientError(str(error), hint=_PROXY) from None
        except (ValueError, InvalidURL) as error:
            raise RemoteError(f"{name}: no valid address: {error}", hint="check it") from None
        except (OSError, HTTPException) as error:
            host = urlsplit(url).netloc.rpartition("@")[2]
            reason = f"{type(error).__name__}{f': {error}' if str(error) else ''}"
            raise TransientError(f"no answer from {host} ({reason})") from None

    def _redirected(self, response: Answer, url: str, name: str, linked: str | None) -> str:
        location = quote(response.headers.get("location", "").encode("latin-1", "replace"), safe=SAFE)
        target: str = urljoin(url, location)
        to = urlsplit(target)
        if to.scheme not in ("http", "https") or (urlsplit(url).scheme == "https" and to.scheme != "https"):
            raise RemoteError(
                f"{name}: the server redirects to {to.scheme or 'nowhere'}://, which isn't followed",
                hint="check the address",
            )
        etag = bare_etag(response.headers.get("x-linked-etag"))
        if linked and etag and etag != linked:
            raise changed(name)
        return target

    def _check(self, response: Answer, name: str) -> None:
        """Raises the error for any status except 200 and 206."""
        status, host = response.status, response.origin.host
        if status in (200, 206):
            if response.headers.get("content-encoding", "identity") != "identity":
                raise RemoteError(
                    f"{name}: {host} sends it compressed, so that ranges can't be trusted", hint=_OTHERWISE
                )
            return
        if response.origin == self.origin and (meant := self.explain(response)) is not None:
            raise meant
        if status in _PASSING:
            raise TransientError(f"{host} answers {status}", _retry_after(response))
        if status in _GONE:
            raise FileNotFoundError(ENOENT, "no such file on the server", name)
        if status in (401, 403):
            raise DeniedError(f"{name}: {host} denies access ({status})", hint=self.advice)
        if status == 416:
            raise changed(name)
        raise (DeniedError if status < 500 else RemoteError)(
            f"{name}: {host} answers {status}", hint="check the address"
        )


def check_whole(name: str, size: int) -> None:
    """Raises RemoteError if a file is too large to be read whole."""
    if size > WHOLE:
        raise RemoteError(
            f"{name}: the server gives whole files only, and this one has {size:,} bytes",
            hint="download the file, or choose a server that serves ranges",
        )


def changed(name: str) -> ChangedError:
    """Returns the error for a file that was replaced since the start."""
    return ChangedError(f"{name} has changed on the server while it was read", hint="run it again: nothing was mixed")


def bare_etag(text: str | None) -> str:
    """An ETag without its quotes and its mark of weakness, "" for none: Azure lists it without quotes and answers with
    them, the Hub's may be weak."""
    return (text or "").removeprefix("W/").strip('"')


def _version(response: Answer) -> str:
    """A strong ETag, or the date of the last change."""
    etag = response.headers.get("etag", "")
    return str(etag if etag and not etag.startswith("W/") else response.headers.get("last-modified", ""))


def _total(response: Answer, name: str, offset: int, length: int) -> int:
    """The file's size, of an answer that is checked to be the range that was asked for (or the whole file)."""
    if response.status == 200:
        declared = response.headers.get("content-length", "")
        if not declared.isdigit():
            raise RemoteError(f"{name}: the server doesn't send the file's size", hint="download the file first")
        return int(declared)
    text = response.headers.get("content-range", "")
    found = _CONTENT_RANGE.fullmatch(text)
    if not found or not found[1] or found[3] == "*":
        raise RemoteError(
            f"{name}: the server answers a range without saying which (Content-Range: {text!r})", hint=_OTHERWISE
        )
    start, end, total = int(found[1]), int(found[2]), int(found[3])
    if start != offset or not start <= end < total or end >= offset + length:
        raise RemoteError(
            f"{name}: the server answers another range ({text!r}) than bytes {offset}-{offset + length - 1}",
            hint=_OTHERWISE,
        )
    return total


def _retry_after(response: Answer) -> float | None:
    """Seconds that the server asks to wait, by Retry-After or by the Hub's RateLimit (`"api";r=0;t=55`)."""
    text = response.headers.get("retry-after", "")
    if text.isdigit():
        return float(text)
    limit = re.search(r";t=(\d+)", response.headers.get("ratelimit", ""))
    return float(limit[1]) + 1 if limit else None
