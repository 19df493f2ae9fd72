"""From a checkpoint and options to a plan: names, types and metadata are settled here; nothing is read but headers and
what `probe` declares, nothing is written.

    source        target                names           types
    GGUF          GGUF                  as they are     kept, or cast by the rules of a GGUF
    HF, MLX       GGUF                  the family's    by the rules of a GGUF (recipe)
    any           safetensors, npz      as they are     kept, or cast
    any           torch                 as they are     kept, or cast; what is stored once stays so
    any           HF folder             the family's    kept, or cast, or quantized; config and tokenizer beside
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from weighbridge.base.dtypes import BF16, F16, F32, DType, Kind
from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.base.gc_pause import paused
from weighbridge.containers import BUILT_IN, by_target, model_suffixes, reader, target_of, writable
from weighbridge.conversion import dtype_policy, lora
from weighbridge.conversion.checkpoint import training
from weighbridge.conversion.gguf import ggml_upgrade as upgrade
from weighbridge.conversion.gguf import metadata as meta
from weighbridge.conversion.mlx.plan import SHARD, to_mlx
from weighbridge.conversion.options import (
    FORMATS,
    AdapterOptions,
    CastOptions,
    CheckpointOptions,
    GgufOptions,
    HfOptions,
    MlxOptions,
    SchemeOptions,
    ShardOptions,
    TargetOptions,
    TorchFolderOptions,
    WriteOptions,
    resolve,
)
from weighbridge.conversion.plan import probe
from weighbridge.conversion.plan import writers as targets
from weighbridge.conversion.plan.builder import PlanBuilder, apart, retyped, side_files
from weighbridge.conversion.plan.fingerprint import state_of
from weighbridge.conversion.plan.model import Loss, Move, Plan, PlannedFile, check_lossless, losses_of
from weighbridge.conversion.schemes.plan import to_scheme
from weighbridge.io.filesystem import largest_file
from weighbridge.io.source import FileSource
from weighbridge.models.arch import kv_tensors as keyed
from weighbridge.models.arch.tables.values import multiplier
from weighbridge.models.arch.write_order import as_read
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.packings import mlx_affine_bridge as regrid
from weighbridge.packings.read import ggml
from weighbridge.packings.schema.microfloat import BLOCKS, SCALES
from weighbridge.packings.write import packers as makers
from weighbridge.tensors.nodes import Node, QuantizedTensor, transcode

# Containers whose files lie in a model folder, with config.json beside them.
_FOLDERS: Final = frozenset(f.name for f in BUILT_IN.values() if f.hub_name)
# The container of a model folder's weights, and what the files are called there.
_WEIGHTS: Final = MappingProxyType({"hf": "safetensors", "mlx": "safetensors", "hf-torch": "torch"})
_STEMS: Final = MappingProxyType({f.target: Path(f.hub_name).stem for f in writable().values() if f.hub_name})


class Target(NamedTuple):
    """Where a conversion writes, in which format, with which options."""

    path: Path
    format: str
    options: TargetOptions


def choose(
    model: Checkpoint,
    path: Path,
    to: str | TargetOptions | None = None,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> Target:
    """The target of a conversion of `model` to `path`. `to`: a format, or options of one; None: it follows from the
    path. `given`: options by name. UsageError for an option that doesn't apply."""
    base = to if isinstance(to, TargetOptions) else None
    name = _format_of(base, path) if base is not None else to
    kind = _requested_format(str(name), path, model) if name else _infer_format(path, model)
    options = type(base) if base is not None else _options_class(model, kind, "scheme" in given)
    source = model.format if model.format in ("gguf", "ggml") else "model"
    return Target(path, kind, resolve(options, source, given, base))


def _format_of(options: TargetOptions, path: Path) -> str | None:
    """The format that a class of options is for; None for an adapter, whose format follows from the path."""
    if isinstance(options, SchemeOptions):
        return "hf"
    names = [name for name, known in FORMATS.items() if type(options) is known]
    return next((name for name in names if path.suffix == f".{name}"), names[0] if names else None)


