"""The names of a family's tensors: generated for models of given sizes, recognised in a file, and in the order in which
the reference converter writes them.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

from weighbridge.base.errors import FormatError, UsageError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape
from weighbridge.models.arch.expand import (
    Expansion,
    Instance,
    Sizes,
    TensorSlot,
    applies,
    expand,
    first_name,
    index_counts,
    optional_slots,
    run,
)
from weighbridge.models.arch.tables.layers import optional_layers
from weighbridge.models.arch.tables.schema import FamilyTable, LayerSetEntry, SizeEntry
from weighbridge.models.arch.tables.spec import PREFIX, Architecture, Dialect, Role

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

    def metadata_names(self, dialect: str = "gguf") -> frozenset[str]:
        """The keys in which a dialect stores roles (see `kv_tensors.py`)."""
        templates = self.dialects[dialect].templates if dialect in self.dialects else ()
        return frozenset(t.name for t in templates if t.metadata)

    def names(self, dialect: str, sizes: Sizes) -> Mapping[str, Shape]:
        """Every tensor that the dialect may hold for this model, with its shape, layer by layer."""
        return {name: place.shape for name, place in self.expansion(dialect, sizes).places.items()}


# ---------------------------------------------------------------------- dialects


def detect_dialect(family: FamilyNames, names: Sequence[str] | Mapping[str, Any], sizes: Sizes) -> tuple[int, str, str]:
    """Returns the number of `names` that the best dialect and prefix have, and these two.

    The first of the table wins a tie, except between dialects with the same names and other shapes: then the shapes
    decide, if `names` maps to tensors or shapes.
    """
    kept = names if isinstance(names, Mapping) else frozenset(names)
    pairs = [(d.name, prefix) for d in family.dialects.values() for prefix in d.prefixes]
    pairs = [pair for pair in pairs if _has_first_name(family, *pair, kept, sizes)] or pairs
    options = [(count_matches(family, dialect, prefix, kept, sizes), dialect, prefix) for dialect, prefix in pairs]
    best = max(options, key=lambda option: option[0])
    tied = [option for option in options if option[0] == best[0]]
    reshapes = (any(d in row.shapes or row.transposed(d) for row in family.rows.values()) for _, d, _ in tied)
    if len(tied) == 1 or not isinstance(names, Mapping) or not any(reshapes):
        return best
    shapes: dict[str, Any] = {n: getattr(getattr(v, "spec", v), "shape", v) for n, v in names.items()}

    def misshapen(option: tuple[int, str, str]) -> int:
        _, dialect, _ = option
        places = family.expansion(dialect, sizes, best_prefix(family, dialect, shapes, sizes)).places
        return sum(name in places and tuple(shape) != places[name].shape for name, shape in shapes.items())

    return min(tied, key=misshapen)


def best_prefix(family: FamilyNames, dialect: str, names: Mapping[str, Any], sizes: Sizes) -> str:
    """The prefix of a dialect that most of the names have; the first one wins a tie."""
    prefixes = family.dialects[dialect].prefixes
    if len(prefixes) == 1:
        return prefixes[0]
    started = [p for p in prefixes if _has_first_name(family, dialect, p, names, sizes)] or prefixes
    if len(started) == 1:
        return started[0]
    return max(started, key=lambda prefix: count_matches(family, dialect, prefix, names, sizes))


def _has_first_name(family: FamilyNames, dialect: str, prefix: str, kept: Container[str], sizes: Sizes) -> bool:
    """Whether `kept` has the first name of any template: a quick test before counting all names."""
    counts = index_counts(family.index, sizes)
    names = [t.name for t in family.dialects[dialect].templates]
    names = [name for name in names if f"{{{PREFIX}}}" in name] or names
    return any(first_name(name, counts, prefix) in kept for name in names)


def count_matches(family: FamilyNames, dialect: str, prefix: str, kept: Container[str], sizes: Sizes) -> int:
    """The number of a dialect's names that `kept` has."""
    counts = index_counts(family.index, sizes)
    templates = [t for t in family.dialects[dialect].templates if applies(family.rows[t.roles[0]], sizes)]
    numbers = range(len(optional_layers(family.layer_sets, dict(sizes.layers))))
    mtp_names = [t.mtp_name.replace("{n}", str(n)) for t in templates if t.mtp_name for n in numbers]
    names = dict.fromkeys((*(t.name for t in templates), *mtp_names))  # roles of different layers may share a name
    return sum(name in kept for name in run(names, counts, prefix))


def optional_places(family: FamilyNames, dialect: str, sizes: Sizes, prefix: str) -> Iterator[TensorSlot]:
    """The places of a dialect's tensors that may be absent."""
    optional = optional_layers(family.layer_sets, dict(sizes.layers))
    return optional_slots(family.dialects[dialect], family.rows, family.role_indices, family.index, sizes, prefix,
                          optional)  # fmt: skip


