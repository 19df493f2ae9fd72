"""One family of models: which logical tensors it has, what each dialect calls them, and how they lie there.

A family is one TOML, one row a role (logical tensor), one column a dialect. The rules:

 1. Names are generated from the sizes in the config, expanded and looked up: missing and unmapped are exact lists.
 2. An index that a name omits is stacked, in index order: HF says `experts.{e}.w1`, GGUF says `ffn_gate_exps`.
 3. `fuse` joins roles in a stated order into one tensor.
 4. `via` names a two-way layout change (tensors/layouts.py) from the role's own layout to the dialect's.
 5. Presence decides: a group is there whole or not at all; part of a group, and what is left over, are errors.
 6. `tied` roles may be absent, `drop` names carry nothing, `make` roles follow from the config.
 7. Shapes are symbols and are checked against every header, on the physical tensor.

What type a tensor is stored as is no matter of a family (conversion/options.py decides by a role's `kind`). Nothing
here loads numpy but `load` and `save`, which build nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.limits import LAYERS
from weighbridge.base.spec import Shape
from weighbridge.models.arch.config import effective
from weighbridge.models.arch.derived import filled_in, made
from weighbridge.models.arch.dialects import best_prefix, detect_dialect
from weighbridge.models.arch.expand import (
    Expansion,
    Instance,
    ListedSizes,
    Sizes,
    SizeValues,
    TensorSlot,
    absent,
    applies,
    arguments,
    expand,
    shape_of,
    started_groups,
)
from weighbridge.models.arch.fuse import LayoutMap, Roles, StackMember, check_unpacked, cut, join, join_stack, layout_of
from weighbridge.models.arch.gguf_view import ArchView
from weighbridge.models.arch.mapping_report import MappingError, MappingReport
from weighbridge.models.arch.tables.expression import evaluate
from weighbridge.models.arch.tables.layers import LayerSet, layer_sets, optional_layers
from weighbridge.models.arch.tables.schema import FamilyTable
from weighbridge.models.arch.tables.spec import Architecture, Dialect, Role, Size
from weighbridge.models.arch.tables.values import integer, sizes_by_layer
from weighbridge.models.arch.write_order import reference_order
from weighbridge.models.jsonfile import numbers_as_text

if TYPE_CHECKING:
    from weighbridge.tensors.layouts import TensorLayout
    from weighbridge.tensors.nodes import LogicalTensor

__all__ = [
    "Architecture",
    "Expansion",
    "Family",
    "Instance",
    "MappingError",
    "MappingReport",
    "Role",
    "Sizes",
    "TensorSlot",
]


# What classes compute when they are made and older ones saved: the frequencies of rotation, its caches, masks.
_COMPUTED: Final = (
    "rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached", ".attention.masked_bias",
    ".attn.masked_bias",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Family:
    """One architecture TOML, parsed and checked."""

    name: str
    gguf: str
    rows: Mapping[str, Role]
    dialects: Mapping[str, Dialect]
    architectures: Mapping[str, Architecture]
    sizes: Mapping[str, Size]
    index: Mapping[str, str]
    layer_sets: Mapping[str, LayerSet]
    document: FamilyTable  # the whole table, for sections that others read
    _expansions: dict[tuple[str, str, Sizes], Expansion] = field(default_factory=dict, init=False, repr=False)

    # ------------------------------------------------------------------ sizes

    def architecture(self, config: Mapping[str, Any]) -> Architecture | None:
        """The class that a config belongs to: by `architectures`, else by `model_type`, and by what its layers are."""
        named = self._named(config)
        return named if named is not None and self._fits(named, config) else None

    def _fits(self, architecture: Architecture, config: Mapping[str, Any]) -> bool:
        """Whether the layers are such as the class has them here. What a config doesn't say is no reason against it."""
        if not self._holds(architecture, config):
            return False
        if architecture.requires is None and architecture.forbids is None:
            return True
        try:
            sets = self._facts(architecture, config)["layer_sets"]
        except FormatError:
            return True
        return bool(architecture.requires is None or sets[architecture.requires]) and not sets.get(
            architecture.forbids or ""
        )

    def _holds(self, architecture: Architecture, config: Mapping[str, Any]) -> bool:
        """Whether the part that a class of several parts (`part_type`) has for this one is a class of the family."""
        if architecture.part_type is None:
            return True
        part = architecture.own_part(config) or {}
        own = [a for a in self.architectures.values() if a.part is None]
        listed = part.get("architectures")
        if isinstance(listed, list) and listed:
            return any(listed[0] in (a.name, *a.aliases) for a in own)
        stated = part.get("model_type", architecture.part_type)
        return stated in architecture.part_aliases or any(stated == a.model_type for a in own)

    def _named(self, config: Mapping[str, Any]) -> Architecture | None:
        listed = config.get("architectures") or ()
        known = {alias: a for a in self.architectures.values() for alias in (a.name, *a.aliases)}
        if isinstance(listed, Sequence) and not isinstance(listed, str) and listed:
            return known.get(listed[0]) if isinstance(listed[0], str) else None
        same = [a for a in self.architectures.values() if a.model_type == config.get("model_type")]
        return same[-1] if same else None  # the last is the plain one

    @property
    def plain_defaults(self) -> Mapping[str, Any]:
        """The defaults of the family's plain class, which is the last one."""
        return list(self.architectures.values())[-1].defaults

    def effective(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The config with its class's defaults filled in (see config.py)."""
        return self._facts(self._known(config), config)

    def alone(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The config of the family's model alone, where the config's class has it as one of several parts
        (`part_type`); the config itself elsewhere."""
        architecture = self._known(config)
        if architecture.part_type is None:
            return config
        part = architecture.own_part(config) or {k: v for k, v in config.items() if not k.endswith("_config")}
        own = self._class_of_part(architecture, config)
        tokens = {key: value for key, value in config.items() if key.endswith("_token_id")}
        dtype = {key: config[key] for key in ("dtype", "torch_dtype") if key in config}
        return {**tokens, **dtype, **part, "architectures": [own.name], "model_type": own.model_type}

    def _class_of_part(self, architecture: Architecture, config: Mapping[str, Any]) -> Architecture:
        """The family's class that a part's config is of."""
        part = architecture.own_part(config) or {}
        stated = part.get("model_type", architecture.part_type)
        same = (a for a in self.architectures.values() if a.part is None and a.model_type == stated)
        return next(same, list(self.architectures.values())[-1])

    def _facts(self, architecture: Architecture, config: Mapping[str, Any]) -> dict[str, Any]:
        whole = architecture.merged(config)
        if odd := numbers_as_text(whole):
            whole = {**whole, **odd}
        if architecture.part:  # the class of the part
            known, listed = self.architectures.values(), whole.get("architectures")
            if architecture.part_type and "model_type" not in (architecture.own_part(config) or {}):
                whole = {**whole, "model_type": architecture.part_type}
            same = [a for a in known if a.model_type == whole.get("model_type")]
            same = same or [a for a in known if isinstance(listed, list) and a.name in listed]  # Kimi says kimi_k2
            architecture = (*same, architecture)[0]
        facts = effective(
            whole, architecture.defaults, architecture.null, architecture.full_layers, self.document.config_rules
        )
        facts.setdefault("model_type", architecture.model_type)
        count = self._layer_count("hf", facts) if self.layer_sets else 0
        return {**facts, "layer_count": count, "layer_sets": layer_sets(self.layer_sets, "hf", facts, count)}

    def _layer_count(self, side: str, values: Mapping[str, Any]) -> int:
        """How far the first index of names runs."""
        symbol = next(iter(self.index.values()))
        count = self._first(getattr(self.sizes[symbol], side), values, symbol, self.sizes[symbol])
        return integer(count or 0, "the number of layers", most=LAYERS)

    def _known(self, config: Mapping[str, Any]) -> Architecture:
        if (architecture := self.architecture(config)) is None:
            raise UsageError(f"the config's class isn't one of the {self.name} family")
        return architecture

    def sizes_from_hf(self, config: Mapping[str, Any]) -> Sizes:
        """The sizes that a config.json states. FormatError for one that is missing or no size."""
        facts = self.effective(config)
        return Sizes(*self._values("hf", facts), self._known(config).name, facts, tuple(facts["layer_sets"].items()))

    def sizes_from_gguf(self, metadata: Mapping[str, Any], names: Sequence[str] | Mapping[str, Any] = ()) -> Sizes:
        """The sizes that a GGUF's key-values state. `names`: its tensors, which may tell the class."""
        view = ArchView(metadata, self.gguf, names)
        if self.layer_sets:
            view.layer_sets = layer_sets(self.layer_sets, "gguf", view, self._layer_count("gguf", view))
        architecture = self.architecture_of_gguf(metadata, names).name
        return Sizes(*self._values("gguf", view), architecture, layers=tuple(view.layer_sets.items()))

    def _values(self, side: str, facts: Mapping[str, Any]) -> tuple[SizeValues, ListedSizes]:
        """The sizes that a config or a GGUF states, and those that vary by layer."""
        varying = {s: getattr(size, side) for s, size in self.sizes.items() if size.by_layer}
        count = self._layer_count(side, facts) if varying else 0
        listed = {s: sizes_by_layer(keys, facts, count) for s, keys in varying.items()}
        plain = {s: self._first(getattr(z, side), facts, s, z) for s, z in self.sizes.items() if s not in listed}
        every = {s: max(listed[s]) if s in listed else plain[s] for s in self.sizes}
        return tuple((s, n) for s, n in every.items() if n), tuple(listed.items())

    def _first(self, sources: Sequence[str], values: Mapping[str, Any], symbol: str, size: Size) -> int | None:
        for source in sources:
            n = values.get(source) if isinstance(values.get(source), bool) else evaluate(source, values)
            if n:
                return integer(int(n), source, 1)
            if n is not None and size.optional:
                return None
        if size.optional:
            return None
        declared = next(iter(sources), symbol)
        raise FormatError(f"the {self.name} family needs this size", field=declared, expected="a positive integer",
                          found=values.get(declared.strip("#")))  # fmt: skip

    def architecture_of_gguf(
        self, metadata: Mapping[str, Any], names: Sequence[str] | Mapping[str, Any] = ()
    ) -> Architecture:
        """The class of transformers that a GGUF came from, as far as it shows: GGUF doesn't name it."""
        for a in self.architectures.values():
            if a.gguf is not None and (not a.gguf or self._shows(a, metadata, names)):
                return a
        raise UsageError(f"no class of the {self.name} family is open to any GGUF")

    def shows(self, metadata: Mapping[str, Any], names: Sequence[str] | Mapping[str, Any]) -> bool:
        """Whether a GGUF has a mark of one of the family's classes."""
        return any(a.gguf and self._shows(a, metadata, names) for a in self.architectures.values())

    def _shows(self, a: Architecture, metadata: Mapping[str, Any], names: Sequence[str] | Mapping[str, Any]) -> bool:
        view = ArchView(metadata, self.gguf, names)
        return any(view.shows(mark) for mark in a.gguf or ())

    # ------------------------------------------------------------------ names

    @cached_property
    def role_indices(self) -> Mapping[str, tuple[str, ...]]:
        """The indices of each role: all that any dialect's name of it has, in the order of the table."""
        used: dict[str, set[str]] = {name: set(row.stacked) for name, row in self.rows.items()}
        for dialect in self.dialects.values():
            for template in dialect.templates:
                for role in template.roles:
                    used[role].update(template.indices)
        return {name: tuple(i for i in self.index if i in found) for name, found in used.items()}

    def expansion(self, dialect: str, sizes: Sizes, prefix: str | None = None) -> Expansion:
        """All names of a dialect for a model of these sizes (kept: it is asked for again and again)."""
        column = self._dialect(dialect)
        if prefix is None:
            prefix = column.prefix_for(self.architectures[sizes.architecture].prefix, self.dialects["hf"].prefixes)
        key = (dialect, prefix, sizes)
        if key not in self._expansions:
            while len(self._expansions) >= 8:  # a few models at a time, not all there ever were
                self._expansions.pop(next(iter(self._expansions)))
            named = self.rows, self.role_indices, self.index
            self._expansions[key] = expand(column, *named, sizes, prefix, self._optional_layers(sizes))
        return self._expansions[key]

    def _optional_layers(self, sizes: Sizes) -> frozenset[int]:
        """The layers whose tensors may all be absent."""
        return optional_layers(self.layer_sets, dict(sizes.layers))

    def _dialect(self, name: str) -> Dialect:
        if name not in self.dialects:
            raise UsageError(f"the {self.name} family has no {name!r} names", hint=f"known: {', '.join(self.dialects)}")
        return self.dialects[name]

    def names(self, dialect: str, sizes: Sizes) -> Mapping[str, Shape]:
        """Every tensor that the dialect may hold for this model, with its shape, layer by layer."""
        return {name: place.shape for name, place in self.expansion(dialect, sizes).places.items()}

    def dialect_of(self, names: Sequence[str] | Mapping[str, Any], sizes: Sizes) -> str:
        """The dialect that the names are in. UnsupportedError where they are in none."""
        return self.dialect_and_prefix(names, sizes)[0]

    def dialect_and_prefix(self, names: Sequence[str] | Mapping[str, Any], sizes: Sizes) -> tuple[str, str]:
        """The dialect and prefix that the names are in. UnsupportedError where they are in none."""
        hits, dialect, prefix = detect_dialect(self, names, sizes)
        if not hits:
            raise UnsupportedError(f"none of the tensors has a name of the {self.name} family")
        return dialect, prefix

    def prefix_of(self, dialect: str, names: Mapping[str, Any], sizes: Sizes) -> str:
        return best_prefix(self, self._dialect(dialect).name, names, sizes)

    def check(
        self, dialect: str, sizes: Sizes, shapes: Mapping[str, Shape], prefix: str | None = None
    ) -> MappingReport:
        """How tensors of these names and (logical) shapes fit. Needs no data and no numpy."""
        prefix = self.prefix_of(dialect, shapes, sizes) if prefix is None else prefix
        expansion = self.expansion(dialect, sizes, prefix)
        places = expansion.places
        needed = started_groups(places[name] for name in shapes if name in places)
        others, apart = [n for n in shapes if n not in places], self._ignored(sizes)
        idle = {n for n in others if n in expansion.dropped or (dialect != "gguf" and n.endswith(_COMPUTED))}
        return MappingReport(
            tuple(n for n, p in places.items() if n not in shapes and (p.need is None or p.need in needed)),
            tuple(n for n in others if n not in idle and not n.startswith(apart)),
            tuple((n, places[n].shape, s) for n, s in shapes.items() if n in places and tuple(s) != places[n].shape),
            tuple(n for n in others if n in idle),
            tuple(n for n in others if n.startswith(apart)),
        )

    def _ignored(self, sizes: Sizes) -> tuple[str, ...]:
        """How names of other parts begin; those of layers behind the last, as many as the config says, are one each."""
        symbol = next(iter(self.index.values()))
        last = sizes.get(symbol) or 0
        further = integer(sizes.facts.get("num_nextn_predict_layers") or 1, "num_nextn_predict_layers")
        behind = range(last, last + min(further, _FURTHER))
        each = (
            dict.fromkeys(start.replace(f"{{{symbol}}}", str(n)) for n in behind)
            for start in self.document.ignored_prefixes
        )
        return tuple(start for starts in each for start in starts)

    def parted(self, names: Iterable[str], sizes: Sizes) -> dict[str, int]:
        """How many tensors belong to other parts of the model, by how their names begin."""
        apart = self._ignored(sizes)
        return dict(Counter(start for name in names for start in apart if name.startswith(start)))

    def rows_of(self, dialect: str, sizes: Sizes, tensors: Mapping[str, Any]) -> dict[str, Role]:
        """The (first) role of every physical tensor that the dialect may hold, by the names that `tensors` have."""
        places = self.expansion(dialect, sizes, self.prefix_of(dialect, tensors, sizes)).places
        return {name: self.rows[place.roles[0]] for name, place in places.items()}

    def unmapped_roles(self, dialect: str, sizes: Sizes, roles: Mapping[Instance, Any]) -> list[Instance]:
        """Roles that the dialect can't hold, though they are weights: what a plan must list as losses."""
        stored = {r for t in self._dialect(dialect).templates for r in t.roles if applies(self.rows[r], sizes)}
        gone, layer = absent(self._dialect(dialect), sizes), next(iter(self.index))
        layered = {role for role, indices in self.role_indices.items() if indices[:1] == (layer,)} if gone else ()
        return [
            (role, index)
            for role, index in roles
            if (role not in stored or (role in layered and index[0] in gone)) and not self.rows[role].made
        ]

    def holding(
        self, dialect: str, sizes: Sizes, tensors: Mapping[str, Any], wanted: Collection[Instance]
    ) -> list[str]:
        """The names of the tensors that hold any of `wanted`."""
        if not wanted:
            return []
        places = self.expansion(dialect, sizes, self.prefix_of(dialect, tensors, sizes)).places
        return [n for n, p in places.items() if n in tensors and any(i in wanted for i in p.instances)]

    def holding_blocks(self, sizes: Sizes, roles: Mapping[Instance, LogicalTensor]) -> str | None:
        """The dialect that holds the codes of these roles' blocks as they are; None where there is none."""
        for dialect in self.dialects.values():
            if dialect.block_dtype is not None:
                kept = {t for t in dialect.templates if t not in self.dialects["hf"].templates}
                stored = [n.spec.dtype.name for (role, _), n in roles.items() if any(role in t.roles for t in kept)]
                if stored and set(stored) == {dialect.block_dtype}:
                    return dialect.name
        return None

    # ------------------------------------------------------------------ tensors

    def load(self, dialect: str, sizes: Sizes, tensors: Mapping[str, LogicalTensor]) -> Roles:
        """Physical tensors -> logical ones, each in the role's own layout. MappingError unless all fit."""
        report = self.check(dialect, sizes, {name: node.spec.shape for name, node in tensors.items()})
        if not report.ok:
            raise MappingError(self.name, dialect, report)
        return self.load_checked(dialect, sizes, tensors, self.prefix_of(dialect, tensors, sizes))

    def load_checked(self, dialect: str, sizes: Sizes, tensors: Mapping[str, LogicalTensor], prefix: str) -> Roles:
        """`load` for tensors that `check` found to fit."""
        roles: dict[Instance, LogicalTensor | StackMember] = {}
        known = self._lie(dialect, sizes)
        by_rank = {tuple(fuse.roles) for fuse in self.document.fuse.get(dialect, {}).values() if fuse.by_rank}
        for name, place in self.expansion(dialect, sizes, prefix).places.items():
            if (node := tensors.get(name)) is None:
                continue
            if by_rank and place.roles in by_rank:
                check_unpacked(name, node)
            if place.plan.single and known(first := place.plan.first(place.named)) == (None, node.spec.shape):
                roles[first] = node  # as most, of 100,000
            else:
                roles.update(cut(place, node, known))
        return Roles(roles)

    def save(
        self, dialect: str, sizes: Sizes, roles: Mapping[Instance, LogicalTensor], *,
        source_order: Sequence[str] | None = None, source: tuple[str, str] | None = None, prefix: str | None = None,
    ) -> dict[str, LogicalTensor]:  # fmt: skip
        """Logical tensors -> a dialect's physical ones, without roles that it can't hold. Layer by layer; for GGUF in
        the reference converter's order, by the stored names (`source_order`, of the dialect and prefix `source`)."""
        places = self.expansion(dialect, sizes, prefix).places
        whole = roles if isinstance(roles, Roles) else Roles(roles)
        roles = whole.behind(self._made(dialect, sizes, roles, prefix))
        present = {n: p for n, p in places.items() if any(i in roles for i in p.instances)}
        self._check_whole(dialect, sizes, present, roles, prefix)
        known = self._lie(dialect, sizes)
        out = {name: self._join(dialect, known, place, roles) for name, place in present.items()}
        if self.dialects[dialect].order == "table":
            return out
        from weighbridge.tensors.nodes import storage_name

        kept = self.dialects[dialect].kept_dtypes
        packed = {place.roles[0] for name, place in present.items() if storage_name(out[name]) in kept}
        return {name: out[name] for name in reference_order(self, present, sizes, source_order, source, packed)}

    def _check_whole(
        self,
        dialect: str,
        sizes: Sizes,
        present: Mapping[str, TensorSlot],
        roles: Mapping[Instance, Any],
        prefix: str | None,
    ) -> None:
        """FormatError for parts that don't make a whole: a missing expert, half of a fused tensor, part of a group."""
        if unknown := [i for i in roles if i[0] not in self.rows]:
            raise UsageError(f"the {self.name} family has no role {unknown[0][0]!r}")
        parts = [f"{p.name} (its {_label(i)})" for p in present.values() for i in p.instances if i not in roles]
        needed = started_groups(present.values())
        places = self.expansion(dialect, sizes, prefix).places
        missing = [n for n, p in places.items() if n not in present and (p.need is None or p.need in needed)]
        if parts or missing:
            raise MappingError(self.name, dialect, MappingReport(missing=(*missing, *parts)))

    def _join(self, dialect: str, known: LayoutMap, place: TensorSlot, roles: Roles) -> LogicalTensor:
        instances, parts = place.instances, []
        if (
            place.plan.stacks_one
            and (stack := roles.stack_of(instances))
            and known(instances[0]) == (None, stack.shape)
        ):
            return join_stack(place, stack)
        for instance in instances:
            node, (layout, shape) = roles[instance], known(instance)
            if node.spec.shape != shape:
                report = MappingReport(misshapen=((_label(instance), shape, node.spec.shape),))
                raise MappingError(self.name, dialect, report)
            parts.append(layout.apply(node) if layout else node)
        return join(place, parts)

    def _lie(self, dialect: str, sizes: Sizes) -> LayoutMap:
        """How each tensor of a role that a dialect has a name for lies there, and its own shape."""

        def lies(role: str, own: Sizes, layer: int = 0) -> tuple[TensorLayout | None, Shape]:
            return self.layout_of(dialect, role, own, layer), shape_of(self.rows[role], own)

        if sizes.by_layer or self._lies_by_layer:
            return cache(lambda instance: lies(instance[0], sizes.at(instance[1]), *instance[1][:1]))
        templates = (t for t in self._dialect(dialect).templates if applies(self.rows[t.roles[0]], sizes))
        known = {role: lies(role, sizes) for template in templates for role in template.roles}
        return lambda instance: known[instance[0]]

    def derived(self, dialect: str, sizes: Sizes) -> dict[Instance, LogicalTensor]:
        """Tensors that follow from the config and that this dialect has a name for."""
        named = {role for template in self._dialect(dialect).templates for role in template.roles}
        out: dict[Instance, LogicalTensor] = {}
        for row in self.rows.values():
            if row.derived and row.name in named and applies(row, sizes):
                out |= made(row, shape_of(row, sizes), sizes)
        return out

    def _made(
        self, dialect: str, sizes: Sizes, roles: Mapping[Instance, LogicalTensor], prefix: str | None
    ) -> dict[Instance, LogicalTensor]:
        """Tensors of a dialect that no tensor of the source becomes."""
        out = {instance: node for instance, node in self.derived(dialect, sizes).items() if instance not in roles}
        return {**out, **filled_in(dialect, self.rows, self.expansion(dialect, sizes, prefix), sizes, roles)}

    @cached_property
    def folded(self) -> tuple[str, ...]:
        """The numbers of a config that a GGUF has in its weights, and no key for."""
        vias = (via for row in self.rows.values() for via in row.layouts.values() if via.from_config)
        return tuple(dict.fromkeys(symbol for via in vias for symbol in via.symbols))

    @cached_property
    def products(self) -> Mapping[str, tuple[str, ...]]:
        """The tensors of a GGUF that are the products of two roles, by how they are called."""
        return {t.name: t.roles for t in self.dialects["gguf"].templates if any(via.multiplies for via in t.layouts)}

    @cached_property
    def _lies_by_layer(self) -> bool:
        return any(via.by_layer for row in self.rows.values() for via in row.layouts.values())

    def layout_of(self, dialect: str, role: str, sizes: Sizes, layer: int = 0) -> TensorLayout | None:
        """The layout change from a role's own to the dialect's in a layer, where there is one."""
        via = self.rows[role].layouts.get(dialect)
        return None if via is None else layout_of(via, arguments(via, sizes, layer))


_FURTHER = 16  # layers behind the last; published models have 3 at most


def _label(instance: Instance) -> str:
    return ".".join((instance[0], *map(str, instance[1])))
