"""A source that is read by ranges gives the bytes of a local one, whatever is read in whatever order, and asks for
little more than was read."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.remote.servers import FileServer

import weighbridge as wb
from weighbridge.base.dtypes import F32
from weighbridge.base.errors import FormatError
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Layout
from weighbridge.containers.gguf.values import KV
from weighbridge.containers.gguf.write import layout as gguf_layout
from weighbridge.containers.safetensors import layout as safetensors_layout
from weighbridge.io import ranges
from weighbridge.io.ranges import FIRST, REQUEST, WINDOW, RangeCache, RangeSource, _Piece

DATA = random.Random(1).randbytes(1 << 20)


class Memory:
    """A `RemoteFile` over bytes, which counts what it is asked."""

    def __init__(self, data: bytes = DATA, version: str = "1") -> None:
        self.data, self.name, self.size, self.version = data, "memory", len(data), version
        self.asked: list[tuple[int, int]] = []

    def fetch(self, offset: int, out: memoryview, stopped: Callable[[], bool]) -> None:
        self.asked.append((offset, len(out)))
        out[:] = self.data[offset : offset + len(out)]

    @property
    def bytes(self) -> int:
        return sum(length for _, length in self.asked)


def source(file: Memory, limit: int = 1 << 20) -> RangeSource:
    return RangeSource(file, RangeCache(limit))


@given(
    st.lists(st.tuples(st.integers(0, len(DATA)), st.integers(0, 1 << 18)), max_size=8),
    st.lists(st.tuples(st.integers(0, len(DATA)), st.integers(0, 1 << 18)), max_size=4),
    st.sampled_from([1, 1 << 16, 1 << 20, 1 << 24]),
)
def test_any_reads_give_the_bytes(
    reads: list[tuple[int, int]], advised: list[tuple[int, int]], limit: int
) -> None:  # fmt: skip
    with source(Memory(), limit) as remote:
        remote.advise(advised)
        for offset, length in reads:
            length = min(length, len(DATA) - offset)
            assert remote.read(offset, length) == DATA[offset : offset + length]


def test_long_reads_are_cut_and_put_together() -> None:
    data = DATA * 15
    file = Memory(data)
    with source(file) as remote:
        assert remote.read(7, len(data) - 9) == data[7:-2]
    assert max(length for _, length in file.asked) == REQUEST
    assert file.bytes == len(data) - 9


def test_a_stream_is_read_in_growing_windows_and_ahead() -> None:
    data = DATA * 12
    file = Memory(data)
    with source(file, 1 << 26) as remote:
        for at in range(0, len(data), 65_536):
            remote.read(at, min(65_536, len(data) - at))
    assert file.bytes == len(data)
    assert len(file.asked) <= len(data) // WINDOW + 6


def test_a_header_costs_little_more_than_itself() -> None:
    file = Memory()
    with source(file) as remote:
        remote.stream(FIRST)
        remote.read(0, 8)
        remote.read(8, 5000)
    assert file.asked == [(0, FIRST)]


def test_announced_neighbours_are_one_request() -> None:
    file = Memory()
    with source(file) as remote:
        remote.advise([(1000, 500), (0, 900), (1500, 100), (1 << 19, 10)])
        assert remote.read(1000, 600) == DATA[1000:1600]
        assert remote.read(1 << 19, 10) == DATA[1 << 19 : (1 << 19) + 10]
    assert sorted(file.asked) == [(0, 1600), (1 << 19, 10)]


def test_a_stream_that_was_left_does_not_follow_announced_ranges() -> None:
    """Neither does it go on where it was left, nor is a range that was used and dropped asked for again."""
    step = 100_000
    file = Memory(DATA * 12)
    with source(file, 1 << 23) as remote:
        for at in range(0, WINDOW, step):
            remote.read(at, step)
        wait([piece.future for piece in [*remote._running] if piece.future])  # what was read ahead
        here = sum(length for _, length in file.asked)
        far = range(len(DATA) * 8, len(DATA) * 12 - step, step)
        for at in far:
            remote.advise([(at, step)])
            assert remote.read(at, step) == (DATA * 12)[at : at + step]
    assert file.bytes == here + len(far) * step


def test_memory_is_bounded() -> None:
    cache = RangeCache(1 << 18)
    file = Memory()
    with RangeSource(file, cache) as remote:
        remote.advise([(0, len(DATA))])
        assert cache.bytes <= cache.limit
        for at in range(0, len(DATA), 10_000):
            remote.read(at, min(10_000, len(DATA) - at))
            assert cache.bytes <= cache.limit + WINDOW


def test_announcements_take_the_place_of_a_stream() -> None:
    """Who announces knows what is next: a stream beside it would take the room of what was announced."""
    step = 1 << 18
    file = Memory(DATA * 12)
    with source(file, 1 << 24) as remote:
        remote.stream(WINDOW)
        for at in range(0, 3 * WINDOW, step):
            remote.advise([(at, step)])
            remote.read(at, step)
        assert len(file.asked) == 1 + 2 * WINDOW // step
        assert max(offset + length for offset, length in file.asked) == 3 * WINDOW


def test_announced_neighbours_travel_in_requests_of_equal_length() -> None:
    file = Memory(DATA * 12)
    with source(file, 1 << 26) as remote:
        remote.advise([(at, 500_000) for at in range(0, 9_000_000, 500_000)])
        assert remote.read(0, 4 << 20) == (DATA * 12)[: 4 << 20]
    assert sorted(file.asked) == [(0, 3_000_000), (3_000_000, 3_000_000), (6_000_000, 3_000_000)]


def test_memory_is_used_again_when_nobody_reads_it() -> None:
    size = 1 << 16
    cache, key = RangeCache(2 * size), ("file", "1")
    first, second, third = (_Piece(i * size, (i + 1) * size, size) for i in range(3))
    assert cache.add(key, first, ahead=True)
    assert cache.add(key, second, ahead=True)
    assert not cache.add(key, third, ahead=True)  # the others are still expected to be read
    memory = first.data.obj  # type: ignore[union-attr]
    first.readers = 1
    cache.touch(first, size)
    assert not cache.add(key, third, ahead=True)  # a thread copies from it
    first.readers = 0
    assert cache.add(key, third, ahead=True)
    assert third.data.obj is memory  # type: ignore[union-attr]
    assert cache.bytes == 2 * size
    assert cache.at(key, 0) == (None, size)


def test_what_was_announced_and_never_read_gives_way_when_its_source_is_closed() -> None:
    cache, others = RangeCache(1 << 18), Memory(version="2")
    with RangeSource(Memory(), cache) as remote:
        remote.advise([(0, 1 << 18)])
        remote.read(0, 1)
    with RangeSource(others, cache) as remote:
        for piece in list(cache._order):
            wait([piece.future] if piece.future else [])
        remote.advise([(0, 1 << 18)])
        assert remote.read(0, 1 << 18) == DATA[: 1 << 18]
    assert all(length == cache.request for _, length in others.asked)
    assert len(others.asked) == (1 << 18) // cache.request


def test_threads_that_share_little_room_get_their_bytes() -> None:
    """Memory is used again while others read."""
    data = DATA * 4
    file = Memory(data)
    step = 100_000
    with source(file, 1 << 19) as remote, ThreadPoolExecutor(6) as pool:

        def read(at: int) -> bool:
            remote.advise([(at, step)])
            return remote.read(at, step) == data[at : at + step]

        assert all(pool.map(read, [at for _ in range(3) for at in range(0, len(data) - step, step)]))


def test_what_was_read_is_kept_for_the_next_source_of_the_same_version() -> None:
    cache, file = RangeCache(), Memory()
    for _ in range(3):
        with RangeSource(file, cache) as remote:
            remote.read(0, 10)
    assert len(file.asked) == 1
    other = Memory(bytes(len(DATA)), "2")
    with RangeSource(other, cache) as remote:
        assert remote.read(0, 10) == bytes(10)


def test_threads_share_a_source() -> None:
    with source(Memory(), 1 << 24) as remote, ThreadPoolExecutor(8) as pool:
        places = [random.Random(i).randrange(len(DATA) - 5000) for i in range(200)]
        found = list(pool.map(lambda at: remote.read(at, 5000), places))
    assert found == [DATA[at : at + 5000] for at in places]


def test_a_fault_is_raised_where_the_bytes_are_read_and_the_next_read_tries_again() -> None:
    class Failing(Memory):
        fails = True

        def fetch(self, offset: int, out: memoryview, stopped: Callable[[], bool]) -> None:
            if self.fails:
                raise OSError("no")
            super().fetch(offset, out, stopped)

    file = Failing()
    with source(file) as remote:
        remote.advise([(0, 100)])
        with pytest.raises(OSError, match="no"):
            remote.read(0, 10)
        file.fails = False
        assert remote.read(0, 10) == DATA[:10]


def test_what_lies_beyond_the_end_is_never_asked_for() -> None:
    file = Memory()
    with source(file) as remote, pytest.raises(FormatError):
        remote.read(len(DATA) - 5, 10)
    assert not file.asked


def test_bounds_are_those_that_the_docs_tell() -> None:
    assert (ranges.CACHE, ranges.CONNECTIONS, ranges.REQUEST) == (64 << 20, 32, 4 << 20)


def header_of(shape: str, count: int) -> Layout:
    """A header of `count` tokens or tensors, before 12 MB of weights."""
    weight = ("w", Spec((3 << 10, 1 << 10), F32))
    names = [f"model.layers.{n}.mlp.up_proj.weight" for n in range(count)]
    tokens = [f"{n:0{4 + n % 9}}" for n in range(count)]
    vocabulary = {
        "tokenizer.ggml.tokens": KV("arr[str]", tokens),
        "tokenizer.ggml.token_type": KV("arr[i32]", [1] * count),
    }
    merges = {"tokenizer.ggml.merges": KV("arr[str]", [f"{a} {b}" for a, b in pairwise(tokens)])}
    rest = {"general.architecture": "llama", "tokenizer.chat_template": "{{ x }}" * 500}
    tensors = [(name, Spec((32, 8), F32)) for name in names]
    match shape:
        case "safetensors":
            return safetensors_layout.layout([*tensors, weight], {"format": "pt"})
        case "gguf, tensors":
            return gguf_layout([*tensors, weight], rest)
        case "gguf, vocabulary":
            return gguf_layout([weight], {**rest, **vocabulary})
        case "gguf, merges":
            return gguf_layout([weight], {**rest, **vocabulary, **merges})
        case _:  # the other keys and tensors follow
            return gguf_layout([*tensors[:300], weight], {**vocabulary, **merges, **rest})


@pytest.mark.parametrize("count", [1, 400, 3000, 20_000])
@pytest.mark.parametrize(
    "shape", ["safetensors", "gguf, tensors", "gguf, vocabulary", "gguf, merges", "gguf, vocabulary first"]
)
def test_a_header_costs_a_third_more_than_its_bytes_and_three_requests(shape: str, count: int, tmp_path: Path) -> None:
    """Neither megabytes of weights follow it, nor does it take a request for every few kilobytes."""
    check_cost_of_header(shape, count, tmp_path)


@pytest.mark.costly
def test_a_header_of_12_mb_takes_three_requests(tmp_path: Path) -> None:
    check_cost_of_header("gguf, merges", 260_000, tmp_path)


def check_cost_of_header(shape: str, count: int, tmp_path: Path) -> None:
    layout = header_of(shape, count)
    path = tmp_path / ("m.safetensors" if shape == "safetensors" else "m.gguf")
    with path.open("wb") as file:
        for at, piece in layout.pieces:
            file.seek(at)
            file.write(piece)
        file.truncate(layout.size)
    header = max(at + len(piece) for at, piece in layout.pieces)
    with FileServer({f"/{path.name}": path}).running() as server:
        assert wb.inspect(f"{server.url}/{path.name}").tensor_count
        asked = [request.sent for request in server.log if request.path == f"/{path.name}" and request.sent]
    assert sum(asked) <= 1.3 * header + (64 << 10)
    assert len(asked) <= 3


def test_a_header_that_expects_too_much_asks_for_no_more_than_a_header() -> None:
    """A count of a hostile file announces any length."""
    file = Memory(DATA * 40)
    with source(file, 1 << 26) as remote:
        remote.expect_header(1 << 20)
        assert not file.asked  # nobody reads a header
        remote.stream(FIRST)
        remote.expect_header(1 << 60)
        remote.read(ranges.HEADER_MOST - 1, 1)  # when it is here
    assert max(offset + length for offset, length in file.asked) <= ranges.HEADER_MOST
