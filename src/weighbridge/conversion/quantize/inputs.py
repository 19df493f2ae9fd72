"""A model made ready to be quantized, as a plan: it as the GGUF that the converter would write of it (a GGUF is that
already), its layers cut, its tensors in llama-quantize's order, its keys as llama-quantize leaves them, and the
importance matrix. What is missing is the types.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weighbridge.base.dtypes import BF16, F16
from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.base.ftypes import GUESSED, FileType
from weighbridge.base.spec import Spec
from weighbridge.containers.gguf.container import KV
from weighbridge.conversion.gguf import metadata as meta
from weighbridge.conversion.options import ConvertOptions
from weighbridge.conversion.plan import build as building
from weighbridge.conversion.plan.builder import PlanBuilder
from weighbridge.conversion.plan.model import Loss
from weighbridge.conversion.quantize import ftypes as mixtures
from weighbridge.conversion.quantize import imatrix as importance
from weighbridge.conversion.quantize import keys as quantize_keys
from weighbridge.conversion.quantize import prune_layers as layers
from weighbridge.io.source import FileSource
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.tensors.nodes import Node, QuantizedTensor, reshape


@dataclass(frozen=True)
class QuantizeOptions:
    """llama-quantize's options by its names, and those of a conversion that bear on a GGUF.

    `tensor_type`: `REGEX=TYPE` texts, the first that is found in a name counts. `override_kv`: `KEY=TYPE:VALUE` texts.
    `target_bpw`, `target_size`: bits per weight or bytes of the file; types are then chosen for it (budget.py).
    `imatrix`: a file of either form; `include_weights`, `exclude_weights`: parts of the names of its entries.
    `resume`: what an interrupted run has done stays beside the target, and is gone on with.
    """

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
    pre: str | None = None
    tokenizer: bool = True
    name: str | None = None
    align: int | None = None
    max_memory: int | None = None
    overwrite: bool = False
    resume: bool = False
    jobs: int | None = None

    def types(self) -> mixtures.Options:
        """What bears on types, parsed. UsageError for a type or a pattern that is none."""
        named = {"output_type": self.output_tensor_type, "embedding_type": self.token_embedding_type}
        return mixtures.Options(
            pure=self.pure,
            leave_output=self.leave_output_tensor,
            tensor_types=tuple(map(mixtures.tensor_type, self.tensor_type)),
            allow_requantize=self.allow_requantize,
            **{field: mixtures.target_type(name) for field, name in named.items() if name is not None},
        )

    def conversion(self, dtype: str | None) -> ConvertOptions:
        """The options of the conversion to the GGUF that is then quantized."""
        return ConvertOptions(
            dtype=dtype, pre=self.pre, tokenizer=self.tokenizer, name=self.name, align=self.align,
            max_memory=self.max_memory, overwrite=self.overwrite, jobs=self.jobs,
        )  # fmt: skip


@dataclass(frozen=True)
class Prepared:
    """The tensors in the order in which they are decided on and written, the keys, and the importance matrix.
    `tensors`: by the names they will have; `entries`: the importance matrix' entry of each."""

    tensors: Mapping[str, Node]
    keys: Mapping[str, KV]
    facts: mixtures.Facts
    places: Mapping[str, int]  # the shard of each tensor, where they are kept
    shards: int
    imatrix: Imatrix | None
    entries: Mapping[str, str]
    losses: tuple[Loss, ...]
    converted: bool

    def choose(self, wanted: FileType | None, options: mixtures.Options) -> mixtures.Choice:
        sizes = None
        if self.imatrix is not None:
            found = self.imatrix.matrix.sizes()
            sizes = {name: found[entry] for name, entry in self.entries.items() if entry in found}
            if not sizes and found and wanted is not None:
                raise RefusedError(
                    f"{self.imatrix.path} is of another model: none of its {len(found)} entries is a tensor here, "
                    f"first {next(iter(found))}", hint="make one for this model: llama-imatrix",
                )  # fmt: skip
            sizes = sizes or dict.fromkeys(found, 0)
        return mixtures.choose([(n, t.spec) for n, t in self.tensors.items()], self.facts, wanted, options, sizes)

    def weights(self, name: str) -> Any:
        """Importance of the columns [matrices, columns] of a tensor; None where nothing is known or it doesn't fit."""
        entry = self.entries.get(name)
        if self.imatrix is None or entry is None or entry not in self.imatrix.matrix.entries:
            return None
        found, shape = self.imatrix.matrix.weights(entry), self.tensors[name].spec.shape
        groups = shape[-3] if len(shape) > 2 else 1
        return found.reshape(groups, -1) if found.size == groups * shape[-1] else None


