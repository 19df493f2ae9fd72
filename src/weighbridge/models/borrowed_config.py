"""Weights without a config.json, such as a distributed checkpoint, read with the config of a model that they are
compared or merged with, or with one that is given for them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.models.model import OpenModel
from weighbridge.models.open import check_fit, describe_by


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


def with_given_config(
    models: Sequence[OpenModel], config: str | os.PathLike[str] | Mapping[str, Any] | None
) -> list[OpenModel]:
    """Returns the models, those without a config with `config`. Raises UsageError if all have one, MappingError if it
    is another model's."""
    if config is None:
        return [*models]
    result = [describe_by(m, config) if m.format != "gguf" and m.json("config.json") is None else m for m in models]
    bare = [model for model in result if model.borrowed is not None]
    if not bare:
        raise UsageError("each of the models has a config", hint="leave out --config")
    for model in bare:
        check_fit(model)
    return result


def read_alike(a: OpenModel, b: OpenModel) -> tuple[OpenModel, OpenModel]:
    """Returns both models. If their tables share a graph of llama.cpp, a GGUF is read by the other model's table: a
    ruGPT-3 XL in a GGUF is opened as a GPT-2."""
    return _read_as(a, b), _read_as(b, a)


def _read_as(model: OpenModel, other: OpenModel) -> OpenModel:
    if model.format != "gguf" or other.format == "gguf":
        return model
    with suppress(WeighbridgeError):
        if model.family.name != other.family.name and model.family.gguf == other.family.gguf:
            read = replace(model, whole=other.sizes.architecture)
            return read if has_table(read) else model
    return model


def has_table(model: OpenModel) -> bool:
    """Whether a family's table names all of a model's tensors."""
    with suppress(WeighbridgeError):
        return bool(model.resolved.canonical)
    return False
