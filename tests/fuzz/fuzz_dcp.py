"""Invariant: any bytes of .metadata, over any data files, give tensors that can be read, or a WeighbridgeError."""

from __future__ import annotations

import sys
import zipfile
from contextlib import suppress

import harness
from tests.conformance.samples import dcp_metadata
from tests.containers.dcp_cases import GOLDEN

from weighbridge.base.errors import WeighbridgeError
from weighbridge.containers.torch import dcp
from weighbridge.io.source import BytesSource, Source
from weighbridge.models.distributed import chunk_index, chunked, different_copies

_MOST = 1 << 20  # bytes of a tensor that is read
_SPLIT = b"\0distcp\0"


def _files() -> dict[str, bytes]:
    with zipfile.ZipFile(GOLDEN) as archive:
        return {
            name.partition("/")[2]: archive.read(name) for name in archive.namelist() if name.startswith("threads/")
        }


FILES = _files()
METADATA = FILES.pop(dcp.METADATA)


def target(data: bytes) -> None:
    """`data`: `.metadata`, perhaps followed by the first data file."""
    listed, split, first = data.partition(_SPLIT)
    sources: dict[str, Source] = {name: BytesSource(raw) for name, raw in FILES.items()}
    if split:
        sources["__0_0.distcp"] = BytesSource(first)
    with suppress(WeighbridgeError):
        metadata = dcp.inspect(BytesSource(listed))
        assert all(name and "/" not in name and "\\" not in name for name in metadata.files)
        for name, source in sources.items():
            index, _ = chunk_index(metadata, name, source)
            for entry in index:
                index.files[entry.file].check(entry.offset, entry.nbytes)
        for name, tensor in metadata.tensors.items():
            if tensor.spec.nbytes <= _MOST:
                with suppress(WeighbridgeError, KeyError):  # a data file that doesn't exist
                    whole = chunked(name, tensor, sources.__getitem__)
                    node = whole.node()
                    assert node.spec == tensor.spec
                    assert node.read_all().nbytes == tensor.spec.nbytes
                    different_copies(whole)


def seeds() -> list[bytes]:
    return [*dcp_metadata(), METADATA, METADATA + _SPLIT + FILES["__0_0.distcp"]]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds))
