"""Writing safetensors: the reference reads it back, its own bytes can be had, alignment is what is promised."""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.containers.regions import check_regions

from weighbridge.base.dtypes import BY_NAME, BY_SAFETENSORS, RANK, DType, dtype
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.base.limits import SAFETENSORS_HEADER
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Layout
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.containers.safetensors import layout as safetensors_layout
from weighbridge.io.source import BytesSource

Named = tuple[str, Spec]


def data_of(name: str, size: int) -> bytes:
    return (name.encode() + b"\x7f") * (size // (len(name.encode()) + 1) + 1) if size else b""


def written(layout: Layout) -> bytes:
    """The file of a layout, each tensor filled with bytes made from its name."""
    out = bytearray(layout.size)
    for offset, piece in layout.pieces:
        out[offset : offset + len(piece)] = piece
    for slot in layout.slots:
        out[slot.offset : slot.offset + slot.spec.nbytes] = data_of(slot.name, slot.spec.nbytes)[: slot.spec.nbytes]
    return bytes(out)


def shapes(t: DType) -> st.SearchStrategy[tuple[int, ...]]:
    sizes = st.sampled_from([0, 1, 2, 3, 5, 8, 64, 100])
    if t.block == 1:
        return st.lists(sizes, max_size=3).map(tuple)
    return st.lists(sizes, min_size=0, max_size=2).map(lambda s: (*s, t.block * 2))


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda n: n != "__metadata__")
types = st.sampled_from([BY_SAFETENSORS[n] for n in RANK])
specs = types.flatmap(lambda t: shapes(t).map(lambda s: Spec(s, t)))
tensors = st.dictionaries(names, specs, max_size=12).map(lambda d: list(d.items()))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
metadatas = st.dictionaries(texts, texts, max_size=4)


# ---- parse(layout(E)) = E


@given(tensors, metadatas, st.sampled_from(["aligned", "given", "reference"]), st.sampled_from([1, 8, 64, 4096]))
def test_what_is_written_is_read(named: list[Named], metadata: dict[str, str], order: Any, align: int) -> None:
    layout = safetensors.layout(named, metadata, order=order, align=align)
    data = written(layout)
    index = safetensors.parse(BytesSource(data), strict=True)
    assert {e.name: e.spec for e in index} == dict(named)
    assert index.metadata == metadata
    for e in index:
        assert data[e.offset : e.offset + e.nbytes] == data_of(e.name, e.nbytes)[: e.nbytes]
    assert {(s.name, s.offset) for s in layout.slots} == {(e.name, e.offset) for e in index}
    regions = check_regions(safetensors.regions(BytesSource(data)), len(data))
    assert "unknown" not in {r.kind for r in regions}


@pytest.mark.oracle
@given(tensors, metadatas)
def test_the_reference_reads_it(named: list[Named], metadata: dict[str, str]) -> None:
    rust = pytest.importorskip("safetensors")
    data = written(safetensors.layout(named, metadata, reserve=100))
    found = {name: (t["dtype"], tuple(t["shape"]), bytes(t["data"])) for name, t in rust.deserialize(data)}
    assert found == {n: (s.dtype.name, s.shape, data_of(n, s.nbytes)[: s.nbytes]) for n, s in named}


# ---- the reference's bytes


