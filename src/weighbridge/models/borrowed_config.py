"""Weights without a config.json, such as a distributed checkpoint, read with the config of a model that they are
compared or merged with."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from weighbridge.base.errors import WeighbridgeError
from weighbridge.models.model import OpenModel
from weighbridge.models.open import describe_by


def with_borrowed_configs(models: Sequence[OpenModel]) -> tuple[list[OpenModel], list[str]]:
    """Returns the models and notes. A model without a config.json gets that of the first model whose table names all
    of its tensors."""
    bare = [model.format != "gguf" and not model.config for model in models]
    lenders = [model for model, lacks in zip(models, bare, strict=True) if not lacks and has_table(model)]
    result, notes = [], []
    for model, lacks in zip(models, bare, strict=True):
        for lender in lenders if lacks else ():
            read = describe_by(model, lender.config)
            if has_table(read):
                notes.append(f"{model.place.path} has no config.json: read with that of {lender.place.path}")
                model = read
                break
        result.append(model)
    return result, notes


def has_table(model: OpenModel) -> bool:
    """Whether a family's table names all of a model's tensors."""
    with suppress(WeighbridgeError):
        return bool(model.resolved.canonical)
    return False
