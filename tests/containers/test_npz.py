"""NumPy's .npz, both ways, against numpy and zipfile; archives that contradict themselves are refused."""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.containers.regions import check_regions
from tests.costs import traced_memory

from weighbridge.base.dtypes import BY_NAME, dtype
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.containers.archive import zip_write
from weighbridge.containers.base import Index, Layout
from weighbridge.containers.numpy import npy, npz
from weighbridge.io.inflate import InflateSource
from weighbridge.io.source import BytesSource

TYPES = [BY_NAME[n] for n in npy._NAMES]
ARRAYS: dict[str, Any] = {
    "a": np.arange(12, dtype="<f4").reshape(3, 4),
    "b/c.d": np.array([1.5, -2.5]),
    "läyer": np.zeros((0, 3), "<i8"),
    "s": np.float16(3.0),
}


def saved(compressed: bool = False, **arrays: Any) -> bytes:
    out = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(out, **arrays)
    return out.getvalue()


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED, stream: bool = False) -> bytes:
    out: Any = io.BytesIO()
    if stream:  # a sink that can't go back: sizes come in descriptors
        out.seekable = lambda: False
        out.tell = _no_tell
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, compress_type=method)
    return bytes(out.getvalue())


def _no_tell() -> int:
    raise OSError("this goes one way")


def swapped(name: str | None, order: Any) -> Any:
    return np.dtype(name).newbyteorder(order)


def loaded(index: Index) -> dict[str, Any]:
    out = {}
    for e in index:
        raw = index.files[e.file].read(e.offset, e.nbytes)
        out[e.name] = np.frombuffer(raw, swapped(e.dtype.numpy, index.byte_order)).reshape(e.shape)
    return out


def parsed(data: bytes) -> dict[str, Any]:
    check_regions(npz.regions(BytesSource(data)), len(data))
    return loaded(npz.parse(BytesSource(data)))


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


# ---- reading what others write


@pytest.mark.parametrize("compressed", [False, True])
def test_what_numpy_writes_is_read(compressed: bool) -> None:
    data = saved(compressed, **ARRAYS)
    assert_same(parsed(data), ARRAYS)
    index = npz.parse(BytesSource(data))
    assert [e.name for e in index] == list(ARRAYS)
    assert index.findings == ()
    assert any(f.sequential for f in index.files) is compressed
    assert "unknown" not in {r.kind for r in npz.regions(BytesSource(data))}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("stream", [False, True])
def test_what_zipfile_writes_is_read(method: int, stream: bool) -> None:
    out = io.BytesIO()
    np.save(out, ARRAYS["a"])
    data = zipped({"a.npy": out.getvalue(), "note.txt": b"hello", "empty": b""}, method, stream)
    assert bool(data[6] & 8) is stream
    assert_same(parsed(data), {"a": ARRAYS["a"]})
    assert [f.rule for f in npz.parse(BytesSource(data)).findings] == ["npz/other-member"] * 2
    assert "unknown" not in {r.kind for r in npz.regions(BytesSource(data))}


def test_an_archive_may_be_empty_or_have_a_comment() -> None:
    assert parsed(saved()) == {}
    data = saved(**ARRAYS)
    comment = b"PK\x05\x06" + bytes(30)  # looks like another end record
    assert_same(parsed(data[:-2] + struct.pack("<H", len(comment)) + comment), ARRAYS)


def test_big_endian_arrays() -> None:
    array = np.arange(3, dtype=">f8")
    index = npz.parse(BytesSource(saved(a=array, b=np.zeros(2, "u1"))))
    assert index.byte_order == ">"
    np.testing.assert_array_equal(loaded(index)["a"], array)
    with pytest.raises(UnsupportedError, match="some arrays are big-endian"):
        npz.parse(BytesSource(saved(a=array, b=np.zeros(2, "<f4"))))


def test_object_arrays_are_refused() -> None:
    out = io.BytesIO()
    np.savez(out, allow_pickle=True, a=np.array([{}], dtype=object))
    with pytest.raises(RefusedError, match=r"a\.npy.*pickle"):
        npz.parse(BytesSource(out.getvalue()))


# ---- writing


