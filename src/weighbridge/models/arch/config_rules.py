"""The rules that a family's table may name in `config_rules`, and their inverses: the settings of one class, in the
words that all classes share. Sources: the classes of transformers 5.23, or the publishers' own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.limits import LAYERS
from weighbridge.models.arch.tables import expression
from weighbridge.models.arch.tables.expression import evaluate
from weighbridge.models.arch.tables.schema import nearest_word
from weighbridge.models.arch.tables.values import integer, number

Config = Mapping[str, Any]


def layer_count(config: Config) -> int:
    """How many layers there are, as many as lists are made for."""
    return integer(evaluate("num_hidden_layers", config) or 0, "num_hidden_layers", most=LAYERS)


def uniform(config: Config, *keys: str) -> dict[str, Any]:
    """One value in place of a list by layer whose values are all the same."""
    listed = {key: value for key in keys if isinstance(value := config.get(key), list) and value}
    return {key: value[0] for key, value in listed.items() if all(one == value[0] for one in value)}


def last_layer(config: Config, key: str) -> dict[str, Any]:
    """The number of the last layer for -1, and for one beyond it: classes compare with `<=`."""
    last, value = layer_count(config) - 1, config.get(key)
    return {key: last} if isinstance(value, int) and (value == -1 or value > last) else {}


def layer_sparsity(config: Config) -> dict[str, Any]:
    """The list of how sparse each layer is, which the class makes up where a config has none, and how many layers lead
    with the usual 0.95 before dense ones (-1: the list is another). transformers 5.23, `Gemma3nTextConfig`."""
    key = "activation_sparsity_pattern"
    count, shared = layer_count(config), integer(config.get("num_kv_shared_layers"), "num_kv_shared_layers")
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


_SPARSE: Final = {
    "index_n_heads": "sparse_num_index_heads", "index_head_dim": "sparse_index_dim",
    "index_block_size": "sparse_block_size", "index_topk_blocks": "sparse_topk_blocks",
    "index_local_blocks": "sparse_local_block",
}  # fmt: skip


def sparse_attention(config: Config) -> dict[str, Any]:
    """The settings of block-sparse attention that a published config has in an object of their own
    (configuration_minimax_m3_vl.py, transformers 5.23)."""
    own = config.get("sparse_attention_config")
    if not isinstance(own, Mapping):
        return {}
    numbers = own.get("sparse_attention_freq")
    kinds = ["minimax_m3_sparse" if n else "full_attention" for n in numbers] if isinstance(numbers, list) else None
    listed = {} if kinds is None or config.get("layer_types") is not None else {"layer_types": kinds}
    return {**listed, **{key: own[word] for key, word in _SPARSE.items() if word in own}}


def leading_dense(config: Config) -> dict[str, Any]:
    """Which layers have experts, of a config that says so of each in words or in numbers, or how many dense layers
    lead; and how many do (configuration_minimax_m3_vl.py, configuration_cohere2_moe.py, transformers 5.23)."""
    kinds, numbers = config.get("mlp_layer_types"), config.get("moe_layer_freq")
    if kinds is None and isinstance(numbers, list):
        kinds = ["sparse" if number else "dense" for number in numbers]
    if kinds is None:
        count, layers = integer(config.get("first_k_dense_replace") or 0, "first_k_dense_replace"), layer_count(config)
        kinds = ["dense" if layer < count else "sparse" for layer in range(layers)]
    if not isinstance(kinds, list):
        raise FormatError("is not a list", field="mlp_layer_types", found=repr(kinds)[:80])
    led = next((layer for layer, kind in enumerate(kinds) if kind != "dense"), len(kinds))
    return {"mlp_layer_types": kinds, "first_k_dense_replace": led}


def layer_rotation(config: Config) -> dict[str, Any]:
    """Which layers rotate, of a config that has a base frequency for each (0: none), and how many frequencies there
    are, of which a GGUF holds one (configuration_granite_swa.py, transformers 5.23)."""
    listed = config.get("layer_rope_theta")
    if listed is None:
        return {}
    if not isinstance(listed, list | tuple) or len(listed) != layer_count(config):
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
    flags = config.get("no_rope_layers") or [1] * layer_count(config)
    return {"no_rope_layers": None, "layer_rope_theta": [config["rope_theta"] if int(flag) else 0 for flag in flags]}


_KINDS: Final = ("full_attention", "sliding_attention")
_SHARES: Final = (0.5, 1.0)  # of a head that rotates in llama.cpp's graph, by kind of layer
_WINDOWED: Final = ("num_sliding_attention_heads", "num_sliding_attention_groups")


def _listed(config: Config, key: str, further: str, count: int, rest: Any) -> list[Any]:
    """A list by layer, with that of the layers which predict further tokens, filled up to `count`."""
    parts = (config.get(key) or [], config.get(further) or [])
    if not all(isinstance(part, list | tuple) for part in parts):
        raise FormatError("is not a list", field=key, found=repr(parts)[:80])
    return [*parts[0], *parts[1], *[rest] * count][:count]


def attention_by_kind(config: Config) -> dict[str, Any]:
    """What layers with a window have otherwise, of a config that lists base frequencies and rotating shares by layer
    and has other numbers of heads in an object; which layers have experts, of one that has their numbers in a text.
    Lists run over the layers that predict further tokens, too (configuration_step3p7.py, transformers 5.23)."""
    further = integer(config.get("num_nextn_predict_layers") or 0, "num_nextn_predict_layers", most=LAYERS)
    count = layer_count(config) + further
    kinds = _listed(config, "layer_types", "mtp_layer_types", count, _KINDS[0])
    groups = config.get("num_attention_groups", config.get("num_key_value_heads"))
    other = config.get("attention_other_setting")
    own = other if isinstance(other, Mapping) else {}
    heads = config.get(_WINDOWED[0]) or own.get("num_attention_heads", config.get("num_attention_heads"))
    limits = {
        key: [0.0 if limit is None else limit for limit in _listed(config, key, "", count, 0.0)]
        for key in ("swiglu_limits", "swiglu_limits_shared")
        if config.get(key) is not None
    }
    return {
        "layer_types": kinds,
        "sliding_layers": [int(kind == _KINDS[1]) for kind in kinds],
        "num_attention_groups": groups,
        _WINDOWED[0]: heads,
        _WINDOWED[1]: own.get("num_attention_groups", groups),
        **limits,
        **_experts_by_number(config, count),
        **_rotation_by_kind(config, kinds),
    }


def _experts_by_number(config: Config, count: int) -> dict[str, Any]:
    """Which layers have experts: as words, or as numbers in a text; by themselves all from the fourth on."""
    if config.get("mlp_layer_types") is not None:
        kinds = _listed(config, "mlp_layer_types", "mtp_mlp_layer_types", count, "dense")
    else:
        text = config.get("moe_layers_enum")
        listed = text.split(",") if isinstance(text, str) else text
        try:
            numbers = range(3, layer_count(config)) if listed is None else {int(i) for i in listed if str(i).strip()}
        except (TypeError, ValueError):
            raise FormatError("isn't a list of layers", field="moe_layers_enum", found=repr(text)[:80]) from None
        kinds = ["sparse" if i in numbers else "dense" for i in range(count)]
    led = kinds.index("sparse") if "sparse" in kinds else 0
    return {"mlp_layer_types": kinds, "first_k_dense_replace": led}


def _rotation_by_kind(config: Config, kinds: list[Any]) -> dict[str, Any]:
    """Base frequencies and rotating shares of each kind of layers; `rope_bases`: how many frequencies one kind has."""
    given = config.get("rope_parameters")
    typed = given if isinstance(given, Mapping) and _KINDS[0] in given else {}
    of = {kind: [i for i, one in enumerate(kinds) if one == kind] for kind in _KINDS}
    listed = {key: config.get(key) for key in ("rope_theta", "partial_rotary_factors")}
    found: dict[str, dict[str, list[Any]]] = {}
    for (key, values), word in zip(listed.items(), ("rope_theta", "partial_rotary_factor"), strict=True):
        if isinstance(values, list | tuple):
            found[key] = {kind: sorted({number(v, key) for v in _each(values, of[kind], key)}) for kind in _KINDS}
        else:
            found[key] = {kind: [typed[kind][word]] for kind in _KINDS if word in typed.get(kind, {})}
    shares = {kind: own for kind, own in found["partial_rotary_factors"].items() if own and of[kind]}
    bases = {kind: own for kind, own in found["rope_theta"].items() if own}
    out: dict[str, Any] = {"rope_shares": shares, "rope_bases": max(map(len, bases.values()), default=1)}
    if typed or not isinstance(listed["rope_theta"], list | tuple):
        return out
    scaling = config.get("rope_scaling")
    base = bases.get(_KINDS[0]) or [10000.0]
    out |= {
        "rope_theta": base[0],
        "rope_scaling": {**(scaling if isinstance(scaling, Mapping) else {}), "rope_theta": base[0]},
    }
    return out | ({"local_rope_theta": bases[_KINDS[1]][0]} if _KINDS[1] in bases else {})


def _each(values: Sequence[Any], layers: Sequence[int], key: str) -> list[Any]:
    """The entries of layers in a list, which may end before the last ones."""
    if layers and layers[0] >= len(values):
        raise FormatError("hasn't an entry for each layer", field=key, found=len(values))
    return [values[i] for i in layers if i < len(values)]


def as_attention_by_kind(config: Config) -> dict[str, Any]:
    """The inverse of `attention_by_kind`."""
    kinds = config.get("layer_types") or [_KINDS[0]] * layer_count(config)
    base = config["rope_theta"]
    sliding = (config.get("rope_parameters") or {}).get(_KINDS[1]) or {"rope_theta": base}
    by_kind = dict(zip(_KINDS, (base, sliding["rope_theta"]), strict=True))
    words = ("num_attention_heads", "num_attention_groups")
    own = {word: config[key] for word, key in zip(words, _WINDOWED, strict=True) if key in config}
    sparse = [str(i) for i, kind in enumerate(config.get("mlp_layer_types") or ()) if kind == "sparse"]
    return {
        **dict.fromkeys((*_WINDOWED, "rope_parameters", "rope_local_base_freq", "mlp_layer_types")),
        "rope_theta": [by_kind[kind] for kind in kinds],
        "partial_rotary_factors": [dict(zip(_KINDS, _SHARES, strict=True))[kind] for kind in kinds],
        "attention_other_setting": {"attention_type": _KINDS[1], **own, "head_dim": config["head_dim"]}
        if own
        else None,
        "moe_layers_enum": ",".join(sparse),
    }


def indexer_types(config: Config) -> dict[str, Any]:
    """Which layers have an indexer of their own, where a config has no list of it: by letters, or every so many layers
    (configuration_glm_moe_dsa.py, transformers 5.23)."""
    if config.get("indexer_types") is not None:
        return {}
    layers, letters = range(layer_count(config)), config.get("index_topk_pattern")
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


Rule = Callable[[Config], dict[str, Any]]


#: The rules that a table may name in `config_rules`: what each adds to a config, from it and the keys in the brackets.
_LAYOUTS: Final = ("sliding_window_layout", "rope_layout")


_FIRST_OF: Final = 4  # the layers in a row of which the first has no window in llama.cpp's graph


def _window_layouts(count: int, windowed: bool) -> tuple[list[int], list[int]]:
    windows = [int(windowed and i % _FIRST_OF > 0) for i in range(count)]
    return windows, windows if windowed else [1] * count


def window_layout(config: Config) -> dict[str, Any]:
    """`layout_every`: n where every n-th layer from the first attends to all tokens and doesn't rotate, and the others
    have a window; 0 where all attend to all tokens and rotate; -1 of any other layout
    (configuration_smallthinker.py)."""
    count = layer_count(config)
    plain = dict(zip(_LAYOUTS, _window_layouts(count, False), strict=True))
    stated = tuple(plain[key] if config.get(key) is None else config[key] for key in _LAYOUTS)
    every_nth = {0: _window_layouts(count, False), _FIRST_OF: _window_layouts(count, True)}
    return {"layout_every": next((n for n, layouts in every_nth.items() if layouts == stated), -1)}


def as_window_layout(config: Config) -> dict[str, Any]:
    """The inverse of `window_layout`."""
    layouts = _window_layouts(layer_count(config), config.get("sliding_window_size") is not None)
    return {"layout_every": None, **dict(zip(_LAYOUTS, layouts, strict=True))}


def primary_router(config: Config) -> dict[str, Any]:
    """`primary_router_func`: how a router's numbers become shares, which SmallThinker's config says by a flag."""
    return {"primary_router_func": "softmax" if config.get("moe_primary_router_apply_softmax") else "sigmoid"}


def as_primary_router(config: Config) -> dict[str, Any]:
    """The inverse of `primary_router`."""
    name = config.get("primary_router_func")
    return {"primary_router_func": None, "moe_primary_router_apply_softmax": name == "softmax"}


RULES: Final[Mapping[str, Callable[..., dict[str, Any]]]] = MappingProxyType(
    {
        "adjusted_width": adjusted_width,
        "attention_by_kind": attention_by_kind,
        "block_configs": block_configs,
        "indexer_types": indexer_types,
        "last_layer": last_layer,
        "layer_rotation": layer_rotation,
        "layer_sparsity": layer_sparsity,
        "primary_router": primary_router,
        "leading_dense": leading_dense,
        "query_groups": query_groups,
        "sparse_attention": sparse_attention,
        "uniform": uniform,
        "unlike_layers": unlike_layers,
        "window_layout": window_layout,
    }
)


#: What states the keys of a rule as a config does, where these are the rule's own.
INVERSE_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "attention_by_kind": as_attention_by_kind,
        "block_configs": as_block_configs,
        "layer_rotation": as_layer_rotation,
        "primary_router": as_primary_router,
        "window_layout": as_window_layout,
    }
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
