"""Mistral Small 4 shares its class and its tower with Mistral Small 3: the text model's config tells them apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.family_judges import golden as families_golden
from tests.models.mistral4_cases import seeing, text
from tests.models.projector_cases import digests, golden, write_folder

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.models.arch.registry import family_of_hf
from weighbridge.models.config.mapping import config_to_gguf, gguf_to_config

pytest.importorskip("gguf", reason="NOTHING HERE WAS PROVED: install requirements/oracles.txt")


@pytest.mark.parametrize(
    ("kind", "family"),
    [("mistral4", "mistral4"), ("mistral", "mistral3"), ("ministral3", "mistral3"), (None, "mistral3")],
)
def test_the_text_model_says_which_family_it_is(kind: str | None, family: str) -> None:
    config = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": {"model_type": kind}}
    if kind is None:
        config["text_config"] = {}
    assert family_of_hf(config).name == family


def test_an_unknown_text_model_is_refused() -> None:
    config = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": {"model_type": "mistral9"}}
    with pytest.raises(UnsupportedError, match="no family"):
        family_of_hf(config)


def test_the_tower_is_that_of_a_mistral_3(tmp_path: Path) -> None:
    for name, case in (("a", golden()["mistral3"]), ("b", seeing())):
        wb.convert(write_folder(case, tmp_path / name), tmp_path / f"{name}.gguf", mmproj=True, dtype="f16")
    found, expected = digests(tmp_path / "b.gguf"), digests(tmp_path / "a.gguf")
    copied = "v.token_embd.img_break"  # a row of the text model, whose numbers here are others
    assert [t for t in found if t[0] != copied] == [t for t in expected if t[0] != copied]


def test_a_pair_of_ggufs_is_a_folder_again(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from safetensors.numpy import load_file

    source = write_folder(seeing(), tmp_path / "tiny-model")
    wb.convert(source, tmp_path / "text.gguf", dtype="f32", tokenizer=False)
    wb.convert(source, tmp_path / "mmproj.gguf", dtype="f32", mmproj=True)
    back = tmp_path / "back"
    wb.convert(tmp_path / "text.gguf", back, to="hf", tokenizer=False, projector=tmp_path / "mmproj.gguf")
    before, after = (load_file(folder / "model.safetensors") for folder in (source, back))
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    config = json.loads((back / "config.json").read_text())
    assert config["text_config"]["model_type"] == "mistral4"
    _, report = transformers.Mistral3ForConditionalGeneration.from_pretrained(back, output_loading_info=True)
    assert not any(report[keys] for keys in ("missing_keys", "unexpected_keys", "mismatched_keys"))


@pytest.mark.parametrize("place", ["rope_parameters", "top"])
def test_another_share_of_a_head_is_refused(place: str) -> None:
    config: dict[str, Any] = {"architectures": ["Mistral4ForCausalLM"], **text()}
    (config if place == "top" else config[place])["partial_rotary_factor"] = 0.5
    with pytest.raises(FormatError, match="sizes of a head"):
        family_of_hf(config).effective(config)


def test_a_silent_config_rotates_as_in_transformers() -> None:
    theirs = families_golden()["mistral4"]["defaults"]["rope_parameters"]
    config = {"architectures": ["Mistral4ForCausalLM"], "model_type": "mistral4"}
    ours = family_of_hf(config).effective(config)["rope"]
    assert ours == {key: theirs[key] for key in ours}
    assert theirs.keys() - ours.keys() == {"type", "max_position_embeddings", "partial_rotary_factor"}


def test_a_gguf_without_a_scale_of_attention_means_none() -> None:
    """Such as the reference converter writes: llama.cpp then doesn't scale."""
    config = families_golden()["mistral4"]["config"]
    family = family_of_hf(config)
    keys = {key: kv.value for key, kv in config_to_gguf(config, family, file_type=0).items()}
    kept = {key: value for key, value in keys.items() if ".temperature_" not in key}
    assert len(keys) == len(kept) + 2
    assert gguf_to_config(keys, family, ()).config["rope_parameters"]["llama_4_scaling_beta"] == 0.5
    assert gguf_to_config(kept, family, ()).config["rope_parameters"]["llama_4_scaling_beta"] == 0.0
