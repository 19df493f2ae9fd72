"""Published models at their real size: what we would write is what the reference converter would, as recorded of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.oracles.published_configs import make_folder, ours, published

import weighbridge as wb

MODELS = published()


@pytest.mark.parametrize("name", ["DeepSeek-V3.2", "Ling-mini-2.0"])
def test_further_layers_that_were_left_out_are_not_counted(name: str, tmp_path: Path) -> None:
    """The reference counts what config.json says, and llama.cpp misses the tensors."""
    config = MODELS[name]["config"]
    without = {**config, "num_nextn_predict_layers": 0}
    stale = make_folder(without, tmp_path / "stale")
    (stale / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1, "torch_dtype": "bfloat16"}))
    assert ours(stale) == ours(make_folder(without, tmp_path / "tidy"))
    with wb.plan_convert(stale, tmp_path / "m.gguf", dtype="bf16", tokenizer=False) as plan:
        assert "num_nextn_predict_layers is 1" in " ".join(plan.notes)


@pytest.mark.parametrize("name", MODELS)
def test_a_published_model_is_written_as_the_reference_writes_it(name: str, tmp_path: Path) -> None:
    made = ours(make_folder(MODELS[name]["config"], tmp_path / "model", MODELS[name].get("groups", ())))
    reference = MODELS[MODELS[name].get("same_as", name)]["reference"]
    same = made.digest == reference["digest"]
    assert len(made.tensors) == reference["tensors"]
    assert same == ("differs" not in MODELS[name]), made.keys
