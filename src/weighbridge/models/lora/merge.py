"""Merges a LoRA adapter into its base model, one tensor at a time while reading."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weighbridge.base.dtypes import DType
from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError
from weighbridge.base.words import plural
from weighbridge.models.lora import pairs, pictures
from weighbridge.models.lora.base_model import check_base
from weighbridge.models.lora.forms import adapter_form, resolved
from weighbridge.models.lora.pairs import LoraPair
from weighbridge.models.lora.peft import LoraAdapter
from weighbridge.models.lora.resolve_experts import scaled_alike
from weighbridge.models.model import OpenModel, open_weights
from weighbridge.models.transform import packed_rename
from weighbridge.models.transform.base import with_nodes

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import LogicalTensor, Node

# Rounds a tensor to a type.
Rounding = Callable[["Node", DType], "Node"]


def merge_adapter(model: OpenModel, path: Path) -> OpenModel:
    """Merges the adapter at `path` into the model's weights: W + alpha/rank * B @ A, computed in F32 and rounded to the
    base's type. Tensors that the adapter stores in full replace the model's; all others stay unchanged. The adapter's
    files stay open with the model."""
    from weighbridge.tensors.nodes import cast

    return _merge(model, path, cast)


def merge_for_writing(model: OpenModel, path: Path) -> OpenModel:
    """Merges as `merge_adapter` does, but rounds sums only once: to the type that they are cast to, otherwise to the
    base's."""
    from weighbridge.tensors.nodes import provisional

    return _merge(model, path, provisional)


def _merge(model: OpenModel, path: Path, rounding: Rounding) -> OpenModel:
    source = open_weights(path)
    try:
        if model.diffusion is not None:
            return _merge_picture(model, source, rounding)
        changes = _changes(model, source)
        nodes = _tensors(model, changes, rounding)
        notes = [*model.place.notes, *changes.notes]
        if copies := [name for name in model.logical if name not in nodes]:
            notes.append(f"left out: {', '.join(copies)}, a copy of the embedding, which the adapter changes")
        files = (*model.place.merged, *source.place.weights)
        merged = with_nodes(model, packed_rename.parts(model, nodes, ()))
        return replace(merged, place=replace(model.place, merged=files, notes=tuple(notes)))
    except BaseException:
        source.close()
        raise


def _merge_picture(model: OpenModel, source: OpenModel, rounding: Rounding) -> OpenModel:
    """Merges a LoRA of an image or video model."""
    if not pictures.is_picture_lora(source):
        reason = f"{source.place.path} isn't a LoRA of an image or video model"
        raise UsageError(reason, hint="a file of kohya, diffusers or ComfyUI")
    changed, notes = pictures.merged(model, source, rounding)
    files = (*model.place.merged, *source.place.weights)
    nodes = packed_rename.parts(model, {**model.logical, **changed}, ())
    return replace(
        with_nodes(model, nodes), place=replace(model.place, merged=files, notes=(*model.place.notes, *notes))
    )


def check_adapter(model: OpenModel, path: Path) -> None:
    """Raises UsageError, FormatError or UnsupportedError for an adapter that doesn't fit the model, whose weights may
    be quantized. Reads only headers."""
    from weighbridge.tensors.nodes import provisional

    with open_weights(path) as source:
        if model.diffusion is not None:
            _merge_picture(model, source, provisional)
        else:
            _changes(model, source)


class _Changes(NamedTuple):
    """The changes of an adapter. `through`: the part for tensors of the family's table, with `roles` as its pairs and
    `dialect` as its names; None if empty. `direct`: the part for the model's other tensors, under their names."""

    through: LoraAdapter | None
    roles: pairs.Roles
    dialect: str
    direct: LoraAdapter
    notes: tuple[str, ...]


def _changes(model: OpenModel, source: OpenModel) -> _Changes:
    form = adapter_form(source)
    if form is None:
        hint = "a folder of PEFT or MLX, or a GGUF of llama-server --lora"
        raise UsageError(f"{source.place.path} isn't a LoRA adapter", hint=hint)
    adapter = form.read(source)
    adapter = replace(adapter, whole={**adapter.base_weights, **adapter.whole})
    notes = check_base(model, source, adapter)
    through, direct = _split(model, adapter)
    if through is None:
        return _Changes(None, {}, form.dialect, scaled_alike(direct), notes)
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
    return _Changes(through, roles, form.dialect, scaled_alike(direct), notes)


