"""SmallThinker: sliding windows, rotation and the router (configuration_smallthinker.py)."""

from __future__ import annotations

from typing import Any, Final

from weighbridge.models.arch.tables.expression import layer_count
from weighbridge.models.arch.tables.values import Config

_LAYOUTS: Final = ("sliding_window_layout", "rope_layout")
_PERIOD: Final = 4  # llama.cpp's graph has full attention in the first of every 4 layers


def complete(config: Config) -> dict[str, Any]:
    """Adds `layout_every`: n if every n-th layer from the first has full attention without rotation and the others have
    a window, 0 if all layers have full attention and rotate, -1 for any other layout. Adds `primary_router_func`."""
    count = layer_count(config)
    plain = dict(zip(_LAYOUTS, _layouts(count, windowed=False), strict=True))
    stated = tuple(plain[key] if config.get(key) is None else config[key] for key in _LAYOUTS)
    known = {0: _layouts(count, windowed=False), _PERIOD: _layouts(count, windowed=True)}
    function = "softmax" if config.get("moe_primary_router_apply_softmax") else "sigmoid"
    return {
        "layout_every": next((n for n, layouts in known.items() if layouts == stated), -1),
        "primary_router_func": function,
    }


def restore(config: Config) -> dict[str, Any]:
    """Builds both layouts and the router's flag."""
    layouts = _layouts(layer_count(config), windowed=config.get("sliding_window_size") is not None)
    softmax = config.get("primary_router_func") == "softmax"
    added = {"layout_every": None, "primary_router_func": None, "moe_primary_router_apply_softmax": softmax}
    return {**added, **dict(zip(_LAYOUTS, layouts, strict=True))}


def _layouts(count: int, *, windowed: bool) -> tuple[list[int], list[int]]:
    windows = [int(windowed and i % _PERIOD > 0) for i in range(count)]
    return windows, windows if windowed else [1] * count
