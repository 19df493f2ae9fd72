"""Invariant: any bytes give tensors that lie in the file, or a Format- or UnsupportedError; regions cover."""

from __future__ import annotations

import sys
import zipfile

import harness
from tests.conformance import samples
from tests.containers.regions import check_regions

from weighbridge.base.limits import MIB
from weighbridge.containers.torch import legacy as torch_legacy
from weighbridge.containers.torch import zip as torch_zip
from weighbridge.io.source import BytesSource


def target(data: bytes) -> None:
    module = torch_zip if data[:2] == b"PK" else torch_legacy
    check_regions(module.regions(BytesSource(data)), len(data))
    index = module.parse(BytesSource(data))
    for e in index:
        source = index.files[e.file]
        source.check(e.offset, e.nbytes)
        source.read(e.offset, min(e.nbytes, MIB))
        reach = 1 + sum((n - 1) * s for n, s in zip(e.shape, e.strides or (), strict=bool(e.strides)))
        size = 0 if 0 in e.shape else reach * e.dtype.size if e.strides else e.spec.nbytes
        assert e.nbytes == size


def seeds() -> list[bytes]:
    return [samples.torch_zip(), samples.torch_zip(zipfile.ZIP_DEFLATED), samples.torch_legacy()]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds))
