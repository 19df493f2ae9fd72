"""Ollama's names, its store on this machine, and its registry: `ollama://[host/][namespace/]model[:tag]`.

A name identifies a manifest; its layers are files named by their sha256. If the local store has the model, it is
used; otherwise manifest and weights come from the registry, by ranges.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from weighbridge.adapters.remote.extra import check_online, same_job
from weighbridge.adapters.remote.http import HttpClient, HttpFile
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.limits import MANIFEST
from weighbridge.base.records import dataclass
from weighbridge.io import digest as digests
from weighbridge.io.location import RemotePath, StoredPath
from weighbridge.io.ranges import RangeSource
from weighbridge.io.source import Source

MEDIA: Final = "application/vnd.docker.distribution.manifest.v2+json"
_MEDIA: Final = "application/vnd.ollama.image."
MODEL: Final = f"{_MEDIA}model"
ADAPTER: Final = f"{_MEDIA}adapter"
_HOST, _NAMESPACE, _TAG = "registry.ollama.ai", "library", "latest"
_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")
_HOST_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}")
_GRAMMAR: Final = "write [HOST/][NAMESPACE/]MODEL[:TAG]"


class OllamaName(NamedTuple):
    host: str
    namespace: str
    model: str
    tag: str

    def __str__(self) -> str:
        """As short as Ollama shows it."""
        host = "" if self.host == _HOST else f"{self.host}/"
        namespace = "" if not host and self.namespace == _NAMESPACE else f"{self.namespace}/"
        return f"{host}{namespace}{self.model}:{self.tag}"


class Layer(NamedTuple):
    media: str
    sha256: str
    size: int


@dataclass(frozen=True)
class Manifest:
    """The layers of a model, its config among them, and the bytes of the manifest."""

    layers: tuple[Layer, ...]
    raw: bytes

    @property
    def model(self) -> Layer | None:
        return next((layer for layer in self.layers if layer.media == MODEL), None)

    @property
    def sidecars(self) -> tuple[str, ...]:
        """The kinds of the layers that aren't the weights or the config: template, system, params ..."""
        own = (layer.media for layer in self.layers[1:] if layer.media != MODEL)
        return tuple(dict.fromkeys(media.removeprefix(_MEDIA) for media in own))


def parse_name(text: str) -> OllamaName:
    """Parses a name, with Ollama's defaults (types/model/name.go). Raises UsageError if it is invalid."""
    name = re.sub(r"^https?://", "", text)
    rest, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        rest, tag = name, _TAG
    parts = rest.split("/")
    host, namespace, model = [*(_HOST, _NAMESPACE)[: 3 - len(parts)], *parts][:3] if len(parts) < 4 else ("",) * 3
    valid = _HOST_PART.fullmatch(host) and _PART.fullmatch(namespace) and "." not in namespace
    if not (valid and _PART.fullmatch(model) and _PART.fullmatch(tag)):
        raise UsageError(f"{text!r} isn't a valid Ollama model name", hint=_GRAMMAR)
    return OllamaName(host, namespace, model, tag)


def parse_manifest(raw: bytes, where: str) -> Manifest:
    """Parses a manifest. Raises FormatError if it is invalid."""
    parsed = digests.parse_manifest(raw, where)
    blobs = (parsed.config, *parsed.layers)
    if other := next((blob for blob in blobs if blob.algo != "sha256"), None):
        raise FormatError("a layer without digest and size", path=where, found=other.digest)
    return Manifest(tuple(Layer(blob.media, blob.hex, blob.size) for blob in blobs), raw)


# ------------------------------------------------------------------------------------------------ this machine


def models_folder() -> Path:
    """Where Ollama keeps models: OLLAMA_MODELS, the user's folder, or that of the Linux service."""
    if chosen := os.environ.get("OLLAMA_MODELS"):
        return Path(chosen).expanduser()
    own, service = Path.home() / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")
    return service if not own.is_dir() and service.is_dir() else own


def blob(folder: Path, layer: Layer) -> Path:
    """The file of a layer."""
    return folder / "blobs" / f"sha256-{layer.sha256}"


