"""The Hub's upload endpoints as huggingface_hub 2.4 calls them: repositories, pre-upload, LFS, commits."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

LFS_ABOVE = 1000
COMMIT = "ab" * 20


@dataclass
class UploadHub:
    """`repositories`: name -> files. `commits`: the headers of all commits."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    commits: list[dict[str, Any]] = field(default_factory=list)
    pull_requests: int = 0
    stored: dict[str, bytes] = field(default_factory=dict)
    refuse: int = 0
    url: str = ""

    @contextmanager
    def running(self) -> Iterator[UploadHub]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()

    def answer(self, method: str, path: str, body: bytes, query: str) -> tuple[int, Any]:
        if self.refuse:
            return self.refuse, {"error": "no"}
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            self.repositories.setdefault(name, {})
            self.private[name] = asked.get("visibility") == "private" or bool(asked.get("private"))
            return 200, {"url": f"{self.url}/{name}", "name": name}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path.startswith("/upload/"):
            self.stored[hashlib.sha256(body).hexdigest()] = body
            return 200, {}
        if path.endswith("/info/lfs/objects/batch"):
            objects = [{**o, "actions": {"upload": {"href": f"{self.url}/upload/{o['oid']}"}}}
                       for o in json.loads(body)["objects"]]  # fmt: skip
            return 200, {"transfer": "basic", "objects": objects}
        return self._repository(method, path, body, query)

    def _repository(self, method: str, path: str, body: bytes, query: str) -> tuple[int, Any]:
        name = "/".join(path.split("/")[3:5])
        if name not in self.repositories:
            return 404, {"error": "Repository not found"}
        if method == "GET":
            rows: list[dict[str, Any]] = [{"rfilename": f} for f in self.repositories[name]]
            return 200, {"id": name, "sha": COMMIT, "siblings": rows, "private": False, "tags": []}
        if "/preupload/" in path:
            rows = [{"path": f["path"], "uploadMode": "lfs" if f["size"] > LFS_ABOVE else "regular",
                     "shouldIgnore": False, "oid": None} for f in json.loads(body)["files"]]  # fmt: skip
            return 200, {"files": rows}
        assert "/commit/" in path
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                self.commits.append({**value, "branch": path.rpartition("/")[2]})
            elif line["key"] == "file":
                self.repositories[name][value["path"]] = base64.b64decode(value["content"])
            else:
                self.repositories[name][value["path"]] = self.stored[value["oid"]]
        done = {"commitOid": COMMIT, "commitUrl": f"{self.url}/{name}/commit/{COMMIT}"}
        if "create_pr=1" in query:
            self.pull_requests += 1
            done["pullRequestUrl"] = f"{self.url}/{name}/discussions/1"
        return 200, done


def _handler(hub: UploadHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            url = urlsplit(self.path)
            status, data = hub.answer(self.command, url.path, body, url.query)
            out = json.dumps(data).encode()
            self.send_response(status)
            if status == 404:
                self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(out)))
            self.end_headers()
            self.wfile.write(out)

        do_GET = do_POST = do_PUT = _answer

    return Handler
