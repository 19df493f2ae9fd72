"""Reads small files next to the weights (config, tokenizer, templates), with limits and without errors: a report covers
the rest of a folder even if one of these files is broken. `verify` reports their problems.
"""

from __future__ import annotations

import json as python_json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.limits import CONFIG_JSON
from weighbridge.io.location import open_source
from weighbridge.models.jsonfile import oversized


def read(path: Path, limit: int = CONFIG_JSON) -> bytes | None:
    """Returns a file's bytes; None if it is missing, unreadable or too large."""
    try:
        with open_source(path) as source:
            return source.read(0, source.size) if source.size <= limit else None
    except (OSError, WeighbridgeError):
        return None


def json(path: Path, limit: int = CONFIG_JSON) -> dict[str, Any]:
    """Returns a JSON object; {} if there is none."""
    value = decode(read(path, limit))
    return value if isinstance(value, dict) else {}


def decode(data: bytes | None) -> Any:
    """Decodes JSON with Python's NaN and Infinity. Returns None if it is invalid, or contains an integer too long to
    compute with."""
    if not data or oversized(data) is not None:
        return None
    with suppress(ValueError, RecursionError):
        return msgspec.json.decode(data)
    if b"NaN" in data or b"Infinity" in data:
        with suppress(ValueError, RecursionError):
            return python_json.loads(data)
    return None


def chat_template(folder: Path) -> str | None:
    """Returns the chat template: a separate file (since transformers 4.44), else that in tokenizer_config.json."""
    data = read(folder / "chat_template.jinja")
    if data is not None:
        return data.decode("utf-8", "replace")
    for name in ("tokenizer_config.json", "chat_template.json"):
        template = json(folder / name).get("chat_template")
        if isinstance(template, list):  # several named templates
            template = "".join(str(t.get("template", "")) for t in template if isinstance(t, dict))
        if isinstance(template, str):
            return template
    return None


def text_of(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of the language model: the config, updated with the language model's of a multimodal one."""
    return {**config, **part_of_text(config)}


def part_of_text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the object that describes the language model of a config with several parts; {} for another config."""
    if not any(key.endswith("_config") and key != "quantization_config" for key in config):
        return {}
    from weighbridge.models.transform.text_config import text_of_config  # late: few configs have parts

    return text_of_config(config)
