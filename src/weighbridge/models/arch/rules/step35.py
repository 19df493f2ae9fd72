"""Step 3.5: what differs between layers with a sliding window and others (configuration_step3p7.py, transformers
5.23)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import LAYERS
from weighbridge.models.arch.tables.expression import layer_count
from weighbridge.models.arch.tables.values import Config, integer, number

_KINDS: Final = ("full_attention", "sliding_attention")
_SHARES: Final = (0.5, 1.0)  # share of a head that rotates in llama.cpp's graph, by kind of layer
# Key of published configs: that of transformers 5 (`Step3p7TextConfig.attribute_map`), and the default.
_WORDS: Final = MappingProxyType({
    "num_attention_groups": ("num_key_value_heads", 8), "moe_num_experts": ("n_routed_experts", 288),
    "moe_top_k": ("num_experts_per_tok", 8),
})  # fmt: skip
_WINDOWED: Final = ("num_sliding_attention_heads", "num_sliding_attention_groups")


def complete(config: Config) -> dict[str, Any]:
    """Adds settings by kind of layer: numbers of heads from an object, base frequencies and rotating shares from lists
    by layer, and which layers have experts from a text. Lists include the multi-token prediction layers."""
    further = integer(config.get("num_nextn_predict_layers") or 0, "num_nextn_predict_layers", most=LAYERS)
    count = layer_count(config) + further
    kinds = _listed(config, "layer_types", "mtp_layer_types", count, _KINDS[0])
    numbers = {}
    for word, (key, default) in _WORDS.items():
        numbers[word] = next((n for name in (word, key) if (n := config.get(name)) is not None), default)
    groups = numbers["num_attention_groups"]
    other = config.get("attention_other_setting")
    own = other if isinstance(other, Mapping) else {}
    heads = config.get(_WINDOWED[0]) or own.get("num_attention_heads", config.get("num_attention_heads"))
    limits = {
        key: [0.0 if limit is None else limit for limit in _listed(config, key, "", count, 0.0)]
        for key in ("swiglu_limits", "swiglu_limits_shared")
        if config.get(key) is not None
    }
    return {
        "layer_types": kinds,
        "sliding_layers": [int(kind == _KINDS[1]) for kind in kinds],
        **numbers,
        _WINDOWED[0]: heads,
        _WINDOWED[1]: own.get("num_attention_groups", groups),
        **limits,
        **_experts_by_number(config, count),
        **_rotation_by_kind(config, kinds),
    }


def _listed(config: Config, key: str, mtp_key: str, count: int, default: Any) -> list[Any]:
    """A list by layer, followed by that of the multi-token prediction layers, of `count` entries."""
    parts = (config.get(key) or [], config.get(mtp_key) or [])
    if not all(isinstance(part, list | tuple) for part in parts):
        raise FormatError("is not a list", field=key, found=repr(parts)[:80])
    return [*parts[0], *parts[1], *[default] * count][:count]


def _experts_by_number(config: Config, count: int) -> dict[str, Any]:
    """Which layers have experts, from words or from numbers in a text; by default all but the first three."""
    if config.get("mlp_layer_types") is not None:
        kinds = _listed(config, "mlp_layer_types", "mtp_mlp_layer_types", count, "dense")
    else:
        text = config.get("moe_layers_enum")
        listed = text.split(",") if isinstance(text, str) else text
        try:
            numbers = range(3, layer_count(config)) if listed is None else {int(i) for i in listed if str(i).strip()}
        except (TypeError, ValueError):
            raise FormatError("is not a list of layers", field="moe_layers_enum", found=repr(text)[:80]) from None
        kinds = ["sparse" if i in numbers else "dense" for i in range(count)]
    leading = kinds.index("sparse") if "sparse" in kinds else 0
    return {"mlp_layer_types": kinds, "first_k_dense_replace": leading}


def _rotation_by_kind(config: Config, kinds: list[Any]) -> dict[str, Any]:
    """Base frequencies and rotating shares by kind of layer; `rope_bases`: the largest number of frequencies of a
    kind."""
    given = config.get("rope_parameters")
    typed = given if isinstance(given, Mapping) and _KINDS[0] in given else {}
    layers = {kind: [i for i, k in enumerate(kinds) if k == kind] for kind in _KINDS}
    listed = {key: config.get(key) for key in ("rope_theta", "partial_rotary_factors")}
    values_of: dict[str, dict[str, list[Any]]] = {}
    for (key, values), word in zip(listed.items(), ("rope_theta", "partial_rotary_factor"), strict=True):
        if isinstance(values, list | tuple):
            if any(numbers and numbers[0] >= len(values) for numbers in layers.values()):
                raise FormatError("needs an entry per layer", field=key, found=len(values))
            # A list may end before the last layers.
            of_kind = {kind: [values[i] for i in numbers if i < len(values)] for kind, numbers in layers.items()}
            values_of[key] = {kind: sorted({number(v, key) for v in of_kind[kind]}) for kind in _KINDS}
        else:
            values_of[key] = {kind: [typed[kind][word]] for kind in _KINDS if word in typed.get(kind, {})}
    shares = {kind: values for kind, values in values_of["partial_rotary_factors"].items() if values and layers[kind]}
    bases = {kind: values for kind, values in values_of["rope_theta"].items() if values}
    out: dict[str, Any] = {"rope_shares": shares, "rope_bases": max(map(len, bases.values()), default=1)}
    if typed or not isinstance(listed["rope_theta"], list | tuple):
        return out
    scaling = config.get("rope_scaling")
    base = bases.get(_KINDS[0]) or [10000.0]
    out |= {
        "rope_theta": base[0],
        "rope_scaling": {**(scaling if isinstance(scaling, Mapping) else {}), "rope_theta": base[0]},
    }
    return out | ({"local_rope_theta": bases[_KINDS[1]][0]} if _KINDS[1] in bases else {})


def restore(config: Config) -> dict[str, Any]:
    """Builds the lists by layer, the object and the text."""
    kinds = config.get("layer_types") or [_KINDS[0]] * layer_count(config)
    base = config["rope_theta"]
    sliding = (config.get("rope_parameters") or {}).get(_KINDS[1]) or {"rope_theta": base}
    by_kind = dict(zip(_KINDS, (base, sliding["rope_theta"]), strict=True))
    words = ("num_attention_heads", "num_attention_groups")
    own = {word: config[key] for word, key in zip(words, _WINDOWED, strict=True) if key in config}
    sparse = [str(i) for i, kind in enumerate(config.get("mlp_layer_types") or ()) if kind == "sparse"]
    return {
        **dict.fromkeys((*_WINDOWED, "rope_parameters", "rope_local_base_freq", "mlp_layer_types")),
        "rope_theta": [by_kind[kind] for kind in kinds],
        "partial_rotary_factors": [dict(zip(_KINDS, _SHARES, strict=True))[kind] for kind in kinds],
        "attention_other_setting": {"attention_type": _KINDS[1], **own, "head_dim": config["head_dim"]}
        if own
        else None,
        "moe_layers_enum": ",".join(sparse),
    }
