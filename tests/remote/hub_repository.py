"""A Hub that is written to, by its documented endpoints: preupload, LFS batch, commit. Made for tests."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.remote.servers import LFS, FileServer, Request


@dataclass
class WritableHub:
    """One repository `org/model`. `commits`: the ids of its commits, none while it doesn't exist."""

    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)
    private: bool | None = None
    lfs: dict[str, bytes] = field(default_factory=dict)
    pull_requests: int = 0
    refuse: int = 0  # the status of every answer, if it is one
    query: str = ""
    fail_commits: int = 0  # so many are answered with 400
    server: FileServer = field(default_factory=FileServer)

    @contextmanager
    def running(self) -> Iterator[WritableHub]:
        self.server.extra = self._route
        with self.server.running():
            yield self

    @property
    def endpoint(self) -> str:
        return self.server.url

    def _route(self, handler: Any, request: Request) -> bool:
        path = unquote(urlsplit(request.path).path)
        self.query = urlsplit(request.path).query
        body = _body(handler, request)
        if self.refuse:
            handler.reply(request, self.refuse, b"{}", {})
            return True
        for start, answer in self._answers().items():
            if path.startswith(start):
                status, data, headers = answer(path, body)
                handler.reply(request, status, json.dumps(data).encode(), headers)
                return True
        return False

    def _answers(self) -> dict[str, Any]:
        return {
            "/api/repos/create": self._create,
            "/api/validate-yaml": lambda path, body: (200, {"errors": [], "warnings": []}, {}),
            "/api/models/org/model/preupload/": self._preupload,
            "/api/models/org/model/commit/": self._commit,
            "/api/models/org/model": self._info,
            "/org/model.git/info/lfs/objects/batch": self._batch,
            "/lfs/": self._store,
        }

    def _create(self, path: str, body: bytes) -> Any:
        asked = json.loads(body)
        self.private = asked.get("private") is True or asked.get("visibility") == "private"
        self.commits.append("0" * 40)
        return 200, {"url": f"{self.endpoint}/org/model"}, {}

    def _info(self, path: str, body: bytes) -> Any:
        if not self.commits:
            return 404, {}, {"X-Error-Code": "RepoNotFound"}
        siblings = [{"rfilename": name} for name in self.files]
        return 200, {"id": "org/model", "sha": self.commits[-1], "siblings": siblings, "tags": []}, {}

    def _preupload(self, path: str, body: bytes) -> Any:
        rows = json.loads(body)["files"]
        modes = [{"path": r["path"], "uploadMode": "lfs" if r["size"] >= LFS else "regular", "shouldIgnore": False}
                 for r in rows]  # fmt: skip
        return 200, {"files": modes}, {}

    def _batch(self, path: str, body: bytes) -> Any:
        objects = []
        for row in json.loads(body)["objects"]:
            upload = {"upload": {"href": f"{self.endpoint}/lfs/{row['oid']}"}}
            objects.append({**row, **({} if row["oid"] in self.lfs else {"actions": upload})})
        return 200, {"transfer": "basic", "objects": objects}, {}

    def _store(self, path: str, body: bytes) -> Any:
        assert hashlib.sha256(body).hexdigest() == path.rpartition("/")[2]
        self.lfs[path.rpartition("/")[2]] = body
        return 200, {}, {}

    def _commit(self, path: str, body: bytes) -> Any:
        if self.fail_commits:
            self.fail_commits -= 1
            return 400, {"error": "not today"}, {}
        rows = [json.loads(line) for line in body.splitlines()]
        parent = rows[0]["value"].get("parentCommit")
        if parent and parent != self.commits[-1]:
            return 412, {"error": "another parent"}, {}
        for row in rows[1:]:
            value = row["value"]
            data = self.lfs[value["oid"]] if row["key"] == "lfsFile" else base64.b64decode(value["content"])
            self.files[value["path"]] = data
        self.commits.append(hashlib.sha1(body).hexdigest())
        url = f"{self.endpoint}/org/model/commit/{self.commits[-1]}"
        done = {"success": True, "commitUrl": url, "commitOid": self.commits[-1]}
        if "create_pr=1" in self.query:
            self.pull_requests += 1
            done["pullRequestUrl"] = f"{self.endpoint}/org/model/discussions/{self.pull_requests}"
        return 200, done, {}


def _body(handler: Any, request: Request) -> bytes:
    if request.headers.get("transfer-encoding") != "chunked":
        return bytes(handler.rfile.read(int(request.headers.get("content-length", 0))))
    body = b""
    while size := int(handler.rfile.readline(), 16):
        body += handler.rfile.read(size)
        handler.rfile.readline()
    handler.rfile.readline()
    return body
