"""MiMo-V2.5's towers: the heights of codebooks, and the blocks that attend to windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import LAYERS
from weighbridge.models.arch.tables.values import Config, integer

_MOST: Final = 1 << 10  # codebooks


def complete(config: Config) -> dict[str, Any]:
    """Adds `codebooks`, the height of each; `sound_windows`, the blocks of what hears with 0 for a window and -1 for
    none; and `sound_window`. Follows conversion/mimo.py `MiMoV2VisionAudioModel` (llama.cpp b11549)."""
    hearing = stated if isinstance(stated := config.get("audio_tokenizer"), Mapping) else {}
    count = integer(hearing.get("num_quantizers"), "num_quantizers", 1, _MOST)
    listed = hearing.get("codebook_size")
    listed = listed if isinstance(listed, list | tuple) else [listed] * count
    heights = [integer(height, "codebook_size", 1) for height in listed[:count]]
    blocks = integer(hearing.get("encoder_layers"), "encoder_layers", 1, LAYERS)
    every = integer(hearing.get("swa_per_block") or 1, "swa_per_block", 1)
    last = every - 1 if hearing.get("hybrid_attention") and every > 1 else 0
    window = hearing.get("encoder_attn_window_size")
    if not isinstance(window, list | tuple) or not window:
        raise FormatError("must be a list", field="encoder_attn_window_size", found=repr(window)[:80])
    return {
        "codebooks": heights, "most_codes": max(heights, default=0), "sound_window": window[0],
        "sound_windows": [0 if n % every < last else -1 for n in range(blocks)],
    }  # fmt: skip
