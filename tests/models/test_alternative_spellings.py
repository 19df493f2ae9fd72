"""Configs and GGUFs that say the same in other words than the files that a table was made from."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.models.family_judges import golden, metadata_of

from weighbridge.models.arch.registry import families, family_of_hf
from weighbridge.models.config import settings
from weighbridge.models.config.mapping import config_to_gguf

_STEP = "step3.5"


def _keys(config: dict[str, Any]) -> dict[str, Any]:
    return config_to_gguf(config, family_of_hf(config), file_type=0)


@pytest.mark.oracle
@pytest.mark.parametrize("silent", [(), ("moe_router_activation", "norm_expert_weight", "moe_every_n_layer")])
def test_a_step_that_transformers_saved_is_the_published_one(silent: tuple[str, ...]) -> None:
    """num_key_value_heads, n_routed_experts and num_experts_per_tok; a router that normalizes, as its class does."""
    transformers = pytest.importorskip("transformers")
    published = golden()[_STEP]["config"]
    # the class has one number of groups for all layers
    other = published["attention_other_setting"] | {"num_attention_groups": published["num_attention_groups"]}
    published = published | {"attention_other_setting": other}
    given = {k: v for k, v in published.items() if k not in (*silent, "architectures")}
    saved = json.loads(transformers.models.step3p7.Step3p7TextConfig(**given).to_json_string())
    assert not saved.keys() & {"num_attention_groups", "moe_num_experts", "moe_top_k"}
    found, expected = _keys(saved | {"architectures": published["architectures"]}), _keys(published)
    without = {"step35.expert_gating_func"} if silent else set()  # llama.cpp's default is the class's
    assert found == {key: kv for key, kv in expected.items() if key not in without}


def test_a_step_without_words_for_its_heads_has_those_of_its_class() -> None:
    config = {k: v for k, v in golden()[_STEP]["config"].items() if k not in ("num_attention_groups", "moe_top_k")}
    found = family_of_hf(config).effective(config)
    assert (found["num_attention_groups"], found["moe_top_k"], found["moe_num_experts"]) == (8, 8, 6)


def test_a_plamo_of_the_reference_has_no_heads_in_layers_that_do_not_attend() -> None:
    """Its list has 0 there, and means the same model."""
    family, key = families()["plamo2"], "plamo2.attention.head_count"
    ours = metadata_of("plamo2")
    groups = ours["plamo2.attention.head_count_kv"]
    theirs = ours | {key: [heads if some else 0 for heads, some in zip(ours[key], groups, strict=True)]}
    assert 0 in theirs[key]
    names = dict.fromkeys(name for name, *_ in golden()["plamo2"]["gguf"])
    read = [settings.of_gguf(keys, family, names, lambda name: None) for keys in (ours, theirs)]
    assert not settings.differences(*read)
    assert not settings.differences(*reversed(read))
    wrong = settings.of_gguf(theirs | {key: [2 * heads for heads in theirs[key]]}, family, names, lambda name: None)
    assert settings.differences(read[0], wrong)
