"""Sharded sets: what the index says, whether the shards agree, how sets are cut and written.

Oracles: huggingface_hub's split rule and the index file that it writes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.base.dtypes import dtype
from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.spec import Spec
from weighbridge.containers import sharded
from weighbridge.containers.base import Index, Severity
from weighbridge.containers.safetensors import container as safetensors
from weighbridge.io.source import BytesSource, Source

F32 = dtype("F32")
A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
GOOD = {"a": A, "b": B}


def index_file(weight_map: object, path: str = "model.safetensors.index.json", **metadata: object) -> Source:
    return BytesSource(json.dumps({"metadata": metadata, "weight_map": weight_map}).encode(), path)


def shard(name: str, *tensors: str, metadata: dict[str, str] | None = None) -> Index:
    layout = safetensors.layout([(t, Spec((2,), F32)) for t in tensors], metadata, align=8)
    return safetensors.parse(BytesSource(layout.pieces[0][1].ljust(layout.size, b"\1"), name))


def shards(**tensors: list[str]) -> dict[str, Index]:
    return {f"model-{no.removeprefix('s')}-of-00002.safetensors": shard("x", *names) for no, names in tensors.items()}


PAIR = {A: shard(A, "a"), B: shard(B, "b")}


def rules(weight_map: object, found: dict[str, Index], names: Any = (), **metadata: Any) -> set[str]:
    metadata.setdefault("total_size", 16)
    index = sharded.parse_index(index_file(weight_map, **metadata))
    return {f.rule.removeprefix("sharded/") for f in sharded.check(index, found, names or found)}


# ---- the index file


def test_an_index_is_read() -> None:
    index = sharded.parse_index(index_file(GOOD, total_size=16, extra={"k": [1, None]}))
    assert dict(index.weight_map) == GOOD
    assert index.files == (A, B)
    assert index.metadata == {"total_size": 16, "extra": {"k": [1, None]}}
    assert index.findings == ()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"weight_map":null}',
        b'{"weight_map":[]}',
        b'{"weight_map":{"a":1}}',
        b'{"weight_map":{"a":null}}',
        b'{"weight_map":{"a":"x"}}{}',
        b'{"weight_map":{"a":NaN}}',
        b"\xff\xfe{}",
        b'{"weight_map":' + b'{"a":' * 100_000,
        b'{"metadata":' + b"[" * 200 + b"]" * 200 + b',"weight_map":{}}',
    ],
)
def test_what_is_no_index_is_a_format_error(raw: bytes) -> None:
    with pytest.raises(FormatError, match=r"m\.index\.json"):
        sharded.parse_index(BytesSource(raw, "m.index.json"))


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../a.safetensors",
        "a/../../b",
        "/etc/passwd",
        "sub/a.safetensors",
        "C:a",
        "C:\\a",
        "\\\\host\\a",
        "..\\a",
        "a\0b",
        "a\nb",
        "a:stream",
        "\u202ea",
    ],
)
def test_a_shard_name_that_could_leave_the_folder_is_refused(name: str) -> None:
    with pytest.raises(FormatError, match="not a plain file name"):
        sharded.parse_index(index_file({"a": A, "b": name}))


def test_a_tensor_listed_twice_is_told() -> None:
    raw = b'{"weight_map":{"a":"x.safetensors","a":"y.safetensors"}}'
    index = sharded.parse_index(BytesSource(raw, "i"))
    assert index.weight_map == {"a": "y.safetensors"}
    assert [(f.rule, f.tensor) for f in index.findings] == [("sharded/repeated-name", "a")]


@pytest.mark.parametrize(
    ("name", "is_index"),
    [
        ("model.safetensors.index.json", True),
        ("pytorch_model.bin.index.json", True),
        ("model.fp16.safetensors.index.json", True),
        ("diffusion_pytorch_model.safetensors.index.fp16.json", True),
        ("config.json", False),
        ("model.safetensors", False),
        ("index.json", False),
    ],
)
def test_index_names(name: str, is_index: bool) -> None:
    assert sharded.is_index(name) is is_index


# ---- index against shards: the catalogue of what breaks in the wild


@pytest.mark.parametrize(
    ("weight_map", "found", "extra_names", "metadata", "expected"),
    [
        pytest.param(GOOD, PAIR, [], {}, set(), id="good"),
        pytest.param(
            {"a": A}, {A: PAIR[A]}, [], {"total_size": 8}, {"numbering"}, id="second shard neither listed nor there"
        ),
        pytest.param(GOOD, {A: PAIR[A]}, [], {}, {"missing-shard"}, id="shard missing"),
        pytest.param({**GOOD, "c": B}, PAIR, [], {}, {"missing-tensor"}, id="index lists a tensor the shard lacks"),
        pytest.param(
            {"a": A, "b": A},
            PAIR,
            [],
            {"total_size": 8},
            {"misplaced-tensor", "numbering", "stray-shard"},
            id="wrong shard",
        ),
        pytest.param(
            GOOD, {A: PAIR[A], B: shard(B, "b", "c")}, [], {"total_size": 24}, {"unlisted-tensor"}, id="unlisted"
        ),
        pytest.param(
            GOOD, {A: shard(A, "a", "b"), B: PAIR[B]}, [], {"total_size": 24}, {"repeated-tensor"}, id="in two"
        ),
        pytest.param(GOOD, PAIR, ["model-00003-of-00003.safetensors"], {}, {"stray-shard"}, id="stray shard"),
        pytest.param(GOOD, PAIR, ["model.safetensors"], {}, {"stray-file"}, id="stray whole model"),
        pytest.param(GOOD, PAIR, ["consolidated.safetensors"], {}, {"stray-file"}, id="Mistral's copy"),
        pytest.param(GOOD, PAIR, ["tokenizer.json", "vae-00001-of-00002.safetensors"], {}, set(), id="other files"),
        pytest.param(GOOD, PAIR, [], {"total_size": 17}, {"total-size"}, id="wrong total_size"),
        pytest.param(GOOD, PAIR, [], {"total_size": "16"}, {"total-size"}, id="total_size is text"),
        pytest.param(GOOD, PAIR, [], {"total_size": 16.0}, set(), id="total_size is a float"),
        pytest.param(GOOD, PAIR, [], {"total_size": None}, {"no-total-size"}, id="no total_size"),
        pytest.param(GOOD, PAIR, [], {"total_size": 4}, {"other-total"}, id="parameters counted"),
        pytest.param(
            GOOD, PAIR, [], {"total_size": sum(i.files[0].size for i in PAIR.values())}, {"other-total"}, id="files"
        ),
        pytest.param(
            {"a": A, "b": "model-00002-of-00003.safetensors"},
            {A: PAIR[A], "model-00002-of-00003.safetensors": PAIR[B]},
            [],
            {},
            {"numbering", "mixed-sets"},
            id="mixed sets",
        ),
        pytest.param(
            {"a": "model-00000-of-00001.safetensors"},
            {"model-00000-of-00001.safetensors": PAIR[A]},
            [],
            {"total_size": 8},
            {"numbering"},
            id="numbers from 0",
        ),
        pytest.param(
            {**GOOD, "c": A}, {A: shard(A, "a", metadata={"c": "a"}), B: PAIR[B]}, [], {}, {"alias"}, id="alias"
        ),
    ],
)
def test_disagreements(
    weight_map: dict[str, str],
    found: dict[str, Index],
    extra_names: list[str],
    metadata: dict[str, Any],
    expected: set[str],
) -> None:
    assert rules(weight_map, found, [*found, *extra_names], **metadata) == expected


def test_several_things_wrong_are_told_together() -> None:
    found = rules({**GOOD, "c": B, "d": "gone.safetensors"}, PAIR, [*PAIR, "model.safetensors"], total_size=1)
    assert found == {"missing-tensor", "missing-shard", "stray-file"}


# ---- several files as one


def test_merge_numbers_the_files() -> None:
    whole = sharded.merge([PAIR[A], PAIR[B]], sharded.parse_index(index_file(GOOD, total_size=16)))
    assert [(e.name, e.file) for e in whole] == [("a", 0), ("b", 1)]
    assert [whole.files[e.file].read(e.offset, e.nbytes) for e in whole] == [b"\1" * 8] * 2
    assert whole.data_start == (*PAIR[A].data_start, *PAIR[B].data_start)


def test_merge_takes_the_tensor_that_the_index_names() -> None:
    both = [shard(A, "a", "b"), PAIR[B]]
    index = sharded.parse_index(index_file(GOOD, total_size=24))
    assert [(e.name, e.file) for e in sharded.merge(both, index)] == [("a", 0), ("b", 1)]
    with pytest.raises(FormatError, match="'b' is in two files"):
        sharded.merge(both)


@pytest.mark.parametrize("weight_map", [{**GOOD, "c": B}, {"a": A, "b": A}, {**GOOD, "c": "gone.safetensors"}])
def test_merge_never_lacks_a_tensor_silently(weight_map: dict[str, str]) -> None:
    with pytest.raises(FormatError):
        sharded.merge([PAIR[A], PAIR[B]], sharded.parse_index(index_file(weight_map)))


def test_merge_keeps_all_metadata() -> None:
    one, two = shard(A, "a", metadata={"k": "1", "l": "1"}), shard(B, "b", metadata={"k": "2", "m": "2"})
    assert dict(sharded.merge([one, two]).metadata) == {"k": "1", "l": "1", "m": "2"}


# ---- writing, against huggingface_hub

sizes = st.lists(st.integers(1, 40), min_size=1, max_size=30)


@pytest.mark.oracle
@given(sizes, st.integers(4, 200))
def test_the_partition_is_that_of_huggingface_hub(counts: list[int], limit: int) -> None:
    hub = pytest.importorskip("huggingface_hub.serialization")
    specs = {f"t{i}": Spec((n,), F32) for i, n in enumerate(counts)}
    split = hub.split_state_dict_into_shards_factory(
        specs, get_storage_size=lambda s: s.nbytes, filename_pattern="model{suffix}.safetensors", max_shard_size=limit
    )
    ours = sharded.partition(specs.items(), limit)
    assert dict(zip(sharded.shard_names(len(ours)), ours, strict=True)) == split.filename_to_tensors
    assert sum(map(len, ours)) == len(specs)


@pytest.mark.oracle
def test_the_index_has_the_bytes_of_huggingface_hub(tmp_path: Path) -> None:
    hub, torch = pytest.importorskip("huggingface_hub"), pytest.importorskip("torch")
    state = {f"läyer.{i}": torch.zeros(i + 1) for i in range(9)}
    hub.save_torch_state_dict(state, tmp_path, max_shard_size=40, metadata={"who": "me"})
    specs = [(name, Spec((len(t),), F32)) for name, t in state.items()]
    parts = sharded.partition(specs, 40)
    where = {t: name for name, part in zip(sharded.shard_names(len(parts)), parts, strict=True) for t in part}
    ours = sharded.index_json(where, sum(spec.nbytes for _, spec in specs), {"who": "me"})
    assert ours == (tmp_path / "model.safetensors.index.json").read_bytes()
    index = sharded.parse_index(BytesSource(ours, "model.safetensors.index.json"))
    found = {name: safetensors.parse(BytesSource((tmp_path / name).read_bytes(), name)) for name in index.files}
    assert sharded.check(index, found, [p.name for p in tmp_path.iterdir()]) == ()


@given(sizes, st.integers(4, 200), st.integers(1, 5))
def test_no_shard_exceeds_its_bounds(counts: list[int], limit: int, most: int) -> None:
    specs = {f"t{i}": Spec((n,), F32) for i, n in enumerate(counts)}
    parts = sharded.partition(specs.items(), limit, most)
    assert sorted(n for p in parts for n in p) == sorted(specs)
    for part in parts:
        assert 1 <= len(part) <= most
        assert len(part) == 1 or sum(specs[n].nbytes for n in part) <= limit


def test_bounds_that_make_no_sense() -> None:
    assert sharded.partition([]) == [[]]
    for bad in (0, -1):
        with pytest.raises(UsageError):
            sharded.partition([], bad)
        with pytest.raises(UsageError):
            sharded.partition([], None, bad)
    with pytest.raises(UsageError):
        sharded.shard_names(0)
    with pytest.raises(UsageError):
        sharded.shard_names(100_001)
    assert sharded.shard_names(1) == ["model.safetensors"]
    assert sharded.shard_names(2, "m.fp16", ".gguf")[1] == "m.fp16-00002-of-00002.gguf"


# ---- each rule of `check` is one that some case needs


@pytest.mark.mutation
@pytest.mark.parametrize(
    "part", ["_check_listed", "_check_unlisted", "_check_numbers", "_check_strays", "_check_total"]
)
def test_a_check_that_does_nothing_is_noticed(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = ({**GOOD, "c": B, "e": A}, {A: shard(A, "a", "x"), B: shard(B, "b", "a")}, [A, B, "model.safetensors"])
    whole = rules(*everything, total_size=math.pi)
    whole |= rules({"a": A}, {A: PAIR[A]})
    monkeypatch.setattr(sharded, part, lambda *args: None)
    less = rules(*everything, total_size=math.pi) | rules({"a": A}, {A: PAIR[A]})
    assert less < whole


def test_severities() -> None:
    index = sharded.parse_index(index_file({**GOOD, "c": B}, total_size=1))
    severity = {f.rule: f.severity for f in sharded.check(index, PAIR)}
    assert severity == {"sharded/missing-tensor": Severity.ERROR, "sharded/total-size": Severity.WARNING}
