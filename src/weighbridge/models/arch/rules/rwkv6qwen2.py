"""QRWKV 6: ranks that follow from the width (conversion/rwkv.py `RWKV6Qwen2Model`, llama.cpp b11549)."""

from __future__ import annotations

from typing import Any, Final

from weighbridge.models.arch.tables.values import Config, integer

_WIDE: Final = 4096  # width from which on the ranks are twice as large
_RANKS: Final = {"lora_rank_tokenshift": 32, "lora_rank_decay": 64}


def complete(config: Config) -> dict[str, Any]:
    """Adds the ranks of the matrices that mix tokens and of those that compute their decay, unless the config has
    them."""
    factor = 2 if integer(config.get("hidden_size") or 0, "hidden_size") >= _WIDE else 1
    return {key: rank * factor for key, rank in _RANKS.items() if config.get(key) is None}
