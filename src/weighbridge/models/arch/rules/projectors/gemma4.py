"""Gemma 4's audio encoder: the channels of its two convolutions, a list in a config."""

from __future__ import annotations

from typing import Any

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.expression import stated
from weighbridge.models.arch.tables.values import Config

_LISTED = "audio_config.subsampling_conv_channels"


def complete(config: Config) -> dict[str, Any]:
    """Gemma 4's audio encoder. Adds `first_channels` and `second_channels`."""
    listed = stated(config, _LISTED) or [128, 32]
    if not isinstance(listed, list | tuple) or len(listed) != 2:
        raise FormatError("must list two numbers of channels", field=_LISTED, found=repr(listed)[:80])
    return {"first_channels": listed[0], "second_channels": listed[1]}


def restore(config: Config) -> dict[str, Any]:
    """The list."""
    listed = [config["first_channels"], config["second_channels"]]
    audio = {**config["audio_config"], "subsampling_conv_channels": listed}
    return {"first_channels": None, "second_channels": None, "audio_config": audio}
