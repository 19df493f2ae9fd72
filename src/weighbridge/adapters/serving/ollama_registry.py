"""Ollama's registry API, for `ollama pull`, as far as its client uses it (server/images.go, server/download.go)."""

from __future__ import annotations

import hashlib
import json
import threading
from typing import Any, Final, Protocol

from weighbridge.adapters.remote.ollama import MEDIA, MODEL
from weighbridge.adapters.serving.replies import Replies, ServedFile
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import MIB

_CONFIG: Final = "application/vnd.docker.container.image.v1+json"


class GgufLibrary(Protocol):
    """Models whose GGUFs have tags."""

    def gguf(self, model: str, tag: str) -> ServedFile | None:
        """None where there is none of that name; UnsupportedError where the model can't have this form."""


class OllamaRegistry:
    """The endpoints below /v2/."""

    def __init__(self, library: GgufLibrary, replies: Replies) -> None:
        self.library, self.replies = library, replies
        self._digests: dict[str, tuple[str, ServedFile]] = {}
        self._small: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def ping(self, request: Any) -> Any:
        return self.replies.denied(request) or self.replies.json({})

    def manifest(self, request: Any) -> Any:
        if (denied := self.replies.denied(request)) is not None:
            return denied
        tag = request.path_params["tag"]
        try:
            found = self.library.gguf(request.path_params["repo"], tag)
        except UnsupportedError as error:  # 404 would be "file does not exist" in Ollama
            return self.replies.error(400, "UNSUPPORTED", error.message)
        if found is None:
            return self.replies.error(404, "MANIFEST_UNKNOWN", "no such model or type here")
        body = self._manifest(found, tag)
        headers = {"Docker-Content-Digest": f"sha256:{hashlib.sha256(body).hexdigest()}"}
        return self.replies.responses.Response(body, media_type=MEDIA, headers=headers)

    def _manifest(self, file: ServedFile, tag: str) -> bytes:
        digest = self._digest(file)
        config = json.dumps({"model_format": "gguf", "file_type": tag.upper(), "architecture": "amd64", "os": "linux",
                             "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}}).encode()  # fmt: skip
        own = hashlib.sha256(config).hexdigest()
        self._small[own] = config
        return json.dumps(
            {"schemaVersion": 2, "mediaType": MEDIA,
             "config": {"mediaType": _CONFIG, "digest": f"sha256:{own}", "size": len(config)},
             "layers": [{"mediaType": MODEL, "digest": f"sha256:{digest}", "size": file.size}]}
        ).encode()  # fmt: skip

    def blob(self, request: Any) -> Any:
        """A blob. Ollama takes the address of its ranges from Location, of a redirect or not, and fails without one."""
        if (denied := self.replies.denied(request)) is not None:
            return denied
        digest = request.path_params["digest"].removeprefix("sha256:")
        if (small := self._small.get(digest)) is not None:
            found: ServedFile | None = _SmallBlob(digest, small)
        else:
            found = next((f for known, f in self._digests.values() if known == digest), None)
        if found is None:
            return self.replies.error(404, "BLOB_UNKNOWN", "no such blob here; ask for the manifest first")
        named = {"ETag": f'"sha256:{digest}"', "Docker-Content-Digest": f"sha256:{digest}"}
        return self.replies.file(request, found, {**named, "Location": request.url.path})

    def _digest(self, file: ServedFile) -> str:
        """SHA-256 of a file's bytes, which are all computed for it, once."""
        with self._lock:
            if file.etag not in self._digests:
                made = hashlib.sha256()
                for at in range(0, file.size, MIB):
                    made.update(file.read(at, MIB))
                self._digests[file.etag] = made.hexdigest(), file
            return self._digests[file.etag][0]


class _SmallBlob:
    """A blob that is kept: the config of a manifest."""

    def __init__(self, digest: str, data: bytes) -> None:
        self.name, self.etag, self.size, self._data = digest, digest, len(data), data

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]
