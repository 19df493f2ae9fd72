"""Muse Glimmer: which layers rotate (configuration_muse_glimmer.py, transformers 5.23)."""

from __future__ import annotations

from typing import Any

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.expression import layer_count
from weighbridge.models.arch.tables.values import Config, number


def complete(config: Config) -> dict[str, Any]:
    """Adds `window_rotates`: whether the layers with a window rotate, all with one base frequency, and the others
    don't, as llama.cpp's graph computes it."""
    listed, kinds, count = config.get("layer_rope_theta"), config.get("layer_types"), layer_count(config)
    given = config.get("rope_parameters") or {}
    base = given.get("rope_theta", config.get("rope_theta"))
    kinds = kinds or ["full_attention" if (count - 1 - i) % 4 == 0 else "sliding_attention" for i in range(count)]
    if listed is None:
        return {"layer_types": kinds, "window_rotates": True}
    if not isinstance(listed, list | tuple) or not len(listed) == len(kinds) == count:
        raise FormatError("needs a number per layer", field="layer_rope_theta", found=str(listed)[:80])
    bases = [number(theta, "layer_rope_theta") for theta in listed]
    wanted = [base if kind == "sliding_attention" else 0 for kind in kinds]
    return {"layer_types": kinds, "window_rotates": bases == wanted}


def restore(config: Config) -> dict[str, Any]:
    """Builds `layer_rope_theta` from the base frequency and the layers with a window."""
    kinds = config.get("layer_types") or []
    bases = [config.get("rope_theta", 10000.0) if kind == "sliding_attention" else 0 for kind in kinds]
    return {"window_rotates": None, "layer_rope_theta": bases}
