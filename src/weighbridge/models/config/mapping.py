"""config.json <-> GGUF key-values, whole files at a time. key_values.toml has the rows.

The key-values equal those that the reference converter writes for the same config: keys, types, values and order. A
restored config is the class's defaults, overlaid with the GGUF's values. GGUF has no key for some settings (which of
several classes it was, dropouts, the initialisation of weights); the losses list everything guessed or dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError
from weighbridge.containers.gguf.values import KV
from weighbridge.models.arch.config import LOCAL_THETA, THETA, layer_types
from weighbridge.models.arch.derived import RESTORED, SETTINGS
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.rules import family_rules
from weighbridge.models.arch.tables.expression import ArchView, evaluate, shared_value
from weighbridge.models.arch.tables.layers import as_config
from weighbridge.models.arch.tables.schema import PresenceEntry
from weighbridge.models.arch.tables.spec import Architecture
from weighbridge.models.arch.tables.values import integer, number
from weighbridge.models.config.keys import (
    LAST,
    differs,
    entries,
    from_value,
    implied,
    is_list,
    lookup,
    rules,
    shortest,
    store,
    table,
    to_kv,
)
from weighbridge.models.config.pooling import dense_keys_of

Vectors = Callable[[str], Sequence[float] | None]
_OF_THE_WHOLE: Final = ("architectures", "model_type", "torch_dtype")  # not of a part, in a class of several parts
_HEAD_WIDTH: Final = ("head_dim", "hidden_size // num_attention_heads", "d_model // n_heads")


class Leading(KV):
    """A key-value that precedes the general ones."""


class HfConfig(NamedTuple):
    """A GGUF's metadata as config.json and generation_config.json (None if the model generates no text). `losses`
    change results; `guesses` don't."""

    config: dict[str, Any]
    generation: dict[str, Any] | None
    losses: list[str]
    guesses: list[str]


# ---------------------------------------------------------------------- to GGUF


def config_to_gguf(
    config: Mapping[str, Any], family: Family, *, file_type: int, pooling: int | None = None,
    generation: Mapping[str, Any] | None = None, untrained: Sequence[int] = (),
) -> dict[str, KV]:  # fmt: skip
    """Returns the architecture's key-values, from `block_count` to `token_type_count`, in order.

    `file_type`: a llama_ftype. `pooling`: see `pooling.pooling_type`. `generation`: generation_config.json.
    `untrained`: added tokens whose embedding is zero.
    """
    facts = {**family.effective(config), "file_type": file_type, "pooling": pooling, "generation": generation}
    facts["untrained"] = untrained
    out: dict[str, KV] = {}
    for row in rules(family).keys:
        out |= {f"{row.key(family.gguf)}.{name}": kv for name, kv in entries(row, facts)}
        if (kv := to_kv(row, facts)) is not None:
            out[row.key(family.gguf)] = Leading(*kv) if row.first else kv
    return out


def with_numbers(
    architecture: Mapping[str, KV], numbers: Mapping[str, Sequence[float] | Sequence[int] | float]
) -> dict[str, KV]:
    """Returns the architecture's key-values with those that replace tensors: floats before all, integers behind the
    family's own (see arch/kv_tensors.py)."""
    kinds = {key: (v[0] if is_list(v) and v else v) for key, v in numbers.items()}
    whole = {key: KV("arr[u64]", numbers[key]) for key, first in kinds.items() if isinstance(first, int)}
    floats = {key: Leading("arr[f32]" if is_list(v) else "f32", v) for key, v in numbers.items() if key not in whole}
    own = [key for key in architecture if key not in whole]
    end = own.index(LAST) if LAST in own else len(own)  # keys may follow it: BERT's count of token types
    return {
        **floats,
        **{key: architecture[key] for key in own[:end]},
        **whole,
        **{k: architecture[k] for k in own[end:]},
    }


def assemble(general: Mapping[str, KV], architecture: Mapping[str, KV], tokenizer: Mapping[str, KV]) -> dict[str, KV]:
    """Returns a whole file's key-values in the reference's order: from `general_to_gguf`, from `config_to_gguf` and the
    tokenizer's."""
    whole = {**general, **architecture, **tokenizer}
    first = {"general.architecture", *(key for key, kv in whole.items() if isinstance(kv, Leading))}
    return {**{key: kv for key, kv in whole.items() if key in first}, **whole}


