"""Removes, reorders or repeats layers, and keeps the config and per-layer metadata consistent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError, UsageError, WeighbridgeError
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.containers.formats import PIPELINES
from weighbridge.containers.gguf.values import KV, kvs
from weighbridge.models.arch.config import value_at, with_part
from weighbridge.models.arch.kv_tensors import of_graph
from weighbridge.models.arch.naming import some
from weighbridge.models.arch.registry import families_of_graph
from weighbridge.models.arch.size_keys import LAYERS
from weighbridge.models.arch.tables.schema import LayerRulesEntry
from weighbridge.models.arch.tables.spec import placeholders
from weighbridge.models.arch.tables.values import integer
from weighbridge.models.model import OpenModel
from weighbridge.models.transform.base import (
    KeptLayers,
    KeyChange,
    RenamedTensor,
    Transformed,
    slots,
    with_config,
    with_entries,
    with_keys,
)
from weighbridge.models.transform.cross_layer import slice_across_layers
from weighbridge.models.transform.encoder_decoder import (
    check_depth,
    check_one,
    gguf_counts,
    hf_counts,
    parse_selection,
    stack_of_side,
)
from weighbridge.models.transform.layer_stack import LayerStack, find_stack, lists_from_1, parse_numbers, renumbered
from weighbridge.models.transform.text_config import text_path

# Extra layers that predict further tokens: config.json counts them separately, a GGUF includes them.
_EXTRA: Final = "num_nextn_predict_layers"
_GGUF_EXTRA: Final = "nextn_predict_layers"
# Config keys with per-module settings.
_BY_MODULE: Final = ("quantization", "quantization_config")

Kept = Sequence[int]


# ------------------------------------------------------------------------------------------------ rules of keys


def _listed(key: str, value: Any, kept: Kept, count: int) -> Any:
    """One entry per layer."""
    if not isinstance(value, str | list | tuple) or len(value) != count:
        return value
    entries = [value[i] for i in kept]
    return "".join(entries) if isinstance(value, str) else entries


def _leading(key: str, value: Any, kept: Kept, count: int) -> Any:
    """The number of layers at the start that differ from the rest."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    first = [old < value for old in kept]
    if sorted(first, reverse=True) != first:
        raise UsageError(
            f"the first {value} layers differ from the rest ({key}) and would no longer come first",
            hint="select layers in order",
        )
    return sum(first)


def _step(key: str, value: Any, kept: Kept, count: int) -> Any:
    """The period of layers that differ, counted from the first."""
    if isinstance(value, list | tuple):
        return _listed(key, value, kept, count)
    if isinstance(value, int) and not _regular(value, kept):
        raise UsageError(
            f"one layer in {value} differs ({key}), and the remaining layers break that pattern",
            hint=f"leave out runs of {value} layers that begin at a multiple of {value}",
        )
    return value


