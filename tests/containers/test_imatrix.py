"""Importance matrices: both forms, read, written, merged, compared; the GGUF form judged by the `gguf` package."""

from __future__ import annotations

import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.mutation import Check, assert_needed, cases, guards, red

from weighbridge.base.dtypes import F16, F32
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.containers.ggml import imatrix
from weighbridge.containers.gguf import container as gguf
from weighbridge.conversion.quantize.imatrix import ImatrixSums, ImportanceMatrix, compare, encode, merge, read
from weighbridge.io.source import BytesSource

RNG = np.random.default_rng(5)
UP, DOWN = "blk.0.ffn_up_exps.weight", "blk.0.ffn_down.weight"


def entry(counts: list[int], columns: int, inputs: bool = False) -> ImatrixSums:
    sums = RNG.random((len(counts), columns), np.float32) * 1000
    return ImatrixSums(sums, np.array(counts, np.int64), sums / np.float32(3) if inputs else None)


def matrix(**more: Any) -> ImportanceMatrix:
    entries = {DOWN: entry([1024], 8), UP: entry([512, 0, 300], 4, inputs=True)}
    return ImportanceMatrix(entries, ("a.txt", "b.txt"), 2, 512, **more)


def again(found: ImportanceMatrix, form: imatrix.ImatrixForm) -> ImportanceMatrix:
    return read(BytesSource(encode(found, form)))


def same(a: ImportanceMatrix, b: ImportanceMatrix) -> bool:
    return a.sizes() == b.sizes() and all(np.array_equal(a.weights(n), b.weights(n)) for n in a.entries)


def legacy(*entries: tuple[bytes, int, list[float]], tail: bytes = b"") -> bytes:
    """Made here by hand, from the description of the format."""
    out = struct.pack("<i", len(entries))
    for name, calls, values in entries:
        out += struct.pack("<i", len(name)) + name + struct.pack("<ii", calls, len(values))
        out += struct.pack(f"<{len(values)}f", *values)
    return out + tail


def test_legacy_by_hand() -> None:
    tail = struct.pack("<ii", 7, 5) + b"x.txt"
    data = legacy((b"b.weight", 4, [4.0, 2.0]), (b"a.weight", 0, [3.0]), tail=tail)
    found = read(BytesSource(data))
    assert (found.chunks, found.datasets, found.legacy, list(found.entries)) == (
        7,
        ("x.txt",),
        True,
        ["b.weight", "a.weight"],
    )
    assert found.weights("b.weight").tolist() == [1.0, 0.5]
    assert found.weights("a.weight").tolist() == [3.0]  # never called: as it stands
    assert encode(found, "legacy") == data
    assert read(BytesSource(data[: -len(tail)])).chunks == 0
    assert read(BytesSource(data[:-9])).datasets == ()  # chunks, and no name


def test_weights_are_means_and_one_where_nothing_was_seen() -> None:
    found = again(matrix(), "gguf")
    sums = found.entries[UP].sums
    want = np.concatenate([sums[0] / np.float32(512), np.ones(4, np.float32), sums[2] / np.float32(300)])
    assert np.array_equal(found.weights(UP), want)
    assert found.weights(UP).dtype == np.float32


@pytest.mark.oracle
def test_the_gguf_package_reads_what_is_written(tmp_path: Path) -> None:
    reader = pytest.importorskip("gguf").GGUFReader
    found = matrix(nextn=1)
    (tmp_path / "m.gguf").write_bytes(encode(found, "gguf"))
    theirs = reader(tmp_path / "m.gguf")
    assert theirs.fields["general.type"].contents() == "imatrix"
    assert theirs.fields["imatrix.datasets"].contents() == ["a.txt", "b.txt"]
    assert [theirs.fields[f"imatrix.{k}"].contents() for k in ("chunk_count", "chunk_size", "n_layer_nextn")] == [
        2,
        512,
        1,
    ]
    tensors = {t.name: t for t in theirs.tensors}
    assert list(tensors) == [DOWN + ".in_sum2", DOWN + ".counts", UP + ".in_sum2", UP + ".counts", UP + ".in_sum"]
    assert tensors[UP + ".in_sum2"].shape.tolist() == [4, 3]
    assert tensors[UP + ".counts"].data.tolist() == [[512], [0], [300]]
    assert np.array_equal(tensors[UP + ".in_sum2"].data, found.entries[UP].sums)
    inputs = found.entries[UP].inputs
    assert inputs is not None
    assert np.array_equal(tensors[UP + ".in_sum"].data, inputs)