def facts_losses(facts: Mapping[str, Any], family: Family) -> list[str]:
    """Returns the settings of an effective config that change the model and that GGUF has no key for."""
    out = []
    for path, harmless in rules(family).assumed.items():
        value = lookup(facts, path)
        if value is not None and value not in harmless:
            out.append(f"config.json: {path} = {value!r} has no key in a {family.gguf} GGUF")
    for key, value in implied(rules(family), facts).items():
        declared = lookup(facts, key)
        if value is not None and declared not in (None, value):
            out.append(f"config.json: {key} = {declared!r} has no key in a {family.gguf} GGUF, which means {value!r}")
    out += _sharpness_losses(facts)
    computed = (row for row in rules(family).requires_value if differs(row, facts))
    return [*out, *(f"config.json: {row.config} = {lookup(facts, row.config)!r}: {row.why}" for row in computed)]


def _sharpness_losses(facts: Mapping[str, Any]) -> list[str]:
    """Returns the loss of an attention factor of yarn that isn't the usual one: llama.cpp b11549 doesn't read the key
    that the reference converter writes it to, and computes the usual one. Models with `mscale` have rules of their
    own."""
    rope = facts.get("rope") or {}
    declared = rope.get("attention_factor")
    if rope.get("rope_type") != "yarn" or declared is None or rope.get("mscale_all_dim") is not None:
        return []
    usual = 0.1 * math.log(max(number(rope.get("factor"), "rope.factor"), 1.0)) + 1
    if math.isclose(number(declared, "rope.attention_factor"), usual, rel_tol=1e-6):
        return []
    return [f"config.json: rope.attention_factor = {declared!r}: llama.cpp sharpens attention by {usual:.4g} instead"]


def with_tokenizer_keys(
    tokenizer: Mapping[str, KV], config: Mapping[str, Any], family: Family,
    generation: Mapping[str, Any] | None = None,
) -> dict[str, KV]:  # fmt: skip
    """Returns the tokenizer's key-values with those that the reference adds or replaces for a family. `generation`:
    generation_config.json."""
    eos = (generation or {}).get("eos_token_id")
    first_eos = eos[0] if isinstance(eos, list | tuple) and len(eos) > 1 else None
    facts = {**family.effective(config), "generation": generation, "first_eos": first_eos}
    named = [row.token for row in rules(family).tokenizer if row.token]
    ids = {token: i for i, token in enumerate(tokenizer["tokenizer.ggml.tokens"].value)} if named else {}
    out, first, last = dict(tokenizer), dict[str, KV](), dict[str, KV]()
    for row in rules(family).tokenizer:
        if row.leading:  # a constant is the default
            constant = None if row.value is None else KV(row.type, row.value)
            out |= {row.name: Leading(*kv)} if (kv := out.get(row.name, constant)) is not None else {}
            continue
        kv = KV(row.type, ids.get(row.token)) if row.token else to_kv(row, facts)
        if kv is None or kv.value is None:
            continue
        if row.first:
            first[row.name] = out.get(row.name, kv)
        elif row.last:
            last[row.name] = kv
        elif row.name in out:
            out[row.name] = kv
        else:  # a special token's id follows the existing ones
            ends = ("_token_id", ".merges", ".token_type")
            at = 1 + max((i for i, key in enumerate(out) if key.endswith(ends)), default=0)
            out = dict([*out.items()][:at]) | {row.name: kv} | dict([*out.items()][at:])
    return {**first, **{key: kv for key, kv in out.items() if key not in first | last}, **last}


# ---------------------------------------------------------------------- from GGUF


