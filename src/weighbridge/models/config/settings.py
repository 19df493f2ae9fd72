"""The settings that a model's loaders read, one value each, in the same form for every spelling and format.

    of_config(config, family)           as transformers reads a folder
    of_mlx(config, family)              as mlx-lm reads it
    of_gguf(metadata, family, names)    as llama.cpp reads a GGUF
    differences(a, b)                   the settings of `a` that `b` has with another value or not at all

A setting is the value that a key-value of the family's table computes from an effective config. `n_embd` and
`hidden_size` are one setting, and so are `rope_theta` and `rope_parameters`. Any other key in the table or the class's
defaults is a setting too. A value without effect (the table's `assumed` and `implied`) is None.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import field
from functools import cache
from itertools import product
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from msgspec import Struct, convert

from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.imports.tables import read_table
from weighbridge.base.records import dataclass
from weighbridge.models.arch.config import DERIVED, LOCAL_THETA, THETA
from weighbridge.models.arch.derived import f32
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.rules import family_rules
from weighbridge.models.arch.tables.expression import by_layer
from weighbridge.models.config.keys import differs, implied, is_list, lookup, rules, to_kv
from weighbridge.models.config.mapping import Vectors, gguf_to_config
from weighbridge.models.config.mlx_view import as_mlx_reads, mlx_keys

#: Keys that are compared as other settings: the rotation, kinds of layers, the vocabulary.
RESTATED: Final = frozenset({
    "layer_count", "layer_types", "max_position_embeddings", "partial_rotary_factor", "rope_parameters", "rope_scaling",
    "rotary_dim", "rotary_pct", "vocab_size",
})  # fmt: skip
_ROTATION: Final = frozenset({"rope", "rope_sliding"})
_SCALING_KEYS: Final = ("rope_parameters", "rope_scaling", "partial_rotary_factor")
#: Config keys of rotations: the base has two spellings.
ROTATION_KEYS: Final = frozenset({*THETA, *LOCAL_THETA, *_SCALING_KEYS})
_WORD: Final = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class LoaderSettings:
    """`values` by setting. `reader`: the program that reads them. `sources`: the expression over a config that each
    setting came from. `places`: the settings that the format can hold. `keys`: the config keys that the reader reads.
    None means all."""

    values: Mapping[str, Any]
    family: Family
    reader: str
    sources: Mapping[str, str] = field(default_factory=dict)
    places: frozenset[str] | None = None
    keys: frozenset[str] | None = None

    def has_place(self, setting: str, source: str) -> bool:
        """Whether the format can hold the setting and its reader reads it."""
        if self.keys is None:
            return self.places is None or setting in self.places
        path_words = {*words_of(source.split(".")[0])}
        if not path_words & _ROTATION:
            return path_words <= self.keys
        bases = (*THETA, *LOCAL_THETA) if source.endswith("rope_theta") else ()
        return not self.keys.isdisjoint((*bases, *_SCALING_KEYS))


class SettingDifference(NamedTuple):
    """A setting with different values. `source`: the expression that sets it in the config of `a`. `lost`: `b` can't
    hold it, or mlx-lm doesn't read it. `names`: the words by which a loss may refer to it."""

    setting: str
    source: str
    a: Any
    b: Any
    lost: bool
    names: frozenset[str]

    def named_in(self, text: str) -> bool:
        """Whether a message is about this setting."""
        return not self.names.isdisjoint(re.findall(r"[\w.{}]+", text))


def of_config(config: Mapping[str, Any], family: Family, pooling: int | None = None) -> LoaderSettings:
    """Returns the settings of a folder's config.json as transformers reads it. Raises UsageError for a class of another
    family. `pooling`: sentence-transformers' pooling (`pooling.pooling_type`)."""
    facts = {**family.effective(config), "pooling": pooling}
    return LoaderSettings(_values(facts, family), family, "transformers", _sources(facts, family))


