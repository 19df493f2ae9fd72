"""Merges LoRA adapters into their base model, one tensor at a time while reading."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError
from weighbridge.base.words import plural
from weighbridge.models.lora import pairs, pictures
from weighbridge.models.lora.base_model import check_base
from weighbridge.models.lora.forms import resolved
from weighbridge.models.lora.pairs import LoraPair, divides, is_linear
from weighbridge.models.lora.peft import LoraAdapter
from weighbridge.models.lora.resolve_experts import scaled_alike
from weighbridge.models.lora.vocabulary import ReadAdapter, read_adapter, resized
from weighbridge.models.lora.weights import WeightedAdapter
from weighbridge.models.model import OpenModel, open_weights
from weighbridge.models.transform import packed_rename
from weighbridge.models.transform.base import slots, with_nodes
from weighbridge.models.wrapped import for_the_table

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor, Node

# Rounds a tensor to a type.
Rounding = Callable[["Node", DType], "Node"]
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def merge_adapters(model: OpenModel, adapters: Sequence[WeightedAdapter]) -> OpenModel:
    """Merges adapters into the model's weights: W plus weight * alpha/rank * B @ A of each, computed in F32 and rounded
    once to the base's type. Tensors that an adapter stores in full replace the model's (with a weight other than 1, or
    if several adapters have them, their weighted differences are added); all others stay unchanged. The adapters' files
    stay open with the model."""
    from weighbridge.tensors.nodes import cast

    return _merge(model, adapters, cast)


def merge_for_writing(model: OpenModel, adapters: Sequence[WeightedAdapter]) -> OpenModel:
    """Merges as `merge_adapters` does, but rounds sums only once: to the type that they are cast to, otherwise to the
    base's."""
    from weighbridge.tensors.nodes import provisional

    return _merge(model, adapters, provisional)


def _merge(model: OpenModel, adapters: Sequence[WeightedAdapter], rounding: Rounding) -> OpenModel:
    if strange := next((adapter for adapter in adapters if not math.isfinite(adapter.weight)), None):
        raise UsageError(f"the weight of {strange.path} is {strange.weight}")
    with ExitStack() as opened:
        sources = [opened.enter_context(open_weights(adapter.path)) for adapter in adapters]
        weights = [adapter.weight for adapter in adapters]
        if model.makes_pictures:
            merged = _merge_pictures(model, sources, weights, rounding)
        else:
            merged = _merge_weights(for_the_table(model), sources, weights, rounding)
        opened.pop_all()
        files = (file for source in sources for file in source.place.weights)
        return replace(merged, place=replace(merged.place, merged=(*model.place.merged, *files)))


def _merge_weights(
    model: OpenModel, sources: Sequence[OpenModel], weights: Sequence[float], rounding: Rounding
) -> OpenModel:
    adapters = [read_adapter(source, weight) for source, weight in zip(sources, weights, strict=True)]
    model = resized(model, adapters)
    changes = [_changes(model, adapter) for adapter in adapters]
    for change, source in zip(changes, sources, strict=True):
        if len(changes) > 1 or change.weight != 1:
            _refuse_dora(source, any(pair.lengths is not None for pair in change.pairs))
    nodes = _tensors(model, changes, rounding)
    notes = [*model.place.notes, *(note for change in changes for note in change.notes)]
    if copies := [name for name in model.logical if name not in nodes]:
        notes.append(f"left out: {', '.join(copies)}, a copy of the embedding, which the adapter changes")
    merged = with_nodes(model, packed_rename.parts(model, nodes, ()))
    return replace(merged, place=replace(model.place, notes=tuple(notes)))


