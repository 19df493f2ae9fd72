"""DeepSeek V4: compressed attention and layers with a table of experts (configuration_deepseek_v4.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.expression import layer_count
from weighbridge.models.arch.tables.values import Config, integer, number

KEYS: Final = ("layer_types", "compress_rates", "mlp_layer_types", "partial_rotary_factor")
_RATIOS: Final = {
    "sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128,
}  # fmt: skip
_HASHED: Final = 3  # default number of layers whose experts a table selects


def complete(config: Config) -> dict[str, Any]:
    """Adds, under the keys of published configs, which transformers 5.23 replaced: how much each layer compresses
    earlier tokens, how many layers select experts by a table, how much of a head rotates, and the base frequencies."""
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
        raise FormatError("is not a list of known kinds", field="layer_types", found=repr(kinds)[:80])
    return [integer(ratios[kind], f"compress_rates.{kind}") for kind in kinds]
