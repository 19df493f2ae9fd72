"""Reading: versions, byte orders, lazy arrays, files inside files, files cut off anywhere, counts that lie."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

import pytest
from tests.containers import _ggml
from tests.containers._gguf import ARR, F32, I16, STR, U8, U32, File, Item, Tensor, good
from tests.costs import traced_memory

from weighbridge.base.errors import FormatError
from weighbridge.containers.base import Index
from weighbridge.containers.gguf import container as gguf
from weighbridge.io.source import BytesSource, Source

WORDS = ["", "a", "größer", "\n"]


class Counting(BytesSource):
    """Counts what is read."""

    bytes_read = 0

    def _readinto(self, offset: int, out: memoryview) -> int:
        self.bytes_read += len(out)
        return super()._readinto(offset, out)


class Sparse(Source):
    """A few bytes, then zeros without end."""

    def __init__(self, head: bytes, size: int) -> None:
        self.head_bytes, self.size, self.name = head, size, "<sparse>"

    def _readinto(self, offset: int, out: memoryview) -> int:
        part = self.head_bytes[offset : offset + len(out)]
        out[: len(part)] = part
        out[len(part) :] = bytes(len(out) - len(part))
        return len(out)


def rules(index: Index) -> set[str]:
    return {f.rule.removeprefix("gguf/") for f in index.findings}


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("order", ["<", ">"])
def test_versions_and_byte_orders(version: int, order: str) -> None:
    file = good()
    file.version, file.order = version, order
    if version == 1:  # it had no 64-bit types
        file.keys = [(k, v) for k, v in file.keys if v.type < 10]
    index = gguf.parse(BytesSource(file.bytes()))
    expected = {
        "general.architecture": "llama", "a.u8": 200, "a.i8": -100, "a.u16": 60_000, "a.i16": -30_000,
        "a.i32": -(1 << 31), "a.f32": 0.5, "a.bool": True, "a.empty": "", "a.words": WORDS, "a.numbers": [1, -2, 3],
        "a.flags": [True, False], "a.none": [],
        **({} if version == 1 else {"a.u64": 1 << 63, "a.i64": -(1 << 63), "a.f64": 0.1}),
    }  # fmt: skip
    assert {k: index.metadata[k] for k in expected} == expected
    assert isinstance(index.metadata, gguf.Metadata)
    assert index.metadata.type("a.words") == "arr[str]"
    assert index.metadata.kv("a.i16") == gguf.KV("i16", -30_000)
    assert (index.version, index.byte_order, index.alignment) == (version, order, 32)
    assert [(e.name, e.dtype.name, e.shape) for e in index] == [
        ("x", "F32", (2, 3)), ("blk.0.w", "Q8_0", (2, 64)), ("scalar", "F16", ()),
    ]  # fmt: skip
    for entry in index:  # each tensor's data is 0, 1, 2 ...
        assert index.files[0].read(entry.offset, min(entry.nbytes, 8)) == bytes(range(min(entry.nbytes, 8)))
    assert rules(index) == {f"version-{version}"} - {"version-3"} | ({"big-endian"} if order == ">" else set())


@pytest.mark.oracle
@pytest.mark.skipif(_ggml.library() is None, reason="xllamacpp isn't installed")
def test_llama_cpp_sees_the_same() -> None:
    index, seen = gguf.parse(BytesSource(good().bytes())), _ggml.described(good().bytes())
    assert seen["data_start"] == index.data_start[0]
    assert [k.decode() for k, _ in seen["keys"]] == list(index.metadata)
    assert [(n.decode(), t, o + index.data_start[0], s) for n, t, o, s in seen["tensors"]] == [
        (e.name, e.dtype.ggml, e.offset, e.nbytes) for e in index
    ]


@pytest.mark.parametrize("before", [1, 7, 4096])
def test_inside_another_file(before: int) -> None:
    """Offsets and alignment count from where the GGUF begins."""
    data = good().bytes()
    outer = BytesSource(b"\x7f" * before + data + b"after")
    inner = gguf.parse(outer.window(before, len(data)))
    alone = gguf.parse(BytesSource(data))
    assert inner.entries == alone.entries
    assert dict(inner.metadata) == dict(alone.metadata)
    assert inner.findings == ()


# -- arrays --------------------------------------------------------------------------------------------------------


def long_vocabulary(count: int, order: str = "<", version: int = 3) -> File:
    words = [f"token {i}" * (i % 5) for i in range(count)]
    words[count // 2] = "x" * 3_000_000  # longer than any buffer of the reader
    return File(version=version, order=order, keys=[
        ("v.words", Item(ARR, words, STR)), ("v.scores", Item(ARR, [i / 8 for i in range(count)], F32)),
        ("v.last", Item(U32, 7)),
    ])  # fmt: skip


@pytest.mark.parametrize(("order", "version"), [("<", 3), (">", 3), ("<", 1)])
def test_long_arrays(order: str, version: int) -> None:
    file = long_vocabulary(30_000, order, version)
    words, scores = (item.value for _, item in file.keys[:2])
    index = gguf.parse(BytesSource(file.bytes()))
    lazy = index.metadata["v.words"]
    assert (len(lazy), lazy[0], lazy[29_999], lazy[-1]) == (30_000, words[0], words[29_999], words[-1])
    assert lazy[15_000] == words[15_000]
    assert lazy[255:258] == words[255:258]
    assert lazy[::-7001] == words[::-7001]
    assert lazy.tolist() == words
    assert list(lazy) == words
    assert "token 3token 3token 3" in lazy
    assert lazy.index("token 1") == 1
    assert [s.decode() for s in lazy.raw_strings(7, 9)] == words[7:9]
    assert index.metadata["v.scores"].tolist() == scores
    assert index.metadata["v.scores"][-3:] == scores[-3:]
    assert index.metadata["v.last"] == 7
    fresh = gguf.parse(BytesSource(file.bytes())).metadata
    assert fresh["v.words"].head() == words[:4]
    assert fresh["v.scores"].head(3) == scores[:3]
    assert repr(fresh["v.scores"]) == "<30000 x f32: 0.0, 0.125, 0.25, 0.375, ...>"
    with pytest.raises(IndexError):
        lazy[30_000]


def test_equality_of_arrays() -> None:
    a, b = (gguf.parse(BytesSource(long_vocabulary(5, order).bytes())).metadata["v.words"] for order in "<>")
    assert a == b
    assert a == b.tolist()
    assert a != [*b.tolist(), ""]
    assert a != ["", *b.tolist()[1:-1], "z"]
    assert a != "text"
    with pytest.raises(TypeError):
        hash(a)


def test_nested_arrays() -> None:
    deep = Item(
        ARR, [Item(ARR, [Item(ARR, [1, 2], I16), Item(ARR, [], I16)], ARR), Item(ARR, [Item(ARR, [3], I16)], ARR)], ARR
    )
    for order in "<>":
        index = gguf.parse(BytesSource(File(order=order, keys=[("k", deep), ("after", Item(U8, 5))]).bytes()))
        assert isinstance(index.metadata, gguf.Metadata)
        assert index.metadata["k"].tolist() == [[[1, 2], []], [[3]]]
        assert index.metadata.type("k") == "arr[arr[arr[i16]]]"
        assert index.metadata["k"][0][0][1] == 2
        assert index.metadata["after"] == 5
    strings = Item(ARR, [Item(ARR, ["a", "b"], STR), Item(ARR, [1.5], F32)], ARR)
    index = gguf.parse(BytesSource(File(keys=[("k", strings)]).bytes()))
    assert isinstance(index.metadata, gguf.Metadata)
    assert index.metadata.type("k") == "arr[arr]"
    assert index.metadata["k"].tolist() == [["a", "b"], [1.5]]


def test_strings_that_are_not_utf8_keep_their_bytes() -> None:
    file = File(keys=[("s", Item(STR, b"a\xff")), ("l", Item(ARR, [b"\xfe", "ü"], STR))])
    metadata = gguf.parse(BytesSource(file.bytes())).metadata
    assert metadata["s"].encode("utf-8", "surrogateescape") == b"a\xff"
    assert [s.encode("utf-8", "surrogateescape") for s in metadata["l"]] == [b"\xfe", "ü".encode()]


# -- cost ----------------------------------------------------------------------------------------------------------


@pytest.mark.costly
def test_arrays_are_stepped_over() -> None:
    """A vocabulary is read once, and neither kept nor decoded: memory stays at a buffer."""
    data = long_vocabulary(200_000).bytes()
    source = Counting(data)
    with traced_memory() as memory:
        index = gguf.parse(source)
    assert len(index.metadata["v.words"]) == 200_000
    assert memory.peak < 4 << 20
    assert source.bytes_read < len(data) * 1.01 + (1 << 20)


def test_tensor_data_is_not_read() -> None:
    file = File(tensors=[Tensor(f"t{i}", [1 << 20], 24) for i in range(20)], data=bytes(20 << 20))
    source = Counting(file.bytes())
    gguf.parse(source)
    assert source.bytes_read < 200_000


@pytest.mark.costly
def test_a_long_directory_is_linear() -> None:
    """30,000 tensors take a fraction of a second, not minutes."""
    file = File(tensors=[Tensor(f"blk.{i}.weight", [8]) for i in range(30_000)], data=bytes(960_000))
    data = file.bytes()
    began = time.process_time()
    assert len(gguf.parse(BytesSource(data))) == 30_000
    assert time.process_time() - began < 3


# -- damage --------------------------------------------------------------------------------------------------------


def test_cut_off_anywhere() -> None:
    """A file without its last n bytes is never read as whole; a lenient reader still gives what is there."""
    data = good().bytes()
    whole = gguf.parse(BytesSource(data))
    data_end = max(e.offset + e.nbytes for e in whole)
    for size in range(len(data)):
        cut = data[:size]
        if size < data_end:
            with pytest.raises(gguf.GGUFError) as caught:
                gguf.parse(BytesSource(cut))
            assert caught.value.rule in {"gguf/magic", "gguf/truncated-header", "gguf/truncated-data", "gguf/counts"}
        else:
            assert rules(gguf.parse(BytesSource(cut))) == {"final-padding"}
        if size >= 8:
            index = gguf.parse(BytesSource(cut), level="lenient")
            assert list(index.metadata.items()) == list(whole.metadata.items())[: len(index.metadata)]
            assert [e.name for e in index] == [e.name for e in whole][: len(index)]
            assert rules(index) & {"truncated-header", "truncated-data", "counts", "final-padding"}


def test_what_is_missing_is_told() -> None:
    data = good().bytes()
    whole = gguf.parse(BytesSource(data))
    second = whole.entries[1]
    with pytest.raises(gguf.GGUFError) as caught:
        gguf.parse(BytesSource(data[: second.offset + 5], "model.gguf"))
    need = max(e.offset + e.nbytes for e in whole)
    assert f"it has {second.offset + 5} of {need} bytes; data of the last 2 of 3 tensors is missing" in str(
        caught.value
    )
    assert "model.gguf" in str(caught.value)
    assert "download" in str(caught.value)
    assert caught.value.offset == second.offset + 5


@pytest.mark.parametrize("places", [("n_tensors",), ("n_keys",), ("n_tensors", "n_keys")])
@pytest.mark.parametrize("count", [1 << 20, 1 << 31, 1 << 63, (1 << 64) - 1])
def test_lying_counts_cost_nothing(places: tuple[str, ...], count: int) -> None:
    file = good()
    for place in places:
        setattr(file, place, count)
    _is_cheap(lambda: gguf.parse(BytesSource(file.bytes())), "counts")
    gguf.parse(BytesSource(file.bytes()), level="lenient")


@pytest.mark.parametrize("element", [U8, U32, STR, ARR])
@pytest.mark.parametrize("count", [1 << 20, 1 << 31, 1 << 63, (1 << 64) - 1])
def test_lying_array_lengths_cost_nothing(element: int, count: int) -> None:
    file = File(keys=[("k", Item(ARR, struct.pack("<Q", count) + bytes(4096), element))])
    _is_cheap(lambda: gguf.parse(BytesSource(file.bytes())), "truncated-header")


def _is_cheap(action: Callable[[], object], rule: str) -> None:
    began = time.process_time()
    with traced_memory() as memory, pytest.raises(gguf.GGUFError) as caught:
        action()
    assert memory.peak < 4 << 20
    assert time.process_time() - began < 1
    assert caught.value.rule == f"gguf/{rule}"


HUGE: list[tuple[str, Item, bytes, str]] = [
    ("array", Item(ARR, struct.pack("<Q", (1 << 30) + 1), U8), b"", "array-huge"),
    ("string in an array", Item(ARR, struct.pack("<QQ", 1, (1 << 30) + 1), STR), b"", "string-huge"),
]


@pytest.mark.parametrize(("item", "tail", "rule"), [h[1:] for h in HUGE], ids=[h[0] for h in HUGE])
def test_more_than_llama_cpp_takes(item: Item, tail: bytes, rule: str) -> None:
    """Over a gigabyte, which the specification allows: stepped over without being read."""
    head = File(keys=[("k", item)], header_pad=tail).bytes()
    index = gguf.parse(Sparse(head, (1 << 30) + (1 << 20)))
    assert rules(index) == {rule, "trailing"}


def test_a_glance_at_an_array_reads_a_page() -> None:
    head = File(keys=[("k", HUGE[0][1])]).bytes()
    array = gguf.parse(Sparse(head, (1 << 30) + (1 << 20))).metadata["k"]
    with traced_memory() as memory:
        assert repr(array) == "<1073741825 x u8: 0, 0, 0, 0, ...>"
    assert memory.peak < 1 << 20


def test_a_huge_string_is_allocated_only_when_it_is_there() -> None:
    head = File(keys=[("k", Item(STR, ""))], header_pad=b"").bytes()[:-8] + struct.pack("<Q", (1 << 30) + 1)
    _is_cheap(lambda: gguf.parse(Sparse(head, 1 << 20)), "truncated-header")


def test_a_source_that_shrinks_is_an_error_of_the_format() -> None:
    data = long_vocabulary(3_000).bytes()

    class Shrinking(BytesSource):
        def _readinto(self, offset: int, out: memoryview) -> int:
            return super()._readinto(offset, out) if offset < 100_000 else 0

    with pytest.raises(FormatError, match="shorter"):
        gguf.parse(Shrinking(data))


def test_lenient_keeps_the_first_of_two() -> None:
    file = File(keys=[("k", Item(U8, 1)), ("k", Item(U8, 2))], tensors=[Tensor("t", [8]), Tensor("t", [4])])
    index = gguf.parse(BytesSource(file.bytes()), level="lenient")
    assert index.metadata["k"] == 1
    assert [e.shape for e in index] == [(8,)]


@pytest.mark.parametrize(
    ("kind", "words"), [(4, "Q4_2.*removed"), (139, "IQ4_K.*ik_llama.cpp"), (77, "77, known are 0 to 42")]
)
def test_unknown_types_are_named(kind: int, words: str) -> None:
    with pytest.raises(gguf.GGUFError, match=words) as caught:
        gguf.parse(BytesSource(File(tensors=[Tensor("t", [256], kind)], data=bytes(512)).bytes()))
    assert caught.value.field == "tensor 't'"