def written(layout: Layout, arrays: dict[str, Any]) -> bytes:
    out = bytearray(layout.size)
    digests = {}
    for offset, piece in layout.pieces:
        out[offset : offset + len(piece)] = piece
    for slot in layout.slots:
        raw = arrays[slot.name].tobytes()
        out[slot.offset : slot.offset + len(raw)] = raw
        digests[slot.name] = zlib.crc32(raw)
    assert layout.fixups is not None
    for offset, piece in layout.fixups(digests):
        out[offset : offset + len(piece)] = piece
    return bytes(out)


def specs(arrays: dict[str, Any]) -> list[tuple[str, Spec]]:
    by_numpy = {t.numpy: t for t in TYPES}
    return [(name, Spec(a.shape, by_numpy[a.dtype.name])) for name, a in arrays.items()]


names = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\\/."), min_size=1, max_size=8
).filter(lambda name: not re.match("[A-Za-z]:", name))
arrays = st.tuples(st.sampled_from([t.numpy for t in TYPES]), st.lists(st.integers(0, 9), max_size=3)).map(
    lambda t: (np.arange(int(np.prod(t[1]))) % 200 % 3).astype(t[0]).reshape(t[1])
)


@given(st.dictionaries(names, arrays, max_size=5))
@example(ARRAYS)
def test_what_is_written_is_read_by_numpy_and_by_us(content: dict[str, Any]) -> None:
    layout = npz.layout(specs(content))
    data = written(layout, content)
    assert len(data) == layout.size
    assert_same(parsed(data), content)
    with np.load(io.BytesIO(data)) as theirs:
        assert_same(dict(theirs), content)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
    assert all(slot.offset % 64 == 0 for slot in layout.slots)
    assert "unknown" not in {r.kind for r in npz.regions(BytesSource(data))}
    assert npz.layout(specs(content)).pieces == layout.pieces


def test_pieces_and_slots_cover_the_file_without_overlap() -> None:
    layout = npz.layout(specs(ARRAYS))
    spans = [(o, o + len(p)) for o, p in layout.pieces] + [(s.offset, s.offset + s.spec.nbytes) for s in layout.slots]
    at = 0
    for start, end in sorted(spans):
        assert start in (at, end)
        at = max(at, end)
    assert at == layout.size


@pytest.mark.parametrize("count", [1, 3])
def test_more_than_four_gigabytes_take_zip64(count: int) -> None:
    f32 = dtype("F32")
    layout = npz.layout([(f"big{i}", Spec((3 << 29,), f32)) for i in range(count)] + [("small", Spec((2,), f32))])
    source = Sparse(layout)
    index = npz.parse(source)
    assert [(e.name, e.spec, e.offset) for e in index] == [(s.name, s.spec, s.offset) for s in layout.slots]
    with zipfile.ZipFile(io.BufferedReader(source.raw())) as archive:
        assert [i.file_size for i in archive.infolist()] == [128 + s.spec.nbytes for s in layout.slots]
    check_regions(npz.regions(source), source.size)


