"""Merged models run: transformers and llama.cpp compute the same from the folder and the GGUF of one recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.llama import llama_tensors, make_folder
from tests.oracles import llamacpp, models

import weighbridge as wb

pytestmark = pytest.mark.oracle
IDS = (1, 5, 9, 40, 7, 2, 63, 30)
TWO = [{"model": "a"}, {"model": "b"}]
RECIPES: dict[str, dict[str, Any]] = {
    "linear": {"merge_method": "linear", "models": TWO, "parameters": {"weight": 0.5}},
    "slerp": {"merge_method": "slerp", "base_model": "a", "models": TWO, "parameters": {"t": [0.1, 0.9]}},
    "dare_ties": {
        "merge_method": "dare_ties", "base_model": "a", "models": [{"model": "b"}, {"model": "c"}],
        "parameters": {"density": 0.5, "weight": 0.4},
    },
    "longer": {
        "merge_method": "passthrough",
        "slices": [
            {"sources": [{"model": "a", "layer_range": [0, 2]}]}, {"sources": [{"model": "b", "layer_range": [0, 2]}]},
        ],
    },
}  # fmt: skip


@pytest.fixture
def parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, models.F32]:
    """The logits of three models, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate("abc"):
        weights = {key: (values * 3).astype(np.float32) for key, values in llama_tensors(seed).items()}
        make_folder(Path(name), tensors=weights, words=True)
    return {name: models.logits(Path(name), IDS) for name in "abc"}


@pytest.mark.parametrize("name", RECIPES)
def test_a_merged_model_runs(name: str, parents: dict[str, models.F32]) -> None:
    recipe = {**RECIPES[name], "dtype": "float32"}
    wb.merge(recipe, "merged")
    wb.merge(recipe, "merged.gguf", dtype="f32")
    expected = models.logits(Path("merged"), IDS)
    with llamacpp.Model(Path("merged.gguf")) as model:
        actual = model.logits(IDS)
    assert models.relative_error(actual, expected) < 1e-3
    assert all(models.relative_error(expected, logits) > 0.1 for logits in parents.values())


def test_a_merge_with_all_weight_on_one_model_computes_the_same(parents: dict[str, models.F32]) -> None:
    wb.merge(["a", "b"], "merged", method="linear", weight=[1, 0], dtype="f32")
    np.testing.assert_array_equal(models.logits(Path("merged"), IDS), parents["a"])