def test_there_and_back() -> None:
    found = matrix()
    assert same(again(found, "gguf"), found)
    assert encode(again(found, "gguf"), "gguf") == encode(found, "gguf")
    old = again(found, "legacy")
    assert encode(old, "legacy") == encode(found, "legacy")
    assert old.datasets == ("b.txt",)
    # 300 of 512 tokens are one call, and the idle matrix weighs one
    assert np.allclose(old.weights(UP), found.weights(UP), rtol=1e-6)
    assert old.entries[UP].counts.tolist() == [1]
    assert np.allclose(again(old, "gguf").weights(DOWN), found.weights(DOWN), rtol=1e-6)


def test_entries_that_were_never_used_have_no_place_in_a_legacy_file() -> None:
    found = ImportanceMatrix({DOWN: entry([0], 2), UP: entry([1], 2)}, chunk_size=1)
    assert list(again(found, "legacy").entries) == [UP]
    with pytest.raises(UsageError, match="at least one"):
        encode(ImportanceMatrix({DOWN: entry([0], 2)}), "legacy")


def test_merging_adds() -> None:
    a, b = (
        matrix(),
        ImportanceMatrix(
            {UP: entry([1, 2, 3], 4, inputs=True), "z.weight": entry([800], 2)}, ("c.txt",), 1, 512, nextn=2
        ),
    )
    both = merge([a, b])
    assert list(both.entries) == sorted([UP, DOWN, "z.weight"])
    assert both.entries[UP].counts.tolist() == [513, 2, 303]
    assert np.array_equal(both.entries[UP].sums, a.entries[UP].sums + b.entries[UP].sums)
    assert both.entries[UP].inputs is not None
    assert (both.datasets, both.chunks, both.chunk_size, both.nextn) == (("a.txt", "b.txt", "c.txt"), 2, 512, 2)
    assert merge([ImportanceMatrix({DOWN: entry([800], 2)}, chunk_size=512)]).chunks == 2  # rounded
    assert merge([ImportanceMatrix({DOWN: entry([700], 2)}, chunk_size=512)]).chunks == 1


def test_merging_with_a_legacy_one_counts_its_tokens() -> None:
    old = ImportanceMatrix({DOWN: entry([3], 8), UP: entry([2], 12)}, legacy=True)
    both = merge([matrix(), old])
    assert both.entries[DOWN].counts.tolist() == [1024 + 3 * 512]
    assert both.entries[UP].counts.tolist() == [512 + 1024, 1024, 300 + 1024]
    assert both.entries[UP].inputs is None
    assert merge([ImportanceMatrix({DOWN: entry([3], 8)}, legacy=True)]).chunk_size == 512


