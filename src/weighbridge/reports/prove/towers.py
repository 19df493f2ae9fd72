"""Checks that an mmproj file has a model's towers: llama.cpp's loader, and every key."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.base.words import plural
from weighbridge.containers.base import Severity
from weighbridge.models.config.mapping import config_to_gguf, facts_losses
from weighbridge.models.llamacpp.projectors import PROJECTORS
from weighbridge.models.llamacpp.towers import alike, candidate_of, is_mmproj
from weighbridge.models.loader_rules import check
from weighbridge.models.wrapped import without_mlx_names
from weighbridge.reports.prove.model import ProveCheck

if TYPE_CHECKING:
    from weighbridge.models.model import OpenModel

_KEYS: Final = "clip."
_SHOWN: Final = 60  # characters of a value


def towers_of_pair(a: OpenModel, b: OpenModel) -> tuple[OpenModel, OpenModel] | None:
    """The models to compare if one is an mmproj file: of a folder, its towers. Raises UsageError if the other is a
    language model's GGUF."""
    if not (is_mmproj(a) or is_mmproj(b)):
        return None
    for model in (a, b):
        if model.format == "gguf" and not is_mmproj(model):
            hint = "compare the folder with it, or with the mmproj file"
            raise UsageError(f"{model.place.path} is a language model's GGUF, the other an mmproj file", hint=hint)
    return alike(without_mlx_names(a)[0], without_mlx_names(b)[0])


def checks(a: OpenModel, b: OpenModel) -> list[ProveCheck]:
    """Whether llama.cpp loads the mmproj files, and whether their keys are equal, or those of a folder's config."""
    return [*(refusal for model in (a, b) if is_mmproj(model) for refusal in _loads(model)), _settings(a, b)]


def _loads(model: OpenModel) -> list[ProveCheck]:
    path = str(model.place.path)
    refused = [f for f in check(PROJECTORS, candidate_of(model), path) if f.severity is Severity.ERROR]
    return [ProveCheck("loads", "different", f"llama.cpp won't load {path}: {refused[0].message}")] if refused else []


def deviations(*models: OpenModel) -> list[str]:
    """The settings of folders that a GGUF doesn't have, or that llama.cpp computes otherwise."""
    folders = [model for model in models if not is_mmproj(model)]
    return [text for m in folders for text in facts_losses(m.family.effective(m.config), m.family)]


def _settings(a: OpenModel, b: OpenModel) -> ProveCheck:
    try:
        source, target = _keys_of(a), _keys_of(b)
        lost = deviations(a, b)
    except WeighbridgeError as error:
        return ProveCheck("settings", "not-checked", f"not compared: {error.message}")
    names = [key for key in {**source, **target} if source.get(key) != target.get(key)]
    details = [f"{key}: {_text(source.get(key))} and {_text(target.get(key))}" for key in names]
    if not details and not lost:
        return ProveCheck("settings", "same", f"{plural(len(source), 'key')} are equal")
    return ProveCheck("settings", "different", f"{len(details) + len(lost)} differ", (*details, *lost))


def _text(value: Any) -> str:
    text = "not there" if value is None else str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _keys_of(model: OpenModel) -> Mapping[str, Any]:
    """The keys of an mmproj file, or those that a folder's config determines."""
    if is_mmproj(model):
        return {key: _plain(value) for key, value in model.metadata.items() if key.startswith(_KEYS)}
    keys = config_to_gguf(model.config, model.family, file_type=0)
    return {key: _plain(kv.value) for key, kv in keys.items() if key.startswith(_KEYS)}


def _plain(value: Any) -> Any:
    """A value as a GGUF holds it: numbers in F32, lists as lists."""
    if isinstance(value, float):
        return struct.unpack("<f", struct.pack("<f", value))[0]
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
