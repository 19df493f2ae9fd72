"""The inputs of quantizing: the tensors and keys of the GGUF that the converter would write of a model (nothing is
written), in llama-quantize's order, without pruned layers, and the importance matrix. The types are chosen later.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from weighbridge.base.dtypes import BF16, F16
from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.base.ftypes import GUESSED, FileType
from weighbridge.base.spec import Spec, without_leading_ones
from weighbridge.containers.gguf.container import KV
from weighbridge.conversion.gguf import metadata
from weighbridge.conversion.gguf.plan import to_gguf
from weighbridge.conversion.options import GgufOptions, TargetOptions, only_from
from weighbridge.conversion.plan.builder import PlanBuilder
from weighbridge.conversion.plan.losses.settings import check_keys, check_settings
from weighbridge.conversion.plan.model import Loss
from weighbridge.conversion.quantize import ftypes
from weighbridge.conversion.quantize import imatrix as importance
from weighbridge.conversion.quantize import keys as gguf_keys
from weighbridge.conversion.quantize import prune_layers as pruning
from weighbridge.io.source import FileSource
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.models.llamacpp.candidate import Candidate
from weighbridge.models.llamacpp.rules import missing_keys, unknown_architecture
from weighbridge.models.llamacpp.table import table
from weighbridge.tensors.nodes import Node, QuantizedTensor, reshape


@dataclass(frozen=True, kw_only=True)
class QuantizeOptions(TargetOptions):
    """llama-quantize's options under its names, and those of a conversion to GGUF.

    `tensor_type`: `REGEX=TYPE` strings; the first match in a name wins. `override_kv`: `KEY=TYPE:VALUE` strings.
    `target_bpw`, `target_size`: bits per weight, or bytes of the file, for which types are chosen (size_target.py).
    `imatrix`: a file of either format; `include_weights`, `exclude_weights`: parts of the names of its entries.
    """

    title: ClassVar[str] = "a quantized GGUF"
    imatrix: str | os.PathLike[str] | None = None
    include_weights: tuple[str, ...] = ()
    exclude_weights: tuple[str, ...] = ()
    pure: bool = False
    leave_output_tensor: bool = False
    output_tensor_type: str | None = None
    token_embedding_type: str | None = None
    tensor_type: tuple[str, ...] = ()
    prune_layers: tuple[int, ...] = ()
    override_kv: tuple[str, ...] = ()
    keep_split: bool = False
    target_bpw: float | None = None
    target_size: int | None = None
    allow_requantize: bool = False
    pre: str | None = only_from("model")
    tokenizer: bool = only_from("model", default=True)
    name: str | None = None
    align: int | None = None

    def types(self) -> ftypes.TypeOptions:
        """The parsed options that affect types. UsageError for an invalid type or pattern."""
        named = {"output_type": self.output_tensor_type, "embedding_type": self.token_embedding_type}
        return ftypes.TypeOptions(
            pure=self.pure,
            leave_output=self.leave_output_tensor,
            tensor_types=tuple(map(ftypes.tensor_type, self.tensor_type)),
            allow_requantize=self.allow_requantize,
            **{field: ftypes.target_type(name) for field, name in named.items() if name is not None},
        )

    def conversion(self, dtype: str | None) -> GgufOptions:
        """The options of the conversion to the intermediate GGUF."""
        return GgufOptions(dtype=dtype, pre=self.pre, tokenizer=self.tokenizer, name=self.name, align=self.align)


@dataclass(frozen=True)
class QuantizeInputs:
    """`tensors`: in the order of deciding and writing, by their final names. `shard_of`: the shard of each tensor, with
    --keep-split. `entries`: tensor -> its name in the importance matrix."""

    tensors: Mapping[str, Node]
    keys: Mapping[str, KV]
    facts: ftypes.ModelFacts
    shard_of: Mapping[str, int]
    shards: int
    imatrix: LoadedImatrix | None
    entries: Mapping[str, str]
    losses: tuple[Loss, ...]
    converted: bool

    def choose(self, wanted: FileType | None, options: ftypes.TypeOptions) -> ftypes.TypeChoice:
        sizes = None
        if self.imatrix is not None:
            found = self.imatrix.matrix.sizes()
            sizes = {name: found[entry] for name, entry in self.entries.items() if entry in found}
            if not sizes and found and wanted is not None:
                raise RefusedError(
                    f"no entry of {self.imatrix.path} matches a tensor (of {len(found)}, first {next(iter(found))})",
                    hint="it belongs to another model; make one for this model with llama-imatrix",
                )  # fmt: skip
            sizes = sizes or dict.fromkeys(found, 0)
        return ftypes.choose_types([(n, t.spec) for n, t in self.tensors.items()], self.facts, wanted, options, sizes)

    def weights(self, name: str) -> Any:
        """Importance of a tensor's columns, f32[matrices, columns]; None without an entry of the right size."""
        entry = self.entries.get(name)
        if self.imatrix is None or entry is None or entry not in self.imatrix.matrix.entries:
            return None
        found, shape = self.imatrix.matrix.weights(entry), self.tensors[name].spec.shape
        groups = shape[-3] if len(shape) > 2 else 1
        return found.reshape(groups, -1) if found.size == groups * shape[-1] else None


@dataclass(frozen=True)
class LoadedImatrix:
    """An importance matrix with the path and SHA-256 of its file; `total`: number of entries before selection."""

    matrix: importance.ImportanceMatrix
    path: str
    digest: str
    total: int


