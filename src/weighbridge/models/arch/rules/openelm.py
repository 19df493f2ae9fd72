"""OpenELM: the width of each layer's feed forward (configuration_openelm.py, `make_divisible`)."""

from __future__ import annotations

import math
from typing import Any

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import LAYERS
from weighbridge.models.arch.tables.values import Config, integer, number


def complete(config: Config) -> dict[str, Any]:
    """Adds `ffn_widths_by_layer`: multiples of the model's width, rounded to a multiple of the divisor, and rounded
    up if rounding down takes more than a tenth."""
    if (listed := config.get("ffn_multipliers")) is None:
        return {}
    width = integer(config.get("model_dim"), "model_dim", 1)
    divisor = integer(config.get("ffn_dim_divisor"), "ffn_dim_divisor", 1)
    if not isinstance(listed, list) or len(listed) > LAYERS:
        raise FormatError("is not a list with a number per layer", field="ffn_multipliers", found=str(listed)[:80])
    exact = [number(scale, "ffn_multipliers") * width for scale in listed]
    near = [max(divisor, integer(int(wide + divisor / 2), "ffn_multipliers") // divisor * divisor) for wide in exact]
    return {"ffn_widths_by_layer": [n + divisor * (n < 0.9 * wide) for n, wide in zip(near, exact, strict=True)]}


def restore(config: Config) -> dict[str, Any]:
    """Finds multipliers and a divisor that result in the same widths."""
    widths = [integer(n, "feed_forward_length", 1) for n in config["ffn_widths_by_layer"]]
    width = integer(config.get("model_dim"), "model_dim", 1)
    scales = [n / width for n in widths]
    return {"ffn_widths_by_layer": None, "ffn_multipliers": scales, "ffn_dim_divisor": math.gcd(*widths)}
