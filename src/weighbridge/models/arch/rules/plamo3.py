"""PLaMo 3: yarn under other keys (configuration_plamo3.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weighbridge.models.arch.tables.values import Config, integer, number


def complete(config: Config) -> dict[str, Any]:
    """Adds `rope_scaling` from the factor and the length that the model was first trained for."""
    factor = number(config.get("rope_scaling_factor") or 1, "rope_scaling_factor")
    if factor == 1:
        return {}
    length = integer(config.get("initial_context_length"), "initial_context_length", 1)
    return {"rope_scaling": {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length,
                             "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}}  # fmt: skip


def restore(config: Config) -> dict[str, Any]:
    """Moves yarn back to PLaMo's keys."""
    given = config.get("rope_scaling")
    if not isinstance(given, Mapping) or given.get("rope_type") != "yarn":
        return {}
    return {"rope_scaling": None, "rope_parameters": None, "rope_scaling_factor": given["factor"],
            "initial_context_length": given["original_max_position_embeddings"]}  # fmt: skip