def _options_class(model: Checkpoint, kind: str, scheme: bool) -> type[TargetOptions]:
    if training.wanted(model.place.path, kind):
        return CheckpointOptions
    if lora.converts_adapter(model, kind):
        return AdapterOptions
    if kind == "hf" and scheme:
        return SchemeOptions
    if kind not in FORMATS:
        targets.writer(kind)  # UnsupportedError where nothing writes it
    return FORMATS.get(kind, CastOptions)


def build(model: Checkpoint, target: Target, write: WriteOptions = WriteOptions()) -> Plan:
    """The plan of converting `model` to `target`. RefusedError, UnsupportedError or UsageError where it can't be done
    as asked."""
    with paused():
        return replace(_build(model, target, write), sources=tuple(map(state_of, model.place.weights)), model=model)


def _build(model: Checkpoint, target: Target, write: WriteOptions) -> Plan:
    path, kind, options = target
    if kind == training.NAME:
        return training.plan_checkpoint(model, path, write)
    if training.wanted(model.place.path, kind):
        return training.plan_torch(model.place.path, path, write)
    draft = _drafted(model, kind, options)
    container = _WEIGHTS.get(kind, kind)
    folder = kind in _WEIGHTS or (isinstance(options, ShardOptions) and options.sharded)
    check_target(path, model, folder)
    draft.stem = _stem(path, model, kind)
    if isinstance(options, MlxOptions) and not options.sharded:
        options = replace(options, max_shard_size=SHARD)
    policy = options if isinstance(options, CastOptions) else CastOptions()
    if policy.inexact == "refuse":
        check_lossless(draft.tensors, draft.moves)
    written = targets.writer(container)(draft.stem, draft.tensors, draft.metadata, options)
    lost = losses_of(draft.tensors, policy.allow_requantize)
    if draft.index is not None:
        where = {slot.name: file.name for file in written.files for slot, _ in file.slots}
        draft.texts["model.safetensors.index.json"] = draft.index(where)
    return Plan(
        source=str(model.place.path),
        target=path,
        format=kind,
        folder=folder,
        files=(*(written.files if folder else _called(path.name, written.files)), *draft.beside),
        texts={**written.texts, **draft.texts},
        losses=(*draft.losses, *lost),
        moves=tuple(draft.moves),
        notes=(*draft.notes, *written.notes, *_too_large(path, written)),
        write=write,
        reports=draft.reports,
    )


def _drafted(model: Checkpoint, kind: str, options: TargetOptions) -> PlanBuilder:
    """What will be in the files of a target."""
    match options:
        case AdapterOptions():
            return lora.plan_adapter(model, kind, options)
        case SchemeOptions():
            return to_scheme(model, options)
        case MlxOptions():
            return to_mlx(model, options)
        case GgufOptions():
            return to_gguf(model, options)
        case HfOptions() | TorchFolderOptions():
            return _to_hf(model, options, _WEIGHTS[kind])
    assert isinstance(options, CastOptions)
    return _plain(model, options, kind)


def _called(name: str, files: tuple[PlannedFile, ...]) -> list[PlannedFile]:
    """The one file of a target that is no folder, under the target's own name."""
    return [replace(f, name=name) for f in files]


def _too_large(path: Path, written: targets.Written) -> list[str]:
    """A warning for each file that the target's file system can't hold."""
    bound = largest_file(path)
    return [
        f"{f.name} has {f.layout.size:,} bytes; the file system there holds at most {bound:,} in one file: shard it "
        "with --max-shard-size 4GB"
        for f in written.files
        if bound is not None and f.layout.size > bound
    ]


def _requested_format(to: str, path: Path, model: Checkpoint) -> str:
    """The format that was asked for; for torch a model folder where a folder is asked for and there is one to make."""
    if to in _WEIGHTS or to == training.NAME:
        return to
    container = by_target(to)
    if container and container.target == "torch" and target_of(path.suffix) is None and _folder_of_models(model):
        return "hf-torch"
    return container.target if container else to


def _folder_of_models(model: Checkpoint) -> bool:
    return model.format == "gguf" or (model.place.path.is_dir() and model.format in _FOLDERS)


