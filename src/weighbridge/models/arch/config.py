"""The effective config: a config.json completed with the defaults of its class, with one form for rope and labels. And
the object of a config.json that describes the language model: by the family's table `text_config`, `llm_config`,
`thinker_config.text_config` and so on, or the whole config.

Configs omit values that equal the default of their class, and defaults differ between classes and versions. The
reference converter reads configs through transformers (`AutoConfig(...).to_dict()`); here the defaults come from the
family's table. These are pure functions over parsed JSON; wrong values are FormatErrors that name the key.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.rules import completing_rules
from weighbridge.models.arch.size_keys import HEADS
from weighbridge.models.arch.tables import expression
from weighbridge.models.arch.tables.expression import evaluate, layer_count
from weighbridge.models.arch.tables.layers import slice_bounds
from weighbridge.models.arch.tables.values import INT_MAX, Config, integer, number, positive

if TYPE_CHECKING:
    from weighbridge.models.arch.tables.spec import Architecture

_LARGEST_STRETCH = 1e6  # published ones are 1000
#: keys for the base frequency, and for that of layers with a sliding window
THETA: Final = ("rope_theta", "rotary_emb_base", "global_rope_theta")
LOCAL_THETA: Final = ("rope_local_base_freq", "local_rope_theta", "swa_rope_theta", "rope_local_theta")
#: keys that only an effective config has
DERIVED: Final = (
    "attending_layers", "classifies", "decay_rank", "full_attention_every", "gated", "labels", "layer_count",
    "layer_sets", "layer_types", "layout_every", "longrope_attention_factor", "mixing_rank", "ntk_alpha_base",
    "output_labels", "primary_router_func", "rope", "rope_bases", "rope_dim", "rope_shares", "rope_sliding",
    "sliding_layers", "sliding_rope_dim", "sparse_layers", "unrotated_every", "unshared_kv_layers",
)  # fmt: skip


def check_heads(values: Config, width: int) -> None:
    """FormatError unless the heads divide the hidden size, for families without the number of heads in a shape."""
    for key in HEADS.config:
        if values.get(key) is not None and width % (heads := integer(values[key], key, 1)):
            raise FormatError("heads don't divide the hidden size", field=key, expected=f"a divisor of {width:,}",
                              found=heads)  # fmt: skip


def rope(config: Config, theta: float, share: str = "partial_rotary_factor") -> dict[str, Any]:
    """The rotary parameters in one flat form: `rope_theta`, `rope_type` and the parameters of that type.

    transformers 5.23, modeling_rope_utils.py `convert_rope_params_to_dict` and `standardize_rope_params`: v4's
    `rope_scaling` wins over v5's `rope_parameters`, `type` is the old name of `rope_type`, and types that scale from
    a trained length default to `max_position_embeddings` (a top-level `original_max_position_embeddings` counts only
    for longrope, since it is a field of Phi-3's class). FormatError for a base frequency that isn't positive, and for
    linear or yarn scaling without a factor, which transformers and mlx-lm refuse and llama.cpp's converter silently
    omits.
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
        out["rope_type"] = "ntk_alpha"  # Hunyuan: the base is stretched once, for any length
    if out["rope_type"] in ("llama3", "yarn", "longrope"):
        trained = config.get("original_max_position_embeddings") if out["rope_type"] == "longrope" else None
        out.setdefault("original_max_position_embeddings", trained or config.get("max_position_embeddings"))
    if out["rope_theta"] is not None:
        positive(out["rope_theta"], "rope_theta")
    if out["rope_type"] in ("linear", "yarn"):
        if out.get("factor") is None:
            raise FormatError(f"is missing, but {out['rope_type']} scaling needs it", field="rope_scaling.factor",
                              hint="set it, or remove rope_scaling")  # fmt: skip
        positive(out["factor"], "rope_scaling.factor")
    return out


def labels(config: Config) -> tuple[str, ...] | None:
    """A classifier's labels in order; None for the two dummies that transformers adds.

    conversion/bert.py `cls_out_labels`, after transformers' completion of `id2label` and `num_labels`.
    """
    by_number = config.get("id2label")
    if by_number is None:
        count = config.get("num_labels")
        count = 2 if count is None else integer(count, "num_labels")
        return None if count == 2 else tuple(f"LABEL_{i}" for i in range(min(count, 1 << 20)))
    try:
        pairs = sorted((int(key), str(value)) for key, value in by_number.items())
    except (AttributeError, ValueError, TypeError):
        raise FormatError("is not an object of numbered labels", field="id2label", found=repr(by_number)[:80]) from None
    if len(pairs) == 2 and pairs[0] == (0, "LABEL_0"):
        return None
    return tuple(value for _, value in pairs)


def effective(
    config: Config, defaults: Config, null: Mapping[str, str], full_layers: Sequence[str] = (),
    rules: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """The config with the values that its class adds, and `rope`, `labels` and `layer_types` in one form. Keys of the
    file are kept. `full_layers`: see `layer_types`; `rules`: the table's `config_rules`."""
    out = {**defaults, **config}
    for key, text in null.items():
        if out.get(key) in (None, "auto"):  # transformers also writes "auto"
            out[key] = evaluate(text, out)
    if full_layers and out.get("layer_types") is None:
        out["layer_types"] = layer_types(full_layers, out)
    for rule in completing_rules(tuple(rules)):
        out |= rule(out)
    if (word := next((w for w in THETA if w in defaults), None)) is not None:
        out["rope_sliding"] = sliding_rope(out)
        share = "rotary_pct" if "rotary_pct" in defaults else "partial_rotary_factor"  # GPT-NeoX has another key
        declared = {**out, **{w: config.get(w) for w in THETA}}
        if (part := evaluate("rotary_dim", out)) and (head := evaluate("head_dim", out)):  # MiniMax counts elements
            declared = {share: part / head, **declared}
        out["rope"] = rope(declared, defaults[word], share)
        out["rope_dim"] = _rope_dim(out, out["rope"])
        sliding = {"partial_rotary_factor": config.get(share), **(out["rope_sliding"] or {})}
        out["sliding_rope_dim"] = _rope_dim(out, sliding) if out["rope_sliding"] else None
        out["ntk_alpha_base"] = _ntk_alpha_base(out)
        out["longrope_attention_factor"] = _longrope_attention_factor(out)
    out["unrotated_every"] = every(out.get("no_rope_layers"), 0)
    out["full_attention_every"] = every(out.get("layer_types"), "full_attention")
    out["gated"] = str(out.get("feed_forward_proj", "")).startswith("gated")  # T5
    out["labels"] = labels(config)
    listed = config.get("architectures")
    out["classifies"] = isinstance(listed, list | tuple) and str(*listed[:1]).endswith("ForSequenceClassification")
    out["output_labels"] = out["labels"] or (_DUMMIES if out["classifies"] else None)
    return out


_DUMMIES: Final = ("LABEL_0", "LABEL_1")


def layer_types(full_layers: Sequence[str], config: Config) -> list[str] | None:
    """The kind of attention of each layer of a config without a list. `full_layers`: the layers with full attention,
    as slices `layers[3::4]` whose bounds may be keys of the config; the first whose keys are present counts. Without
    a window all layers have full attention. Some configs repeat letters, such as EXAONE 4's `LLLG`, where L has a
    window."""
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


def every(layers: Any, kind: Any) -> int | None:
    """n if exactly every n-th layer is of a kind, 0 if there is no such n, None without a list. Such patterns are built
    into llama.cpp's graphs."""
    if not isinstance(layers, list | tuple) or not layers:
        return None
    if kind not in layers:
        return len(layers) + 1
    n = layers.index(kind) + 1
    return n if all((i % n == n - 1) == (layer == kind) for i, layer in enumerate(layers)) else 0


def _rope_dim(config: Config, rope: Config) -> int | None:
    """The number of elements of a head that rotate by these parameters."""
    head = evaluate("head_dim", config) or evaluate("hidden_size // num_attention_heads", config)
    share = rope.get("partial_rotary_factor")
    if share is None or head is None:
        return head
    rotated = number(share, "partial_rotary_factor") * head
    if not abs(rotated) <= INT_MAX:
        raise FormatError("is not a share of a head", field="partial_rotary_factor", found=share)
    return int(rotated)


def _ntk_alpha_base(config: Config) -> float | None:
    """The base frequency that Hunyuan stretches; conversion/hunyuan.py `set_gguf_parameters` (llama.cpp b11549)."""
    rope, head = config["rope"], evaluate("head_dim", config) or evaluate("hidden_size // num_attention_heads", config)
    if rope["rope_type"] != "ntk_alpha" or head is None or head < 4:
        return None
    if not 0 < (alpha := number(rope["alpha"], "rope_scaling.alpha")) <= _LARGEST_STRETCH:
        raise FormatError("is not a stretch of a base frequency", field="rope_scaling.alpha", found=alpha)
    return number(rope["rope_theta"], "rope_theta") * math.pow(alpha, head / (head - 2))


def _longrope_attention_factor(config: Config) -> float | None:
    """The factor by which longrope scales attention: Phi-3.5-MoE's number, if it is the same for short and long texts;
    else Phi-3's rule, conversion/phi.py `generate_extra_tensors` (llama.cpp b11549)."""
    rope = config["rope"]
    if not rope.get("long_factor"):
        return None
    factor = rope.get("short_mscale")
    if factor is not None and factor == rope.get("long_mscale"):
        return number(factor, "short_mscale")
    trained = number(rope.get("original_max_position_embeddings"), "original_max_position_embeddings")
    scale = number(config.get("max_position_embeddings"), "max_position_embeddings") / trained if trained > 1 else 1.0
    return math.sqrt(1 + math.log(scale) / math.log(trained)) if scale > 1.0 else 1.0


def sliding_rope(config: Config) -> dict[str, Any] | None:
    """The rotary parameters of layers with a sliding window, if they differ: in transformers 5 an object next to that
    of the full layers, in 4 a base frequency."""
    by_kind = config.get("rope_parameters")
    sliding = by_kind.get("sliding_attention") if isinstance(by_kind, Mapping) else None
    if isinstance(sliding, Mapping):
        if sliding.get("rope_theta") is not None:
            positive(sliding["rope_theta"], "rope_parameters.sliding_attention.rope_theta")
        return dict(sliding)
    word = next((key for key in LOCAL_THETA if config.get(key) is not None), None)
    return None if word is None else {"rope_theta": positive(config[word], word), "rope_type": "default"}


def value_at(config: Mapping[str, Any], path: Iterable[str]) -> Any:
    """Returns the value below these keys, or None if there is none."""
    value: Any = config
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


#: Keys of the language model's settings in configs of models that see or hear.
TEXT_PARTS: Final = ("text_config", "llm_config", "language_config")


def path_of_text(
    config: Mapping[str, Any], architecture: Architecture | None, keys: Collection[str] = ()
) -> tuple[str, ...]:
    """Returns the keys that lead to the object with any of `keys`; () if it is the whole config. `architecture`: the
    config's class, None for a model without a table."""
    for part in TEXT_PARTS if architecture is None else (architecture.part or "text_config",):
        path = tuple(part.split("."))
        inner = value_at(config, path)
        if isinstance(inner, Mapping):
            return path if any(key in inner for key in keys) or not any(key in config for key in keys) else ()
    return ()


def with_part(config: Mapping[str, Any], path: Sequence[str], part: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config with another object at `path`."""
    if not path:
        return dict(part)
    first, *rest = path
    return {**config, first: with_part(config[first], rest, part)}
