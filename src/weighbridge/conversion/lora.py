"""Converts LoRA adapters to other formats, and merges them into their base model.

PEFT, MLX -> GGUF     names, order and layout by the base model's table, as the reference's convert_lora_to_gguf.py
GGUF, MLX -> PEFT     the same backwards; the base model says what the adapter's GGUF doesn't
adapter -> model      W + alpha/rank * B @ A while the model is converted
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError
from weighbridge.containers.gguf.values import KV
from weighbridge.conversion import dtype_policy
from weighbridge.conversion.options import AdapterOptions
from weighbridge.conversion.plan.builder import PlanBuilder, cast_to
from weighbridge.conversion.plan.model import Loss
from weighbridge.io.location import open_source
from weighbridge.models.arch.expand import Sizes, TensorSlot
from weighbridge.models.arch.family import Family
from weighbridge.models.arch.registry import family_of_hf, read_family
from weighbridge.models.arch.write_order import reference_order
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.config import card
from weighbridge.models.config.general import general_to_gguf
from weighbridge.models.jsonfile import decode
from weighbridge.models.lora import gguf, mlx, pairs, peft
from weighbridge.models.lora.pairs import LoraPair
from weighbridge.models.lora.peft import LoraAdapter
from weighbridge.models.lora.resolve_experts import resolve_adapter
from weighbridge.models.open import SourceOptions, open_model
from weighbridge.models.transform import packed_rename
from weighbridge.models.transform.base import with_nodes
from weighbridge.tensors.nodes import LogicalTensor, Node, cast, is_plain, low_rank, rescale_rows

STEM: Final = peft.STEM
# Dialects that stack experts, which PEFT's `target_parameters` address.
_STACKED: Final = "hf5"
_MERGE: Final = "merge the adapter into the model: wb convert BASE DST --lora ADAPTER"
_BASE: Final = "name the model it is for: --base FOLDER (its config.json is enough) or --base MODEL.gguf"


class _Form(NamedTuple):
    """An adapter format: the dialect of its names, how it is detected and read, and its possible targets."""

    dialect: str
    known: Callable[[Checkpoint], bool]
    read: Callable[[Checkpoint], LoraAdapter]
    targets: tuple[str, ...]


# In order of detection: PEFT is any other folder with an adapter's config.
_FORMS: Final = (
    _Form("gguf", gguf.is_adapter, gguf.read, ("hf", "safetensors")),
    _Form("mlx", mlx.is_adapter, mlx.read, ("gguf", "hf", "safetensors")),
    _Form("hf", peft.is_adapter, peft.read, ("gguf",)),
)


def _form(model: Checkpoint) -> _Form | None:
    return next((form for form in _FORMS if form.known(model)), None)


def converts_adapter(model: Checkpoint, kind: str) -> bool:
    """Whether a conversion is from one adapter format to another."""
    form = _form(model)
    return form is not None and kind in form.targets


def plan_adapter(model: Checkpoint, kind: str, options: AdapterOptions) -> PlanBuilder:
    """An adapter in another format."""
    form = _form(model)
    if form is None:
        raise UsageError(f"{model.place.path} isn't a LoRA adapter")
    adapter = form.read(model)
    base = _base(model, adapter, options)
    adapter, roles = _roles(adapter, form.dialect, base.family, base.sizes)
    _check_lengths(adapter)
    if kind == "gguf":
        return _to_gguf(model, adapter, roles, base, options)
    return _to_peft(adapter, roles, base, options)


class _Base(NamedTuple):
    """The base model of an adapter. `tied`: its head is the embedding."""

    family: Family
    sizes: Sizes
    tied: bool


def _base(model: Checkpoint, adapter: LoraAdapter, options: AdapterOptions) -> _Base:
    """The facts known about an adapter's base model."""
    declared = options.base or adapter.base
    if declared is None:
        raise UsageError(f"{model.place.path} doesn't name its base model", hint=_BASE)
    path = Path(declared)
    if options.base is None and not path.exists():
        raise UsageError(f"the adapter is for {str(declared)!r}, which wasn't found", hint=_BASE)
    if path.is_dir() and (path / "config.json").is_file():
        with open_source(path / "config.json") as source:
            config = decode(source.read(0, source.size), source.name, dict[str, Any])
        family = family_of_hf(config, (read_family(Path(model.arch_file)),) if model.arch_file else ())
        sizes = family.sizes_from_hf(config)
        return _Base(family, sizes, bool(sizes.facts.get("tie_word_embeddings")))
    with open_model(path, SourceOptions(arch_file=model.arch_file)) as base:
        head = base.format != "gguf" or "output.weight" in base.index
        return _Base(base.family, base.sizes, not head or bool(base.sizes.facts.get("tie_word_embeddings")))


# ------------------------------------------------------------------------------------------------ to GGUF