def _merge_pictures(
    model: OpenModel, sources: Sequence[OpenModel], weights: Sequence[float], rounding: Rounding
) -> OpenModel:
    """Merges LoRAs of an image or video model."""
    for source, weight in zip(sources, weights, strict=True):
        if not pictures.is_picture_lora(source):
            reason = f"{source.place.path} isn't a LoRA of an image or video model"
            raise UsageError(reason, hint="a file of kohya, diffusers or ComfyUI")
        changes = list(pictures.read(source))
        if len(sources) > 1 or weight != 1:
            _refuse_dora(source, any(change.lengths is not None for change in changes))
        changed, notes = pictures.merged(model, [change.weighted(weight) for change in changes], rounding)
        nodes = packed_rename.parts(model, {**model.logical, **changed}, ())
        model = replace(with_nodes(model, nodes), place=replace(model.place, notes=(*model.place.notes, *notes)))
    return model


def _refuse_dora(source: OpenModel, is_dora: bool) -> None:
    if is_dora:
        raise UnsupportedError(
            f"{source.place.path} is a DoRA: it sets the lengths of the changed rows, so it has no weight, and "
            "its sum with another adapter depends on their order",
            hint="merge it alone, without a weight; merge another one into the result",
        )


def check_adapter(model: OpenModel, path: Path) -> None:
    """Raises UsageError, FormatError or UnsupportedError for an adapter that doesn't fit the model, whose weights may
    be quantized. Reads only headers."""
    from weighbridge.tensors.nodes import provisional

    with open_weights(path) as source:
        if model.makes_pictures:
            _merge_pictures(model, [source], [1.0], provisional)
        else:
            adapter = read_adapter(source)
            _changes(resized(model, [adapter]), adapter)


class _Changes(NamedTuple):
    """The changes of an adapter. `through`: the part for tensors of the family's table, with `roles` as its pairs and
    `dialect` as its names; None if empty. `direct`: the part for the model's other tensors, under their names."""

    through: LoraAdapter | None
    roles: pairs.Roles
    dialect: str
    direct: LoraAdapter
    notes: tuple[str, ...]
    weight: float

    @property
    def pairs(self) -> Iterable[LoraPair]:
        return (*self.roles.values(), *self.direct.pairs.values())


def _changes(model: OpenModel, read: ReadAdapter) -> _Changes:
    source, form, adapter, weight = read
    notes = check_base(model, source, adapter)
    notes = notes if weight == 1 else (f"{notes[0]}, with weight {weight:g}", *notes[1:])
    through, direct = _split(model, adapter, form.dialect)
    if through is None:
        return _Changes(None, {}, form.dialect, scaled_alike(direct), notes, weight)
    if parts := model.family.parted((*through.pairs, *through.whole), model.sizes):
        raise UnsupportedError(
            f"the adapter changes {', '.join(f'{start}*' for start in parts)}, and {model.place.path} has no such part",
            hint="merge it into the whole model's folder: wb convert FOLDER DST/ --lora ADAPTER, for a pair of GGUFs "
            "with --with-mmproj",
        )
    through, roles = resolved(through, form.dialect, model.family, model.sizes)
    if missing := next((instance for instance in roles if instance not in model.resolved.known_roles), None):
        raise _tied(missing[0])
    for role, _ in roles:
        via = model.family.rows[role].layouts.get("gguf")
        if via is not None and via.row.from_config and not model.sizes.facts:
            raise UnsupportedError(
                f"the GGUF stores {role} multiplied by an unknown factor ({via}), unlike the adapter's change",
                hint="merge the adapter into the folder that the GGUF was made of",
            )
    return _Changes(through, roles, form.dialect, scaled_alike(direct), notes, weight)


