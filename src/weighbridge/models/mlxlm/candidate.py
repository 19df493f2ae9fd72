"""A folder as mlx-lm's loader sees it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any, Final

from msgspec import Struct, convert

from weighbridge.base.errors import WeighbridgeError
from weighbridge.base.imports.tables import read_table
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape
from weighbridge.models.arch.expand import Sizes
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.naming import MappingReport
from weighbridge.models.arch.registry import family_of_hf, with_mtp_layers
from weighbridge.models.config.mlx_view import reading

_PACKING: Final = "quantization_config"


class ClassTable(Struct, frozen=True, forbid_unknown_fields=True):
    """classes.toml documents the fields."""

    set: Mapping[str, list[str]]
    set_for_layers: Mapping[str, Mapping[str, list[str]]]
    text: Mapping[str, list[str]]
    instead: Mapping[str, Mapping[str, str]]
    square: list[str]
    only: Mapping[str, Mapping[str, str]]
    scaling: Mapping[str, list[str]]
    untied: list[str]
    tied_fails: list[str]
    other_names: Mapping[str, list[str]]
    always: Mapping[str, list[str]]
    every_layer: Mapping[str, list[str]]
    unrenamed: list[str]
    unrenamed_of: Mapping[str, list[str]]


@cache
def table() -> ClassTable:
    """Returns the parsed classes.toml."""
    return convert(read_table(__file__, "classes.toml"), ClassTable)


@dataclass(frozen=True)
class MlxCandidate:
    """`config`: config.json. `shapes`: of the stored tensors; packed ones count 32-bit words."""

    config: Mapping[str, Any]
    shapes: Mapping[str, Shape]

    @property
    def model_type(self) -> str:
        return str(self.config.get("model_type"))

    @property
    def tied(self) -> bool | None:
        """Whether the embeddings are also the output, as mlx-lm's class reads it; None if it reads no such key."""
        read = reading(self.config)
        stated = read.fields.values(read.part).get("tie_word_embeddings") if read else None
        return None if stated is None else bool(stated)

    @cached_property
    def modules(self) -> list[str]:
        """The quantized modules."""
        names = (name.removesuffix(".scales") for name in self.shapes if name.endswith(".scales"))
        return [module for module in names if f"{module}.weight" in self.shapes]

    @property
    def stated(self) -> dict[str, tuple[int, int]]:
        """Quantized modules with individual settings: group size and bits. mlx-lm infers those of the rest."""
        settings = self.config.get("quantization") or {}
        listed = {module: settings.get(module) for module in self.modules}
        return {m: (q["group_size"], q["bits"]) for m, q in listed.items() if isinstance(q, Mapping)}

    @cached_property
    def family(self) -> Family | None:
        try:
            return family_of_hf(self.config)
        except WeighbridgeError:
            return None

    @property
    def part(self) -> Mapping[str, Any]:
        """The object of the config that mlx-lm's class reads."""
        read = reading(self.config)
        return read.part if read else {}

    @property
    def named(self) -> bool:
        """Whether the family has mlx-lm's names."""
        return self.family is not None and "mlx" in self.family.dialects

    @property
    def other_width(self) -> int:
        """The elements of a head by hidden size and heads if `head_dim` differs, otherwise 0."""
        width, heads, stated = (self.part.get(key) for key in ("hidden_size", "num_attention_heads", "head_dim"))
        if not isinstance(width, int) or not isinstance(heads, int) or heads < 1 or stated is None:
            return 0
        return width // heads if width // heads != stated else 0

    @cached_property
    def _resolved(self) -> tuple[Family, Sizes, str, str] | None:
        """Family, sizes, dialect and prefix of the names; None if Weighbridge doesn't know how mlx-lm reads them."""
        family, text = self.family, self.config.get("text_config")
        parts = (self.config, text if isinstance(text, Mapping) else {})  # mlx_lm.utils.load_model
        if family is None or not self.named or any("quant_method" in (part.get(_PACKING) or {}) for part in parts):
            return None
        try:
            sizes = family.sizes_from_hf(with_mtp_layers(self.config, self.shapes))
            dialect, prefix = family.dialect_and_prefix(self.shapes, sizes)
        except WeighbridgeError:
            return None
        if dialect != "mlx":  # mlx-lm must rename the tensors of this dialect, and have all of them
            if dialect in (*table().unrenamed, *table().unrenamed_of.get(self.model_type, ())):
                return None
            places = family.expansion(dialect, sizes, prefix).places
            holders = {instance: name for name in self.shapes if name in places for instance in places[name].instances}
            if family.unmapped_roles("mlx", sizes, holders):
                return None
        return family, sizes, dialect, prefix

    @cached_property
    def fit(self) -> MappingReport | None:
        """How the tensors fit the family's table; None if unknown."""
        if self._resolved is None:
            return None
        family, sizes, dialect, prefix = self._resolved
        places = family.expansion(dialect, sizes, prefix).places
        packed = {f"{module}.{part}" for module in self.modules for part in ("weight", "scales", "biases")}
        shapes = {name: shape for name, shape in self.shapes.items() if name not in packed}
        for module in self.modules:  # with the columns that the config requires, if words and groups divide evenly
            name, stored = f"{module}.weight", self.shapes[f"{module}.weight"]
            place = places.get(name)
            columns = place.shape[-1] if place is not None and place.shape else 0
            whole = columns and not (32 * stored[-1] % columns or columns % self.shapes[f"{module}.scales"][-1])
            shapes[name] = (*stored[:-1], columns) if whole else stored
        return family.check(dialect, sizes, shapes, prefix)

    @property
    def missing(self) -> list[str]:
        names = list(self.fit.missing) if self.fit else []
        untied = self.model_type in table().untied or (self.tied is False and self.model_type not in table().tied_fails)
        if untied and self._resolved is not None:
            family, sizes, dialect, prefix = self._resolved
            places = family.expansion(dialect, sizes, prefix).places
            outputs = (name for name, place in places.items() if any(family.rows[role].tied for role in place.roles))
            names += [name for name in outputs if name not in {*names, *self.shapes}]
        if self.fit is None:
            return names
        # Tensors that mlx-lm's class has whatever the config sets.
        always = [*table().always.get(self.model_type, ())]
        if isinstance(count := self.part.get("num_hidden_layers"), int):
            each = table().every_layer.get(self.model_type, ())
            always += [f"model.layers.{i}.{end}" for i in range(count) for end in each]
        return [*names, *(name for name in always if name not in {*names, *self.shapes})]

    @property
    def unknown(self) -> list[str]:
        ends = tuple(table().other_names.get(self.model_type, ()))
        foreign = [name for name in self.shapes if any(end in name for end in ends)]
        return [*(self.fit.unmapped if self.fit else ()), *foreign]

    @property
    def misshapen(self) -> tuple[tuple[str, Shape, Shape], ...]:
        return self.fit.misshapen if self.fit else ()
