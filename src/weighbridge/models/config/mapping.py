"""config.json <-> GGUF key-values, whole files at a time; the rows stand in keys.toml.

Going to GGUF, what comes out equals what the reference converter writes for the same config: keys, types, values,
order. Coming back, a config is the class's defaults overlaid with what the GGUF says; GGUF has no key for some of it
(which of several classes it was, dropouts, how the weights were initialised), and whatever is guessed or dropped is
in the losses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError
from weighbridge.containers.gguf.values import KV
from weighbridge.models.arch.config import LOCAL_THETA, THETA, layer_types
from weighbridge.models.arch.config_rules import INVERSE_RULES
from weighbridge.models.arch.derived import RESTORED
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.tables.expression import evaluate, shared_value
from weighbridge.models.arch.tables.layers import as_config
from weighbridge.models.arch.tables.schema import KeyEntry, PresenceEntry
from weighbridge.models.arch.tables.spec import Architecture
from weighbridge.models.arch.tables.values import integer, number
from weighbridge.models.config.keys import (
    differs,
    from_value,
    implied,
    is_list,
    lookup,
    rules,
    shortest,
    store,
    table,
    to_kv,
    understood,
)

Vectors = Callable[[str], Sequence[float] | None]
_OF_THE_WHOLE: Final = ("architectures", "model_type", "torch_dtype")  # of the keys of a class of several parts


class Leading(KV):
    """A key-value that stands before the general ones."""


def _no_vector(name: str) -> None:
    """No tensor's values are at hand."""


class HfConfig(NamedTuple):
    """What a GGUF gives back: config.json, generation_config.json (None where the model generates nothing), and what
    was lost or had to be guessed."""

    config: dict[str, Any]
    generation: dict[str, Any] | None
    losses: list[str]


# ---------------------------------------------------------------------- to GGUF


def config_to_gguf(
    config: Mapping[str, Any], family: Family, *, file_type: int, pooling: int | None = None,
    generation: Mapping[str, Any] | None = None,
) -> dict[str, KV]:  # fmt: skip
    """The architecture's key-values, from `block_count` to `token_type_count`, in order. `file_type`: a llama_ftype.
    `pooling`: see `sentence.pooling_type`. `generation`: generation_config.json."""
    own = {"file_type": file_type, "pooling": pooling, "generation": generation}
    facts = {**family.effective(config), **own}
    out: dict[str, KV] = {}
    for row in rules(family).keys:
        if (kv := to_kv(row, facts)) is not None:
            out[row.key(family.gguf)] = Leading(*kv) if row.first else kv
    return out


def assemble(general: Mapping[str, KV], architecture: Mapping[str, KV], tokenizer: Mapping[str, KV]) -> dict[str, KV]:
    """A whole file's key-values in the reference's order: `general_to_gguf`, `config_to_gguf`, the tokenizer's."""
    own = {**architecture, **tokenizer}
    first = {"general.architecture", *(key for key, kv in own.items() if isinstance(kv, Leading))}
    whole = {**general, **own}
    return {**{key: kv for key, kv in whole.items() if key in first}, **whole}


def config_losses(config: Mapping[str, Any], family: Family) -> list[str]:
    """What a config says that changes the model and that GGUF has no key for."""
    return facts_losses(family.effective(config), family)


def facts_losses(facts: Mapping[str, Any], family: Family) -> list[str]:
    """The same of an effective config."""
    out = []
    for path, harmless in rules(family).assumed.items():
        value = lookup(facts, path)
        if value is not None and value not in harmless:
            out.append(f"config.json: {path} = {value!r} has no key in a {family.gguf} GGUF")
    for key, value in implied(rules(family), facts).items():
        declared = lookup(facts, key)
        if value is not None and declared not in (None, value):
            out.append(f"config.json: {key} = {declared!r} has no key in a {family.gguf} GGUF, which means {value!r}")
    computed = (row for row in rules(family).requires_value if differs(row, facts))
    return [*out, *(f"config.json: {row.config} = {lookup(facts, row.config)!r}: {row.why}" for row in computed)]


def with_tokenizer_keys(
    tokenizer: Mapping[str, KV], config: Mapping[str, Any], family: Family,
    generation: Mapping[str, Any] | None = None,
) -> dict[str, KV]:  # fmt: skip
    """The tokenizer's key-values with what the reference adds to them, or puts in their place, for a family.
    `generation`: generation_config.json."""
    facts = {**family.effective(config), "generation": generation, "first_eos": _first_eos(generation)}
    named = [row.token for row in rules(family).tokenizer if row.token]
    ids = {token: i for i, token in enumerate(tokenizer["tokenizer.ggml.tokens"].value)} if named else {}
    out, first, last = dict(tokenizer), dict[str, KV](), dict[str, KV]()
    for row in rules(family).tokenizer:
        if row.leading:
            out |= {row.name: Leading(*out[row.name])} if row.name in out else {}
            continue
        kv = KV(row.type, ids.get(row.token)) if row.token else to_kv(row, facts)
        if kv is None or kv.value is None:
            continue
        if row.first:
            first[row.name] = out.get(row.name, kv)
        elif row.last:
            last[row.name] = kv
        else:
            out = {**out, row.name: kv} if row.name in out else _after_ids(out, row.name, kv)
    return {**first, **{key: kv for key, kv in out.items() if key not in first | last}, **last}


