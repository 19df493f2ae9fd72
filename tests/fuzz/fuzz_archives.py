"""Invariant: any bytes are a tree of files whose data can be read, or a Format-, Unsupported- or RefusedError; and so
are the models of a layout of blobs in it."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from unittest.mock import patch

import harness

from weighbridge.base.errors import RefusedError
from weighbridge.base.limits import MIB
from weighbridge.containers.archive import oci, spool, wrapped
from weighbridge.containers.sniff.detect import sniff
from weighbridge.io.source import BytesSource

_FILES = {"model/config.json": b"{}", "model/model.safetensors": bytes(2000), "a": b""}


@contextmanager
def context() -> Iterator[None]:
    """A limit that bombs reach quickly."""
    with patch.object(spool, "SPOOL", 4 * MIB):
        yield


def target(data: bytes) -> None:
    source = BytesSource(data, "fuzz.tar.gz")
    format = sniff(source).format
    if format not in wrapped.WRAPPERS or format in ("7z", "xz"):  # py7zr has tests; xz needs more memory
        return
    tree = wrapped.open_tree(source, format, "fuzz.tar.gz", "1")
    check(tree)
    folder = oci.LayoutFolder("fuzz", tree.size, tree.open)
    if (marker := oci.marker_of(folder)) is not None:
        for model in oci.listing_of(folder, marker).models:
            assert not model.name.startswith(("/", "../")), model.name
            contents = oci.contents_of(folder, oci.manifest_of(folder, model))
            check(wrapped.WrappedTree(contents, "a layout", "fuzz", "1"))


def check(tree: wrapped.WrappedTree) -> None:
    """Reads every file, and lists every folder."""
    for name in tree.files:
        assert not name.startswith(("/", "../")), name
        with tree.open(name) as file:
            assert file.size == tree.size(name)
            with suppress(RefusedError):
                file.read(0, min(file.size, MIB))
    assert all(tree.children(name) is not None for name, is_folder in (tree.children("") or {}).items() if is_folder)


def seeds() -> list[bytes]:
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive, tarfile.open(fileobj=tarred, mode="w") as tar:
        for name, data in _FILES.items():
            archive.writestr(name, data)
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "model/config.json"
        tar.addfile(link)
    data = tarred.getvalue()
    return [zipped.getvalue(), data, gzip.compress(data), bz2.compress(data), *layouts(data)]


def layouts(model: bytes) -> Iterator[bytes]:
    """Tars of layouts with a file, a tar and an index in the index."""
    files: dict[str, bytes] = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}

    def blob(media: str, data: bytes, **more: object) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        files[f"blobs/sha256/{digest}"] = data
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(data), **more}

    layer = blob("application/vnd.oci.image.layer.v1.tar", model)
    weights = blob("application/vnd.docker.ai.gguf.v3", b"GGUF" + bytes(60))
    manifest = {"config": blob("application/vnd.oci.empty.v1+json", b"{}"), "layers": [layer, weights]}
    row = blob("application/vnd.oci.image.manifest.v1+json", json.dumps(manifest).encode())
    index = blob("application/vnd.oci.image.index.v1+json", json.dumps({"manifests": [row]}).encode(),
                 annotations={"org.opencontainers.image.ref.name": "a/b:1"})  # fmt: skip
    for rows in ([row], [index, row]):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for name, data in {**files, "index.json": json.dumps({"manifests": rows}).encode()}.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        yield out.getvalue()


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds, context=context))
