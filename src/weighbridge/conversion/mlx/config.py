"""What mlx-lm's configs need beyond the model's own: the period of full attention, rotary parameters in older words,
keys that its classes require or have another default for.

Some models of mlx-lm have full attention in every n-th layer and ignore `layer_types` (mlx-lm 0.32: qwen3_next.py,
qwen3_5.py, gemma3_text.py, cohere2.py). Their config gets that n. Layers without a period are refused: mlx-lm would
look for other tensors or compute another model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.models.arch.config import DERIVED, LOCAL_THETA, THETA
from weighbridge.models.arch.family import Family
from weighbridge.models.config.keys import lookup, rules
from weighbridge.models.config.mlx_view import mlx_keys, reading

_FULL: Final = "full_attention"
_SHARE: Final = "partial_rotary_factor"
_ROTATION: Final = (*THETA, *LOCAL_THETA, _SHARE, "rope_parameters", "rope_scaling", "rotary_pct", "model_type")


def with_period(
    config: dict[str, Any], layer_types: Sequence[str] | None, periods: Mapping[str, int]
) -> dict[str, Any]:
    """The config with the period of its layers under the key that mlx-lm reads. `periods`: that key and its default
    (`mlx.period` of the family). UnsupportedError for layers without a period."""
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
    text = config.get("text_config")
    part = text if isinstance(text, Mapping) else config
    if part.get(key, default) == period:
        return config
    changed = {**part, key: period}
    return changed if part is config else {**config, "text_config": changed}


def with_rope_words(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the text part with transformers 5's `rope_parameters` in transformers 4's words too: most classes
    of mlx-lm read only these and use their own defaults otherwise. `defaults`: of the model's class. A class with
    sections of positions reads only the new words."""
    given, word = config.get("rope_parameters"), next((w for w in THETA if w in defaults), None)
    newer = "full_attention" in defaults.get("rope_parameters", {})  # a class that transformers 4 doesn't have
    if not isinstance(given, Mapping) or word is None or newer or config.get(word) is not None:
        return dict(config)
    if "mrope_section" in given:
        return dict(config)
    full, sliding = given.get("full_attention", given), given.get("sliding_attention", {})
    share = "rotary_pct" if "rotary_pct" in defaults else _SHARE
    words = {
        word: full.get("rope_theta"),
        share: full.get(_SHARE),
        LOCAL_THETA[0]: sliding.get("rope_theta"),
        "rope_scaling": {k: v for k, v in full.items() if k not in ("rope_theta", _SHARE)},
    }
    if full.get("rope_type", "default") == "default":
        words["rope_scaling"] = None
    stated = {key: value for key, value in words.items() if value is not None or key == "rope_scaling"}
    return {**stated, **{key: value for key, value in config.items() if value is not None or key not in stated}}


def with_fields(config: dict[str, Any], facts: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """The config with the keys that mlx-lm's class requires, or has another default for than the model's class.
    `facts`: the model's effective config."""
    found = reading(config)
    if found is None:
        return config
    wanted = {**dict.fromkeys(found.fields.required), **found.fields.defaults}
    missing = (key for key in wanted if key not in found.part and key not in (*_ROTATION, *DERIVED))
    added = {key: v for key in missing if (v := _stated(facts, key, family)) is not None and v != wanted[key]}
    if "rope_parameters" in mlx_keys(config) and "rope_theta" not in mlx_keys(config) and "rope" in facts:
        added |= {} if "rope_parameters" in found.part else {"rope_parameters": facts["rope"]}
    if not added:
        return config
    return {**config, found.name: {**found.part, **added}} if found.name else {**config, **added}


def _stated(facts: Mapping[str, Any], key: str, family: Family) -> Any:
    """The value of a key, or of another word for it."""
    same = [key, *(text for row in rules(family).keys if key in row.config for text in row.config)]
    meant = rules(family).assumed.get(key) or [None]  # by a GGUF, which has no key for it
    return next((v for text in same if (v := lookup(facts, text)) is not None), meant[0])
