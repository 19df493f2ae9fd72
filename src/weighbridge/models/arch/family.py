"""One family of models: its logical tensors, and their names and layouts in each dialect.

A family is a table with one row per role (logical tensor) and one column per dialect:

1. Names are generated from the sizes in the config and looked up, so missing and unmapped tensors are exact lists. 2.
An index that a name omits is stacked, in index order: HF has `experts.{e}.w1`, GGUF has `ffn_gate_exps`. 3. `fuse`
joins roles in the given order into one tensor. 4. `layout` names a two-way layout change (tensors/layouts.py) from
the role's own layout to the dialect's. 5. A group is present whole or not at all; part of a group and leftover
tensors are errors. 6. `tied` roles may be absent, `drop` names carry nothing, `derived` roles follow from the config.
7. Shapes are expressions of sizes, checked against the header of every physical tensor.

Storage types are not part of a family; they follow from a role's `kind` and the options of a conversion. Only `load`
and `save`, which build nodes, import numpy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from functools import cache, cached_property, partial
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.limits import LAYERS
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape
from weighbridge.models.arch.computed import FUNCTIONS, computed
from weighbridge.models.arch.config import effective
from weighbridge.models.arch.derived import filled_in, made
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
    shape_of,
    started_groups,
)
from weighbridge.models.arch.fuse import LayoutMap, Roles, StackMember, check_unpacked, cut, join, join_stack, layout_of
from weighbridge.models.arch.naming import (
    FamilyNames,
    MappingError,
    MappingReport,
    best_prefix,
    detect_dialect,
    reference_order,
)
from weighbridge.models.arch.tables.expression import ArchView, evaluate
from weighbridge.models.arch.tables.layers import layer_sets, set_orders
from weighbridge.models.arch.tables.schema import SizeEntry
from weighbridge.models.arch.tables.spec import Architecture, Role
from weighbridge.models.arch.tables.values import integer, sizes_by_layer
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


# Buffers that classes compute and older versions saved: rotary frequencies, their caches, masks.
_COMPUTED: Final = (
    "rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached", ".attention.masked_bias",
    ".attn.masked_bias",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Family(FamilyNames):
    """One architecture table, parsed and checked: its classes, sizes, names and layouts."""

    # ------------------------------------------------------------------ sizes

    def architecture(self, config: Mapping[str, Any]) -> Architecture | None:
        """The class of a config by `architectures`, else by `model_type`; None unless its parts and layers fit."""
        listed = config.get("architectures") or ()
        if isinstance(listed, Sequence) and not isinstance(listed, str) and listed:
            by_name = {alias: a for a in self.architectures.values() for alias in (a.name, *a.aliases)}
            chosen = by_name.get(listed[0]) if isinstance(listed[0], str) else None
        else:
            stated = config.get("model_type")
            same = [a for a in self.architectures.values() if a.model_type and a.model_type == stated]
            chosen = same[-1] if same else None  # the last is the plain one
        if chosen is None:
            return None
        if chosen.part_type is not None:  # a class of several parts: one of them has to be a class of the family
            part = chosen.part_config(config) or {}
            plain = [a for a in self.architectures.values() if a.part is None]
            named, model_type = part.get("architectures"), part.get("model_type", chosen.part_type)
            if isinstance(named, list) and named:
                has_part = any(named[0] in (a.name, *a.aliases) for a in plain)
            else:
                has_part = model_type in chosen.part_aliases or any(model_type == a.stated_type for a in plain)
            if not has_part:
                return None
        if chosen.part_types and (chosen.part_config(config) or {}).get("model_type", "") not in chosen.part_types:
            return None
        if chosen.requires is None and chosen.forbids is None:
            return chosen
        try:
            sets = self._facts(chosen, config)["layer_sets"]
        except FormatError:  # settings that are missing don't exclude the class
            return chosen
        fits = (chosen.requires is None or sets[chosen.requires]) and not sets.get(chosen.forbids or "")
        return chosen if fits else None

    @property
    def plain_defaults(self) -> Mapping[str, Any]:
        """The defaults of the family's plain class, which is the last one."""
        return list(self.architectures.values())[-1].defaults

    def effective(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The config with its class's defaults filled in (see config.py)."""
        return self._facts(self._known(config), config)

    def alone(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The config of only the family's model, if the class has several parts (`part_type`); else the config."""
        architecture = self._known(config)
        if architecture.part_type is None:
            return config
        part = architecture.part_config(config)
        model_type = (part or {}).get("model_type", architecture.part_type)
        classes = self.architectures.values()
        same = (a for a in classes if a.part is None and a.stated_type == model_type)
        plain = next(same, list(classes)[-1])
        whole = part or {k: v for k, v in config.items() if not k.endswith("_config")}
        kept = [key for key in config if key.endswith("_token_id")]
        kept += [key for key in ("dtype", "torch_dtype") if key in config]
        shared = {key: config[key] for key in kept}
        return {**shared, **whole, "architectures": [plain.name], "model_type": plain.stated_type}

    def _facts(self, architecture: Architecture, config: Mapping[str, Any]) -> dict[str, Any]:
        whole = architecture.merged(config)
        whole = {**whole, **numbers_as_text(whole)}
        if architecture.part:  # the class of the part
            classes, listed = self.architectures.values(), whole.get("architectures")
            if architecture.part_type and "model_type" not in (architecture.part_config(config) or {}):
                whole = {**whole, "model_type": architecture.part_type}
            same = [a for a in classes if a.stated_type == whole.get("model_type")]
            same = same or [a for a in classes if isinstance(listed, list) and a.name in listed]  # Kimi: kimi_k2
            architecture = (*same, architecture)[0]
        whole = {**whole, "model_type": architecture.known_as} if architecture.known_as else whole
        facts = effective(
            whole, architecture.defaults, architecture.null, architecture.full_layers, self.document.config_rules
        )
        facts.setdefault("model_type", architecture.model_type)
        count = self._count("hf", facts) if self.layer_sets else 0
        sets = layer_sets(self.layer_sets, "hf", facts, partial(self._count, "hf", facts))
        return {**facts, "layer_count": count, "layer_sets": sets}

    def _count(self, side: str, values: Mapping[str, Any], index: str = "") -> int:
        """The number of values of an index, by default of the first, the layer's."""
        symbol = self.index[index] if index else next(iter(self.index.values()))
        count = self._first(getattr(self.sizes[symbol], side), values, symbol, self.sizes[symbol])
        return integer(count or 0, "the number of layers", most=LAYERS)

    def _known(self, config: Mapping[str, Any]) -> Architecture:
        if (architecture := self.architecture(config)) is None:
            raise UsageError(f"the config's class is not in the {self.name} family")
        return architecture

    def sizes_from_hf(self, config: Mapping[str, Any]) -> Sizes:
        """The sizes in a config.json. FormatError if one is missing or invalid."""
        facts = self.effective(config)
        sets = facts["layer_sets"]
        orders = set_orders(self.layer_sets, "hf", facts, sets) if sets else ()
        return Sizes(*self._values("hf", facts), self._known(config).name, facts, tuple(sets.items()), orders)

    def sizes_from_gguf(
        self, metadata: Mapping[str, Any], names: Sequence[str] | Mapping[str, Any] = (), class_: str = ""
    ) -> Sizes:
        """The sizes in a GGUF's key-values. `names`: its tensors, which may identify the class; else it is `class_`."""
        view = ArchView(metadata, self.gguf, names)
        if self.layer_sets:
            view.layer_sets = layer_sets(self.layer_sets, "gguf", view, partial(self._count, "gguf", view))
        sets, name = view.layer_sets, self.architecture_of_gguf(metadata, names, class_).name
        orders = set_orders(self.layer_sets, "gguf", view, sets) if sets else ()
        return Sizes(*self._values("gguf", view), name, layers=tuple(sets.items()), orders=orders)

    def _values(self, side: str, facts: Mapping[str, Any]) -> tuple[SizeValues, ListedSizes]:
        """The sizes in a config or a GGUF, and those that vary by layer."""
        varying = {s: size.index or next(iter(self.index)) for s, size in self.sizes.items() if size.by_layer}
        counted = partial(self._count, side, facts)
        listed = {s: sizes_by_layer(getattr(self.sizes[s], side), facts, counted(i)) for s, i in varying.items()}
        plain = {s: self._first(getattr(z, side), facts, s, z) for s, z in self.sizes.items() if s not in listed}
        every = {s: max(listed[s]) if s in listed else plain[s] for s in self.sizes}
        return tuple((s, n) for s, n in every.items() if n), tuple(
            zip(listed, listed.values(), varying.values(), strict=True)
        )

    def _first(self, sources: Sequence[str], values: Mapping[str, Any], symbol: str, size: SizeEntry) -> int | None:
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
        self, metadata: Mapping[str, Any], names: Sequence[str] | Mapping[str, Any] = (), class_: str = ""
    ) -> Architecture:
        """The most likely class of transformers of a GGUF, which doesn't name it; `class_` if it shows none. A family
        whose GGUFs are opened as another's is asked only where its class is known."""
        view = ArchView(metadata, self.gguf, names)
        if len(self.architectures) == 1 and (only := next(iter(self.architectures.values()))).gguf is None:
            return only
        for a in self.architectures.values():
            if a.gguf is not None and (not a.gguf or view.shows(a.gguf)):
                return a
        if class_ in self.architectures:
            return self.architectures[class_]
        raise UsageError(f"no class of the {self.name} family matches this GGUF")

    @property
    def restores(self) -> bool:
        """Whether a GGUF may be of one of its classes; if not, it is opened as another family's."""
        return len(self.architectures) == 1 or any(a.gguf is not None for a in self.architectures.values())

    def shows(self, metadata: Mapping[str, Any], names: Sequence[str] | Mapping[str, Any]) -> bool:
        """Whether a GGUF meets the conditions of one of the family's classes."""
        view = ArchView(metadata, self.gguf, names)
        return any(view.shows(a.gguf or ()) for a in self.architectures.values())

    # ------------------------------------------------------------------ names

    def dialect_of(self, names: Sequence[str] | Mapping[str, Any], sizes: Sizes) -> str:
        """The dialect of the names. UnsupportedError if no dialect has any of them."""
        return self.dialect_and_prefix(names, sizes)[0]

    def dialect_and_prefix(self, names: Sequence[str] | Mapping[str, Any], sizes: Sizes) -> tuple[str, str]:
        """The dialect and prefix of the names. UnsupportedError if no dialect has any of them."""
        hits, dialect, prefix = detect_dialect(self, names, sizes)
        if not hits:
            raise UnsupportedError(f"none of the tensors has a name of the {self.name} family")
        return dialect, prefix

    def prefix_of(self, dialect: str, names: Mapping[str, Any], sizes: Sizes) -> str:
        return best_prefix(self, self.dialect(dialect).name, names, sizes)

    def check(
        self, dialect: str, sizes: Sizes, shapes: Mapping[str, Shape], prefix: str | None = None
    ) -> MappingReport:
        """How tensors of these names and logical shapes fit. Needs neither data nor numpy."""
        prefix = self.prefix_of(dialect, shapes, sizes) if prefix is None else prefix
        expansion = self.expansion(dialect, sizes, prefix)
        places = expansion.places
        needed = started_groups(places[name] for name in shapes if name in places)
        others, apart = [n for n in shapes if n not in places], self.ignored_prefixes(sizes)
        idle = {n for n in others if n in expansion.dropped or (dialect != "gguf" and n.endswith(_COMPUTED))}
        return MappingReport(
            tuple(n for n, p in places.items() if n not in shapes and (p.need is None or p.need in needed)),
            tuple(n for n in others if n not in idle and not n.startswith(apart)),
            tuple((n, places[n].shape, s) for n, s in shapes.items() if n in places and tuple(s) != places[n].shape),
            tuple(n for n in others if n in idle),
            tuple(n for n in others if n.startswith(apart)),
        )

    def ignored_prefixes(self, sizes: Sizes) -> tuple[str, ...]:
        """Prefixes of other parts' names, with one for each layer after the last that the config counts."""
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
        """The number of tensors of other parts of the model, by prefix."""
        apart = self.ignored_prefixes(sizes)
        return dict(Counter(start for name in names for start in apart if name.startswith(start)))

    def rows_of(self, dialect: str, sizes: Sizes, tensors: Mapping[str, Any]) -> dict[str, Role]:
        """The first role of every physical tensor that the dialect may hold, by name, with the prefix of `tensors`."""
        places = self.expansion(dialect, sizes, self.prefix_of(dialect, tensors, sizes)).places
        return {name: self.rows[place.roles[0]] for name, place in places.items()}

    def unmapped_roles(self, dialect: str, sizes: Sizes, roles: Mapping[Instance, Any]) -> list[Instance]:
        """Weights that the dialect can't hold, which a plan lists as losses."""
        stored = {r for t in self.dialect(dialect).templates for r in t.roles if applies(self.rows[r], sizes)}
        gone, layer = absent(self.dialect(dialect), sizes), next(iter(self.index))
        layered = {role for role, indices in self.role_indices.items() if indices[:1] == (layer,)} if gone else ()
        return [
            (role, index)
            for role, index in roles
            if (role not in stored or (role in layered and index[0] in gone)) and not self.rows[role].made
        ]

    def holding(
        self, dialect: str, sizes: Sizes, tensors: Mapping[str, Any], instances: Collection[Instance]
    ) -> list[str]:
        """The names of the tensors that hold any of these instances."""
        if not instances:
            return []
        places = self.expansion(dialect, sizes, self.prefix_of(dialect, tensors, sizes)).places
        return [n for n, p in places.items() if n in tensors and any(i in instances for i in p.instances)]

    def holding_blocks(self, sizes: Sizes, roles: Mapping[Instance, LogicalTensor]) -> str | None:
        """The dialect that holds the codes of these roles' blocks unchanged, if any."""
        for dialect in self.dialects.values():
            if dialect.block_dtype is not None:
                kept = {t for t in dialect.templates if t not in self.dialects["hf"].templates}
                stored = [n.spec.dtype.name for (role, _), n in roles.items() if any(role in t.roles for t in kept)]
                if stored and set(stored) == {dialect.block_dtype}:
                    return dialect.name
        return None

    # ------------------------------------------------------------------ tensors

    def load(self, dialect: str, sizes: Sizes, tensors: Mapping[str, LogicalTensor]) -> Roles:
        """Turns physical tensors into logical ones in their roles' own layouts. MappingError unless all fit."""
        report = self.check(dialect, sizes, {name: node.spec.shape for name, node in tensors.items()})
        if not report.ok:
            raise MappingError(self.name, dialect, report)
        return self.load_checked(dialect, sizes, tensors, self.prefix_of(dialect, tensors, sizes))

    def load_checked(self, dialect: str, sizes: Sizes, tensors: Mapping[str, LogicalTensor], prefix: str) -> Roles:
        """`load` for tensors that passed `check`."""
        roles: dict[Instance, LogicalTensor | StackMember] = {}
        known = self._lie(dialect, sizes)
        by_rank = {tuple(fuse.roles) for fuse in self.document.fuse.get(dialect, {}).values() if fuse.by_rank}
        for name, place in self.expansion(dialect, sizes, prefix).places.items():
            if (node := tensors.get(name)) is None:
                continue
            if by_rank and place.roles in by_rank:
                check_unpacked(name, node)
            plain = place.plan.plain and not place.plan.stacked
            if plain and known(first := place.instances[0]) == (None, node.spec.shape):
                roles[first] = node  # the most common case, of up to 100,000
            else:
                roles.update(cut(place, node, known))
        return computed(self.rows, sizes, Roles(roles))

    def save(
        self, dialect: str, sizes: Sizes, roles: Mapping[Instance, LogicalTensor], *,
        source_order: Sequence[str] | None = None, source: tuple[str, str] | None = None, prefix: str | None = None,
    ) -> dict[str, LogicalTensor]:  # fmt: skip
        """Turns logical tensors into a dialect's physical ones, without roles that it can't hold.

        The order is layer by layer; for GGUF that of the reference converter, from the names as stored (`source_order`,
        of the dialect and prefix `source`).
        """
        expansion = self.expansion(dialect, sizes, prefix)
        places = expansion.places
        whole = roles if isinstance(roles, Roles) else Roles(roles)
        computed = self.derived(dialect, sizes, roles)
        tied = self.copied if dialect == "gguf" and sizes.facts.get("tie_word_embeddings") in (None, True) else {}
        filled = filled_in(dialect, self.rows, expansion, sizes, roles, tied)
        roles = whole.behind({**computed, **filled})
        present = {n: p for n, p in places.items() if any(i in roles for i in p.instances)}
        if unknown := [i for i in roles if i[0] not in self.rows]:
            raise UsageError(f"the {self.name} family has no role {unknown[0][0]!r}")
        # Incomplete parts: a missing expert, half of a fused tensor, part of a group.
        parts = [f"{p.name} (its {_label(i)})" for p in present.values() for i in p.instances if i not in roles]
        needed = started_groups(present.values())
        missing = [n for n, p in places.items() if n not in present and (p.need is None or p.need in needed)]
        if parts or missing:
            raise MappingError(self.name, dialect, MappingReport(missing=(*missing, *parts)))
        known = self._lie(dialect, sizes)
        out = {name: self._join(dialect, known, place, roles) for name, place in present.items()}
        if self.dialects[dialect].order == "table":
            return out
        from weighbridge.tensors.nodes import storage_name

        kept = self.dialects[dialect].kept_dtypes
        packed = {place.roles[0] for name, place in present.items() if storage_name(out[name]) in kept}
        return {name: out[name] for name in reference_order(self, present, sizes, source_order, source, packed)}

    def _join(self, dialect: str, known: LayoutMap, place: TensorSlot, roles: Roles) -> LogicalTensor:
        instances, parts = place.instances, []
        if (
            place.plan.plain
            and place.plan.stacked
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
        """The layout change and own shape of every role that a dialect has a name for."""

        def lies(role: str, at: Sizes, layer: int = 0) -> tuple[TensorLayout | None, Shape]:
            return self.layout_of(dialect, role, at, layer), shape_of(self.rows[role], at)

        if sizes.by_layer or any(call.by_layer for row in self.rows.values() for call in row.layouts.values()):
            lead = {role: next(iter(indices), None) for role, indices in self.role_indices.items()}
            return cache(lambda at: lies(at[0], sizes.at(at[1], lead[at[0]]), *at[1][:1]))
        templates = (t for t in self.dialect(dialect).templates if applies(self.rows[t.roles[0]], sizes))
        known = {role: lies(role, sizes) for template in templates for role in template.roles}
        return lambda instance: known[instance[0]]

    def derived(self, dialect: str, sizes: Sizes, known: Container[Instance] = ()) -> dict[Instance, LogicalTensor]:
        """Tensors computed from the config that this dialect has a name for, except known ones."""
        named = {role for template in self.dialect(dialect).templates for role in template.roles}
        out: dict[Instance, LogicalTensor] = {}
        for row in self.rows.values():
            if row.derived and row.name in named and applies(row, sizes):
                counts = (range(sizes.get(self.index[i]) or 0) for i in self.role_indices[row.name])
                indices = [index for index in product(*counts) if (row.name, index) not in known]
                out |= made(row, shape_of(row, sizes), sizes, indices) if indices else {}
        return out

    @cached_property
    def copied(self) -> dict[str, str]:
        """The roles that a GGUF holds even if a model lacks them, since llama.cpp's graph needs them or a GGUF has the
        tensor in another layout, and the role of which each is then a copy."""
        from weighbridge.models.llamacpp import table  # late: only conversions to a GGUF need it

        needed = table().needed.get(self.gguf, ())
        rows = self.rows
        return {
            row.name: row.tied for row in rows.values()
            if row.tied and (name := row.names.get("gguf"))
            and (name in needed or row.layouts.get("gguf") != rows[row.tied].layouts.get("gguf"))
        }  # fmt: skip

    @cached_property
    def folded(self) -> tuple[str, ...]:
        """Numbers of a config that a GGUF has multiplied into its weights and has no key for."""
        calls = (call for row in self.rows.values() for call in row.layouts.values() if call.row.from_config)
        return tuple(dict.fromkeys(symbol for call in calls for symbol in call.symbols))

    @cached_property
    def products(self) -> Mapping[str, tuple[str, ...]]:
        """The names of a GGUF's tensors that are products of two roles, and these roles."""
        return {
            t.name: t.roles for t in self.dialects["gguf"].templates if any(call.row.multiplies for call in t.layouts)
        }

    @cached_property
    def one_way(self) -> Mapping[str, str]:
        """The roles that a GGUF has with fewer elements than a folder, and how they are made of a folder's tensors."""
        calls = ((row.name, call) for row in self.rows.values() for call in row.layouts.values())
        layouts = {role: call.row.one_way for role, call in calls if call.row.one_way}
        return layouts | {row.name: FUNCTIONS[row.computed.function].why for row in self.rows.values() if row.computed}

    def layout_of(self, dialect: str, role: str, sizes: Sizes, layer: int = 0) -> TensorLayout | None:
        """The layout change from a role's own layout to the dialect's in a layer, if any. A model without one of its
        sizes, which is optional, has none."""
        call = self.rows[role].layouts.get(dialect)
        if call is None:
            return None
        try:
            known = arguments(call, sizes, layer)
        except KeyError:  # of the size
            return None
        return layout_of(call, known)


_FURTHER = 16  # layers after the last; published models have at most 3


def _label(instance: Instance) -> str:
    return ".".join((instance[0], *map(str, instance[1])))
