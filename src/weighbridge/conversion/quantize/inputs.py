"""The inputs of quantizing: tensors and keys in llama-quantize's order, without pruned layers; the importance matrix.

The tensors and keys are those of the GGUF that a conversion of the model would write. The types are chosen later.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from weighbridge.base.dtypes import BF16, F16
from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.base.ftypes import GUESSED, FileType
from weighbridge.base.limits import RECIPE_BYTES
from weighbridge.base.records import dataclass
from weighbridge.base.spec import without_leading_ones
from weighbridge.base.words import plural, suggest_for_glob
from weighbridge.containers.gguf.values import KV, kvs
from weighbridge.conversion.gguf import diffusion as pictures
from weighbridge.conversion.gguf import metadata
from weighbridge.conversion.gguf.plan import add_stored_projector, to_gguf
from weighbridge.conversion.gguf.set_keys import given_keys, losses_of_keys
from weighbridge.conversion.options import GgufFileOptions, GgufOptions, QuantizeOptions
from weighbridge.conversion.plan.builder import PlanBuilder, left_out
from weighbridge.conversion.plan.contents import PlannedFile
from weighbridge.conversion.plan.losses.settings import check_keys, check_settings
from weighbridge.conversion.plan.writers import specs
from weighbridge.conversion.quantize import diffusion_types, ftypes
from weighbridge.conversion.quantize import imatrix as importance
from weighbridge.conversion.quantize import keys as gguf_keys
from weighbridge.conversion.quantize import prune_layers as pruning
from weighbridge.conversion.result import Loss
from weighbridge.io.source import FileSource
from weighbridge.models.llamacpp import table
from weighbridge.models.llamacpp.candidate import Candidate
from weighbridge.models.llamacpp.rules import missing_keys, unknown_architecture
from weighbridge.models.model import OpenModel
from weighbridge.tensors.nodes import CastReport, Node, QuantizedTensor, reshape

_ARCHITECTURE: Final = "general.architecture"


def type_options(options: QuantizeOptions) -> ftypes.TypeOptions:
    """The parsed options that affect types; a recipe's patterns come last. Raises UsageError for an invalid type or
    pattern."""
    output, embedding = options.output_tensor_type, options.token_embedding_type
    recipe = () if options.recipe is None else ftypes.tensor_type_file(read_recipe(options.recipe))
    return ftypes.TypeOptions(
        pure=options.pure,
        leave_output=options.leave_output_tensor,
        output_type=None if output is None else ftypes.target_type(output),
        embedding_type=None if embedding is None else ftypes.target_type(embedding),
        tensor_types=(*map(ftypes.tensor_type, options.tensor_type), *recipe),
        allow_requantize=options.allow_requantize,
    )


def read_recipe(path: str | os.PathLike[str]) -> str:
    """The text of a recipe or a `--tensor-type-file`. Raises UsageError for a file that is too large for one."""
    with FileSource(path) as source:
        if source.size > RECIPE_BYTES:
            size = f"{source.size:,} bytes, too many for a recipe"
            raise UsageError(f"{os.fspath(path)} has {size}", hint="a recipe has one pair per tensor")
        return bytes(source.read(0, source.size)).decode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class QuantizeInputs:
    """The inputs of choosing types.

    `tensors`: by their final names, in the order of choosing and writing. `shard_of`: the shard of each tensor, with
    --keep-split. `entries`: the name of each tensor in the importance matrix. `keys_set`: the keys of `--kv`. `towers`:
    the second GGUF, `tower_reports` the casts of its tensors, `sources` further files that it is made of.
    """

    tensors: Mapping[str, Node]
    keys: Mapping[str, KV]
    facts: ftypes.ModelFacts
    shard_of: Mapping[str, int]
    shards: int
    imatrix: LoadedImatrix | None
    entries: Mapping[str, str]
    losses: tuple[Loss, ...]
    notes: tuple[str, ...]
    converted: bool
    keys_set: Mapping[str, KV]
    towers: tuple[PlannedFile, ...] = ()
    sources: tuple[Path, ...] = ()
    tower_reports: Mapping[str, CastReport] = field(default_factory=dict)

    @property
    def is_diffusion(self) -> bool:
        return self.facts.architecture in diffusion_types.table().architectures

    def is_quantizable(self, name: str, options: ftypes.TypeOptions = ftypes.TypeOptions()) -> bool:
        """Whether the type of a tensor may change."""
        spec, architecture = self.tensors[name].spec, self.facts.architecture
        if self.is_diffusion:
            return diffusion_types.quantizable(architecture, name, spec)
        return ftypes.quantizable(name, spec, architecture, options)

    def choose(self, ftype: FileType | None, options: ftypes.TypeOptions) -> ftypes.TypeChoice:
        """Chooses the types for a file type (None: COPY). Raises RefusedError for another model's importance matrix."""
        if self.is_diffusion:
            return diffusion_types.choose_types(specs(self.tensors), self.facts.architecture, ftype, options)
        sizes = None
        if self.imatrix is not None:
            entries = self.imatrix.matrix.sizes()
            sizes = {name: entries[entry] for name, entry in self.entries.items() if entry in entries}
            if not sizes and entries and ftype is not None:
                first = next(iter(entries))
                raise RefusedError(
                    f"no entry of {self.imatrix.path} matches a tensor (of {len(entries)}, first {first})",
                    hint="it belongs to another model; make one for this model with llama-imatrix",
                )
            sizes = sizes or dict.fromkeys(entries, 0)
        return ftypes.choose_types(specs(self.tensors), self.facts, ftype, options, sizes)

    def weights(self, name: str) -> Any:
        """Importance of a tensor's columns, f32[matrices, columns]; None without an entry of the right size."""
        entry = self.entries.get(name)
        if self.imatrix is None or entry is None or entry not in self.imatrix.matrix.entries:
            return None
        weights, shape = self.imatrix.matrix.weights(entry), self.tensors[name].spec.shape
        matrices = shape[-3] if len(shape) > 2 else 1
        return weights.reshape(matrices, -1) if weights.size == matrices * shape[-1] else None


