"""Invariant: any bytes give arrays that can be read, or a Format-, Unsupported- or RefusedError; regions cover."""

from __future__ import annotations

import io
import sys
import zipfile
import zlib

import harness
from tests.containers.regions import check_regions

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.limits import MIB
from weighbridge.base.spec import Spec
from weighbridge.containers.numpy import npz
from weighbridge.io.source import BytesSource


def target(data: bytes) -> None:
    source = BytesSource(data)
    check_regions(npz.regions(source), len(data))
    index = npz.parse(source)
    for e in index:
        assert e.spec.nbytes == e.nbytes
        assert e.offset + e.nbytes <= index.files[e.file].size
        index.files[e.file].read(e.offset, min(e.nbytes, MIB))


def stored() -> bytes:
    layout = npz.layout([(name, Spec((3, 5), BY_NAME[name])) for name in ("F32", "U8", "I64")])
    out = bytearray(layout.size)
    assert layout.fixups is not None
    for pieces in (layout.pieces, layout.fixups({s.name: zlib.crc32(bytes(s.spec.nbytes)) for s in layout.slots})):
        for at, piece in pieces:
            out[at : at + len(piece)] = piece
    return bytes(out)


def deflated(method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(stored())) as good, zipfile.ZipFile(out, "w", method) as archive:
        for name in good.namelist():
            with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
                member.write(good.read(name))
        archive.writestr("note.txt", "x" * 100, method)
    return out.getvalue()


def seeds() -> list[bytes]:
    return [stored(), deflated(), deflated(zipfile.ZIP_STORED), deflated(zipfile.ZIP_BZIP2)]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds))