@dataclass(frozen=True)
class Imatrix:
    """An importance matrix, the file it came from, and that file's digest."""

    matrix: importance.Importance
    path: str
    digest: str
    total: int


def prepare(model: Checkpoint, wanted: FileType | None, options: QuantizeOptions) -> Prepared:
    """Everything but the types: names, order, keys, layers left out, the importance matrix read."""
    if options.keep_split and model.format != "gguf":
        raise UsageError(f"a {model.format} model has no GGUF shards to keep", hint="leave --keep-split out")
    draft = _as_gguf(model, wanted, options)
    overrides = quantize_keys.overrides(options.override_kv)
    plain = {key: kv.value for key, kv in ({**draft.metadata, **overrides}).items()}
    facts = mixtures.Facts.of(plain)
    kept = layers.pruned(draft.tensors, options.prune_layers)
    places = {e.name: e.file for e in model.index} if options.keep_split else {}
    order = list(places) if options.keep_split else [n for n, _ in mixtures.ordered(specs(draft.tensors))]
    tensors = {kept.names[n]: _trimmed(draft.tensors[n]) for n in order if n in kept.names}
    imatrix = _imatrix(options)
    keys = quantize_keys.keys(
        draft.metadata,
        ftype=wanted.number if wanted else _same_ftype(draft.metadata, tensors),
        overrides=overrides,
        imatrix=quantize_keys.imatrix_keys(imatrix.matrix, imatrix.path) if imatrix else {},
        layers=kept if options.prune_layers else None,
    )
    return Prepared(
        tensors, meta.with_alignment(keys, options.align), facts,
        places={kept.names[n]: shard for n, shard in places.items() if n in kept.names},
        shards=len(model.index.files) if options.keep_split else 1,
        imatrix=imatrix, entries={new: old for old, new in kept.names.items()},
        losses=tuple(draft.losses), converted=model.format != "gguf",
    )  # fmt: skip


def specs(tensors: Mapping[str, Node]) -> list[tuple[str, Spec]]:
    """Names and specs, in order."""
    return [(name, node.spec) for name, node in tensors.items()]


def _as_gguf(model: Checkpoint, wanted: FileType | None, options: QuantizeOptions) -> PlanBuilder:
    if model.format == "gguf":
        if not model.index.by_name:
            raise UsageError(f"{model.place.path} holds no tensors, only keys", hint="name the GGUF with the weights")
        keys = meta.named(meta.kept_keys(model.metadata), options.name)
        tensors = {e.name: model.stored[e.name] for e in sorted(model.index, key=lambda e: (e.file, e.offset))}
        return PlanBuilder(tensors, keys)
    return building.to_gguf(model, options.conversion(_own_dtype(model)))


def _own_dtype(model: Checkpoint) -> str:
    """The type in which the model becomes a GGUF before it is quantized: the one that all its matrices are in, so that
    nothing is rounded twice; F32 where there are several."""
    matrices = {n.spec.dtype for n in model.logical.values() if len(n.spec.shape) > 1}
    packed = any(isinstance(n, QuantizedTensor) for n in model.logical.values())
    one = next(iter(matrices)) if len(matrices) == 1 and not packed else None
    return one.name.lower() if one in (BF16, F16) else "f32"


def _trimmed(node: Node) -> Node:
    """Without leading dimensions of 1: ggml_n_dims doesn't count them, so llama-quantize doesn't write them."""
    shape = node.spec.shape
    first = next((i for i, n in enumerate(shape[:-1]) if n != 1), max(len(shape) - 1, 0))
    return reshape(node, shape[first:]) if first else node


# The bit of `general.file_type` that says it was guessed (llama-model-loader.cpp).


def _same_ftype(keys: Mapping[str, KV], tensors: Mapping[str, Node]) -> int:
    """For COPY: what the file says of itself, or what llama.cpp takes it for."""
    said = keys.get(quantize_keys.FILE_TYPE)
    if said is not None and said.type == "u32":
        return int(said.value)
    counts = Counter(node.spec.dtype.name for node in tensors.values())
    return GUESSED | mixtures.nearest_ftype(counts.most_common(1)[0][0])


def _imatrix(options: QuantizeOptions) -> Imatrix | None:
    chosen = {"include": options.include_weights, "exclude": options.exclude_weights}
    if options.imatrix is None:
        mixtures.selected((), **chosen)
        if options.include_weights or options.exclude_weights:
            raise UsageError("weights were chosen, but there is no importance matrix", hint="name it with --imatrix")
        return None
    with FileSource(options.imatrix) as source:
        matrix = importance.read(source)
        digest = hashlib.sha256(source.read(0, source.size)).hexdigest()
    names = mixtures.selected(matrix.entries, **chosen)
    return Imatrix(matrix.only(names), os.fspath(options.imatrix), digest, len(matrix.entries))