@dataclass(frozen=True)
class LoadedImatrix:
    """An importance matrix with the path and SHA-256 of its file; `total`: number of entries before selection."""

    matrix: importance.ImportanceMatrix
    path: str
    digest: str
    total: int


def prepare(
    model: OpenModel,
    ftype: FileType | None,
    options: QuantizeOptions,
    made: importance.ImportanceMatrix | None = None,
) -> QuantizeInputs:
    """Collects all inputs; `ftype` None: COPY. Reads the headers of the model and the whole importance matrix, if it
    isn't `made` already."""
    if options.keep_split and model.format != "gguf":
        raise UsageError(f"a {model.format} model has no GGUF shards to keep", hint="omit --keep-split")
    draft = _as_gguf(model, options, ftype)
    keys_set = given_keys(options.kv, kvs(draft.metadata), options.name)
    overrides = gguf_keys.parse_overrides(options.override_kv) | keys_set
    values = {key: kv.value for key, kv in {**draft.metadata, **overrides}.items()}
    pictured = values.get(_ARCHITECTURE) in diffusion_types.table().architectures
    facts = ftypes.ModelFacts(values[_ARCHITECTURE], layers=0) if pictured else ftypes.ModelFacts.of(values)
    kept = pruning.prune(draft.tensors, options.prune_layers)
    places = {e.name: e.file for e in model.index} if options.keep_split else {}
    by_source = options.keep_split or pictured
    order = list(places or draft.tensors) if by_source else [n for n, _ in ftypes.ordered(specs(draft.tensors))]
    tensors = {}
    for name in (n for n in order if n in kept.names):
        node = draft.tensors[name]
        # as llama-quantize does (ggml_n_dims)
        shape = node.spec.shape if pictured else without_leading_ones(node.spec.shape)
        tensors[kept.names[name]] = node if shape == node.spec.shape else reshape(node, shape)
    imatrix = _load_imatrix(options, made)
    keys = gguf_keys.keys(
        draft.metadata,
        ftype=ftype.number if ftype else _copied_ftype(draft.metadata, tensors),
        overrides=overrides,
        imatrix=gguf_keys.imatrix_keys(imatrix.matrix, imatrix.path) if imatrix else {},
        layers=kept if options.prune_layers else None,
    )
    check_keys(draft.metadata, keys, {*overrides, *(gguf_keys.by_layer(draft.metadata, kept) if kept.removed else ())})
    pruned = Counter(pruning.number(name) for name in draft.tensors if name not in kept.names)
    losses = [Loss(f"left out, as asked: {plural(count, 'tensor')}, blk.{layer}.*") for layer, count in pruned.items()]
    return QuantizeInputs(
        tensors, metadata.with_alignment(keys, options.align), facts,
        shard_of={kept.names[n]: shard for n, shard in places.items() if n in kept.names},
        shards=len(model.index.files) if options.keep_split else 1,
        imatrix=imatrix, entries={new: old for old, new in kept.names.items()},
        losses=(*left_out(model), *draft.losses, *losses, *losses_of_keys(keys_set, kvs(draft.metadata))),
        notes=tuple(draft.notes), converted=model.format != "gguf", keys_set=keys_set, towers=tuple(draft.extra_files),
        sources=draft.sources,
        tower_reports={name: report for name, report in draft.reports.items() if name not in draft.tensors},
    )  # fmt: skip


