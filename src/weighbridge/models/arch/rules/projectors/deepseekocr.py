"""DeepSeek-OCR's towers, which a config describes under the names of the models that they come from."""

from __future__ import annotations

import math
from typing import Any, Final

from weighbridge.base.errors import FormatError
from weighbridge.models.arch.tables.expression import stated
from weighbridge.models.arch.tables.values import Config, integer

_TOWERS: Final = {"clip": "clip-l-14-224", "sam": "sam_vit_b", "qwen": "qwen2-0-5b"}
#: The model that has Qwen 2 in CLIP's place, and the side of its patches, which no config has.
_SECOND, _PATCH = "DeepseekOCR2ForCausalLM", 16
_CHANNELS: Final = "vision_config.width.sam_vit_b.downsample_channels"
#: Tiles of an image at most: the reference's numbers, which no config has.
_TILES, _TILES_OF = 9, {"UnlimitedOCRForCausalLM": 32, _SECOND: 6}
_SEQUENCE: Final = "preprocessor.image_seq_length"
_UNWRITTEN: Final = 4  # the scale factor that llama.cpp assumes


def complete(config: Config) -> dict[str, Any]:
    """Adds the towers to `vision_config` as `clip`, `sam` and `qwen`, `first_channels`, `second_channels`, `most_tiles`
    and `pooled`, as the reference converter computes it (conversion/deepseek.py `DeepseekOCRVisionModel`, llama.cpp
    b11549)."""
    listed, stated_ = config.get("architectures"), config.get("vision_config")
    class_ = str(listed[0]) if isinstance(listed, list) and listed else ""
    vision = _with_towers(dict(stated_) if isinstance(stated_, dict) else {}, "qwen" if class_ == _SECOND else "clip")
    channels = stated(vision["sam"], "downsample_channels") or (512, 1024)
    if not isinstance(channels, list | tuple) or len(channels) != 2:
        raise FormatError("must list two numbers of channels", field=_CHANNELS, found=repr(channels)[:80])
    seen = {"patch_size": _PATCH, **vision} if class_ == _SECOND else vision["clip"]
    image, patch = (integer(seen.get(key), f"vision_config: {key}", 1) for key in ("image_size", "patch_size"))
    pooled = image // patch // math.isqrt(integer(stated(config, _SEQUENCE) or 256, _SEQUENCE, 1))
    return {
        "vision_config": vision, "first_channels": channels[0], "second_channels": channels[1],
        "most_tiles": _TILES_OF.get(class_, _TILES), "pooled": None if pooled in (0, _UNWRITTEN) else pooled,
    }  # fmt: skip


def _with_towers(vision: dict[str, Any], reader: str) -> dict[str, Any]:
    """`vision_config` with SAM, and the tower that reads its output."""
    widths = vision.get("width")
    for name in ("sam", reader):
        tower = widths.get(_TOWERS[name]) if isinstance(widths, dict) else None
        if not isinstance(tower, dict):
            raise FormatError("must describe it", field=f"vision_config.width.{_TOWERS[name]}", found=repr(tower)[:80])
        vision[name] = tower
    return vision


def restore(config: Config) -> dict[str, Any]:
    """The towers under their models' names."""
    vision = dict(config["vision_config"])
    towers = {key: dict(vision.pop(name)) for name, key in _TOWERS.items() if name in vision}
    towers[_TOWERS["sam"]] |= {
        "downsample_channels": [config["first_channels"], config["second_channels"]],
        "global_attn_indexes": [*range(2, integer(towers[_TOWERS["sam"]]["layers"], "vision.sam.block_count"), 3)],
    }
    vision["image_size"] = 16 * integer(config["grid"], "v.sam.pos_embd.weight", 1)
    vision["width"] = towers
    return {**dict.fromkeys(("grid", "first_channels", "second_channels")), "vision_config": vision}
