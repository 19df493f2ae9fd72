"""An HTTP server of models: the Hub's read API (huggingface_hub, transformers, llama.cpp's -hf) and Ollama's
registry API, over files that may be computed on the fly. Starlette and uvicorn implement HTTP.

A request names a repository and a file; both are looked up in tables and never joined to a path.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol
from urllib.parse import parse_qs

from weighbridge.adapters.remote.extra import package
from weighbridge.adapters.serving import index_page
from weighbridge.adapters.serving.ending import ended_by_signals
from weighbridge.adapters.serving.ollama_registry import OllamaModels, OllamaRegistry
from weighbridge.adapters.serving.page_server import HEADERS
from weighbridge.adapters.serving.replies import LOOPBACK, Replies, ServedFile
from weighbridge.base.errors import UsageError
from weighbridge.base.limits import MIB

#: What models' names begin with, as the Hub's names have two parts.
_OWNER: Final = "local"


class Library(Protocol):
    """The repositories by name, and their files by theirs."""

    def repositories(self) -> tuple[str, ...]: ...

    def files(self, repository: str) -> Mapping[str, ServedFile] | None: ...

    def reasons(self, repository: str) -> Mapping[str, str]:
        """What isn't in a repository, and why."""

    def server_flags(self, repository: str) -> tuple[str, ...] | None:
        """llama-server's flags for a repository's GGUFs; None if it has none, or if it doesn't run them."""


def check_access(host: str, token: str | None) -> None:
    """UsageError where others than this machine could read without a token."""
    if host not in LOOPBACK and not token:
        raise UsageError(
            f"{host} can be reached from other machines",
            hint=f"give a token that clients must bring, as --token hf_{secrets.token_hex(20)}",
        )


def app(library: Library, models: OllamaModels, token: str | None = None) -> Any:
    """The ASGI application: the repositories of `library`, and `models` for Ollama."""
    applications = package("starlette.applications", "serving", "serve")
    route = package("starlette.routing", "serving", "serve").Route
    replies = Replies(token)
    server, registry = _HubServer(library, replies), OllamaRegistry(models, replies)
    read = [
        ("/", server.index),
        ("/api/models", server.models),
        ("/api/models/{org}/{repo}", server.info),
        ("/api/models/{org}/{repo}/revision/{revision:path}", server.info),
        ("/api/models/{org}/{repo}/refs", server.refs),
        ("/api/models/{org}/{repo}/tree/{revision}", server.tree),
        ("/api/models/{org}/{repo}/tree/{revision}/{path:path}", server.tree),
        ("/v2/", registry.ping),
        ("/v2/{org}/{repo}/manifests/{tag}", registry.manifest),
        ("/v2/{org}/{repo}/blobs/{digest}", registry.blob),
        ("/{org}/{repo}/resolve/{revision}/{path:path}", server.file),
        ("/{org}/{repo}", server.repository),
    ]
    routes = [route(path, act, methods=["GET", "HEAD"]) for path, act in read]
    some = route("/api/models/{org}/{repo}/paths-info/{revision}", server.some, methods=["POST"])
    return applications.Starlette(routes=[some, *routes])


def run(library: Library, models: OllamaModels, host: str, port: int, token: str | None, started: Any = None) -> None:
    """Serves until interrupted. Raises UsageError if the port is taken."""
    check_access(host, token)
    uvicorn = package("uvicorn", "serving", "serve")
    import socket

    try:
        sock = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise UsageError(f"{host}:{port}: {error.strerror}", hint="choose another port with --port") from None
    config = uvicorn.Config(app(library, models, token), log_level="warning", timeout_graceful_shutdown=3)
    server = uvicorn.Server(config)
    if started is not None:
        started(sock.getsockname()[1], server)
    try:
        with ended_by_signals():  # uvicorn raises the signal again when it has ended
            server.run(sockets=[sock])
    except KeyboardInterrupt:  # the ordinary end, when the connections are closed
        pass
    finally:
        sock.close()


