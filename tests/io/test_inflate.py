"""A deflated part of a file: the same bytes in whatever order and from whatever thread, and no byte more than declared.

zlib itself is the oracle."""

from __future__ import annotations

import random
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.costs import traced_memory
from tests.examples import examples

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import MIB
from weighbridge.io import inflate
from weighbridge.io.inflate import InflateSource
from weighbridge.io.source import BytesSource, Source

TEXT = random.Random(1).randbytes(3000) * 3 + bytes(5000)
#: Eight values in no order.
_LONG = random.Random(2).randbytes(12 * MIB).translate(bytes(i % 8 for i in range(256)))


def deflated(data: bytes, level: int = 6, flush: int = zlib.Z_FINISH) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush(flush)


_PACKED = deflated(_LONG, 1)


class Counted(BytesSource):
    """Counts the bytes that are read from it."""

    taken = 0

    def _readinto(self, offset: int, out: memoryview) -> int:
        self.taken += len(out)
        return super()._readinto(offset, out)


def opened(data: bytes = TEXT, level: int = 6, **change: Any) -> InflateSource:
    """A source of `data`, packed between other bytes; `change` tells it something else."""
    packed = change.pop("stream", deflated(data, level))
    told: dict[str, Any] = {"packed": len(packed), "size": len(data), "crc": zlib.crc32(data)}
    return InflateSource(Counted(b"..." + packed + b"...", "f"), 3, **{**told, **change}, name="f::m")


@given(st.lists(st.tuples(st.integers(0, len(TEXT)), st.integers(0, 4000)), max_size=12), st.sampled_from([0, 1, 9]))
@examples(60)
def test_any_order_gives_the_same_bytes(reads: list[tuple[int, int]], level: int) -> None:
    source = opened(level=level)
    for at, length in reads:
        length = min(length, len(TEXT) - at)
        assert source.read(at, length) == TEXT[at : at + length]


@pytest.mark.parametrize("level", [0, 1, 9])
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 200_000])
def test_sizes_around_a_chunk(size: int, level: int) -> None:
    data = (TEXT * 20)[:size]
    assert opened(data, level).read(0, size) == data


def test_threads_share_one() -> None:
    source = InflateSource(BytesSource(_PACKED), 0, len(_PACKED), len(_LONG), crc=zlib.crc32(_LONG))
    step, wrong, gate = 300_000, [], threading.Barrier(4)

    def work(worker: int) -> None:
        gate.wait()
        for at in random.Random(worker).sample(range(0, len(_LONG), step), 10):
            length = min(step, len(_LONG) - at)
            if source.read(at, length) != _LONG[at : at + length]:
                wrong.append(at)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert wrong == []


@pytest.mark.parametrize("out_of_order", [1, 4])
def test_a_little_out_of_order_costs_little(out_of_order: int) -> None:
    """Slabs come from a pool of threads: each group backwards is the worst that it does. Starting over each time would
    take some 6 times the packed bytes."""
    parent = Counted(_PACKED)
    source = InflateSource(parent, 0, len(_PACKED), len(_LONG))
    slabs = range(0, len(_LONG), MIB)
    for first in range(0, len(slabs), out_of_order + 1):
        for at in reversed(slabs[first : first + out_of_order + 1]):
            assert source.read(at, MIB) == _LONG[at : at + MIB]
    assert parent.taken < 2.5 * len(_PACKED)


def test_a_second_reading_costs_as_much_as_the_first() -> None:
    parent = Counted(_PACKED)
    source = InflateSource(parent, 0, len(_PACKED), len(_LONG))
    for _ in range(2):
        for at in range(0, len(_LONG), MIB):
            source.read(at, MIB)
    assert parent.taken == 2 * len(_PACKED)


def test_what_has_been_read_through_or_closed_holds_no_decoder() -> None:
    source = opened()
    source.read(0, 10)
    assert source._now is not None
    source.close()
    assert source._now is None
    assert source.read(0, len(TEXT)) == TEXT
    assert source._now is None
    assert source.read(5, 5) == TEXT[5:10]


