"""Layouts of blobs, made by code after the specifications: OCI's image layout, Docker's store and archive, and the
manifests of ORAS, Docker, KitOps, ModelPack, Ollama and container images."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
TITLE = "org.opencontainers.image.title"
FILEPATH = "org.cncf.model.filepath"
REF = "org.opencontainers.image.ref.name"


def tarred(files: Mapping[str, bytes], links: Mapping[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return out.getvalue()


class Layer(NamedTuple):
    """`key`: the annotation with the title."""

    media: str
    data: bytes
    title: str = ""
    key: str = TITLE
    annotations: Mapping[str, str] = {}


class Blobs:
    """The files of a layout by name."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def add(self, media: str, data: bytes, algo: str = "sha256", **more: Any) -> dict[str, Any]:
        """Adds a blob and returns its descriptor."""
        digest = hashlib.new(algo, data).hexdigest()
        self.files[f"blobs/{algo}/{digest}"] = data
        return {"mediaType": media, "digest": f"{algo}:{digest}", "size": len(data), **more}

    def manifest(
        self, layers: Iterable[Layer], config: str = "application/vnd.oci.empty.v1+json", algo: str = "sha256",
        **more: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Adds a manifest with its blobs and returns its descriptor."""
        rows = []
        for layer in layers:
            texts = {**({layer.key: layer.title} if layer.title else {}), **layer.annotations}
            rows.append(self.add(layer.media, layer.data, algo, **({"annotations": texts} if texts else {})))
        data = {
            "schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": self.add(config, b"{}"), "layers": rows, **more
        }  # fmt: skip
        return self.add(OCI_MANIFEST, json.dumps(data).encode())

    def index(self, *rows: Mapping[str, Any], name: str = "") -> dict[str, Any]:
        """The JSON of an index; with a name its descriptor as a blob."""
        data = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": list(rows)}
        return self.add(OCI_INDEX, json.dumps(data).encode(), annotations={REF: name}) if name else data

    def layout(self, *rows: Mapping[str, Any]) -> dict[str, bytes]:
        """The files of an OCI image layout whose index has these rows."""
        index = json.dumps(self.index(*rows)).encode()
        return {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": index, **self.files}


def tagged(row: dict[str, Any], ref: str, **texts: str) -> dict[str, Any]:
    return {**row, "annotations": {REF: ref, **texts}}


def write(files: Mapping[str, bytes], folder: Path) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


class Parts(NamedTuple):
    """A model: one GGUF; the same as a GGUF of two splits; a safetensors file with its config."""

    gguf: bytes
    splits: tuple[bytes, ...]
    safetensors: bytes
    config: bytes


def _oci(layers: Iterable[Layer], config: str = "application/vnd.oci.empty.v1+json", **more: Any) -> dict[str, bytes]:
    blobs = Blobs()
    return blobs.layout(tagged(blobs.manifest(layers, config, **more), "latest"))


_DOCKER = "application/vnd.docker.ai."
_DOCKER_1, _DOCKER_2 = f"{_DOCKER}model.config.v0.1+json", f"{_DOCKER}model.config.v0.2+json"
_KIT, _KIT_CONFIG = "application/vnd.kitops.modelkit.", "application/vnd.kitops.modelkit.config.v1+json"
_CNCF = "application/vnd.cncf.model."
_PACK = {"config": f"{_CNCF}config.v1+json", "artifactType": f"{_CNCF}manifest.v1+json"}
_IMAGE, _ROOT = "application/vnd.oci.image.config.v1+json", "application/vnd.oci.image.layer.v1.tar"
_OLLAMA = "application/vnd.ollama.image."


def _docker_store(parts: Parts) -> dict[str, bytes]:
    blobs = Blobs()
    row = blobs.manifest([Layer(f"{_DOCKER}gguf.v3", parts.gguf)], _DOCKER_1)
    algo, _, digest = row["digest"].partition(":")
    raw = blobs.files.pop(f"blobs/{algo}/{digest}")
    models = {"models": [{"id": row["digest"], "tags": ["ai/tiny:latest"], "files": []}]}
    return {
        "layout.json": b'{"version": "1.0.0"}', "models.json": json.dumps(models).encode(),
        f"manifests/{algo}/{digest}": raw, **blobs.files,
    }  # fmt: skip


def _docker_archive(parts: Parts) -> dict[str, bytes]:
    blobs = Blobs()
    row = blobs.manifest([Layer(f"{_DOCKER}gguf.v3", parts.gguf)], _DOCKER_1)
    raw = blobs.files.pop(f"blobs/{row['digest'].replace(':', '/')}")
    return {"manifest.json": raw, **blobs.files}


def _image(parts: Parts) -> list[Layer]:
    """Layers of which the second hides a file of the first and replaces another, and the third a whole folder."""
    return [
        Layer(_ROOT, tarred({
            "models/model.safetensors": b"old", "models/broken.safetensors": b"x", "tmp/a.gguf": b"y"})),
        Layer(f"{_ROOT}+gzip", gzip.compress(tarred({
            "models/model.safetensors": parts.safetensors, "models/.wh.broken.safetensors": b""}))),
        Layer(_ROOT, tarred({"tmp/.wh..wh..opq": b"", "models/config.json": parts.config})),
        Layer(_ROOT, bytes(1024)),
    ]  # fmt: skip


def _platforms(parts: Parts) -> dict[str, bytes]:
    """An index in the index, with a manifest for one platform and its attestation."""
    blobs = Blobs()
    image = blobs.manifest(_image(parts), _IMAGE)
    proof = blobs.manifest([Layer("application/vnd.in-toto+json", b"{}")], _IMAGE)
    marks = {"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": image["digest"]}
    row = blobs.index(
        {**image, "platform": {"os": "linux", "architecture": "arm64"}}, {**proof, "annotations": marks}, name="latest"
    )
    return blobs.layout(row)


def _signed(parts: Parts) -> dict[str, bytes]:
    """A model, twice by name, and a signature that refers to it."""
    blobs = Blobs()
    row = blobs.manifest([Layer("application/octet-stream", parts.gguf, "model.gguf")])
    signature = blobs.manifest([Layer("application/vnd.dev.sigstore.bundle.v0.3+json", b"{}")], subject=row)
    return blobs.layout(tagged(row, "latest"), tagged(row, "v1"), signature)


def _folder(parts: Parts, media: str, key: str) -> list[Layer]:
    return [
        Layer(media, parts.safetensors, "model.safetensors", key),
        Layer(media, parts.config, "config.json", key),
    ]  # fmt: skip


def zstd(data: bytes) -> bytes:
    import pytest

    packed: bytes = pytest.importorskip("backports.zstd").compress(data)
    return packed


#: Name -> the files of a layout with a model of `Parts`.
LAYOUTS: dict[str, Callable[[Parts], dict[str, bytes]]] = {
    "generic": lambda p: _oci([Layer("application/octet-stream", p.gguf, "model.gguf")]),
    "untitled": lambda p: _oci([Layer("application/octet-stream", p.gguf)]),
    "empty layer": lambda p: _oci([
        Layer("application/vnd.oci.empty.v1+json", b"{}"), Layer("application/octet-stream", p.gguf, "model.gguf")]),
    "sha512": lambda p: _oci([Layer("application/octet-stream", p.gguf, "model.gguf")], algo="sha512"),
    "oras-files": lambda p: _oci(_folder(p, _ROOT, TITLE)),
    "oras-folder": lambda p: _oci([
        Layer(f"{_ROOT}+gzip", gzip.compress(tarred({"m/model.safetensors": p.safetensors, "m/config.json": p.config})),
              "m", annotations={"io.deis.oras.content.unpack": "true"})]),
    "docker": lambda p: _oci([Layer(f"{_DOCKER}gguf.v3", p.gguf), Layer(f"{_DOCKER}license", b"MIT"),
                              Layer(f"{_DOCKER}chat.template.jinja", b"{{ messages }}")], _DOCKER_1),
    "docker-splits": lambda p: _oci([Layer(f"{_DOCKER}gguf.v3", part) for part in p.splits], _DOCKER_1),
    "docker-safetensors": lambda p: _oci([
        Layer(f"{_DOCKER}safetensors", p.safetensors),
        Layer(f"{_DOCKER}vllm.config.tar", tarred({"config.json": p.config}))], _DOCKER_1),
    "docker-files": lambda p: _oci([
        Layer(f"{_DOCKER}safetensors", p.safetensors, "text_encoder/model.safetensors", FILEPATH),
        Layer(f"{_DOCKER}model.file", p.config, "text_encoder/config.json", FILEPATH)], _DOCKER_2),
    "docker-store": _docker_store,
    "docker-archive": _docker_archive,
    "modelkit": lambda p: _oci([
        Layer(f"{_KIT}model.v1.tar", tarred({"./model.safetensors": p.safetensors})),
        Layer(f"{_KIT}modelpart.v1.tar+gzip", gzip.compress(tarred({"config.json": p.config}))),
        Layer(f"{_KIT}docs.v1.tar+zstd", zstd(tarred({"README.md": b"hi"}))),
        Layer(f"{_KIT}dataset.v1.tar", b"no tar, never read")], _KIT_CONFIG),
    "modelpack": lambda p: _oci([
        *_folder(p, f"{_CNCF}weight.v1.raw", FILEPATH),
        Layer(f"{_CNCF}doc.v1.tar", tarred({"LICENSE": b"MIT"}), "LICENSE", FILEPATH)], **_PACK),
    "modelpack-tar": lambda p: _oci([
        Layer(f"{_CNCF}weight.v1.tar+zstd", zstd(tarred({"model.safetensors": p.safetensors})), "model.safetensors",
              FILEPATH),
        Layer(f"{_CNCF}weight.config.v1.tar", tarred({"config.json": p.config}), "config.json", FILEPATH)], **_PACK),
    "ollama": lambda p: _oci([Layer(f"{_OLLAMA}model", p.gguf), Layer(f"{_OLLAMA}params", b"{}"),
                              Layer(f"{_OLLAMA}license", b"MIT")],
                             "application/vnd.docker.container.image.v1+json"),
    "image": lambda p: _oci(_image(p), _IMAGE),
    "platforms": _platforms,
    "signed": _signed,
}  # fmt: skip
