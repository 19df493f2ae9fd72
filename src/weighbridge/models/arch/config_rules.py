"""The rules that a family's table may name in `config_rules`, and their inverses: the settings of one class, in the
words that all classes share. Sources: the classes of transformers 5.23, or the publishers' own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.limits import LAYERS
from weighbridge.models.arch.tables import expression
from weighbridge.models.arch.tables.expression import evaluate
from weighbridge.models.arch.tables.layer_lists import Config, as_attention_by_kind, attention_by_kind, layer_count
from weighbridge.models.arch.tables.validate import nearest_word
from weighbridge.models.arch.tables.values import integer, number


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


def scaled_widths(config: Config) -> dict[str, Any]:
    """The width of each layer's feed forward, of a config that has multipliers of the model's: rounded to a multiple of
    the divisor, and up where that takes more than a tenth (configuration_openelm.py, `make_divisible`)."""
    if (listed := config.get("ffn_multipliers")) is None:
        return {}
    width = integer(config.get("model_dim"), "model_dim", 1)
    divisor = integer(config.get("ffn_dim_divisor"), "ffn_dim_divisor", 1)
    if not isinstance(listed, list) or len(listed) > LAYERS:
        raise FormatError("isn't a list with a number for each layer", field="ffn_multipliers", found=str(listed)[:80])
    exact = [number(scale, "ffn_multipliers") * width for scale in listed]
    near = [max(divisor, integer(int(wide + divisor / 2), "ffn_multipliers") // divisor * divisor) for wide in exact]
    return {"ffn_widths_by_layer": [n + divisor * (n < 0.9 * wide) for n, wide in zip(near, exact, strict=True)]}


def as_scaled_widths(config: Config) -> dict[str, Any]:
    """The inverse of `scaled_widths`: multipliers that give just these widths, of a divisor of all."""
    widths = [integer(n, "feed_forward_length", 1) for n in config["ffn_widths_by_layer"]]
    width = integer(config.get("model_dim"), "model_dim", 1)
    scales = [n / width for n in widths]
    return {"ffn_widths_by_layer": None, "ffn_multipliers": scales, "ffn_dim_divisor": math.gcd(*widths)}


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


_RATIOS: Final = {
    "sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128,
}  # fmt: skip
_HASHED: Final = 3  # layers whose experts a table chooses, where a config doesn't say how many


def compressed_attention(config: Config) -> dict[str, Any]:
    """By how much each layer compresses earlier tokens, how many layers choose their experts by a table, how much of a
    head rotates, and how: in the words of published configs, which transformers 5.23 writes in others
    (configuration_deepseek_v4.py)."""
    out: dict[str, Any] = {}
    if config.get("compress_ratios") is None:
        out["compress_ratios"] = _compress_ratios(config)
    if config.get("num_hash_layers") is None:
        kinds = config.get("mlp_layer_types")
        out["num_hash_layers"] = kinds.count("hash_moe") if isinstance(kinds, list) else _HASHED
    if config.get("qk_rope_head_dim") is None:
        share = number(config.get("partial_rotary_factor") or 0.125, "partial_rotary_factor")
        out["qk_rope_head_dim"] = int(share * integer(config.get("head_dim"), "head_dim"))
    given = config.get("rope_parameters")
    main, far = (given.get(part) for part in ("main", "compress")) if isinstance(given, Mapping) else (None, None)
    if isinstance(main, Mapping) and isinstance(far, Mapping):
        out["rope_parameters"] = {**far, "rope_theta": main.get("rope_theta")}
        out["compress_rope_theta"] = far.get("rope_theta")
    return out


def _compress_ratios(config: Config) -> list[int]:
    kinds, count = config.get("layer_types"), layer_count(config)
    if kinds is None:
        return [128] * min(count, 2) + [4 if layer % 2 else 128 for layer in range(count - 2)]
    given = config.get("compress_rates")
    ratios = {**_RATIOS, **(given if isinstance(given, Mapping) else {})}
    if not isinstance(kinds, list) or not all(isinstance(kind, str) and kind in ratios for kind in kinds):
        raise FormatError("isn't a list of known kinds", field="layer_types", found=repr(kinds)[:80])
    return [integer(ratios[kind], f"compress_rates.{kind}") for kind in kinds]


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


def attention_step(config: Config) -> dict[str, Any]:
    """Which layers attend, of a config that says that the middle one of so many does; of fewer layers the last
    (modeling_plamo.py of PLaMo 2, `is_mamba`)."""
    count, step = layer_count(config), integer(config.get("mamba_step"), "mamba_step", 2)
    return {"attending_layers": [count - 1] if count <= step // 2 else [*range(step // 2, count, step)]}


def as_attention_step(config: Config) -> dict[str, Any]:
    """The inverse of `attention_step`. FormatError where layers attend by another rule."""
    listed = config["attending_layers"]
    for step in range(2, 2 * layer_count(config) + 2):
        if attention_step({**config, "mamba_step": step})["attending_layers"] == listed:
            return {"attending_layers": None, "mamba_step": step}
    raise FormatError("the layers that attend follow no step", field="attention.head_count_kv", found=str(listed)[:80])


_WIDE: Final = 4096  # the width from which on RWKV 6's tables of low rank are twice as large


def mixing_ranks(config: Config) -> dict[str, Any]:
    """The ranks of what mixes tokens and of their decay, which RWKV 6 has by its width (modeling_rwkv6.py)."""
    times = 2 if config.get("hidden_size") == _WIDE else 1
    return {"mixing_rank": 32 * times, "decay_rank": 64 * times}


def stretched_context(config: Config) -> dict[str, Any]:
    """yarn, of a config that says by how much it stretches positions and from which length on
    (configuration_plamo3.py)."""
    factor = number(config.get("rope_scaling_factor") or 1, "rope_scaling_factor")
    if factor == 1:
        return {}
    own = integer(config.get("initial_context_length"), "initial_context_length", 1)
    return {"rope_scaling": {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": own,
                             "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}}  # fmt: skip


def as_stretched_context(config: Config) -> dict[str, Any]:
    """The inverse of `stretched_context`."""
    given = config.get("rope_scaling")
    if not isinstance(given, Mapping) or given.get("rope_type") != "yarn":
        return {}
    own = given["original_max_position_embeddings"]
    return {"rope_scaling": None, "rope_parameters": None, "rope_scaling_factor": given["factor"],
            "initial_context_length": own}  # fmt: skip


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
        "attention_step": attention_step,
        "block_configs": block_configs,
        "compressed_attention": compressed_attention,
        "indexer_types": indexer_types,
        "last_layer": last_layer,
        "layer_rotation": layer_rotation,
        "layer_sparsity": layer_sparsity,
        "primary_router": primary_router,
        "leading_dense": leading_dense,
        "mixing_ranks": mixing_ranks,
        "query_groups": query_groups,
        "scaled_widths": scaled_widths,
        "sparse_attention": sparse_attention,
        "stretched_context": stretched_context,
        "uniform": uniform,
        "unlike_layers": unlike_layers,
        "window_layout": window_layout,
    }
)


#: What states the keys of a rule as a config does, where these are the rule's own.
INVERSE_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "attention_by_kind": as_attention_by_kind,
        "attention_step": as_attention_step,
        "block_configs": as_block_configs,
        "layer_rotation": as_layer_rotation,
        "primary_router": as_primary_router,
        "scaled_widths": as_scaled_widths,
        "stretched_context": as_stretched_context,
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
