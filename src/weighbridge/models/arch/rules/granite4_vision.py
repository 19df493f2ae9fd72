"""Granite 4 Vision: projectors that read layers of the tower and feed layers of the language model. A config numbers
them kind by kind, a GGUF by the layers that they feed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import LAYERS
from weighbridge.models.arch.tables.expression import stated
from weighbridge.models.arch.tables.values import Config, integer

_MAP, _FED, _READ, _RATE = "deepstack_layer_map", "spatial_target_layers", "spatial_vision_layer", "downsample_rate"
_PINPOINTS: Final = "image_grid_pinpoints"
#: Of configs without them (configuration_granite4_vision.py, transformers 5.23).
_USUAL: Final = {_FED: (12, 15, 18, 21), _PINPOINTS: ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))}
_WIDEST: Final = 1 << 10  # patches along a side


class _Projector(NamedTuple):
    """`feeds`: layer of the language model. `reads`: layer of the tower. `offset`: of the patch that it samples, -1 for
    the mean. `number`: among those of its kind."""

    feeds: int
    reads: int
    offset: int
    number: int


def complete(config: Config) -> dict[str, Any]:
    """Adds, projector by projector in a GGUF's order, `feature_layers`, `spatial_offsets` and `projector_numbers`, and
    `deepstack_mapping`, the projector of each layer of the language model except the first one's; `query_side` and
    `window_side`, the parts of the rate; and `pinpoints`, widths and heights. Follows conversion/granite.py
    `Granite4VisionMmprojModel` (llama.cpp b11549), but counts layers of the tower from the input as transformers does.
    """
    if config.get(_MAP) is None and config.get(_FED) is None:
        return {}
    found = _projectors(config, fed := _depth(config, "text_config"))
    numbered = {projector.feeds: n for n, projector in enumerate(found)}
    return {
        "feature_layers": [projector.reads for projector in found],
        "spatial_offsets": [projector.offset for projector in found],
        "projector_numbers": [projector.number for projector in found],
        "deepstack_mapping": [numbered.get(layer) or -1 for layer in range(fed)],
        "pinpoints": [side for pair in _pairs(config, _PINPOINTS) for side in reversed(pair)],
        "first_fed_layer": found[0].feeds if found else 0, **_sides(config.get(_RATE)),
    }  # fmt: skip


def _projectors(config: Config, fed: int) -> list[_Projector]:
    """The projectors by the layers that they feed. `fed`: the number of these layers."""
    read = _depth(config, "vision_config")
    found = [_Projector(_at(y, fed), _read(x, read, _MAP), -1, n) for n, (x, y) in enumerate(_pairs(config, _MAP))]
    sampled = _read(config.get(_READ, -1), read, _READ)
    found += [_Projector(_at(y, fed), sampled, n, n) for n, y in enumerate(_listed(config, _FED))]
    if len({projector.feeds for projector in found}) < len(found):
        raise FormatError("feed a layer of the language model twice", field=f"{_MAP}, {_FED}")
    return sorted(found, key=lambda projector: projector.feeds)


def _depth(config: Config, part: str) -> int:
    key = f"{part}.num_hidden_layers"
    return integer(stated(config, key), key, 1, LAYERS)


def _pairs(config: Config, key: str) -> Sequence[tuple[Any, Any]]:
    pairs = _listed(config, key)
    if any(not isinstance(pair, list | tuple) or len(pair) != 2 for pair in pairs):
        raise FormatError("must have pairs of numbers", field=key, found=repr(pairs)[:80])
    return pairs


def _listed(config: Config, key: str) -> Sequence[Any]:
    value = _USUAL.get(key, ()) if config.get(key) is None else config[key]
    if not isinstance(value, list | tuple):
        raise FormatError("must be a list", field=key, found=repr(value)[:80])
    return value


def _at(layer: Any, depth: int) -> int:
    return integer(layer, f"{_MAP}, {_FED}", most=depth - 1)


def _read(layer: Any, depth: int, key: str) -> int:
    """The layer whose output is that of transformers' `hidden_states[layer]`; number 0 is the input."""
    if isinstance(layer, bool) or not isinstance(layer, int) or not -depth - 1 <= layer <= depth:
        raise FormatError(f"must be a layer of {depth}", field=key, found=repr(layer)[:80])
    if layer in (0, -depth - 1):
        raise UnsupportedError(f"config.json: {key} reads the tower's input; llama.cpp reads outputs of layers")
    return layer - 1 if layer > 0 else depth + layer


def _whole(config: Config, key: str) -> list[int]:
    """The integers of a list of a GGUF."""
    return [integer(n, key, -1) for n in config.get(key) or ()]


def _sides(rate: Any) -> dict[str, int]:
    query, slash, window = rate.partition("/") if isinstance(rate, str) else ("", "", "")
    if not (slash and query.isdecimal() and window.isdecimal() and len(rate) < 10):
        raise FormatError("must be a fraction such as 4/8", field=_RATE, found=repr(rate)[:80])
    return {
        "query_side": integer(int(query), _RATE, 1, _WIDEST),
        "window_side": integer(int(window), _RATE, 1, _WIDEST),
    }


def restore(config: Config) -> dict[str, Any]:
    """The layers that projectors read and feed, kind by kind, the rate and the resolutions. The language model's file
    has the layers that they feed. No file has the tower's head, which pools an image to one vector."""
    if "feature_layers" not in config:  # the language model's config
        return {}
    if config.get("deepstack_mapping") is None:
        raise UnsupportedError("the language model's file has no deepstack_mapping: no projector feeds its layers")
    reads, offsets, mapping = (
        _whole(config, key) for key in ("feature_layers", "spatial_offsets", "deepstack_mapping")
    )
    depth = integer(config["vision_config"]["num_hidden_layers"], "vision.block_count", 1)
    feeds = {number: layer for layer, number in enumerate(mapping) if number > 0} | {0: 0}
    if len(reads) != len(offsets) or feeds.keys() != {*range(len(reads))}:
        raise FormatError("must number the projectors", field="deepstack_mapping", found=repr(mapping)[:80])
    found = [(offset, read - depth, feeds[n]) for n, (read, offset) in enumerate(zip(reads, offsets, strict=True))]
    spatial = sorted(projector for projector in found if projector[0] >= 0)
    if len(read := {projector[1] for projector in spatial}) > 1:
        raise FormatError("differ for projectors that sample patches", field="vision.feature_layer", found=reads)
    flat, gone = _whole(config, "pinpoints"), ("feature_layers", "spatial_offsets", "query_side", "window_side")
    return {
        "vision_config": {**config["vision_config"], "vision_use_head": False},
        **dict.fromkeys((*gone, "deepstack_mapping", "pinpoints")),
        _MAP: sorted([read, feeds] for offset, read, feeds in found if offset < 0),
        _FED: [projector[2] for projector in spatial], _READ: read.pop() if read else -1,
        _RATE: f"{config['query_side']}/{config['window_side']}",
        _PINPOINTS: [[flat[n + 1], flat[n]] for n in range(0, len(flat) - 1, 2)],
    }  # fmt: skip