def gguf_to_config(
    metadata: Mapping[str, Any], family: Family, tensors: Mapping[str, Any] | Sequence[str], *,
    vectors: Vectors = lambda name: None, torch_dtype: str | None = None, class_: str | None = None,
) -> HfConfig:  # fmt: skip
    """Returns a GGUF's key-values as config.json and generation_config.json.

    `tensors`: its tensor names. `vectors`: returns the values of a short tensor. A GGUF has llama3 rope scaling only as
    such a tensor, `rope_freqs.weight`; a file with it is refused if `vectors` returns None. `torch_dtype`: the type of
    the written weights. `class_`: a class of transformers, if it isn't the family's most likely one.
    """
    plain = family.architecture_of_gguf(metadata, tensors)
    architecture = plain if class_ is None else family.architectures[class_]
    described = plain if architecture.part and not architecture.part_type else architecture
    config = {k: v for k, v in described.defaults.items() if k not in ("rope_theta", "rope_parameters")}
    config |= {k: dict(v) for k, v in config.items() if isinstance(v, Mapping)}  # rows write into these
    layers = _Layers({}, 0)
    if family.layer_sets:
        sizes = family.sizes_from_gguf(metadata, tensors)
        layers = _Layers(dict(sizes.layers), sizes[next(iter(family.index.values()))])
    mapped = {f"{family.gguf}.vocab_size", *_restore(config, metadata, family, layers), *dense_keys_of(family, tensors)}
    mapped |= family.metadata_names()
    prefix = f"{family.gguf}."
    losses = [f"{key} is not carried over" for key in metadata if key.startswith(prefix) and key not in mapped]
    losses += _restore_rotation(config, metadata, family, tensors, vectors)
    _restore_derived(config, family, tensors, vectors)
    for path, value in as_config(family.layer_sets, layers.sets, layers.number).items():
        restored = lookup(config, path)
        if not _covers(restored, value):
            store(config, path, value)
    for key, name in rules(family).presence.items():
        if isinstance(name, PresenceEntry):
            store(config, key, name.there if name.tensor in tensors else name.absent)
        elif key in config:
            config[key] = (name.lstrip("!") in tensors) != name.startswith("!")
    meta, view = family.document.meta, ArchView(metadata, family.gguf, tensors)
    for key, name in meta.rows.items() if meta is not None else ():
        if (count := view.get(f"#{name}")) is not None:
            store(config, key, count)
    for rule in family_rules(family.document.config_rules):
        stated = rule.restore(config) if hasattr(rule, "restore") else {}
        config = {key: value for key, value in {**config, **stated}.items() if value is not None or key not in stated}
    for key, values in rules(family).assumed.items():  # every GGUF means one of these, whatever the class's default
        if config.get(key) is not None and config[key] not in values:
            config[key] = values[0] if values else None
    _restore_vocabulary(config, metadata, family)
    _add_subtracted(config, architecture, family)
    if architecture.full_layers and config.get("layer_types") is None:
        config["layer_types"] = layer_types(architecture.full_layers, config)
    for path, value in implied(rules(family), config).items():
        if value is not None and ("." not in path or isinstance(config.get(path.partition(".")[0]), dict)):
            store(config, path, value)
    config |= {"architectures": [architecture.name], "model_type": architecture.stated_type}
    if torch_dtype:
        config["torch_dtype"] = torch_dtype
    generation = _generation(metadata, config, family) if architecture.name.endswith("ForCausalLM") else None
    if architecture.part is not None:
        config = _in_part(config, architecture, None if class_ is None else _part_type(family, architecture, plain))
    like = " or ".join(architecture.like)
    guesses = [f"assuming the class {architecture.name}: a {family.gguf} GGUF of {like} is the same"] if like else []
    return HfConfig(dict(sorted(config.items())), generation, losses, guesses)


def _covers(restored: Any, value: Any) -> bool:
    """Whether a restored setting has the entries of a list by layer: one word for all, or a list, which may go on with
    the entries of layers that predict further tokens."""
    if not is_list(value):
        return False
    return list(restored[: len(value)]) == value if is_list(restored) else {*map(str, value)} == {restored}


def _part_type(family: Family, architecture: Architecture, plain: Architecture) -> str:
    """The `model_type` of the part of a class: its usual one, if the family has it."""
    types = {a.stated_type for a in family.architectures.values() if a.part is None}
    return str(architecture.part_type) if architecture.part_type in types else plain.stated_type


def _in_part(config: Mapping[str, Any], architecture: Architecture, part_type: str | None) -> dict[str, Any]:
    """The config of a class of several parts, which has most settings in the object of its part."""
    outside = (*_OF_THE_WHOLE, *architecture.outside)
    part = {k: v for k, v in config.items() if k not in outside}
    part |= {} if part_type is None else {"model_type": part_type}
    whole = {k: v for k, v in config.items() if k in (*outside, "tie_word_embeddings")}
    whole |= {k: v for k, v in config.items() if k.endswith("_token_id")}
    store(whole, str(architecture.part), dict(sorted(part.items())))
    return whole


class _Layers(NamedTuple):
    """A GGUF's layers: the members of the family's sets, and the number of layers (0 if the family has no sets)."""

    sets: Mapping[str, frozenset[int]]
    number: int


