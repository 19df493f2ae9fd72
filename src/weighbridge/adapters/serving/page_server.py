"""The server of a page, for this machine and for holders of its URL. Starlette and uvicorn implement HTTP.

The page itself is static and contains no data. Its requests need the token in the URL's fragment, which browsers
neither send nor log; the page sends it in a header, which other sites can't do. The Host header must be ours, so no
other name can resolve to this server (DNS rebinding). Only GET, no cookies, no file paths in URLs.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from types import MappingProxyType
from typing import Any, Final, Protocol

from weighbridge.adapters.remote.extra import package
from weighbridge.base.errors import UsageError, WeighbridgeError, error_words

_HOST: Final = "127.0.0.1"
_TOKEN: Final = 24  # random bytes
_AT_ONCE: Final = 2  # slow answers
_TICK: Final = 0.1  # seconds between two looks at a slow answer
_ENDED: Final = {"error": "the server has ended", "hint": None}
#: Headers of every answer, in addition to the policy.
HEADERS: Final = MappingProxyType(
    {
        "X-Content-Type-Options": "nosniff",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
)


class AnswerControl(Protocol):
    """How a slow answer gets on; setting `stop` ends it."""

    stop: threading.Event
    done: int
    total: int


class Answers(Protocol):
    """The requests that the page may send."""

    def is_slow(self, name: str, given: Mapping[str, str]) -> bool: ...

    def control(self) -> AnswerControl: ...

    def answer(self, name: str, given: Mapping[str, str], control: Any = None) -> bytes: ...


class PageServer:
    """A page served by a thread until `stop()`, or until `idle` seconds pass without a request.

    `html` and `policy`: the page and its content security policy. Raises UsageError if the port is taken."""

    def __init__(self, answers: Answers, html: str, policy: str, *, port: int = 0, idle: float = 0) -> None:
        uvicorn = package("uvicorn", "the page", "view")
        self.token = secrets.token_urlsafe(_TOKEN)
        self.last = time.monotonic()
        self.stopping = False
        self._idle = idle
        try:
            self._socket = socket.create_server((_HOST, port))
        except OSError as error:
            hint = "choose another port, or none, with --port"
            raise UsageError(f"{_HOST}:{port}: {error.strerror}", hint=hint) from None
        self.port: int = self._socket.getsockname()[1]
        application = _App(self, answers, html, policy).asgi()
        config = uvicorn.Config(
            application, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=2,
            server_header=False,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="page server", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The page's address, with the token."""
        return f"http://{_HOST}:{self.port}/#t={self.token}"

    def wait(self) -> None:
        """Returns when the server ends."""
        while self._thread.is_alive():
            self._thread.join(0.2)
            if self._idle and time.monotonic() - self.last > self._idle:
                self.stop()

    def stop(self) -> None:
        """End the server: questions that are being answered are cancelled."""
        self.stopping = True
        self._server.should_exit = True
        self._thread.join()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()


class _App:
    """The routes, and who may take them."""

    def __init__(self, server: PageServer, answers: Answers, html: str, policy: str) -> None:
        self.server, self.answers, self.html = server, answers, html
        self.headers = {**HEADERS, "Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}
        self.responses = package("starlette.responses", "the page", "view")
        self.threads = package("starlette.concurrency", "the page", "view")
        self.turns = asyncio.Semaphore(_AT_ONCE)

    def asgi(self) -> Any:
        applications = package("starlette.applications", "the page", "view")
        route = package("starlette.routing", "the page", "view").Route
        return applications.Starlette(
            routes=[route("/", self.page, methods=["GET"]), route("/api/{name}", self.api, methods=["GET"])]
        )

    async def page(self, request: Any) -> Any:
        return self._stranger(request) or self.responses.HTMLResponse(self.html, headers=self.headers)

    async def api(self, request: Any) -> Any:
        if (refused := self._stranger(request) or self._without_token(request)) is not None:
            return refused
        self.server.last = time.monotonic()
        name, given = request.path_params["name"], dict(request.query_params)
        try:
            if self.answers.is_slow(name, given):
                lines = self._lines(request, name, given)
                return self.responses.StreamingResponse(lines, headers=self.headers, media_type="application/x-ndjson")
            data = await self._unless_stopped(self.threads.run_in_threadpool(self.answers.answer, name, given))
        except (WeighbridgeError, OSError) as error:
            return self._json(error_words(error), 422)
        if data is None:
            return self._json(_ENDED, 503)
        return self.responses.Response(data, headers=self.headers, media_type="application/json")

    async def _unless_stopped(self, work: Awaitable[bytes]) -> bytes | None:
        """Returns the answer; None if the server stops before it is ready."""
        task = asyncio.ensure_future(work)
        while not (await asyncio.wait({task}, timeout=_TICK))[0]:
            if self.server.stopping:
                task.add_done_callback(lambda late: late.cancelled() or late.exception())  # nobody waits for it
                return None
        return task.result()

    async def _lines(self, request: Any, name: str, given: Mapping[str, str]) -> AsyncIterator[bytes]:
        """Yields a slow answer: lines of `{"progress": [done, total]}`, then `{"answer": ...}` or `{"error": ...}`.
        Disconnecting cancels it."""
        control = self.answers.control()
        work = asyncio.ensure_future(self._work(name, given, control))
        seen = (0, 0)
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=_TICK)
                if self.server.stopping:
                    yield json.dumps(_ENDED).encode() + b"\n"
                    return
                if await request.is_disconnected():
                    return
                self.server.last = time.monotonic()
                if (now := (control.done, control.total)) != seen:
                    seen = now
                    yield b'{"progress":[%d,%d]}\n' % now
            yield work.result()
        finally:
            control.stop.set()

    async def _work(self, name: str, given: Mapping[str, str], control: AnswerControl) -> bytes:
        async with self.turns:
            try:
                data: bytes = await self.threads.run_in_threadpool(self.answers.answer, name, given, control)
            except (WeighbridgeError, OSError, MemoryError) as error:
                return json.dumps(error_words(error)).encode() + b"\n"
            return b'{"answer":' + data + b"}\n"

    def _stranger(self, request: Any) -> Any:
        """The answer to a request that came by another name, or from another site."""
        own = {f"{name}:{self.server.port}" for name in (_HOST, "localhost")}
        if request.headers.get("host") not in own:
            return self._json({"error": "the Host header names a different host"}, 421)
        origin = request.headers.get("origin")
        if origin is not None and origin not in {f"http://{host}" for host in own}:
            return self._json({"error": "another site's page may not ask"}, 403)
        return None

    def _without_token(self, request: Any) -> Any:
        given = request.headers.get("x-token", "")
        if hmac.compare_digest(given.encode(), self.server.token.encode()):
            return None
        hint = "open the address that wb view printed"
        return self._json({"error": "the token is missing or another one", "hint": hint}, 403)

    def _json(self, value: Any, status: int) -> Any:
        return self.responses.JSONResponse(value, status, headers=self.headers)
