"""What a config.json means once its silences are filled: the defaults of its class, and one form for rope and labels.

Configs leave out what equals the default of their class, and the default differs between classes and between versions.
The reference converter sees configs through transformers (`AutoConfig(...).to_dict()`), so do we, from tables: the
defaults stand in the family's TOML. Pure functions over parsed JSON; wrong values are a FormatError that names the key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.limits import LAYERS
from weighbridge.models.arch.size_keys import HEADS
from weighbridge.models.arch.tables import expression
from weighbridge.models.arch.tables.expression import evaluate
from weighbridge.models.arch.tables.layers import slice_bounds
from weighbridge.models.arch.tables.schema import nearest_word
from weighbridge.models.arch.tables.values import INT_MAX, integer, number

Config = Mapping[str, Any]
_LARGEST_STRETCH = 1e6  # published ones are 1000
#: what classes call the base frequency of their rotation, and that of layers with a sliding window
THETA: Final = ("rope_theta", "rotary_emb_base", "global_rope_theta")
LOCAL_THETA: Final = ("rope_local_base_freq", "local_rope_theta", "swa_rope_theta")
#: keys of an effective config that no config states
DERIVED: Final = (
    "classifies", "full_attention_every", "gated", "labels", "layer_count", "layer_sets", "layer_types",
    "longrope_attention_factor", "ntk_alpha_base", "output_labels", "rope", "rope_bases", "rope_dim", "rope_sliding",
    "sparse_layers",
    "unrotated_every", "unshared_kv_layers",
)  # fmt: skip


def check_heads(values: Config, width: int) -> None:
    """FormatError where a hidden size isn't whole heads: no tensor of such a family has their number in its shape."""
    for key in HEADS.config:
        if values.get(key) is not None and width % (heads := integer(values[key], key, 1)):
            raise FormatError("heads don't divide the hidden size", field=key, expected=f"a divisor of {width:,}",
                              found=heads)  # fmt: skip


def rope(config: Config, theta: float, share: str = "partial_rotary_factor") -> dict[str, Any]:
    """The rotary parameters in one flat form: `rope_theta`, `rope_type` and what belongs to that type.

    transformers 5.23, modeling_rope_utils.py `convert_rope_params_to_dict` and `standardize_rope_params`: v4's
    `rope_scaling` wins over v5's `rope_parameters`, `type` is the old name of `rope_type`, and the types that scale
    from a trained length take `max_position_embeddings` where they don't say it (a top-level
    `original_max_position_embeddings` counts for longrope alone: it is a field of Phi-3's class).
    """
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(given, Mapping):
        raise FormatError("is not an object", field="rope_scaling", found=type(given).__name__)
    full = given.get("full_attention")
    out = dict(full if isinstance(full, Mapping) else given)
    top = next((v for key in THETA if (v := config.get(key)) is not None), None)
    out.setdefault("rope_theta", theta if top is None else top)
    if config.get(share) is not None:
        out.setdefault("partial_rotary_factor", config[share])
    out.setdefault("rope_type", out.get("type", "default"))
    if not isinstance(out["rope_type"], str):
        raise FormatError("is not a string", field="rope_type", found=repr(out["rope_type"]))
    if out["rope_type"] == "dynamic" and out.get("alpha"):
        out["rope_type"] = "ntk_alpha"  # Hunyuan: the base is stretched once for all, whatever the length
    if out["rope_type"] in ("llama3", "yarn", "longrope"):
        own = config.get("original_max_position_embeddings") if out["rope_type"] == "longrope" else None
        out.setdefault("original_max_position_embeddings", own or config.get("max_position_embeddings"))
    return out


def labels(config: Config) -> tuple[str, ...] | None:
    """A classifier's own labels in order; None for the two dummies that transformers makes up.

    conversion/bert.py `cls_out_labels`, over what transformers makes of `id2label` and `num_labels`.
    """
    named = config.get("id2label")
    if named is None:
        count = config.get("num_labels")
        count = 2 if count is None else integer(count, "num_labels")
        return None if count == 2 else tuple(f"LABEL_{i}" for i in range(min(count, 1 << 20)))
    try:
        pairs = sorted((int(key), str(value)) for key, value in named.items())
    except (AttributeError, ValueError, TypeError):
        raise FormatError("is not an object of numbered labels", field="id2label", found=repr(named)[:80]) from None
    if len(pairs) == 2 and pairs[0] == (0, "LABEL_0"):
        return None
    return tuple(value for _, value in pairs)


