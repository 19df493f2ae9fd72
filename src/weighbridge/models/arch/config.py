"""What a config.json means once its silences are filled: the defaults of its class, and one form for rope and labels.

Configs leave out what equals the default of their class, and the default differs between classes and between versions.
The reference converter sees configs through transformers (`AutoConfig(...).to_dict()`), so do we, from tables: the
defaults stand in the family's TOML. Pure functions over parsed JSON; wrong values are a FormatError that names the key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.config_rules import compiled_rules
from weighbridge.models.arch.size_keys import HEADS
from weighbridge.models.arch.tables import expression
from weighbridge.models.arch.tables.expression import evaluate
from weighbridge.models.arch.tables.layer_lists import Config, layer_count
from weighbridge.models.arch.tables.layers import slice_bounds
from weighbridge.models.arch.tables.values import INT_MAX, integer, number, positive

_LARGEST_STRETCH = 1e6  # published ones are 1000
#: what classes call the base frequency of their rotation, and that of layers with a sliding window
THETA: Final = ("rope_theta", "rotary_emb_base", "global_rope_theta")
LOCAL_THETA: Final = ("rope_local_base_freq", "local_rope_theta", "swa_rope_theta", "rope_local_theta")
#: keys of an effective config that no config states
DERIVED: Final = (
    "attending_layers", "classifies", "decay_rank", "full_attention_every", "gated", "labels", "layer_count",
    "layer_sets", "layer_types", "layout_every", "longrope_attention_factor", "mixing_rank", "ntk_alpha_base",
    "output_labels", "primary_router_func", "rope", "rope_bases", "rope_dim", "rope_shares", "rope_sliding",
    "sliding_layers", "sparse_layers", "unrotated_every", "unshared_kv_layers",
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
    `original_max_position_embeddings` counts for longrope alone: it is a field of Phi-3's class). FormatError for what
    nothing rotates by: a base frequency that isn't positive, and linear or yarn scaling without a factor, which
    transformers and mlx-lm refuse to load, while llama.cpp's converter leaves the scaling out without a word.
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
    if out["rope_theta"] is not None:
        positive(out["rope_theta"], "rope_theta")
    if out["rope_type"] in ("linear", "yarn"):
        _check_factor(out)
    return out


def _check_factor(rope: Config) -> None:
    if rope.get("factor") is None:
        raise FormatError(f"is missing, but {rope['rope_type']} scaling needs it", field="rope_scaling.factor",
                          hint="state it, or remove rope_scaling")  # fmt: skip
    positive(rope["factor"], "rope_scaling.factor")


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
    kept. `full_layers`: see `layer_types`; `rules`: those of `config_rules` that the family's table names."""
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


_DUMMIES: Final = ("LABEL_0", "LABEL_1")


def _classifies(config: Config) -> bool:
    """Whether the class has a head that gives a number for each label."""
    listed = config.get("architectures")
    return isinstance(listed, list | tuple) and str(*listed[:1]).endswith("ForSequenceClassification")


def layer_types(full_layers: Sequence[str], config: Config) -> list[str] | None:
    """How each layer attends where a config has no list of it. `full_layers`: which attend to all tokens, as slices
    `layers[3::4]` whose bounds may be keys of the config; the first whose keys are there. Without a window all do. Some
    configs have letters that repeat, as EXAONE 4's `LLLG`: L is a layer with a window."""
    layers = range(layer_count(config))
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
        if own.get("rope_theta") is not None:
            positive(own["rope_theta"], "rope_parameters.sliding_attention.rope_theta")
        return dict(own)
    word = next((key for key in LOCAL_THETA if config.get(key) is not None), None)
    return None if word is None else {"rope_theta": positive(config[word], word), "rope_type": "default"}