@pytest.mark.parametrize(
    ("other", "why"), [(entry([1], 9), "values"), (entry([1, 1], 4), "counts")], ids=["another size", "other matrices"]
)
def test_merging_two_models_is_refused(other: ImatrixSums, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        merge([ImportanceMatrix({DOWN: entry([1, 1, 1, 1], 2)}), ImportanceMatrix({DOWN: other})])


def test_merging_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing"):
        merge([])


def test_comparing_with_a_model() -> None:
    tensors = [
        (DOWN, Spec((3, 8), F16)),
        (UP, Spec((3, 9, 4), F16)),
        ("x.weight", Spec((2, 2), F16)),
        ("n", Spec((8,), F32)),
    ]
    fit = compare(matrix(), tensors)
    assert (fit.unknown, fit.missing, fit.wrong_size) == ((), ("x.weight",), ())
    fit = compare(matrix(), [(DOWN, Spec((3, 16), F16))])
    assert (fit.unknown, fit.missing, fit.wrong_size) == ((UP,), (), ((DOWN, 16, 8),))
    assert matrix().only([UP]).sizes() == {UP: 12}


def test_counts_are_rounded_as_lround_does() -> None:
    parts = [("x.in_sum2", Spec((2, 1), F32)), ("x.counts", Spec((2, 1), F32))]
    found = read(BytesSource(file(parts, [[1, 1], [2.5, 0.4]])))
    assert found.entries["x"].counts.tolist() == [3, 0]


# -- bad files -------------------------------------------------------------------------------------------------------

META = {"imatrix.datasets": ["d"], "imatrix.chunk_count": 1, "imatrix.chunk_size": 512}


def file(
    tensors: list[tuple[str, Spec]], data: list[list[float]] | None = None, metadata: dict[str, Any] = META
) -> bytes:
    place = gguf.layout(tensors, metadata)
    out = bytearray(place.size)
    out[: len(place.pieces[0][1])] = place.pieces[0][1]
    for slot, numbers in zip(place.slots, data or [], strict=False):
        out[slot.offset : slot.offset + 4 * len(numbers)] = struct.pack(f"<{len(numbers)}f", *numbers)
    return bytes(out)


ONE, GOOD = Spec((1, 1), F32), [("x.in_sum2", Spec((2, 3), F32)), ("x.counts", Spec((2, 1), F32))]
BAD = {
    "empty": (b"", "ends inside"),
    "no entries": (legacy(), "isn't an importance matrix"),
    "too many entries": (struct.pack("<i", 9) + bytes(60), "isn't an importance matrix"),
    "negative": (struct.pack("<i", -1) + bytes(60), "isn't an importance matrix"),
    "no name": (legacy((b"", 1, [1.0])) + bytes(9), "without a name"),
    "a long name": (legacy((b"n" * 257, 1, [1.0])), "no length"),
    "no values": (legacy((b"name", 1, [])) + bytes(9), "without values"),
    "calls below zero": (legacy((b"name", -1, [1.0])), "without values"),
    "values cut off": (legacy((b"name", 1, [1.0, 2.0]))[:-1], "ends inside"),
    "twice": (legacy((b"name", 1, [1.0]), (b"name", 1, [1.0])), "one name"),
    "a tail cut off": (legacy((b"name", 1, [1.0]), tail=b"\1\0"), "ends inside"),
    "a name of a data set too long": (legacy((b"name", 1, [1.0]), tail=struct.pack("<ii", 1, 9) + b"x"), "no length"),
    "more after the tail": (legacy((b"name", 1, [1.0]), tail=struct.pack("<ii", 1, 1) + b"xy"), "follow the end"),
    "not finite": (legacy((b"name", 1, [1.0, float("nan")])), "not finite"),
    "a model": (file(GOOD, metadata={"general.architecture": "llama"}), "isn't an importance matrix"),
    "no tensors": (file([]), "without entries"),
    "no counts": (file(GOOD[:1]), "without counts"),
    "no sums": (file(GOOD[1:]), "without counts"),
    "f16": (file([GOOD[0], ("x.counts", Spec((2, 1), F16))]), "another type"),
    "uneven": (file([GOOD[0], ("x.counts", Spec((4, 1), F32))]), "go together"),
    "no matrix": (file([GOOD[0], ("x.counts", Spec((0, 1), F32))]), "go together"),
    "sums of another size": (file([*GOOD, ("x.in_sum", ONE)]), "go together"),
    "chunks as text": (file(GOOD, metadata={**META, "imatrix.chunk_count": "1"}), "no u32"),
    "a count that is none": (file(GOOD, [[1] * 6, [1, float("inf")]]), "not a valid number"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files(case: str) -> None:
    data, why = BAD[case]
    with pytest.raises(FormatError, match=why):
        read(BytesSource(data))


def test_a_set_of_data_sets_that_is_no_list_is_passed_over() -> None:
    assert read(BytesSource(file(GOOD, metadata={**META, "imatrix.datasets": 4}))).datasets == ()


def test_names_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="1 to 256"):
        encode(ImportanceMatrix({"n" * 257: entry([1], 1)}, legacy=True), "legacy")


# -- mutations -------------------------------------------------------------------------------------------------------


CHECKS: list[Check] = [
    *cases(test_bad_files),
    test_names_that_do_not_fit_are_refused,
    test_entries_that_were_never_used_have_no_place_in_a_legacy_file,
]


@pytest.mark.mutation
@pytest.mark.parametrize(("module", "guard"), guards(imatrix))
def test_every_guard_is_needed(module: ModuleType, guard: str) -> None:
    assert not any(map(red, CHECKS))
    assert_needed(module, guard, CHECKS)
