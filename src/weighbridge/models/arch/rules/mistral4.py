"""Mistral Small 4: its rotation (configuration_mistral4.py, transformers 5.23)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.values import Config

KEYS: Final = ("partial_rotary_factor",)
_USUAL: Final = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0, "original_max_position_embeddings": 8192,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip


def _share(config: Config) -> float | None:
    rotated, rest = config.get("qk_rope_head_dim"), config.get("qk_nope_head_dim")
    sizes = isinstance(rotated, int) and isinstance(rest, int) and rotated + rest > 0
    return rotated / (rotated + rest) if sizes else None  # type: ignore[operator]


def complete(config: Config) -> dict[str, Any]:
    """Adds `rope_parameters` unless the config has them. Refuses a `partial_rotary_factor` that the sizes of a head
    don't give: no model runs with another one."""
    rope, share = config.get("rope_scaling") or config.get("rope_parameters"), _share(config)
    for settings in (rope if isinstance(rope, Mapping) else {}, config):
        if (stated := settings.get(KEYS[0])) is not None and stated != share:
            raise FormatError("doesn't fit the sizes of a head", field=KEYS[0], expected=share, found=stated)
    return {} if rope else {"rope_parameters": dict(_USUAL)}


def restore(config: Config) -> dict[str, Any]:
    """Adds the share, without which transformers rotates a whole head."""
    sizes = {**config, "qk_nope_head_dim": config["qk_head_dim"] - config["qk_rope_head_dim"]}
    return {"rope_parameters": {**config["rope_parameters"], "partial_rotary_factor": _share(sizes)}}