def _infer_format(path: Path, model: Checkpoint) -> str:
    """The target's format from its name: an extension, or a folder, which is the source's own kind of folder."""
    if (target := target_of(path.suffix)) is not None:
        return target
    if path.suffix and not path.is_dir() and not path.suffix[1:].isdigit():
        raise UsageError(f"{path.suffix!r} is no format to write", hint=f"{', '.join(model_suffixes())}, or say --to")
    return "hf" if _folder_of_models(model) else reader(model.format).own_target


def same_format(model: Checkpoint, path: Path) -> str | None:
    """The format that keeps a model in the form it has; None where the target's extension says one."""
    if target_of(path.suffix) is not None:
        return None
    if model.place.path.is_dir() and model.format == "safetensors":
        return "hf"
    return reader(model.format).own_target


def check_target(path: Path, model: Checkpoint, folder: bool) -> None:
    """RefusedError where writing to `path` would harm the source."""
    here = path.resolve()
    held = {w.resolve() for w in model.place.weights}
    if here in held or (folder and any(w.parent == here for w in held)):
        raise RefusedError(f"{path} holds the source itself", hint="choose another target")


def _stem(path: Path, model: Checkpoint, kind: str) -> str:
    """What the files are called before `-00001-of-...` and the suffix."""
    container = _WEIGHTS.get(kind, kind)
    if kind in _WEIGHTS or (container in _STEMS and not path.suffix):
        return lora.STEM if lora.converts_adapter(model, kind) else _STEMS[container]
    return path.name if target_of(path.suffix) is None else path.stem


# ------------------------------------------------------------------------------------------------ to GGUF


def to_gguf(model: Checkpoint, options: GgufOptions) -> PlanBuilder:
    """Names, types, order and keys of `model` as a GGUF."""
    if model.format == "gguf":
        return _gguf_again(model, options)
    if model.format == "ggml":
        return _upgraded(model, options)
    family = model.family
    draft = PlanBuilder({}, losses=apart(model))
    sizes = model.sizes
    lost = family.unmapped_roles("gguf", sizes, model.roles)
    spare = [i for i in lost if family.rows[i[0]].zeros]
    for part, which in (("it", [i for i in lost if i not in spare]), ("the rows that no token takes", spare)):
        names = family.holding(model.dialect, sizes, model.logical, which)
        draft.losses += [Loss(f"left out: a {family.gguf} GGUF has no place for {part}", name) for name in names]
    named = model.resolved.save("gguf", source_order=as_read(model.files_of_tensors))
    wanted = dtype_policy.gguf_wanted(options.dtype, (n.spec for n in model.stored.values()))
    inside = keyed.names(family)
    for name in (n for n in named if n not in inside):
        draft.tensors |= _for_gguf(family.gguf, name, named[name], wanted, options, draft)
    lists = {name: probe.numbers(name, node) for name, node in named.items() if name in inside}
    draft.metadata = meta.for_gguf(model, draft.tensors, wanted, options, draft.losses, lists)
    if said := [key for key in family.folded if multiplier(key, sizes.facts) != 1]:
        draft.notes.append(
            f"{', '.join(said)}: multiplied into the weights, as a {family.gguf} GGUF has no keys for them; "
            "a folder that is made of it has other weights and 1 for each, and computes the same"
        )
    return draft


def _upgraded(model: Checkpoint, options: GgufOptions) -> PlanBuilder:
    """A llama from before GGUF."""
    tensors, losses, types = upgrade.tensors(model, options.dtype)
    draft = PlanBuilder({}, losses=losses)
    for name, node in tensors.items():
        draft.tensors[name] = retyped(name, node, types[name], draft)
    draft.metadata = upgrade.keys(model, draft.tensors, options, draft.notes)
    return draft


def _for_gguf(
    graph: str, name: str, node: Node, wanted: DType, options: GgufOptions, draft: PlanBuilder
) -> dict[str, Node]:
    """The stored tensors of a logical one: itself, and what goes beside it."""
    chosen = dtype_policy.gguf_dtype(name, node.spec, wanted)
    if isinstance(node, QuantizedTensor):
        keep = chosen is wanted and options.dtype in (None, "auto")
        found = (keep and _scaled(graph, name, node)) or _moved(name, node, chosen, keep=keep, options=options)
        draft.moves.append(found.move)
        if found.tensors:
            return found.tensors
    if chosen is F16 and wanted.block > 1:
        draft.losses.append(Loss(f"its rows of {node.spec.shape[-1]} are no whole blocks of {wanted}: F16", name))
    return {name: retyped(name, node, chosen, draft)}