def test_it_is_a_source_like_any() -> None:
    source = opened()
    assert source.sequential
    assert source.window(2, 10).sequential
    assert source.location(0) is None
    assert source.window(7, 90).read(3, 40) == TEXT[10:50]
    with pytest.raises(FormatError, match="ends too early"):
        source.read(len(TEXT), 1)
    with source:
        pass
    assert source.parent.read(0, 3) == b"..."


# ---- streams that lie

_AT_A_CHUNK = b"\0" + (65_531).to_bytes(2, "little") + (0xFFFF ^ 65_531).to_bytes(2, "little") + bytes(65_531)

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "cut": ({"packed": len(deflated(TEXT)) - 1}, "no end|ends too early"),
    "cut in the middle": ({"packed": 2000}, "ends too early"),
    "no end mark": ({"stream": deflated(TEXT, flush=zlib.Z_SYNC_FLUSH)}, "has no end"),
    "longer than stated": ({"size": len(TEXT) - 1, "crc": None}, "longer than stated"),
    "longer by a block": ({"stream": deflated(TEXT, flush=zlib.Z_SYNC_FLUSH) + deflated(b"x")}, "longer than stated"),
    "shorter than stated": ({"size": len(TEXT) + 1}, "ends too early"),
    "wrong sum": ({"crc": 5}, "checksum is wrong"),
    "no deflate data": ({"stream": b"\xff" * 500}, "damaged"),
    "broken behind the last byte": ({"stream": deflated(TEXT, flush=zlib.Z_SYNC_FLUSH) + b"\xff" * 9}, "damaged"),
    "broken in the next chunk": (
        {"stream": _AT_A_CHUNK + b"\xff" * 9, "size": 65_531, "crc": zlib.crc32(bytes(65_531))},
        "damaged",
    ),
    "followed by others": ({"stream": deflated(TEXT) + b"xyz"}, "3 bytes follow"),
    "followed by a chunk of others": ({"stream": deflated(TEXT) + bytes(200_000)}, "200000 bytes follow"),
    "nothing": ({"stream": b"", "size": 0}, ""),
}


@pytest.mark.parametrize("name", BAD)
def test_a_stream_that_lies(name: str) -> None:
    change, words = BAD[name]
    source = opened(**change)
    if not words:
        assert source.read(0, 0) == b""
        return
    for _ in range(2):  # and it stays so
        with pytest.raises(FormatError, match=words) as error:
            source.read(0, source.size)
        assert error.value.path == "f::m"


def test_the_first_bytes_of_a_stream_that_lies_later_are_read() -> None:
    assert opened(packed=2000).read(0, 100) == TEXT[:100]


def test_a_bomb_is_refused_or_opened_only_so_far() -> None:
    bomb = deflated(bytes(64 * MIB), 9)
    with pytest.raises(FormatError, match="its input this much"):
        InflateSource(BytesSource(bomb), 0, len(bomb), len(bomb) * inflate.MAX_RATIO + 1)
    with traced_memory() as memory:
        with pytest.raises(FormatError, match="longer than stated"):
            InflateSource(BytesSource(bomb), 0, len(bomb), 1000).read(0, 1000)
        assert InflateSource(BytesSource(bomb), 0, len(bomb), 64 * MIB).read(40 * MIB, 5) == bytes(5)
    assert memory.peak < 4 * MIB


def test_a_part_outside_its_file() -> None:
    parent: Source = BytesSource(b"abc")
    with pytest.raises(FormatError, match="ends too early"):
        InflateSource(parent, 2, 2, 10)


@pytest.mark.mutation
def test_without_memory_of_past_places_order_is_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InflateSource, "_remember", lambda self, state: None)
    with pytest.raises(AssertionError):
        test_a_little_out_of_order_costs_little(1)


@pytest.mark.mutation
def test_without_the_look_behind_the_end_lies_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InflateSource, "_check_end", lambda self, state: None)
    for name in ("no end mark", "longer than stated", "wrong sum", "broken in the next chunk", "followed by others"):
        with pytest.raises(pytest.fail.Exception):
            test_a_stream_that_lies(name)
