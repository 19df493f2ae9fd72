"""Granite Speech's tower: widths that a config gives as multiples of the tower's width."""

from __future__ import annotations

from typing import Any

from weighbridge.models.arch.tables.expression import evaluate
from weighbridge.models.arch.tables.values import Config, integer


def complete(config: Config) -> dict[str, Any]:
    """Adds `feed_forward`."""
    return {"feed_forward": evaluate("encoder_config.hidden_dim * encoder_config.feedforward_mult", config)}


def restore(config: Config) -> dict[str, Any]:
    """The multiples."""
    encoder = dict(config["encoder_config"])
    width = integer(encoder["hidden_dim"], "audio.embedding_length", 1)
    encoder["feedforward_mult"] = integer(config["feed_forward"], "audio.feed_forward_length", 1) // width
    encoder["conv_expansion_factor"] = integer(config["convolved"], "a.blk.0.conv_dw.weight", 1) // width
    return {"feed_forward": None, "convolved": None, "encoder_config": encoder}
