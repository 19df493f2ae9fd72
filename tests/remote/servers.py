"""Servers on loopback: files by range with faults, and a Hub that follows its documented endpoints. Both log what they
are asked and how many bytes of bodies they send."""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34
#: Files of the Hub that are at least so large are stored by LFS: the Hub redirects to another host for them.
LFS = 1024


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    status: int = 0
    sent: int = 0


@dataclass
class Faults:
    """What a server does wrong. Counters run down to 0, when it behaves again; -1 never ends."""

    status: tuple[int, int] = (0, 0)  # (status, times)
    retry_after: str | None = None
    drop_after: int | None = None  # body bytes of each answer after which the connection is closed
    truncate: int | None = None  # body bytes of each answer, declared as all there are
    no_ranges: bool = False
    shift: int = 0  # Content-Range and body begin so many bytes later
    content_range: str | None = None
    changes_after: int | None = None  # answers after which file and ETag are others
    encoding: str | None = None
    drip: float = 0.0  # seconds between single bytes
    no_length: bool = False
    no_etag: bool = False
    redirect: Callable[[str], str | None] = lambda path: None
    latency: float = 0.0


class _Server(ThreadingHTTPServer):
    """With room for clients that connect all at once: a connection that finds none is tried again after a second."""

    request_queue_size = 128
    daemon_threads = True


@dataclass
class FileServer:
    """Serves `files` (path -> bytes or a file). `check(request)` may answer with a status of its own."""

    files: dict[str, bytes | Path] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    log: list[Request] = field(default_factory=list)
    extra: Callable[[Any, Request], bool] = lambda handler, request: False
    tls: ssl.SSLContext | None = None
    more: dict[str, str] = field(default_factory=dict)  # headers of every file
    url: str = ""
    answers: int = 0

    @property
    def sent(self) -> int:
        return sum(r.sent for r in self.log)

    def paths(self, method: str = "GET") -> list[str]:
        return [r.path for r in self.log if r.method == method]

    @contextmanager
    def running(self) -> Iterator[FileServer]:
        server = _Server(("127.0.0.1", 0), _handler(self))
        if self.tls is not None:
            server.socket = self.tls.wrap_socket(server.socket, server_side=True)
        self.url = f"{'https' if self.tls else 'http'}://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()

    def body(self, path: str) -> bytes | Path | None:
        found = self.files.get(path)
        if found is not None and self.faults.changes_after is not None and self.answers > self.faults.changes_after:
            data = found.read_bytes() if isinstance(found, Path) else found
            return bytes(b ^ 1 for b in data)
        return found


class _Cut(Exception):
    pass


def _handler(server: FileServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *args: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def do_PUT(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            request = Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()})
            server.log.append(request)
            faults = server.faults
            if faults.latency:
                time.sleep(faults.latency)
            try:
                status, times = faults.status
                if times:
                    faults.status = (status, times - 1)
                    headers = {"Retry-After": faults.retry_after} if faults.retry_after else {}
                    self.reply(request, status, b"busy", headers)
                elif (to := faults.redirect(self.path)) is not None:
                    self.reply(request, 302, b"", {"Location": to})
                elif not server.extra(self, request):
                    self.file(request, unquote(urlsplit(self.path).path))
            except (_Cut, OSError):
                self.close_connection = True
                self.connection.close()

        def reply(self, request: Request, status: int, body: bytes, headers: dict[str, str]) -> None:
            request.status = status
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" not in headers and not server.faults.no_length:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.body(request, body)

        def body(self, request: Request, body: bytes) -> None:
            faults = server.faults
            if faults.drip:
                for i in range(len(body)):
                    self.wfile.write(body[i : i + 1])
                    self.wfile.flush()
                    time.sleep(faults.drip)
            cut = faults.drop_after
            view = memoryview(body)[:cut]
            for at in range(0, len(view), 1 << 18):
                self.wfile.write(view[at : at + (1 << 18)])
                request.sent += min(1 << 18, len(view) - at)
            self.wfile.flush()
            if cut is not None and len(body) > cut:
                raise _Cut

        def file(self, request: Request, path: str) -> None:
            found, faults = server.body(path), server.faults
            if found is None:
                self.reply(request, 404, b"nothing here", {})
                return
            server.answers += 1
            size = found.stat().st_size if isinstance(found, Path) else len(found)
            headers = {} if faults.no_etag else {"ETag": f'"{_etag(found, size)}"'}
            headers |= server.more
            if faults.encoding:
                headers["Content-Encoding"] = faults.encoding
            spec = self.headers.get("range", "")
            if self.command == "HEAD":
                length = {} if faults.no_length else {"Content-Length": str(size)}
                ranges = {} if faults.no_ranges else {"Accept-Ranges": "bytes"}
                self.reply(request, 200, b"", headers | length | ranges)
                return
            fresh = self.headers.get("if-range", headers.get("ETag")) == headers.get("ETag")
            if not spec.startswith("bytes=") or faults.no_ranges or not fresh:
                self.reply(request, 200, _read(found, 0, size)[: faults.truncate], headers)
                return
            first, _, last = spec[6:].partition("-")
            start, end = int(first), min(int(last or size - 1), size - 1)
            if start >= size:
                self.reply(request, 416, b"", {"Content-Range": f"bytes */{size}"})
                return
            start = min(start + faults.shift, end)
            headers["Content-Range"] = faults.content_range or f"bytes {start}-{end}/{size}"
            self.reply(request, 206, _read(found, start, end + 1)[: faults.truncate], headers)

    return Handler