def of_mlx(config: Mapping[str, Any], family: Family) -> LoaderSettings | None:
    """Returns the settings as mlx-lm reads them, or None if it has no class for the config. Kinds of layers are left
    out: mlx-lm has its own rules for these, and doesn't load a model with other tensors."""
    read = as_mlx_reads({**family.alone(config), "model_type": config.get("model_type")})
    if read is None:
        return None
    keys, table = mlx_keys(config), rules(family)
    llamacpp_only = {r.config for r in table.requires_value} | {r.config for r in table.implied}
    values = {
        key: value
        for key, value in _values(family.effective(read), family).items()
        if _is_stated(key, family) and key not in llamacpp_only
    }
    has_list = any(isinstance(read.get(word), list) for word in THETA)
    sliding = f"{family.gguf}.rope.freq_base_swa"
    if keys.isdisjoint({*LOCAL_THETA, "rope_parameters"}) and not has_list and values.get(sliding):
        values[sliding] = values[f"{family.gguf}.rope.freq_base"]  # mlx-lm rotates all layers by one base
    return LoaderSettings(values, family, "mlx-lm", keys=keys)


def of_gguf(metadata: Mapping[str, Any], family: Family, names: Mapping[str, Any], vectors: Vectors) -> LoaderSettings:
    """Returns the settings of a GGUF as llama.cpp reads it. A missing key has the value of the class's config.
    `names`, `vectors`: see `gguf_to_config`."""
    own = {key for key in metadata if key.startswith(f"{family.gguf}.")} - family.metadata_names()  # no tensors
    stated = _comparable({key: metadata[key] for key in metadata if key in own}, family)
    facts: Mapping[str, Any] = {}
    with suppress(WeighbridgeError):  # keys that no config can express are compared directly
        facts = family.effective(gguf_to_config(metadata, family, names, vectors=vectors).config)
    values = _values(facts, family) if facts else {}
    table = rules(family).keys
    places = {*(row.key(family.gguf) for row in table), *stated, *(key for key in values if key.startswith("layers "))}
    # In a list that may have gaps, 0 means the number of the other layers.
    gaps = {row.key(family.gguf) for row in table if row.gaps}
    filled = {k: [by_layer(v, k)] * len(v) if k in gaps and is_list(v) else v for k, v in stated.items()}
    values = _as_read({**values, **filled}, family)
    return LoaderSettings(values, family, "llama.cpp", _sources(facts, family), frozenset(places))


def differences(a: LoaderSettings, b: LoaderSettings) -> list[SettingDifference]:
    """Returns the settings that differ. For models of two families, and for mlx-lm, only settings of both are compared.

    Two kinds are left out: factors that a GGUF keeps inside its weights, if one side is a GGUF, and settings that
    follow from the tensors' shapes or presence, if `b` can't hold them. What mlx-lm doesn't read is lost in both
    directions.
    """
    if a.reader == "mlx-lm" != b.reader:
        return [d._replace(a=d.b, b=d.a) for d in differences(b, a)]
    common_only = a.family is not b.family or "mlx-lm" in (a.reader, b.reader)
    folded = {key.partition("[")[0] for s in (a, b) if "llama.cpp" in (a.reader, b.reader) for key in s.family.folded}
    out = []
    for key, value in a.values.items():
        if key in folded or (common_only and key not in b.values):
            continue
        target = b.values.get(key)
        # mlx-lm has no layers that predict further tokens, so their entries at the end of a list don't count.
        if b.reader == "mlx-lm" and is_list(value) and is_list(target) and (cut := min(len(value), len(target))):
            value, target = value[:cut], target[:cut]
        if same_value(value, target):
            continue
        source = a.sources.get(key, key)
        names = {name for text in (key, *_texts(key, a.family)) for name in (text, text.rpartition(".")[2])}
        difference = SettingDifference(key, source, value, target, not b.has_place(key, source), frozenset(names))
        if not _follows_from_tensors(difference, b):
            out.append(difference)
    return out


def same_rotation(a: LoaderSettings, b: LoaderSettings) -> bool:
    """Whether two models rotate alike, as their loaders read them."""
    return not any(_ROTATION & {*words_of(difference.source)} for difference in differences(a, b))