def prepare(model: Checkpoint, wanted: FileType | None, options: QuantizeOptions) -> QuantizeInputs:
    """All inputs. Reads the headers of the model and the whole importance matrix."""
    if options.keep_split and model.format != "gguf":
        raise UsageError(f"a {model.format} model has no GGUF shards to keep", hint="omit --keep-split")
    draft = _as_gguf(model, wanted, options)
    overrides = gguf_keys.parse_overrides(options.override_kv)
    plain = {key: kv.value for key, kv in ({**draft.metadata, **overrides}).items()}
    facts = ftypes.ModelFacts.of(plain)
    kept = pruning.prune(draft.tensors, options.prune_layers)
    places = {e.name: e.file for e in model.index} if options.keep_split else {}
    order = list(places) if options.keep_split else [n for n, _ in ftypes.ordered(specs(draft.tensors))]
    tensors = {kept.names[n]: _without_leading_ones(draft.tensors[n]) for n in order if n in kept.names}
    imatrix = _load_imatrix(options)
    keys = gguf_keys.keys(
        draft.metadata,
        ftype=wanted.number if wanted else _same_ftype(draft.metadata, tensors),
        overrides=overrides,
        imatrix=gguf_keys.imatrix_keys(imatrix.matrix, imatrix.path) if imatrix else {},
        layers=kept if options.prune_layers else None,
    )
    check_keys(draft.metadata, keys, {*overrides, *(gguf_keys.by_layer(draft.metadata, kept) if kept.removed else ())})
    return QuantizeInputs(
        tensors, metadata.with_alignment(keys, options.align), facts,
        shard_of={kept.names[n]: shard for n, shard in places.items() if n in kept.names},
        shards=len(model.index.files) if options.keep_split else 1,
        imatrix=imatrix, entries={new: old for old, new in kept.names.items()},
        losses=tuple(draft.losses), converted=model.format != "gguf",
    )  # fmt: skip


def specs(tensors: Mapping[str, Node]) -> list[tuple[str, Spec]]:
    """Names and specs of tensors, in order."""
    return [(name, node.spec) for name, node in tensors.items()]


def _as_gguf(model: Checkpoint, wanted: FileType | None, options: QuantizeOptions) -> PlanBuilder:
    if model.format == "gguf":
        if not model.index.by_name:
            raise UsageError(f"{model.place.path} has keys but no tensors", hint="pass the GGUF with the weights")
        _refuse_unreadable(model)
        keys = metadata.named(metadata.kept_keys(model.metadata), options.name)
        tensors = {e.name: model.stored[e.name] for e in sorted(model.index, key=lambda e: (e.file, e.offset))}
        return PlanBuilder(tensors, keys)
    draft = to_gguf(model, options.conversion(_intermediate_dtype(model)))
    draft.losses += check_settings(model, draft, "gguf")
    return draft


def _refuse_unreadable(model: Checkpoint) -> None:
    """RefusedError for what llama-quantize can't read: big-endian files, an architecture that llama.cpp doesn't know,
    and models without the keys of theirs, since which type a tensor gets depends on them. A part of a model, such as
    an mmproj file, is known."""
    if model.index.byte_order == ">":
        raise RefusedError(
            f"{model.place.path} is big-endian, and llama-quantize refuses it too",
            hint=f"wb convert {model.place.path} little-endian.gguf makes a little-endian file of it",
        )
    candidate = Candidate(model.metadata, {})
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


def _intermediate_dtype(model: Checkpoint) -> str:
    """The dtype of the intermediate GGUF: that of all matrices, so that nothing is rounded twice, or F32."""
    matrices = {n.spec.dtype for n in model.logical.values() if len(n.spec.shape) > 1}
    packed = any(isinstance(n, QuantizedTensor) for n in model.logical.values())
    one = next(iter(matrices)) if len(matrices) == 1 and not packed else None
    return one.name.lower() if one in (BF16, F16) else "f32"


def _without_leading_ones(node: Node) -> Node:
    """Drops leading dimensions of 1, as llama-quantize does (ggml_n_dims)."""
    shape = without_leading_ones(node.spec.shape)
    return node if shape == node.spec.shape else reshape(node, shape)


def _same_ftype(keys: Mapping[str, KV], tensors: Mapping[str, Node]) -> int:
    """The file type for COPY: the source's, or the one that llama.cpp guesses."""
    kept = keys.get(gguf_keys.FILE_TYPE)
    if kept is not None and kept.type == "u32":
        return int(kept.value)
    counts = Counter(node.spec.dtype.name for node in tensors.values())
    return GUESSED | ftypes.nearest_ftype(counts.most_common(1)[0][0])


def _load_imatrix(options: QuantizeOptions) -> LoadedImatrix | None:
    chosen = {"include": options.include_weights, "exclude": options.exclude_weights}
    if options.imatrix is None:
        ftypes.selected((), **chosen)
        if options.include_weights or options.exclude_weights:
            raise UsageError("--include-weights and --exclude-weights need an importance matrix", hint="--imatrix FILE")
        return None
    with FileSource(options.imatrix) as source:
        matrix = importance.read(source)
        digest = hashlib.sha256(source.read(0, source.size)).hexdigest()
    names = ftypes.selected(matrix.entries, **chosen)
    return LoadedImatrix(matrix.only(names), os.fspath(options.imatrix), digest, len(matrix.entries))