class Sparse(BytesSource):
    """A file of a layout whose tensors are all zero, without the zeros."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(b"", "sparse.npz")
        assert layout.fixups is not None
        fixed = dict(layout.fixups({s.name: 0 for s in layout.slots}))
        self.pieces = sorted({**dict(layout.pieces), **fixed}.items())
        self.size = layout.size

    def _readinto(self, offset: int, out: memoryview) -> int:
        out[:] = bytes(len(out))
        for at, piece in self.pieces:
            first, end = max(at, offset), min(at + len(piece), offset + len(out))
            if first < end:
                out[first - offset : end - offset] = piece[first - at : end - at]
        return len(out)

    def raw(self) -> io.RawIOBase:
        source, place = self, [0]

        class Raw(io.RawIOBase):
            def readable(self) -> bool:
                return True

            def seekable(self) -> bool:
                return True

            def seek(self, to: int, whence: int = 0) -> int:
                place[0] = to + (0, place[0], source.size)[whence]
                return place[0]

            def readinto(self, out: Any) -> int:
                count = min(len(out), source.size - place[0])
                source.readinto(place[0], memoryview(out)[:count])
                place[0] += count
                return count

        return Raw()


@pytest.mark.parametrize(
    "name",
    ["", "../x", "a/../b", "/x", "a\\b", "a\0b", "x" * 70_000, "..", "C:/x", "c:x", "a/./b", "a//b", "\udc80"],
)
def test_names_that_could_lead_an_unpacker_astray_are_refused(name: str) -> None:
    if name == "..":  # `...npy` is a name like any other
        npz.layout([(name, Spec((), dtype("F32")))])
        return
    with pytest.raises(UsageError):
        npz.layout([(name, Spec((), dtype("F32")))])


def test_refused() -> None:
    spec = Spec((), dtype("F32"))
    with pytest.raises(UsageError, match="two tensors"):
        npz.layout([("a", spec), ("a", spec)])
    with pytest.raises(UnsupportedError, match="BF16"):
        npz.layout([("a", Spec((), dtype("BF16")))])
    assert npz.layout([("a", Spec((), dtype("BF16")))], raw=True).size
    assert "2 keys" in npz.layout([], {"k": "v", "l": "w"}).notes[0]


@given(st.binary(max_size=300), st.binary(max_size=300))
@example(b"", b"")
@example(b"a", bytes(100_000))
def test_checksums_join(first: bytes, second: bytes) -> None:
    assert zip_write.crc_joined(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


# ---- archives that contradict themselves: one fault each in a good one

PLAIN = written(npz.layout(specs({"a": ARRAYS["a"], "b": ARRAYS["a"]})), {"a": ARRAYS["a"], "b": ARRAYS["a"]})
CENTRAL = PLAIN.index(b"PK\x01\x02")
SECOND = PLAIN.index(b"PK\x03\x04", 4)
END = PLAIN.rindex(b"PK\x05\x06")
ENTRY2 = PLAIN.index(b"PK\x01\x02", CENTRAL + 4)


def patched(at: int, data: bytes) -> bytes:
    return PLAIN[:at] + data + PLAIN[at + len(data) :]


FAULTS: dict[str, tuple[bytes, str]] = {
    "no end record": (patched(END, b"XX"), "no end of a zip"),
    "cut off": (PLAIN[:-30], "no end of a zip"),
    "comment too long": (patched(END + 20, b"\1"), "no end of a zip"),
    "junk behind": (PLAIN + b"x", "no end of a zip"),
    "junk in front": (b"x" * 64 + PLAIN, "isn't at the place in the end record"),
    "directory moved": (patched(END + 16, struct.pack("<I", CENTRAL + 1)), "isn't at the place in the end record"),
    "directory shorter": (patched(END + 12, struct.pack("<I", 10)), "isn't at the place in the end record"),
    "count too large": (patched(END + 8, struct.pack("<HH", 3, 3)), "count is wrong"),
    "count too small": (patched(END + 8, struct.pack("<HH", 1, 1)), "count is wrong"),
    "several volumes": (patched(END + 4, b"\1"), "several volumes"),
    "member on another volume": (patched(CENTRAL + 34, b"\1"), "several volumes"),
    "entry without mark": (patched(ENTRY2, b"X"), "no directory entry"),
    "entry's name too long": (patched(ENTRY2 + 28, b"\xff"), "cut off"),
    "encrypted": (patched(CENTRAL + 8, b"\1"), "encrypted"),
    "unknown method": (patched(CENTRAL + 10, b"\x0c"), "method 12"),
    "deflated in the directory only": (patched(CENTRAL + 10, b"\x08"), "disagree"),
    "deflated in the local header only": (patched(8, b"\x08"), "disagree"),
    "no local header": (patched(0, b"XX"), "disagree"),
    "another name": (patched(30, b"z"), "disagree"),
    "another name, in the directory": (patched(CENTRAL + 46, b"z"), "disagree"),
    "one name twice": (PLAIN.replace(b"b.npy", b"a.npy"), "one name"),
    "another checksum": (patched(14, b"zzzz"), "disagree"),
    "another size": (patched(18, b"\1"), "disagree"),
    "two sizes": (patched(18, b"\1")[: CENTRAL + 20] + b"\1" + patched(18, b"\1")[CENTRAL + 21 :], "two sizes"),
    "same place": (patched(ENTRY2 + 42, struct.pack("<I", 0)), "disagree"),
    "beyond the directory": (patched(CENTRAL + 42, struct.pack("<I", 1 << 31)), "a member is outside"),
    "data beyond the directory": (patched(CENTRAL + 20, struct.pack("<II", 1 << 20, 1 << 20)), "extends outside"),
    "zip64 number missing": (patched(CENTRAL + 20, b"\xff" * 4), "zip64 number is missing"),
    "name not UTF-8": (patched(CENTRAL + 9, b"\x08")[: CENTRAL + 46] + b"\xff" + PLAIN[CENTRAL + 47 :], "not UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_contradictions_are_refused(fault: str) -> None:
    data, words = FAULTS[fault]
    assert data != PLAIN
    with pytest.raises((FormatError, UnsupportedError), match=words):
        npz.parse(BytesSource(data))
    check_regions(npz.regions(BytesSource(data)), len(data))


def overlapping() -> bytes:
    """Two members over the same bytes: a second local header inside the first one's data."""
    inner = zipped({"b.npy": b"x" * 40})
    outer = zipped({"a.npy": inner[: inner.index(b"PK\x01\x02")]})
    entry = bytearray(inner[inner.index(b"PK\x01\x02") : inner.rindex(b"PK\x05\x06")])
    entry[42:46] = struct.pack("<I", 30 + len("a.npy"))
    end = outer.rindex(b"PK\x05\x06")
    size = end - outer.index(b"PK\x01\x02") + len(entry)
    return outer[:end] + bytes(entry) + zip_write.end_records(2, outer.index(b"PK\x01\x02"), size)