def _shared(key: str, value: Any, kept: Kept, count: int) -> Any:
    """The number of last layers that reuse keys and values of earlier ones: of the last two layers that compute them,
    one per kind of attention (Gemma 3n and 4)."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < count:
        return value
    first = count - value
    flags = [old >= first for old in kept]
    sources = [old for old in kept if old < first]
    if sorted(flags) != flags or (any(flags) and sources[-2:] != list(range(first - 2, first))):
        raise UsageError(
            f"the last {value} layers reuse the keys and values of layers {first - 2} and {first - 1} ({key})",
            hint="keep these layers, and keep the ones that reuse them last",
        )
    return sum(flags)


def _regular(step: int, kept: Kept) -> bool:
    return step <= 1 or all(new % step == old % step for new, old in enumerate(kept))


def _numbers(key: str, value: Any, kept: Kept, count: int) -> Any:
    """Numbers of some layers."""
    if not isinstance(value, list | tuple):
        return value
    return [new for new, old in enumerate(kept) if old in {n for n in value if isinstance(n, int)}]


def _numbers_from_1(key: str, value: Any, kept: Kept, count: int) -> Any:
    """Numbers of some layers, counted from 1."""
    if not isinstance(value, list | tuple):
        return value
    return [old + 1 for old in _numbers(key, [n - 1 for n in value if isinstance(n, int)], kept, count)]


def _enumerated(key: str, value: Any, kept: Kept, count: int) -> Any:
    """Numbers of some layers in a text: 3,4,5."""
    if not isinstance(value, str):
        return value
    return ",".join(map(str, _numbers(key, [int(n) for n in value.split(",") if n.strip().isdecimal()], kept, count)))


def _lists_in(key: str, value: Any, kept: Kept, count: int) -> Any:
    """An object with lists that have one entry per layer."""
    return {k: _listed(k, v, kept, count) for k, v in value.items()} if isinstance(value, Mapping) else value


def _by_number(key: str, value: Any, kept: Kept, count: int) -> Any:
    """An object whose keys are layer numbers."""
    if not isinstance(value, Mapping) or any(not str(n).isdigit() for n in value):
        return value
    declared = {int(n): entry for n, entry in value.items()}
    return {str(new): declared[old] for new, old in enumerate(kept) if old in declared}


KeyRule = Callable[[str, Any, Kept, int], Any]
# transformers 5.23 and the remote code of published models: config.json keys about single layers.
RULES: Final[Mapping[str, KeyRule]] = MappingProxyType(
    dict.fromkeys(
        ("layer_types", "mlp_layer_types", "no_rope_layers", "layers_block_type", "attention_layers", "block_configs",
         "attn_type_list", "hybrid_override_pattern", "block_types", "activation_sparsity_pattern", "intermediate_size",
         "num_key_value_heads", "num_attention_heads", "num_query_heads", "num_kv_heads", "ffn_multipliers",
         "moe_intermediate_size", "moe_topk", "num_shared_expert", "is_moe_layer", "hybrid_layer_pattern",
         "layer_rope_theta", "num_attention_heads_per_layer", "indexer_types", "compress_ratios", "rope_theta",
         "partial_rotary_factors", "swiglu_limits", "swiglu_limits_shared", "expert_swiglu_limit_list",
         "share_expert_swiglu_limit_list"), _listed)
    | dict.fromkeys(
        ("mlp_only_layers", "moe_layers", "attn_layer_indices", "full_attn_idxs", "hybrid_layer_ids",
         "global_attn_layers", "cross_attention_layers"), _numbers)
    | dict.fromkeys(
        ("first_k_dense_replace", "max_window_layers", "moe_layer_start_index", "num_dense_layers"), _leading)
    | dict.fromkeys(
        ("moe_layer_interval", "moe_layer_freq", "moe_every_n_layers", "global_attn_every_n_layers", "mamba_step",
         "layer_group_size"), _step)
    | {"num_kv_shared_layers": _shared, "per_layer_config": _by_number, "linear_attn_config": lists_from_1,
       "ple_layer_ids": _numbers_from_1, "moe_layers_enum": _enumerated, "sparse_attention_config": _lists_in}
)  # fmt: skip

_ONLY_WITH: Final = MappingProxyType({"max_window_layers": "use_sliding_window"})  # false: the key has no meaning


class LayerPattern(NamedTuple):
    """Every n-th layer is of the kind `other`, unless a list gives each layer's kind: `key` is the period, `listed` the
    list."""

    key: str
    listed: str
    most: Any
    other: Any


_PATTERNS: Final = (
    LayerPattern("sliding_window_pattern", "layer_types", "sliding_attention", "full_attention"),
    LayerPattern("global_attn_every_n_layers", "layer_types", "sliding_attention", "full_attention"),
    LayerPattern("full_attention_interval", "layer_types", "linear_attention", "full_attention"),
    LayerPattern("no_rope_layer_interval", "no_rope_layers", 1, 0),
)

# Keys of a period, and of the first differing layer in it (Jamba).
_PERIODS: Final = MappingProxyType(
    {"attn_layer_period": "attn_layer_offset", "expert_layer_period": "expert_layer_offset"}
)
# Lists in a config of at least this length and with one entry per layer are reported if no rule covers them.
_SHORT: Final = 8

# GGUF keys (llama.cpp b11549, llama-arch.cpp), except arrays with one entry per layer, which need no rule.
GGUF_RULES: Final[Mapping[str, KeyRule]] = MappingProxyType(
    {"leading_dense_block_count": _leading, "attention.shared_kv_layers": _shared}
    | dict.fromkeys(("interleave_moe_layer_step", "moe_every_n_layers", "full_attention_interval"), _step)
)
# Those without a meaning next to a per-layer array.
_IMPLIED_BY: Final = MappingProxyType({"full_attention_interval": "attention.recurrent_layers"})
# Arrays of a GGUF whose length may equal the number of layers by chance.
_NOT_BY_LAYER: Final = frozenset({"rope.dimension_sections", "classifier.output_labels", "target_layers"})


_SLIDING: Final = "attention.sliding_window_pattern"
_NO_RULES: Final = LayerRulesEntry()


def rules_of_graph(architecture: str) -> LayerRulesEntry:
    """Returns the rules for layers that differ in a llama.cpp graph (a GGUF's architecture)."""
    tables = (family.document.layer_rules for family in families_of_graph(architecture))
    return next((rules for rules in tables if rules.graph_every > 1 or rules.graph_unrotated > 1), _NO_RULES)


# ------------------------------------------------------------------------------------------------ the operation


@dataclass(frozen=True)
class LayerSelection:
    """The selected layers, in their new order."""

    stack: LayerStack
    kept: tuple[int, ...]
    stated: int | None  # as the config counts, without layers that predict further tokens
    side: str = ""  # "encoder" or "decoder", if the model has both
    fixed: frozenset[str] = frozenset()  # tensors of the whole stack whose names contain a layer number

    def layer(self, name: str) -> int | None:
        """Returns the layer of a tensor."""
        return None if name in self.fixed else self.stack.layer(name)

    @property
    def places(self) -> dict[int, int]:
        """New layer numbers by old ones."""
        return {old: new for new, old in enumerate(self.kept)}


def slice_layers(model: OpenModel, selection: str, *, renumber: bool = False) -> Transformed:
    """Returns the model with these layers (`0-15`, see `parse_numbers`; `encoder:0-3`, see `encoder_decoder`). Without
    `renumber`, layers other than the first ones keep their numbers and the config stays unchanged: the result is a
    part of the model, not a complete one."""
    if model.place.trainer in PIPELINES or model.diffusion is not None:
        title = model.place.path if model.diffusion is None else model.diffusion.title
        raise UnsupportedError(f"{title} has no single stack of layers", hint="choose tensors by name: --keep, --drop")
    done = Transformed(model)
    for side, numbers in parse_selection(selection).items():
        done = done.then(_slice(done.model, _select(done.model, side, numbers), renumber))
    check_depth(done.model)
    return done


def _slice(model: OpenModel, layers: LayerSelection, renumber: bool) -> Transformed:
    kept = layers.kept
    staying = {None, *kept}  # None: tensors outside the layers
    gone = tuple(e.name for e in model.index if layers.layer(e.name) not in staying)
    if not renumber and kept != tuple(range(len(kept))):
        if len(set(kept)) < len(kept):
            raise UsageError("a repeated layer needs a new number", hint="--renumber")
        entries = [(e, e.name) for e in model.index if e.name not in set(gone)]
        note = "layers keep their numbers, and config and metadata describe the whole model"
        note += ": --renumber makes a complete model"
        return Transformed(with_entries(model, entries), dropped=gone, notes=(note,))
    if model.format == "gguf" and layers.stated is None:  # an array's length says nothing then
        count = f"{model.metadata.get('general.architecture')}.{LAYERS.gguf}"
        raise UsageError(
            f"the GGUF has no {count}: its settings by layer are unknown", hint="choose tensors by name: --keep, --drop"
        )
    cut, resized = (model, ()) if layers.side else slice_across_layers(model, kept, layers.stack.count)
    numbers = None if layers.side else KeptLayers(kept, layers.stack.count)
    done = replace(_renumber(cut, layers), dropped=gone, cut=resized, layers=numbers)
    if model.format == "gguf":
        keyed, changes = with_keys(done.model, gguf_keys(kvs(model.metadata), layers))
        return replace(done, model=keyed, changed=changes)
    try:
        rules = model.family.document.layer_rules
    except WeighbridgeError:
        rules = _NO_RULES  # a model without a table
    path = text_path(model, LAYERS.config)
    config, changes = hf_config(model.config, layers, rules, path)
    notes = _notes(value_at(model.config, path), layers)
    after = with_config(done.model, config, changes)
    return replace(done, model=after, changed=changes, notes=(*notes, *_unread(model, after)))


def _unread(before: OpenModel, after: OpenModel) -> Iterator[str]:
    """Reports the tensors that the model ignores in their new layers. Raises UsageError if the config describes other
    layers than the remaining ones, as it does if no rule covers a key."""
    if not before.described:
        yield "no table describes the model: whether config.json fits the remaining layers isn't checked"
        return
    if not before.resolved.report.ok:
        yield "the model doesn't fit its table: whether config.json fits the remaining layers isn't checked"
        return
    try:
        report = after.resolved.report
    except FormatError as error:
        raise UsageError(f"the remaining layers contradict {error.field or 'config.json'}", hint=_PART) from None
    if report.missing or report.misshapen:
        raise UsageError(f"config.json would describe other layers than the remaining ones ({report})", hint=_PART)
    if report.unmapped:
        yield f"{plural(len(report.unmapped), 'tensor')} without a meaning in the new layer: {some(report.unmapped)}"


_PART: Final = "choose other layers, or tensors by name, which leaves the config unchanged: --keep, --drop"


def _notes(config: Mapping[str, Any], layers: LayerSelection) -> tuple[str, ...]:
    """Reports lists that may be per-layer and that no rule covers."""
    count = layers.stated or layers.stack.count
    counts = {count, count + (config.get(_EXTRA) or 0)} if count > _SHORT else ()
    keys = (k for k, v in config.items() if isinstance(v, list) and len(v) in counts and k not in RULES)
    return tuple(f"{key} has one entry per original layer and stays unchanged" for key in keys)


def _select(model: OpenModel, side: str, numbers: str) -> LayerSelection:
    towers = {*model.resolved.report.apart} if model.described else set()
    names = [e.name for e in model.index if e.name not in towers]
    if side:
        stack = stack_of_side(names, side)
        stated: int | None = stack.count
    else:
        check_one(names)
        stated = _stated(model)
        stack = find_stack(names, stated)
    fixed: set[str] = set()
    if places := slots(model):  # T5's position biases belong to the whole stack, but their names have layer 0
        unread = (name for name in model.family.dialects[model.dialect].drop if not placeholders(name))
        fixed = {*(name for name, place in places.items() if not place.named), *unread}
    return LayerSelection(stack, parse_numbers(numbers, stack.count), stated, side, frozenset(fixed))


def _stated(model: OpenModel) -> int | None:
    """Returns the number of layers that the config declares."""
    if model.format == "gguf":
        count = model.metadata.get(f"{model.metadata.get('general.architecture')}.{LAYERS.gguf}")
        return None if count is None else integer(count, LAYERS.gguf, 1)
    config = value_at(model.config, text_path(model, LAYERS.config))
    return next((integer(config[key], key, 1) for key in LAYERS.config if config.get(key) is not None), None)


def _renumber(model: OpenModel, layers: LayerSelection) -> Transformed:
    """Moves every tensor to its layer's new number: the first copy to the layer's place, further copies after the last
    layer."""
    copies = {old: [n for n, k in enumerate(layers.kept) if k == old] for old in layers.kept}
    pairs = []
    for turn in range(max(map(len, copies.values()))):
        for entry in model.index:
            old = layers.layer(entry.name)
            if old is None and not turn:
                pairs.append((entry, entry.name))
            elif old is not None and turn < len(copies.get(old, ())):
                pairs.append((entry, layers.stack.moved(entry.name, copies[old][turn])))
    renamed = tuple(RenamedTensor((e.name,), name) for e, name in pairs if e.name != name)
    return Transformed(with_entries(model, pairs), renamed)


# ------------------------------------------------------------------------------------------------ config.json


def hf_config(
    config: Mapping[str, Any], layers: LayerSelection, rules: LayerRulesEntry = _NO_RULES, path: Sequence[str] = ()
) -> tuple[dict[str, Any], tuple[KeyChange, ...]]:
    """Returns a config.json for the kept layers, and its changes. `rules`: those of the model's family; `path`: to the
    object that describes the layers."""
    if not config:
        return {}, ()
    part = value_at(config, path)
    new = (
        hf_counts(part, layers.side, layers.stack.count, len(layers.kept))
        if layers.side
        else _changed_keys(part, layers, rules)
    )
    changes = [KeyChange(key, part.get(key), value) for key, value in new.items() if part.get(key) != value]
    after = {**part, **{c.key: c.after for c in changes}}
    whole = with_part(config, path, after)
    settings = {key: whole[key] for key in _BY_MODULE if isinstance(whole.get(key), dict)}
    modules = {key: renumbered(value, layers.stack, layers.places) for key, value in settings.items()}
    changes += [KeyChange(key, whole[key], value) for key, value in modules.items() if value != whole[key]]
    return {**whole, **modules}, tuple(changes)


def _changed_keys(config: Mapping[str, Any], layers: LayerSelection, rules: LayerRulesEntry) -> dict[str, Any]:
    main = [k for k in layers.kept if layers.stated is None or k < layers.stated]
    if list(layers.kept[: len(main)]) != main:
        raise UsageError("layers that predict further tokens must stay last")
    after: dict[str, Any] = {key: len(main) for key in LAYERS.config if key in config}
    count = layers.stated or layers.stack.count
    extra: Sequence[int] = range(count, count + (config.get(_EXTRA) or 0))
    if config.get(_EXTRA) and layers.stack.count > count:  # else they have numbers of their own, and stay
        extra = layers.kept[len(main) :]
        after[_EXTRA] = len(extra)
    for key, rule in RULES.items():
        if config.get(key) is not None and config.get(_ONLY_WITH.get(key, key)) is not False:
            value, further = config[key], []
            if rule is _listed and isinstance(value, list) and len(value) == count + (config.get(_EXTRA) or 0):
                value, further = value[:count], [value[k] for k in extra]
            after[key] = [*rule(key, value, main, count), *further] if further else rule(key, value, main, count)
    for pattern in _PATTERNS:  # becomes a list if the kept layers don't follow the pattern
        step = config.get(pattern.key, rules.every.get(pattern.key))
        if isinstance(step, int) and not config.get(pattern.listed) and not _regular(step, main):
            other = rules.kind or pattern.other
            after[pattern.listed] = [pattern.most if (layer + 1) % step else other for layer in main]
    for key, offset in _PERIODS.items():
        after |= _period(config, key, offset, main)
    kinds = after.get("layer_types") or ()
    if rules.last and kinds and kinds[-1] != rules.last:
        raise UsageError(
            f"the last layer of a {config['model_type']} must be of type {rules.last}, not {kinds[-1]}",
            hint=f"end with a layer that config.json's layer_types calls {rules.last}",
        )
    return after | _sparse(config, main)


def _period(config: Mapping[str, Any], key: str, offset: str, kept: Kept) -> dict[str, Any]:
    """Returns the same period with another offset, if the kept layers fit it. Raises UsageError if they fit none."""
    step, first = config.get(key), config.get(offset)
    if step is None:
        return {}
    if isinstance(step, int) and isinstance(first, int) and step > 0:
        differ = [old % step == first for old in kept]
        for shifted in range(step):
            if [new % step == shifted for new in range(len(kept))] == differ:
                return {offset: shifted}
    return {key: _step(key, step, kept, 0)}


def _sparse(config: Mapping[str, Any], kept: Kept) -> dict[str, Any]:
    """Returns a list of layers with or without experts if the kept layers don't follow an n-th-layer rule (Llama 4's
    `moe_layers`, Qwen's `mlp_only_layers`)."""
    step, dense = config.get("interleave_moe_layer_step"), config.get("decoder_sparse_step")
    if isinstance(step, int) and config.get("moe_layers") is None and not _regular(step, kept):
        return {"moe_layers": [new for new, old in enumerate(kept) if (old + 1) % step == 0]}
    if isinstance(dense, int) and not _regular(dense, kept):
        only = config.get("mlp_only_layers") or ()
        layers = [new for new, old in enumerate(kept) if (old + 1) % dense or old in only]
        return {"decoder_sparse_step": 1, "mlp_only_layers": layers}
    return {}


# ------------------------------------------------------------------------------------------------ a GGUF's keys


def gguf_keys(keys: Mapping[str, KV], layers: LayerSelection) -> dict[str, KV]:
    """Returns the GGUF keys that change with the kept layers."""
    declared = keys.get("general.architecture")
    if declared is None or not isinstance(declared.value, str):
        raise FormatError("the GGUF doesn't name its architecture", field="general.architecture")
    front, kept, count = f"{declared.value}.", layers.kept, layers.stack.count
    if layers.side:
        return gguf_counts(keys, front, layers.side, count, len(kept))
    tensor_keys = of_graph(declared.value)
    out = {f"{front}{LAYERS.gguf}": KV("u32", len(kept))}
    for key, kv in keys.items():
        name = key.removeprefix(front)
        if (name == key and key not in tensor_keys) or name in _NOT_BY_LAYER:
            continue
        if kv.type.startswith("arr[") and len(kv.value) == count:
            out[key] = KV(kv.type, [kv.value[i] for i in kept])
        elif name in GGUF_RULES and f"{front}{_IMPLIED_BY.get(name)}" not in keys:
            out[key] = KV(kv.type, GGUF_RULES[name](name, kv.value, kept, count))
    if (extra := keys.get(f"{front}{_GGUF_EXTRA}")) is not None:
        flags = [old >= count - integer(extra.value, extra.type) for old in kept]
        if sorted(flags) != flags:
            raise UsageError("layers that predict further tokens must stay last")
        out[f"{front}{_GGUF_EXTRA}"] = KV(extra.type, sum(flags))
    return out | _window_keys(keys, declared.value, kept)


def _window_keys(keys: Mapping[str, KV], architecture: str, kept: Kept) -> dict[str, KV]:
    """Returns the list of layers with a window, if the graph's built-in pattern doesn't fit the kept layers."""
    rules, key = rules_of_graph(architecture), f"{architecture}.{_SLIDING}"
    if not _regular(rules.graph_unrotated, kept):
        step = rules.graph_unrotated
        raise UsageError(
            f"llama.cpp's {architecture} graph doesn't rotate every {step}th layer once the layers are renumbered",
            hint=f"leave out runs of {step} layers that begin at a multiple of {step}",
        )
    step = keys[key].value if key in keys else rules.graph_every
    if not isinstance(step, int) or isinstance(step, bool) or _regular(step, kept):
        return {}
    full = 0 if rules.graph_first else step - 1
    return {key: KV("arr[bool]", [old % step != full for old in kept])}
