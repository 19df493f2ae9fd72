"""Invariant: parse(any bytes) is an index or a FormatError; a lenient parse too, and it never refuses what a strict one
takes; regions cover every byte; checks never fail; what was parsed and can be written is read back the same.

`python tests/fuzz/fuzz_gguf.py --seconds 60` runs it for longer.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that it also runs alone

from tests.containers._gguf import ARR, BOOL, I16, STR, File, Item, Tensor, good
from tests.containers.regions import check_regions
from tests.plugins import all_toys
from tests.toys.toy_block_type import TOY

from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.containers.base import Index
from weighbridge.containers.gguf import container as gguf
from weighbridge.io.source import BytesSource

context = all_toys


def target(data: bytes) -> Index:
    source = BytesSource(data)
    try:
        lenient = gguf.parse(source, level="lenient")
    except FormatError:
        _is_refused(data)
        raise
    check_regions(list(gguf.regions(source)), len(data))
    gguf.check(lenient, deep=True)
    index = gguf.parse(source)
    assert index.entries == lenient.entries
    assert index.findings == lenient.findings
    for entry in index:
        assert len(source.read(entry.offset, min(entry.nbytes, 64))) == min(entry.nbytes, 64)
    _survives(index)
    return index


def _is_refused(data: bytes) -> None:
    try:
        gguf.parse(BytesSource(data))
    except FormatError:
        return
    raise AssertionError("strict takes what lenient refuses")


def _survives(index: Index) -> None:
    assert isinstance(index.metadata, gguf.Metadata)
    try:
        header = gguf.header_bytes([(e.name, e.spec) for e in index], index.metadata)
    except (UsageError, UnsupportedError):  # what llama.cpp would refuse isn't written
        return
    again = gguf.parse(
        BytesSource(header + bytes(sum(-(-e.nbytes // index.alignment) for e in index) * index.alignment))
    )
    assert [(e.name, e.spec) for e in again] == [(e.name, e.spec) for e in index]
    assert isinstance(again.metadata, gguf.Metadata)
    for key in index.metadata:
        a, b = index.metadata.kv(key), again.metadata.kv(key)
        assert a.type == b.type
        assert str(a.value) == str(b.value)  # as text, since NaN differs from itself


def seeds() -> list[bytes]:
    old, big, nested = good(), good(), good()
    old.version, old.keys = 1, [(k, v) for k, v in old.keys if v.type < 10]
    big.order = ">"
    deep = Item(ARR, [Item(ARR, [1, 2], I16), Item(ARR, ["a", ""], STR), Item(ARR, [], BOOL)], ARR)
    nested.keys = [("k", deep), ("general.alignment", Item(4, 8))]
    nested.alignment = 8
    odd = File(
        tensors=[Tensor("a", [8], offset=64), Tensor("b", [0, 4]), Tensor("c", [32], 8, offset=0)], data=bytes(96)
    )
    toy = File(tensors=[Tensor("t", [TOY.block, 2], TOY.ggml or 0)], data=bytes(2 * TOY.size))
    return [f.bytes() for f in (good(), old, big, nested, odd, toy, File())]


if __name__ == "__main__":
    from harness import main

    main(target, seeds, context=context)