def _first_eos(generation: Mapping[str, Any] | None) -> Any:
    """The first of several tokens that end a text; None of one alone."""
    listed = (generation or {}).get("eos_token_id")
    return listed[0] if isinstance(listed, list | tuple) and len(listed) > 1 else None


def _after_ids(keys: Mapping[str, KV], name: str, kv: KV) -> dict[str, KV]:
    """A special token's number after those that are there."""
    order = [*keys]
    at = 1 + max((i for i, key in enumerate(order) if key.endswith(("_token_id", ".merges", ".token_type"))), default=0)
    return {**{key: keys[key] for key in order[:at]}, name: kv, **{key: keys[key] for key in order[at:]}}


# ---------------------------------------------------------------------- from GGUF


def gguf_to_config(
    metadata: Mapping[str, Any], family: Family, tensors: Mapping[str, Any] | Sequence[str], *,
    vectors: Vectors = _no_vector, torch_dtype: str | None = None,
) -> HfConfig:  # fmt: skip
    """A GGUF's key-values as config.json and generation_config.json.

    `tensors`: its tensor names. `vectors`: gives the values of a short tensor, as `rope_freqs.weight`, which is all
    that a GGUF has of llama3 rope scaling: without them a file that has the tensor is refused. `torch_dtype`: what the
    weights are written as.
    """
    architecture = family.architecture_of_gguf(metadata, tensors)
    config = {k: v for k, v in architecture.defaults.items() if k not in ("rope_theta", "rope_parameters")}
    layers = _layers(metadata, family, tensors)
    known = _restore(config, metadata, family, layers)
    known.add(f"{family.gguf}.vocab_size")
    own = (key for key in metadata if key.startswith(f"{family.gguf}."))
    losses = [f"{key} is not carried over" for key in own if key not in known]
    losses += _rotary(config, metadata, family, tensors, vectors)
    for path, value in as_config(family.layer_sets, layers.sets, layers.number).items():
        if not _continues(lookup(config, path), value):
            store(config, path, value)
    _by_presence(config, family, tensors)
    for rule in INVERSE_RULES.keys() & {*family.document.config_rules}:
        stated = INVERSE_RULES[rule](config)
        config = {key: value for key, value in {**config, **stated}.items() if value is not None or key not in stated}
    _implied(config, family)
    _vocabulary(config, metadata, family)
    _lessened(config, architecture, family)
    if architecture.full_layers and config.get("layer_types") is None:
        config["layer_types"] = layer_types(architecture.full_layers, config)
    for path, value in implied(rules(family), config).items():
        if value is not None and ("." not in path or isinstance(config.get(path.partition(".")[0]), dict)):
            store(config, path, value)
    config |= {"architectures": [architecture.name], "model_type": architecture.model_type}
    if torch_dtype:
        config["torch_dtype"] = torch_dtype
    losses += _guess(architecture, family)
    generation = _generation(metadata, config, family) if architecture.name.endswith("ForCausalLM") else None
    return HfConfig(dict(sorted(_in_part(config, architecture).items())), generation, losses)


def _in_part(config: dict[str, Any], architecture: Architecture) -> dict[str, Any]:
    """The config of a class of several parts, with all that isn't about the whole in the object of its part."""
    if architecture.part is None:
        return config
    whole = {
        k: v for k, v in config.items() if k in _OF_THE_WHOLE or k == "tie_word_embeddings" or k.endswith("_token_id")
    }
    own = {k: v for k, v in config.items() if k not in _OF_THE_WHOLE}
    return {**whole, architecture.part: dict(sorted(own.items()))}


def _continues(restored: Any, layers: Any) -> bool:
    """Whether a list has these entries, and after them those of layers that predict further tokens."""
    return is_list(restored) and is_list(layers) and list(restored[: len(layers)]) == layers


class _Layers(NamedTuple):
    """A GGUF's layers: the family's sets of them, and how many there are (0 where no set is asked for)."""

    sets: Mapping[str, frozenset[int]]
    number: int


