"""MiniMax Text-01 and M1: whether the layers are those that llama.cpp assumes (src/models/minimax-01.cpp, b11549)."""

from __future__ import annotations

from typing import Any

from weighbridge.models.arch.tables.expression import layer_count
from weighbridge.models.arch.tables.values import Config


def complete(config: Config) -> dict[str, Any]:
    """Adds `usual_layers`: whether every eighth layer attends and the others have lightning attention."""
    usual = [int(i % 8 == 7) for i in range(layer_count(config))]
    return {"usual_layers": config.get("attn_type_list", usual) == usual}
