"""The audio encoders of Gemma 3n and Gemma 4: the channels of its two convolutions, a list in a config."""

from __future__ import annotations

from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.expression import stated
from weighbridge.models.arch.tables.values import Config

_KEYS: Final = {"gemma3n_audio": "sscp_conv_channel_size"}
_KEY: Final = "subsampling_conv_channels"  # of Gemma 4


def complete(config: Config) -> dict[str, Any]:
    """The audio encoder of Gemma 3n or Gemma 4. Adds `first_channels` and `second_channels`."""
    key = f"audio_config.{_key(config)}"
    listed = stated(config, key) or [128, 32]
    if not isinstance(listed, list | tuple) or len(listed) != 2:
        raise FormatError("must list two numbers of channels", field=key, found=repr(listed)[:80])
    return {"first_channels": listed[0], "second_channels": listed[1]}


def _key(config: Config) -> str:
    """The key of `audio_config` that lists them."""
    return _KEYS.get(str(stated(config, "audio_config.model_type")), _KEY)


def restore(config: Config) -> dict[str, Any]:
    """The list."""
    listed = [config["first_channels"], config["second_channels"]]
    audio = {**config["audio_config"], _key(config): listed}
    return {"first_channels": None, "second_channels": None, "audio_config": audio}
