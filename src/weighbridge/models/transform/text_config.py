"""The object of a model's config.json that describes the language model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from weighbridge.base.errors import UnsupportedError, WeighbridgeError
from weighbridge.models.arch.config import TEXT_PARTS, path_of_text, value_at

if TYPE_CHECKING:
    from weighbridge.models.model import OpenModel


def text_path(model: OpenModel, keys: Collection[str] = ()) -> tuple[str, ...]:
    """Returns the keys that lead to the object with any of `keys`; () if it is the whole config."""
    try:
        architecture = model.family.architecture(model.config)
    except UnsupportedError:  # a model without a table
        architecture = None
    return path_of_text(model.config, architecture, keys)


def text_of_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the object that describes the language model, by the table of the config's class, or under a usual key if
    no table has the class; {} if the config has no such object."""
    from weighbridge.models.arch.registry import family_of_hf  # late: reports of files without a config need no table

    architecture = None
    with suppress(WeighbridgeError):
        architecture = family_of_hf(config).architecture(config)
    if architecture is not None:
        path = path_of_text(config, architecture)
        return value_at(config, path) if path else {}
    usual = (config.get(key) for key in TEXT_PARTS)
    return next((part for part in usual if isinstance(part, Mapping)), {})
