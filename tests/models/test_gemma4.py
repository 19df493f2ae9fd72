"""What a Gemma 4's config says in ways of its own: what layers that attend to all tokens have, layer by layer or once
for all; lists by layer in a GGUF; and what wrong files say."""

from __future__ import annotations

from typing import Any

import pytest
from tests.models.family_judges import golden, metadata_of

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.derived import RESTORED, proportional_factors
from weighbridge.models.arch.registry import families
from weighbridge.models.arch.tables.expression import shared_value
from weighbridge.models.config.mapping import config_to_gguf, gguf_to_config

FAMILY = families()["gemma4"]
BY_LAYER: dict[str, Any] = golden()["gemma4"]["config"]
IN_WORDS: dict[str, Any] = golden()["gemma4-experts"]["config"]


def keys(config: dict[str, Any]) -> dict[str, Any]:
    return {key: (kv.type, kv.value) for key, kv in config_to_gguf(config, FAMILY, file_type=0).items()}


def test_a_silent_config_means_what_its_class_means() -> None:
    """The published sizes, and that the last layer attends to all tokens whatever is said."""
    facts = FAMILY.effective({"architectures": ["Gemma4ForCausalLM"], "num_hidden_layers": 32})
    full = [i for i, kind in enumerate(facts["layer_types"]) if kind == "full_attention"]
    assert full == [5, 11, 17, 23, 29, 31]
    theirs = golden()["gemma4"]["defaults"]
    assert {own["head_dim"] for own in theirs["per_layer_config"].values()} == {facts["global_head_dim"]}
    assert facts["rope"] == theirs["rope_parameters"]["full_attention"]
    assert facts["rope_sliding"] == theirs["rope_parameters"]["sliding_attention"]


def test_keys_that_are_values_have_their_own_number_of_heads_and_others_havent() -> None:
    """transformers asks `attention_k_eq_v` before it looks at the number."""
    other = IN_WORDS | {"attention_k_eq_v": False}
    assert keys(IN_WORDS)["gemma4.attention.head_count_kv"] == ("arr[i32]", [2, 2, 1])
    assert keys(other)["gemma4.attention.head_count_kv"] == ("u32", 2)
    shapes = FAMILY.names("hf", FAMILY.sizes_from_hf(other))
    assert shapes["model.layers.2.self_attn.v_proj.weight"] == (128, 64)
    assert "model.layers.2.self_attn.v_proj.weight" not in FAMILY.names("hf", FAMILY.sizes_from_hf(IN_WORDS))


def test_numbers_of_layers_may_be_padded() -> None:
    padded = {key.zfill(2): own for key, own in BY_LAYER["per_layer_config"].items()}
    assert keys(BY_LAYER | {"per_layer_config": padded}) == keys(BY_LAYER)


@pytest.mark.parametrize(
    "said",
    [
        [],
        {"2": 64},
        {"x": {"head_dim": 64}},
        {"1": {"head_dim": 64}, "2": {"head_dim": 64}, "5": {"head_dim": 64}},
        {"2": {"head_dim": 64}, "5": {"head_dim": 48}},
        {"2": {"head_dim": 64}},
        {"2": {"intermediate_size": 64}, "5": {"intermediate_size": 64}},
    ],
)
def test_what_else_is_said_layer_by_layer_is_refused(said: Any) -> None:
    with pytest.raises(FormatError, match="per_layer_config"):
        keys(BY_LAYER | {"per_layer_config": said})


@pytest.mark.parametrize(
    "change",
    [
        {"feed_forward_length": [96, 96, 96, 192, 192]},
        {"feed_forward_length": [96, 48, 96, 192, 192, 192]},
        {"attention.head_count_kv": [2, 2, 1, 4, 4, 1]},
        {"attention.sliding_window_pattern": [True]},
        {"attention.shared_kv_layers": 7},
        {"attention.shared_kv_layers": [3]},
    ],
)
def test_a_gguf_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    known = {**metadata_of("gemma4"), **{f"gemma4.{key}": value for key, value in change.items()}}
    with pytest.raises(FormatError):
        FAMILY.sizes_from_gguf(known, [name for name, *_ in golden()["gemma4"]["gguf"]])


@pytest.mark.parametrize("said", [None, 0.0, 12.0])
def test_a_gguf_that_says_no_cap_caps_as_llama_cpp_takes_it(said: float | None) -> None:
    """At 30, where the key is absent; at nothing where it is 0."""
    model = "gemma4-experts"
    known = {k: v for k, v in metadata_of(model).items() if not k.endswith("final_logit_softcapping")}
    known |= {} if said is None else {"gemma4.final_logit_softcapping": said}
    names = [name for name, *_ in golden()[model]["gguf"]]
    config = gguf_to_config(known, FAMILY, names, vectors=lambda _: [1.0] * 8 + [1e30] * 24).config
    assert config["final_logit_softcapping"] == {None: 30.0, 0.0: None, 12.0: 12.0}[said]


@pytest.mark.parametrize("share", [0.0, 0.25, 0.3, 1.0])
def test_shares_that_turn_come_back(share: float) -> None:
    """As transformers counts the pairs (`_compute_proportional_rope_parameters`)."""
    rope = {"rope_type": "proportional", "partial_rotary_factor": share, "rope_theta": 1e6}
    factors = proportional_factors({"rope": rope, "global_head_dim": 64})
    assert factors is not None
    assert factors.count(1.0) == int(share * 64 // 2)
    back = RESTORED["proportional_factors"](factors, 1e6)
    assert back is not None
    assert proportional_factors({"rope": {**back, "rope_theta": 1e6}, "global_head_dim": 64}) == factors


@pytest.mark.parametrize("factors", [[], [1.0, 2.0], [1e30, 1.0], [0.0, 0.0]])
def test_other_factors_are_no_share(factors: list[float]) -> None:
    assert RESTORED["proportional_factors"](factors, 1e6) is None


@pytest.mark.parametrize("share", [-0.5, 1.5, "x"])
def test_a_share_that_is_none_is_refused(share: Any) -> None:
    rope = {"rope_type": "proportional", "partial_rotary_factor": share}
    with pytest.raises(FormatError, match="partial_rotary_factor"):
        proportional_factors({"rope": rope, "global_head_dim": 64})


def test_what_some_layers_have() -> None:
    assert shared_value([2, 2, 1], "x", {0, 1}) == 2
    assert shared_value(2, "x", {0, 1}) == 2
    assert shared_value([2, 2, 1], "x", frozenset()) is None
    assert shared_value(None, "x", {0}) is None
    for wrong in ([2, 1, 1], [2], ["2", "2"]):
        with pytest.raises(FormatError):
            shared_value(wrong, "x", {0, 1})
