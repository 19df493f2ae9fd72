"""The object of a model's config.json that describes the language model."""

from __future__ import annotations

from collections.abc import Collection

from weighbridge.base.errors import UnsupportedError
from weighbridge.models.arch.config import path_of_text
from weighbridge.models.model import OpenModel


def text_path(model: OpenModel, keys: Collection[str] = ()) -> tuple[str, ...]:
    """Returns the keys that lead to the object with any of `keys`; () if it is the whole config."""
    try:
        architecture = model.family.architecture(model.config)
    except UnsupportedError:  # a model without a table
        architecture = None
    return path_of_text(model.config, architecture, keys)
