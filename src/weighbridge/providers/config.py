"""A model's hyperparameters under one set of names. They are equal for a GGUF, a Hugging Face folder and an MLX
folder of the same model.

Both sides meet in the key-values of a GGUF: a config.json gives them through its family's table, as in a conversion. Of
the effective config come only what GGUF keeps elsewhere: the rotary parameters, the activation, the sets of layers.
Numbers are those of F32, in which a GGUF keeps them, as their shortest decimals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.records import dataclass
from weighbridge.models.arch.derived import f32
from weighbridge.models.arch.family import Family
from weighbridge.models.config.keys import shortest
from weighbridge.models.config.mapping import config_to_gguf
from weighbridge.models.model import OpenModel

PerLayer = int | tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeConfig:
    """Rotary embeddings. `dim`: elements of a head that rotate. `type`: "default", "linear", "dynamic", "yarn",
    "longrope", "llama3"; `parameters` has the type's parameters (`factor`, `low_freq_factor`, `beta_fast` ...),
    under transformers' names. `sections`: the shares of time, height and width in a head's pairs. `sliding`: the
    rotation of layers with a sliding window, if different."""

    theta: float
    dim: int
    type: str = "default"
    original_context: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    sections: tuple[int, ...] = ()
    sliding: RopeConfig | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The hyperparameters of one model; None for those that it lacks.

    `hidden`, `heads`, `kv_heads`: one number, or one per layer if layers differ. `norm`: "rms" or "layer".
    `sliding_layers`: the layers whose attention has the window; () with a `sliding_window` means all. `layer_sets`:
    the family's other kinds of layers (linear attention, state space ...). `dense_layers`: the leading layers
    without experts. `keys`: every known setting, by its GGUF key without the architecture prefix.
    """

    architecture: str
    dim: int
    layers: int
    hidden: PerLayer | None
    heads: PerLayer | None
    kv_heads: PerLayer | None
    head_dim: int | None
    value_dim: int | None
    vocab: int | None
    context: int | None
    norm: str | None
    norm_eps: float | None
    activation: str | None
    rope: RopeConfig | None
    sliding_window: int | None
    sliding_layers: tuple[int, ...]
    layer_sets: Mapping[str, tuple[int, ...]]
    experts: int | None
    experts_used: int | None
    expert_hidden: int | None
    shared_experts: int | None
    shared_hidden: int | None
    dense_layers: int | None
    tied_embeddings: bool
    attention_scale: float | None
    attention_softcap: float | None
    logit_scale: float | None
    logit_softcap: float | None
    embedding_scale: float | None
    residual_scale: float | None
    keys: Mapping[str, Any] = field(repr=False)


#: A field, and the keys that state it, the first that is there.
_KEYS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({
    "dim": ("embedding_length",),
    "layers": ("block_count",),
    "hidden": ("feed_forward_length",),
    "heads": ("attention.head_count",),
    "context": ("context_length",),
    "norm_eps": ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"),
    "sliding_window": ("attention.sliding_window",),
    "experts": ("expert_count",),
    "experts_used": ("expert_used_count",),
    "expert_hidden": ("expert_feed_forward_length",),
    "shared_experts": ("expert_shared_count",),
    "shared_hidden": ("expert_shared_feed_forward_length",),
    "dense_layers": ("leading_dense_block_count",),
    "attention_scale": ("attention.scale",),
    "attention_softcap": ("attn_logit_softcapping",),
    "logit_scale": ("logit_scale",),
    "logit_softcap": ("final_logit_softcapping",),
    "embedding_scale": ("embedding_scale",),
    "residual_scale": ("residual_scale",),
})  # fmt: skip
_HEAD_KEYS: Final = ("attention.key_length_mla", "attention.key_length")
_VALUE_KEYS: Final = ("attention.value_length_mla", "attention.value_length")
_NORMS: Final = MappingProxyType({"attention.layer_norm_rms_epsilon": "rms", "attention.layer_norm_epsilon": "layer"})
_ACTIVATIONS: Final = ("hidden_act", "hidden_activation", "activation_function", "activation", "feed_forward_proj")
#: The keys of a rotation that other fields contain or determine.
_ROPE_FIELDS: Final = frozenset({
    "rope_theta", "rope_type", "type", "partial_rotary_factor", "original_max_position_embeddings", "alpha",
    "mrope_section", "mrope_interleaved",
})  # fmt: skip
_ROPE_BASE: Final = 10_000.0  # of RoFormer, and of classes without a setting for it
_WINDOWED: Final = ("sliding_attention", "chunked_attention")
_CHUNK: Final = "attention_chunk_size"
_STRETCHED: Final = "ntk_alpha"  # a base that is stretched once for all, which GGUF states as such


def config_of(model: OpenModel) -> ModelConfig:
    """Returns a model's hyperparameters. Raises UnsupportedError if no family's table knows the model."""
    family = model.family
    own = model.metadata if model.format == "gguf" else {}
    keys = unified_keys(family, model.config, own)
    return build_config(family, model.config, keys, vocab=model.sizes.get("V"), tied=_tied(model))