def by_reference(named: Sequence[Named], metadata: Mapping[str, str] | None) -> bytes:
    rust = pytest.importorskip("safetensors")
    buffers = {n: ctypes.create_string_buffer(data_of(n, s.nbytes)[: s.nbytes], max(s.nbytes, 1)) for n, s in named}
    torch_names = {t.safetensors: t.torch or t.numpy for t in BY_SAFETENSORS.values()}

    def spec(name: str, s: Spec) -> Any:
        shape = s.shape if s.dtype.name != "F4" else (*s.shape[:-1], s.shape[-1] // 2)  # it takes torch's packed shape
        where = ctypes.addressof(buffers[name])
        return rust.TensorSpec(dtype=torch_names[s.dtype.name], shape=list(shape), data_ptr=where, data_len=s.nbytes)

    return bytes(rust.serialize({n: spec(n, s) for n, s in named}, metadata))


# TensorSpec takes no 6-bit floats.
reference_tensors = tensors.map(lambda named: [(n, s) for n, s in named if s.dtype.block != 4])


@pytest.mark.costly
@pytest.mark.oracle
@given(reference_tensors, st.dictionaries(texts, texts, max_size=1))
@example([('a\\"\n\x1f\x7f/é😀', Spec((2,), dtype("F32")))], {'k"\x00': "\b\t\f\r"})
def test_reference_order_gives_the_references_bytes(named: list[Named], metadata: dict[str, str]) -> None:
    assert written(safetensors.layout(named, metadata, order="reference")) == by_reference(named, metadata or None)


def test_golden_bytes() -> None:
    layout = safetensors.layout([("attn.0", Spec((1, 2, 3), dtype("F32")))], order="reference")
    golden = b'@\0\0\0\0\0\0\0{"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}}'
    assert layout.pieces == ((0, golden),)
    assert layout.size == len(golden) + 24
    fp4 = safetensors.layout([("attn.0", Spec((1, 2), dtype("F4")))], order="reference").pieces[0][1]
    assert fp4 == b'@\0\0\0\0\0\0\0{"attn.0":{"dtype":"F4","shape":[1,2],"data_offsets":[0,1]}}    '


def test_metadata_is_sorted_so_that_bytes_do_not_vary() -> None:
    one = safetensors.layout([], {"b": "1", "a": "2"}).pieces
    assert one == safetensors.layout([], {"a": "2", "b": "1"}).pieces
    assert one[0][1][8:].startswith(b'{"__metadata__":{"a":"2","b":"1"}}')


# ---- alignment


def power(size: int) -> int:
    return min(size & -size, 4096) if size else 4096


@given(tensors, metadatas)
def test_every_tensor_starts_at_the_power_of_two_of_its_size(named: list[Named], metadata: dict[str, str]) -> None:
    layout = safetensors.layout(named, metadata)
    for slot in layout.slots:
        assert slot.offset % power(slot.spec.nbytes) == 0
        assert slot.offset % slot.spec.dtype.word == 0
    assert not safetensors.parse(BytesSource(written(layout))).findings or not all(
        n.isprintable() and n for n, _ in named
    )


def test_what_can_begin_at_a_page_does() -> None:
    f32 = dtype("F32")
    named = [
        ("small", Spec((3,), f32)),
        ("norm", Spec((16,), f32)),
        ("big", Spec((4, 1024), f32)),
        ("b", Spec((1024,), f32)),
    ]
    layout = safetensors.layout(named)
    assert [s.name for s in layout.slots] == ["big", "b", "norm", "small"]
    assert [s.offset % 4096 for s in layout.slots] == [0, 0, 0, 64]
    assert [s.name for s in safetensors.layout(named, order="given").slots] == [n for n, _ in named]


@pytest.mark.parametrize(("align", "reserve"), [(1, 0), (8, 0), (4096, 0), (4096, 5000), (8, 100)])
def test_reserved_space_is_there(align: int, reserve: int) -> None:
    head = safetensors.layout([("a", Spec((2,), dtype("F32")))], align=align, reserve=reserve).pieces[0][1]
    assert len(head) % align == 0
    assert int.from_bytes(head[:8], "little") == len(head) - 8
    assert len(head) - len(head.rstrip(b" ")) >= reserve


def test_a_header_can_be_made_to_measure() -> None:
    named = [("a", Spec((2,), dtype("F32")))]
    bare = safetensors.header_bytes(named, align=1)
    assert (
        safetensors.header_bytes(named, size=len(bare) + 7)
        == (len(bare) - 1).to_bytes(8, "little") + bare[8:] + b" " * 7
    )
    with pytest.raises(UsageError, match=f"needs {len(bare)} bytes, but only {len(bare) - 1}"):
        safetensors.header_bytes(named, size=len(bare) - 1)


# ---- what can't be written is refused before it is


@pytest.mark.parametrize(
    ("named", "metadata", "error"),
    [
        ([("__metadata__", Spec((), dtype("F32")))], {}, UsageError),
        ([("a", Spec((), dtype("F32")))] * 2, {}, UsageError),
        ([("\ud800", Spec((), dtype("F32")))], {}, UsageError),
        ([(1, Spec((), dtype("F32")))], {}, UsageError),
        ([("a", Spec((0, 2**64), dtype("F32")))], {}, UsageError),
        ([("a", Spec((32,), dtype("Q8_0")))], {}, UnsupportedError),
        ([("a", Spec((), dtype("C128")))], {}, UnsupportedError),
        ([], {"k": 1}, UsageError),
        ([], {1: "v"}, UsageError),
        ([], {"k": None}, UsageError),
        ([], {"k": "\udc00"}, UsageError),
    ],
)
def test_refused(named: Any, metadata: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        safetensors.layout(named, metadata)


def test_options_that_make_no_sense_are_refused() -> None:
    for bad in ({"align": 0}, {"align": 12}, {"reserve": -1}, {"order": "random"}):
        with pytest.raises(UsageError):
            safetensors.layout([], **bad)
    with pytest.raises(UsageError, match="refuse more than 100000000"):
        safetensors.layout([], reserve=SAFETENSORS_HEADER)
    layout = safetensors.layout([], {}, align=1, reserve=SAFETENSORS_HEADER - 2)
    assert layout.size == SAFETENSORS_HEADER + 8


def test_every_dtype_has_a_place_in_the_references_order() -> None:
    """The enum of tensor.rs 0.8.0, which its writer sorts by."""
    order = "BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ"
    order += " I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64"
    assert list(RANK) == order.split()
    for name in RANK:
        named = [(name, Spec((BY_NAME[name].block * 3,), BY_NAME[name]))]
        index = safetensors.parse(BytesSource(written(safetensors.layout(named))), strict=True)
        assert [(e.name, e.spec) for e in index] == named


@pytest.mark.mutation
@pytest.mark.parametrize(
    ("fault", "value"), [("_power", lambda size: size), ("_power", lambda size: 1), ("PAGE", 64), ("PAGE", 1 << 20)]
)
def test_a_wrong_alignment_is_noticed(fault: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    u8 = dtype("U8")
    named = [(f"{n}", Spec((n,), u8)) for n in (5000, 64, 8192, 4096, 1 << 20)]

    def order() -> list[str]:
        return [s.name for s in safetensors.layout(named).slots]

    assert order() == ["8192", "4096", "1048576", "64", "5000"]
    monkeypatch.setattr(safetensors_layout, fault, value)
    assert order() != ["8192", "4096", "1048576", "64", "5000"]


def test_no_tensors() -> None:
    assert json.loads(safetensors.layout([]).pieces[0][1][8:]) == {}
    assert math.log2(safetensors.layout([]).size) == 12