def test_overlapping_members_are_refused() -> None:
    data = overlapping()
    assert zipfile.ZipFile(io.BytesIO(data)).namelist() == ["a.npy", "b.npy"]
    with pytest.raises(FormatError, match="overlap"):
        npz.parse(BytesSource(data))


def test_truncated_anywhere() -> None:
    for size in range(len(PLAIN)):
        with pytest.raises(FormatError):
            npz.parse(BytesSource(PLAIN[:size]))
        check_regions(npz.regions(BytesSource(PLAIN[:size])), size)


# ---- the unpacking source


def inflate(raw: bytes, size: int | None = None, crc: int | None = None, cut: int = 0) -> InflateSource:
    packer = zlib.compressobj(wbits=-15)
    packed = packer.compress(raw) + packer.flush()
    packed = packed[: len(packed) - cut]
    parent = BytesSource(b"head" + packed + b"tail")
    return InflateSource(parent, 4, len(packed), len(raw) if size is None else size, "member", crc)


RAW = bytes(range(256)) * 1000 + b"end"


@given(st.lists(st.tuples(st.integers(0, len(RAW)), st.integers(0, 70_000)), max_size=6))
def test_any_order_of_reads_gives_the_same_bytes(reads: list[tuple[int, int]]) -> None:
    source = inflate(RAW, crc=zlib.crc32(RAW))
    assert source.sequential
    for at, length in reads:
        length = min(length, len(RAW) - at)
        assert source.read(at, length) == RAW[at : at + length]
    assert source.read(0, len(RAW)) == RAW


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: inflate(RAW, cut=100), "ends too early"),
        (lambda: inflate(RAW, size=len(RAW) + 1), "ends too early"),
        (lambda: inflate(RAW, size=len(RAW) - 1), "longer than stated"),
        (lambda: inflate(RAW, crc=1), "checksum is wrong"),
        (lambda: InflateSource(BytesSource(b"\xff" * 10), 0, 10, 100), "damaged"),
        (lambda: InflateSource(BytesSource(bytes(10)), 0, 10, 10_321), "deflate can't"),
        (lambda: InflateSource(BytesSource(bytes(10)), 0, 11, 5), "ends too early"),
    ],
)
def test_damaged_streams(make: Callable[[], InflateSource], words: str) -> None:
    with pytest.raises(FormatError, match=words):
        (source := make()).read(0, source.size)


@pytest.mark.costly
def test_a_bomb_is_not_unpacked_at_once() -> None:
    bomb = inflate(bytes(50 << 20))
    with traced_memory() as memory:
        assert bomb.read(40 << 20, 10) == bytes(10)
    assert memory.peak < 2 << 20
