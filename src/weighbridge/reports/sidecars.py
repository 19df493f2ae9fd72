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
    """The JSON value of some bytes; None if they aren't valid, or hold an integer too long to compute with."""
    try:
        return msgspec.json.decode(data) if data and oversized(data) is None else None
    except (ValueError, RecursionError):
        return None


def chat_template(folder: Path) -> str | None:
    """The chat template: its own file (since transformers 4.44), else inside tokenizer_config.json."""
    data = read(folder / "chat_template.jinja")
    if data is not None:
        return data.decode("utf-8", "replace")
    for name in ("tokenizer_config.json", "chat_template.json"):
        template = json(folder / name).get("chat_template")
        if isinstance(template, list):  # several named ones
            template = "".join(str(t.get("template", "")) for t in template if isinstance(t, dict))
        if isinstance(template, str):
            return template
    return None


def text_of(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that speaks of the language model: itself, or `text_config` of a multimodal one over it."""
    inner = config.get("text_config") or config.get("llm_config") or config.get("language_config")
    return config | inner if isinstance(inner, dict) else config
