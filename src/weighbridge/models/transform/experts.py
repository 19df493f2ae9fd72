"""Removes experts: cuts or drops their tensors, cuts the router's rows, and keeps the config consistent.

The family's table says which tensors contain experts: the index is in the name, the tensor is a stack over it, or
its shape contains the number of experts (a router, its bias).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from weighbridge.base.errors import UnsupportedError, UsageError
from weighbridge.containers.gguf.values import KV, kvs
from weighbridge.models.arch.expand import TensorSlot
from weighbridge.models.arch.tables import expression
from weighbridge.models.arch.tables.values import integer
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.transform.base import (
    KeyChange,
    RenamedTensor,
    ResizedTensor,
    Transformed,
    with_config,
    with_entries,
    with_keys,
    with_shapes,
)
from weighbridge.models.transform.layer_stack import parse_numbers

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

_INDEX: Final = "e"  # the symbol of the expert index in tables
# Experts per token, and groups of experts to choose from: both bounded by the number of experts.
_USED: Final = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts", "expert_used_count")
_GROUPS: Final = ("n_group", "expert_group_count")


class ExpertAxis(NamedTuple):
    """How a tensor contains experts: by the number in its name, or along an axis."""

    place: TensorSlot
    axis: int | None  # None: by name


@dataclass(frozen=True)
class _Experts:
    """A model's experts: their number, the symbol of their index, and the ones to keep."""

    symbol: str
    count: int
    kept: tuple[int, ...]


def slice_experts(model: Checkpoint, wanted: str) -> Transformed:
    """The model with these experts in every layer (`0-3`; see `parse_numbers`). UnsupportedError if it has none, or
    if a quantized stack isn't stored expert by expert."""
    experts = _experts(model, wanted)
    config = _config(model, experts)
    done = _cut(model, experts)
    if model.format == "gguf":
        declared = kvs(model.metadata)
        front = f"{model.family.gguf}."
        keys = {f"{front}{key}": KV(declared[f"{front}{key}"].type, value) for key, value in config.items()}
        keyed, changes = with_keys(done.model, keys)
        return replace(done, model=keyed, changed=changes)
    changes = tuple(KeyChange(k, model.config.get(k), v) for k, v in config.items() if model.config.get(k) != v)
    return replace(done, model=with_config(done.model, {**model.config, **config}, changes), changed=changes)


def _experts(model: Checkpoint, wanted: str) -> _Experts:
    symbol = model.family.index.get(_INDEX)
    count = model.sizes.get(symbol) if symbol else None
    if symbol is None or count is None:
        raise UnsupportedError(f"the model has no experts ({model.family.name})")
    if _shared_by_experts(model, symbol):
        raise UnsupportedError(f"groups of experts share others ({model.family.name}): none can be left out alone")
    kept = parse_numbers(wanted, count, "expert")
    if len(set(kept)) < len(kept):
        raise UsageError("an expert can't be selected twice: the router would choose it twice")
    return _Experts(symbol, count, kept)


def _shared_by_experts(model: Checkpoint, symbol: str) -> bool:
    """Whether the number of other modules follows from the number of experts."""
    sizes = model.family.sizes
    others = [text for other in model.family.index.values() if other != symbol for text in sizes[other].hf]
    return any(key in expression.names(expression.parse(text)) for text in others for key in sizes[symbol].hf)


# ------------------------------------------------------------------------------------------------ config and keys


def _config(model: Checkpoint, experts: _Experts) -> dict[str, Any]:
    """The keys that change with fewer experts; those of a GGUF without the architecture prefix."""
    size = model.family.sizes[experts.symbol]
    declared = _declared(model)
    names = size.gguf if model.format == "gguf" else size.hf
    stated = [name for name in names if declared.get(name) is not None] or list(names[:1])
    out: dict[str, Any] = dict.fromkeys(stated, len(experts.kept))
    for key in _USED:
        if declared.get(key) is not None:
            out[key] = min(integer(declared[key], key, 1), len(experts.kept))
    for key in _GROUPS:
        if (groups := declared.get(key)) is not None and integer(groups, key) > 1:
            _check_groups(key, groups, experts)
    return out


def _declared(model: Checkpoint) -> Mapping[str, Any]:
    """The model's values under the keys that the tables list."""
    if model.format == "gguf":
        front = f"{model.family.gguf}."
        return {key.removeprefix(front): model.metadata[key] for key in model.metadata if key.startswith(front)}
    return model.family.effective(model.config)


