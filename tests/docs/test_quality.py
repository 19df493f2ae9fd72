"""The recipes of quantized files, and the tables that the docs make of them."""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.architecture import house
from tests.examples import examples

from weighbridge.base.dtypes import BY_NAME


def _recipes() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quality_recipes", house.ROOT / "benchmarks" / "recipes.py")
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


recipes = _recipes()
MODELS: list[dict[str, Any]] = recipes.read()


def test_the_page_is_made_of_the_recipes() -> None:
    text = recipes.PAGE.read_text("utf-8")
    assert recipes.page(text, MODELS) == text
    assert recipes.CURVES.read_text("utf-8") == recipes.curves(MODELS)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["title"])
def test_files_by_effect_are_no_larger(model: dict[str, Any]) -> None:
    for size in model["size"]:
        assert size["effects"][0] <= max(nbytes for nbytes, _, _ in size["contenders"].values())
        types = recipes.unpacked(size["types"])
        assert set(types.values()) <= {*BY_NAME}
        assert recipes.packed(types) == size["types"]


def test_a_recipe_has_the_types_of_each_tensor() -> None:
    types = {"output.weight": "Q6_K", "blk.0.ffn_up.weight": "Q4_K", "blk.2.ffn_up.weight": "Q5_K"}
    recipe = recipes.packed(types)
    assert recipe == {"output.weight": "Q6_K", "blk.*.ffn_up.weight": "Q4_K - Q5_K"}
    assert recipes.unpacked(recipe) == types
    assert recipes.tensor_types(types)[1] == r"^blk\.0\.ffn_up\.weight$=q4_k"


def test_a_recipe_is_read_as_written(tmp_path: Any) -> None:
    import tomllib

    row = {"name": "Q4_K", "contenders": {"Q4_K imatrix": (12, 0.5, 0.9)}, "effects": (11, 0.25, 0.95),
           "types": {"blk.*.ffn_up.weight": "Q4_K Q6_K"}}  # fmt: skip
    found = tomllib.loads(recipes.dumped({"title": "a", "chunks": 3}, [row, row]))
    expected = {**row, "contenders": {"Q4_K imatrix": [12, 0.5, 0.9]}, "effects": [11, 0.25, 0.95]}
    assert found == {"title": "a", "chunks": 3, "size": [expected, expected]}


@pytest.mark.parametrize(("kl", "winner"), [(0.25, "by effect"), (0.75, "Q4_K imatrix")])
def test_a_row_says_who_wins(kl: float, winner: str) -> None:
    contenders = {"Q4_K": [12, 0.6, 0.9], "Q4_K imatrix": [12, 0.5, 0.9]}
    size = {"name": "Q4_K", "contenders": contenders, "effects": [11, kl, 0.95], "types": {}}
    *_, row = recipes.tables([{"title": "a", "perplexity": 9.5, "chunks": 3, "size": [size]}])
    assert row.endswith(f"| {kl / 0.5:.2f} | {winner} |")


PARAGRAPHS = st.lists(st.text("abcdef ", min_size=1, max_size=300), max_size=6)


@examples(100)
@given(PARAGRAPHS, PARAGRAPHS, st.integers(0, 250), st.integers(60, 200))
def test_texts_share_no_run_of_letters(ours: list[str], others: list[str], start: int, length: int) -> None:
    if others:  # a part of a paragraph, inside of another one
        ours = [*ours, "x y" + others[0][start : start + length] + "z"]
    kept = recipes.disjoint("\n\n".join(ours), "\n\n".join(others))
    body, run = recipes.letters("".join(others)), recipes.COMMON
    for paragraph in kept.split("\n\n"):
        found = recipes.letters(paragraph)
        assert not any(found[i : i + run] in body for i in range(len(found) - run + 1))


def test_texts_without_common_runs_stay() -> None:
    text = "one two three\n\n" + "abc " * 40
    assert recipes.disjoint(text, "other words " * 30) == text
    assert recipes.disjoint(text, "abc" * 40) == "one two three"