def _follows_from_tensors(difference: SettingDifference, b: LoaderSettings) -> bool:
    """Whether the tensors decide: mlx-lm refuses other shapes, and no loader adds a bias that isn't stored. A setting
    that only limits the length of a text counts as well."""
    if difference.lost and (difference.a is None or all(name.endswith("bias") for name in difference.names)):
        return True
    if b.reader != "mlx-lm" or not (difference.lost or None in (difference.a, difference.b)):
        return False
    sizes = {word for size in b.family.sizes.values() for text in size.hf for word in words_of(text)}
    named = {word for text in difference.names - {difference.setting} for word in words_of(text)}
    return not {difference.setting, *named}.isdisjoint({*sizes, *rules(b.family).presence, "context_length"})


# ---------------------------------------------------------------------- values


def _values(facts: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Returns all settings of an effective config (`Family.effective`)."""
    table = rules(family)
    meant = implied(table, facts)
    out = {key: facts[key] for key in _defaults_without_rule(family) if key in facts}
    # Keys without a key-value count if they differ from the meaning of a GGUF.
    out |= {row.config: lookup(facts, row.config) if differs(row, facts) else None for row in table.requires_value}
    rope = facts.get("rope", {})
    scaled = rope.get("rope_type") == "llama3"  # a GGUF has this scaling as a tensor of factors
    restated = ("rope_theta", "type", "partial_rotary_factor")
    out["rope.rope_type"] = {k: v for k, v in rope.items() if k not in restated} if scaled else None
    for path in (path for path in (*table.assumed, *meant) if path != "rope.rope_type" or not out[path]):
        value, same = lookup(facts, path), meant.get(path)
        unstated = path in meant and same is None
        out[path] = None if unstated or value in (*table.assumed.get(path, ()), same) else value
    named: dict[str, Any] = {f"layers {name}": sorted(layers) for name, layers in facts.get("layer_sets", {}).items()}
    for row in table.keys:
        key, kv = row.key(family.gguf), to_kv(row, facts)
        if kv is not None or key not in named:
            named[key] = None if kv is None else kv.value
    return {**out, **_as_read(_comparable(named, family), family)}


def _comparable(values: dict[str, Any], family: Family) -> dict[str, Any]:
    """Drops keys that describe the file, and the period of layers, whose kinds are compared instead."""
    periods = family.document.layer_rules.every.keys()
    dropped = {row.key(family.gguf) for row in rules(family).keys if periods & {*row.config}}
    return {
        key: value
        for key, value in values.items()
        if key not in dropped and not key.startswith("general.") and not key.endswith(".vocab_size")
    }


def _as_read(values: dict[str, Any], family: Family) -> dict[str, Any]:
    """Drops the parameters of position scaling if positions aren't scaled. A head's width that divides
    the model's among the heads is None: it needn't be set, in transformers and in llama.cpp."""
    width, heads = (values.get(f"{family.gguf}.{key}") for key in ("embedding_length", "attention.head_count"))
    if isinstance(width, int) and isinstance(heads, int) and heads:
        lengths = {f"{family.gguf}.attention.{name}_length" for name in ("key", "value")}
        values = {k: None if k in lengths and v == width // heads else v for k, v in values.items()}
    if values.get(f"{family.gguf}.rope.scaling.type") not in (None, "none"):
        return values
    return {key: value for key, value in values.items() if ".rope.scaling." not in key}


@cache
def _defaults_without_rule(family: Family) -> tuple[str, ...]:
    """Keys that a class has a default for and no rule of the table names, and those that a GGUF's tensors express."""
    defaults = {key for a in family.architectures.values() for key in a.defaults}
    keys = defaults - ruled_words(family) - RESTATED - {*DERIVED, *THETA, *LOCAL_THETA}
    presence = rules(family).presence
    return tuple(key for key in sorted(keys) if key in presence or not why_harmless(key, family))


def ruled_words(family: Family, word: re.Pattern[str] = _WORD) -> set[str]:
    """Returns the words of all rules that read a config: key-values, sizes, kinds of layers. `word`: a word's form."""
    texts = [text for row in rules(family).keys for text in (*row.config, row.others, *row.when)]
    texts += [text for size in family.sizes.values() for text in size.hf]
    texts += [text for layer_set in family.layer_sets.values() for text in layer_set.hf]
    texts += [text for a in family.architectures.values() for text in a.full_layers]
    rule_keys = (getattr(rule, "KEYS", ()) for rule in family_rules(family.document.config_rules))
    return {key for text in texts for key in word.findall(text or "")}.union(*rule_keys)


def words_of(text: str) -> list[str]:
    return _WORD.findall(text)


# ---------------------------------------------------------------------- names


def _texts(setting: str, family: Family) -> list[str]:
    """Returns the expressions over a config that give the setting."""
    return [text for row in rules(family).keys if row.key(family.gguf) == setting for text in row.config]


def _sources(facts: Mapping[str, Any], family: Family) -> dict[str, str]:
    """Returns the expression that each setting comes from, the first that has a value."""
    rows = [(row, text) for row in rules(family).keys for text in row.config if lookup(facts, text) is not None]
    return {row.key(family.gguf): text for row, text in reversed(rows)}


def _is_stated(setting: str, family: Family) -> bool:
    """Whether a config states the setting; otherwise a rule derives it."""
    if setting.startswith("layers ") or setting.endswith(".block_count"):
        return False
    texts = _texts(setting, family) or ([] if setting.startswith(f"{family.gguf}.") else [setting])
    return any(not {*DERIVED}.intersection(words_of(text)) - _ROTATION for text in texts)


def same_value(a: Any, b: Any) -> bool:
    """Whether two values are equal, numbers to the precision of F32."""
    if is_list(a) and is_list(b):
        return len(a) == len(b) and all(map(same_value, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same_value(a[key], b[key]) for key in a)
    if not a and not b and not isinstance(a or b, str):  # null, false and 0 all mean "none"
        return True
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b))
    return f32(a) == f32(b) if numbers else a == b