def _split(model: OpenModel, adapter: LoraAdapter) -> tuple[LoraAdapter | None, LoraAdapter]:
    """Splits an adapter into the part for the family's tensors, and the part for those that no table names (a vision
    tower, a classifier's head), under the model's names. Without a table, all are of the second kind."""
    candidates: dict[str, list[str]] = {}
    for name in model.resolved.others if model.described else model.logical:
        candidates.setdefault(_plain(name), []).append(name)
    unique = {plain: names[0] for plain, names in candidates.items() if len(names) == 1}
    names = {name: unique[key] for name in (*adapter.pairs, *adapter.whole) if (key := _plain(name)) in unique}
    direct = replace(
        adapter,
        pairs={names[n]: pair for n, pair in adapter.pairs.items() if n in names},
        whole={names[n]: node for n, node in adapter.whole.items() if n in names},
    )
    through = replace(
        adapter,
        pairs={n: pair for n, pair in adapter.pairs.items() if n not in names},
        whole={n: node for n, node in adapter.whole.items() if n not in names},
    )
    remaining = [*through.pairs, *through.whole]
    if model.described or not remaining:
        return (through if remaining else None), direct
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


def _tensors(model: OpenModel, changes: _Changes, rounding: Rounding) -> dict[str, LogicalTensor]:
    """Returns all tensors of the model, changed or unchanged."""
    nodes = {**model.logical, **_direct_changes(model, changes.direct, rounding)}
    if changes.through is None:
        return nodes
    family, sizes, before = model.family, model.sizes, model.resolved.known_roles
    roles = {**before, **_replacements(model, changes.through, changes.dialect, rounding)}
    for instance, pair in changes.roles.items():
        changed = _changed(instance[0], roles[instance], pair, changes.through.scale(pair))
        roles[instance] = rounding(changed, roles[instance].spec.dtype)
    prefix = family.prefix_of(model.dialect, model.logical, sizes)
    saved = family.save(model.dialect, sizes, roles, prefix=prefix)
    # Copies of a changed embedding that the table leaves out (a head that repeats it) would be outdated.
    embeddings = [i for i, node in roles.items() if node is not before.get(i) and family.rows[i[0]].kind == "embedding"]
    shapes = {before[i].spec.shape for i in embeddings}
    copies = {name for name in model.resolved.report.dropped if model.logical[name].spec.shape in shapes}
    return {name: saved.get(name, node) for name, node in nodes.items() if name not in copies}


def _direct_changes(model: OpenModel, adapter: LoraAdapter, rounding: Rounding) -> Mapping[str, LogicalTensor]:
    """Returns the changed tensors of those that no table names."""
    shapes = {name: pair.shape for name, pair in adapter.pairs.items()}
    shapes |= {name: node.spec.shape for name, node in adapter.whole.items()}
    for name, shape in shapes.items():
        if (expected := model.logical[name].spec.shape) != shape:
            raise UsageError(
                f"the adapter has {name} as {list(shape)}, the model as {list(expected)}",
                hint="name the model that the adapter was trained on",
            )
    types = {name: model.logical[name].spec.dtype for name in shapes}
    whole = {name: rounding(node, types[name]) for name, node in adapter.whole.items()}
    return whole | {
        name: rounding(_changed(name, whole.get(name, model.logical[name]), pair, adapter.scale(pair)), types[name])
        for name, pair in adapter.pairs.items()
    }


def _changed(role: str, weight: LogicalTensor, pair: LoraPair, scale: float) -> Node:
    """Returns the weight with its change, in F32."""
    from weighbridge.tensors.nodes import is_plain, low_rank, rescale_rows

    if not is_plain(weight):
        raise RefusedError(
            f"the base weight {role} is quantized, and a merged weight would have to be quantized again",
            hint="merge into the unquantized model, then quantize",
        )
    changed = low_rank(weight, pair.a, pair.b, scale)
    return changed if pair.lengths is None else rescale_rows(changed, pair.lengths)


def _replacements(model: OpenModel, adapter: LoraAdapter, dialect: str, rounding: Rounding) -> Mapping[Any, Node]:
    family, sizes, roles = model.family, model.sizes, model.resolved.known_roles
    places = family.expansion(dialect, sizes, family.prefix_of(dialect, adapter.whole, sizes)).places
    out = {}
    for name, node in adapter.whole.items():
        if name not in places or places[name].shape != node.spec.shape:
            raise UnsupportedError(f"the adapter contains {name}, but the model has no such tensor of its shape")
        instance = places[name].instances[0]
        if instance not in roles:
            raise _tied(instance[0])
        layout = family.layout_of(dialect, instance[0], sizes)
        out[instance] = rounding(layout.undo(node) if layout else node, roles[instance].spec.dtype)
    return out
