"""The towers of Granite Speech and LFM2-Audio: widths that a config has as multiples of the tower's, and a number of
codebooks that share one embedding."""

from __future__ import annotations

from typing import Any, Final

from weighbridge.models.arch.tables.expression import evaluate
from weighbridge.models.arch.tables.values import Config, integer

#: The object that describes a tower, its width, and each multiple with the tensor whose rows it determines.
_TOWERS: Final = {
    "encoder_config": ("hidden_dim", {"feed_forward": "feedforward_mult", "convolved": "conv_expansion_factor"}),
    "encoder": ("d_model", {"feed_forward": "ff_expansion_factor"}),
}
#: Entries of LFM2-Audio's embedding for each codebook (liquid-audio, model/lfm2_audio.py).
_CODES: Final = 2049


def complete(config: Config) -> dict[str, Any]:
    """Adds `feed_forward` for Granite Speech."""
    return {"feed_forward": evaluate("encoder_config.hidden_dim * encoder_config.feedforward_mult", config)}


def restore(config: Config) -> dict[str, Any]:
    """The multiples, and the number of codebooks."""
    part, (width, multiples) = next((part, keys) for part, keys in _TOWERS.items() if part in config)
    tower = dict(config[part])
    wide = integer(tower[width], "audio.embedding_length", 1)
    tower |= {key: integer(config[name], name, 1) // wide for name, key in multiples.items()}
    spoken = {"codebooks": config["spoken"] // _CODES} if "spoken" in config else {}
    return {**dict.fromkeys(("feed_forward", "convolved", "spoken")), **spoken, part: tower}
