"""A model seen through its family's table: the dialect of its tensor names, and each tensor's role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape, without_leading_ones
from weighbridge.models.arch.expand import Instance, Sizes
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.naming import MappingError, MappingReport

if TYPE_CHECKING:
    from weighbridge.models.arch.diagnose import SizeMismatch
    from weighbridge.tensors.nodes import LogicalTensor


@dataclass(frozen=True)
class ResolvedModel:
    """`tensors`: those that the table covers, under the names of `dialect`, which begin with `prefix`. `format` and
    `path` are the source's. Properties are computed once, on first access."""

    family: Family
    sizes: Sizes
    dialect: str
    prefix: str
    tensors: Mapping[str, LogicalTensor]
    format: str
    path: str

    @cached_property
    def _stored(self) -> dict[str, LogicalTensor]:
        """`tensors`, all built."""
        return self.tensors if isinstance(self.tensors, dict) else dict(self.tensors)

    @cached_property
    def _nodes(self) -> dict[str, LogicalTensor]:
        """`tensors` in the table's shapes: llama-quantize removes leading dimensions of 1."""
        if not self._squeezed:
            return self._stored
        from weighbridge.tensors.nodes import reshape

        return {**self._stored, **{n: reshape(self._stored[n], shape) for n, shape in self._squeezed.items()}}

    @property
    def _shapes(self) -> dict[str, Shape]:
        return {name: node.spec.shape for name, node in self._nodes.items()}

    @cached_property
    def _found(self) -> MappingReport:
        shapes = {name: node.spec.shape for name, node in self._stored.items()}
        return self.family.check(self.dialect, self.sizes, shapes, self.prefix)

    @cached_property
    def _squeezed(self) -> Mapping[str, Shape]:
        """Tensors of a GGUF that differ from the table by leading dimensions of 1 -> the table's shape."""
        if self.format != "gguf":
            return {}
        rows = self._found.misshapen
        return {name: want for name, want, found in rows if without_leading_ones(want) == without_leading_ones(found)}

    @cached_property
    def report(self) -> MappingReport:
        """How names and shapes match the family's table."""
        rows = tuple(row for row in self._found.misshapen if row[0] not in self._squeezed)
        return replace(self._found, misshapen=rows) if self._squeezed else self._found

    @cached_property
    def roles(self) -> Mapping[Instance, LogicalTensor]:
        """(role, index) -> tensor in the role's layout. Raises MappingError, with the file and advice, unless every
        tensor matches."""
        if self.report.unmapped:
            raise self._mapping_error()
        return self.known_roles

    @cached_property
    def known_roles(self) -> Mapping[Instance, LogicalTensor]:
        """`roles` for a model that may also have tensors that the table doesn't know."""
        if self.report.missing or self.report.misshapen:
            raise self._mapping_error()
        return self.family.load_checked(self.dialect, self.sizes, self._nodes, self.prefix)

    @cached_property
    def others(self) -> Mapping[str, LogicalTensor]:
        """The tensors without a role, under their stored names: those of other parts of the model (a vision tower, a
        classifier's head), buffers that are computed when a model is built, and unknown ones. The constants of a GGUF
        follow from its keys and are left out."""
        names = (*self.report.apart, *self.report.unmapped, *(() if self.format == "gguf" else self.report.dropped))
        return {name: self._nodes[name] for name in names}

    @property
    def mismatches(self) -> Sequence[SizeMismatch]:
        """The sizes that tensors contradict, if all names match and only shapes don't."""
        from weighbridge.models.arch.diagnose import mismatches

        report = self.report
        if report.missing or report.unmapped or not report.misshapen:
            return ()
        source = self.family, self.dialect, self.sizes, self._shapes, report
        sizes = mismatches(*source, gguf=self.format == "gguf")
        return tuple(sizes) if sizes.total() == len(report.misshapen) else ()

    def _mapping_error(self) -> MappingError:
        from weighbridge.models.arch.diagnose import advice

        source = self.family, self.dialect, self.sizes, self._shapes, self.report, self.path
        hint = advice(*source, gguf=self.format == "gguf")
        return MappingError(self.family.name, self.dialect, self.report, path=self.path, hint=hint)

    def save(self, dialect: str, **options: Any) -> dict[str, LogicalTensor]:
        """Returns the tensors in another dialect's names and layouts (`Family.save`)."""
        source = self.dialect, self.prefix
        return self.family.save(dialect, self.sizes, self.roles, source=source, **options)

    def save_all(self, dialect: str) -> dict[str, LogicalTensor]:
        """Returns `save`, and the tensors that the table doesn't name (`others`) under their stored names. Raises
        UnsupportedError if two would have the same name."""
        named = self.save(dialect)
        if clash := [name for name in self.others if name in named]:
            raise UnsupportedError(
                f"two tensors would be called {clash[0]} under {dialect} names: the file has a tensor of this name",
                hint="rename it first: wb rename --replace",
            )
        return {**named, **self.others}

    def unnamed(self, dialect: str) -> list[str]:
        """Returns the source's tensors that `save_all` omits: those that the dialect has no name for, and a GGUF's
        constants."""
        lost = self.family.unmapped_roles(dialect, self.sizes, self.roles)
        names = self.family.holding(self.dialect, self.sizes, self._nodes, lost)
        return [*names, *(name for name in self.report.dropped if name not in self.others)]

    @cached_property
    def canonical(self) -> Mapping[str, LogicalTensor]:
        """The tensors under names that are the same for every file format: `layers.0.attention.q.weight`. Those of a
        projector are llama.cpp's."""
        return self.save("canonical" if "canonical" in self.family.dialects else "gguf")

    def reads_no_row(self, role: str) -> bool:
        """Whether a role has the rows of a table of positions that no token uses."""
        row = self.family.rows[role]
        return row.kind == "position" and bool(row.zeros)

    @cached_property
    def unused(self) -> frozenset[str]:
        """The names in `canonical` of rows of a table of positions that no token uses."""
        if "canonical" not in self.family.dialects:  # of a projector, whose names here are those of a GGUF
            return frozenset()
        instances = [instance for instance in self.roles if self.reads_no_row(instance[0])]
        return frozenset(self.family.holding("canonical", self.sizes, self.canonical, instances))

    @cached_property
    def folds(self) -> bool:
        """Whether a GGUF may have other values than a folder that compute the same: the config's factors multiplied in,
        rows that the class normalizes at run time, products of tensors that a folder has separately."""
        vias = (via for row in self.family.rows.values() for via in row.layouts.values())
        return bool(self.family.folded or self.family.products) or any(via.row.normalizes for via in vias)

    @cached_property
    def as_in_gguf(self) -> Mapping[str, LogicalTensor]:
        """`canonical` with the changes that a GGUF makes to weights: the config's factors, rows of length 1,
        products."""
        plain = replace(self.sizes, facts={})
        gguf = self.family.load("gguf", plain, self.save("gguf"))
        return {**self.canonical, **self.family.save("canonical", plain, gguf)}
