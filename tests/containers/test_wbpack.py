"""Packed files: the extension, numpy and an encoder written from the specification agree; damage is found."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.containers import packed_files as made
from tests.containers.packed_files import CONSTANT, DELTA, FLOAT_DELTA, PLAIN, PREFIX, RAW, ROTATED, SPARSE, Part

from weighbridge.base import native as extension
from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.containers.opening import format_of, parse
from weighbridge.containers.sniff.detect import sniff
from weighbridge.containers.wbpack import codec
from weighbridge.containers.wbpack.archive import read_archive
from weighbridge.containers.wbpack.container import original
from weighbridge.containers.wbpack.source import OriginalSource
from weighbridge.conversion.archive.records import pack_best
from weighbridge.io.source import BytesSource
from weighbridge.tensors.reference import planes

Unpack = Any
native: Any = extension.native
NUMPY = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}
needs_extension = pytest.mark.skipif(native is None, reason="without the extension")
UNPACKERS = [
    pytest.param(lambda p, b, out: planes.unpack_chunk(memoryview(p), memoryview(b), out), id="numpy"),
    *(
        pytest.param(lambda p, b, out, name=name: at_level(name, p, b, out), id=name)
        for name in (native.levels() if native else ())
    ),
]


def at_level(name: str, packed: bytes, base: bytes, out: memoryview) -> None:
    before = native.level()
    native.set_level(name)
    try:
        native.unpack_chunk(packed, base, out)
    finally:
        native.set_level(before)


def unpacked(unpack: Unpack, packed: bytes, size: int, base: bytes = b"") -> bytes:
    out = bytearray(size)
    unpack(packed, base, memoryview(out))
    return bytes(out)


def weights(kind: str, width: int, count: int) -> bytes:
    """Words of `width` bytes: the cases that the coder treats differently."""
    rng = np.random.default_rng(width)
    n = count // width
    if kind == "normal":
        floats = rng.normal(0, 0.02, n).astype({1: "<f2", 2: "<f2", 4: "<f4", 8: "<f8"}[width])
        return floats.tobytes()[-n * width :]
    if kind == "few":
        return rng.choice(np.array([0, 1, 2, 255], NUMPY[width]), n, p=[0.6, 0.2, 0.15, 0.05]).tobytes()
    if kind == "rare":
        return (rng.random(n) < 0.003).astype(NUMPY[width]).tobytes()
    if kind == "steep":  # Huffman's codes would have more than 11 bits
        return np.minimum(rng.geometric(0.5, n), 40).astype(NUMPY[width]).tobytes()
    return {"random": rng.bytes(n * width), "equal": bytes(n * width)}[kind]


KINDS = ("normal", "few", "rare", "steep", "random", "equal")


@pytest.mark.parametrize(("data", "value"), [
    (b"", 0xEF46DB3751D8E999), (b"a", 0xD24EC4F1A98C6E5B), (b"abc", 0x44BC2CF5AD770999),
    (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
])  # fmt: skip
def test_the_checksum_is_xxh64(data: bytes, value: int) -> None:
    assert made.xxh64(data) == planes.xxh64(np.frombuffer(data, np.uint8)) == value
    for unpack in UNPACKERS:
        assert unpacked(unpack.values[0], made.chunk(data, 1, PLAIN, [RAW]), len(data)) == data


@needs_extension
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "transform"), made.WORDS)
def test_packed_chunks_are_unpacked_by_all(kind: str, width: int, transform: int) -> None:
    for size in (0, 1, 63, 64 * width, 9973, 40_000 + width - 1):
        data = weights(kind, width, size).ljust(size, b"x")
        base = random.Random(1).randbytes(size) if transform in made.DELTAS else b""
        out = bytearray(size + 64)
        packed = bytes(out[: native.pack_chunk(width, transform, data, base, out)])
        assert len(packed) <= size + 64
        for unpack in UNPACKERS:
            assert unpacked(unpack.values[0], packed, size, base) == data, unpack.id


@needs_extension
@pytest.mark.parametrize(("kind", "width", "transform", "most"), [
    ("normal", 2, ROTATED, 0.85), ("few", 1, PLAIN, 0.203), ("rare", 1, PLAIN, 0.009), ("rare", 4, PLAIN, 0.0045),
    ("steep", 1, PLAIN, 0.2535), ("random", 4, PLAIN, 1.001), ("equal", 8, PLAIN, 0.002),
])  # fmt: skip
def test_how_small_chunks_become(kind: str, width: int, transform: int, most: float) -> None:
    data = weights(kind, width, 1 << 16)
    out = bytearray(len(data) + 64)
    assert native.pack_chunk(width, transform, data, b"", out) <= most * len(data)


def shortest(counts: dict[int, int], longest: int = 11) -> int:
    """The bits of the shortest prefix code without longer codes: Larmore's and Hirschberg's sets of coins."""
    coins = sorted((n, (symbol,)) for symbol, n in counts.items())
    packages: list[tuple[int, tuple[int, ...]]] = []
    for _ in range(longest):
        merged = sorted(coins + packages)
        packages = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(merged[::2], merged[1::2], strict=False)]
    return sum(weight for weight, _ in packages[: len(counts) - 1])


@needs_extension
@pytest.mark.parametrize("kind", ["normal", "steep"])
def test_prefix_codes_are_the_shortest(kind: str) -> None:
    data = weights(kind, 1, 1 << 16)
    out = bytearray(len(data) + 64)
    size = native.pack_chunk(1, PLAIN, data, b"", out)
    assert out[16] == PREFIX
    lengths = [length for byte in out[17 : 17 + 128] for length in (byte & 15, byte >> 4)]
    counts = Counter(data)
    bits = sum(lengths[symbol] * n for symbol, n in counts.items())
    assert bits == shortest(counts)
    assert -(-bits // 8) <= size - (17 + 128 + 12) <= bits // 8 + 4


@needs_extension
@pytest.mark.parametrize(("name", "width", "transform", "most"), [
    ("F8_E4M3", 2, made.PAIRS, 0.83), ("F8_E4M3FNUZ", 2, made.PAIRS, 0.83), ("F8_E5M2", 1, PLAIN, 0.70),
    ("F8_E8M0", 1, PLAIN, 1.01), ("BF16", 2, ROTATED, 0.67),
])  # fmt: skip
def test_the_words_of_floats(name: str, width: int, transform: int, most: float) -> None:
    dtype = BY_NAME[name]
    values = np.random.default_rng(0).normal(0, 20, 1 << 18)
    values = np.abs(values) if name == "F8_E8M0" else values
    data = memoryview(values.astype(getattr(ml_dtypes, str(dtype.numpy))).tobytes())
    packed = pack_best(dtype, data, None)
    assert (packed[8], packed[9]) == (width, transform)
    assert len(packed) <= most * len(data)


@pytest.mark.parametrize("unpack", UNPACKERS)
@pytest.mark.parametrize(("width", "transform"), made.WORDS)
def test_chunks_by_the_specification_are_unpacked(unpack: Unpack, width: int, transform: int) -> None:
    rng = random.Random(width)
    data = bytes(rng.choice((0, 0, 0, 0, 1, 5, 200)) for _ in range(1001))
    base = bytes(rng.choice((0, 0, 0, 1, 255)) for _ in range(1001)) if transform in made.DELTAS else b""
    for method in (RAW, PREFIX, SPARSE):
        packed = made.chunk(data, width, transform, [method] * width, base)
        assert unpacked(unpack, packed, len(data), base) == data
    same = bytes([3]) * 1001
    packed = made.chunk(same, width, PLAIN, [CONSTANT] * width)
    assert unpacked(unpack, packed, 1001) == same


GOOD = bytes(i % 7 if i % 3 else 0 for i in range(400))
#: What is wrong -> a packed form of GOOD (or its length) and the error.
DAMAGED: dict[str, tuple[bytes, str]] = {}


def damaged(reason: str, name: str, packed: bytes) -> None:
    DAMAGED[name] = packed, reason


def _with(packed: bytes, at: int, data: bytes) -> bytes:
    return packed[:at] + data + packed[at + len(data) :]


_RAW, _PREFIX, _SPARSE = (made.chunk(GOOD, 1, PLAIN, [m]) for m in (RAW, PREFIX, SPARSE))
damaged("a chunk ends too early", "no head", _RAW[:11])
damaged("a chunk ends too early", "no sizes", _RAW[:14])
damaged("unknown words", "width 3", _with(_RAW, 8, b"\3"))
damaged("unknown words", "transform 5", _with(_RAW, 9, b"\5"))
damaged("unknown words", "pairs of single bytes", _with(_RAW, 9, b"\4"))
damaged("unknown words", "not zero", _with(_RAW, 10, b"\1"))
damaged("needs its base", "delta", _with(_RAW, 9, b"\2"))
damaged("a plane ends too early", "cut", _RAW[:-1])
damaged("a plane ends too early", "long plane", _with(_RAW, 12, b"\xff\xff\xff\xff"))
damaged("a plane has no bytes", "empty plane", _with(_RAW[:16], 12, bytes(4)))
damaged("wrong size", "too long", _RAW + b"x")
damaged("a stored plane has the wrong size", "short plane", _with(_RAW[:-1], 12, struct.pack("<I", 400)))
damaged("a constant plane has the wrong size", "constant", _with(_RAW, 16, b"\1"))
damaged("unknown method", "method 4", _with(_RAW, 16, b"\4"))
damaged("checksum", "checksum", _with(_RAW, 0, b"x"))
damaged("checksum", "changed", _with(_RAW, 100, b"x"))
damaged("a prefix code ends too early", "short code", _with(_PREFIX[:100], 12, struct.pack("<I", 84)))
damaged("lengths of a prefix code", "too many codes", _with(_PREFIX, 17, b"\x11"))
damaged("lengths of a prefix code", "too few codes", _with(_PREFIX, 17, bytes(128)))
damaged("lengths of a prefix code", "one code", _with(_PREFIX, 17, b"\x10" + bytes(127)))
damaged("lengths of a prefix code", "long code", _with(_PREFIX, 17 + 127, b"\xcc"))
damaged("a stream of codes ends too early", "long stream", _with(_PREFIX, 17 + 128, b"\xff\xff\xff\x7f"))
damaged("a stream of codes is damaged", "streams moved", _with(_PREFIX, 17 + 128, struct.pack("<I", 3)))
damaged("a stream of codes is damaged", "bits behind the end", _with(_PREFIX, len(_PREFIX) - 1, b"\xff"))
damaged("a sparse plane ends too early", "short sparse", _with(_SPARSE[:20], 12, struct.pack("<I", 4)))
damaged("the mask of a sparse plane ends too early", "long mask", _with(_SPARSE, 18, b"\xff\xff\xff\xff"))


def _nested(depth: int) -> bytes:
    inner = bytes([CONSTANT, 0])
    for _ in range(depth):
        inner = bytes([SPARSE, 0]) + struct.pack("<I", len(inner)) + inner + bytes([RAW])
    return struct.pack("<QBBHI", made.xxh64(bytes(400)), 1, 0, 0, len(inner)) + inner


damaged("nested too deeply", "deep", _nested(3))
damaged("a mask has bits behind its plane", "long mask bits",
        struct.pack("<QBBHI", 0, 1, 0, 0, 6 + 52 + 1) + bytes([SPARSE, 0]) + struct.pack("<I", 52) + bytes([RAW])
        + bytes(50) + b"\x40" + bytes([RAW]))  # fmt: skip


@pytest.mark.parametrize("unpack", UNPACKERS)
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_chunk_is_refused(unpack: Unpack, name: str) -> None:
    packed, reason = DAMAGED[name]
    size = 403 if name == "long mask bits" else 400
    with pytest.raises(ValueError, match=reason):
        unpacked(unpack, packed, size)


@pytest.mark.parametrize("unpack", UNPACKERS)
def test_sparse_planes_may_be_nested_twice(unpack: Unpack) -> None:
    assert unpacked(unpack, _nested(2), 400) == bytes(400)


@needs_extension
def test_random_damage_is_refused_alike() -> None:
    """By both decoders, with the same message."""
    rng = random.Random(5)

    def outcome(unpack: Unpack, packed: bytes) -> str:
        try:
            return unpacked(unpack, packed, 400).hex()
        except ValueError as error:
            return str(error)

    for packed, _ in product((_RAW, _PREFIX, _SPARSE), range(150)):
        wrong = bytearray(packed)
        for _ in range(rng.randint(1, 3)):
            wrong[rng.randrange(len(wrong))] = rng.randrange(256)
        results = {outcome(unpack.values[0], bytes(wrong)) for unpack in UNPACKERS}
        assert len(results) == 1


# ---------------------------------------------------------------- files

SMALL = made.small()


def inner_bytes(packed: bytes) -> bytes:
    source = original(BytesSource(packed))
    return source.read(0, source.size)


def test_a_file_by_the_specification_is_read() -> None:
    source = BytesSource(SMALL, "x.safetensors")
    assert format_of(source).name == sniff(source).format == "wbpack"
    assert sniff(source).variant == "safetensors"
    whole = inner_bytes(SMALL)
    assert hashlib.sha256(whole).hexdigest() == read_archive(source).sha256
    index, expected = parse(source), parse(BytesSource(whole))
    assert [(e.name, e.spec, e.offset) for e in index] == [(e.name, e.spec, e.offset) for e in expected]


def test_a_packed_file_is_a_safetensors_file() -> None:
    safetensors = pytest.importorskip("safetensors")
    tensors = dict(safetensors.deserialize(SMALL))
    assert [*sorted(tensors)] == ["bf16", "f32", "u8", "wbpack.bytes.0", "wbpack.index"]


def test_any_range_is_read() -> None:
    whole, source = inner_bytes(SMALL), original(BytesSource(SMALL))
    rng = random.Random(3)
    for _ in range(300):
        at = rng.randrange(len(whole))
        length = rng.choice((1, 100, 5000, 20_000))
        assert source.read(at, min(length, len(whole) - at)) == whole[at : at + length]
    assert source.read(len(whole), 0) == b""


def test_without_the_extension_the_same_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = inner_bytes(SMALL)
    monkeypatch.setattr(codec, "native", None)
    assert inner_bytes(SMALL) == whole
    with pytest.raises(UnsupportedError, match="packing needs the compiled extension"):
        codec.check_can_pack()


PARTS = [Part("a", bytes(5000)), Part("b", b"x" * 100)]
_HEAD = struct.pack("<QQII", 5000, 0, 0xFFFFFFFF, 0), struct.pack("<QQII", 100, 0, 0xFFFFFFFF, 0)
_SIZES = struct.pack("<3I", 16 + 4097, 16 + 905, 16 + 101)


def index(one: tuple[int, int, int, int] = (5000, 0, 0xFFFFFFFF, 0), sizes: bytes = _SIZES) -> bytes:
    return struct.pack("<QQII", *one) + _HEAD[1] + sizes


BASE = {"name": "base", "size": 6000, "sha256": "0" * 64}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no size": ({"changed": {"wbpack.size": "-"}}, "wbpack.size"),
    "size": ({"changed": {"wbpack.size": "5101"}}, "the records don't make the original"),
    "negative size": ({"changed": {"wbpack.size": "-1"}}, "expected a number"),
    "large size": ({"changed": {"wbpack.size": "9" * 20}}, "expected a number"),
    "chunk": ({"changed": {"wbpack.chunk": "5000"}}, "a power of two"),
    "small chunk": ({"changed": {"wbpack.chunk": "2048"}}, "a power of two"),
    "large chunk": ({"changed": {"wbpack.chunk": str(1 << 21)}}, "a power of two"),
    "sha256": ({"changed": {"wbpack.sha256": "x" * 64}}, "64 hex digits"),
    "short sha256": ({"changed": {"wbpack.sha256": "00"}}, "64 hex digits"),
    "bases": ({"changed": {"wbpack.bases": "{}"}}, "a list of files"),
    "negative base": ({"bases": [BASE | {"size": -1}]}, "sizes that aren't negative"),
    "short index": ({"index": b"x" * 47}, "the index is too short"),
    "empty record": ({"index": index((0, 0, 0xFFFFFFFF, 0))}, "a record is wrong"),
    "not zero": ({"index": index((5000, 0, 0xFFFFFFFF, 1))}, "a record is wrong"),
    "no such base": ({"index": index((5000, 0, 0, 0))}, "a record is wrong"),
    "outside the base": ({"index": index((5000, 1001, 0, 0)), "bases": [BASE]}, "a record is wrong"),
    "huge record": ({"index": index((1 << 63, 0, 0xFFFFFFFF, 0))}, "the records don't make the original"),
    "lost chunk": ({"index": index(sizes=_SIZES[:8])}, "the index has the wrong size"),
    "more chunks": ({"index": index(sizes=_SIZES + bytes(4))}, "the index has the wrong size"),
    "tiny chunk": ({"index": index(sizes=struct.pack("<3I", 15, 0, 0))}, "an impossible size"),
    "huge packed chunk": ({"index": index(sizes=struct.pack("<3I", 4161, 900, 900))}, "an impossible size"),
    "moved": ({"index": index(sizes=struct.pack("<3I", 16 + 4097, 16 + 904, 16 + 102))}, "the chunks of a aren't"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_refused(name: str) -> None:
    how, message = WRONG[name]
    with pytest.raises(FormatError, match=message):
        read_archive(BytesSource(made.packed_file(PARTS, **how), "wrong.safetensors"))
    damage = sniff(BytesSource(made.packed_file(PARTS, **how))).damage
    assert damage


def test_the_right_one_is_read() -> None:
    assert inner_bytes(made.packed_file(PARTS, index=index())) == b"".join(part.data for part in PARTS)


def test_files_of_the_first_version_are_read() -> None:
    assert inner_bytes(made.packed_file(PARTS, changed={"wbpack": "1"})) == b"".join(part.data for part in PARTS)


def test_other_versions_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="version 3"):
        read_archive(BytesSource(made.packed_file(PARTS, changed={"wbpack": "3"})))


def test_a_file_without_an_index_is_refused() -> None:
    raw = SMALL.replace(b"wbpack.index", b"wbpack.indec")
    with pytest.raises(FormatError, match="no index at its end"):
        read_archive(BytesSource(raw))


def test_a_packed_file_inside_another_is_refused() -> None:
    with pytest.raises(FormatError, match="inside another"):
        parse(BytesSource(made.packed_file([Part("a", SMALL)])))


def test_a_damaged_chunk_has_a_place() -> None:
    raw = bytearray(SMALL)
    archive = read_archive(BytesSource(SMALL))
    raw[archive.places[3] + 40] ^= 1
    source = original(BytesSource(bytes(raw), "x.safetensors"))
    with pytest.raises(FormatError, match=f"x.safetensors, byte {archive.places[3]}: a chunk can't be unpacked"):
        source.read(0, source.size)
    assert source.read(0, 10) == inner_bytes(SMALL)[:10]


# ---------------------------------------------------------------- deltas

_OLD = bytes(i % 251 for i in range(6000))
_NEW = bytes((b + (i % 50 == 0)) % 256 for i, b in enumerate(_OLD[1000:6000]))


def delta(transform: int = DELTA) -> bytes:
    part = Part("w", _NEW, 2, transform, (SPARSE, SPARSE), _OLD[1000:6000], 1000)
    return made.packed_file([part], bases=[BASE])


@pytest.mark.parametrize("transform", [DELTA, FLOAT_DELTA])
def test_a_delta_needs_its_base(transform: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = delta(transform)
    monkeypatch.delenv("WEIGHBRIDGE_BASE", raising=False)
    with pytest.raises(UnsupportedError, match=r"a delta to base \(6,000 bytes\)"):
        inner_bytes(packed)
    (tmp_path / "base").write_bytes(_OLD)
    for place in (tmp_path, tmp_path / "base"):
        monkeypatch.setenv("WEIGHBRIDGE_BASE", str(place))
        assert inner_bytes(packed) == _NEW
    (tmp_path / "base").write_bytes(_OLD[::-1])
    with pytest.raises(FormatError, match="checksum is wrong"):
        inner_bytes(packed)
    (tmp_path / "base").write_bytes(_OLD[1:])
    with pytest.raises(UnsupportedError, match="a delta to base"):
        inner_bytes(packed)


def test_a_name_in_a_file_never_leads_out_of_the_named_folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_bytes(_OLD)
    (tmp_path / "folder").mkdir()
    monkeypatch.setenv("WEIGHBRIDGE_BASE", str(tmp_path / "folder"))
    for name in ("../secret", str(tmp_path / "secret")):
        part = Part("w", _NEW, 2, DELTA, (SPARSE, SPARSE), _OLD[1000:6000], 1000)
        with pytest.raises(UnsupportedError, match="a delta to"):
            inner_bytes(made.packed_file([part], bases=[BASE | {"name": name}]))


def test_given_bases_are_used() -> None:
    packed = BytesSource(delta())
    source = OriginalSource(packed, read_archive(packed), [BytesSource(_OLD)])
    assert source.read(0, 5000) == _NEW


def vectors() -> Iterator[tuple[str, str, str, str]]:
    """The test vectors of the specification: title, original, base, packed, in hex."""
    text = (made.__file__, "docs/wbpack.md")
    page = __import__("pathlib").Path(text[0]).parents[2] / text[1]
    for row in page.read_text("utf-8").split("## Test vectors")[1].splitlines():
        cells = [cell.strip().strip("`") for cell in row.split("|")]
        if len(cells) == 6 and set(cells[2]) <= set("0123456789abcdef ") and cells[4]:
            yield cells[1], cells[2].replace(" ", ""), cells[3].replace(" ", ""), cells[4].replace(" ", "")


@pytest.mark.parametrize("unpack", UNPACKERS)
def test_the_vectors_of_the_specification(unpack: Unpack) -> None:
    rows = list(vectors())
    assert len(rows) >= 8
    for title, data, base, packed in rows:
        out = unpacked(unpack, bytes.fromhex(packed), len(data) // 2, bytes.fromhex(base))
        assert out.hex() == data, title


def test_metadata_is_json_that_msgspec_and_others_read() -> None:
    length = int.from_bytes(SMALL[:8], "little")
    header = json.loads(SMALL[8 : 8 + length])
    assert SMALL[8:].startswith(b'{"__metadata__":{"wbpack":"2"')
    assert header["__metadata__"]["wbpack.chunk"] == "4096"