def _split(model: OpenModel, adapter: LoraAdapter, dialect: str) -> tuple[LoraAdapter | None, LoraAdapter]:
    """Splits an adapter into the part for the family's tensors, and the part for stored ones: those that no table names
    (a vision tower, a classifier's head), and matrices of the adapter's dialect that the table divides. Without a
    table, all are of the second kind."""
    candidates: dict[str, list[str]] = {}
    for name in model.resolved.others if model.described else model.logical:
        candidates.setdefault(_plain(name), []).append(name)
    unique = {plain: names[0] for plain, names in candidates.items() if len(names) == 1}
    listed = (*adapter.pairs, *adapter.whole, *adapter.base_weights)
    names = {name: unique[key] for name in listed if (key := _plain(name)) in unique}
    if model.described and dialect == model.dialect:
        fused = {
            n for n, place in slots(model).items() if is_linear(model.family, place) and not divides(place, dialect)
        }
        names |= {name: name for name in adapter.pairs if name in fused and name in model.logical}

    def renamed(part: Mapping[str, V]) -> dict[str, V]:
        return {names[name]: node for name, node in part.items() if name in names}

    def unnamed(part: Mapping[str, V]) -> dict[str, V]:
        return {name: node for name, node in part.items() if name not in names}

    kept = unnamed(adapter.pairs), unnamed(adapter.whole), unnamed(adapter.base_weights)
    remaining = [name for part in kept for name in part]
    if model.described or not remaining:
        through = replace(adapter, pairs=kept[0], whole=kept[1], base_weights=kept[2]) if remaining else None
        moved = renamed(adapter.pairs), renamed(adapter.whole), renamed(adapter.base_weights)
        return through, replace(adapter, pairs=moved[0], whole=moved[1], base_weights=moved[2])
    raise UsageError(
        f"the adapter changes {plural(len(remaining), 'tensor')} that the model doesn't have: "
        + ", ".join(remaining[:4]),
        hint="name the model that the adapter was trained on",
    )


def _plain(name: str) -> str:
    """Removes the parts of a name that versions of transformers spell differently in files and in modules."""
    return name.removeprefix("model.").replace(".vision_model.", ".")


def _tied(role: str) -> UsageError:
    return UsageError(
        f"the adapter changes {role}, which the model doesn't store separately",
        hint="a tied head is the embedding: untie it, or merge with PEFT",
    )


class _Change(NamedTuple):
    """A change of one tensor: a pair with its scale, or a tensor in its place. `is_base`: a copy of the
    base's own tensor, which PEFT stores next to the pair of an embedding."""

    weight: float
    pair: LoraPair | None = None
    scale: float = 1.0
    whole: Node | None = None
    is_base: bool = False


def _tensors(model: OpenModel, adapters: Sequence[_Changes], rounding: Rounding) -> dict[str, LogicalTensor]:
    """Returns all tensors of the model, changed or unchanged."""
    direct = (row for adapter in adapters for row in _direct_changes(model, adapter))
    stored = _changed(model.logical, direct, rounding)
    nodes = {**model.logical, **stored}
    if all(adapter.through is None for adapter in adapters):
        return nodes
    family, sizes, before = model.family, model.sizes, model.resolved.known_roles
    changed = _changed(before, (row for adapter in adapters for row in _changes_of_roles(model, adapter)), rounding)
    prefix = family.prefix_of(model.dialect, model.logical, sizes)
    saved = family.save(model.dialect, sizes, {**before, **changed}, prefix=prefix)
    # Copies of a changed embedding that the table leaves out (a head that repeats it) would be outdated.
    shapes = {before[i].spec.shape for i in changed if family.rows[i[0]].kind == "embedding"}
    copies = {name for name in model.resolved.report.dropped if model.logical[name].spec.shape in shapes}
    places = family.expansion(model.dialect, sizes, prefix).places
    nodes |= {n: saved[n] for n, place in places.items() if n in saved and any(i in changed for i in place.instances)}
    return {name: node for name, node in (nodes | stored).items() if name not in copies}