# ---------------------------------------------------------------------- keys without effect (harmless.toml)


class HarmlessGroup(Struct, frozen=True, forbid_unknown_fields=True):
    """Keys that are harmless for one reason. `*` in a key matches any text.

    `families`: only in these families. `off`: only if the config sets this key to false, 0 or null. `without`: only if
    the config doesn't set this key, or sets it to such a value.
    """

    reason: str
    keys: list[str]
    families: list[str] = []
    off: str = ""
    without: str = ""

    def covers(self, names: Collection[str], config: Mapping[str, Any]) -> bool:
        """Whether the group applies to a config. `names`: the family's name and the name of the one it is like."""
        if (self.families and not {*self.families} & {*names}) or config.get(self.without):
            return False
        return not self.off or (self.off in config and not config[self.off])


class _HarmlessTable(Struct, frozen=True, forbid_unknown_fields=True):
    group: list[HarmlessGroup]


@cache
def groups() -> tuple[HarmlessGroup, ...]:
    """Returns the groups of harmless.toml."""
    return tuple(convert(read_table(__file__, "harmless.toml"), _HarmlessTable).group)


class KeyPatterns(NamedTuple):
    """Keys of a group by the place of their stars. (Regular expressions would take as long to compile as the rest of
    the table takes to read.)"""

    exact: frozenset[str]
    starts: tuple[str, ...]
    ends: tuple[str, ...]
    parts: tuple[str, ...]

    @staticmethod
    def of(keys: Iterable[str]) -> KeyPatterns:
        by_stars: dict[tuple[bool, ...], list[str]] = {}
        for key in keys:
            by_stars.setdefault((key.startswith("*"), key.endswith("*")), []).append(key.strip("*"))
        exact, starts, ends, parts = (by_stars.get(stars, ()) for stars in product((False, True), repeat=2))
        return KeyPatterns(frozenset(exact), tuple(starts), tuple(ends), tuple(parts))

    def match(self, key: str) -> bool:
        return key in self.exact or key.startswith(self.starts) or key.endswith(self.ends) or any(
            part in key for part in self.parts
        )  # fmt: skip


@cache
def _patterns() -> tuple[KeyPatterns, ...]:
    return tuple(KeyPatterns.of(group.keys) for group in groups())


def why_harmless(key: str, family: Family, config: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Returns why no result depends on a key of a config, or "" if no group has the key."""
    names = (family.name, family.document.like or "")
    groups_with_key = (g for g, pattern in zip(groups(), _patterns(), strict=True) if pattern.match(key))
    return next((group.reason for group in groups_with_key if group.covers(names, config)), "")
