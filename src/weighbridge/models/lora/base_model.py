"""Checks that an adapter was trained on the model that it is merged into, as far as its files show."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.limits import CONFIG_JSON
from weighbridge.models.arch.registry import family_of_gguf, family_of_hf
from weighbridge.models.jsonfile import decode
from weighbridge.models.lora.peft import CONFIG, LoraAdapter
from weighbridge.models.model import OpenModel


def check_base(model: OpenModel, source: OpenModel, adapter: LoraAdapter) -> tuple[str, ...]:
    """Returns a note on the adapter's base model. Raises UsageError if its family isn't the model's."""
    family = model.family.gguf if model.described else None
    stated: str | None = None
    with suppress(UnsupportedError, FormatError, OSError):  # the adapter's files don't show its family
        stated = (
            family_of_gguf(source.metadata) if source.format == "gguf" else family_of_hf(_base_config(source, adapter))
        ).gguf
    if stated is not None and stated != family:
        listed = model.config.get("architectures")
        architecture = str(listed[0]) if isinstance(listed, list) and listed else "an unknown one"
        raise UsageError(
            f"{source.place.path} is an adapter of a {stated} model, {model.place.path} is "
            + (f"a {family} model" if family else f"of another architecture, {architecture}"),
            hint="merge it into the model that it was trained on",
        )
    origin = f"trained on {adapter.base}" if adapter.base else "which doesn't name its base model"
    return (f"merged: the adapter {source.place.path}, {origin}",)


def _base_config(source: OpenModel, adapter: LoraAdapter) -> Mapping[str, Any]:
    """Returns the base model's config.json if it is a local folder, otherwise the class that PEFT recorded."""
    path = Path(adapter.base or "") / "config.json"
    if adapter.base and path.is_file() and path.stat().st_size <= CONFIG_JSON:
        parsed: dict[str, Any] = decode(path.read_bytes(), str(path), dict[str, Any])
        return parsed
    mapping = (source.json(CONFIG) or {}).get("auto_mapping")
    name = mapping.get("base_model_class") if isinstance(mapping, Mapping) else None
    return {"architectures": [name]} if isinstance(name, str) else {}
