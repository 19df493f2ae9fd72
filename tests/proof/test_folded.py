"""Models whose config's multipliers a GGUF has in its weights: the plan says so, and none is taken for a difference."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.oracles import models

import weighbridge as api
from weighbridge.conversion.options import GgufOptions, HfOptions

pytestmark = pytest.mark.oracle


def changed(folder: Path, out: Path, **config: object) -> Path:
    shutil.copytree(folder, out)
    said = json.loads((folder / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(said | config))
    return out


def test_a_folder_and_its_gguf_do_not_differ(
    folder_of: Callable[[str], Path], gguf_of: Callable[[str, str], Path], tmp_path: Path
) -> None:
    folder, gguf = folder_of("falcon-h1"), gguf_of("falcon-h1", "f32")
    for pair in ((folder, gguf), (gguf, folder)):
        found = api.diff(*pair, names="canonical")
        assert (found.same, len(found.notes)) == (True, 1), found.tensors
        assert "multipliers" in found.notes[0]
    other = api.diff(changed(folder, tmp_path / "other", key_multiplier=0.62), gguf, names="canonical")
    assert {change.name for change in other.tensors} == {f"layers.{n}.attention.k.weight" for n in range(2)}
    assert api.diff(folder, folder, names="canonical").notes == ()


def test_the_plan_says_which_are_in_the_weights(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    folder, settings = folder_of("falcon-h1"), GgufOptions(dtype="f32", tokenizer=False)
    (note,) = [n for n in api.plan_convert(folder, tmp_path / "a.gguf", to=settings).notes if "multiplied" in n]
    said, _, _ = note.partition(":")
    config = json.loads((folder / "config.json").read_text())
    single = {key for key in config if key.endswith("_multiplier")}
    assert set(said.split(", ")) == single | {f"ssm_multipliers[{n}]" for n in range(5)} | {
        f"mlp_multipliers[{n}]" for n in range(2)
    }
    ones = {key: 1.0 if key in single else [1.0] * len(config[key]) for key in config if "_multiplier" in key}
    plain = changed(folder, tmp_path / "plain", **ones)
    assert not [n for n in api.plan_convert(plain, tmp_path / "b.gguf", to=settings).notes if "multiplied" in n]


def test_a_product_comes_back_as_ones_and_itself(
    folder_of: Callable[[str], Path], gguf_of: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """All other tensors are the same again, the model computes the same, and its GGUF is the same file."""
    folder, gguf = folder_of("kimi-k3"), gguf_of("kimi-k3", "f32")
    found = api.diff(folder, gguf, names="canonical")
    assert (found.same, len(found.notes)) == (True, 1), found.tensors
    assert "product" in found.notes[0]
    assert len([n for n in api.plan_convert(gguf, tmp_path / "a", to="hf").notes if "product" in n]) == 1
    back = tmp_path / folder.name
    api.convert(gguf, back, to="hf")
    before, after = (load_file(path / "model.safetensors") for path in (folder, back))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        wanted = tensor
        if name.endswith("res_norm.weight"):
            wanted = np.ones_like(tensor)
        elif name.endswith("res_proj.weight"):
            wanted = tensor * before[name.replace("res_proj", "res_norm")]
        elif name.endswith("A_log"):
            wanted = np.where(np.arange(len(tensor)) < 4, tensor, 0)
        assert np.array_equal(after[name], wanted), name
    ids = [5 + 31 * n for n in range(20)]
    assert np.allclose(models.logits(folder, ids), models.logits(back, ids), rtol=0, atol=1e-3)
    again = tmp_path / "again.gguf"
    api.convert(back, again, to=GgufOptions(dtype="f32"))
    assert api.diff(again, gguf).same


def test_settings_of_a_part_go_with_its_codes(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    """A packed Kimi K3 states its packing in `text_config`: `wb verify` reads it there, a decoded copy has none."""
    folder, out = folder_of("kimi-k3-published"), tmp_path / "decoded"
    assert api.verify(folder).findings == ()
    api.convert(folder, out, to=HfOptions(dtype="bf16"))
    before, after = (json.loads((path / "config.json").read_text())["text_config"] for path in (folder, out))
    assert after == {key: value for key, value in before.items() if key != "quantization_config"}
