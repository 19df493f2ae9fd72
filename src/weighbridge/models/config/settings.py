"""What a model's loaders take from its config: one value a setting, in the same form for every spelling and format.

    of_config(config, family)           as transformers reads a folder
    of_mlx(config, family)              as mlx-lm reads it
    of_gguf(metadata, family, names)    as llama.cpp reads a GGUF
    differences(a, b)                   the settings of `a` that mean something else in `b`, or nothing

A setting is what a key-value of the family's table makes of an effective config, so that `n_embd` and `hidden_size`, or
`rope_theta` and `rope_parameters`, are one setting; and any other key that the table or the class's defaults name. A
value that changes nothing (the table's `assumed`, what is `implied`) is None.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import WeighbridgeError
from weighbridge.models.arch.config import DERIVED, LOCAL_THETA, THETA
from weighbridge.models.arch.derived import f32
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.tables.expression import by_layer
from weighbridge.models.config.keys import Rules, differs, implied, is_list, lookup, rules, to_kv
from weighbridge.models.config.mapping import Vectors, gguf_to_config
from weighbridge.models.config.mlx_view import as_mlx_reads, mlx_keys

#: Keys that no result of a finished model depends on: training, bookkeeping, what other settings or files repeat.
_HARMLESS: Final = frozenset({
    "_name_or_path", "add_cross_attention", "architectures", "attn_implementation", "auto_map",
    "chunk_size_feed_forward", "cross_attention_hidden_size", "dtype", "id2label", "is_decoder", "is_encoder_decoder",
    "keys_to_ignore_at_inference", "label2id", "layer_count", "layer_types", "max_position_embeddings", "model_type",
    "num_labels", "output_attentions", "output_hidden_states", "output_router_logits", "partial_rotary_factor",
    "pretraining_tp", "problem_type", "pruned_heads", "quantization", "quantization_config", "return_dict",
    "rope_parameters", "rope_scaling", "rotary_dim", "rotary_pct", "task_specific_params", "tie_encoder_decoder",
    "tokenizer_class", "torch_dtype", "torchscript", "transformers_version", "use_bfloat16", "use_cache", "vocab_size",
})  # fmt: skip
_HARMLESS_PARTS: Final = ("dropout", "pdrop", "_drop", "aux_loss", "jitter", "token_id", "initializer", "init_")
#: What the rules of `models/arch/config_rules.py` make into other keys.
_RULED: Final = MappingProxyType({
    "compressed_attention": ("layer_types", "compress_rates", "mlp_layer_types", "partial_rotary_factor"),
    "adjusted_width": ("block_ff_dim", "block_ffn_dim_multiplier", "block_multiple_of", "block_auto_adjust_ff_dim"),
})  # fmt: skip
_ROTATION: Final = frozenset({"rope", "rope_sliding"})
_OWN_ROTATION: Final = frozenset({*LOCAL_THETA, "rope_parameters"})
_SCALING_KEYS: Final = ("rope_parameters", "rope_scaling", "partial_rotary_factor")
_ROTATION_KEYS: Final = (*THETA, *LOCAL_THETA, *_SCALING_KEYS)
_AS_TENSOR: Final = ("llama3",)  # scalings that a GGUF has as a tensor of factors
_OF_THE_FILE: Final = "general."
_WORD: Final = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class LoaderSettings:
    """`values` by setting. `reader`: what reads them. `sources`: the expression over a config that gave a setting.
    `places`: the settings that the format has a place for, `keys`: the keys of a config that are read; None: all."""

    values: Mapping[str, Any]
    family: Family
    reader: str
    sources: Mapping[str, str] = field(default_factory=dict)
    places: frozenset[str] | None = None
    keys: frozenset[str] | None = None

    def has_place(self, setting: str, source: str) -> bool:
        """Whether the format and its reader know the setting."""
        if self.keys is not None:
            return _reads(self.keys, source)
        return self.places is None or setting in self.places


class SettingDifference(NamedTuple):
    """A setting that isn't the same. `source`: what states it in the config of `a`. `lost`: `b` has no place for it.
    `names`: the words by which a loss may name it."""

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
    """A folder's config.json, as transformers reads it. UsageError for a class of another family. `pooling`: of
    sentence-transformers (`pooling.pooling_type`)."""
    facts = {**family.effective(config), "pooling": pooling}
    return LoaderSettings(_values(facts, family), family, "transformers", _sources(facts, family))


def of_mlx(config: Mapping[str, Any], family: Family) -> LoaderSettings | None:
    """The same as mlx-lm reads it; None where mlx-lm has no class for it. Kinds of layers aren't among them: mlx-lm has
    its own rules for these, and doesn't load a model whose tensors are others."""
    read = as_mlx_reads({**family.alone(config), "model_type": config.get("model_type")})
    if read is None:
        return None
    keys = mlx_keys(config)
    table = rules(family)
    graphs = {r.config for r in table.requires_value} | {r.config for r in table.implied}  # of llama.cpp alone
    whole = _values(family.effective(read), family)
    values = {key: value for key, value in whole.items() if _stated(key, family) and key not in graphs}
    listed = any(isinstance(read.get(word), list) for word in THETA)
    if keys.isdisjoint(_OWN_ROTATION) and not listed and values.get(swa := f"{family.gguf}.rope.freq_base_swa"):
        values[swa] = values[f"{family.gguf}.rope.freq_base"]  # all layers rotate by one base
    return LoaderSettings(values, family, "mlx-lm", keys=keys)


