"""A config.json as mlx-lm reads it: only the keys of its class, with its own defaults.

mlx-lm takes from a config what its `ModelArgs` of the model_type names and ignores the rest without a word: of a
`rope_parameters` alone its Llama reads nothing and rotates by 10,000 (mlx_lm/models/base.py, `from_dict`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from msgspec import Struct, field


class MlxFields(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of mlx_fields.toml, which says what the fields are."""

    required: list[str] = field(default_factory=list)
    null: list[str] = field(default_factory=list)
    defaults: dict[str, Any] = field(default_factory=dict)
    part: str = ""

    def values(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """What the class holds after reading `config`; a required key that is missing is left out."""
        assumed = {**dict.fromkeys(self.null), **self.defaults}
        stated = {key: config[key] for key in (*self.required, *assumed) if key in config}
        return {**assumed, **stated}


@cache
def fields() -> Mapping[str, MlxFields]:
    """model_type -> what mlx-lm reads."""
    import tomllib

    from weighbridge.models.arch.tables import validate

    document = tomllib.loads((resources.files(__package__ or "") / "mlx_fields.toml").read_text(encoding="utf-8"))
    return {name: validate.convert(row, MlxFields) for name, row in document.items()}


class MlxReading(NamedTuple):
    """The fields of a model's class in mlx-lm, and the part of the config that has them."""

    fields: MlxFields
    part: Mapping[str, Any]
    name: str  # the key of the part; "" where all of the config is it


def reading(config: Mapping[str, Any]) -> MlxReading | None:
    """What mlx-lm takes from the config; None where it has no class of its model_type."""
    outer = fields().get(str(config.get("model_type")))
    if outer is None:
        return None
    inner = config.get(outer.part) if outer.part else None
    if not isinstance(inner, Mapping):
        return MlxReading(outer, config, "")
    return MlxReading(fields().get(str(inner.get("model_type")), outer), inner, outer.part)


def as_mlx_reads(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The config as mlx-lm's class holds it; None where mlx-lm has no class of its model_type."""
    found = reading(config)
    if found is None:
        return None
    own = {**found.fields.values(found.part), **_kept(found.part)}
    return {**_kept(config), found.name: own} if found.name else own


def _kept(config: Mapping[str, Any]) -> dict[str, Any]:
    """The class, and the kinds of its layers, which mlx-lm finds out by itself."""
    return {key: config[key] for key in ("model_type", "architectures", "layer_types") if key in config}


def mlx_keys(config: Mapping[str, Any]) -> frozenset[str]:
    """The keys that mlx-lm's class reads of a config, or of its part; none where it has no class."""
    found = reading(config)
    own = found.fields if found else MlxFields()
    return frozenset((*own.required, *own.null, *own.defaults))
