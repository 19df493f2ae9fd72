"""config.json as transformers 4 spelled it (`rope_theta` and `rope_scaling` for `rope_parameters`, no list of layers):
for every recorded model it means what transformers 5's does. That the spelling is right is asked of transformers."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from tests.models.family_judges import golden
from tests.oracles.families import CASES
from tests.oracles.models import respelled

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.registry import families, family_of_hf
from weighbridge.models.config.losses import config_losses
from weighbridge.models.config.mapping import config_to_gguf

pytestmark = pytest.mark.oracle
transformers = pytest.importorskip("transformers")

# What follows from other settings, and files of before have not.
_DERIVED = ("layer_types", "no_rope_layers", "moe_layers", "mlp_layer_types")
# ModernBERT had words of its own, and is recorded in both spellings; OLMo 3 had one base frequency for all layers; Qwen
# 3.5, Qwen 4 and Mellum 2 came with transformers 5: sections of a rotation and rotations by layer have no older
# spelling. MiMo-V2 has words of its own publisher, see below. transformers reads no Hunyuan that sees without a factor.
_LATER = (
    "clef", "embeddinggemma2", "modernbert", "olmo3", "qwen35", "qwen4exp", "minicpm-v-4.6", "mellum", "laguna",
    "spark2.5", "hy-v4", "mimo2", "hunyuan-ocr-silent", "dspark-axes", "dots3-note-seeing", "glm4-sections",
)  # fmt: skip
_MODELS = sorted(name for name in golden() if not name.startswith(_LATER))
_FORM = {"transformers_version", "dtype", "torch_dtype", "_name_or_path", "architectures", "rope_scaling", "rope_theta"}


def _without(config: dict[str, Any]) -> dict[str, Any]:
    out = {key: value for key, value in config.items() if key not in _DERIVED}
    if "text_config" in out:
        out["text_config"] = _without(out["text_config"])
    return out


def _understood(config: dict[str, Any]) -> dict[str, Any] | None:
    """What transformers makes of a config; None where it has no class for it."""
    kind = str(config.get("model_type"))
    if kind not in transformers.CONFIG_MAPPING:
        return None
    found = transformers.AutoConfig.for_model(**_decoded(config)).to_dict()
    return {key: _plain(value) for key, value in found.items() if key not in _FORM}


def _decoded(value: Any) -> Any:
    """With infinity as a number, which JSON has no word for."""
    if isinstance(value, dict):
        return float("inf") if "__float__" in value else {k: _decoded(v) for k, v in value.items()}
    return [_decoded(v) for v in value] if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """Of nested objects what is said, the type of a rope once."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if v is not None and k not in ("type", "dtype")}
    return value


def _same(older: dict[str, Any] | None, newer: dict[str, Any]) -> bool:
    """Whether all is there that the newer one says; transformers keeps words that it doesn't know."""
    return older is not None and all(_covers(older.get(key), value) for key, value in newer.items())


def _covers(older: Any, newer: Any) -> bool:
    if isinstance(newer, dict) and isinstance(older, dict):
        return all(_covers(older.get(key), value) for key, value in newer.items())
    return bool(older == newer)


@cache
def _older(model: str) -> dict[str, Any]:
    """A recorded model's config in the older spelling, without the lists of layers where they are the class's."""
    older = respelled(golden()[model]["config"])
    newer = _understood(golden()[model]["config"])
    try:
        return _without(older) if newer is not None and _same(_understood(_without(older)), newer) else older
    except Exception:  # some classes need the list, and say so in as many ways
        return older


def _said(family: Family, config: dict[str, Any], model: str) -> Any:
    sizes = family.sizes_from_hf(config)
    keys = config_to_gguf(config, family, file_type=0, pooling=1 if CASES[model].bert else None)
    names = {dialect: family.names(dialect, sizes) for dialect in family.dialects}
    losses = [loss.replace("rope_parameters.rope_theta", "rope_theta") for loss in config_losses(config, family)]
    return keys, names, losses  # a loss names the key as the config spells it


@pytest.mark.parametrize("model", _MODELS)
def test_the_older_spelling_means_the_same(model: str) -> None:
    newer, older = golden()[model]["config"], _older(model)
    family = family_of_hf(newer)
    assert family_of_hf(older) is family
    assert _said(family, older, model) == _said(family, newer, model)


@pytest.mark.parametrize("model", _MODELS)
def test_transformers_takes_it_for_the_same(model: str) -> None:
    newer = _understood(golden()[model]["config"])
    if newer is not None:
        assert _same(_understood(_older(model)), newer)