def of_gguf(metadata: Mapping[str, Any], family: Family, names: Mapping[str, Any], vectors: Vectors) -> LoaderSettings:
    """A GGUF's keys as llama.cpp reads them. Where a key is absent, what the class's config gives for it. `names`,
    `vectors`: see `gguf_to_config`."""
    own = _compared({key: metadata[key] for key in metadata if key.startswith(f"{family.gguf}.")}, family)
    facts: Mapping[str, Any] = {}
    with suppress(WeighbridgeError):  # keys that no config says are compared by themselves
        facts = family.effective(gguf_to_config(metadata, family, names, vectors=vectors).config)
    values = _values(facts, family) if facts else {}
    named = (row.key(family.gguf) for row in rules(family).keys)
    places = frozenset({*named, *own, *(key for key in values if key.startswith("layers "))})
    filled = {**values, **_without_gaps(own, family)}
    return LoaderSettings(_scaled(filled, family), family, "llama.cpp", _sources(facts, family), places)


def _without_gaps(values: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """With the number of the other layers where a list that may have gaps has 0."""
    gaps = {row.key(family.gguf) for row in rules(family).keys if row.gaps}
    return {k: [by_layer(v, k)] * len(v) if k in gaps and is_list(v) else v for k, v in values.items()}


def differences(a: LoaderSettings, b: LoaderSettings) -> list[SettingDifference]:
    """The settings that aren't the same in both. Of models of two families, and of what mlx-lm reads, those that both
    have; factors that a GGUF keeps inside its weights aren't compared with one, nor is what the tensors show by their
    shapes or presence where `b` has no place for it."""
    both = a.family is not b.family or "mlx-lm" in (a.reader, b.reader)
    known = [key for key in a.values if key in b.values or not both]
    folded = {key.partition("[")[0] for s in (a, b) if "llama.cpp" in (a.reader, b.reader) for key in s.family.folded}
    found = [_difference(a, b, key) for key in known if not _same(_read(a.values.get(key), b, key), b.values.get(key))]
    return [d for d in found if d.setting not in folded and not _without_meaning(d, b)]


def _read(value: Any, b: LoaderSettings, key: str) -> Any:
    """A list by layer without the layers behind the others that predict further tokens: mlx-lm has none of these."""
    own = b.values.get(key)
    return value[: len(own)] if b.reader == "mlx-lm" and is_list(value) and is_list(own) and own else value


def _difference(a: LoaderSettings, b: LoaderSettings, key: str) -> SettingDifference:
    source = a.sources.get(key, key)
    lost = not b.has_place(key, source)
    return SettingDifference(key, source, a.values.get(key), b.values.get(key), lost, _names(key, a.family))


def _without_meaning(difference: SettingDifference, b: LoaderSettings) -> bool:
    """Whether the tensors decide: mlx-lm doesn't load those of other shapes, nothing adds a bias that isn't there."""
    if difference.a is None and difference.lost:
        return True
    biases = difference.lost and all(name.endswith("bias") for name in difference.names)
    shapes = b.reader == "mlx-lm" and (difference.lost or None in (difference.a, difference.b))
    return biases or (shapes and _shown(difference, b.family))


def _shown(difference: SettingDifference, family: Family) -> bool:
    """Whether the tensors show the setting, or it bounds no more than the length of a text."""
    sizes = {word for size in family.sizes.values() for text in size.hf for word in _words(text)}
    words = {word for text in difference.names - {difference.setting} for word in _words(text)}
    words.add(difference.setting)
    return not words.isdisjoint({*sizes, *rules(family).presence, "context_length"})


# ---------------------------------------------------------------------- values


def _values(facts: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """All settings of an effective config (`Family.effective`)."""
    return {**_others(facts, family), **_assumed(facts, rules(family)), **_scaled(_with_keys(facts, family), family)}


def _with_keys(facts: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """What has a key-value, and which layers are of which kind."""
    out: dict[str, Any] = {f"layers {name}": sorted(layers) for name, layers in facts.get("layer_sets", {}).items()}
    for row in rules(family).keys:
        key, kv = row.key(family.gguf), to_kv(row, facts)
        if kv is not None or key not in out:
            out[key] = None if kv is None else kv.value
    return _compared(out, family)


def _compared(values: dict[str, Any], family: Family) -> dict[str, Any]:
    """Without what speaks of the file, and the period of layers whose kinds are compared."""
    periods = {
        row.key(family.gguf) for row in rules(family).keys if family.document.layer_rules.every.keys() & {*row.config}
    }
    return {
        key: v
        for key, v in values.items()
        if not key.startswith(_OF_THE_FILE) and key not in periods and not key.endswith(".vocab_size")
    }


def _scaled(values: dict[str, Any], family: Family) -> dict[str, Any]:
    """Without the settings of a scaling of positions that there isn't."""
    if values.get(f"{family.gguf}.rope.scaling.type") not in (None, "none"):
        return values
    return {key: value for key, value in values.items() if ".rope.scaling." not in key}


def _assumed(facts: Mapping[str, Any], table: Rules) -> dict[str, Any]:
    """What has no key-value and counts where it isn't what a GGUF means."""
    meant = implied(table, facts)
    out = {row.config: lookup(facts, row.config) if differs(row, facts) else None for row in table.requires_value}
    rope = facts.get("rope", {})
    out["rope.rope_type"] = _plain(rope) if rope.get("rope_type") in _AS_TENSOR else None
    for path in (path for path in (*table.assumed, *meant) if path != "rope.rope_type" or not out[path]):
        value, same = lookup(facts, path), meant.get(path)
        unstated = path in meant and same is None
        out[path] = None if unstated or value in (*table.assumed.get(path, ()), same) else value
    return out


def _plain(rope: Mapping[str, Any]) -> dict[str, Any]:
    """A scaling of positions without what other settings say, and what may be left out."""
    return {key: value for key, value in rope.items() if key not in ("rope_theta", "type", "partial_rotary_factor")}


def _others(facts: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """What the class has a default for and no rule of the table names."""
    return {key: facts[key] for key in _unruled(family) if key in facts}


@cache
def _unruled(family: Family) -> tuple[str, ...]:
    known = {key for a in family.architectures.values() for key in a.defaults}
    left = known - _ruled(family) - _HARMLESS - {*DERIVED, *THETA, *LOCAL_THETA}
    return tuple(key for key in sorted(left) if not any(part in key for part in _HARMLESS_PARTS))


def _ruled(family: Family) -> set[str]:
    """The words of all rules that make something of a config: key-values, sizes, kinds of layers."""
    texts = [text for row in rules(family).keys for text in (*row.config, row.others, *row.when)]
    texts += [text for size in family.sizes.values() for text in size.hf]
    texts += [text for layer_set in family.layer_sets.values() for text in layer_set.hf]
    texts += [text for a in family.architectures.values() for text in a.full_layers]
    named = [rule for rule in _RULED if any(rule in text for text in family.document.config_rules)]
    return {word for text in texts for word in _words(text)} | {key for rule in named for key in _RULED[rule]}


def _words(text: str) -> list[str]:
    return _WORD.findall(text)


# ---------------------------------------------------------------------- names


def _texts(setting: str, family: Family) -> list[str]:
    """The expressions over a config that give the setting."""
    return [text for row in rules(family).keys if row.key(family.gguf) == setting for text in row.config]


def _sources(facts: Mapping[str, Any], family: Family) -> dict[str, str]:
    """The expression that gives each setting here."""
    found = ((row, text) for row in rules(family).keys for text in row.config if lookup(facts, text) is not None)
    return {row.key(family.gguf): text for row, text in reversed([*found])}


def _names(setting: str, family: Family) -> frozenset[str]:
    """The setting, its last word, and the config's words for it."""
    return frozenset(name for text in (setting, *_texts(setting, family)) for name in (text, text.rpartition(".")[2]))


def _stated(setting: str, family: Family) -> bool:
    """Whether a config states the setting, rather than a rule deriving it."""
    if setting.startswith("layers ") or setting.endswith(".block_count"):
        return False
    texts = _texts(setting, family) or ([] if setting.startswith(f"{family.gguf}.") else [setting])
    return any(not {*DERIVED}.intersection(_words(text)) - _ROTATION for text in texts)


def _reads(keys: frozenset[str], source: str) -> bool:
    """Whether a class that reads these keys of a config reads what the expression needs."""
    words = {*_words(source.split(".")[0])}
    if not words & _ROTATION:
        return words <= keys
    return not keys.isdisjoint(_ROTATION_KEYS if source.endswith("rope_theta") else _SCALING_KEYS)


def _same(a: Any, b: Any) -> bool:
    """Equal, numbers to the precision of f32."""
    if is_list(a) and is_list(b):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if not a and not b and not isinstance(a or b, str):  # null, false and 0 are three words for "none"
        return True
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (a, b))
    return f32(a) == f32(b) if numbers else a == b
