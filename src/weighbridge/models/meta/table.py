"""config.json <-> GGUF key-values, whole files at a time; the rows stand in keys.toml.

Going to GGUF, what comes out equals what the reference converter writes for the same config: keys, types, values,
order. Coming back, a config is the class's defaults overlaid with what the GGUF says; GGUF has no key for some of it
(which of several classes it was, dropouts, how the weights were initialised), and whatever is guessed or dropped is
in the losses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from weighbridge.base.errors import FormatError
from weighbridge.containers.gguf_meta import KV
from weighbridge.models.arch.config import integer, number
from weighbridge.models.arch.make import llama3_parameters
from weighbridge.models.arch.table import Architecture, Family
from weighbridge.models.meta.keys import from_value, lookup, store, table, to_kv


class HfConfig(NamedTuple):
    """What a GGUF gives back: config.json, generation_config.json (None where the model generates nothing), and what
    was lost or had to be guessed."""

    config: dict[str, Any]
    generation: dict[str, Any] | None
    losses: list[str]


# ---------------------------------------------------------------------- to GGUF


def config_to_gguf(
    config: Mapping[str, Any], family: Family, *, file_type: int, pooling: int | None = None
) -> dict[str, KV]:
    """The architecture's key-values, from `block_count` to `token_type_count`, in order. `file_type`: a llama_ftype.
    `pooling`: see `sentence.pooling_type`."""
    facts = {**family.effective(config), "file_type": file_type, "pooling": pooling}
    out: dict[str, KV] = {}
    for row in table().of_family(family.name):
        if (kv := to_kv(row, facts)) is not None:
            out[row.key(family.gguf)] = kv
    return out


def assemble(general: Mapping[str, KV], architecture: Mapping[str, KV], tokenizer: Mapping[str, KV]) -> dict[str, KV]:
    """A whole file's key-values in the reference's order: `general_to_gguf`, `config_to_gguf`, the tokenizer's."""
    return {**general, **architecture, **tokenizer}


def config_losses(config: Mapping[str, Any], family: Family) -> list[str]:
    """What a config says that changes the model and that GGUF has no key for."""
    facts = family.effective(config)
    out = []
    for path, harmless in table().silent[family.name].items():
        value = lookup(facts, path)
        if value is not None and value not in harmless:
            out.append(f"config.json: {path} = {value!r} has no key in a {family.gguf} GGUF")
    return out


# ---------------------------------------------------------------------- from GGUF


def gguf_to_config(
    metadata: Mapping[str, Any], family: Family, tensors: Mapping[str, Any] | Sequence[str], *,
    rope_freqs: Sequence[float] | None = None, torch_dtype: str | None = None,
) -> HfConfig:  # fmt: skip
    """A GGUF's key-values as config.json and generation_config.json.

    `tensors`: its tensor names. `rope_freqs`: the values of `rope_freqs.weight`, which is all that a GGUF says of
    llama3 rope scaling: without them a file that has the tensor is refused. `torch_dtype`: what the weights are
    written as.
    """
    architecture = family.architecture_of_gguf(metadata, tensors)
    config = {k: v for k, v in architecture.defaults.items() if k != "rope_theta"}
    known = _restore(config, metadata, family)
    losses = [
        f"{key} is not carried over" for key in metadata if key.startswith(f"{family.gguf}.") and key not in known
    ]
    losses += _rotary(config, metadata, family, tensors, rope_freqs)
    _by_presence(config, family, tensors)
    _implied(config, family)
    _vocabulary(config, metadata, family)
    config |= {"architectures": [architecture.name], "model_type": architecture.model_type}
    if torch_dtype:
        config["torch_dtype"] = torch_dtype
    losses += _guess(architecture, family)
    generation = _generation(metadata, config, family) if architecture.name.endswith("ForCausalLM") else None
    return HfConfig(dict(sorted(config.items())), generation, losses)


def _restore(config: dict[str, Any], metadata: Mapping[str, Any], family: Family) -> set[str]:
    """Every row that gives something back; the keys that any row speaks of."""
    known = set()
    for row in table().of_family(family.name):
        key = row.key(family.gguf)
        known.add(key)
        if row.back is not None and key in metadata and (not row.map or metadata[key] in row.map.values()):
            store(config, row.back, from_value(row, metadata[key]))
    return known


def _rotary(
    config: dict[str, Any], metadata: Mapping[str, Any], family: Family, tensors: Mapping[str, Any] | Sequence[str],
    rope_freqs: Sequence[float] | None,
) -> list[str]:  # fmt: skip
    """`rope_theta` and `rope_scaling`, the spelling of transformers 4, which 5 and mlx-lm read too."""
    rope = config.pop("rope", {})
    if "rope_theta" not in _plain_defaults(family):
        return []
    theta = rope.pop("rope_theta", 10000.0)  # llama.cpp's default where the key is absent
    config["rope_theta"] = theta
    if "rope_freqs.weight" in tensors:
        found = None if rope_freqs is None else llama3_parameters(rope_freqs, number(theta, "rope.freq_base"))
        if found is None:
            raise FormatError("no llama3 rope scaling gives these factors", field="rope_freqs.weight")
        rope = found
    if rope:
        rope.setdefault("rope_type", "default")
        config["rope_scaling"] = rope
    told = ["longrope's factors are not carried over"] if rope.get("rope_type") == "longrope" else []
    return told + _partial(metadata, family, config)


def _plain_defaults(family: Family) -> Mapping[str, Any]:
    """The defaults of the family's plain class."""
    return list(family.architectures.values())[-1].defaults


def _partial(metadata: Mapping[str, Any], family: Family, config: Mapping[str, Any]) -> list[str]:
    """A loss where fewer dimensions rotate than a head has: these classes rotate them all."""
    rotated = metadata.get(f"{family.gguf}.rope.dimension_count")
    head = config.get("head_dim") or integer(config["hidden_size"], "hidden_size") // max(
        integer(config["num_attention_heads"], "num_attention_heads"), 1
    )
    if rotated in (None, head):
        return []
    return [
        f"{family.gguf}.rope.dimension_count is {rotated}, but a head has {head}: no class of the family rotates a part"
    ]


def _by_presence(config: dict[str, Any], family: Family, tensors: Mapping[str, Any] | Sequence[str]) -> None:
    for key, name in table().presence[family.name].items():
        if key in config:
            config[key] = (name.lstrip("!") in tensors) != name.startswith("!")


def _implied(config: dict[str, Any], family: Family) -> None:
    """What every GGUF of the family means without a key, where the class's default is another."""
    for key, values in table().silent[family.name].items():
        if values and config.get(key) is not None and config[key] not in values:
            config[key] = values[0]


def _vocabulary(config: dict[str, Any], metadata: Mapping[str, Any], family: Family) -> None:
    """What a config repeats of the tokenizer: sizes and special tokens. A token that the GGUF hasn't is null, not the
    class's default; labels get their numbers."""
    for key, source in table().tokens[family.name].items():
        if source in metadata:
            config[key] = metadata[source]
        elif key in config:
            config[key] = None
    if "tokenizer.ggml.tokens" in metadata and not any(key.endswith(".vocab_size") for key in metadata):
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
    out = {key: config[key] for key in table().tokens[family.name] if config.get(key) is not None}
    sampled = {
        row.back: from_value(row, metadata[row.name]) for row in table().sampling if row.back and row.name in metadata
    }
    # transformers refuses sampling parameters beside greedy decoding, and a model that recommends them samples.
    return {**out, **({"do_sample": True} if sampled else {}), **sampled}
