"""A reader of Ollama's store, written from its documentation: manifests of Docker's schema 2 whose layers have media
types of their own, blobs by SHA-256."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

LAYERS = {
    *("model", "projector", "adapter", "draft", "template", "system", "params", "messages", "license"),
}


class Stored(NamedTuple):
    config: dict[str, Any]
    layers: list[tuple[str, bytes]]
    size: int

    def one(self, part: str) -> bytes | None:
        found = [data for name, data in self.layers if name == part]
        assert len(found) <= 1, f"{len(found)} layers {part}"
        return found[0] if found else None


def read(root: Path, model: str, tag: str = "latest", namespace: str = "library") -> Stored:
    """The model. AssertionError for what Ollama wouldn't take."""
    path = root / "manifests" / "registry.ollama.ai" / namespace / model / tag
    manifest = json.loads(path.read_bytes())
    assert manifest["schemaVersion"] == 2
    assert manifest["mediaType"] == "application/vnd.docker.distribution.manifest.v2+json"
    assert manifest["config"]["mediaType"] == "application/vnd.docker.container.image.v1+json"
    config = json.loads(_blob(root, manifest["config"]))
    layers = [(_part(layer), _blob(root, layer)) for layer in manifest["layers"]]
    assert sum(name == "model" for name, _ in layers) == 1
    assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]
    assert config["model_format"] == "gguf"
    for name in ("model_family", "model_families", "model_type", "file_type", "architecture", "os"):
        assert config[name], name
    return Stored(config, layers, sum(layer["size"] for layer in (manifest["config"], *manifest["layers"])))


def _part(layer: dict[str, Any]) -> str:
    found = re.fullmatch(r"application/vnd\.ollama\.image\.(\w+)", layer["mediaType"])
    assert found
    assert found[1] in LAYERS
    return found[1]


def _blob(root: Path, layer: dict[str, Any]) -> bytes:
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", layer["digest"])
    path = root / "blobs" / layer["digest"].replace(":", "-")
    data = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o644
    assert (len(data), hashlib.sha256(data).hexdigest()) == (layer["size"], layer["digest"][7:])
    return data


def files(root: Path) -> set[str]:
    """Everything in the store, by path."""
    return {p.relative_to(root).as_posix() for p in root.rglob("*")}
