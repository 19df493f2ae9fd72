"""Streams as sources: what Python's modules unpack, read at any place; damage is told after the good part."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.costs import traced_memory
from tests.examples import examples

from weighbridge.io import decompress as unpack
from weighbridge.io.decompress import UnpackSource, codec_of
from weighbridge.io.source import BytesSource

PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda d: gzip.compress(d, mtime=0),
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "lzma": lambda d: lzma.compress(d, lzma.FORMAT_ALONE),
    "zlib": zlib.compress,
}
DATA = random.Random(0).randbytes(90_000) + bytes(200_000)
CODEC = pytest.mark.parametrize("codec", PACK)


def opened(codec: str, packed: bytes) -> UnpackSource:
    return UnpackSource(BytesSource(packed), codec)


def test_every_codec_is_tried() -> None:
    optional = {"zstd", "lz4"}  # tests/models/test_archives.py
    assert set(PACK) | optional == set(unpack.CODECS)


@CODEC
def test_the_bytes_are_those_that_were_packed(codec: str) -> None:
    packed = PACK[codec](DATA)
    source = opened(codec, packed)
    assert codec_of(packed[:16]) == codec
    assert (source.size, source.trouble, source.trailing) == (len(DATA), None, len(packed))
    assert source.read(0, source.size) == DATA


@CODEC
@given(st.lists(st.tuples(st.integers(0, len(DATA)), st.integers(0, 70_000)), max_size=6))
@examples(20)
def test_any_place_can_be_read_in_any_order(codec: str, places: list[tuple[int, int]]) -> None:
    source = opened(codec, PACK[codec](DATA))
    for at, length in places:
        length = min(length, len(DATA) - at)
        assert source.read(at, length) == DATA[at : at + length]


@CODEC
def test_a_window_that_is_left_behind_is_unpacked_again(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "_WINDOW", 1 << 16)
    charged: list[int] = []
    source = UnpackSource(BytesSource(PACK[codec](DATA)), codec, charge=charged.append)
    once = sum(charged)
    assert once >= len(DATA)
    assert source.read(len(DATA) - 9, 9) == DATA[-9:]
    assert sum(charged) == once  # the second pass is the first that anyone reads
    assert source.read(0, 9) == DATA[:9]
    assert sum(charged) > once


@pytest.mark.parametrize("codec", ["gzip", "bz2", "xz", "zlib"])
def test_streams_one_behind_the_other_are_one(codec: str) -> None:
    packed = PACK[codec](b"one") + PACK[codec](b"") + PACK[codec](b"two")
    assert opened(codec, packed).read(0, 6) == b"onetwo"


@CODEC
def test_what_comes_before_the_damage_is_there(codec: str) -> None:
    packed = PACK[codec](DATA)
    cut = opened(codec, packed[: len(packed) - 20])
    assert cut.trouble is not None
    assert cut.read(0, cut.size) == DATA[: cut.size]
    assert cut.size > (50_000 if codec != "bz2" else -1)  # bzip2 unpacks whole blocks of 900 kB


@pytest.mark.parametrize("codec", ["gzip", "bz2", "xz", "zlib"])
def test_bytes_behind_a_stream_are_named(codec: str) -> None:
    packed = PACK[codec](b"data")
    source = opened(codec, packed + b"rubbish")
    assert (source.trailing, source.trouble, source.size) == (len(packed), None, 4)


def test_what_refuses_the_cost_stops_it_early() -> None:
    class Enough(Exception):
        pass

    charged: list[int] = []

    def charge(count: int) -> None:
        charged.append(count)
        if sum(charged) > 4 << 20:
            raise Enough

    bomb = gzip.compress(bytes(64 << 20), mtime=0)
    with traced_memory() as memory, pytest.raises(Enough):
        UnpackSource(BytesSource(bomb), "gzip", charge=charge)
    assert memory.peak < 16 << 20


@pytest.mark.costly
def test_a_dictionary_beyond_the_limit_is_damage() -> None:
    packed = lzma.compress(b"x", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}])
    assert opened("xz", packed).trouble is not None


@given(st.sampled_from(sorted(PACK)), st.binary(max_size=300), st.integers(0, 200), st.integers(0, 255))
@examples(300)
def test_damage_of_any_kind_is_trouble_and_no_error(codec: str, data: bytes, at: int, value: int) -> None:
    packed = bytearray(PACK[codec](data))
    packed[at % len(packed)] = value
    source = opened(codec, bytes(packed))
    assert len(source.read(0, source.size)) == source.size


@pytest.mark.mutation
@pytest.mark.parametrize(
    "head", [b"", b"x", b"text", b"\x80\x02}.", b"PK\3\4", b"x\x9d", b"\x5d\0\0", b"]\0\0\0\x80" + bytes(8)]
)
def test_other_heads_are_no_stream(head: bytes) -> None:
    assert codec_of(head) is None or head.startswith(b"]\0\0\0\x80")
