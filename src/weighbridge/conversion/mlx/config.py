"""Adds to a config.json what mlx-lm requires: other names of settings, required keys, defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from weighbridge.models.arch.config import DERIVED, LOCAL_THETA, THETA
from weighbridge.models.arch.family import Family
from weighbridge.models.config.keys import lookup, rules
from weighbridge.models.config.mlx_view import MlxReading, mlx_keys, reading
from weighbridge.models.mlxlm.candidate import table

_FULL: Final = "full_attention"
_SHARE: Final = "partial_rotary_factor"
_ROTATION: Final = (*THETA, *LOCAL_THETA, _SHARE, "rope_parameters", "rope_scaling", "rotary_pct", "model_type")


def with_scaling_type(config: dict[str, Any]) -> dict[str, Any]:
    """Adds `rope_scaling.type` for a class that ignores `rope_type`."""
    scaling = config.get("rope_scaling")
    required = "type" in table().scaling.get(str(config.get("model_type")), ())
    if not required or not scaling or "type" in scaling or "rope_type" not in scaling:
        return config
    return {**config, "rope_scaling": {**scaling, "type": scaling["rope_type"]}}


def with_pattern(config: dict[str, Any], layer_types: Sequence[str] | None) -> dict[str, Any]:
    """Replaces the numeric keys of layer kinds by letters for a class that reads these: L slides, G sees all tokens."""
    keys = table().text.get(str(config.get("model_type")), ())
    letters = "".join("G" if kind == _FULL else "L" for kind in layer_types or ())
    return {**config, **{key: letters if "L" in letters else None for key in keys if isinstance(config.get(key), int)}}


def with_fields(config: dict[str, Any], facts: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Adds the keys that mlx-lm's class requires, and those with a default that differs from the model's class.

    `facts`: the model's effective config.
    """
    read = reading(config)
    if read is None:
        return config
    defaults = {**dict.fromkeys(read.fields.required), **read.fields.defaults}
    values = {
        key: _value_of(key, facts, family)
        for key in defaults
        if key not in read.part and key not in (*_ROTATION, *DERIVED)
    }
    added = {key: value for key, value in values.items() if value is not None and value != defaults[key]}
    added = {**_implied(read, facts, family), **added}
    if "rope_parameters" in mlx_keys(config) and "rope_theta" not in mlx_keys(config) and "rope" in facts:
        added |= {} if "rope_parameters" in read.part else {"rope_parameters": facts["rope"]}
    if not added:
        return config
    return {**config, read.name: {**read.part, **added}} if read.name else {**config, **added}


# Keys that may be null, which transformers' class then computes and mlx-lm doesn't.
_COMPUTED: Final = ("mamba_d_head",)


def _implied(read: MlxReading, facts: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Values for keys that mlx-lm's class requires and the config lacks."""
    rope, width = facts.get("rope", {}), facts.get("hidden_size") or 0
    values = {"rope_scaling": None, "rope_parameters": rope, **dict.fromkeys(THETA, rope.get("rope_theta"))}
    if heads := facts.get("num_attention_heads") or 0:
        values["head_dim"] = width // heads
    if heads := facts.get("mamba_n_heads") or 0:
        values["mamba_d_head"] = (facts.get("mamba_expand") or 0) * width // heads
    if "num_heads" in facts and "head_dim" in facts:  # of a state space
        values["intermediate_size"] = facts["num_heads"] * facts["head_dim"]
    if "n_embd" in facts:
        values["n_inner"] = 4 * facts["n_embd"]
    values |= family.document.mlx.assumed
    required = (*read.fields.required, *(key for key in read.fields.null if key in _COMPUTED))
    return {key: values[key] for key in required if read.part.get(key) is None and key in values}


def _value_of(key: str, facts: Mapping[str, Any], family: Family) -> Any:
    """The value of a key, or of a synonym; else the one that a GGUF without such a key implies."""
    synonyms = [key, *(text for row in rules(family).keys if key in row.config for text in row.config)]
    assumed = rules(family).assumed.get(key) or [None]
    return next((value for text in synonyms if (value := lookup(facts, text)) is not None), assumed[0])