class _Moved(NamedTuple):
    move: Move
    tensors: dict[str, Node]  # none: decoded


def _scaled(graph: str, name: str, node: QuantizedTensor) -> _Moved | None:
    """A tensor whose blocks want a scale of the whole tensor beside them; None where it isn't exact so."""
    parted = ggml.apart(graph, name, node)
    block, why = probe.block_for(parted.blocks, dtype_policy.EXACT_BLOCKS) if parted else (None, "")
    if parted is None or block is None or why:
        return None
    beside = {f"{name.removesuffix('.weight')}.scale": parted.scale}
    return _Moved(Move(name, node.packing.name, block.name, "exact"), {name: transcode(parted.blocks, block), **beside})


def _moved(name: str, node: QuantizedTensor, chosen: DType, *, keep: bool, options: GgufOptions) -> _Moved:
    """A packed tensor in a block type that holds its codes, where that is wanted (`keep`) and possible."""
    source = node.packing.name
    if not keep:
        return _Moved(Move(name, source, chosen.name, "decoded", "another type was asked for"), {})
    symmetric = regrid.as_grid(node)
    for form in (node,) if symmetric is None else (symmetric, node):
        block, why = probe.block_for(form, dtype_policy.EXACT_BLOCKS)
        if block is not None and not why:
            return _Moved(Move(name, source, block.name, "exact"), {name: transcode(form, block)})
    if options.inexact == "refuse":
        raise RefusedError(f"{name} can't be moved without loss: {why}", option="--inexact float (or near)")
    if options.inexact == "near" and block is not None and node.packing.parameters:
        rounded = probe.rounding(node)
        return _Moved(Move(name, source, block.name, "near", why, rounded), {name: transcode(node, block)})
    return _Moved(Move(name, source, chosen.name, "decoded", why), {})


def _gguf_again(model: Checkpoint, options: GgufOptions) -> PlanBuilder:
    """GGUF to GGUF: split, merged, realigned, cast; keys kept."""
    draft = PlanBuilder(dict(model.stored))
    kept = meta.kept_keys(model.metadata)
    if options.dtype is not None:
        wanted = dtype_policy.gguf_wanted(options.dtype, (n.spec for n in model.stored.values()))
        for name, node in model.stored.items():
            draft.tensors[name] = retyped(name, node, dtype_policy.gguf_dtype(name, node.spec, wanted), draft)
        kept = meta.with_file_type(kept, wanted)
    draft.metadata = meta.with_alignment(meta.named(kept, options.name), options.align)
    return draft


# ------------------------------------------------------------------------------------------------ to plain containers


def _plain(model: Checkpoint, options: CastOptions, kind: str) -> PlanBuilder:
    """Names kept. A tensor stored in parts stays in parts unless its values are asked for."""
    targets.writer(kind)
    nodes = model.stored if options.dtype is None else model.logical
    draft = PlanBuilder({}, {} if model.format == "gguf" else model.metadata)
    if reader(model.format).own_target == "torch":
        draft.metadata = {"format": "pt", **model.metadata}
        draft.losses += [Loss(f.message) for f in model.index.findings if f.rule.startswith("pickle.")]
    decoded = []
    for name, node in nodes.items():
        wanted = _holdable(dtype_policy.plain_dtype(options.dtype, node.spec), kind)
        if wanted is not node.spec.dtype and options.dtype is None:
            decoded.append(name)
        draft.tensors[name] = retyped(name, node, wanted, draft)
    if decoded:
        many = f"{len(decoded):,} tensors are" if len(decoded) > 1 else "1 tensor is"
        draft.notes.append(f"{many} decoded, as {kind} has no such type: first {decoded[0]}")
    if model.format == "gguf" and (count := len(model.metadata)):
        keys = f"left out: the GGUF's keys, {count:,} in all (--to hf makes a folder with config and tokenizer)"
        draft.losses.append(Loss(keys))
    return draft


