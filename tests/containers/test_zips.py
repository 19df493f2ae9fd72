"""Zip archives at their edges: 64-bit numbers everywhere, faults in them, names, bytes in front. zipfile writes the
good ones, and is made to believe that everything is large."""

from __future__ import annotations

import io
import struct
import zipfile
from typing import Any

import numpy as np
import pytest
from tests.containers.regions import check_regions
from tests.reports.makers import npy

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.containers.archive import zip as zips
from weighbridge.containers.archive import zip_write
from weighbridge.containers.numpy import npz
from weighbridge.io.source import BytesSource

ARRAYS = {"a": np.arange(6, dtype="<f4"), "b": np.arange(40, dtype="<i8").reshape(5, 8)}


def archive(arrays: dict[str, Any] = ARRAYS, front: bytes = b"") -> bytes:
    out = io.BytesIO(front)
    out.seek(len(front))
    with zipfile.ZipFile(out, "a" if front else "w") as made:
        for name, array in arrays.items():
            with made.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                member.write(npy(array))
    return out.getvalue()


def large(limit: int = 10) -> bytes:
    """An archive in which every size, offset and count stands in 64-bit fields."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zipfile, "ZIP64_LIMIT", limit)
        patch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
        return archive()


LARGE = large()
END = LARGE.rindex(b"PK\x05\x06")
LOCATOR = END - 20
END64 = LOCATOR - 56
ENTRY = LARGE.index(b"PK\x01\x02")
EXTRA = ENTRY + 46 + len("a.npy")


def read(data: bytes) -> dict[str, Any]:
    source = BytesSource(data, "f.npz")
    check_regions(npz.regions(source), len(data))
    index = npz.parse(source)
    raw = {e.name: index.files[e.file].read(e.offset, e.nbytes) for e in index}
    return {e.name: np.frombuffer(raw[e.name], e.dtype.numpy).reshape(e.shape) for e in index}


def patched(at: int, data: bytes) -> bytes:
    return LARGE[:at] + data + LARGE[at + len(data) :]


@pytest.mark.parametrize("limit", [10, 100, 200, 400, 600, 1000])
def test_every_mixture_of_64_bit_fields(limit: int) -> None:
    data = large(limit)
    for name, array in read(data).items():
        np.testing.assert_array_equal(array, ARRAYS[name])
    assert zips.read(BytesSource(data)).tail in (END64, len(data) - 22 - 20 - 56)


def test_the_marks_are_where_the_faults_are_set() -> None:
    assert LARGE[LOCATOR : LOCATOR + 4] == b"PK\x06\x07"
    assert LARGE[END64 : END64 + 4] == b"PK\x06\x06"
    assert LARGE[EXTRA : EXTRA + 4] == struct.pack("<HH", 1, 24 if LARGE[ENTRY + 42] == 0xFF else 16)


FAULTS: dict[str, tuple[bytes, str]] = {
    "64-bit end record beyond the file": (patched(LOCATOR + 8, b"\xff" * 8), "is outside the file"),
    "64-bit end record over its locator": (patched(LOCATOR + 8, struct.pack("<Q", LOCATOR - 8)), "is outside the file"),
    "64-bit end record elsewhere": (patched(LOCATOR + 8, struct.pack("<Q", END64 - 1)), "is damaged"),
    "64-bit end record without mark": (patched(END64, b"X"), "is damaged"),
    "64-bit end record too long": (patched(END64 + 4, struct.pack("<Q", 45)), "is damaged"),
    "no locator": (patched(LOCATOR, b"X"), "isn't at the place in the end record"),
    "64-bit count of 2^63": (patched(END64 + 24, struct.pack("<QQ", 2**63, 2**63)), "count is wrong|differ"),
    "64-bit directory of 2^63 bytes": (patched(END64 + 40, struct.pack("<Q", 2**63)), "isn't where|differ"),
    "64-bit volume": (patched(END64 + 16, b"\1"), "end records differ"),
    "counts differ": (patched(END + 8, struct.pack("<HH", 7, 7)), "end records differ"),
    "start differs": (patched(END + 16, struct.pack("<I", 7)), "end records differ"),
    "extra field cut off": (patched(EXTRA + 2, b"\xff"), "extra field is cut off"),
    "64-bit numbers of another kind": (patched(EXTRA, b"\2"), "zip64 number is missing"),
    "64-bit numbers too short": (patched(EXTRA + 2, b"\x0c\0\2\0\0\0\0\0\0\0\0\0\2\0\0\0"), "missing|disagree|outside"),
    "64-bit size of 2^64-1": (patched(EXTRA + 4, b"\xff" * 16), "extends outside"),
    "64-bit sizes differ": (patched(EXTRA + 4, struct.pack("<Q", 151)), "two sizes|disagree"),
    "bytes in front that the offsets count": (archive(front=b"#!/bin/sh\n"), "doesn't begin at the first byte"),
    "other bytes in front": (archive(front=b"PK\x03\x04" + bytes(60)), "doesn't begin at the first byte"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_contradicts_itself_is_refused(fault: str) -> None:
    data, words = FAULTS[fault]
    assert data != LARGE
    with pytest.raises((FormatError, UnsupportedError), match=words):
        npz.parse(BytesSource(data))
    check_regions(npz.regions(BytesSource(data)), len(data))


def test_truncated_anywhere() -> None:
    for size in range(len(LARGE)):
        with pytest.raises(FormatError):
            npz.parse(BytesSource(LARGE[:size]))


@pytest.mark.parametrize("flag", [0, 1, 3, 5, 6, 13])
def test_flags_of_what_is_encrypted_or_patched(flag: int) -> None:
    """In both places, so that nothing but the flag is odd. 1 and 3 alone leave an archive that can be read."""
    data = bytearray(archive())
    for at in (6, data.index(b"PK\x01\x02") + 8):
        data[at : at + 2] = (1 << flag).to_bytes(2, "little")
    if flag in (1, 3):
        assert read(bytes(data)).keys() == ARRAYS.keys()
        return
    with pytest.raises(UnsupportedError, match="encrypted"):
        npz.parse(BytesSource(bytes(data)))


# Written in code page 437, as zipfile reads names without the UTF-8 flag.
@pytest.mark.parametrize("name", ["a", "läyer.0", "层/weight", "a b", "a\nb", "x" * 60_000, ".", "a.npy"])
def test_names_of_all_kinds(name: str) -> None:
    array: Any = ARRAYS["a"]
    out = io.BytesIO()
    arrays: Any = {name: array}
    np.savez(out, **arrays)
    np.testing.assert_array_equal(read(out.getvalue())[name], array)
    if name.isprintable() and len(name) < 9 and not name.isascii():
        old = archive({"k": array}).replace(b"k.npy", b"\x84.npy")
        assert list(read(old)) == ["ä"]


def test_a_name_that_readers_would_cut_is_refused() -> None:
    data = archive({"abc": ARRAYS["a"]}).replace(b"abc.npy", b"a\0c.npy")
    assert zipfile.ZipFile(io.BytesIO(data)).namelist() == ["a"]
    with pytest.raises(FormatError, match="name"):
        npz.parse(BytesSource(data))


def test_a_small_member_is_small() -> None:
    source = BytesSource(archive())
    member = zips.read(source).members[0]
    assert zips.read_member(source, member, member.size) == npy(ARRAYS["a"])
    with pytest.raises(FormatError, match="too large"):
        zips.read_member(source, member, member.size - 1)


def test_a_name_that_is_not_its_own_encoding_is_refused() -> None:
    data = archive({"lä": ARRAYS["a"]}).replace("lä".encode(), b"l\xff\xfe")
    with pytest.raises(FormatError, match="UTF-8"):
        npz.parse(BytesSource(data))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_flipped_bit_is_found_by_its_checksum(save: Any) -> None:
    out = io.BytesIO()
    save(out, **ARRAYS)
    good = out.getvalue()
    assert npz.check(BytesSource(good)) == ()
    for member in zips.read(BytesSource(good)).members:
        data = bytearray(good)
        data[member.start + member.packed - 9] ^= 16
        (found,) = npz.check(BytesSource(bytes(data), "f.npz"))
        assert (found.rule, found.severity.value, found.path) == ("npz/checksum", "error", "f.npz")
        assert (found.tensor, found.offset) == (member.name.removesuffix(".npy"), member.start)


def test_the_end_that_other_readers_take_is_the_one_we_take() -> None:
    """Two end records, the earlier with a comment that holds the later: readers must not see different archives."""
    one, two = archive({"a": ARRAYS["a"]}), archive({"b": ARRAYS["b"]})
    end = two.rindex(b"PK\x05\x06")
    both = one[:-2] + struct.pack("<H", 22) + two[end:]
    with pytest.raises(FormatError):
        npz.parse(BytesSource(both))


def test_checksums_are_joined_in_no_time() -> None:
    """A model has some thousand tensors."""
    import time
    import zlib

    data, began = zlib.crc32(b"x" * 77), time.process_time()
    for i in range(2000):
        zip_write.crc_joined(data, i, (1 << 40) + i)
    assert time.process_time() - began < 1.0
