"""config.json with the keys that MLX's programs read: the period of full attention, older rotary keys, other spellings.

Some models of mlx-lm have full attention in every n-th layer and ignore `layer_types` (mlx-lm 0.32: qwen3_next.py,
qwen3_5.py, gemma3_text.py, cohere2.py). Their config gets that n. Layers without a period are refused, because mlx-lm
would look for other tensors or compute another model. mlx-vlm's classes have spellings of their own (towers.toml).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.models.arch.config import LOCAL_THETA, THETA, value_at, with_part
from weighbridge.models.mlxlm.towers import TowerNames, Value
from weighbridge.models.model import OpenModel
from weighbridge.models.transform.text_config import text_path

_FULL: Final = "full_attention"
_SHARE: Final = "partial_rotary_factor"
_TEXT: Final = "text_config"
_TIED: Final = "tie_word_embeddings"
#: Parts of mlx-vlm's names of the output's matrix, after a dot.
_OUTPUTS: Final = (".lm_head.", ".language_model.head.")


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


def has_output(names: Iterable[str]) -> bool:
    """Whether one of mlx-vlm's names is that of the output's matrix."""
    return any(part in f".{name}" for name in names for part in _OUTPUTS)


def config_of_mlx_vlm(model: OpenModel, names: TowerNames, has_head: bool) -> tuple[dict[str, Any], list[str]]:
    """Returns a folder's config.json with the keys that mlx-vlm's class reads, and those that no spelling has.
    transformers 5 has the language model's in an object, and other types of rotary settings. `has_head`: whether the
    output has a matrix."""
    config = {
        k: v for k, v in model.config.items() if k not in ("_name_or_path", "quantization", "quantization_config")
    }
    config |= {"model_type": names.kind} if names.published else {}
    config |= {key: config[place] for key, place in names.copied.items() if place in config and key not in config}
    missing = [key for key in names.requires if config.get(key) is None]
    path = text_path(model)
    if names.inner:
        path = (_TEXT,)
        config[_TEXT] = {**config, **config.get(_TEXT, {})}
        config[_TEXT].pop("vision_config", None)
    if path and model.described:
        config = with_part(config, path, with_rope_words(value_at(config, path), model.family.plain_defaults))
    generation = model.json("generation_config.json") or {}
    if config.get("eos_token_id") is None and generation.get("eos_token_id") is not None:
        config["eos_token_id"] = generation["eos_token_id"]
    if names.period:
        settings = model.family.effective(model.config) if model.described else value_at(config, path)
        kinds = settings.get("layer_types")
        config = with_period(config, path, kinds if isinstance(kinds, list | tuple) else None, names.period)
    if names.layer_types and path and isinstance(kinds := value_at(config, path).get("layer_types"), list):
        renamed = [names.layer_types.get(kind, kind) for kind in kinds]
        config = with_part(config, path, {**value_at(config, path), "layer_types": renamed})
    parts = ((path, names.text, names.text_keys), (("vision_config",), names.vision, names.vision_keys))
    for part, rows, accepted in parts:
        if part and isinstance(stated := value_at(config, part), Mapping):
            full = {**stated, **_respelled(f"{'.'.join(part)}.", stated, rows, config, missing)}
            kept = {key: value for key, value in full.items() if not accepted or key in accepted}
            config = with_part(config, part, kept)
    for place, rows in names.parts.items():
        if isinstance(stated := value_at(config, steps := tuple(place.split("."))), Mapping):
            config = with_part(config, steps, {**stated, **_respelled(f"{place}.", stated, rows, {}, missing)})
    if names.tower:
        config["vision_config"] = {**_vision(config), "model_type": names.tower}
    if path and not has_head:
        config = with_part(config, path, {**value_at(config, path), _TIED: True})
    silent = all(part.get(_TIED) is None for part in (config, value_at(config, path)))
    if silent and any(names.to_mlx(name) in names.head[1:] for name in model.logical):
        config[_TIED] = False  # Hugging Face's folder gets its output again
    if names.flat:
        text = value_at(config, path) if path else {}
        below = {key: value for key, value in text.items() if key not in ("model_type", "architectures")}
        config = {**below, **{key: value for key, value in config.items() if key not in path[:1]}}
        config["vision_config"] = {**_vision(config), "model_type": names.flat}
        if isinstance(rope := config.pop("rope_parameters", None), Mapping):
            config["rope_theta"] = rope.get("rope_theta")
            config["rope_scaling"] = {"type": "mrope", "mrope_section": rope.get("mrope_section")}
    return config, missing


def _vision(config: Mapping[str, Any]) -> Mapping[str, Any]:
    stated = config.get("vision_config")
    return stated if isinstance(stated, Mapping) else {}


def _respelled(
    part: str, stated: Mapping[str, Any], rows: Mapping[str, Value], whole: Mapping[str, Any], missing: list[str]
) -> dict[str, Any]:
    """The keys of a row that a part of the config lacks, with those of the part that they belong to. Adds those that no
    spelling has to `missing`."""
    out: dict[str, Any] = {}
    for row, places in rows.items():
        key = row.removesuffix("!")
        first, *inner = key.split(".")
        value = _first(stated, places.split()) if isinstance(places, str) else places
        is_set = value_in(stated, [first, *inner]) is not None or whole.get(key) is not None
        if value is not None and (row != key or not is_set):
            out[first] = {**(out.get(first) or stated.get(first) or {}), inner[0]: value} if inner else value
        elif not is_set:
            missing.append(f"{part}{key}")
    return out


def _first(stated: Mapping[str, Any], places: list[str]) -> Any:
    values = (value_in(stated, place.split(".")) for place in places)
    return next((value for value in values if value is not None), None)


def value_in(value: Any, steps: list[str]) -> Any:
    """The value at a path of keys (`*`: any key; `a/b`, `a*b`: of two numbers); None if it is missing."""
    for step in steps:
        if not isinstance(value, Mapping):
            return None
        if step == "*":
            value = next(iter(value.values()), None)
        elif pair := re.fullmatch("(.+)([/*])(.+)", step):
            one, other = value.get(pair[1]), value.get(pair[3])
            if not isinstance(one, int) or not isinstance(other, int) or other < 1:
                return None
            value = one // other if pair[2] == "/" else one * other
        else:
            value = value.get(step)
    return value
