"""A file that is one kind to us and another to a loader: every guest at every offset at which its loader looks, in
every host that has room there. None is data only; and what only looks like a guest's first bytes is no guest."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
import pytest
from tests.reports.scan import vectors as v
from tests.reports.scan.file_vectors import attribute, gguf, hdf5, tarred, zipped

from weighbridge.base.limits import SCAN_PLAIN
from weighbridge.io.source import BytesSource
from weighbridge.reports.scan.engine import scan_file, scan_source
from weighbridge.reports.scan.model import ScanVerdict

_LAMBDA: Final = b'{"config": {"layers": [{"class_name": "Lambda"}]}}'
_ROOM: Final = SCAN_PLAIN + 100_000  # beyond what is seen at one look
_LONG_TAIL: Final = b"0B" + struct.pack("<I", _ROOM) + bytes(_ROOM) + b"."


# ---- hosts: a file with `payload` so that it begins at `offset`; None if the host has no room there


def _bytes_host(head: bytes, tail: bytes, offset: int, payload: bytes) -> bytes | None:
    """A pickle of bytes that hold the payload."""
    start = offset - len(head) - 4
    if start < 0:
        return None
    return head + struct.pack("<I", start + len(payload)) + bytes(start) + payload + tail


def _safetensors(offset: int, payload: bytes) -> bytes | None:
    size = 256 - 8
    if offset < size + 8:
        return None
    count = offset - size - 8 + len(payload)
    text = json.dumps({"w": {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}}).encode()
    return struct.pack("<Q", size) + text.ljust(size) + bytes(offset - size - 8) + payload


def _gguf(offset: int, payload: bytes) -> bytes | None:
    def string(raw: bytes) -> bytes:
        return struct.pack("<Q", len(raw)) + raw

    if offset < 128:
        return None
    count = -(-(offset - 96 + len(payload)) // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + string(b"w") + struct.pack("<IQIQ", 1, count, 24, 0)
    return (head.ljust(96, b"\0") + bytes(offset - 96) + payload).ljust(96 + count, b"\0")


def _npy(offset: int, payload: bytes) -> bytes | None:
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({offset - 128 + len(payload)},), }}".encode()
    head = b"\x93NUMPY\1\0" + struct.pack("<H", 118) + text.ljust(117) + b"\n"
    return None if offset < 128 else head + bytes(offset - 128) + payload


Host = Callable[[int, bytes], bytes | None]
HOSTS: Final[Mapping[str, Host]] = MappingProxyType(
    {
        "a pickle": lambda at, data: _bytes_host(b"\x80\x03B", b".", at, data),
        "a pickle in a frame": lambda at, data: _framed(at, data),
        "a dict of bytes": lambda at, data: _bytes_host(b"\x80\x03}X\1\0\0\0aB", b"s.", at, data),
        "a long pickle": lambda at, data: _bytes_host(b"\x80\x03B", _LONG_TAIL, at, data),
        "safetensors": _safetensors,
        "GGUF": _gguf,
        "npy": _npy,
        "zeros": lambda at, data: bytes(at) + data,
        "an image": lambda at, data: b"\x89PNG\r\n\x1a\n".ljust(at, b"\0") + data if at > 8 else None,
    }
)  # fmt: skip


def _framed(offset: int, payload: bytes) -> bytes | None:
    body = _bytes_host(b"\x80\x04\x95........B", b".", offset, payload)
    return None if body is None else body.replace(b"........", struct.pack("<Q", len(body) - 11), 1)


# ---- guests: what some loader finds there


def _keras(offset: int) -> bytes:
    return hdf5(attribute("model_config", _LAMBDA))


#: Name -> the guest, and the offsets at which its loader looks for it.
GUESTS: Final[Mapping[str, tuple[Callable[[int], bytes], tuple[int, ...]]]] = MappingProxyType(
    {
        "HDF5": (_keras, (512, 1024, 2048, 4096, 8192, 65536, 1 << 17)),
        "a zip": (lambda at: zipped({"x/data.pkl": v.EVIL}), (16, 300, 512, 5000, 70_000)),
        "a zip of Keras": (lambda at: zipped({"config.json": _LAMBDA, "metadata.json": b"{}"}), (16, 512, 5000)),
    }
)


@pytest.mark.parametrize("guest", GUESTS)
@pytest.mark.parametrize("host", HOSTS)
def test_every_guest_at_every_offset_of_every_host(host: str, guest: str, tmp_path: Path) -> None:
    make, offsets = GUESTS[guest]
    if host == "a long pickle" and guest != "HDF5":
        pytest.skip("a zip is at the end of a file")
    met = 0
    for offset in offsets:
        data = HOSTS[host](offset, make(offset))
        if data is None:
            continue
        met += 1
        for name in ("model.pkl", "model.h5", "model"):
            path = tmp_path / name
            path.write_bytes(data)
            assert scan_file(str(path)).verdict.rank > ScanVerdict.UNPROVEN.rank, (host, guest, offset)
    assert met > 1


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_without_a_guest_is_quiet(host: str) -> None:
    """So that the tests above see the guest and no fault of the host."""
    for offset in (512, 1024, 4096):
        data = HOSTS[host](offset, bytes(512))
        if data is not None and host not in ("zeros", "an image"):
            assert scan_source(BytesSource(data), "m.x").verdict is ScanVerdict.DATA_ONLY


@pytest.mark.parametrize(
    "first", [b"GGUF", b"\x93NUMPY", b"PK\x03\x04", b"\x80\x04N.", b"ustar", b"{", b"\x89HDF\r\n\x1a\n"]
)
def test_a_tar_may_begin_with_any_first_bytes(first: bytes) -> None:
    """The name of its first member is at the beginning."""
    data = tarred({first.decode("latin-1"): b"x", "data.pkl": v.EVIL})
    raw = data[:512].replace(first.decode("latin-1").encode(), first, 1)[:512].ljust(512, b"\0")
    total = sum(raw) - sum(raw[148:156]) + 8 * 32
    raw = raw[:148] + f"{total:06o}\0 ".encode() + raw[156:]
    assert scan_source(BytesSource(raw + data[512:]), "m").verdict.rank > ScanVerdict.UNPROVEN.rank


# ---- what only looks like another kind


def _padded(length: int) -> bytes:
    text = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return struct.pack("<Q", length) + text.ljust(length) + struct.pack("<2f", 1.0, 2.0)


@pytest.mark.parametrize("high", [0, 1, 2, 4, 5, 6, 30, 90, 255])
def test_safetensors_of_every_length_of_header(high: int, tmp_path: Path) -> None:
    """Its first bytes may be any opcode of a pickle, PROTO among them."""
    for low in range(256):
        length = high << 8 | low
        if length < 96:
            continue
        data = _padded(length)
        for name in ("model.safetensors", "model.bin", "model"):
            report = scan_source(BytesSource(data), name)
            assert (report.kind, report.verdict, report.findings, report.complete) == (
                "safetensors", ScanVerdict.DATA_ONLY, (), True), (length, name)  # fmt: skip


def test_counts_that_look_like_a_pickle() -> None:
    """The entries of an importance matrix are counted in the first four bytes."""
    for count in (0x280, 0x380, 0x480, 0x580):
        entry = struct.pack("<i", 3) + b"w.0" + struct.pack("<ii", 1, 1) + struct.pack("<f", 1.0)
        report = scan_source(BytesSource(struct.pack("<i", count) + entry * count), "imatrix.dat")
        assert report.verdict is ScanVerdict.DATA_ONLY


def test_a_polyglot_of_safetensors_and_a_pickle_is_both() -> None:
    """A header's length may be opcodes that are one pickle with the header."""
    body = b'V\0\0\0\0\0\0\0{"w": {"dtype": "U8", "shape": [31], "data_offsets": [0, 31]}}'.ljust(93) + b"\n0" + v.EVIL0
    assert scan_source(BytesSource(body), "m.safetensors").verdict.rank > ScanVerdict.UNPROVEN.rank


def test_empty_arrays_and_small_numbers() -> None:
    for data in (pickle.dumps(np.arange(3)), gguf({}), np.array([1, 2], np.float16).tobytes()):
        assert scan_source(BytesSource(data), "m.gguf").verdict.rank <= ScanVerdict.DATA_ONLY.rank
