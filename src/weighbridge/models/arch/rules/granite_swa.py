"""Granite 5 (Swash): a base frequency per layer (configuration_granite_swa.py, transformers 5.23)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.expression import layer_count
from weighbridge.models.arch.tables.values import Config, number


def complete(config: Config) -> dict[str, Any]:
    """Adds `no_rope_layers` from `layer_rope_theta` (0: no rotation), and `rope_bases`, the number of different base
    frequencies, of which a GGUF holds one."""
    listed = config.get("layer_rope_theta")
    if listed is None:
        return {}
    if not isinstance(listed, list | tuple) or len(listed) != layer_count(config):
        raise FormatError("needs a number per layer", field="layer_rope_theta", found=str(listed)[:80])
    bases = [number(base, "layer_rope_theta") for base in listed]
    given = config.get("rope_parameters")
    largest = {"rope_theta": max(bases)} if any(bases) else {}
    return {
        "no_rope_layers": None if all(bases) else [int(base > 0) for base in bases],
        "rope_bases": len({*bases} - {0}),
        "rope_parameters": {**(given if isinstance(given, Mapping) else {}), **largest},
    }


def restore(config: Config) -> dict[str, Any]:
    """Builds `layer_rope_theta` from the base frequency and the layers that rotate."""
    flags = config.get("no_rope_layers") or [1] * layer_count(config)
    return {"no_rope_layers": None, "layer_rope_theta": [config["rope_theta"] if int(flag) else 0 for flag in flags]}
