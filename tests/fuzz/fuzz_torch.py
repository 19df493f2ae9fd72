"""Invariant: any bytes give tensors that lie in the file, or a Format- or UnsupportedError; regions cover."""

from __future__ import annotations

import io
import struct
import sys
import zipfile

import harness

from weighbridge.base.limits import MIB
from weighbridge.containers.base import check_regions
from weighbridge.containers.torch import legacy as torch_legacy
from weighbridge.containers.torch import zip as torch_zip
from weighbridge.io.source import BytesSource

_TREE = b"\x80\x02}(X\1\0\0\0a%sX\1\0\0\0b%sX\1\0\0\0n]K\1au."
_TENSOR = (
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpuK\x0c%stQ"
    b"K\0(K\3K\4t(K%cK%ct\x89ccollections\nOrderedDict\n)RtR"
)


def _tree(view: bytes) -> bytes:
    return _TREE % (_TENSOR % (view, 4, 1), _TENSOR % (view, 1, 3))


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


def zipped(method: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("x/data.pkl", _tree(b""))
        archive.writestr("x/byteorder", b"little")
        archive.writestr("x/data/0", bytes(48))
    return out.getvalue()


def legacy() -> bytes:
    head = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}."
    return head + _tree(b"N") + b"\x80\x02]X\1\0\0\x000a." + struct.pack("<q", 12) + bytes(48)


def seeds() -> list[bytes]:
    return [zipped(zipfile.ZIP_STORED), zipped(zipfile.ZIP_DEFLATED), legacy()]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds()))
