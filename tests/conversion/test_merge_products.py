"""`wb merge` of every recorded model, also of those that see or hear: laws of values, names, config and files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.conversion.product_models import (
    SEEING,
    TEXT,
    assert_equal,
    errors,
    tensors_of,
    write_model,
    write_seeing,
)

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.conversion.merging.methods import METHODS
from weighbridge.models.open import open_model

Write = Callable[..., Path]
CASES = [*((name, write_model) for name in TEXT), *((name, write_seeing) for name in SEEING)]
every_model = pytest.mark.parametrize(("name", "write"), CASES, ids=[f"{w.__name__[6:]}-{n}" for n, w in CASES])


def merged(out: Path, sources: list[Path], **options: Any) -> dict[str, Any]:
    """The tensors of a merge, whose config and errors are those of the first model."""
    wb.merge(sources, f"{out}/", **options)
    first = options.get("merge_base", sources[0])
    assert json.loads((out / "config.json").read_text()) == json.loads((first / "config.json").read_text())
    assert errors(out) <= errors(first)
    return tensors_of(out)


@every_model
def test_a_model_merged_with_itself_is_itself(name: str, write: Write, tmp_path: Path) -> None:
    a = write(name, tmp_path / "a")
    expected = tensors_of(a)
    assert_equal(merged(tmp_path / "line", [a, a], method="slerp", t=0.3), expected, 1e-6)
    assert_equal(merged(tmp_path / "mean", [a, a], method="linear"), expected, 1e-6)


@every_model
def test_means_and_differences(name: str, write: Write, tmp_path: Path) -> None:
    a, b = write(name, tmp_path / "a"), write(name, tmp_path / "b", 7)
    first, second = tensors_of(a), tensors_of(b)
    mean = {n: (t / 2 + second[n] / 2).astype(t.dtype) if t.dtype == np.float32 else t for n, t in first.items()}
    assert_equal(merged(tmp_path / "mean", [a, b], method="linear"), mean, 1e-6)
    there = merged(tmp_path / "there", [b], method="task_arithmetic", merge_base=a, weight=[1.0])
    assert_equal(there, second, 1e-5)


#: What a method needs besides two models.
OPTIONS: dict[str, dict[str, Any]] = {
    "slerp": {"t": 0.3}, "nearswap": {"t": 0.3}, "linear": {"weight": [0.5]}, "karcher": {}, "passthrough": {},
}  # fmt: skip


@pytest.mark.parametrize("name", ["olmoe", "mamba2", "t5", "qwen4exp"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_keeps_names_and_types(method: str, name: str, tmp_path: Path) -> None:
    row = METHODS[method]
    sources = [write_model(name, tmp_path / str(seed), seed) for seed in range(3)]
    options = OPTIONS.get(method, {"weight": [0.5]} if "weight" in row.per_model else {})
    if row.base == "needed":
        options = {**options, "merge_base": sources[2]}
    found = merged(tmp_path / "out", sources[: min(2, row.models[1] + (row.base == "end"))], method=method, **options)
    expected = tensors_of(sources[0])
    assert {n: (t.dtype, t.shape) for n, t in found.items()} == {n: (t.dtype, t.shape) for n, t in expected.items()}
    assert all(np.isfinite(t).all() for t in found.values() if t.dtype == np.float32)


@pytest.mark.parametrize("name", TEXT)
def test_layers_are_stacked_or_nothing_is_written(name: str, tmp_path: Path) -> None:
    a, b = write_model(name, tmp_path / "a"), write_model(name, tmp_path / "b", 7)
    with open_model(a) as model:
        layers = model.config.get("text_config", model.config).get("num_hidden_layers")
    if not isinstance(layers, int):
        return
    sources = [f"- sources: [{{model: {m}, layer_range: [{lo}, {layers}]}}]" for m, lo in ((a, 0), (b, layers - 1))]
    (tmp_path / "recipe.yaml").write_text("\n".join(["merge_method: passthrough", "slices:", *sources]))
    try:
        wb.merge(tmp_path / "recipe.yaml", f"{tmp_path / 'out'}/")
    except (UsageError, UnsupportedError):
        assert not (tmp_path / "out").exists()
        return
    assert errors(tmp_path / "out") <= errors(a)
    asked = {name for name in tensors_of(a) if not any(int(n) >= layers for n in re.findall(r"layers\.(\d+)\.", name))}
    assert tensors_of(tmp_path / "out").keys() >= asked  # without those that predict further tokens


def test_integers_that_differ_are_refused(tmp_path: Path) -> None:
    a, b = write_model("qwen4exp", tmp_path / "a"), write_model("qwen4exp", tmp_path / "b")
    tensors = load_file(b / "model.safetensors")
    number = next(n for n, tensor in tensors.items() if tensor.dtype == np.int64)
    save_file({**tensors, number: tensors[number] + 1}, b / "model.safetensors", {"format": "pt"})
    with pytest.raises(UsageError, match="has integers, which differ between"):
        wb.merge([a, b], f"{tmp_path / 'out'}/", method="linear")


def test_the_number_of_models_is_said_in_english(tmp_path: Path) -> None:
    a = write_model("olmoe", tmp_path / "a")
    with pytest.raises(UsageError, match="slerp merges 1 model besides the base, not 0"):
        wb.merge([a], f"{tmp_path / 'out'}/", method="slerp", t=0.5, merge_base=a)
