"""Invariant: any bytes are a file of ZipNN, or a model with tensors in its code or DFloat11's, of which each part is
decoded or refused, in memory that the file's bytes bound."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import harness
from tests.containers.framework_files import GOLDEN

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.containers import opening
from weighbridge.containers.formats import DFLOAT11
from weighbridge.containers.safetensors import container
from weighbridge.containers.zipnn.container import original
from weighbridge.containers.zipnn.stream import SIGN
from weighbridge.io.source import BytesSource, Source
from weighbridge.models.dfloat11 import decoded
from weighbridge.models.locate import Place
from weighbridge.models.model import OpenModel

_READ = 1 << 14
with zipfile.ZipFile(GOLDEN.with_name("coded.zip")) as _archive:
    _FILES = {name: _archive.read(name) for name in _archive.namelist()}
_CONFIG = {"config.json": _FILES["df11-blocks/config.json"]}


def read(source: Source) -> None:
    """Some bytes at both ends and in the middle."""
    size = min(_READ, source.size)
    for at in (0, (source.size - size) // 2, source.size - size):
        try:
            assert len(source.read(at, size)) == size
        except (FormatError, UnsupportedError):
            continue


def target(data: bytes) -> None:
    source = BytesSource(data)
    if data[:3] == SIGN:
        read(original(source))
        opening.parse(source)
        return
    index = container.parse(source)
    if any(entry.name.endswith(DFLOAT11) for entry in index):
        index = decoded(OpenModel(Place(Path(), (), Path()), index, texts=_CONFIG)).index
    for file in index.files[1:]:
        read(file)


def with_fewer(data: bytes, count: int) -> bytes:
    """A Safetensors file with its first tensors only: one that is damaged more often."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    rows = sorted((row["data_offsets"], name) for name, row in header.items() if name != "__metadata__")[:count]
    kept = {name: header[name] for name in ("__metadata__", *(name for _, name in rows))}
    text = json.dumps(kept).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + size : 8 + size + rows[-1][0][1]]


def seeds() -> list[bytes]:
    names = ("plain.bfloat16.safetensors.znn", "plain.float32.streams.safetensors.znn")
    return [*(_FILES[name] for name in names), with_fewer(_FILES["plain.znn.safetensors"], 5),
            _FILES["df11-blocks/model.safetensors"]]  # fmt: skip


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds))