# ---------------------------------------------------------------------- order
#
# conversion/base.py (llama.cpp b11549), `index_tensors` and `prepare_tensors`: shards in the order of their file names,
# in each the tensors sorted by name (`SafetensorsLocal` sorts, whatever the header's order); computed tensors
# (`rope_freqs`) come first. conversion/llama.py `modify_tensors`: a layer's experts are held back until the last of
# them is read, then written as gate, down, up (w1, w2, w3). So a tensor's position is that of the last tensor of its
# source. Tensors that a class writes itself (conversion/deepseek.py, kimi_k3.py `generate_extra_tensors`; of Kimi K3
# only packed experts) come first, layer by layer; those of `write_last` come last (conversion/llama.py
# `prepare_tensors`).


def as_read(files: Mapping[str, str], *, pickled: bool = False) -> list[str]:
    """A folder's tensor names (tensor -> file) in the order in which the reference reads them: file by file, those of
    safetensors files by name, those of pickles (`pickled`) as listed."""
    return sorted(files, key=lambda name: (files[name], "" if pickled else name))


def reference_order(
    family: FamilyNames, places: Mapping[str, TensorSlot], sizes: Sizes, source_order: Sequence[str] | None,
    dialect_and_prefix: tuple[str, str] | None = None, packed: Collection[str] = (),
) -> list[str]:  # fmt: skip
    """The names of `places` in the order in which the reference would write them.

    `source_order`: the source's tensors as read (see `as_read`), of this dialect and prefix; None stands for a single
    file under Hugging Face names. `packed`: roles that are stored as codes.
    """
    if source_order is None:
        source_order, dialect_and_prefix = sorted(family.expansion("hf", sizes).places), None
    dialect, prefix = dialect_and_prefix or detect_dialect(family, source_order, sizes)[1:]
    source = family.expansion(dialect, sizes, prefix).places
    gguf = family.dialects["gguf"]
    first = [group for group in gguf.write_groups if gguf.write_packed_first and packed and {*group} <= {*packed}]
    together = [group for group in gguf.write_groups if group not in first]
    group_of = {role: (n, place) for n, group in enumerate(together) for place, role in enumerate(group)}
    read_at: dict[Instance, int] = {}
    last_read: dict[tuple[int, tuple[int, ...]], int] = {}  # of a group in a layer
    for position, name in enumerate(source_order):
        for role, index in source[name].instances if name in source else ():
            if role in group_of:
                last_read[group_of[role][0], index[:1]] = position
            else:
                read_at[role, index] = position
    early = family.dialects[dialect].write_first
    apart = [*gguf.write_by_layer, *first]
    by_layer = {role: (n - len(apart), place) for n, group in enumerate(apart) for place, role in enumerate(group)}

    def key(name: str) -> tuple[int, int, int]:
        instances = places[name].instances
        role, index = instances[0]
        if role in gguf.write_last:
            return 2, 0, 0
        if role in by_layer:
            group, n = by_layer[role]
            return group, index[0], n
        if role in group_of:
            group, n = group_of[role]
            return role not in early, last_read.get((group, index[:1]), -1), n
        sources = ((with_, index) for name, index in instances for with_ in family.rows[name].read_with)
        return role not in early, max(read_at.get(instance, -1) for instance in sources), 0

    return sorted(places, key=key)  # stable: computed tensors, which have no source, come first


# ---------------------------------------------------------------------- how a file fits


_SHOWN = 5  # names in a message; the report has them all


@dataclass(frozen=True, slots=True)
class MappingReport:
    """How a file's tensors fit a family. Names are in the order of the table (`missing`) or of the file (the others).

    `misshapen`: name, expected shape, actual shape. `dropped`: constants without information. `apart`: tensors of other
    parts of the model, such as a vision tower.
    """

    missing: tuple[str, ...] = ()
    unmapped: tuple[str, ...] = ()
    misshapen: tuple[tuple[str, Shape, Shape], ...] = ()
    dropped: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not (self.missing or self.unmapped or self.misshapen)

    def __str__(self) -> str:
        shapes = [f"{name} is {list(found)}, expected {list(want)}" for name, want, found in self.misshapen]
        lists = (("missing", self.missing), ("without a rule", self.unmapped), ("of the wrong shape", shapes))
        return "; ".join(f"{len(names)} {word}: {some(names)}" for word, names in lists if names) or "all fit"


def some(names: Sequence[str]) -> str:
    """The first names, and the number of others."""
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


class MappingError(FormatError):
    """A file's tensors don't fit the family; `report` has every name."""

    def __init__(
        self, family: str, dialect: str, report: MappingReport, *, path: str | None = None, hint: str | None = None
    ) -> None:
        words = f"the tensors don't fit a {family} model under its {dialect} names: {report}"
        super().__init__(words, path=path, hint=hint)
        self.report, self.family, self.dialect = report, family, dialect
