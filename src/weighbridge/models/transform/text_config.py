"""The object of config.json that describes the language model: by the family's table `text_config`, `llm_config`,
`thinker_config.text_config` and so on, or the whole config."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from weighbridge.base.errors import UnsupportedError
from weighbridge.models.config.keys import value_at
from weighbridge.models.model import OpenModel


def text_path(model: OpenModel, keys: Collection[str]) -> tuple[str, ...]:
    """Returns the keys that lead to the object with any of `keys`; () if it is the whole config."""
    config = model.config
    try:
        architecture = model.family.architecture(config)
    except UnsupportedError:  # a model without a table
        architecture = None
    part = (architecture.part if architecture is not None else None) or "text_config"
    path = tuple(part.split("."))
    inner = value_at(config, path)
    if not isinstance(inner, Mapping):
        return ()
    return path if any(key in inner for key in keys) or not any(key in config for key in keys) else ()


def with_part(config: Mapping[str, Any], path: Sequence[str], part: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the config with another object at `path`."""
    if not path:
        return dict(part)
    first, *rest = path
    return {**config, first: with_part(config[first], rest, part)}
