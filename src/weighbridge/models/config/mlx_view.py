"""A config.json as mlx-lm reads it: only the keys of its class, with mlx-lm's defaults.

mlx-lm reads the keys that its `ModelArgs` for the model_type names and ignores the others. Given only
`rope_parameters`, its Llama reads no base and rotates by 10,000 (mlx_lm/models/base.py, `from_dict`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from msgspec import Struct, field

from weighbridge.base.imports.tables import read_table


class MlxFields(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of mlx_fields.toml, which documents the fields."""

    required: list[str] = field(default_factory=list)
    null: list[str] = field(default_factory=list)
    defaults: dict[str, Any] = field(default_factory=dict)
    part: str = ""
    by_type: bool = False

    def values(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of the class after it read `config`, without required keys that are missing."""
        assumed = {**dict.fromkeys(self.null), **self.defaults}
        stated = {key: config[key] for key in (*self.required, *assumed) if key in config}
        return {**assumed, **stated}


@cache
def fields() -> Mapping[str, MlxFields]:
    """Returns the fields that mlx-lm reads, by model_type, or by model_type and class."""
    from weighbridge.models.arch.tables import validate

    document = read_table(__file__, "mlx_fields.toml")
    return {name: validate.convert(row, MlxFields) for name, row in document.items()}


class MlxReading(NamedTuple):
    """The fields of a model's class in mlx-lm, the part of the config that sets them, and the part's key ("" if it is
    the whole config)."""

    fields: MlxFields
    part: Mapping[str, Any]
    name: str


def reading(config: Mapping[str, Any]) -> MlxReading | None:
    """Returns what mlx-lm reads from the config, or None if it has no class for the model_type."""
    kind, classes = str(config.get("model_type")), config.get("architectures")
    named = [f"{kind} {name}" for name in classes] if isinstance(classes, list) else []
    outer = next((row for name in (*named, kind) if (row := fields().get(name)) is not None), None)
    if outer is None:
        return None
    inner = config.get(outer.part) if outer.part else None
    if not isinstance(inner, Mapping):
        return MlxReading(outer, config, "")
    of_part = fields().get(str(inner.get("model_type")), outer) if outer.by_type else outer
    return MlxReading(of_part, inner, outer.part)


def as_mlx_reads(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the config as mlx-lm's class holds it, or None if mlx-lm has no class for the model_type."""
    read = reading(config)
    if read is None:
        return None
    inner = {**read.fields.values(read.part), **_identity(read.part)}
    return {**_identity(config), read.name: inner} if read.name else inner


def _identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the class and the kinds of its layers, which mlx-lm determines itself."""
    return {key: config[key] for key in ("model_type", "architectures", "layer_types") if key in config}


def mlx_keys(config: Mapping[str, Any]) -> frozenset[str]:
    """Returns the config keys that mlx-lm's class reads; none if mlx-lm has no class for it."""
    read = reading(config)
    fields = read.fields if read else MlxFields()
    return frozenset((*fields.required, *fields.null, *fields.defaults))