class _HubServer:
    """The Hub's endpoints, and pages for browsers. Those that read are run in threads, as a slab may take a while."""

    def __init__(self, library: Library, replies: Replies) -> None:
        self.library, self.replies = library, replies

    def index(self, request: Any) -> Any:
        host, token = request.headers.get("host", ""), self.replies.token is not None
        if (denied := self.replies.denied(request)) is not None:
            if denied.status_code == 401:  # a browser asks for a password then
                denied.headers["WWW-Authenticate"] = 'Basic realm="the token as password"'
            return denied
        return self._page(request, index_page.index(self.library.repositories(), host, token))

    def repository(self, request: Any) -> Any:
        files = self._files(request)
        if not isinstance(files, Mapping):
            return files
        name, host = request.path_params["repo"], request.headers.get("host", "")
        missing, token = self.library.reasons(name), self.replies.token is not None
        flags = self.library.server_flags(name)
        return self._page(request, index_page.repository(name, files, missing, flags, host, token))

    def models(self, request: Any) -> Any:
        rows = [{"id": f"{_OWNER}/{name}"} for name in self.library.repositories()]
        return self.replies.denied(request) or self.replies.json(rows)

    def info(self, request: Any) -> Any:
        files = self._files(request)
        if not isinstance(files, Mapping):
            return files
        siblings = [{"rfilename": name, "size": f.size} for name, f in files.items()]  # no digest is known yet
        name = f"{_OWNER}/{request.path_params['repo']}"
        return self.replies.json(
            {"id": name, "sha": _commit(files), "siblings": siblings, "private": False, "gated": False,
             "disabled": False, "tags": [], "downloads": 0, "likes": 0}
        )  # fmt: skip

    def refs(self, request: Any) -> Any:
        files = self._files(request)
        if not isinstance(files, Mapping):
            return files
        branch = {"name": "main", "ref": "refs/heads/main", "targetCommit": _commit(files)}
        return self.replies.json({"branches": [branch], "converts": [], "tags": []})

    def tree(self, request: Any) -> Any:
        files = self._files(request)
        if not isinstance(files, Mapping):
            return files
        below, deep = request.path_params.get("path", ""), request.query_params.get("recursive", "").lower()
        rows = list(_rows(files, f"{below}/" if below else "", deep in ("true", "1")))
        if below and not rows:
            return self.replies.error(404, "EntryNotFound", "no such folder")
        return self.replies.json(rows)

    async def some(self, request: Any) -> Any:
        """The entries of some paths; those that aren't there are left out."""
        threads = package("starlette.concurrency", "serving", "serve")
        data = bytearray()
        async for chunk in request.stream():
            data += chunk
            if len(data) > MIB:
                return self.replies.error(413, "", "too many paths")
        files = await threads.run_in_threadpool(self._files, request)
        if not isinstance(files, Mapping):
            return files
        wanted = parse_qs(data.decode("utf-8", "replace")).get("paths", [])
        return self.replies.json([row for row in _rows(files, "", True) if row["path"] in wanted])

    def file(self, request: Any) -> Any:
        files = self._files(request)
        if not isinstance(files, Mapping):
            return files
        found = files.get(request.path_params["path"])
        commit = {"X-Repo-Commit": _commit(files)}
        if found is None:
            return self.replies.error(404, "EntryNotFound", "no such file", **commit)
        return self.replies.file(request, found, {**commit, "ETag": f'"{found.etag}"'})

    def _files(self, request: Any) -> Any:
        """The files of the repository of a request, or the answer that there is none."""
        if (denied := self.replies.denied(request)) is not None:
            return denied
        own, name = request.path_params["org"] == _OWNER, request.path_params["repo"]
        files = self.library.files(name) if own else None
        if not files:
            missing = self.library.reasons(name) if own else {}
            words = "; ".join(f"no {form}: {why}" for form, why in missing.items())
            return self.replies.error(404, "RepoNotFound", words or "no such repository here; GET / lists them")
        if request.path_params.get("revision", "main") not in ("main", _commit(files)):
            return self.replies.error(404, "RevisionNotFound", "no such revision; there is main")
        return files

    def _page(self, request: Any, page: index_page.IndexPage) -> Any:
        headers = {**HEADERS, "Content-Security-Policy": index_page.POLICY}
        if "text/html" in request.headers.get("accept", ""):
            return self.replies.responses.HTMLResponse(page.html(), headers=headers)
        return self.replies.responses.PlainTextResponse(page.text(), headers=headers)


def _rows(files: Mapping[str, ServedFile], below: str, deep: bool) -> Iterator[dict[str, Any]]:
    """The entries of a folder, which is "" or ends in a slash: files, and where not `deep` the folders in it."""
    folders = set()
    for name, file in files.items():
        if not name.startswith(below):
            continue
        inner, slash, _ = name[len(below) :].partition("/")
        if deep or not slash:
            yield {"type": "file", "oid": file.etag, "size": file.size, "path": name}
        elif inner not in folders:
            folders.add(inner)
            path = below + inner
            yield {"type": "directory", "oid": hashlib.sha1(path.encode()).hexdigest(), "size": 0, "path": path}


def _commit(files: Mapping[str, ServedFile]) -> str:
    """Returns a commit id that changes when a file's bytes do."""
    return hashlib.sha1(repr(sorted((name, f.etag) for name, f in files.items())).encode()).hexdigest()
