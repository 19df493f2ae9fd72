"""Invariant: any bytes are the manifest of a database of Orbax, of which every value is found or the damage named, or
the metadata of an array of zarr."""

from __future__ import annotations

import sys
import zipfile

import harness
from tests.containers.framework_files import GOLDEN

from weighbridge.base.errors import FormatError
from weighbridge.containers.formats import OCDBT_FILE, OCDBT_MANIFEST
from weighbridge.containers.zarr.arrays import read_array
from weighbridge.containers.zarr.chunks import DecodedPieces, StoredPiece
from weighbridge.containers.zarr.ocdbt import StoredValue, read_database
from weighbridge.io.source import BytesSource, Source
from weighbridge.models.orbax import pieces_of, place_pieces

_MOST = 64  # pieces of an array
with zipfile.ZipFile(GOLDEN.with_name("orbax.zip")) as _archive:
    _FILES = {name: _archive.read(name) for name in _archive.namelist() if name.startswith(("plain/", "files3/"))}
#: The database's one root node, which is damaged as well: it follows the manifest in an input.
_ROOT = next(name for name in _FILES if name.startswith("plain/d/"))
_VALUES = {
    name.removeprefix("files3/"): StoredValue(name.removeprefix("files3/"), 0, len(data))
    for name, data in _FILES.items() if name.startswith("files3/")
}  # fmt: skip
_PLAIN = b'{"zarr_format":2,"shape":[4],"chunks":[2],"order":"C","compressor":null,"dtype":"<f4","fill_value":0}'
_SIZE = len(_FILES[f"plain/{OCDBT_FILE}"])


def target(data: bytes) -> None:
    if data[:4] != OCDBT_MANIFEST:
        array = read_array("w", data, "w")
        stored: list[StoredPiece] = []
        place_pieces(pieces_of(array, _VALUES, False, "root"), stored)
        pieces = DecodedPieces("root", stored, lambda name: BytesSource(_FILES[f"files3/{name}"]))
        for piece in stored[:_MOST]:
            try:
                pieces.read(piece.start, min(piece.size, 1 << 16))
            except FormatError:
                continue
        return

    def file(name: str) -> Source:
        if f"plain/{name}" == _ROOT:
            return BytesSource(data[_SIZE:], name)
        if f"plain/{name}" not in _FILES:
            raise FormatError("missing", path=name)
        return BytesSource(_FILES[f"plain/{name}"], name)

    values = read_database(BytesSource(data[:_SIZE]), file)
    assert sum(len(key) for key in values) <= 256 * (len(data) + 1000)


def seeds() -> list[bytes]:
    return [_FILES[f"plain/{OCDBT_FILE}"] + _FILES[_ROOT], _FILES["files3/w/zarr.json"], _PLAIN]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds))
