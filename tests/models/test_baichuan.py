"""Baichuan: what the last converter that took it made of it, and what tells its four models apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.models.family_judges import golden
from tests.models.record_families import values

import weighbridge as wb
from weighbridge.models.arch.registry import family_of_hf

OLDER: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "baichuan-older.json").read_text("utf-8"))
SETTLED = "baichuan.attention.head_count_kv"  # which the older one says too: as many as of queries


def test_an_older_converter_wrote_the_same() -> None:
    """The recorded one is b11549's with a line mended: the older one needs none."""
    now = golden()["baichuan"]
    assert [[name, shape, digest] for name, _, shape, digest in now["gguf"]] == OLDER["tensors"]
    then = {key: value for key, *value in OLDER["keys"]}
    assert then.pop(SETTLED) == then["baichuan.attention.head_count"]
    assert then == {key: value for key, *value in now["keys"] if not key.startswith("general.")}


def folder(parent: Path, **said: Any) -> Path:
    recorded, out = golden()["baichuan"], parent / "hf"
    out.mkdir()
    save_file({n: values(n, tuple(s)) for n, s in recorded["hf"].items()}, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text(json.dumps({**recorded["config"], **said}))
    return out


@pytest.mark.parametrize("name", ["BaichuanForCausalLM", "BaiChuanForCausalLM"])
def test_both_spellings_are_known(name: str) -> None:
    assert family_of_hf({"architectures": [name]}).name == "baichuan"


@pytest.mark.parametrize(("said", "unit"), [({}, False), ({"z_loss_weight": 0}, True), ({"z_loss_weight": 0.0}, True)])
def test_baichuan_2_has_an_output_of_length_1(said: dict[str, Any], unit: bool, tmp_path: Path) -> None:
    source = folder(tmp_path, **said)
    wb.convert(source, tmp_path / "a.gguf", dtype="f32", tokenizer=False)
    rows = values("lm_head.weight", tuple(golden()["baichuan"]["hf"]["lm_head.weight"]))
    with wb.open(tmp_path / "a.gguf") as model:
        found = np.asarray(model["output.weight"])
    assert np.array_equal(found, rows) is not unit
    assert np.allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-6) is unit
    wb.convert(tmp_path / "a.gguf", tmp_path / "back", tokenizer=False)
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert "z_loss_weight" not in config
    assert config["max_position_embeddings"] == config["model_max_length"] == 256
    assert np.array_equal(load_file(tmp_path / "back" / "model.safetensors")["lm_head.weight"], found)


def test_layers_that_llama_cpp_gives_no_positions_are_told(tmp_path: Path) -> None:
    losses = [x.message for x in wb.plan_convert(folder(tmp_path), tmp_path / "a.gguf", tokenizer=False).losses]
    assert any("num_hidden_layers = 2" in what and "32 layers" in what for what in losses)
