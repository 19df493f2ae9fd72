"""Invariant: any bytes give members that lie apart in the file, or an error of ours; zipfile reads the same bytes."""

from __future__ import annotations

import contextlib
import io
import struct
import sys
import zipfile
import zlib

import harness

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import MIB
from weighbridge.containers.archive import zip as zips
from weighbridge.containers.archive import zip_write
from weighbridge.io.source import BytesSource

# What zipfile raises for what it doesn't read; its own view is then none.
_THEIRS = (
    zipfile.BadZipFile,
    NotImplementedError,
    RuntimeError,
    EOFError,
    zlib.error,
    OSError,
    ValueError,
    struct.error,
)


def target(data: bytes) -> None:
    source = BytesSource(data)
    archive = zips.read(source)
    end = 0
    for m in archive.members:
        assert end <= m.at < m.start <= m.start + m.packed <= m.end <= archive.tail
        end = m.end
    mine = {m.name: _bytes(source, m) for m in archive.members}
    for name, theirs in _theirs(data).items():
        # zipfile cuts a name at a NUL and turns its own separator round; neither is in a name that we take.
        assert name in mine, (name, sorted(mine))
        assert theirs is None or mine[name] is None or mine[name] == theirs, name


def _bytes(source: BytesSource, member: zips.ZipMember) -> bytes | None:
    with contextlib.suppress(FormatError), zips.open_member(source, member) as inner:
        return inner.read(0, min(inner.size, MIB))
    return None


def _theirs(data: bytes) -> dict[str, bytes | None]:
    """Member -> its first bytes as zipfile reads them (None where it can't)."""
    out: dict[str, bytes | None] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for info in archive.infolist():
                out[info.filename] = None
                with contextlib.suppress(*_THEIRS), archive.open(info) as member:
                    out[info.filename] = member.read(MIB)
    except _THEIRS:
        return {}
    return out


def seeds() -> list[bytes]:
    return [_zip(zipfile.ZIP_STORED), _zip(zipfile.ZIP_DEFLATED), _streamed(), _zip64()]


def _zip(method: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr("x/data.pkl", b"\x80\x02}." * 20)
        archive.writestr("x/\u00e9", b"")
        archive.writestr("x/data/0", bytes(48))
        archive.comment = b"c"
    return out.getvalue()


class _Pipe(io.RawIOBase):
    """What can't seek: zipfile then writes descriptors, as torch does."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        piece = bytes(data)  # type: ignore[call-overload]
        self.data += piece
        return len(piece)


def _streamed() -> bytes:
    pipe = _Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("a", b"one")
        archive.writestr("b", b"two")
    return bytes(pipe.data)


def _zip64() -> bytes:
    """Two stored members as Weighbridge writes them, with the zip64 records that only large ones need."""
    layout = zip_write.archive_layout("zip", [zip_write.NewMember("a", b"12345"), zip_write.NewMember("b")], 64)
    assert layout.fixups
    whole = bytearray(layout.size)
    for at, piece in (*layout.pieces, *layout.fixups({})):
        whole[at : at + len(piece)] = piece
    start, end, count = whole.index(b"PK\1\2"), len(whole) - 22, 2
    data, directory, size = bytes(whole[:start]), bytes(whole[start:end]), end - start
    wide = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, start)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, start + size, 1)
    plain = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return data + directory + wide + locator + plain


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds))
