"""Invariant: whatever a config.json or a GGUF's keys say is a model's sizes, names and keys, or refused.

An input is JSON: {"config": a config.json}, which goes to a GGUF's keys, or {"keys": a GGUF's, "tensors": its names},
which go back to a config.json. Other inputs are passed over: JSON is msgspec's to read.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import harness
import msgspec

from weighbridge.base.errors import UsageError
from weighbridge.models.arch.registry import families, family_of_gguf, family_of_hf
from weighbridge.models.config.keys import table
from weighbridge.models.config.losses import config_losses
from weighbridge.models.config.mapping import config_to_gguf, gguf_to_config

GOLDEN = Path(__file__).parents[1] / "models" / "golden" / "families"
MODELS = ("gemma3", "falcon-h1", "t5", "deepseek-v3", "granite-moe", "modernbert", "qwen35-seeing", "phi-mini-long")

_MOST = 200

families(), table()  # read once; not what is measured


def target(data: bytes) -> None:
    try:
        said = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return
    try:
        if isinstance(said, dict) and isinstance(said.get("config"), dict):
            there(said["config"])
        elif isinstance(said, dict) and isinstance(said.get("keys"), dict):
            named = said.get("tensors")
            back(said["keys"], [name for name in named if isinstance(name, str)] if isinstance(named, list) else [])
    except UsageError:
        return


def there(config: dict[str, Any]) -> None:
    """To a GGUF's keys; names and shapes, of which there are no more than the tables allow."""
    family = family_of_hf(config)
    sizes = family.sizes_from_hf(config)
    small = math.prod(sizes.get(symbol) or 1 for symbol in family.index.values()) <= _MOST
    for dialect in ("hf", "gguf") if small else ():  # a short config may ask for 100,000 names, rightly
        for shape in family.names(dialect, sizes).values():
            assert min(shape, default=1) > 0
    keys = config_to_gguf(config, family, file_type=1)
    assert all(isinstance(loss, str) for loss in config_losses(config, family))
    assert all(kv.value is not None for kv in keys.values())


def back(keys: dict[str, Any], tensors: list[str]) -> None:
    family = family_of_gguf(keys, (), tensors)
    family.sizes_from_gguf(keys, tensors)
    restored = gguf_to_config(keys, family, tensors)
    json.dumps(restored.config)


def seeds() -> list[bytes]:
    out = []
    for name in MODELS:
        recorded = json.loads((GOLDEN / f"{name}.json").read_text())
        keys = {key: value for key, kind, value in recorded["keys"] if kind != "f32"}
        keys["tokenizer.ggml.tokens"] = ["a", "b"]
        out += [{"config": recorded["config"]}, {"keys": keys, "tensors": [row[0] for row in recorded["gguf"][:12]]}]
    whole = [json.dumps(value, separators=(",", ":")).encode() for value in out]
    return whole + [data for value in out for data in harness.odd(value, 12)]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds))