def unified_keys(family: Family, config: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Key-values by their names without the architecture's: those of a config, then those that a GGUF states itself
    (`own`)."""
    prefix = f"{family.gguf}."
    tensors = family.metadata_names()
    stated = {k: kv.value for k, kv in config_to_gguf(config, family, file_type=0).items() if k not in tensors}
    found = {key: value for key, value in {**stated, **own}.items() if key.startswith(prefix)}
    return {key.removeprefix(prefix): _plain(value) for key, value in sorted(found.items())}


def build_config(
    family: Family, config: Mapping[str, Any], keys: Mapping[str, Any], *, vocab: int | None, tied: bool
) -> ModelConfig:
    """The hyperparameters that unified keys and a config state."""
    facts = family.effective(config)
    stated = {name: _uniform(_first(keys, known)) for name, known in _KEYS.items()}
    heads = stated["heads"]
    head = _first(keys, _HEAD_KEYS) or _share(stated["dim"], heads)
    sets = {name: tuple(sorted(layers)) for name, layers in facts["layer_sets"].items() if layers}
    return ModelConfig(
        **stated, architecture=family.gguf, kv_heads=_uniform(keys.get("attention.head_count_kv")) or heads,
        head_dim=head, value_dim=_first(keys, _VALUE_KEYS) or head, vocab=vocab,
        norm=next((kind for key, kind in _NORMS.items() if key in keys), None),
        activation=next((word for key in _ACTIVATIONS if isinstance(word := facts.get(key), str)), None),
        rope=_rope(facts, keys, head), sliding_layers=_sliding(family, facts, keys, stated["layers"]),
        layer_sets=MappingProxyType(sets),
        tied_embeddings=tied, keys=MappingProxyType(dict(keys)),
    )  # fmt: skip


def _tied(model: OpenModel) -> bool:
    """Whether the output matrix is the embedding: it has no separate tensor, or the config declares it. A torch file
    stores both names of one matrix."""
    family, resolved = model.family, model.resolved
    heads = {
        r.name for r in family.rows.values() if r.kind == "head" and r.tied and family.rows[r.tied].kind == "embedding"
    }
    if not heads:
        return False
    if model.format != "gguf" and model.sizes.facts.get("tie_word_embeddings") is True:
        return True
    places = family.expansion(resolved.dialect, resolved.sizes, resolved.prefix).places
    return not any(name in resolved.tensors for name, place in places.items() if heads & set(place.roles))


def _first(keys: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((keys[name] for name in names if name in keys), None)


def _share(dim: Any, heads: Any) -> int | None:
    """Returns the width of a head if no setting states it."""
    most = max(heads, default=0) if isinstance(heads, tuple) else heads
    return dim // most if dim and most else None


def _rope(facts: Mapping[str, Any], keys: Mapping[str, Any], head: int | None) -> RopeConfig | None:
    rope, dim = facts.get("rope"), keys.get("rope.dimension_count", head)
    if not rope and "rope.dimension_count" in keys:  # of a class that names its base otherwise, or has a fixed one
        return _rotation({"rope_theta": _ROPE_BASE}, keys.get("rope.freq_base"), dim, None)
    if not rope or not head:
        return None
    sliding = facts.get("rope_sliding")
    own = None if not sliding else _rotation(sliding, keys.get("rope.freq_base_swa"), dim, None)
    sections = keys.get("rope.dimension_sections") or ()
    return replace(_rotation(rope, keys.get("rope.freq_base"), dim, own), sections=sections)


def _rotation(rope: Mapping[str, Any], theta: float | None, dim: int, sliding: RopeConfig | None) -> RopeConfig:
    kind = rope.get("rope_type", "default")
    kind = "default" if kind in (_STRETCHED, "mrope") else kind  # `sections` has the content of mrope
    own = {key: _plain(v) for key, v in sorted(rope.items()) if key not in _ROPE_FIELDS and v is not None}
    return RopeConfig(
        theta=_plain(float(theta if theta is not None else rope["rope_theta"])), dim=dim, type=kind,
        original_context=None if kind == "default" else rope.get("original_max_position_embeddings"),
        parameters=MappingProxyType({} if kind == "default" else own), sliding=sliding,
    )  # fmt: skip


def _sliding(family: Family, facts: Mapping[str, Any], keys: Mapping[str, Any], layers: int | None) -> tuple[int, ...]:
    """The layers with a window: as a config or a key lists them, or by the rule that is built into the graph."""
    listed = facts.get("layer_types")
    if isinstance(listed, list | tuple):
        return tuple(i for i, kind in enumerate(listed) if kind in _WINDOWED)
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, tuple):  # followed by the layers for multi-token prediction, which no config lists
        own = pattern[: keys.get("block_count", len(pattern)) - (keys.get("nextn_predict_layers") or 0)]
        return tuple(i for i, windowed in enumerate(own) if windowed)
    if isinstance(pattern, int) and pattern > 0:  # a period, whose last layer sees everything
        return tuple(i for i in range(layers or 0) if (i + 1) % pattern)
    rules, window = family.document.layer_rules, keys.get("attention.sliding_window") or facts.get(_CHUNK)
    if window and rules.graph_every > 1:
        full = 0 if rules.graph_first else rules.graph_every - 1
        return tuple(i for i in range(layers or 0) if i % rules.graph_every != full)
    return tuple(sorted(facts["layer_sets"].get("sliding", ())))


def _plain(value: Any) -> Any:
    """A value as both sides give it: the shortest decimal of an F32, and lists as tuples."""
    if isinstance(value, float):
        return shortest(f32(value))
    return tuple(map(_plain, value)) if isinstance(value, list | tuple) else value


def _uniform(value: Any) -> Any:
    """One number where all layers have the same."""
    return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value
