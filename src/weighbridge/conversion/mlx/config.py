"""Adds to a config.json what mlx-lm requires: the period of full attention, older rotary keys, required keys, defaults.

Some models of mlx-lm have full attention in every n-th layer and ignore `layer_types` (mlx-lm 0.32: qwen3_next.py,
qwen3_5.py, gemma3_text.py, cohere2.py). Their config gets that n. Layers without a period are refused, because mlx-lm
would look for other tensors or compute another model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.models.arch.config import DERIVED, LOCAL_THETA, THETA, value_at, with_part
from weighbridge.models.arch.family import Family
from weighbridge.models.config.keys import lookup, rules
from weighbridge.models.config.mlx_view import MlxReading, mlx_keys, reading
from weighbridge.models.mlxlm.candidate import table

_FULL: Final = "full_attention"
_SHARE: Final = "partial_rotary_factor"
_ROTATION: Final = (*THETA, *LOCAL_THETA, _SHARE, "rope_parameters", "rope_scaling", "rotary_pct", "model_type")


def with_period(
    config: dict[str, Any], path: Sequence[str], layer_types: Sequence[str] | None, periods: Mapping[str, int]
) -> dict[str, Any]:
    """Sets the period of the layers under the key that mlx-lm reads, in the language model's object at `path`.

    `periods`: that key and its default (`mlx.period` of the family). Raises UnsupportedError for layers without a
    period.
    """
    if not periods or not layer_types:
        return config
    ((key, default),) = periods.items()
    full = [i for i, kind in enumerate(layer_types) if kind == _FULL]
    period = full[0] + 1 if full else 0
    if not period or full != list(range(period - 1, len(layer_types), period)):
        numbers = ", ".join(map(str, full))
        have = f"{f'layers {numbers}' if full else 'none'} of {len(layer_types)}"
        raise UnsupportedError(
            f"mlx-lm's {config['model_type']} has {_FULL} in every n-th layer, this model in {have}",
            hint="GGUF and Hugging Face folders support any order: --to gguf, --to hf",
        )
    part = value_at(config, path)
    return config if part.get(key, default) == period else with_part(config, path, {**part, key: period})


def with_rope_words(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Adds transformers 4's rotary keys for transformers 5's `rope_parameters` to the config of the text part.

    Most classes of mlx-lm read only the older keys, and otherwise use defaults. A class with sections of positions
    reads only `rope_parameters`. `defaults`: those of the model's class.
    """
    parameters, theta = config.get("rope_parameters"), next((key for key in THETA if key in defaults), None)
    newer = "full_attention" in defaults.get("rope_parameters", {})  # a class that transformers 4 doesn't have
    if not isinstance(parameters, Mapping) or theta is None or newer or config.get(theta) is not None:
        return dict(config)
    if "mrope_section" in parameters:
        return dict(config)
    full, sliding = parameters.get("full_attention", parameters), parameters.get("sliding_attention", {})
    share = "rotary_pct" if "rotary_pct" in defaults else _SHARE
    older = {
        theta: full.get("rope_theta"),
        share: full.get(_SHARE),
        LOCAL_THETA[0]: sliding.get("rope_theta"),
        "rope_scaling": {k: v for k, v in full.items() if k not in ("rope_theta", _SHARE)},
    }
    if full.get("rope_type", "default") == "default":
        older["rope_scaling"] = None
    stated = {key: value for key, value in older.items() if value is not None or key == "rope_scaling"}
    return {**stated, **{key: value for key, value in config.items() if value is not None or key not in stated}}


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
