"""The common parts of the model servers: authorization, errors in each client's form, files and ranges of them."""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Iterator
from typing import Any, Final, Protocol

from weighbridge.adapters.remote.extra import package
from weighbridge.base.limits import MIB

_RANGE: Final = re.compile(r"bytes=(\d*)-(\d*)")
_ONE: Final = re.compile(r"bytes=[^,]*")
#: Names of this machine that nobody else can be reached by.
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


class ServedFile(Protocol):
    """A file that a client may fetch; `etag` is what changes when its bytes do."""

    name: str
    size: int
    etag: str

    def read(self, offset: int, length: int) -> bytes: ...


class Replies:
    """Answers of Starlette to clients that may have to bring `token`."""

    def __init__(self, token: str | None) -> None:
        self.token = token
        self.responses = package("starlette.responses", "serving", "serve")

    def denied(self, request: Any) -> Any:
        """The answer to a request without the token. Without one only this machine is served, and then no request may
        come by another name (DNS rebinding)."""
        if self.token is None:
            if host_name(request.headers.get("host", "")) in LOOPBACK:
                return None
            return self.error(421, "", "this server is 127.0.0.1; start it with --token to be reached by other names")
        given = _brought(request.headers.get("authorization", ""))
        if hmac.compare_digest(given.encode(), self.token.encode()):
            return None
        return self.error(401, "RepoNotFound", "the token is missing or another one")

    def error(self, status: int, code: str, message: str, **headers: str) -> Any:
        """An error as the Hub's clients, llama.cpp and Ollama show it. `code`: the Hub's X-Error-Code."""
        plain = message.encode("ascii", "replace").decode().replace("\n", " ")
        named = {"X-Error-Code": code} if code else {}
        body = {"error": message, "errors": [{"code": code or str(status), "message": message}]}
        return self.json(body, status, headers={**named, "X-Error-Message": plain, **headers})

    def json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Any:
        return self.responses.JSONResponse(value, status, headers)

    def file(self, request: Any, file: ServedFile, headers: dict[str, str]) -> Any:
        """A file or a range of it (RFC 9110: several ranges, other units and another version than If-Range's get the
        whole file)."""
        headers |= {"Accept-Ranges": "bytes"}
        start, end, status = 0, file.size, 200
        asked = request.headers.get("range")
        if asked and _ONE.fullmatch(asked) and request.headers.get("if-range", headers["ETag"]) == headers["ETag"]:
            found = _RANGE.fullmatch(asked)
            if not found or not (found[1] or found[2]):
                return self.responses.Response(status_code=400)
            if found[1]:
                start, end = int(found[1]), min(int(found[2]) + 1 if found[2] else end, end)
            else:  # the last bytes
                start = max(end - int(found[2]), 0)
            if start >= end:
                return self.responses.Response(status_code=416, headers={"Content-Range": f"bytes */{file.size}"})
            headers["Content-Range"], status = f"bytes {start}-{end - 1}/{file.size}", 206
        headers["Content-Length"] = str(end - start)
        body = iter(()) if request.method == "HEAD" else _chunks(file, start, end)
        return self.responses.StreamingResponse(body, status, headers, media_type="application/octet-stream")


def host_name(host: str) -> str:
    """The name of a Host header, without the port."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].lower()


def _brought(authorization: str) -> str:
    """The token of a header: Bearer's, or the password of Basic, which browsers ask for."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "basic":
        return given or scheme
    try:
        return base64.b64decode(given, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _chunks(file: ServedFile, start: int, end: int) -> Iterator[bytes]:
    for at in range(start, end, MIB):
        yield file.read(at, min(MIB, end - at))
