"""Every byte has a name, in whole files and in broken ones."""

from __future__ import annotations

import pytest
from tests.containers._gguf import ARR, STR, File, Item, Tensor, good
from tests.containers._gguf_cases import PARSED, Case
from tests.containers.regions import check_regions

from weighbridge.containers.base import Region
from weighbridge.containers.gguf import container as gguf
from weighbridge.io.source import BytesSource


def regions(data: bytes) -> list[Region]:
    return check_regions(list(gguf.regions(BytesSource(data))), len(data))


@pytest.mark.parametrize(
    "case", [c for c in PARSED if c.error not in ("magic", "version") and len(c.data) >= 8], ids=lambda c: c.name
)
def test_no_gap_and_no_overlap(case: Case) -> None:
    regions(case.data)


def test_cut_off_anywhere() -> None:
    data = good().bytes()
    for size in range(8, len(data)):
        regions(data[:size])


def test_by_hand() -> None:
    file = File(keys=[("k", Item(ARR, ["ab", ""], STR))], tensors=[Tensor("t", [2])], trailing=b"zz")
    found = [(r.start, r.end, r.kind, r.label, r.value) for r in regions(file.bytes())]
    assert found == [
        (0, 4, "magic", "magic", "GGUF"),
        (4, 8, "version", "version", "3, little-endian"),
        (8, 16, "count", "number of tensors", "1"),
        (16, 24, "count", "number of key-values", "1"),
        (24, 32, "length", "length of key k", "1"),
        (32, 33, "key", "k", ""),
        (33, 37, "type", "type of k", "arr"),
        (37, 41, "type", "element type of k", "str"),
        (41, 49, "count", "number of elements of k", "2"),
        (49, 67, "value", "k", "2 x str: 'ab', ''"),
        (67, 75, "length", "length of name of t", "1"),
        (75, 76, "name", "t", ""),
        (76, 80, "count", "number of dimensions of t", "1"),
        (80, 88, "dims", "dimensions of t", "2"),
        (88, 92, "type", "type of t", "F32 (0)"),
        (92, 100, "offset", "offset of t", "0"),
        (100, 128, "padding", "to the start of the data", ""),
        (128, 136, "tensor", "t", "F32 [2]"),
        (136, 160, "padding", "to the alignment", ""),
        (160, 162, "unknown", "", ""),
    ]


@pytest.mark.parametrize(("version", "order"), [(1, "<"), (2, "<"), (3, ">")])
def test_fields_hold_what_their_regions_say(version: int, order: str) -> None:
    file = good()
    file.version, file.order = version, order
    if version == 1:
        file.keys = [(k, v) for k, v in file.keys if v.type < 10]
    data = file.bytes()
    named = {(r.kind, r.label): data[r.start : r.end] for r in regions(data)}
    assert named["key", "a.i16"] == b"a.i16"
    assert named["value", "a.i16"] == (-30_000).to_bytes(2, "little" if order == "<" else "big", signed=True)
    assert named["value", "general.architecture"] == b"llama"
    assert named["name", "blk.0.w"] == b"blk.0.w"
    assert len(named["dims", "dimensions of x"]) == (8 if version == 1 else 16)
    assert named["tensor", "x"] == bytes(range(24))
    assert not [r for r in regions(data) if r.kind == "unknown"]


def test_tensors_that_share_bytes_and_gaps_between_them() -> None:
    tensors = [Tensor("a", [16]), Tensor("b", [16], offset=32), Tensor("c", [8], offset=256)]
    data = File(tensors=tensors, data=bytes(300)).bytes()
    start = gguf.parse(BytesSource(data)).data_start[0]
    found = [(r.start - start, r.end - start, r.kind, r.label) for r in regions(data) if r.start >= start]
    assert found == [
        (0, 64, "tensor", "a"), (64, 96, "tensor", "b"), (96, 256, "unknown", ""),
        (256, 288, "tensor", "c"), (288, 300, "unknown", ""),
    ]  # fmt: skip


def test_cut_off_tensor_is_named() -> None:
    data = File(tensors=[Tensor("a", [64])]).bytes()[:-100]
    assert regions(data)[-1].value == "F32 [64], cut off"