def _restore(config: dict[str, Any], metadata: Mapping[str, Any], family: Family, layers: _Layers) -> set[str]:
    """Applies every row that restores something. Returns the keys that rows cover."""
    covered: set[str] = set()
    for row in rules(family).keys:
        key = row.key(family.gguf)
        if row.each:
            stated = {name: value for name, value in metadata.items() if name.startswith(f"{key}.")}
            covered |= stated.keys()
            store(config, row.config[0], {name.removeprefix(f"{key}."): shortest(v) for name, v in stated.items()})
        if key not in metadata or row.type.startswith("arr") == is_list(metadata[key]):
            covered.add(key)
        if (row.null or row.default is not None) and key not in metadata:
            store(config, row.restored[0], row.default)
        if key not in metadata or row.type.startswith("arr") != is_list(metadata[key]):
            continue
        values = metadata[key] if is_list(metadata[key]) else [metadata[key]]
        if row.map and any(value not in row.map.values() for value in values):
            continue
        if row.others:  # a list with values for the layers of a set and for the others
            within = layers.sets[row.layers or ""]
            outside = frozenset(range(layers.number)) - within
            for place, members in ((row.restored, within), ((row.others,), outside)):
                if place and (declared := shared_value(metadata[key], row.name, members)) is not None:
                    config[place[0]] = declared
            config |= row.sets
        elif row.restored:
            places = next(((c,) for c in row.config if row.restore is True and c in config), row.restored)
            for path in places:
                store(config, path, from_value(row, metadata[key], config))
    return covered


_NEWER: Final = ("mrope_section", "llama_4_scaling_beta")


def _restore_rotation(
    config: dict[str, Any], metadata: Mapping[str, Any], family: Family, tensors: Mapping[str, Any] | Sequence[str],
    vectors: Vectors,
) -> list[str]:  # fmt: skip
    """Sets `rope_theta` and `rope_scaling`, the spelling of transformers 4, which transformers 5 and mlx-lm also read.
    If layers with a window have their own rotation, adds transformers 5's spelling, since few classes of version 4 can
    express that. Returns losses."""
    meant = {k.removeprefix("rope."): v for k, v in implied(rules(family), config).items() if k[:5] == "rope."}
    newer = "full_attention" in family.plain_defaults.get("rope_parameters", {})  # a class that only version 5 has
    rope = {**config.pop("rope", {}), **meant}
    sliding = config.pop("rope_sliding", {"rope_theta": 10000.0} if newer else None)
    word = next((w for w in THETA if w in family.plain_defaults), None)
    if word is None:
        return []
    theta = rope.pop("rope_theta", 10000.0)  # llama.cpp's default for a missing key
    if metadata.get(f"{family.gguf}.rope.scaling.type") == "none":
        stretched = {key: rope[key] for key in ("alpha", "factor") if key in rope}  # Hunyuan's base frequency
        rope = {"rope_type": "dynamic", **stretched} if "alpha" in rope else {}
    config |= {word: theta} if sliding else {word: theta, "rope_theta": theta}
    if "rope_freqs.weight" in tensors:
        derived = next((row.derived for row in family.rows.values() if row.derived in RESTORED), None)
        derived = derived or "llama3_factors"
        freqs = vectors("rope_freqs.weight")
        scaling = None if freqs is None else RESTORED[derived](freqs, number(theta, "rope.freq_base"))
        if scaling is None:
            kind = derived.removesuffix("_factors")
            raise FormatError(f"no {kind} rope scaling gives these factors", field="rope_freqs.weight")
        rope = scaling
    losses = _restore_longrope(rope, tensors, vectors)
    if rope or "rope_parameters" in family.plain_defaults:
        rope.setdefault("rope_type", "default")
        config["rope_scaling"] = rope
    if sliding is not None:
        config[next((w for w in LOCAL_THETA if w in config), LOCAL_THETA[0])] = sliding["rope_theta"]
        full = {"rope_type": "default", **rope, "rope_theta": theta}
        config["rope_parameters"] = {"full_attention": full, "sliding_attention": {"rope_type": "default", **sliding}}
    losses += _restore_share(metadata, family, config)
    if not rope.keys().isdisjoint(_NEWER):  # readers of a class with these (mlx-lm's) know only version 5's spelling
        moved = {key: config.pop(key) for key in ("rope_theta", "partial_rotary_factor") if key in config}
        config["rope_parameters"] = {**config.pop("rope_scaling"), **moved}
    if newer:
        for key in (word, "rope_theta", "rope_scaling", *LOCAL_THETA):
            config.pop(key, None)
    return losses