def effective(
    config: Config, defaults: Config, null: Mapping[str, str], full_layers: Sequence[str] = (),
    rules: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """The config as its class would hold it, with `rope`, `labels` and `layer_types` in one form. Keys of the file are
    kept. `full_layers`: see `layer_types`; `rules`: those of `RULES` that the family's table names."""
    out = {**defaults, **config}
    for key, text in null.items():
        if out.get(key) in (None, "auto"):  # transformers' word for the same
            out[key] = evaluate(text, out)
    if full_layers and out.get("layer_types") is None:
        out["layer_types"] = layer_types(full_layers, out)
    for rule in compiled_rules(tuple(rules)):
        out |= rule(out)
    if (word := next((w for w in THETA if w in defaults), None)) is not None:
        out["rope_sliding"] = sliding_rope(out)
        share = "rotary_pct" if "rotary_pct" in defaults else "partial_rotary_factor"  # GPT-NeoX has its own word
        declared = {**out, **{w: config.get(w) for w in THETA}}
        if (part := evaluate("rotary_dim", out)) and (head := evaluate("head_dim", out)):  # MiniMax says elements
            declared = {share: part / head, **declared}
        out["rope"] = rope(declared, defaults[word], share)
        out["rope_dim"] = _rope_dim(out)
        out["ntk_alpha_base"] = _ntk_alpha_base(out)
        out["longrope_attention_factor"] = _longrope_attention_factor(out)
    out["unrotated_every"] = every(out.get("no_rope_layers"), 0)
    out["full_attention_every"] = every(out.get("layer_types"), "full_attention")
    out["gated"] = str(out.get("feed_forward_proj", "")).startswith("gated")  # T5
    out["labels"] = labels(config)
    out["classifies"] = _classifies(config)
    out["output_labels"] = out["labels"] or (_DUMMIES if _classifies(config) else None)
    return out


def uniform(config: Config, *keys: str) -> dict[str, Any]:
    """One value in place of a list by layer whose values are all the same."""
    listed = {key: value for key in keys if isinstance(value := config.get(key), list) and value}
    return {key: value[0] for key, value in listed.items() if all(one == value[0] for one in value)}


def last_layer(config: Config, key: str) -> dict[str, Any]:
    """The number of the last layer for -1, and for one beyond it: classes compare with `<=`."""
    last, value = _layers(config) - 1, config.get(key)
    return {key: last} if isinstance(value, int) and (value == -1 or value > last) else {}


def layer_sparsity(config: Config) -> dict[str, Any]:
    """The list of how sparse each layer is, which the class makes up where a config has none, and how many layers lead
    with the usual 0.95 before dense ones (-1: the list is another). transformers 5.23, `Gemma3nTextConfig`."""
    key = "activation_sparsity_pattern"
    count, shared = _layers(config), integer(config.get("num_kv_shared_layers"), "num_kv_shared_layers")
    if shared > count:
        raise FormatError("is no number of layers", field="num_kv_shared_layers", expected=f"<= {count}", found=shared)
    sparse = 10 if count > 10 else 0
    listed = config.get(key)
    if listed is None:
        listed = [0.95] * sparse + [0.0] * (count - sparse)
    for name, entries in ((key, listed), ("layer_types", config.get("layer_types"))):
        if not isinstance(entries, list | tuple) or len(entries) != count:
            raise FormatError("hasn't an entry for each layer", field=name, expected=count, found=str(entries)[:80])
    led = listed.count(0.95)
    usual = [*listed] == [0.95] * led + [0.0] * (count - led)
    return {key: listed, "sparse_layers": led if usual else -1, "unshared_kv_layers": count - shared}


_DUMMIES: Final = ("LABEL_0", "LABEL_1")


def _classifies(config: Config) -> bool:
    """Whether the class has a head that gives a number for each label."""
    listed = config.get("architectures")
    return isinstance(listed, list | tuple) and str(*listed[:1]).endswith("ForSequenceClassification")


def adjusted_width(config: Config) -> dict[str, Any]:
    """The width of a feed forward as its tensors have it: older configs say it under another key, and the class
    adjusts it if configured (modeling_lfm2.py `Lfm2MLP`, transformers 5.23)."""
    key = "intermediate_size" if config.get("block_ff_dim") is None else "block_ff_dim"
    width = integer(config.get(key), key)
    if config.get("block_auto_adjust_ff_dim"):
        multiplier = config.get("block_ffn_dim_multiplier")
        multiple = integer(config.get("block_multiple_of"), "block_multiple_of", 1)
        width = int(2 * width / 3)
        width = width if multiplier is None else int(number(multiplier, "block_ffn_dim_multiplier") * width)
        width = multiple * ((width + multiple - 1) // multiple)
    return {"intermediate_size": width, "block_auto_adjust_ff_dim": False}


def query_groups(config: Config) -> dict[str, Any]:
    """In how many groups queries share a key and a value, which a Falcon's config says in several ways: first configs
    (RefinedWeb) of the larger models under an older word; those of the smaller ones, and later ones without the newer
    layers, only that all share one (modeling_falcon.py `FalconAttention`, transformers 5.23)."""
    if (older := evaluate("n_head_kv", config)) is not None and config.get("num_kv_heads") is None:
        return {"num_kv_heads": older, "new_decoder_architecture": True}
    shared = config.get("multi_query") and not config.get("new_decoder_architecture")
    return {
        "num_kv_heads": 1 if shared else evaluate("num_kv_heads", config) or evaluate("num_attention_heads", config)
    }


_BLOCKS: Final = ("query_heads_by_layer", "kv_heads_by_layer", "ffn_widths_by_layer")


def block_configs(config: Config) -> dict[str, Any]:
    """What each layer has where a search left out parts of some: heads of queries (0: no attention), of keys (0: a
    linear layer in its place), the width of the feed forward (0: none); configuration_decilm.py of NVIDIA's models."""
    listed = config.get("block_configs")
    if not isinstance(listed, list) or not listed:
        return {}
    heads, width = (integer(config.get(key), key, 1) for key in ("num_attention_heads", "hidden_size"))
    blocks = [(_part(block, "attention"), _part(block, "ffn")) for block in listed]
    groups = [own.get("n_heads_in_group") for own, _ in blocks]
    keys = [0 if group is None else heads // integer(group, "n_heads_in_group", 1) for group in groups]
    queries = [heads if kv or own.get("replace_with_linear") else 0 for kv, (own, _) in zip(keys, blocks, strict=True)]
    if any(own.get("replace_with_linear") for _, own in blocks):
        raise FormatError("has a linear layer in the place of a feed forward, for which there is no graph",
                          field="block_configs")  # fmt: skip
    widths = [_scaled_width(own.get("ffn_mult"), width) for _, own in blocks]
    return dict(zip(_BLOCKS, (queries, keys, widths), strict=True))


def _part(block: Any, name: str) -> Mapping[str, Any]:
    own = block.get(name) if isinstance(block, Mapping) else None
    if not isinstance(own, Mapping):
        raise FormatError(f"has a block without its {name}", field="block_configs", found=repr(block)[:80])
    return own


_MULTIPLE: Final = 256  # that a width is rounded up to


def _scaled_width(scale: Any, width: int) -> int:
    """The width of a gated feed forward of a scale; 0 of none."""
    if scale is None:
        return 0
    exact = integer(int(2 * number(scale, "ffn_mult") * width / 3), "ffn_mult")
    return -(-exact // _MULTIPLE) * _MULTIPLE


def as_block_configs(config: Config) -> dict[str, Any]:
    """The inverse of `block_configs`: the keys that it adds give way to the list."""
    queries, keys, widths = ([integer(n, key) for n in config[key]] for key in _BLOCKS)
    heads, width = max(queries), config["hidden_size"]
    blocks = [
        {
            "attention": {
                "n_heads_in_group": heads // own if own else None,
                "no_op": not all_of_it,
                "replace_with_linear": bool(all_of_it and not own),
            },
            "ffn": {"ffn_mult": wide * 3 / (2 * width) if wide else None, "no_op": not wide,
                    "replace_with_linear": False},
        }
        for all_of_it, own, wide in zip(queries, keys, widths, strict=True)
    ]  # fmt: skip
    return {**dict.fromkeys(_BLOCKS), "num_attention_heads": heads, "block_configs": blocks}


def layer_rotation(config: Config) -> dict[str, Any]:
    """Which layers rotate, of a config that has a base frequency for each (0: none), and how many frequencies there
    are, of which a GGUF holds one (configuration_granite_swa.py, transformers 5.23)."""
    listed = config.get("layer_rope_theta")
    if listed is None:
        return {}
    if not isinstance(listed, list | tuple) or len(listed) != _layers(config):
        raise FormatError("hasn't a number for each layer", field="layer_rope_theta", found=str(listed)[:80])
    bases = [number(base, "layer_rope_theta") for base in listed]
    given = config.get("rope_parameters")
    own = {"rope_theta": max(bases)} if any(bases) else {}
    return {
        "no_rope_layers": None if all(bases) else [int(base > 0) for base in bases],
        "rope_bases": len({*bases} - {0}),
        "rope_parameters": {**(given if isinstance(given, Mapping) else {}), **own},
    }


def as_layer_rotation(config: Config) -> dict[str, Any]:
    """The inverse of `layer_rotation`."""
    flags = config.get("no_rope_layers") or [1] * _layers(config)
    return {"no_rope_layers": None, "layer_rope_theta": [config["rope_theta"] if int(flag) else 0 for flag in flags]}


def indexer_types(config: Config) -> dict[str, Any]:
    """Which layers have an indexer of their own, where a config has no list of it: by letters, or every so many layers
    (configuration_glm_moe_dsa.py, transformers 5.23)."""
    if config.get("indexer_types") is not None:
        return {}
    layers, letters = range(_layers(config)), config.get("index_topk_pattern")
    if letters is not None:
        full = [str(letter) in ("F", "full") for letter in letters] if isinstance(letters, str | list) else []
        if len(full) != len(layers):
            raise FormatError("hasn't an entry for each layer", field="index_topk_pattern", found=str(letters)[:80])
    else:
        step = max(integer(config.get("index_topk_freq", 1), "index_topk_freq"), 1)
        first = integer(config.get("index_skip_topk_offset", 2), "index_skip_topk_offset")
        full = [max(i - first + 1, 0) % step == 0 for i in layers]
    return {"indexer_types": ["full" if own else "shared" for own in full]}


_OF_FULL: Final = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}


def unlike_layers(config: Config) -> dict[str, Any]:
    """What some layers have that others haven't: those that attend to all tokens heads of another width, and another
    number of keys where these are the values too; those that share keys maybe a feed forward of twice the width.
    transformers 5.23 writes the first by layer (`per_layer_config`), published configs and mlx-lm in words of their own
    (configuration_gemma4.py). The last layer always attends to all tokens."""
    kinds = list(config.get("layer_types") or ())
    kinds[-1:] = ["full_attention"] if kinds else []
    full = {i for i, kind in enumerate(kinds) if kind == "full_attention"}
    doubled = 2 if config.get("use_double_wide_mlp") else 1
    width = evaluate("intermediate_size", config)
    out = {"layer_types": kinds, "shared_intermediate_size": None if width is None else doubled * width}
    listed = config.get("per_layer_config")
    if listed is None:
        return out if config.get("attention_k_eq_v") else {**out, "num_global_key_value_heads": None}
    declared = {i: own for i, own in _by_number(listed, "per_layer_config").items() if own}
    if declared.keys() - full or any(
        own != declared[min(declared)] or own.keys() - _OF_FULL.keys() for own in declared.values()
    ):
        raise FormatError(
            "says something else than this family's table describes", field="per_layer_config", found=listed,
            expected="head_dim and num_key_value_heads, the same in all layers that attend to all tokens",
        )  # fmt: skip
    if declared and declared.keys() != full:
        raise FormatError("doesn't say it of all layers that attend to all tokens", field="per_layer_config")
    own = declared[min(declared)] if declared else {}
    return {**out, "global_head_dim": own.get("head_dim", config.get("head_dim")),
            "num_global_key_value_heads": own.get("num_key_value_heads")}  # fmt: skip


def _by_number(value: Any, key: str) -> dict[int, Mapping[str, Any]]:
    """An object whose keys are the numbers of layers, and whose values are objects."""
    if not isinstance(value, Mapping) or not all(isinstance(own, Mapping) for own in value.values()):
        raise FormatError("is not an object of objects", field=key, found=repr(value)[:80])
    if any(not str(number).isdigit() for number in value):
        raise FormatError("isn't by the numbers of layers", field=key, found=sorted(map(str, value)))
    return {int(number): own for number, own in value.items()}


def _layers(config: Config) -> int:
    """How many layers there are, as many as lists are made for."""
    return integer(evaluate("num_hidden_layers", config) or 0, "num_hidden_layers", most=LAYERS)


def layer_types(full_layers: Sequence[str], config: Config) -> list[str] | None:
    """How each layer attends where a config has no list of it. `full_layers`: which attend to all tokens, as slices
    `layers[3::4]` whose bounds may be keys of the config; the first whose keys are there. Without a window all do. Some
    configs have letters that repeat, as EXAONE 4's `LLLG`: L is a layer with a window."""
    layers = range(_layers(config))
    if config.get("sliding_window", 0) is None:
        return ["full_attention"] * len(layers)
    if isinstance(letters := config.get("sliding_window_pattern"), str) and letters:
        return ["sliding_attention" if letters[i % len(letters)] == "L" else "full_attention" for i in layers]
    for text in full_layers:
        first, _, every_nth = slice_bounds(expression.parse(text))
        start, step = evaluate(first or "0", config), evaluate(every_nth or "1", config)
        if start is not None and step is not None:
            full = layers[start :: integer(step, every_nth or "", 1)]
            return ["full_attention" if i in full else "sliding_attention" for i in layers]
    return None


def every(layers: Any, wanted: Any) -> int | None:
    """n, if just every n-th of the layers is `wanted`; 0 if they follow no such rule, None without a list.
    llama.cpp's graphs have such patterns built in."""
    if not isinstance(layers, list | tuple) or not layers:
        return None
    if wanted not in layers:
        return len(layers) + 1
    n = layers.index(wanted) + 1
    return n if all((i % n == n - 1) == (kind == wanted) for i, kind in enumerate(layers)) else 0


def _rope_dim(config: Config) -> int | None:
    """How many elements of a head rotate."""
    head = evaluate("head_dim", config) or evaluate("hidden_size // num_attention_heads", config)
    share = config["rope"].get("partial_rotary_factor")
    if share is None or head is None:
        return head
    rotated = number(share, "partial_rotary_factor") * head
    if not abs(rotated) <= INT_MAX:
        raise FormatError("is no share of a head", field="partial_rotary_factor", found=share)
    return int(rotated)


def _ntk_alpha_base(config: Config) -> float | None:
    """The base frequency that Hunyuan stretches; conversion/hunyuan.py `set_gguf_parameters` (llama.cpp b11549)."""
    rope, head = config["rope"], evaluate("head_dim", config) or evaluate("hidden_size // num_attention_heads", config)
    if rope["rope_type"] != "ntk_alpha" or head is None or head < 4:
        return None
    if not 0 < (alpha := number(rope["alpha"], "rope_scaling.alpha")) <= _LARGEST_STRETCH:
        raise FormatError("is no stretch of a base frequency", field="rope_scaling.alpha", found=alpha)
    return number(rope["rope_theta"], "rope_theta") * math.pow(alpha, head / (head - 2))


def _longrope_attention_factor(config: Config) -> float | None:
    """By how much longrope scales attention: Phi-3.5-MoE's own number, where it is one for short and long texts; else
    Phi-3's rule, conversion/phi.py `generate_extra_tensors` (llama.cpp b11549)."""
    rope = config["rope"]
    if not rope.get("long_factor"):
        return None
    own = rope.get("short_mscale")
    if own is not None and own == rope.get("long_mscale"):
        return number(own, "short_mscale")
    trained = number(rope.get("original_max_position_embeddings"), "original_max_position_embeddings")
    scale = number(config.get("max_position_embeddings"), "max_position_embeddings") / trained if trained > 1 else 1.0
    return math.sqrt(1 + math.log(scale) / math.log(trained)) if scale > 1.0 else 1.0


def sliding_rope(config: Config) -> dict[str, Any] | None:
    """The rotary parameters of layers with a sliding window, where they have their own: under transformers 5 an object
    beside that of the full layers, under 4 a base frequency."""
    given = config.get("rope_parameters")
    own = given.get("sliding_attention") if isinstance(given, Mapping) else None
    if isinstance(own, Mapping):
        return dict(own)
    local = next((v for key in LOCAL_THETA if (v := config.get(key)) is not None), None)
    return None if local is None else {"rope_theta": local, "rope_type": "default"}


# ---------------------------------------------------------------------- rules that tables select

Rule = Callable[[Config], dict[str, Any]]
#: The rules that a table may name in `config_rules`: what each adds to a config, from it and the keys in the brackets.
RULES: Final[Mapping[str, Callable[..., dict[str, Any]]]] = MappingProxyType(
    {
        "adjusted_width": adjusted_width,
        "block_configs": block_configs,
        "indexer_types": indexer_types,
        "last_layer": last_layer,
        "layer_rotation": layer_rotation,
        "layer_sparsity": layer_sparsity,
        "query_groups": query_groups,
        "uniform": uniform,
        "unlike_layers": unlike_layers,
    }
)

#: What states the keys of a rule as a config does, where these are the rule's own.
INVERSE_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {"block_configs": as_block_configs, "layer_rotation": as_layer_rotation}
)


@lru_cache(maxsize=256)
def compiled_rules(texts: tuple[str, ...]) -> tuple[Rule, ...]:
    """The rules of `NAME(keys)`. UsageError for one that doesn't exist."""
    return tuple(map(_rule, texts))


def _rule(text: str) -> Rule:
    name, arguments = expression.call(expression.parse(text)) or (text, ())
    if name not in RULES:
        raise UsageError(f"config_rules: unknown rule {name!r}{nearest_word(name, RULES)}")
    keys = [expression.path(argument) or "" for argument in arguments]
    return lambda config: RULES[name](config, *keys)