def local(name: OllamaName) -> Path | None:
    """Returns the path of a model's weights on this machine; None if it isn't here."""
    folder = models_folder()
    path = folder.joinpath("manifests", *name)
    if not path.is_file():
        return None
    manifest = read_manifest(path)
    weights = blob(folder, manifest.model) if manifest.model else None
    adapters = tuple(blob(folder, layer) for layer in manifest.layers if layer.media == ADAPTER)
    if weights is None or not all(file.is_file() for file in (weights, *adapters)):
        raise FormatError("the store has the manifest and not the weights", path=str(path), hint=f"ollama pull {name}")
    stored = StoredPath(weights)
    stored.title, stored.adapters, stored.sidecars = name.model, adapters, manifest.sidecars
    first, *layers = manifest.layers
    parts = [("config", first), *((layer.media.removeprefix(_MEDIA), layer) for layer in layers)]
    stored.parts = tuple((part, blob(folder, layer)) for part, layer in parts)
    return stored


def read_manifest(path: Path) -> Manifest:
    """Reads a manifest of the store. Raises FormatError if it is invalid."""
    if path.stat().st_size > MANIFEST:
        raise FormatError("the manifest is too large", path=str(path), expected=f"at most {MANIFEST} bytes")
    return parse_manifest(path.read_bytes(), str(path))


# ------------------------------------------------------------------------------------------------ registry


class RegistryTree:
    """The weights of a model in a registry, as one file."""

    file: Final = "model.gguf"

    def __init__(self, name: OllamaName) -> None:
        self.title = f"ollama://{name}"
        scheme = "http" if name.host.partition(":")[0] in ("localhost", "127.0.0.1") else "https"
        self.base = f"{scheme}://{name.host}/v2/{name.namespace}/{name.model}"
        self.client = HttpClient(self.base, {"User-Agent": "ollama/0.0 (weighbridge)"},
                                 advice=f"private models are pulled with Ollama's key: ollama pull {name}")  # fmt: skip
        raw = self.client.get(f"{self.base}/manifests/{name.tag}", self.title, MANIFEST, {"Accept": MEDIA})
        manifest = parse_manifest(raw, self.title)
        if manifest.model is None:
            raise FormatError("the model has no weights in one file", path=self.title)
        if any(layer.media == ADAPTER for layer in manifest.layers):
            raise UnsupportedError(
                f"{name} is a model with an adapter, which can be read only from Ollama's store",
                hint=f"ollama pull {name}",
            )
        self.layer, self.sidecars = manifest.model, manifest.sidecars

    def size(self, name: str) -> int | None:
        return self.layer.size if name == self.file else None

    def children(self, folder: str) -> Mapping[str, bool] | None:
        return None if folder else {self.file: False}

    def version(self, name: str) -> str:
        return self.layer.sha256

    def digest(self, name: str) -> tuple[str, str] | None:
        return "sha256", self.layer.sha256

    def open(self, name: str) -> Source:
        if name != self.file:
            raise FileNotFoundError(2, "no such file", f"{self.title}/{name}")
        url = f"{self.base}/blobs/sha256:{self.layer.sha256}"
        return RangeSource(
            HttpFile(self.client, url, f"{self.title}/{name}", self.layer.size, self.layer.sha256, pinned=False)
        )


def name_of(text: str) -> OllamaName:
    """The model of an address, which may also be that of its one file, as reports print it: ollama://NAME:TAG/model.gguf."""
    name = text.partition("://")[2]
    above, _, last = name.rpartition("/")
    return parse_name(above if last == RegistryTree.file and ":" in above.rpartition("/")[2] else name)


def stored_path(text: str) -> Path | None:
    """The weights of `ollama://NAME` in the store on this machine; None if they aren't there."""
    return local(name_of(text))


def to_path(text: str) -> Path:
    """The weights of `ollama://NAME`: here, or in the registry."""
    name = name_of(text)
    if (found := local(name)) is not None:
        return found
    check_online(f"ollama://{name}")
    root = RemotePath.root("ollama://" + "/".join((name.host, name.namespace, name.model, name.tag)),
                           same_job(name, lambda: RegistryTree(name)))  # fmt: skip
    path: Path = root / RegistryTree.file
    return path