def _as_gguf(model: OpenModel, options: QuantizeOptions, ftype: FileType | None) -> PlanBuilder:
    """The tensors and keys of a GGUF, or of the intermediate GGUF of any other model."""
    if model.format == "gguf":
        if not model.index.by_name:
            raise UsageError(f"{model.place.path} has keys but no tensors", hint="pass the GGUF with the weights")
        keys = metadata.named(metadata.kept_keys(model.metadata), options.name)
        tensors = {e.name: model.stored[e.name] for e in sorted(model.index, key=lambda e: (e.file, e.offset))}
        draft = PlanBuilder(tensors, keys)
        if options.with_mmproj:
            add_stored_projector(model, draft, GgufOptions(name=options.name, align=options.align))
        return draft
    file = {name: getattr(options, name) for name in ("name", "align")}
    names = ("pre", "target_model", "text_model", "draft", "tokenizer", "with_mmproj")
    text = {name: getattr(options, name) for name in names}
    if model.diffusion is not None and model.diffusion.denoises:
        return pictures.plan(model, model.diffusion, GgufOptions(**file, **text), None, unrounded=ftype is not None)
    # the type of all matrices, so that nothing is rounded twice, or F32
    types = {n.spec.dtype for n in model.logical.values() if len(n.spec.shape) > 1}
    packed = any(isinstance(n, QuantizedTensor) for n in model.logical.values())
    dtype = next(iter(types)) if len(types) == 1 and not packed and options.text_model is None else None
    target = GgufOptions(dtype=dtype.name.lower() if dtype in (BF16, F16) else "f32", **file, **text)
    draft = to_gguf(model, target, towers=GgufFileOptions(**file))
    draft.losses += check_settings(model, draft, "gguf")
    return draft


def refuse_unreadable(model: OpenModel) -> None:
    """Raises RefusedError for GGUFs that llama-quantize can't read.

    These are big-endian ones, those of an architecture that llama.cpp doesn't know, and those without the keys of
    theirs, because the types of tensors depend on these. A part of a model, such as an mmproj file, is known.
    """
    if model.format != "gguf":
        return
    if model.index.byte_order == ">":
        raise RefusedError(
            f"{model.place.path} is big-endian, and llama-quantize refuses it too",
            hint=f"wb convert {model.place.path} little-endian.gguf makes a little-endian file of it",
        )
    candidate = Candidate(model.metadata, {})
    if candidate.architecture in diffusion_types.table().architectures:
        return
    for finding in unknown_architecture(candidate.architecture):
        raise RefusedError(
            f"{model.place.path}: {finding.message}, which llama.cpp doesn't know",
            hint=f"llama-quantize refuses it too; {finding.hint}",
        )
    if candidate.architecture not in {"", *table().parts}:
        for key in missing_keys(candidate):
            if not key.startswith("tokenizer."):
                raise RefusedError(
                    f"{model.place.path} lacks {candidate.key(key)}, and llama-quantize refuses it too",
                    hint=f"wb edit {model.place.path} --set {candidate.key(key)}=NUMBER",
                )


def _copied_ftype(keys: Mapping[str, KV], tensors: Mapping[str, Node]) -> int:
    """The file type for COPY: the source's, or the one that llama.cpp guesses."""
    kept = keys.get(gguf_keys.FILE_TYPE)
    if kept is not None and kept.type == "u32":
        return int(kept.value)
    counts = Counter(node.spec.dtype.name for node in tensors.values())
    return GUESSED | ftypes.nearest_ftype(counts.most_common(1)[0][0])


def _load_imatrix(options: QuantizeOptions, made: importance.ImportanceMatrix | None) -> LoadedImatrix | None:
    """Reads the importance matrix with the selected entries. Raises UsageError for a selection that makes no sense."""
    parts = {"include": options.include_weights, "exclude": options.exclude_weights}
    if options.imatrix is None:
        ftypes.selected((), **parts)
        if any(parts.values()):
            raise UsageError("--include-weights and --exclude-weights need an importance matrix", hint="--imatrix FILE")
        return None
    from hashlib import sha256

    if made is not None:
        matrix, digest = made, sha256(importance.encode(made, "gguf")).hexdigest()
    else:
        with FileSource(options.imatrix) as source:
            matrix = importance.read(source)
            digest = sha256(source.read(0, source.size)).hexdigest()
    for option, part in ((name, part) for name in parts for part in parts[name]):
        if not any(part in name for name in matrix.entries):
            hint = suggest_for_glob(part, matrix.entries)
            raise UsageError(f"--{option}-weights {part!r} matches no entry of {options.imatrix}", hint=hint)
    names = ftypes.selected(matrix.entries, **parts)
    return LoadedImatrix(matrix.only(names), os.fspath(options.imatrix), digest, len(matrix.entries))
