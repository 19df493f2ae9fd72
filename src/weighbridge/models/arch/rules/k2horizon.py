"""K2 Horizon: which layers are dense."""

from __future__ import annotations

from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.expression import layer_count
from weighbridge.models.arch.tables.values import Config

KEYS: Final = ("mlp_only_layers",)


def complete(config: Config) -> dict[str, Any]:
    """Adds `num_dense_layers` unless the config has it: the leading layers among `mlp_only_layers`, or all layers of a
    model without experts (conversion/k2_horizon.py, llama.cpp b11549)."""
    if not config.get("num_experts"):
        return {"num_dense_layers": layer_count(config)}
    listed = config.get("mlp_only_layers") or []
    if not isinstance(listed, list):
        raise FormatError("is not a list", field="mlp_only_layers", found=repr(listed)[:80])
    if config.get("num_dense_layers") is not None:
        return {}
    numbers = range(layer_count(config))
    return {"num_dense_layers": next((n for n in numbers if n not in listed), len(numbers))}


def restore(config: Config) -> dict[str, Any]:
    """A model without gates has no `attention_gate_func`."""
    return {"attention_gate_func": None} if config.get("attention_gate_func") == "none" else {}
