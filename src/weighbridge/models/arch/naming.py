"""The names of a family's tensors in each dialect, for models of given sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from weighbridge.base.errors import UsageError
from weighbridge.base.spec import Shape
from weighbridge.models.arch.expand import Expansion, Sizes, expand
from weighbridge.models.arch.tables.layers import optional_layers
from weighbridge.models.arch.tables.schema import FamilyTable, LayerSetEntry, SizeEntry
from weighbridge.models.arch.tables.spec import Architecture, Dialect, Role

_EXPANSIONS = 8  # kept per family: those of a few models at a time


@dataclass(frozen=True, eq=False)
class FamilyNames:
    """A family's table and the names that it generates. `document` is the whole table, for sections read elsewhere."""

    name: str
    gguf: str
    rows: Mapping[str, Role]
    dialects: Mapping[str, Dialect]
    architectures: Mapping[str, Architecture]
    sizes: Mapping[str, SizeEntry]
    index: Mapping[str, str]
    layer_sets: Mapping[str, LayerSetEntry]
    document: FamilyTable
    _expansions: dict[tuple[str, str, Sizes], Expansion] = field(default_factory=dict, init=False, repr=False)

    def dialect(self, name: str) -> Dialect:
        """A dialect by name. UsageError if the family doesn't have it."""
        if name not in self.dialects:
            raise UsageError(f"the {self.name} family has no {name!r} names", hint=f"known: {', '.join(self.dialects)}")
        return self.dialects[name]

    @cached_property
    def role_indices(self) -> Mapping[str, tuple[str, ...]]:
        """The indices of each role in the order of the table: all that any dialect's name of it has."""
        indices: dict[str, set[str]] = {name: set(row.stacked) for name, row in self.rows.items()}
        for dialect in self.dialects.values():
            for template in dialect.templates:
                for role in template.roles:
                    indices[role].update(template.indices)
        return {name: tuple(i for i in self.index if i in named) for name, named in indices.items()}

    def expansion(self, dialect: str, sizes: Sizes, prefix: str | None = None) -> Expansion:
        """All names of a dialect for a model of these sizes; cached, since callers ask again and again."""
        column = self.dialect(dialect)
        if prefix is None:
            prefix = column.prefix_for(self.architectures[sizes.architecture].prefix, self.dialects["hf"].prefixes)
        key = (dialect, prefix, sizes)
        if key not in self._expansions:
            while len(self._expansions) >= _EXPANSIONS:
                self._expansions.pop(next(iter(self._expansions)))
            optional = optional_layers(self.layer_sets, dict(sizes.layers))
            self._expansions[key] = expand(column, self.rows, self.role_indices, self.index, sizes, prefix, optional)
        return self._expansions[key]

    def names(self, dialect: str, sizes: Sizes) -> Mapping[str, Shape]:
        """Every tensor that the dialect may hold for this model, with its shape, layer by layer."""
        return {name: place.shape for name, place in self.expansion(dialect, sizes).places.items()}
