"""Qwen 2.5-VL's tower: every n-th block attends to the whole image, the others to windows."""

from __future__ import annotations

from typing import Any

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.expression import stated
from weighbridge.models.arch.tables.values import Config, integer

_LISTED = "vision_config.fullatt_block_indexes"


def complete(config: Config) -> dict[str, Any]:
    """Adds `window_pattern`, that n. FormatError if the blocks aren't every n-th one, which llama.cpp can't compute."""
    listed = stated(config, _LISTED)
    if not isinstance(listed, list) or not listed:
        raise FormatError("must list blocks", field=_LISTED, found=repr(listed)[:80])
    step = integer(listed[0], _LISTED) + 1
    if listed != [step * (n + 1) - 1 for n in range(len(listed))]:
        raise FormatError("must be every n-th block in llama.cpp", field=_LISTED, found=repr(listed)[:80])
    return {"window_pattern": step}


def restore(config: Config) -> dict[str, Any]:
    """The blocks of `window_pattern`."""
    vision, step = config["vision_config"], integer(config["window_pattern"], "vision.n_wa_pattern", 1)
    listed = list(range(step - 1, integer(vision["depth"], "vision.block_count"), step))
    return {"window_pattern": None, "vision_config": {**vision, "fullatt_block_indexes": listed}}
