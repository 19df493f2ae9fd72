"""Invariant: any bytes give one array inside the file, or a Format-, Unsupported- or RefusedError; regions cover."""

from __future__ import annotations

import sys

import harness
from tests.containers.regions import check_regions

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.spec import Spec
from weighbridge.containers.numpy import npy
from weighbridge.io.source import BytesSource


def target(data: bytes) -> None:
    source = BytesSource(data)
    check_regions(npy.regions(source), len(data))
    (entry,) = npy.parse(source)
    assert entry.offset + entry.nbytes <= len(data)
    assert entry.spec.nbytes == entry.nbytes


def seeds() -> list[bytes]:
    layouts = [npy.layout([("x", Spec((2, 3), BY_NAME[name]))]) for name in ("F32", "BOOL", "C128", "U16")]
    good = [layout.pieces[0][1].ljust(layout.size, b"\1") for layout in layouts]
    wide = good[0][:6] + b"\2\0" + (len(good[0]) - 34).to_bytes(4, "little") + good[0][10:]
    fortran = good[0].replace(b"False, ", b"True,  ").replace(b"<f4", b">f4")
    return [*good, wide, fortran, good[0].replace(b"<f4", b"|O8"), good[0].replace(b"'<f4'", b"[(\"a\",'<f4')]")]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds))