def _layers(metadata: Mapping[str, Any], family: Family, tensors: Mapping[str, Any] | Sequence[str]) -> _Layers:
    if not family.layer_sets:
        return _Layers({}, 0)
    sizes = family.sizes_from_gguf(metadata, tensors)
    return _Layers(dict(sizes.layers), sizes[next(iter(family.index.values()))])


def _restore(config: dict[str, Any], metadata: Mapping[str, Any], family: Family, layers: _Layers) -> set[str]:
    """Every row that gives something back; the keys that any row speaks of."""
    known = set()
    for row in rules(family).keys:
        key = row.key(family.gguf)
        if key not in metadata or row.type.startswith("arr") == is_list(metadata[key]):
            known.add(key)
        if (row.null or row.default is not None) and key not in metadata:
            store(config, row.restored[0], row.default)
        if row.others and key in metadata and understood(row, metadata[key]):
            _restore_both(config, row, metadata[key], layers)
        elif row.restored and key in metadata and understood(row, metadata[key]):
            own = next(((c,) for c in row.config if row.restore is True and c in config), row.restored)
            for place in own:
                store(config, place, from_value(row, metadata[key], config))
    return known


def _restore_both(config: dict[str, Any], row: KeyEntry, value: Sequence[Any], layers: _Layers) -> None:
    """The values of a list for the layers of a set, and for the others."""
    within = layers.sets[row.layers or ""]
    for place, some in ((row.restored, within), ((row.others,), frozenset(range(layers.number)) - within)):
        if place and (declared := shared_value(value, row.name, some)) is not None:
            config[place[0]] = declared
    config |= row.sets


def _rotary(
    config: dict[str, Any], metadata: Mapping[str, Any], family: Family, tensors: Mapping[str, Any] | Sequence[str],
    vectors: Vectors,
) -> list[str]:  # fmt: skip
    """`rope_theta` and `rope_scaling`, the spelling of transformers 4, which 5 and mlx-lm read too. Where layers with a
    window rotate in another way, 5's spelling stands beside: 4 has words for them in few classes alone."""
    own = {k.removeprefix("rope."): v for k, v in implied(rules(family), config).items() if k[:5] == "rope."}
    newer = "full_attention" in family.plain_defaults.get("rope_parameters", {})  # a class that no older version has
    rope = {**config.pop("rope", {}), **own}
    sliding = config.pop("rope_sliding", {"rope_theta": 10000.0} if newer else None)
    word = next((w for w in THETA if w in family.plain_defaults), None)
    if word is None:
        return []
    theta = rope.pop("rope_theta", 10000.0)  # llama.cpp's default where the key is absent
    if metadata.get(f"{family.gguf}.rope.scaling.type") == "none":
        stretched = {key: rope[key] for key in ("alpha", "factor") if key in rope}  # Hunyuan's base frequency
        rope = {"rope_type": "dynamic", **stretched} if "alpha" in rope else {}
    config |= {word: theta} if sliding else {word: theta, "rope_theta": theta}
    if "rope_freqs.weight" in tensors:
        made = next((row.derived for row in family.rows.values() if row.derived in RESTORED), None) or "llama3_factors"
        freqs = vectors("rope_freqs.weight")
        found = None if freqs is None else RESTORED[made](freqs, number(theta, "rope.freq_base"))
        if found is None:
            kind = made.removesuffix("_factors")
            raise FormatError(f"no {kind} rope scaling gives these factors", field="rope_freqs.weight")
        rope = found
    lost = _longrope(rope, tensors, vectors)
    if rope or "rope_parameters" in family.plain_defaults:  # without a word of it that would count
        rope.setdefault("rope_type", "default")
        config["rope_scaling"] = rope
    if sliding is not None:
        config[next((w for w in LOCAL_THETA if w in config), LOCAL_THETA[0])] = sliding["rope_theta"]
        full = {"rope_type": "default", **rope, "rope_theta": theta}
        config["rope_parameters"] = {"full_attention": full, "sliding_attention": {"rope_type": "default", **sliding}}
    lost += _partial(metadata, family, config)
    if "mrope_section" in rope:
        _in_one_place(config)
    if newer:
        for key in (word, "rope_theta", "rope_scaling", *LOCAL_THETA):
            config.pop(key, None)
    return lost


def _in_one_place(config: dict[str, Any]) -> None:
    """The rotation as transformers 5 spells it, alone: what reads a class with sections (mlx-lm's Qwen 3.5) doesn't
    know the older words."""
    apart = {key: config.pop(key) for key in ("rope_theta", "partial_rotary_factor") if key in config}
    config["rope_parameters"] = {**config.pop("rope_scaling"), **apart}


