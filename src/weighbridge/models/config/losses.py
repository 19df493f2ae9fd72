"""Conservation of settings: the keys of a config.json that nothing reads.

A key is read if the family's table names it or its class has a default for it: its value reaches the target, or a loss
lists it (`facts_losses`, `settings.differences`). Any other key is read if the table computes other settings or sizes,
or refuses the config, without the key or with another value. A key that the model's projector reads belongs to its
mmproj file. The remaining keys are losses unless harmless.toml lists them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from weighbridge.base.errors import WeighbridgeError
from weighbridge.models.arch.config import DERIVED, LOCAL_THETA, THETA, value_at
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.registry import projector_of_hf
from weighbridge.models.config.keys import rules
from weighbridge.models.config.mapping import config_to_gguf, facts_losses
from weighbridge.models.config.settings import of_config, ruled_words, why_harmless, words_of

Path = tuple[str, ...]

_ROTATION: Final = ("rope_parameters", "rope_scaling")
#: Keys for the part of a head that rotates.
_SHARE: Final = frozenset({"partial_rotary_factor", "rotary_dim", "rotary_emb_fraction", "rotary_pct"})
_ABOUT_ROTATION: Final = frozenset(
    {*THETA, *LOCAL_THETA, *_ROTATION, "partial_rotary_factor", "rotary_dim", "rotary_pct"}
)
_LAYERED: Final = ("full_attention", "sliding_attention")  # kinds of layers that may each have a rotation
#: Keys that are read in any rotation: by `arch.config.rope` and the functions of `arch.derived`.
_READ_IN_ROTATIONS: Final = frozenset({
    "alpha", "factor", "high_freq_factor", "long_factor", "low_freq_factor", "original_max_position_embeddings",
    "rope_type", "short_factor", "type",
})  # fmt: skip
#: Derived keys and tensors, and the key of the rotation that each is computed from.
_DERIVED_FROM: Final[Mapping[str, str]] = {
    "ntk_alpha_base": "rope_theta", "proportional_factors": "partial_rotary_factor", "rope_bases": "rope_theta",
    "rope_dim": "partial_rotary_factor", "rope_shares": "partial_rotary_factor",
}  # fmt: skip
#: The first part of a dotted path.
_ROOT: Final = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
#: Keys that are tried one by one. More, which no honest config has, are changed in groups, so that time stays linear.
_ONE_BY_ONE: Final = 32


def config_losses(config: Mapping[str, Any], family: Family) -> list[str]:
    """Returns the settings of a config that change the model and that GGUF has no key for, or that nothing reads."""
    keys = unread(config, family)
    lost = (f"config.json: {key} = {value!r:.60}: no table reads it, so that results may change" for key, value in keys)
    return [*facts_losses(family.effective(config), family), *lost]


def unread(config: Mapping[str, Any], family: Family) -> list[tuple[str, Any]]:
    """Returns the keys that nothing reads, with their values. A key is a dotted path into the part of the config that
    describes the model."""
    architecture = family.architecture(config)
    if architecture is None:
        return []
    part = (architecture.part or "").partition(".")[0]
    whole = {key: value for key, value in architecture.merged(config).items() if key != part}
    facts = family.effective(config)
    suspects = [
        path
        for path in _paths(whole, {**architecture.defaults, **whole}, family, bool(part))
        if (value := value_at(whole, path)) is not None and not _restates(path, value, facts, family)
    ]
    if suspects and (towers := projector_of_hf(config)) is not None:
        defaults = {key for architecture in towers.architectures.values() for key in architecture.defaults}
        suspects = [path for path in suspects if path[0] not in ruled_words(towers, _ROOT) | defaults]
    if not suspects:
        return []
    meaning = _meaning(config, family)

    def have_no_effect(paths: Sequence[Path]) -> bool:
        return all(_meaning(changed, family) == meaning for changed in _changed(config, paths, architecture.part))

    return [(".".join(path), value_at(whole, path)) for path in _without_effect(suspects, have_no_effect)]


def _without_effect(paths: Sequence[Path], have_no_effect: Callable[[Sequence[Path]], bool]) -> list[Path]:
    """Returns the paths whose values change nothing. Splits a large group with an effect into halves."""
    if len(paths) <= _ONE_BY_ONE:
        return [path for path in paths if have_no_effect([path])]
    if have_no_effect(paths):
        return list(paths)
    middle = len(paths) // 2
    return [path for half in (paths[:middle], paths[middle:]) for path in _without_effect(half, have_no_effect)]


def _paths(whole: Mapping[str, Any], filled: Mapping[str, Any], family: Family, has_parts: bool) -> Iterator[Path]:
    """Yields the keys that the table doesn't name and all keys about a rotation, those inside objects one by one.
    `filled`: the config with its class's defaults. `has_parts`: the model may have parts with configs that aren't its
    language model's."""
    named = _read_words(family)
    for key, value in whole.items():
        is_object = isinstance(value, Mapping)
        if is_object and (key in named or key in _ROTATION):
            skipped: Iterable[str] = () if key in _ROTATION else named
            layered: list[Path] = [(key, kind) for kind in _LAYERED if isinstance(value.get(kind), Mapping)]
            for place in layered or [(key,)]:
                inside = value_at(whole, place)
                for word in inside:
                    if word not in skipped and not why_harmless(word, family, inside):
                        yield (*place, word)
            continue
        other_part = has_parts and is_object and key.endswith("_config")
        if not (key in named or other_part or why_harmless(key, family, filled)):
            yield (key,)