def _to_gguf(
    model: Checkpoint, adapter: LoraAdapter, roles: pairs.Roles, base: _Base, options: AdapterOptions
) -> PlanBuilder:
    out, (family, sizes, tied) = PlanBuilder({}), base
    named = pairs.save(family, "gguf", sizes, roles)
    if tied and (found := next((n for n in ("output.weight", gguf.EMBEDDING) if n in named), None)):
        raise UnsupportedError(
            f"the adapter changes {found}; this model's embedding and head are tied, and llama.cpp supports "
            "adapters for neither", hint=_MERGE,
        )  # fmt: skip
    whole = _norms(adapter, family, sizes, out)
    places = family.expansion("gguf", sizes).places
    order = reference_order(family, {n: places[n] for n in named}, sizes, list(adapter.pairs))
    tensors = gguf.tensors({name: named[name] for name in order}, whole)
    asked = dtype_policy.gguf_wanted(options.dtype or "f32", (n.spec for n in model.stored.values()))
    for name, node in tensors.items():
        out.tensors[name] = cast_to(name, node, dtype_policy.gguf_dtype(name, node.spec, asked), out)
    out.metadata = _keys(model, adapter, family, {n: p.shape for n, p in named.items()}, options)
    return out


def _check_lengths(adapter: LoraAdapter) -> None:
    """UnsupportedError for a DoRA if the target can't express it."""
    if found := next((name for name, pair in adapter.pairs.items() if pair.lengths is not None), None):
        raise UnsupportedError(
            f"{found}: DoRA sets the length of each row of the changed weight. That isn't B @ A, and an adapter "
            "of this format can't store it", hint=_MERGE,
        )  # fmt: skip


def _roles(adapter: LoraAdapter, dialect: str, family: Family, sizes: Sizes) -> tuple[LoraAdapter, pairs.Roles]:
    """An adapter resolved against its base, and its changes to logical tensors."""
    if dialect not in family.dialects:
        raise UnsupportedError(f"the {family.name} family has no {dialect} names that an adapter could have")
    prefix = family.prefix_of(dialect, dict.fromkeys((*adapter.pairs, *adapter.whole)), sizes)
    found = resolve_adapter(adapter, family, dialect, sizes, prefix)
    if dialect == "hf" and _STACKED in family.dialects and _strangers(found, family, dialect, sizes, prefix):
        stacked = resolve_adapter(adapter, family, _STACKED, sizes, prefix)
        if not _strangers(stacked, family, _STACKED, sizes, prefix):
            return stacked, pairs.load(family, _STACKED, sizes, stacked.pairs, prefix)
    adapter = found
    places = family.expansion(dialect, sizes, prefix).places
    turned = {n: dialect == "mlx" and n in places and _is_table(family, places[n]) for n in adapter.pairs}
    named = {name: pair.turned() if turned[name] else pair for name, pair in adapter.pairs.items()}
    return adapter, pairs.load(family, dialect, sizes, named, prefix)


def _strangers(adapter: LoraAdapter, family: Family, dialect: str, sizes: Sizes, prefix: str) -> bool:
    """Whether some pairs are for tensors that the dialect lacks."""
    places = family.expansion(dialect, sizes, prefix).places
    return any(name not in places for name in adapter.pairs)


def _is_table(family: Family, place: TensorSlot) -> bool:
    """Whether a tensor is looked up by token."""
    return family.rows[place.roles[0]].kind == "embedding"


def _norms(adapter: LoraAdapter, family: Family, sizes: Sizes, out: PlanBuilder) -> dict[str, Node]:
    """Fully trained norms, which the reference writes and llama.cpp ignores; other full tensors can't be stored."""
    if not adapter.whole:
        return {}
    places = family.expansion("hf", sizes, family.prefix_of("hf", adapter.whole, sizes)).places
    for name in adapter.whole:
        if name not in places or family.rows[places[name].roles[0]].kind != "norm":
            raise UnsupportedError(
                f"the adapter has the full tensor {name} (modules_to_save, a bias), which a GGUF adapter can't store",
                hint=_MERGE,
            )
        out.losses.append(Loss("fully trained: llama.cpp ignores it in an adapter", name))
    holder = {places[name].instances[0]: node for name, node in adapter.whole.items()}
    names = {place.instances[0]: n for n, place in family.expansion("gguf", sizes).places.items()}
    layouts = {i: family.layout_of("gguf", i[0], sizes) for i in holder}
    return {names[i]: layout.apply(node) if (layout := layouts[i]) else node for i, node in holder.items()}


