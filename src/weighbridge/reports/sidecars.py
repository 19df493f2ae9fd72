"""Small files next to the weights (config, tokenizer, templates), read within limits and leniently: a report covers
the rest of a folder even if one of these files is broken. `verify` reports their problems.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.limits import CONFIG_JSON
from weighbridge.io.location import open_source
from weighbridge.models.jsonfile import oversized


def read(path: Path, limit: int = CONFIG_JSON) -> bytes | None:
    """A file's bytes; None if it is missing, unreadable or implausibly large."""
    try:
        with open_source(path) as source:
            return source.read(0, source.size) if source.size <= limit else None
    except (OSError, WeighbridgeError):
        return None


def json(path: Path, limit: int = CONFIG_JSON) -> dict[str, Any]:
    """A JSON object; {} if there is none."""
    value = decoded(read(path, limit))
    return value if isinstance(value, dict) else {}


def decoded(data: bytes | None) -> Any:
    """The JSON value of some bytes; None if they aren't valid."""
    try:
        return msgspec.json.decode(data) if data and oversized(data) is None else None
    except (ValueError, RecursionError):
        return None


def text_of(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that speaks of the language model: itself, or `text_config` of a multimodal one over it."""
    inner = config.get("text_config") or config.get("llm_config") or config.get("language_config")
    return config | inner if isinstance(inner, dict) else config