def _restore_derived(
    config: dict[str, Any], family: Family, tensors: Mapping[str, Any] | Sequence[str], vectors: Vectors
) -> None:
    """Restores settings that a GGUF stores as a tensor per layer with one number throughout. Raises FormatError if the
    numbers differ."""
    for row in (row for row in family.rows.values() if row.derived in SETTINGS):
        start, _, end = row.names["gguf"].partition("{l}")
        names = [name for name in tensors if name.startswith(start) and name.endswith(end)]
        values = {value for name in names for value in vectors(name) or (math.nan,)}
        key = SETTINGS[row.derived or ""]
        if len(values) > 1 or (key is None and values - {1.0}):
            raise FormatError("has weights that the class can't have", field=row.names["gguf"], found=len(values))
        if key is not None and values:
            store(config, key, shortest(values.pop()))


def _restore_longrope(rope: dict[str, Any], tensors: Mapping[str, Any] | Sequence[str], vectors: Vectors) -> list[str]:
    """Adds longrope's factors, which a GGUF has as two tensors. Returns losses."""
    names = {f"{length}_factor": f"rope_factors_{length}.weight" for length in ("long", "short")}
    if all(name in tensors for name in names.values()):
        factors = {key: vectors(name) for key, name in names.items()}
        if None in factors.values():
            raise FormatError("is not a short F32 tensor", field=names["long_factor"])
        rope["rope_type"] = "longrope"
        rope |= {key: [shortest(v) for v in values or ()] for key, values in factors.items()}
    elif rope.get("rope_type") == "longrope":
        return ["longrope's factors are not carried over"]
    return []


def _restore_share(metadata: Mapping[str, Any], family: Family, config: dict[str, Any]) -> list[str]:
    """Sets the part of a head that rotates, if the class has a key for it. Returns a loss if it has none and only a
    part rotates."""
    rotated = metadata.get(f"{family.gguf}.rope.dimension_count")
    head = next((width for text in _HEAD_WIDTH if (width := evaluate(text, config))), 0)
    if any(row.name == "{a}.rope.dimension_count" and row.restored for row in rules(family).keys):
        return []
    share = next((k for k in ("rotary_pct", "partial_rotary_factor") if k in family.plain_defaults), None)
    if share is not None and rotated is not None:
        config[share] = integer(rotated, "rope.dimension_count") / head
        windowed = integer(metadata.get(f"{family.gguf}.rope.dimension_count_swa", rotated), "rope.dimension_count_swa")
        for kind, part in config.get("rope_parameters", {}).items():
            if isinstance(part, dict):
                part[share] = windowed / head if kind == "sliding_attention" else config[share]
        return []
    if rotated in (None, head):
        return []
    return [
        f"{family.gguf}.rope.dimension_count is {rotated}, but a head has {head}: no class of the family rotates a part"
    ]


def _add_subtracted(config: dict[str, Any], architecture: Architecture, family: Family) -> None:
    """Adds the number that a GGUF's count omits (positions after the padding token). If the tokenizer doesn't define
    the number, the class's default applies, unless a missing key means that there is none."""
    rows = rules(family).keys
    nullable = {row.restored[0] for row in rows if row.null}
    for row in rows:
        if row.subtract:
            if evaluate(row.subtract, config) is None:
                declared = {k: v for k, v in architecture.defaults.items() if k in row.subtract and k not in nullable}
                config |= {k: v for k, v in declared.items() if config[k] is None}
            config[row.restored[0]] += evaluate(row.subtract, config) or 0


def _restore_vocabulary(config: dict[str, Any], metadata: Mapping[str, Any], family: Family) -> None:
    """Sets the keys that repeat the tokenizer: sizes, special tokens, labels. A token that the GGUF doesn't have is
    null, not the class's default."""
    for key, source in rules(family).tokens.items():
        if source in metadata:
            config[key] = metadata[source]
        elif key in config:
            config[key] = None
    if (size := metadata.get(f"{family.gguf}.vocab_size")) is not None:  # a GGUF without a tokenizer may have it too
        config["vocab_size"] = integer(size, f"{family.gguf}.vocab_size")
    elif "tokenizer.ggml.tokens" in metadata:
        config["vocab_size"] = len(metadata["tokenizer.ggml.tokens"])
    if (labels := config.pop("labels", None)) is not None:
        config["id2label"] = {str(i): label for i, label in enumerate(labels)}
        config["label2id"] = {label: i for i, label in enumerate(labels)}


def _generation(metadata: Mapping[str, Any], config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    out = {key: config[key] for key in rules(family).tokens if config.get(key) is not None}
    sampled = {
        row.restored[0]: from_value(row, metadata[row.name])
        for row in table().sampling
        if row.restored and row.name in metadata
    }
    # transformers refuses sampling parameters with greedy decoding, and a model that recommends them samples.
    return {**out, **({"do_sample": True} if sampled else {}), **sampled}