def test_the_words_of_mimo_s_publisher_mean_the_same() -> None:
    """XiaomiMiMo/MiMo-V2-Flash spells rotation, norm and lists of layers in words that transformers doesn't have."""
    config = golden()["mimo2"]["config"]
    family, rope = family_of_hf(config), config["rope_parameters"]
    own = {k: v for k, v in config.items() if k not in (*_DERIVED, "rope_parameters", "rms_norm_eps")} | {
        "rope_theta": rope["full_attention"]["rope_theta"],
        "swa_rope_theta": rope["sliding_attention"]["rope_theta"],
        "partial_rotary_factor": rope["full_attention"]["partial_rotary_factor"],
    }
    assert _said(family, own, "mimo2")[:2] == _said(family, config, "mimo2")[:2]
    for key, value in (("swa_rope_theta", 7.0), ("layernorm_epsilon", 0.5)):
        assert _said(family, {**own, key: value}, "mimo2") != _said(family, own, "mimo2")


@pytest.mark.costly
def test_the_spellings_differ() -> None:
    """Else nothing was asked."""
    told = [name for name in _MODELS if _older(name) != golden()[name]["config"]]
    scaled = [name for name in told if _rope(_older(name))]
    assert len(told) > 60
    assert len(scaled) > 6


def test_a_type_that_only_its_publisher_knows_is_told_by_the_class() -> None:
    """Kimi K2's config says `kimi_k2` of a DeepSeek V3."""
    config = golden()["kimi-k2"]["config"]
    family = family_of_hf(config)
    assert family.name == "deepseek2"
    assert _said(family, config | {"model_type": "kimi_k2"}, "kimi-k2") == _said(family, config, "kimi-k2")


def _rope(config: dict[str, Any]) -> Any:
    return config.get("rope_scaling") or config.get("text_config", {}).get("rope_scaling")


@pytest.mark.parametrize("end", [-1, 2, 3, 99])
def test_the_last_layer_with_experts_has_several_numbers(end: int) -> None:
    """ERNIE 4.5: transformers takes -1 for the last layer, and gives none behind it a meaning."""
    stated = {**golden()["ernie4.5-moe"]["config"], "moe_layer_end_index": end}
    family, last = family_of_hf(stated), stated["num_hidden_layers"] - 1
    assert config_losses(stated, family) == []
    assert family.effective(stated)["moe_layer_end_index"] == last == _last_with_experts(stated)


def test_an_earlier_last_layer_with_experts_is_listed() -> None:
    stated = {**golden()["ernie4.5-moe"]["config"], "moe_layer_end_index": 1}
    assert _last_with_experts(stated) == 1
    assert ["moe_layer_end_index = 1" in text for text in config_losses(stated, family_of_hf(stated))] == [True]


def _last_with_experts(stated: dict[str, Any]) -> int:
    """As transformers' class decides it, layer by layer."""
    from transformers.models.ernie4_5_moe import modeling_ernie4_5_moe as theirs

    config = transformers.Ernie4_5_MoeConfig(**stated)
    layers = [theirs.Ernie4_5_MoeDecoderLayer(config, n).mlp for n in range(config.num_hidden_layers)]
    return max(n for n, layer in enumerate(layers) if isinstance(layer, theirs.Ernie4_5_MoeSparseMoeBlock))


#: transformers 5.23 refuses the config that this class has by default
WITHOUT_DEFAULTS = ("gemma4_assistant",)
#: transformers' class of this model type reads other configs
NAMESAKES = ("BitnetForCausalLM", "BailingMoeV3ForCausalLM")


def _heads(model_type: str) -> tuple[int, int] | None:
    """Twice the class's number of heads, and how many of keys it then has by itself; None for a class without any."""
    plain: Any = transformers.CONFIG_MAPPING[model_type]
    own = getattr(plain(), "num_attention_heads", None)
    if not isinstance(own, int):
        return None
    found = getattr(plain(num_attention_heads=2 * own), "num_key_value_heads", None)
    return (2 * own, found) if isinstance(found, int) else None


@pytest.mark.slow
def test_heads_of_keys_that_a_config_does_not_count_are_as_many_as_its_class_has() -> None:
    asked = {}
    for each in families().values():
        for name, architecture in each.architectures.items():
            model_type = architecture.model_type
            bare = {"architectures": [name], "model_type": model_type}
            known = model_type in transformers.CONFIG_MAPPING and model_type not in WITHOUT_DEFAULTS
            known = known and name not in NAMESAKES
            if known and _sized(each, bare) and (heads := _heads(model_type)):
                filled = each.effective(bare | {"num_attention_heads": heads[0]})
                asked[each.name, name] = filled["num_key_value_heads"], heads[1]
    assert {key: pair for key, pair in asked.items() if pair[0] != pair[1]} == {}
    assert len(asked) > 40


def _sized(each: Family, config: dict[str, Any]) -> bool:
    """Whether the class has a default for each size."""
    try:
        return each.architecture(config) is not None and "num_key_value_heads" in each.effective(config)
    except FormatError:
        return False
