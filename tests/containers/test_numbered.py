"""Names of numbered sets: what is one, what it says, the names of the rest."""

from __future__ import annotations

import pytest

from weighbridge.containers.numbered import numbered, sets


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("model-00002-of-00003.safetensors", ("model", 2, 3, ".safetensors")),
        ("a-b.fp16-000012-of-000100.gguf", ("a-b.fp16", 12, 100, ".gguf")),
        ("m-00001-of-00002-00003-of-00004.bin", ("m-00001-of-00002", 3, 4, ".bin")),
        ("model-00000-of-00000.npz", ("model", 0, 0, ".npz")),
        ("model-1-of-3.safetensors", None),
        ("-00001-of-00003.safetensors", None),
        ("model-00001-of-00003", None),
        ("model-00001-of-00003.safetensors.index.json", None),
        ("model-0000001-of-00003.safetensors", None),
        ("model-\u0660\u0660\u0660\u0660\u0661-of-00003.safetensors", None),  # digits, but not of ASCII
        ("model-00001-of-00003.safetensors\n", None),
    ],
)
def test_what_a_name_says(name: str, wanted: tuple[str, int, int, str] | None) -> None:
    one = numbered(name)
    assert (one and (one.stem, one.number, one.total, one.suffix)) == wanted
    if one and 1 <= one.number <= one.total:
        assert list(one.names())[one.number - 1] == name


def test_names_are_those_of_huggingface_hub() -> None:
    hub = pytest.importorskip("huggingface_hub")
    split = hub.split_state_dict_into_shards_factory(
        {f"t{i}": None for i in range(12)},
        get_storage_size=lambda tensor: 10,
        get_storage_id=lambda tensor: None,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=10,
    )
    theirs = sorted(split.filename_to_tensors)
    (members,) = sets(theirs).values()
    assert [m.number for m in members] == list(range(1, 13))
    assert list(members[5].names()) == theirs


def test_sets_are_told_apart() -> None:
    names = [
        "a-00001-of-00002.x",
        "a-00002-of-00002.x",
        "a-00001-of-00003.x",
        "b-00001-of-00002.x",
        "a-00001-of-00002.y",
    ]
    assert {name: len(found) for name, found in sets([*names, "config.json"]).items()} == {
        "a-*-of-00002.x": 2, "a-*-of-00003.x": 1, "b-*-of-00002.x": 1, "a-*-of-00002.y": 1,
    }  # fmt: skip
