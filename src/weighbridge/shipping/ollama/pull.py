"""Models as `ollama pull` gets them from `wb serve`: the layers that `wb ship ollama` writes, in a manifest, with the
weights computed where they are read."""

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
from weighbridge.conversion.forms.shelf import Shelf, StoredFile
from weighbridge.conversion.forms.views import TextBytes
from weighbridge.shipping.model import GgufParts, planned_gguf, stored_gguf
from weighbridge.shipping.ollama.content import OllamaContent, StoreLayer, content_of, entry, manifest_file
from weighbridge.shipping.plan import ShipOptions, ShipRequest

#: What `latest` is, as Ollama would have it.
_LATEST: Final = "Q4_K_M"


class _Weights(NamedTuple):
    parts: GgufParts
    file: FormFile


class PullableModels:
    """The models of a shelf, by tags. `note`: gets what a pulled model lacks."""

    def __init__(self, shelf: Shelf, note: Callable[[str], None]) -> None:
        self._shelf, self._note = shelf, note
        self._pulled: dict[str, PulledModel] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def pulled(self, model: str, tag: str) -> PulledModel | None:
        """A model, whose weights are all computed for their digest, once. `tag`: the type of its own GGUF, which is
        given as it lies, or a form's; `latest` is Q4_K_M, else its own. None where there is none; UnsupportedError
        where the model can't have this form."""
        known = self._shelf.known(model)
        weights = self._weights(known, tag) if known else None
        if known is None or weights is None:
            return None
        path, key = self._shelf.path(known), weights.file.etag
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._pulled:
                content = self._content(path, weights.parts, f"{known}:{tag}")
                self._pulled[key] = _pulled(content, weights.file)
            return self._pulled[key]

    def _weights(self, model: str, tag: str) -> _Weights | None:
        path, latest = self._shelf.path(model), tag.lower() == "latest"
        found, wanted = stored_gguf(path), _LATEST if latest else tag.upper()
        own = _Weights(found, StoredFile(found.file.name, found.file)) if found and found.file else None
        if own is not None and own.parts.file_type == wanted:
            return own
        try:
            form = self._shelf.gguf(model, wanted)
        except UnsupportedError:
            if latest and own is not None:
                return own
            raise
        return None if form is None else _Weights(planned_gguf(path, form.plan), form.file)

    def _content(self, path: Path, parts: GgufParts, name: str) -> OllamaContent:
        """What the model consists of. A template that can't be translated is left to the model's own one."""
        try:
            content = content_of(parts, ShipRequest(path, ""))
        except UnsupportedError as error:
            self._note(f"{name}: {error.message}")
            content = content_of(parts, ShipRequest(path, "", ShipOptions(template="none")))
        for words in content.notes[len(parts.notes) :]:
            self._note(f"{name}: {words}")
        return content


def _pulled(content: OllamaContent, weights: FormFile) -> PulledModel:
    blobs: dict[str, FormFile] = {}

    def add(part: str, file: FormFile) -> dict[str, object]:
        digest = _digest(file)
        blobs[digest] = file
        return entry(part, digest, file.size)

    first, *others = content.layers
    layers = [add(first.part, weights), *(add(layer.part, _file(layer)) for layer in others)]
    config = add("config", TextBytes("config", content.config_file(layers)))
    return PulledModel(manifest_file(config, layers), blobs)


def _file(layer: StoreLayer) -> FormFile:
    return TextBytes(layer.part, layer.data) if layer.file is None else StoredFile(layer.part, layer.file)


def _digest(file: FormFile) -> str:
    """SHA-256 of a file's bytes, which are all computed for it."""
    made = hashlib.sha256()
    for at in range(0, file.size, MIB):
        made.update(file.read(at, MIB))
    return made.hexdigest()
