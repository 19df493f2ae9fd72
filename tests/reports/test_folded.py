"""`wb prove` and `lineage` of models whose class multiplies or normalizes weights when it runs, against folders made of
their GGUFs, whose weights have the results: the same model, unless a tensor really differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.conversion.product_models import to_gguf, turn, write_model

import weighbridge as wb

FOLDED = ["falcon-h1", "jais", "kimi-k3", "bitnet", "baichuan2", "sarvam"]
FILE = "model.safetensors"


def folder_of(name: str, folder: Path, dtype: Any) -> Path:
    """A recorded model in one type."""
    write_model(name, folder)
    tensors = {n: t.astype(dtype) if t.dtype == np.float32 else t for n, t in load_file(folder / FILE).items()}
    save_file(tensors, folder / FILE, {"format": "pt"})
    return folder


def verdicts(a: Path, b: Path, **options: Any) -> dict[str, str]:
    return {check.name: check.verdict for check in wb.prove(a, b, run=False, **options).checks}


def scaled(folder: Path, name: str, factor: float) -> None:
    tensors = load_file(folder / FILE)
    tensors[name] = (tensors[name].astype(np.float32) * np.float32(factor)).astype(tensors[name].dtype)
    save_file(tensors, folder / FILE, {"format": "pt"})


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "f32") for name in FOLDED), *((name, "bf16") for name in ("falcon-h1", "baichuan2"))]
)
def test_a_folder_with_the_results_in_its_weights_is_the_same_model(name: str, dtype: str, tmp_path: Path) -> None:
    a = folder_of(name, tmp_path / "a", {"f32": np.float32, "bf16": ml_dtypes.bfloat16}[dtype])
    gguf = to_gguf(a, tmp_path / "whole.gguf", dtype)
    wb.convert(gguf, tmp_path / "back", to="hf")
    assert {*verdicts(a, tmp_path / "back").values()} == {verdicts(a, gguf)["tensors"]} == {"same"}
    assert not wb.diff(a, tmp_path / "back")  # which compares the numbers
    pairs = wb.lineage([a, gguf, tmp_path / "back"]).pairs
    assert {pair.relation for pair in pairs} == {"same"}
    tensors = load_file(a / FILE)
    changed = turn(name, sorted(n for n, tensor in tensors.items() if np.any(tensor)))
    scaled(a, changed, -1.0)
    assert verdicts(a, tmp_path / "back")["tensors"] == "different", changed


#: Tensors that a class multiplies, normalizes or takes as they are.
SCALED = {
    "falcon-h1": ("model.layers.0.self_attn.k_proj.weight", "model.layers.1.feed_forward.up_proj.weight"),
    "jais": ("transformer.wte.weight",),
    "kimi-k3": ("language_model.model.layers.0.self_attention_res_proj.weight",),
    "bitnet": ("model.layers.0.mlp.down_proj.weight",),
    "sarvam": ("model.layers.1.mlp.gate.expert_bias",),
}


@pytest.mark.parametrize(("name", "dtype"), [*((name, "f32") for name in SCALED), ("falcon-h1", "bf16")])
def test_a_scale_is_found_and_named(name: str, dtype: str, tmp_path: Path) -> None:
    a = folder_of(name, tmp_path / "a", {"f32": np.float32, "bf16": ml_dtypes.bfloat16}[dtype])
    wb.convert(to_gguf(a, tmp_path / "a.gguf", dtype), tmp_path / "back", to="hf")
    factor = 1.001 if dtype == "f32" else 1.008  # the least that changes each number of 8 bits
    for changed in SCALED[name]:
        original = (tmp_path / "back" / FILE).read_bytes()
        scaled(tmp_path / "back", changed, factor)
        report = wb.prove(a, tmp_path / "back", run=False)
        (tensors,) = (check for check in report.checks if check.name == "tensors")
        assert (tensors.verdict, len(tensors.details)) == ("different", 1)
        assert {*verdicts(a, tmp_path / "a.gguf").values()} == {"same"}
        (tmp_path / "back" / FILE).write_bytes(original)


def test_the_length_of_rows_that_are_normalized_is_no_difference(tmp_path: Path) -> None:
    a = folder_of("baichuan2", tmp_path / "a", np.float32)
    b = folder_of("baichuan2", tmp_path / "b", np.float32)
    scaled(b, "lm_head.weight", 3.0)
    (check,) = (check for check in wb.prove(a, b, run=False).checks if check.name == "tensors")
    assert check.verdict == "same"
    assert check.details[0].startswith("lm_head.weight: the same with")


def test_factors_are_in_the_config_or_in_the_weights_and_not_in_both(tmp_path: Path) -> None:
    a = folder_of("falcon-h1", tmp_path / "a", np.float32)
    wb.convert(to_gguf(a, tmp_path / "a.gguf", "f32"), tmp_path / "back", to="hf")
    assert verdicts(a, tmp_path / "back", static=True)["factors"] == "not-checked"
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    (tmp_path / "back" / "config.json").write_text(json.dumps({**config, "key_multiplier": 0.61}))
    found = verdicts(a, tmp_path / "back")
    assert (found["factors"], found["tensors"]) == ("different", "different")
    other = folder_of("falcon-h1", tmp_path / "other", np.float32)  # the same weights under another factor
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "key_multiplier": 0.62}))
    found = verdicts(a, other)
    assert (found["factors"], found["settings"]) == ("different", "same")


def test_rounding_to_a_type_is_no_training(tmp_path: Path) -> None:
    """Half an ulp of the type and no more: one changed bit of a BF16 is a change."""
    a = folder_of("llama-bare", tmp_path / "a", np.float32)
    tensors = load_file(a / FILE)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.json").write_bytes((a / "config.json").read_bytes())
    for error, relation in ((2.0**-23, "same"), (2.0**-10, "fine-tuned")):
        near = {n: (t * np.float32(1 + error)).astype(np.float32) for n, t in tensors.items()}
        save_file(near, tmp_path / "b" / FILE, {"format": "pt"})
        assert wb.lineage([a, tmp_path / "b"]).pairs[0].relation == relation
    for name in ("a", "b"):
        bits = 1 if name == "b" else 0
        half = {n: t.astype(ml_dtypes.bfloat16) for n, t in tensors.items()}
        near = {n: (t.view(np.uint16) + np.uint16(bits)).view(ml_dtypes.bfloat16) for n, t in half.items()}
        save_file(near, tmp_path / name / FILE, {"format": "pt"})
    assert wb.lineage([a, tmp_path / "b"]).pairs[0].relation == "fine-tuned"
