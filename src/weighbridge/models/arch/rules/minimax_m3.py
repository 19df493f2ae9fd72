"""MiniMax M3: the settings of block-sparse attention (configuration_minimax_m3_vl.py, transformers 5.23)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from weighbridge.models.arch.tables.values import Config

_PUBLISHED: Final = {
    "index_n_heads": "sparse_num_index_heads", "index_head_dim": "sparse_index_dim",
    "index_block_size": "sparse_block_size", "index_topk_blocks": "sparse_topk_blocks",
    "index_local_blocks": "sparse_local_block",
}  # fmt: skip


def complete(config: Config) -> dict[str, Any]:
    """Adds the settings that a published config has in an object, `sparse_attention_config`."""
    settings = config.get("sparse_attention_config")
    if not isinstance(settings, Mapping):
        return {}
    numbers = settings.get("sparse_attention_freq")
    kinds = ["minimax_m3_sparse" if n else "full_attention" for n in numbers] if isinstance(numbers, list) else None
    listed = {} if kinds is None or config.get("layer_types") is not None else {"layer_types": kinds}
    return {**listed, **{key: settings[word] for key, word in _PUBLISHED.items() if word in settings}}
