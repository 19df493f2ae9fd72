"""Which layers are of which kind, in each way that a table can say it; contradictions are told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.registry import family_of_hf
from weighbridge.models.arch.tables.layers import as_config, layer_sets, set_orders
from weighbridge.models.arch.tables.schema import LayerSetEntry

SEEN: dict[str, Any] = {
    "types": ["a", "b", "c", "a"],
    "layout": "split",
    "pattern": "M*M-",
    "heads": [0, 8, 8, 0],
    "flags": [True, False, False, True],
    "few": [1, 3],
    "nested": {"few": [2, 4]},
    "lo": 1,
    "step": 2,
    "all": 4,
    "none": 0,
    "@blk.2.x": True,
}


@pytest.mark.parametrize(
    ("source", "layers"),
    [
        ('types == "a"', {0, 3}),
        ('types in ("a", "c")', {0, 2, 3}),
        ('types == "z"', set()),
        ('pattern == "M"', {0, 2}),
        ('pattern == "*"', {1}),
        ('layout == "split"', {0, 1, 2, 3}),
        ('not layout == "split"', set()),
        ('layout == "joined"', set()),
        ("heads", {1, 2}),
        ("flags", {0, 3}),
        ("layer in few", {1, 3}),
        ("layer + 1 in few", {0, 2}),
        ("layer + 1 in nested.few", {1, 3}),
        ("layers[lo::step]", {1, 3}),
        ("layers[step - 1:3]", {1, 2}),
        ("layers[0:0]", set()),
        ("all", {0, 1, 2, 3}),
        ("none", set()),
        ('tensor("blk.{l}.x")', {2}),
        ("not known", {0, 2}),
        ("not (known or first)", {2}),
        ("not heads", {0, 3}),
        ("known and heads", {1}),
        ("known and all", {1, 3}),
        ("known and not none", {1, 3}),
        ("known and not all", set()),
        ('known and not types == "b"', {3}),
    ],
)
def test_a_set_is_read(source: str, layers: set[int]) -> None:
    kinds = {
        "known": LayerSetEntry(["layer in few"], []),
        "first": LayerSetEntry(["layers[:1]"], []),
        "it": LayerSetEntry(["absent", 'absent == "a"', "layer in absent", "layers[absent::2]", source], []),
    }
    assert layer_sets(kinds, "hf", SEEN, lambda _: 4)["it"] == layers


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('nothing == "a"', "tell the kinds of layers apart"),
        ('short == "a"', "entry per layer"),
        ("layer in wrong", "list of layers"),
        ("layer in far", "list of layers"),
        ("layer + 1 in far", "numbers from 1 to 4"),
        ("layer in words", "list of layers"),
        ("layers[lo::none]", "step between layers"),
        ("layers[lo - 4:]", "number of layers"),
    ],
)
def test_a_contradiction_is_told(source: str, words: str) -> None:
    seen = SEEN | {"short": ["a"], "wrong": 3, "far": [0, 4], "words": ["1"]}
    with pytest.raises(FormatError, match=words):
        layer_sets({"it": LayerSetEntry([source], [])}, "hf", seen, lambda _: 4)


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=9))
def test_lists_come_back(listed: list[str]) -> None:
    kinds = {
        "a": LayerSetEntry(['types in ("a", "old")'], []),
        "b": LayerSetEntry(['types == "b"'], []),
        "c": LayerSetEntry(['types == "c"'], []),
        "bs": LayerSetEntry(["layer in numbers", 'types == "b"'], []),
        "rest": LayerSetEntry(["not b"], []),
    }
    sets = layer_sets(kinds, "hf", {"types": listed}, lambda _: len(listed))
    said = as_config(kinds, sets, len(listed))
    assert said == {"types": listed, "numbers": [i for i, kind in enumerate(listed) if kind == "b"]}
    assert layer_sets(kinds, "hf", said, lambda _: len(listed)) == sets


@given(st.integers(1, 6), st.integers(1, 12), st.data())
def test_periods_come_back(period: int, count: int, data: st.DataObject) -> None:
    kinds = {"it": LayerSetEntry(["layers[offset::period]"], [])}
    sets = layer_sets(kinds, "hf", {"offset": data.draw(st.integers(0, period - 1)), "period": period}, lambda _: count)
    said = as_config(kinds, sets, count)
    assert layer_sets(kinds, "hf", said, lambda _: count) == sets
    assert said["offset"] < said["period"]  # transformers asks for it


def test_a_run_s_bounds_are_keys_of_their_own() -> None:
    assert as_config({"it": LayerSetEntry(["layers[count - shared:]"], [])}, {"it": frozenset({2, 3})}, 4) == {}


@pytest.mark.parametrize("source", ["few and flag", "few and not flag"])
@pytest.mark.parametrize("flag", [True, False])
def test_a_condition_comes_back(source: str, flag: bool) -> None:
    kinds = {"few": LayerSetEntry(["layer in few"], []), "it": LayerSetEntry([source], [])}
    sets = layer_sets(kinds, "hf", {"few": [1, 3], "flag": flag}, lambda _: 4)
    assert sets["it"] == ({1, 3} if flag == ("not" not in source) else set())
    assert as_config(kinds, sets, 4) == {"few": [1, 3], "flag": flag}
    assert as_config(kinds, {"few": frozenset(), "it": frozenset()}, 4) == {"few": []}  # no layer says it


def test_what_a_config_has_no_word_for_is_told() -> None:
    with pytest.raises(FormatError, match=r"no config\.json equivalent"):
        as_config({"a": LayerSetEntry(['types == "a"'], [])}, {"a": frozenset({0})}, 2)
    for layers in ({0, 1, 3}, {3, 4}):
        with pytest.raises(FormatError, match="no period"):
            as_config({"it": LayerSetEntry(["layers[lo::step]"], [])}, {"it": frozenset(layers)}, 6)


def test_a_published_nemotron_says_its_layers_by_letters() -> None:
    """What NVIDIA's files say and what transformers 5 makes of it are the same model, of the same family."""
    shared = {"architectures": ["NemotronHForCausalLM"], "num_hidden_layers": 4}
    for letters, words, name in (
        ("M*E-", ["linear_attention", "full_attention", "moe", "mlp"], "nemotronhmoe"),
        ("M*--", ["mamba", "attention", "mlp", "mlp"], "nemotronh"),
    ):
        by_letters, by_words = shared | {"hybrid_override_pattern": letters}, shared | {"layers_block_type": words}
        family = family_of_hf(by_letters)
        assert family.name == family_of_hf(by_words).name == name
        assert family.sizes_from_hf(by_letters) == family.sizes_from_hf(by_words)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.data())