def _keys(
    model: Checkpoint,
    adapter: LoraAdapter,
    family: Family,
    shapes: Mapping[str, tuple[int, ...]],
    options: AdapterOptions,
) -> dict[str, KV]:
    """The adapter's key-values, in the reference's order."""
    about, _ = card.read_card(model.place.read("README.md"))
    folder = options.name or model.place.folder.resolve().name
    about = {**about, "name": options.name} if options.name else about
    general = general_to_gguf(family, directory=folder, config={}, shapes=shapes, card=about, kind="adapter")
    front = {key: general.pop(key) for key in ("general.architecture", gguf.TYPE)}
    out = {**front, gguf.KIND: KV("str", "lora"), **general, gguf.ALPHA: KV("f32", adapter.alpha)}
    if adapter.tokens:
        out[gguf.TOKENS] = KV("arr[u32]", list(adapter.tokens))
    return {**out, "general.quantization_version": KV("u32", 2)}


# ------------------------------------------------------------------------------------------------ to PEFT


def _to_peft(adapter: LoraAdapter, roles: pairs.Roles, base: _Base, options: AdapterOptions) -> PlanBuilder:
    family, sizes, _ = base
    if adapter.whole:
        raise UnsupportedError(f"the adapter contains the full tensor {next(iter(adapter.whole))}, which isn't a LoRA")
    named = pairs.save(family, "hf", sizes, roles)
    places = family.expansion("hf", sizes).places
    tables = frozenset(name for name in named if _is_table(family, places[name]))
    declared = str(options.base) if options.base else adapter.base
    conv = any(family.rows[places[name].roles[0]].transposed("hf") for name in named)
    tensors, config = peft.write(replace(adapter, pairs=named, base=declared), tables, conv=conv)
    out = PlanBuilder({}, {"format": "pt"})
    for name, node in tensors.items():
        out.tensors[name] = cast_to(name, node, dtype_policy.plain_dtype(options.dtype, node.spec), out)
    out.texts[peft.CONFIG] = (json.dumps(config, indent=2) + "\n").encode()
    return out


# ------------------------------------------------------------------------------------------------ into the model


def merge_adapter(model: Checkpoint, path: Path) -> Checkpoint:
    """The model with the adapter at `path` merged into its weights: W + alpha/rank * B @ A, computed in F32 and
    rounded once. Tensors that the adapter stores in full replace the model's. The adapter's files stay open with the
    model."""
    found = open_model(path)
    try:
        form = _form(found)
        if form is None:
            raise UsageError(
                f"{path} isn't a LoRA adapter", hint="a folder of PEFT or MLX, or a GGUF for llama.cpp's --lora"
            )
        return _with(model, form.read(found), form.dialect)
    except BaseException:
        found.close()
        raise


def _with(model: Checkpoint, adapter: LoraAdapter, dialect: str) -> Checkpoint:
    family, sizes = model.family, model.sizes
    adapter, changes = _roles(adapter, dialect, family, sizes)
    roles = dict(model.roles)
    for instance, pair in changes.items():
        if instance not in roles:
            raise UsageError(
                f"the adapter changes {instance[0]}, which the model doesn't store separately",
                hint="a tied head is the embedding: untie it, or merge with PEFT",
            )
        via = family.rows[instance[0]].layouts.get("gguf")
        if via is not None and via.from_config and not sizes.facts:
            raise UnsupportedError(
                f"the GGUF stores {instance[0]} multiplied by an unknown factor ({via}), unlike the adapter's change",
                hint="merge the adapter into the folder that the GGUF was made of",
            )
        roles[instance] = _changed(instance[0], roles[instance], pair, adapter.scale(pair))
    if adapter.whole:
        roles |= _whole(model, adapter, dialect)
    prefix = family.prefix_of(model.dialect, model.logical, sizes)
    nodes = family.save(model.dialect, sizes, roles, prefix=prefix)
    return with_nodes(model, packed_rename.parts(model, {n: nodes[n] for n in model.logical if n in nodes}, ()))


def _changed(role: str, weight: LogicalTensor, pair: LoraPair, scale: float) -> Node:
    if not is_plain(weight):
        raise RefusedError(
            f"{role} is quantized: what is added to it would have to be quantized again",
            hint="merge into the model in its floats, then quantize",
        )
    changed = low_rank(weight, pair.a, pair.b, scale)
    return cast(changed if pair.lengths is None else rescale_rows(changed, pair.lengths), weight.spec.dtype)


def _whole(model: Checkpoint, adapter: LoraAdapter, dialect: str) -> Mapping[Any, Node]:
    family, sizes = model.family, model.sizes
    places = family.expansion(dialect, sizes, family.prefix_of(dialect, adapter.whole, sizes)).places
    out = {}
    for name, node in adapter.whole.items():
        if name not in places or places[name].shape != node.spec.shape:
            raise UnsupportedError(f"the adapter contains {name}, but the model has no such tensor of its shape")
        instance = places[name].instances[0]
        layout = family.layout_of(dialect, instance[0], sizes)
        out[instance] = cast(layout.undo(node) if layout else node, model.roles[instance].spec.dtype)
    return out