# Containers that hold a type if they have a name for it.
_NAMES: Final[Mapping[str, Callable[[DType], str | None]]] = MappingProxyType(
    {"safetensors": lambda t: t.safetensors, "torch": lambda t: t.torch}
)


def _holdable(wanted: DType, kind: str) -> DType:
    """The type itself where the container holds it; else F32, which holds every value of the small float types."""
    if kind in _NAMES:
        return wanted if _NAMES[kind](wanted) else F32
    small = wanted.kind is Kind.FLOAT and (wanted.numpy is None or wanted is BF16 or wanted.size == 1)
    return F32 if small or wanted.kind is Kind.BLOCK else wanted


# ------------------------------------------------------------------------------------------------ to an HF folder


def _to_hf(model: Checkpoint, options: HfOptions | TorchFolderOptions, container: str) -> PlanBuilder:
    if model.format == "gguf":
        return _gguf_to_hf(model, options)
    if model.format not in _FOLDERS:
        raise UsageError(f"a {model.format} file has no config to make a model folder of")
    packed = any(isinstance(node, QuantizedTensor) for node in model.logical.values())
    draft = _unpacked(model, options) if packed and options.dtype else _plain(model, options, container)
    folder = model.place.folder
    draft.texts |= model.texts
    if options.dtype not in (None, "auto") and model.config:
        draft.texts["config.json"] = meta.retyped(model.config, options.dtype)
    for path in side_files(folder):
        name = path.relative_to(folder).as_posix()
        if name not in draft.texts:
            draft.beside.append(targets.raw(name, FileSource(path)))
    return draft


def _unpacked(model: Checkpoint, options: CastOptions) -> PlanBuilder:
    """A quantized MLX folder as an ordinary one: values of the type asked for, under the original's names."""
    named = model.family.save("hf", model.sizes, model.roles)
    draft = PlanBuilder({}, {"format": "pt"}, losses=apart(model))
    for name, node in named.items():
        draft.tensors[name] = retyped(name, node, dtype_policy.plain_dtype(options.dtype, node.spec), draft)
    return draft


def _gguf_to_hf(model: Checkpoint, options: HfOptions | TorchFolderOptions) -> PlanBuilder:
    if not model.index.by_name:
        raise UsageError(f"{model.place.path} holds no tensors, only keys", hint="name the GGUF with the weights")
    own = model.family.holding_blocks(model.sizes, model.roles) if options.dtype is None else None
    named = model.family.save(own or "hf", model.sizes, model.roles)
    draft = PlanBuilder({}, {"format": "pt"}, losses=_unplaced(model, own or "hf"))
    narrow = probe.narrowest(named) if options.dtype is None else {}
    for name, node in named.items():
        if own and name.endswith(BLOCKS):
            draft.moves.append(Move(name, node.spec.dtype.name, own, "exact"))
            scales = name.removesuffix(BLOCKS) + SCALES
            draft.tensors[name], draft.tensors[scales] = makers.in_parts(node)
            continue
        wanted = dtype_policy.plain_dtype(options.dtype, node.spec)
        if wanted.kind is Kind.BLOCK:
            draft.losses.append(Loss(f"decoded from {wanted} to {F16}", name))
            wanted = F16
        draft.tensors[name] = retyped(name, node, narrow.get(name, wanted), draft)
    draft.texts, lost = meta.for_hf(model, draft.tensors, options.tokenizer, quantized=own)
    draft.losses += lost
    return draft


def _unplaced(model: Checkpoint, dialect: str) -> list[Loss]:
    """What a GGUF holds that a folder has no place for; zeros that its graph asks for are no loss."""
    family = model.family
    lost = [i for i in family.unmapped_roles(dialect, model.sizes, model.roles) if not probe.nothing(model.roles[i])]
    names = family.holding(model.dialect, model.sizes, model.tensors, lost)
    return [Loss(f"left out: a {family.name} folder has no place for it", name) for name in names]
