"""RWKV 6: ranks that follow from the width (modeling_rwkv6.py)."""

from __future__ import annotations

from typing import Any, Final

from weighbridge.models.arch.tables.values import Config

_WIDE: Final = 4096  # width of the models with ranks twice as large


def complete(config: Config) -> dict[str, Any]:
    """Adds the ranks of the matrices that mix tokens and of those that compute their decay."""
    factor = 2 if config.get("hidden_size") == _WIDE else 1
    return {"mixing_rank": 32 * factor, "decay_rank": 64 * factor}