def _longrope(rope: dict[str, Any], tensors: Mapping[str, Any] | Sequence[str], vectors: Vectors) -> list[str]:
    """longrope's factors, which a GGUF has as two tensors."""
    names = {f"{length}_factor": f"rope_factors_{length}.weight" for length in ("long", "short")}
    if all(name in tensors for name in names.values()):
        factors = {key: vectors(name) for key, name in names.items()}
        if None in factors.values():
            raise FormatError("is no short F32 tensor", field=names["long_factor"])
        rope["rope_type"] = "longrope"
        rope |= {key: [shortest(v) for v in values or ()] for key, values in factors.items()}
    elif rope.get("rope_type") == "longrope":
        return ["longrope's factors are not carried over"]
    return []


_HEAD_WIDTH: Final = ("head_dim", "hidden_size // num_attention_heads", "d_model // n_heads")


def _partial(metadata: Mapping[str, Any], family: Family, config: dict[str, Any]) -> list[str]:
    """Which part of a head rotates, where the class can say it; a loss where it can't and not all of them do."""
    rotated = metadata.get(f"{family.gguf}.rope.dimension_count")
    head = next((width for words in _HEAD_WIDTH if (width := evaluate(words, config))), 0)
    if any(row.name == "{a}.rope.dimension_count" and row.restored for row in rules(family).keys):
        return []
    share = next((k for k in ("rotary_pct", "partial_rotary_factor") if k in family.plain_defaults), None)
    if share is not None and rotated is not None:
        config[share] = integer(rotated, "rope.dimension_count") / head
        for part in (p for p in config.get("rope_parameters", {}).values() if isinstance(p, dict)):
            part[share] = config[share]
        return []
    if rotated in (None, head):
        return []
    return [
        f"{family.gguf}.rope.dimension_count is {rotated}, but a head has {head}: no class of the family rotates a part"
    ]


def _by_presence(config: dict[str, Any], family: Family, tensors: Mapping[str, Any] | Sequence[str]) -> None:
    for key, name in rules(family).presence.items():
        if isinstance(name, PresenceEntry):
            config[key] = name.there if name.tensor in tensors else name.absent
        elif key in config:
            config[key] = (name.lstrip("!") in tensors) != name.startswith("!")


def _implied(config: dict[str, Any], family: Family) -> None:
    """What every GGUF of the family means without a key, where the class's default is another."""
    for key, values in rules(family).assumed.items():
        if config.get(key) is not None and config[key] not in values:
            config[key] = values[0] if values else None


def _lessened(config: dict[str, Any], architecture: Architecture, family: Family) -> None:
    """What a GGUF counts without a config's number (positions behind the padding token) gets it back; a tokenizer that
    doesn't say the number is taken to have the class's own, where its absence doesn't mean that there is none."""
    rows = rules(family).keys
    none = {row.restored[0] for row in rows if row.null}
    for row in rows:
        if row.subtract:
            if evaluate(row.subtract, config) is None:
                declared = {k: v for k, v in architecture.defaults.items() if k in row.subtract and k not in none}
                config |= {k: v for k, v in declared.items() if config[k] is None}
            config[row.restored[0]] += evaluate(row.subtract, config) or 0


def _vocabulary(config: dict[str, Any], metadata: Mapping[str, Any], family: Family) -> None:
    """What a config repeats of the tokenizer: sizes and special tokens. A token that the GGUF hasn't is null, not the
    class's default; labels get their numbers."""
    for key, source in rules(family).tokens.items():
        if source in metadata:
            config[key] = metadata[source]
        elif key in config:
            config[key] = None
    if (counted := metadata.get(f"{family.gguf}.vocab_size")) is not None:  # a GGUF without a tokenizer says it too
        config["vocab_size"] = integer(counted, f"{family.gguf}.vocab_size")
    elif "tokenizer.ggml.tokens" in metadata:
        config["vocab_size"] = len(metadata["tokenizer.ggml.tokens"])
    if (labels := config.pop("labels", None)) is not None:
        config["id2label"] = {str(i): label for i, label in enumerate(labels)}
        config["label2id"] = {label: i for i, label in enumerate(labels)}


def _guess(architecture: Architecture, family: Family) -> list[str]:
    """Which class it was, where a GGUF can't tell it from another."""
    if not architecture.like:
        return []
    others = " or ".join(architecture.like)
    return [f"the class is taken to be {architecture.name}: a {family.gguf} GGUF doesn't tell it from {others}"]


def _generation(metadata: Mapping[str, Any], config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    out = {key: config[key] for key in rules(family).tokens if config.get(key) is not None}
    sampled = {
        row.restored[0]: from_value(row, metadata[row.name])
        for row in table().sampling
        if row.restored and row.name in metadata
    }
    # transformers refuses sampling parameters beside greedy decoding, and a model that recommends them samples.
    return {**out, **({"do_sample": True} if sampled else {}), **sampled}