def _direct_changes(model: OpenModel, adapter: _Changes) -> Iterable[tuple[str, _Change]]:
    """Returns the changes of those tensors that no table names."""
    part, weight = adapter.direct, adapter.weight
    shapes = {name: pair.shape for name, pair in part.pairs.items()}
    shapes |= {name: node.spec.shape for name, node in (*part.whole.items(), *part.base_weights.items())}
    for name, shape in shapes.items():
        if (expected := model.logical[name].spec.shape) != shape:
            raise UsageError(
                f"the adapter has {name} as {list(shape)}, the model as {list(expected)}",
                hint="name the model that the adapter was trained on",
            )
    yield from ((name, _Change(weight, whole=node, is_base=True)) for name, node in part.base_weights.items())
    yield from ((name, _Change(weight, whole=node)) for name, node in part.whole.items())
    yield from ((name, _Change(weight, pair, part.scale(pair))) for name, pair in part.pairs.items())


def _changes_of_roles(model: OpenModel, adapter: _Changes) -> Iterable[tuple[Any, _Change]]:
    """Returns the changes of the table's tensors, by role."""
    part, weight = adapter.through, adapter.weight
    if part is not None:
        for instance, node in _whole_roles(model, part, part.base_weights, adapter.dialect):
            yield instance, _Change(weight, whole=node, is_base=True)
        for instance, node in _whole_roles(model, part, part.whole, adapter.dialect):
            yield instance, _Change(weight, whole=node)
        yield from ((instance, _Change(weight, pair, part.scale(pair))) for instance, pair in adapter.roles.items())


def _whole_roles(
    model: OpenModel, adapter: LoraAdapter, whole: Mapping[str, Node], dialect: str
) -> Iterable[tuple[Any, Node]]:
    family, sizes, roles = model.family, model.sizes, model.resolved.known_roles
    listed = {**adapter.whole, **adapter.base_weights}
    places = family.expansion(dialect, sizes, family.prefix_of(dialect, listed, sizes)).places
    for name, node in whole.items():
        if name not in places or places[name].shape != node.spec.shape:
            raise UnsupportedError(f"the adapter contains {name}, but the model has no such tensor of its shape")
        instance = places[name].instances[0]
        if instance not in roles:
            raise _tied(instance[0])
        layout = family.layout_of(dialect, instance[0], sizes)
        yield instance, layout.undo(node) if layout else node


def _changed(
    before: Mapping[K, LogicalTensor], changes: Iterable[tuple[K, _Change]], rounding: Rounding
) -> dict[K, LogicalTensor]:
    """Returns the changed tensors, each summed in F32 and rounded once. Keys are names, or roles with indices."""
    by_tensor: dict[K, list[_Change]] = {}
    for key, change in changes:
        by_tensor.setdefault(key, []).append(change)
    return {
        key: rounding(_sum(str(key[0] if isinstance(key, tuple) else key), before[key], rows), before[key].spec.dtype)
        for key, rows in by_tensor.items()
    }


def _sum(name: str, weight: LogicalTensor, changes: Sequence[_Change]) -> Node:
    """Returns a tensor with all its changes, in F32."""
    from weighbridge.tensors.merging import Combination
    from weighbridge.tensors.nodes import is_plain, low_rank, rescale_rows
    from weighbridge.tensors.nodes.merged import merged

    whole = [(change.whole, change.weight) for change in changes if change.whole is not None and not change.is_base]
    copies = [change.whole for change in changes if change.is_base]
    if len(whole) == 1 and whole[0][1] == 1:
        result: LogicalTensor = whole[0][0]
    elif whole:
        factors = [factor for _, factor in whole]
        result = merged([weight, *(node for node, _ in whole)], Combination("linear", (1 - sum(factors), *factors)))
    else:
        result = next((node for node in copies if node is not None), weight)
    if not is_plain(result):
        raise RefusedError(
            f"the base weight {name} is quantized, and a merged weight would have to be quantized again",
            hint="merge into the unquantized model, then quantize",
        )
    for change in changes:
        if (pair := change.pair) is not None:
            result = low_rank(result, pair.a, pair.b, change.scale * change.weight)
            result = result if pair.lengths is None else rescale_rows(result, pair.lengths)
    return result
