"""DeciLM (Llama Nemotron): the layers of a model found by a search (configuration_decilm.py of NVIDIA's models)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.values import Config, integer, number

_BY_LAYER: Final = ("query_heads_by_layer", "kv_heads_by_layer", "ffn_widths_by_layer")
_MULTIPLE: Final = 256  # that a width is rounded up to


def complete(config: Config) -> dict[str, Any]:
    """Adds three lists from `block_configs`: per layer the query heads (0: no attention), the key heads (0: a linear
    layer instead of attention) and the width of the feed forward (0: none)."""
    listed = config.get("block_configs")
    if not isinstance(listed, list) or not listed:
        return {}
    heads, width = (integer(config.get(key), key, 1) for key in ("num_attention_heads", "hidden_size"))
    blocks = [(_part(block, "attention"), _part(block, "ffn")) for block in listed]
    if any(ffn.get("replace_with_linear") for _, ffn in blocks):
        raise FormatError("replaces a feed forward with a linear layer, which no graph computes", field="block_configs")
    queries, keys, widths = [], [], []
    for attention, ffn in blocks:
        group, scale = attention.get("n_heads_in_group"), ffn.get("ffn_mult")
        keys.append(0 if group is None else heads // integer(group, "n_heads_in_group", 1))
        queries.append(heads if keys[-1] or attention.get("replace_with_linear") else 0)
        exact = 0 if scale is None else integer(int(2 * number(scale, "ffn_mult") * width / 3), "ffn_mult")
        widths.append(-(-exact // _MULTIPLE) * _MULTIPLE)
    return dict(zip(_BY_LAYER, (queries, keys, widths), strict=True))


def _part(block: Any, name: str) -> Mapping[str, Any]:
    part = block.get(name) if isinstance(block, Mapping) else None
    if not isinstance(part, Mapping):
        raise FormatError(f"has a block without its {name}", field="block_configs", found=repr(block)[:80])
    return part


def restore(config: Config) -> dict[str, Any]:
    """Builds `block_configs` from the three lists."""
    lists = [[integer(n, key) for n in config[key]] for key in _BY_LAYER]
    heads, width = max(lists[0]), config["hidden_size"]
    blocks = [
        {
            "attention": {
                "n_heads_in_group": heads // keys if keys else None,
                "no_op": not queries,
                "replace_with_linear": bool(queries and not keys),
            },
            "ffn": {"ffn_mult": wide * 3 / (2 * width) if wide else None, "no_op": not wide,
                    "replace_with_linear": False},
        }
        for queries, keys, wide in zip(*lists, strict=True)
    ]  # fmt: skip
    return {**dict.fromkeys(_BY_LAYER), "num_attention_heads": heads, "block_configs": blocks}
