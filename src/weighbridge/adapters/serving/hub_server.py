"""An HTTP server of models: the Hub's read API (huggingface_hub, transformers, llama.cpp's -hf) and Ollama's registry
API, over files that may be computed where they are read. Starlette and uvicorn do HTTP.

A request names a repository and a file; both are looked up in tables and never joined to a path.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

from weighbridge.adapters.remote.extra import package
from weighbridge.adapters.remote.ollama import MEDIA, MODEL
from weighbridge.base.errors import UsageError
from weighbridge.base.limits import MIB

_RANGE: Final = re.compile(r"bytes=(\d*)-(\d*)")
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_CONFIG: Final = "application/vnd.docker.container.image.v1+json"


class ServedFile(Protocol):
    """A file that a client may fetch; `etag` is what changes when its bytes do."""

    name: str
    size: int
    etag: str

    def read(self, offset: int, length: int) -> bytes: ...


class Library(Protocol):
    """The repositories by name, and their files by theirs."""

    def repositories(self) -> tuple[str, ...]: ...

    def files(self, repository: str) -> Mapping[str, ServedFile] | None: ...

    def gguf(self, model: str, tag: str) -> ServedFile | None: ...


def check_access(host: str, token: str | None) -> None:
    """UsageError where others than this machine could read without a token."""
    if host not in _LOOPBACK and not token:
        raise UsageError(
            f"{host} can be reached from other machines", hint="give a token that clients must bring: --token"
        )


def app(library: Library, token: str | None = None) -> Any:
    """The ASGI application."""
    applications = package("starlette.applications", "serving", "serve")
    routing = package("starlette.routing", "serving", "serve")
    server = _Server(library, token)
    hub = [
        ("/api/models", server.models),
        ("/api/models/{org}/{repo}", server.info),
        ("/api/models/{org}/{repo}/revision/{revision:path}", server.info),
        ("/api/models/{org}/{repo}/refs", server.refs),
        ("/api/models/{org}/{repo}/tree/{revision}", server.tree),
        ("/api/models/{org}/{repo}/tree/{revision}/{path:path}", server.tree),
        ("/{org}/{repo}/resolve/{revision}/{path:path}", server.file),
        ("/v2/", server.ping),
        ("/v2/{org}/{repo}/manifests/{tag}", server.manifest),
        ("/v2/{org}/{repo}/blobs/{digest}", server.blob),
    ]
    routes = [routing.Route(path, act, methods=["GET", "HEAD"]) for path, act in hub]
    return applications.Starlette(routes=routes)


def run(library: Library, host: str, port: int, token: str | None, started: Any = None) -> None:
    """Serve until interrupted. UsageError where the port is taken."""
    check_access(host, token)
    uvicorn = package("uvicorn", "serving", "serve")
    import socket

    try:
        sock = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise UsageError(f"{host}:{port}: {error.strerror}", hint="choose another port with --port") from None
    config = uvicorn.Config(app(library, token), log_level="warning", timeout_graceful_shutdown=3)
    server = uvicorn.Server(config)
    if started is not None:
        started(sock.getsockname()[1], server)
    try:
        server.run(sockets=[sock])
    except KeyboardInterrupt:  # the ordinary end, when the connections are closed
        pass
    finally:
        sock.close()


class _Server:
    """The endpoints. Those that read are run in threads, as a slab may take a while."""

    def __init__(self, library: Library, token: str | None) -> None:
        self.library, self.token = library, token
        self.responses = package("starlette.responses", "serving", "serve")
        self._digests: dict[str, tuple[str, ServedFile]] = {}
        self._small: dict[str, bytes] = {}
        self._lock = threading.Lock()

    # ---------------------------------------------------------------- the Hub

    def models(self, request: Any) -> Any:
        return self._denied(request) or self._json([{"id": f"local/{name}"} for name in self.library.repositories()])

    def info(self, request: Any) -> Any:
        files = self._files(request)
        if not isinstance(files, Mapping):
            return files
        commit = _commit(files)
        siblings = [{"rfilename": name, "size": f.size} for name, f in files.items()]  # no digest is known yet
        return self._json({"id": _name(request), "sha": commit, "siblings": siblings, "private": False, "gated": False,
                           "disabled": False, "tags": [], "downloads": 0, "likes": 0})  # fmt: skip

    def refs(self, request: Any) -> Any:
        files = self._files(request)
        if not isinstance(files, Mapping):
            return files
        branch = {"name": "main", "ref": "refs/heads/main", "targetCommit": _commit(files)}
        return self._json({"branches": [branch], "converts": [], "tags": []})

    def tree(self, request: Any) -> Any:
        files = self._files(request)
        if not isinstance(files, Mapping):
            return files
        rows = [{"type": "file", "oid": f.etag, "size": f.size, "path": name} for name, f in files.items()]
        return self._json(rows)

    def file(self, request: Any) -> Any:
        files = self._files(request)
        if not isinstance(files, Mapping):
            return files
        found = files.get(request.path_params["path"])
        commit = {"X-Repo-Commit": _commit(files)}
        if found is None:
            return self.responses.Response(status_code=404, headers={"X-Error-Code": "EntryNotFound", **commit})
        return self._bytes(request, found, {**commit, "ETag": f'"{found.etag}"'})

    def _files(self, request: Any) -> Any:
        """The files of the repository of a request, or the answer that there is none."""
        if (denied := self._denied(request)) is not None:
            return denied
        files = self.library.files(request.path_params["repo"])
        if not files:
            return self.responses.Response(status_code=404, headers={"X-Error-Code": "RepoNotFound"})
        if request.path_params.get("revision", "main") not in ("main", _commit(files)):
            return self.responses.Response(status_code=404, headers={"X-Error-Code": "RevisionNotFound"})
        return files

    # ---------------------------------------------------------------- Ollama

    def ping(self, request: Any) -> Any:
        return self._denied(request) or self._json({})

    def manifest(self, request: Any) -> Any:
        if (denied := self._denied(request)) is not None:
            return denied
        tag = request.path_params["tag"]
        found = self.library.gguf(request.path_params["repo"], tag)
        if found is None:
            return self._json({"errors": [{"code": "MANIFEST_UNKNOWN"}]}, 404)
        digest = self._digest(found)
        config = json.dumps({"model_format": "gguf", "file_type": tag.upper(), "architecture": "amd64", "os": "linux",
                             "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}}).encode()  # fmt: skip
        own = hashlib.sha256(config).hexdigest()
        self._small[own] = config
        body = json.dumps(
            {"schemaVersion": 2, "mediaType": MEDIA,
             "config": {"mediaType": _CONFIG, "digest": f"sha256:{own}", "size": len(config)},
             "layers": [{"mediaType": MODEL, "digest": f"sha256:{digest}", "size": found.size}]}
        ).encode()  # fmt: skip
        return self.responses.Response(body, media_type=MEDIA)

    def blob(self, request: Any) -> Any:
        if (denied := self._denied(request)) is not None:
            return denied
        digest = request.path_params["digest"].removeprefix("sha256:")
        if (small := self._small.get(digest)) is not None:
            return self.responses.Response(small, media_type="application/octet-stream")
        found = next((f for known, f in self._digests.values() if known == digest), None)
        if found is None:
            return self._json({"errors": [{"code": "BLOB_UNKNOWN"}]}, 404)
        return self._bytes(request, found, {"ETag": f'"sha256:{digest}"', "Docker-Content-Digest": f"sha256:{digest}"})

    def _digest(self, file: ServedFile) -> str:
        """SHA-256 of a file's bytes, which are all computed for it, once."""
        with self._lock:
            if file.etag not in self._digests:
                made = hashlib.sha256()
                for at in range(0, file.size, MIB):
                    made.update(file.read(at, MIB))
                self._digests[file.etag] = made.hexdigest(), file
            return self._digests[file.etag][0]

    # ---------------------------------------------------------------- answers

    def _denied(self, request: Any) -> Any:
        """The answer to who brings no token, or another one."""
        if self.token is None:
            return None
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if hmac.compare_digest(given.encode(), self.token.encode()):
            return None
        return self.responses.Response(status_code=401, headers={"X-Error-Code": "RepoNotFound"})

    def _json(self, value: Any, status: int = 200) -> Any:
        return self.responses.JSONResponse(value, status)

    def _bytes(self, request: Any, file: ServedFile, headers: dict[str, str]) -> Any:
        """A file or a range of it (RFC 9110: one range; another version than If-Range's gets the whole file)."""
        headers |= {"Accept-Ranges": "bytes"}
        start, end, status = 0, file.size, 200
        asked = request.headers.get("range")
        if asked and request.headers.get("if-range", headers["ETag"]) == headers["ETag"]:
            found = _RANGE.fullmatch(asked)
            if not found or not (found[1] or found[2]):
                return self.responses.Response(status_code=400)
            start, end = _bounds(found[1], found[2], file.size)
            if start >= end:
                return self.responses.Response(status_code=416, headers={"Content-Range": f"bytes */{file.size}"})
            headers["Content-Range"], status = f"bytes {start}-{end - 1}/{file.size}", 206
        headers["Content-Length"] = str(end - start)
        body = iter(()) if request.method == "HEAD" else _chunks(file, start, end)
        return self.responses.StreamingResponse(body, status, headers, media_type="application/octet-stream")


def _bounds(first: str, last: str, size: int) -> tuple[int, int]:
    if not first:  # the last so many bytes
        return max(size - int(last), 0), size
    return int(first), min(int(last) + 1 if last else size, size)


def _chunks(file: ServedFile, start: int, end: int) -> Iterator[bytes]:
    for at in range(start, end, MIB):
        yield file.read(at, min(MIB, end - at))


def _commit(files: Mapping[str, ServedFile]) -> str:
    """Another one when a file's bytes are others."""
    return hashlib.sha1(repr(sorted((name, f.etag) for name, f in files.items())).encode()).hexdigest()


def _name(request: Any) -> str:
    return f"{request.path_params['org']}/{request.path_params['repo']}"