def _read(found: bytes | Path, start: int, end: int) -> bytes:
    if isinstance(found, bytes):
        return found[start:end]
    with found.open("rb") as file:
        file.seek(start)
        return file.read(end - start)


def _etag(found: bytes | Path, size: int) -> str:
    return hashlib.md5(found).hexdigest() if isinstance(found, bytes) else f"{found.stat().st_mtime_ns:x}-{size:x}"


# ------------------------------------------------------------------------------------------------ the Hub


def git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Hub:
    """A Hub with one repository `org/model` at commit `COMMIT`, and the host that it redirects to for LFS files.
    `token`: what a request must bring; `gated`: 403 for whoever brings another."""

    folder: Path
    token: str | None = None
    gated: bool = False
    repository: str = "org/model"
    sparse: bool = False  # files are not hashed: their sha256 is made up of their names
    hub: FileServer = field(default_factory=FileServer)
    cdn: FileServer = field(default_factory=FileServer)

    @contextmanager
    def running(self) -> Iterator[Hub]:
        self._scan()
        self.hub.extra = self._route
        self.hub.more = {"X-Repo-Commit": COMMIT}
        with self.cdn.running(), self.hub.running():
            yield self

    @property
    def endpoint(self) -> str:
        return self.hub.url

    @property
    def requests(self) -> int:
        return len(self.hub.log) + len(self.cdn.log)

    @property
    def sent(self) -> int:
        return self.hub.sent + self.cdn.sent

    def clear(self) -> None:
        self.hub.log.clear()
        self.cdn.log.clear()

    def _scan(self) -> None:
        self.siblings: list[dict[str, Any]] = []
        for path in sorted(p for p in self.folder.rglob("*") if p.is_file()):
            name, size = path.relative_to(self.folder).as_posix(), path.stat().st_size
            data = b"" if self.sparse else path.read_bytes()
            row: dict[str, Any] = {"rfilename": name, "size": size, "blobId": git_id(data)}
            if size >= LFS:
                sha = hashlib.sha256(name.encode() if self.sparse else data).hexdigest()
                row["lfs"] = {"sha256": sha, "size": size, "pointerSize": 134}
                self.cdn.files[f"/{sha}"] = path
            self.siblings.append(row)
            self.hub.files[f"/{self.repository}/resolve/{COMMIT}/{name}"] = path

    def _denied(self, handler: Any, request: Request) -> bool:
        if self.token is None or request.headers.get("authorization") == f"Bearer {self.token}":
            return False
        code = "GatedRepo" if self.gated else "RepoNotFound"
        handler.reply(request, 403 if self.gated else 401, b"{}", {"X-Error-Code": code})
        return True

    def _route(self, handler: Any, request: Request) -> bool:
        if self._denied(handler, request):
            return True
        path = unquote(urlsplit(request.path).path)
        api = f"/api/models/{self.repository}"
        if path == api or path.startswith(f"{api}/revision/"):
            return self._info(handler, request, path.rpartition("/revision/")[2] if "/revision/" in path else "main")
        if path.startswith(f"{api}/tree/{COMMIT}"):
            handler.reply(request, 200, json.dumps([self._entry(s) for s in self.siblings]).encode(), {})
            return True
        if path.startswith("/api/"):
            handler.reply(request, 404, b"{}", {"X-Error-Code": "RepoNotFound"})
            return True
        prefix = f"/{self.repository}/resolve/"
        if path.startswith(prefix):
            revision, _, name = path[len(prefix) :].partition("/")
            return self._file(handler, request, revision, name)
        return False

    def _entry(self, row: dict[str, Any]) -> dict[str, Any]:
        entry = {"type": "file", "oid": row["blobId"], "size": row["size"], "path": row["rfilename"]}
        if lfs := row.get("lfs"):
            entry["lfs"] = {"oid": lfs["sha256"], "size": lfs["size"], "pointerSize": lfs["pointerSize"]}
        return entry

    def _info(self, handler: Any, request: Request, revision: str) -> bool:
        if revision not in ("main", COMMIT):
            handler.reply(request, 404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return True
        blobs = "blobs=true" in request.path.lower()
        rows = self.siblings if blobs else [{"rfilename": s["rfilename"]} for s in self.siblings]
        data = {"id": self.repository, "sha": COMMIT, "siblings": rows, "private": False, "gated": False, "tags": []}
        handler.reply(request, 200, json.dumps(data).encode(), {"Content-Type": "application/json"})
        return True

    def _file(self, handler: Any, request: Request, revision: str, name: str) -> bool:
        row = next((s for s in self.siblings if s["rfilename"] == name), None)
        if row is None:
            handler.reply(request, 404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            return True
        if "lfs" not in row:
            return False  # the bytes themselves
        sha = row["lfs"]["sha256"]
        headers = {
            "X-Repo-Commit": COMMIT, "ETag": f'"{row["blobId"]}"', "X-Linked-Etag": f'"{sha}"',
            "X-Linked-Size": str(row["size"]), "Location": f"{self.cdn.url}/{sha}?X-Signature={quote('s3cret')}",
        }  # fmt: skip
        handler.reply(request, 302, b"", headers)
        return True
