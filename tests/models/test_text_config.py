"""The object of config.json that describes the language model, whatever the model's class calls it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.models.family_judges import golden
from tests.models.mlx_vlm_cases import case
from tests.models.projector_cases import write_folder

import weighbridge as wb
from weighbridge.models.arch.config import path_of_text, value_at, with_part
from weighbridge.models.arch.registry import build_family, families, with_counted_layers
from weighbridge.models.arch.tables.documents import document, resolve

PARTS = ("text_config", "llm_config", "thinker_config.text_config")
COUNTING = [name for name, family in families().items() if (hf := family.document.dialect.get("hf")) and hf.mtp_count]


def model_of(family: str) -> Mapping[str, Any]:
    """The record of a family's model whose config has every layer in one object."""
    listed = families()[family].architectures
    return next(model for model in golden().values() if model["config"]["architectures"][0] in listed and "hf" in model)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", COUNTING)
def test_further_layers_are_counted_in_the_object_of_the_class(name: str, part: str) -> None:
    table = resolve(document(name))
    flat = dict(model_of(name)["config"])
    flat = {**flat, **flat.pop("text_config", {})}
    table["architecture"] = {"SeeingForTest": {"model_type": "seeing_test", "part": part}}
    family = build_family(table, checked=True)
    key = str(family.document.dialect["hf"].mtp_count)
    inner: Any = {**flat, key: 7}
    for step in reversed(part.split(".")):
        inner = {step: inner}
    config = {"architectures": ["SeeingForTest"], "model_type": "seeing_test", **inner}
    counted = with_counted_layers(config, family, ())
    assert value_at(counted, part.split("."))[key] == 0
    assert counted.keys() == config.keys()


@pytest.mark.parametrize("part", PARTS)
def test_a_path_leads_where_a_part_is_put(part: str) -> None:
    class Class:
        pass

    holder: Any = Class()
    holder.part = part
    path = tuple(part.split("."))
    config = with_part({"thinker_config": {"text_config": {}}, "llm_config": {}, "text_config": {}}, path, {"a": 1})
    assert path_of_text(config, holder, ("a",)) == path
    assert value_at(config, path) == {"a": 1}
    assert path_of_text({**config, "b": 1}, holder, ("b",)) == ()
    assert path_of_text({}, holder, ("a",)) == ()


def internvl(folder: Path, *, tied: bool, **text: Any) -> Path:
    made = case("internvl-chat")
    config = {**made["config"], "llm_config": {**made["config"]["llm_config"], **text}}
    names = {name: shape for name, shape in made["names"].items() if not (tied and name.endswith("lm_head.weight"))}
    return write_folder({**made, "config": config, "names": names}, folder)


def test_mlx_vlm_s_settings_are_in_the_object_of_the_class(tmp_path: Path) -> None:
    """InternVL's `llm_config`: the type of the weights, the older words of its rotation, and that its output is the
    embedding."""
    rope = {"rope_type": "default", "rope_theta": 54321.0}
    folder = internvl(tmp_path / "m", tied=True, dtype="bfloat16", rope_parameters=rope, rope_theta=None)
    wb.convert(folder, tmp_path / "out", to="mlx", towers=True)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "text_config" not in config
    assert config["llm_config"]["tie_word_embeddings"] is True
    assert config["llm_config"]["rope_theta"] == 54321.0
    types = wb.inspect(tmp_path / "out").tensors
    assert {tensor.dtype for tensor in types if tensor.name.startswith("language_model.")} == {"BF16"}
