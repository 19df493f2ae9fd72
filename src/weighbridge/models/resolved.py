"""A model seen through its family's table: whose names its tensors have, and which role each of them plays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weighbridge.base.spec import Shape
from weighbridge.models.arch.expand import Instance, Sizes
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.mapping_report import MappingError, MappingReport

if TYPE_CHECKING:
    from weighbridge.models.arch.diagnose import SizeMismatch
    from weighbridge.tensors.nodes import LogicalTensor


@dataclass(frozen=True)
class ResolvedModel:
    """`tensors`: those that the table covers, by the names of `dialect`, which begin with `prefix`. `format` and `path`
    are the source's. What follows is computed once, on first access."""

    family: Family
    sizes: Sizes
    dialect: str
    prefix: str
    tensors: Mapping[str, LogicalTensor]
    format: str
    path: str

    @cached_property
    def _nodes(self) -> dict[str, LogicalTensor]:
        """`tensors`, all of them built."""
        return self.tensors if isinstance(self.tensors, dict) else dict(self.tensors)

    @property
    def _shapes(self) -> dict[str, Shape]:
        return {name: node.spec.shape for name, node in self._nodes.items()}

    @cached_property
    def report(self) -> MappingReport:
        """How names and shapes fit the family's table."""
        return self.family.check(self.dialect, self.sizes, self._shapes, self.prefix)

    @cached_property
    def roles(self) -> Mapping[Instance, LogicalTensor]:
        """(role, index) -> tensor in the role's own layout. MappingError, with the file and advice, unless all fit."""
        if not self.report.ok:
            raise self._mapping_error()
        return self.family.load_checked(self.dialect, self.sizes, self._nodes, self.prefix)

    @property
    def mismatches(self) -> Sequence[SizeMismatch]:
        """The sizes that tensors contradict, where all names fit and only shapes don't."""
        from weighbridge.models.arch.diagnose import mismatches

        report = self.report
        if report.missing or report.unmapped or not report.misshapen:
            return ()
        how = self.family, self.dialect, self.sizes, self._shapes, report
        found = mismatches(*how, gguf=self.format == "gguf")
        return tuple(found) if found.total() == len(report.misshapen) else ()

    def _mapping_error(self) -> MappingError:
        from weighbridge.models.arch.diagnose import advice

        how = self.family, self.dialect, self.sizes, self._shapes, self.report, self.path
        hint = advice(*how, gguf=self.format == "gguf")
        return MappingError(self.family.name, self.dialect, self.report, path=self.path, hint=hint)

    def save(self, dialect: str, **options: Any) -> dict[str, LogicalTensor]:
        """The tensors under the names, and in the layouts, of another dialect (`Family.save`)."""
        source = self.dialect, self.prefix
        return self.family.save(dialect, self.sizes, self.roles, source=source, **options)

    @cached_property
    def canonical(self) -> Mapping[str, LogicalTensor]:
        """The tensors by names that are the same for every file format: `layers.0.attention.q.weight`."""
        return self.save("canonical")

    @cached_property
    def normalized(self) -> bool:
        """Whether a GGUF may have rows at length 1 that a folder has at others, or a product of what that has apart."""
        vias = (via for row in self.family.rows.values() for via in row.layouts.values())
        return bool(self.family.products) or any(via.normalizes for via in vias)

    @cached_property
    def as_in_gguf(self) -> Mapping[str, LogicalTensor]:
        """`canonical`, with what a GGUF keeps inside its weights: the config's factors, rows at length 1,
        products."""
        plain = replace(self.sizes, facts={})
        gguf = self.family.load("gguf", plain, self.save("gguf"))
        return {**self.canonical, **self.family.save("canonical", plain, gguf)}