def test_an_order_numbers_a_set_s_layers(numbers: list[int], data: st.DataObject) -> None:
    members = frozenset(data.draw(st.sets(st.sampled_from(range(len(numbers))))))
    kinds = {"it": LayerSetEntry([], [], order={"hf": "numbers"}), "other": LayerSetEntry([], [])}
    ((name, ordered),) = set_orders(kinds, "hf", {"numbers": numbers}, {"it": members, "other": members})
    assert name == "it"
    assert frozenset(ordered) == members
    assert [*ordered] == sorted(members, key=lambda layer: (numbers[layer], layer))


@pytest.mark.parametrize("numbers", [None, 3, [1], [1, "2"], [1, True], [1, -1], "12"])
def test_an_order_needs_a_number_for_each_layer(numbers: Any) -> None:
    kinds = {"it": LayerSetEntry([], [], order={"hf": "numbers"})}
    with pytest.raises(FormatError, match="numbers"):
        set_orders(kinds, "hf", {"numbers": numbers}, {"it": frozenset({0, 1})})


def test_a_set_of_another_index_has_its_values() -> None:
    kinds = {"it": LayerSetEntry(["layers[1:]"], [], index="p"), "usual": LayerSetEntry(["layers[1:]"], [])}
    sets = layer_sets(kinds, "hf", {}, lambda index: 5 if index == "p" else 3)
    assert sets == {"it": {1, 2, 3, 4}, "usual": {1, 2}}
