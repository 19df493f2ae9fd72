"""The walk over GGUF strings: native and Python give the same answer, whatever the bytes."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from weighbridge.base import native as door

HUGE = [(1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 64) - 8, 1 << 32, 0xFFFFFFFF]


@pytest.fixture(params=["native", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        monkeypatch.setattr(door, "native", None)
    elif door.native is None:
        pytest.skip("the extension isn't built")
    return str(request.param)


def pack(texts: list[bytes], width: int = 8, big: bool = False) -> bytes:
    code = (">" if big else "<") + {4: "I", 8: "Q"}[width]
    return b"".join(struct.pack(code, len(t)) + t for t in texts)


TEXTS = [b"", b"a", b"token", "Ġüber".encode(), b"\xff\xfe broken", b"x" * 300, b"nul\0inside"]


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("width", [4, 8])
def test_strings_are_found(width: int, big: bool, way: str) -> None:
    data = b"head" + pack(TEXTS, width, big) + b"rest"
    end = len(data) - 4
    assert door.skip_strings(data, 4, len(TEXTS), width, big) == (end, len(TEXTS))
    texts, at = door.read_strings(memoryview(data), 4, len(TEXTS), width, big)
    assert [t.encode("utf-8", "surrogateescape") for t in texts] == TEXTS
    assert at == end
    offsets = door.string_offsets(bytearray(data), 4, len(TEXTS), width, big)
    assert [data[a + width : b] for a, b in pairwise(offsets)] == TEXTS


@pytest.mark.parametrize("width", [4, 8])
def test_every_cut_stops_before_the_string_that_is_not_whole(width: int, way: str) -> None:
    data = pack(TEXTS, width)
    ends = [len(pack(TEXTS[:n], width)) for n in range(len(TEXTS) + 1)]
    for cut in range(len(data)):
        done = sum(end <= cut for end in ends) - 1
        assert door.skip_strings(data[:cut], 0, 99, width, False) == (ends[done], done)
        assert list(door.string_offsets(data[:cut], 0, 99, width, False)) == ends[: done + 1]
        assert door.read_strings(data[:cut], 0, 99, width, False)[1] == ends[done]


@pytest.mark.parametrize("length", HUGE)
@pytest.mark.parametrize("count", [1, *HUGE, 1 << 100])
def test_hostile_lengths_and_counts(length: int, count: int, way: str) -> None:
    """Lengths that would wrap a position, counts beyond any memory: a stop, at once."""
    data = pack([b"ok"]) + struct.pack("<Q", length) + b"abc"
    assert door.skip_strings(data, 0, count, 8, False) == (10, 1)
    assert list(door.string_offsets(data, 0, count, 8, False)) == [0, 10]
    assert door.read_strings(data, 0, count, 8, False) == (["ok"], 10)


def test_limits_of_the_count(way: str) -> None:
    data = pack(TEXTS)
    assert door.skip_strings(data, 0, 0, 8, False) == (0, 0)
    assert door.skip_strings(data, 0, 2, 8, False) == (17, 2)
    assert list(door.string_offsets(data, 0, 2, 8, False)) == [0, 8, 17]
    assert door.read_strings(data, 8, 1, 8, False) == (["a"], 17)
    assert door.skip_strings(data, len(data), 5, 8, False) == (len(data), 0)
    assert door.skip_strings(b"", 0, 5, 4, True) == (0, 0)


@pytest.mark.skipif(door.native is None, reason="the extension isn't built")
@given(st.binary(max_size=80), st.integers(0, 80), st.integers(0, 1 << 70), st.sampled_from([4, 8]), st.booleans())
@examples(300)
def test_native_equals_python_on_any_bytes(data: bytes, at: int, count: int, width: int, big: bool) -> None:
    at = min(at, len(data))
    both: list[list[object]] = []
    for module in (door.native, None):
        saved, door.native = door.native, module
        try:
            walks = (door.skip_strings, door.string_offsets, door.read_strings)
            both.append([walk(data, at, count, width, big) for walk in walks])
            both[-1].append(door.distinct_strings(data[at:], count, width, big))
        finally:
            door.native = saved
    assert both[0] == both[1]


@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("big", [False, True])
def test_distinct_strings(width: int, big: bool, way: str) -> None:
    different = [b"a", b"b", b"ab", "\u0120".encode(), b"\xff"]
    wrong: list[list[bytes]] = [[b"a", b"b", b"a"], [b"a", b""], [b"a\0b"], [b"\xff", b"a", b"\xff"]]
    assert door.distinct_strings(pack(different, width, big), len(different), width, big)
    assert door.distinct_strings(b"", 0, width, big)
    assert not door.distinct_strings(pack(different, width, big)[:-1], len(different), width, big)
    assert not door.distinct_strings(pack(different, width, big), 1 << 100, width, big)
    assert not any(door.distinct_strings(pack(texts, width, big), len(texts), width, big) for texts in wrong)