def _restates(path: Path, value: Any, facts: Mapping[str, Any], family: Family) -> bool:
    """Whether a key about the rotation has the value that the effective rotation has, under a name that rules read."""
    *above, key = path
    if not any(word in family.plain_defaults for word in THETA) or not (above or key in _ABOUT_ROTATION):
        return False
    if key == "rotary_dim":
        return bool(facts["rope_dim"] == value)
    if key == "partial_rotary_factor" and value == 1 and _SHARE.isdisjoint(family.plain_defaults):
        return True  # the whole head rotates, as in every model of such a family
    word = "rope_theta" if key in (*THETA, *LOCAL_THETA) else "partial_rotary_factor" if key == "rotary_pct" else key
    rotations = (facts.get(name) or {} for name in ("rope", "rope_sliding"))
    return word in _rotation_words(family) and any(rotation.get(word) == value for rotation in rotations)


@cache
def _read_words(family: Family) -> frozenset[str]:
    """The keys that the table names: in its rules, in those of llama.cpp's graph, and as defaults of a class."""
    table = rules(family)
    texts = [*table.assumed, *table.presence, *table.tokens]
    for row in table.implied:
        texts += [row.config, *row.when, *([row.value] if isinstance(row.value, str) else [])]
    for need in table.requires_value:
        texts += [need.config, need.equals, need.at_least, *need.when]
    for entry in (*table.keys, *table.tokenizer):
        texts += [*entry.config, entry.others, *entry.when, entry.subtract, entry.divide_by, entry.divide_by_sqrt]
    for architecture in family.architectures.values():
        texts += [text for pair in architecture.null.items() for text in pair]
    named = {word for text in texts if text and "rope." not in text for word in words_of(text)}
    defaults = {key for a in family.architectures.values() for key in a.defaults}
    return frozenset((named | defaults | ruled_words(family)) - _ABOUT_ROTATION - {*DERIVED})


@cache
def _rotation_words(family: Family) -> frozenset[str]:
    """The keys inside a rotation that the table names."""
    table = rules(family)
    texts = [text for row in table.keys for text in (*row.config, *row.when)]
    texts += [*table.assumed, *(row.config for row in table.implied)]
    texts += [text for row in table.requires_value for text in (row.config, row.equals, row.at_least)]
    used = {*ruled_words(family), *(row.derived for row in family.rows.values())}
    derived = {word for result, word in _DERIVED_FROM.items() if result in used}
    stated = {text.rpartition(".")[2] for text in texts if text.startswith(("rope.", "rope_sliding."))}
    return _READ_IN_ROTATIONS | derived | stated


def _changed(config: Mapping[str, Any], paths: Sequence[Path], part: str | None) -> Iterator[Mapping[str, Any]]:
    """Yields the config without some keys, then with other values for them, in every place that sets them."""
    inner = tuple(part.split(".")) if part else ()
    values: dict[Path, list[Any]] = {}
    for path in paths:
        stated = value_at(config, (*inner, *path))
        values[path] = [None, *_alternatives(value_at(config, path) if stated is None else stated)]
    for number in range(max(map(len, values.values()))):
        changed = {**config}
        for path, alternatives in values.items():
            for place in {(*inner, *path), path}:
                _replace(changed, place, alternatives[min(number, len(alternatives) - 1)])
        yield changed


def _replace(config: dict[str, Any], path: Path, value: Any) -> None:
    """Sets a key that exists. Copies the objects on the way to it."""
    first, *below = path
    if first not in config:
        return
    if not below:
        config[first] = value
    elif isinstance(config[first], Mapping):
        config[first] = {**config[first]}
        _replace(config[first], tuple(below), value)


def _alternatives(value: Any) -> Iterator[Any]:
    """Yields values that differ from this one; for a list, lists with another first or last entry."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, list) and value:
        yield from ([entry, *value[1:]] for entry in _alternatives(value[0]))
        yield from ([*value[:-1], entry] for entry in _alternatives(value[-1]))
    elif isinstance(value, int | float):
        yield 0 if value == 1 else value + 1
    else:
        yield "?"


def _meaning(config: Mapping[str, Any], family: Family) -> Any:
    """Returns everything that the table computes from a config, or "refused"."""
    try:
        sizes = family.sizes_from_hf(config)
        keys = config_to_gguf(config, family, file_type=0)
        return of_config(config, family).values, keys, sizes, facts_losses(sizes.facts, family)
    except WeighbridgeError:
        return "refused"
