"""Sets of shards: headers equal to those that llama-gguf-split's own calls give, grouping by its rule, and what is
wrong with a set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.containers import _ggml
from tests.containers._gguf_models import metadata, model, noise, render, shards, tensors

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.containers.base import Index, Layout
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.gguf.container import KV
from weighbridge.io.source import BytesSource

needs_llama_cpp = pytest.mark.skipif(_ggml.library() is None, reason="xllamacpp isn't installed")
I8 = BY_NAME["I8"]


def sizes(*nbytes: int) -> list[tuple[str, Spec]]:
    return [(f"t{i}", Spec((n,), I8)) for i, n in enumerate(nbytes)]


def grouped(layouts: tuple[Layout, ...]) -> list[list[str]]:
    return [[slot.name for slot in layout.slots] for layout in layouts]


def reference(
    tensors: list[tuple[str, Spec]], by_bytes: int | None, by_number: int, first_empty: bool
) -> list[list[str]]:
    """llama-gguf-split's loop (split_strategy), step by step; a full first shard that it refuses is left out."""
    done: list[list[str]] = []
    current: list[str] = []
    if first_empty:
        done.append(current)
        current = []
    size = 0
    for i, (name, spec) in enumerate(tensors):
        n = -(-spec.nbytes // 32) * 32
        full = size + n > by_bytes if by_bytes else i > 0 and i < len(tensors) and i % by_number == 0
        if full and (current or not by_bytes):
            done.append(current)
            current, size = [], n
        else:
            size += n
        current.append(name)
    return [*done, current]


@given(st.lists(st.integers(0, 200), max_size=12), st.none() | st.integers(1, 400), st.integers(1, 5), st.booleans())
def test_grouping_is_the_reference_s(nbytes: list[int], limit: int | None, number: int, first_empty: bool) -> None:
    slots = sizes(*nbytes)
    layouts = gguf.split_layouts(slots, {}, None if limit else number, limit, first_empty)
    assert grouped(layouts) == reference(slots, limit, number, first_empty)


def test_by_default_128_tensors_a_shard() -> None:
    assert [len(g) for g in grouped(gguf.split_layouts(sizes(*[1] * 300), {}))] == [128, 128, 44]
    assert [len(g) for g in grouped(gguf.split_layouts([], {}))] == [0]


@needs_llama_cpp
@pytest.mark.oracle
@pytest.mark.parametrize(
    "options", [{"max_tensors": 5}, {"max_bytes": 9000}, {"max_tensors": 100, "no_tensor_first": True}], ids=str
)
def test_headers_are_the_reference_s(options: dict[str, Any]) -> None:
    """Byte for byte, from a file that carries split keys already."""
    keys = {"split.count": KV("u16", 0), **metadata(), "split.no": KV("u16", 0)}
    layouts = gguf.split_layouts(tensors(), keys, **options)
    assert len(layouts) > 1
    expected = _ggml.split_headers(render(gguf.layout(tensors(), keys)), grouped(layouts))
    assert [layout.pieces[0][1].ljust(len(e), b"\0") for layout, e in zip(layouts, expected, strict=True)] == expected
    for layout in layouts:
        assert _ggml.accepts(render(layout), with_data=True)


@needs_llama_cpp
@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("alignment", [32, 4096])
def test_llama_cpp_loads_the_set(alignment: int, tmp_path: Path) -> None:
    """Other alignments too, where llama-gguf-split's own output doesn't load."""
    import numpy as np
    from tests.oracles.llamacpp import numbers_in_subprocess

    keys = metadata() | ({} if alignment == 32 else {"general.alignment": KV("u32", alignment)})
    layouts = gguf.split_layouts(tensors(), keys, max_tensors=5)
    for number, layout in enumerate(layouts):
        (tmp_path / gguf.shard_name("m", number, len(layouts))).write_bytes(render(layout))
    (tmp_path / "whole.gguf").write_bytes(model())
    parts = numbers_in_subprocess(tmp_path / "m-00001-of-00003.gguf", [1, 5, 9])
    whole = numbers_in_subprocess(tmp_path / "whole.gguf", [1, 5, 9])
    assert not isinstance(parts, str), parts
    assert not isinstance(whole, str), whole
    assert np.array_equal(parts, whole)


@pytest.mark.oracle
def test_the_gguf_package_splits_alike(tmp_path: Path) -> None:
    """Its writer groups by the same rule and gives each shard the same keys, in its own order."""
    package = pytest.importorskip("gguf")
    np = pytest.importorskip("numpy")
    writer = package.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    for i in range(5):
        writer.add_tensor(f"t{i}", np.full(8, i, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ours = gguf.split_layouts(
        [(f"t{i}", Spec((8,), BY_NAME["F32"])) for i in range(5)], {"general.architecture": "llama"}, 2
    )
    for number, layout in enumerate(ours):
        data = (tmp_path / gguf.shard_name("m", number, 3)).read_bytes()
        theirs = gguf.parse(BytesSource(data))
        mine = gguf.parse(BytesSource(render(layout)))
        assert isinstance(theirs.metadata, gguf.Metadata)
        assert isinstance(mine.metadata, gguf.Metadata)
        assert theirs.metadata.kvs() == mine.metadata.kvs()
        assert theirs.entries == mine.entries


def test_bad_limits() -> None:
    with pytest.raises(UsageError, match="not both"):
        gguf.split_layouts([], {}, 1, 1)
    for limits in ((0, None), (None, 0)):
        with pytest.raises(UsageError, match="at least 1"):
            gguf.split_layouts([], {}, *limits)
    with pytest.raises(UsageError, match="too many"):
        gguf.split_layouts(sizes(*[1] * 65_536), {}, 1)


def test_names() -> None:
    assert gguf.shard_name("dir/m", 0, 12) == "dir/m-00001-of-00012.gguf"
    assert gguf.parse_shard_name("dir/m-00001-of-00012.gguf") == ("dir/m", 0, 12)
    assert gguf.parse_shard_name("a-00001-of-00002-00002-of-00002.gguf") == ("a-00001-of-00002", 1, 2)
    for name in ("m.gguf", "m-1-of-2.gguf", "m-00003-of-00002.gguf", "m-00000-of-00002.gguf", "m-00001-of-00002.ggufx"):
        assert gguf.parse_shard_name(name) is None


# -- merge ---------------------------------------------------------------------------------------------------------


def parsed(data: list[bytes]) -> list[Index]:
    return [gguf.parse(BytesSource(d, f"shard {i + 1}")) for i, d in enumerate(data)]


def test_merged_set_is_the_model() -> None:
    for order in ([0, 1, 2], [2, 0, 1]):
        merged = gguf.merge([parsed(shards())[i] for i in order])
        assert isinstance(merged.metadata, gguf.Metadata)
        assert [(e.name, e.spec) for e in merged] == tensors()
        assert list(merged.metadata) == list(metadata())
        assert merged.findings == ()
        assert [e.file for e in merged] == [0] * 5 + [1] * 5 + [2] * 2
        assert all(merged.files[e.file].read(e.offset, e.nbytes) == noise(e.name, e.nbytes) for e in merged)
        # Written as one file, it is the file that was never split.
        again = render(gguf.layout([(e.name, e.spec) for e in merged], merged.metadata))
        assert again == model()


def _with(number: int, **keys: KV) -> Callable[[list[Index]], list[Index]]:
    """Change split keys of one shard."""

    def change(indexes: list[Index]) -> list[Index]:
        index = indexes[number]
        assert isinstance(index.metadata, gguf.Metadata)
        kvs = index.metadata.kvs() | {f"split.{k.replace('_', '.')}": v for k, v in keys.items()}
        indexes[number] = replace(index, metadata=gguf.Metadata(kvs))
        return indexes

    return change


SETS: list[tuple[str, Callable[[list[Index]], list[Index]], set[str]]] = [
    ("whole", lambda i: i, set()),
    ("last missing", lambda i: i[:2], {"missing", "total"}),
    ("first missing", lambda i: i[1:], {"missing", "total"}),
    ("one twice", lambda i: [*i, i[1]], {"number", "total", "duplicate"}),
    ("one in place of another", lambda i: [i[0], i[1], i[1]], {"number", "missing", "total", "duplicate"}),
    ("wrong number", _with(2, no=KV("u16", 7)), {"missing", "number"}),
    ("no number", _with(2, no=KV("str", "x")), {"missing", "number"}),
    ("other count", _with(2, count=KV("u16", 4)), {"count"}),
    ("wrong total", _with(0, tensors_count=KV("i32", 11)), {"total"}),
]


def set_is_judged(change: Callable[[list[Index]], list[Index]], expected: set[str]) -> None:
    merged = gguf.merge(change(parsed(shards())))
    assert {f.rule.removeprefix("gguf/split-") for f in merged.findings} == expected


@pytest.mark.parametrize(("change", "expected"), [s[1:] for s in SETS], ids=[s[0] for s in SETS])
def test_set(change: Callable[[list[Index]], list[Index]], expected: set[str]) -> None:
    set_is_judged(change, expected)


def test_sets_that_cannot_be() -> None:
    with pytest.raises(UsageError):
        gguf.merge([])
    one, two, three = parsed(shards())
    with pytest.raises(FormatError, match="byte order"):
        gguf.merge([one, replace(two, byte_order=">"), three])


def test_a_count_that_lies_costs_nothing() -> None:
    merged = gguf.merge(_with(0, count=KV("u64", 1 << 60))(parsed(shards())))
    assert len(merged) == 12