def _check_groups(key: str, groups: int, experts: _Experts) -> None:
    """Experts are chosen group by group: every group must keep equally many, in order."""
    each = experts.count // groups
    left = [number // each for number in experts.kept]
    share, over = divmod(len(left), groups)
    if over or left != [g for g in range(groups) for _ in range(share)]:
        raise UsageError(
            f"the router chooses among {groups} groups of {each} experts ({key}): every group must keep equally many",
            hint=", ".join(f"{g * each}-{g * each + max(each // 2, 1) - 1}" for g in range(groups)),
        )


# ------------------------------------------------------------------------------------------------ tensors


def _cut(model: Checkpoint, experts: _Experts) -> Transformed:
    parts = _parts(model, experts)
    new = {old: at for at, old in enumerate(experts.kept)}
    entries, gone = [], []
    cuts: dict[str, int] = {}
    for entry in model.index:
        found = parts.get(entry.name)
        if found is None or found.axis is not None:
            entries.append((entry, entry.name))
            if found is not None and found.axis is not None:
                cuts[entry.name] = found.axis
        elif (number := found.place.named[found.place.indices.index(_INDEX)]) in new:
            module = _module(found.place.name)
            entries.append((entry, _module(found.place.renumbered(_INDEX, new[number])) + entry.name[len(module) :]))
        else:
            gone.append(entry.name)
    done = with_entries(model, entries)
    renamed = tuple(RenamedTensor((e.name,), name) for e, name in entries if e.name != name)
    nodes, resized = _take_experts(done, cuts, experts)
    return Transformed(done if not resized else with_shapes(done, nodes), renamed, tuple(gone), resized)


def _take_experts(
    model: Checkpoint, cuts: Mapping[str, int], experts: _Experts
) -> tuple[dict[str, Node], tuple[ResizedTensor, ...]]:
    from weighbridge.tensors.slicing import take

    nodes = dict(model.stored)
    resized = []
    for name, axis in cuts.items():
        node = nodes[name]
        if len(node.spec.shape) <= axis or node.spec.shape[axis] % experts.count:
            raise UnsupportedError(
                f"{name} {list(node.spec.shape)} doesn't store its {experts.count} experts one by one on axis {axis}",
                hint="decode it first: wb convert SRC DST --dtype bf16",
            )
        unit = node.spec.shape[axis] // experts.count
        nodes[name] = take(node, axis, [(n * unit, (n + 1) * unit) for n in experts.kept])
        resized.append(ResizedTensor(name, node.spec.shape, nodes[name].spec.shape))
    return nodes, tuple(resized)


def _parts(model: Checkpoint, experts: _Experts) -> dict[str, ExpertAxis]:
    """The stored tensors that contain experts. The members of a packed tensor have the same expert axis as the
    tensor."""
    family, sizes = model.family, model.sizes
    dialect = model.dialect
    places = family.expansion(dialect, sizes, family.prefix_of(dialect, model.logical, sizes)).places
    found = {name: part for name, place in places.items() if (part := _part(model, place, experts)) is not None}
    modules = {_module(name): name for name in found}
    out = {}
    for entry in model.index:
        owners = (entry.name,) if entry.name in places else _owners(entry.name)  # a router's scale doesn't belong to it
        known = next((k for k in owners if k in found or k in modules), None)
        if known is not None:
            out[entry.name] = found[known if known in found else modules[known]]
    return out


def _owners(name: str) -> Iterator[str]:
    """Names of the logical tensor, or of the module, that a stored tensor may belong to."""
    yield name
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _module(name: str) -> str:
    return name.removesuffix(".weight")


def _part(model: Checkpoint, place: TensorSlot, experts: _Experts) -> ExpertAxis | None:
    if _INDEX in place.indices[: len(place.named)]:
        return ExpertAxis(place, None)
    stacked: Sequence[str] = place.indices[len(place.named) :]
    if _INDEX in stacked:
        return ExpertAxis(place, stacked.index(_INDEX))
    row = model.family.rows[place.roles[0]]
    if experts.symbol not in row.shape:
        return None
    axis = row.shape.index(experts.symbol)
    if row.transposed(model.dialect):
        axis = len(row.shape) - 1 - axis
    return ExpertAxis(place, len(stacked) + axis)
