"""The result of every operation: the new model and a record of the changes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape
from weighbridge.containers.base import Entry
from weighbridge.containers.gguf.values import KV, Metadata, kvs
from weighbridge.models.config.general import count_parameters, size_label
from weighbridge.models.model import OpenModel

if TYPE_CHECKING:
    from weighbridge.models.arch.expand import TensorSlot
    from weighbridge.tensors.nodes import Node

_SIZE_LABEL: Final = "general.size_label"


@dataclass(frozen=True)
class RenamedTensor:
    """A renamed tensor; several in `old` were fused into one."""

    old: tuple[str, ...]
    new: str


@dataclass(frozen=True)
class ResizedTensor:
    """A tensor that became smaller."""

    tensor: str
    before: Shape
    after: Shape


@dataclass(frozen=True)
class KeyChange:
    """A key of config.json or of a GGUF and its values before and after; None if absent."""

    key: str
    before: Any
    after: Any


class KeptLayers(NamedTuple):
    """The layers that are kept of the first `before` ones, in their new order."""

    kept: tuple[int, ...]
    before: int


@dataclass(frozen=True)
class Transformed:
    """A model after an operation, and the changes. `layers`: set for a model with one stack if layers were selected."""

    model: OpenModel
    renamed: tuple[RenamedTensor, ...] = ()
    dropped: tuple[str, ...] = ()
    cut: tuple[ResizedTensor, ...] = ()
    changed: tuple[KeyChange, ...] = ()
    notes: tuple[str, ...] = ()
    layers: KeptLayers | None = None

    def then(self, after: Transformed) -> Transformed:
        """Returns both operations' changes, with the second's model."""
        changes: dict[str, KeyChange] = {}  # one per key, from its first value to its last
        for change in (*self.changed, *after.changed):
            changes[change.key] = replace(changes.get(change.key, change), after=change.after)
        return Transformed(
            after.model,
            (*self.renamed, *after.renamed),
            (*self.dropped, *after.dropped),
            (*self.cut, *after.cut),
            tuple(c for c in changes.values() if c.before != c.after),
            (*self.notes, *after.notes),
            after.layers or self.layers,
        )


def with_entries(model: OpenModel, entries: Iterable[tuple[Entry, str]]) -> OpenModel:
    """Returns the model with only these tensors, under these names. Raises UsageError if two have the same name, or if
    none is left."""
    named: dict[str, str] = {}
    kept = []
    for entry, name in entries:
        if name in named:
            raise UsageError(
                f"two tensors would be called {name!r}: {named[name]!r} and {entry.name!r}",
                hint="nothing was written; choose distinct names",
            )
        named[name] = entry.name
        kept.append(msgspec.structs.replace(entry, name=name))
    if not kept:
        raise UsageError("no tensor would be left")
    nodes = None
    if model.nodes is not None:
        nodes = {new: model.nodes[old] for new, old in named.items()}
    return replace(model, index=replace(model.index, entries=tuple(kept)), nodes=nodes)


def with_nodes(model: OpenModel, nodes: Mapping[str, Node]) -> OpenModel:
    """Returns the model with only these tensors. Tensors that keep their name keep their position in the file."""
    before = model.index.by_name
    entries = (
        Entry(name, node.spec.dtype, node.spec.shape, 0, node.spec.nbytes, before[name].file if name in before else 0)
        for name, node in nodes.items()
    )
    return replace(model, index=replace(model.index, entries=tuple(entries), findings=()), nodes=nodes)


def with_shapes(model: OpenModel, nodes: Mapping[str, Node]) -> OpenModel:
    """Returns the model with these nodes under their present names. Entries keep their order and get new shapes."""
    entries = tuple(
        msgspec.structs.replace(e, shape=nodes[e.name].spec.shape, nbytes=nodes[e.name].spec.nbytes)
        for e in model.index
    )
    return replace(model, index=replace(model.index, entries=entries), nodes=nodes)


def slots(model: OpenModel) -> Mapping[str, TensorSlot]:
    """Returns the places of the family's table by tensor name, in the model's dialect; {} for a model without a
    table."""
    try:
        family, sizes = model.family, model.sizes
    except WeighbridgeError:
        return {}
    return family.expansion(model.dialect, sizes, family.prefix_of(model.dialect, model.logical, sizes)).places


def with_config(model: OpenModel, config: Mapping[str, Any], changes: Iterable[KeyChange]) -> OpenModel:
    """Returns the model with another config.json; the same model if nothing changed."""
    if not tuple(changes):
        return model
    data = (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()
    return replace(model, texts={**model.texts, "config.json": data})


def with_keys(model: OpenModel, keys: Mapping[str, KV]) -> tuple[OpenModel, tuple[KeyChange, ...]]:
    """Returns the GGUF with these keys and a size label for its new size, and the changes."""
    before = kvs(model.metadata)
    after = {**before, **keys}
    if _SIZE_LABEL in before:
        after[_SIZE_LABEL] = KV("str", size_label(count_parameters({e.name: e.shape for e in model.index})))
    changes = tuple(
        KeyChange(key, _plain(before[key].value) if key in before else None, _plain(kv.value))
        for key, kv in after.items()
        if key not in before or (before[key] is not kv and _plain(before[key].value) != _plain(kv.value))
    )
    return replace(model, index=replace(model.index, metadata=Metadata(after))), changes


def _plain(value: Any) -> Any:
    """Returns a GGUF's array, which is read on access, as a list."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
