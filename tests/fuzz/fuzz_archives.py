"""Invariant: any bytes are a tree of files whose data can be read, or a Format-, Unsupported- or RefusedError."""

from __future__ import annotations

import bz2
import gzip
import io
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from unittest.mock import patch

import harness

from weighbridge.base.errors import RefusedError
from weighbridge.base.limits import MIB
from weighbridge.containers.archive import spool, wrapped
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
    return [zipped.getvalue(), data, gzip.compress(data), bz2.compress(data)]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds, context=context))
