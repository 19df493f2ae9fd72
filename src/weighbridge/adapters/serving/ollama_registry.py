"""Ollama's registry API, for `ollama pull`, as far as its client uses it (server/images.go, server/download.go)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from weighbridge.adapters.remote.ollama import MEDIA
from weighbridge.adapters.serving.replies import Replies, ServedFile
from weighbridge.base.errors import UnsupportedError


class PulledModel(NamedTuple):
    """The manifest of a model, and its blobs by their SHA-256."""

    manifest: bytes
    blobs: Mapping[str, ServedFile]


class OllamaModels(Protocol):
    """Models that can be pulled."""

    def pulled(self, model: str, tag: str) -> PulledModel | None:
        """Returns a model to pull; None if the name is unknown. Raises UnsupportedError if the model can't have this
        form."""


class OllamaRegistry:
    """The endpoints below /v2/."""

    def __init__(self, models: OllamaModels, replies: Replies) -> None:
        self.models, self.replies = models, replies
        self._blobs: dict[str, ServedFile] = {}

    def ping(self, request: Any) -> Any:
        return self.replies.denied(request) or self.replies.json({})

    def manifest(self, request: Any) -> Any:
        if (denied := self.replies.denied(request)) is not None:
            return denied
        try:
            found = self.models.pulled(request.path_params["repo"], request.path_params["tag"])
        except UnsupportedError as error:  # 404 would be "file does not exist" in Ollama
            return self.replies.error(400, "UNSUPPORTED", error.message)
        if found is None:
            return self.replies.error(404, "MANIFEST_UNKNOWN", "no such model or type here")
        self._blobs.update(found.blobs)
        headers = {"Docker-Content-Digest": f"sha256:{hashlib.sha256(found.manifest).hexdigest()}"}
        return self.replies.responses.Response(found.manifest, media_type=MEDIA, headers=headers)

    def blob(self, request: Any) -> Any:
        """A blob. Ollama takes the address of its ranges from Location, of a redirect or not, and fails without one."""
        if (denied := self.replies.denied(request)) is not None:
            return denied
        digest = request.path_params["digest"].removeprefix("sha256:")
        if (found := self._blobs.get(digest)) is None:
            return self.replies.error(404, "BLOB_UNKNOWN", "no such blob here; ask for the manifest first")
        named = {"ETag": f'"sha256:{digest}"', "Docker-Content-Digest": f"sha256:{digest}"}
        return self.replies.file(request, found, {**named, "Location": request.url.path})
