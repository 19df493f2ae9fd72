"""Models for `ollama pull` from `wb serve`: a manifest with the layers that `wb ship ollama` writes, and weights
computed on the fly."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from weighbridge.adapters.serving.ollama_registry import PulledModel
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import MIB
from weighbridge.conversion.forms.library import FormFile
from weighbridge.conversion.forms.shelf import ModelFolder
from weighbridge.conversion.forms.views import StoredFile, TextBytes
from weighbridge.shipping.model import GgufParts, planned_gguf, stored_gguf
from weighbridge.shipping.ollama.content import OllamaContent, content_of, entry, manifest_file
from weighbridge.shipping.plan import ShipOptions, ShipRequest
from weighbridge.shipping.targets import server_flags

#: The type of `latest`, as in Ollama's library.
_LATEST: Final = "Q4_K_M"


class _Weights(NamedTuple):
    parts: GgufParts
    file: FormFile
    mmproj: FormFile | None = None


class PullableModels:
    """The models of a shelf, by tag. `note` is called with each deviation from a complete model."""

    def __init__(self, shelf: ModelFolder, note: Callable[[str], None]) -> None:
        self._shelf, self._note = shelf, note
        self._pulled: dict[str, PulledModel] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def pulled(self, model: str, tag: str) -> PulledModel | None:
        """Returns a model, after computing all its weights once for their digest. `tag`: the type of the stored GGUF,
        which is served unchanged, or a form's; `latest` is Q4_K_M if possible. Returns None for an unknown model, and
        raises UnsupportedError if the model can't have this form, or if Ollama doesn't run it."""
        name = self._shelf.known(model)
        weights = self._weights(name, tag) if name else None
        if name is None or weights is None:
            return None
        server_flags(Path(name), weights.parts.keys, weights.parts.file)
        path, key = self._shelf.path(name), weights.file.etag
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._pulled:
                self._pulled[key] = _pulled(self._content(path, weights.parts, f"{name}:{tag}"), weights)
            return self._pulled[key]

    def _weights(self, model: str, tag: str) -> _Weights | None:
        path, latest = self._shelf.path(model), tag.lower() == "latest"
        parts, type = stored_gguf(path), _LATEST if latest else tag.upper()
        stored = _Weights(parts, StoredFile(parts.file.name, parts.file)) if parts and parts.file else None
        if stored is not None and stored.parts.file_type == type:
            return stored
        try:
            form = self._shelf.gguf(model, type)
        except UnsupportedError:
            if latest and stored is not None:
                return stored
            raise
        if form is None:
            return stored if latest else None
        return _Weights(planned_gguf(path, form.plan), form.file, form.mmproj)

    def _content(self, path: Path, parts: GgufParts, name: str) -> OllamaContent:
        """Returns the model's layers. If its template can't be translated, Ollama renders the Jinja template."""
        try:
            content = content_of(parts, ShipRequest(path, ""))
        except UnsupportedError as error:
            self._note(f"{name}: {error.message}")
            content = content_of(parts, ShipRequest(path, "", ShipOptions(template="none")))
        for note in content.notes[len(parts.notes) :]:
            self._note(f"{name}: {note}")
        return content


def _pulled(content: OllamaContent, weights: _Weights) -> PulledModel:
    blobs: dict[str, FormFile] = {}

    def add(part: str, file: FormFile) -> dict[str, object]:
        digest = hashlib.sha256()
        for at in range(0, file.size, MIB):
            digest.update(file.read(at, MIB))
        blobs[digest.hexdigest()] = file
        return entry(part, digest.hexdigest(), file.size)

    first, *rest = content.layers
    layers = [add(first.part, weights.file)]
    for layer in rest:
        if layer.plan is not None and weights.mmproj is not None:
            layers.append(add(layer.part, weights.mmproj))
            continue
        layers.append(
            add(layer.part, StoredFile(layer.part, layer.file) if layer.file else TextBytes(layer.part, layer.data))
        )
    config = add("config", TextBytes("config", content.config_file(layers)))
    return PulledModel(manifest_file(config, layers), blobs)
