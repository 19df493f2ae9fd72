"""Plans what llama-quantize writes, byte for byte, from a model in any format.

    plan = build(model, "out.gguf", "Q4_K_M", QuantizeOptions(imatrix="imatrix.gguf"))
    plan.rows         the source and target type of each tensor, and why
    plan.refusals     reasons not to write it (`check` raises the first, `--dry-run` shows them all)

A source in another format is planned as a conversion to GGUF first. No intermediate file is written, and each value is
read once. docs/quantize-equality.md lists all differences from llama-quantize's output. Reference: src/llama-quant.cpp
and tools/quantize/quantize.cpp of llama.cpp b11549.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import field
from math import prod
from pathlib import Path
from typing import Any, Final

from weighbridge.adapters.remote.schemes import resolve_target
from weighbridge.base.dtypes import F32, DType, Kind
from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError
from weighbridge.base.options import flag
from weighbridge.base.records import dataclass
from weighbridge.base.words import plural
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.gguf.read import padded
from weighbridge.conversion.gguf.loadable import check_loadable
from weighbridge.conversion.options import IN_PLACE_OF_TYPE, QuantizeOptions, WriteOptions
from weighbridge.conversion.plan.contents import PlannedFile
from weighbridge.conversion.plan.fingerprint import state_of
from weighbridge.conversion.plan.losses.requantized import is_quantized
from weighbridge.conversion.plan.losses.ties import copied
from weighbridge.conversion.plan.model import Plan
from weighbridge.conversion.plan.target import check_target, several_files
from weighbridge.conversion.plan.writers import planned, specs
from weighbridge.conversion.quantize import ftypes, size_target
from weighbridge.conversion.quantize import keys as gguf_keys
from weighbridge.conversion.quantize.ftypes import Refusal
from weighbridge.conversion.quantize.imatrix import ImportanceMatrix
from weighbridge.conversion.quantize.inputs import QuantizeInputs, prepare, refuse_unreadable, type_options
from weighbridge.conversion.result import Loss
from weighbridge.io.filesystem import cached_repository
from weighbridge.io.location import StoredPath, TreePath
from weighbridge.io.sink import link_notes
from weighbridge.models.model import OpenModel
from weighbridge.tensors import kernels
from weighbridge.tensors.nodes import CastReport, Encode, Node, cast, packed_in

SCHEMA: Final = "weighbridge/quantize/1"


@dataclass(frozen=True, slots=True)
class QuantizeRow:
    """The quantization of one tensor.

    `wanted`: the type that was replaced because the rows aren't whole blocks of it. `weighted`: the encoder uses an
    entry of the importance matrix. `error`: the expected relative error of a type that was chosen for a target size.
    """

    name: str
    shape: tuple[int, ...]
    source: str
    target: str
    source_bytes: int
    target_bytes: int
    wanted: str | None = None
    weighted: bool = False
    error: float | None = None


@dataclass(frozen=True, repr=False)
class QuantizePlan(Plan):
    """A plan, and how its types were chosen.

    `entries`: the number of used entries of the importance matrix, and of all. `originals`, `weights`: the tensors
    before quantization and the importance of their columns, for reports. `expected`: as in `TypeChoice`. `recipe`: the
    types as text for `--recipe`, or llama-quantize's `--tensor-type-file`.
    """

    ftype: str = ""
    rows: tuple[QuantizeRow, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    entries: tuple[int, int] | None = None
    originals: Mapping[str, Node] = field(default_factory=dict)
    weights: Mapping[str, Any] = field(default_factory=dict)
    expected: tuple[tuple[int, float], ...] = ()
    recipe: str = ""

    @property
    def bits(self) -> float:
        """Bits per weight over all tensors."""
        elements = sum(prod(row.shape) for row in self.rows)
        return 8 * sum(r.target_bytes for r in self.rows) / elements if elements else 0.0

    def check(self) -> None:
        """Raises RefusedError or UnsupportedError for the first refusal."""
        if not self.refusals:
            return
        first = self.refusals[0]
        more = sum(r.rule == first.rule for r in self.refusals) - 1
        message = f"{first.tensor}: {first.message}" + (f" (and {plural(more, 'more tensor')})" if more else "")
        advice = _ADVICE.get(first.rule, {"hint": "leave it unchanged: --tensor-type NAME=f16"})
        if first.rule == "unsupported":
            raise UnsupportedError(message, **advice)
        raise RefusedError(message, **advice)

    def describe(self) -> dict[str, Any]:
        data = super().describe() | {"schema": SCHEMA, "type": self.ftype}
        names = QuantizeRow.__slots__
        return data | {
            "bits_per_weight": round(self.bits, 4),
            "imatrix": self.entries and {"used": self.entries[0], "entries": self.entries[1]},
            "tensors": [{name: getattr(row, name) for name in names} for row in self.rows],
            "refusals": [r._asdict() for r in self.refusals],
            "expected": [{"bytes": nbytes, "kl": error} for nbytes, error in self.expected],
        }


def default_target(source: Path, ftype: str, keep_split: bool = False) -> Path:
    """llama-quantize's default target: `ggml-model-TYPE.gguf` next to the source's weights.

    It is in the current folder if the source is remote or in a store, such as the Hub's cache.
    """
    row = ftypes.parse_ftype(ftype)
    folder = source if source.is_dir() else source.parent
    if isinstance(source, TreePath | StoredPath) or cached_repository(folder) is not None:
        folder = Path()
    return folder / f"ggml-model-{row.name if row else ftypes.COPY}{'' if keep_split else '.gguf'}"


def build(
    model: OpenModel,
    target: str | os.PathLike[str],
    ftype: str,
    options: QuantizeOptions,
    write: WriteOptions = WriteOptions(),
    *,
    made: ImportanceMatrix | None = None,
    effects: size_target.Effects | None = None,
) -> QuantizePlan:
    """Plans to quantize `model` to `target`. Errors at which llama-quantize would stop are in `refusals`. `made`: an
    importance matrix that is no file; `effects`: measures what a tensor's error changes, for a target size.

    Raises UsageError for options that contradict each other, UnsupportedError for a model that can't become a GGUF.
    """
    path, slash = resolve_target(target), os.fspath(target).endswith(("/", os.sep))
    folder = options.keep_split or options.with_mmproj
    if slash and not folder:
        raise UsageError(
            f"{os.fspath(target)} names a folder, but a file is written", hint=f"write {path}, or --keep-split"
        )
    if options.with_mmproj and not slash:
        raise several_files(path, 2)
    if options.keep_split and path.suffix == gguf.SUFFIX:
        path = path.with_suffix("")  # a folder of shards
    refuse_unreadable(model)
    check_target(path, model.place.files, folder)
    setting = [flag(name) for name in IN_PLACE_OF_TYPE if getattr(options, name) is not None]
    if not setting:
        requested = ftypes.parse_ftype(ftype)
        inputs = prepare(model, requested, options, made)
        choice = inputs.choose(requested, type_options(options))
        return finish(model, path, requested.name if requested else ftypes.COPY, inputs, choice, options, write)
    if len(given := [*(["TYPE"] if ftype else []), *setting]) > 1:
        raise UsageError(f"{' and '.join(given)} are mutually exclusive", hint="give one of them")
    if options.pure:
        raise UsageError("--pure applies to TYPE", hint=f"{setting[0]} sets each tensor's type")
    inputs = prepare(model, size_target.base_type(), options, made)
    if options.recipe is not None:
        inputs, choice = size_target.types_of_recipe(inputs, type_options(options))
        return finish(model, path, "", inputs, choice, options, write)
    stated = inputs.keys.get(gguf.ALIGNMENT_KEY)
    bits, size = options.target_bpw, options.target_size
    align = 1 if size is None else gguf.DEFAULT_ALIGNMENT if stated is None else int(stated.value)
    unchanged = sum(f.layout.size for f in _files(path, inputs.tensors, inputs, options))
    overhead = unchanged - sum(padded(node.spec.nbytes, align) for node in inputs.tensors.values())
    inputs, choice = size_target.types_for_size(inputs, type_options(options), bits=bits, size=size, overhead=overhead,
                                                align=align, effects=effects)  # fmt: skip
    return finish(model, path, "", inputs, choice, options, write)


# -- the types applied -----------------------------------------------------------------------------------------------


def finish(
    model: OpenModel, path: Path, ftype: str, inputs: QuantizeInputs, choice: ftypes.TypeChoice,
    options: QuantizeOptions, write: WriteOptions,
) -> QuantizePlan:  # fmt: skip
    """Plans to give each tensor its chosen type."""
    tensors: dict[str, Node] = {}
    reports: dict[str, CastReport] = dict(inputs.tower_reports)
    weights: dict[str, Any] = {}
    rows: list[QuantizeRow] = []
    refusals = list(choice.refusals)
    for name, node in inputs.tensors.items():
        target = choice.types[name]
        quantizes = target.kind is Kind.BLOCK and target != node.spec.dtype
        importance = inputs.weights(name) if quantizes else None
        if importance is not None:
            weights[name] = importance
        if quantizes and not kernels.encodes(target):
            refusals.append(Refusal(name, "unsupported", f"{target} can't be written by this version"))
        tensors[name] = _encode_as(name, node, target, importance, reports, options.search == "best")
        if target.importance == "required" and target != node.spec.dtype and importance is None:
            refusals.append(Refusal(name, "imatrix-missing", f"{target} needs an importance matrix' entry for it"))
        rows.append(_row(name, node, tensors[name], choice, importance is not None))
        kept = node.spec.dtype is target or target.kind is not Kind.BLOCK or options.allow_requantize
        if (packed := packed_in(node)) is not None and is_quantized(packed) and not kept:
            refusals.append(Refusal(name, "requantize", f"it is already quantized ({packed.packing.name})"))
    files = _files(path, tensors, inputs, options)
    return QuantizePlan(
        source=str(model.place.path),
        target=path,
        format="gguf",
        folder=options.keep_split or options.with_mmproj,
        files=(*files, *inputs.towers),
        losses=(*inputs.losses, *_losses(choice, inputs, weights, options), *copied(model, tensors)),
        notes=(
            *model.oddities,
            *link_notes(path),
            *inputs.notes,
            *([] if inputs.imatrix is None else _imatrix_notes(inputs, inputs.imatrix.matrix.entries, weights)),
            *(line for f in files for line in f.layout.notes),
            *check_loadable(((f.name, f.layout) for f in files), model),
        ),
        write=write,
        model=model,
        reports=reports,
        sources=(
            *map(state_of, (*model.place.files, *inputs.sources)),
            *((f"importance matrix: {inputs.imatrix.digest}",) if inputs.imatrix else ()),
        ),
        ftype=ftype,
        rows=tuple(rows),
        refusals=tuple(dict.fromkeys(refusals)),
        entries=(len(inputs.imatrix.matrix.entries), inputs.imatrix.total) if inputs.imatrix else None,
        originals=inputs.tensors,
        weights=weights,
        expected=choice.expected,
        keys=inputs.keys_set,
        recipe=_recipe(inputs, choice),
    )


def _recipe(inputs: QuantizeInputs, choice: ftypes.TypeChoice) -> str:
    names = filter(inputs.is_quantizable, inputs.tensors)
    return "".join(f"^{re.escape(name)}$={choice.types[name].name.lower()}\n" for name in names)


def _row(name: str, node: Node, quantized: Node, choice: ftypes.TypeChoice, weighted: bool) -> QuantizeRow:
    """The row of a tensor; a packed one counts with all its stored tensors."""
    packed, fallback = packed_in(node), choice.fallbacks.get(name)
    return QuantizeRow(
        name=name,
        shape=quantized.spec.shape,
        source=packed.packing.name if packed else node.spec.dtype.name,
        target=quantized.spec.dtype.name,
        source_bytes=sum(m.spec.nbytes for m in packed.members.values()) if packed else node.spec.nbytes,
        target_bytes=quantized.spec.nbytes,
        wanted=fallback and fallback[0].name,
        weighted=weighted,
        error=choice.errors.get(name),
    )


def _encode_as(name: str, node: Node, target: DType, weights: Any, reports: dict[str, CastReport], best: bool) -> Node:
    """Casts or encodes a tensor; a report counts the losses of the cast or of scales."""
    if node.spec.dtype is target:
        return node
    report = reports[name] = CastReport(name)
    if target.kind is not Kind.BLOCK:
        return cast(node, target, report)
    source = cast(node, F32)  # a type that can't be written is among the refusals
    return Encode(source.spec.with_dtype(target), source, report, weights, best)


def _files(
    path: Path, tensors: Mapping[str, Node], inputs: QuantizeInputs, options: QuantizeOptions
) -> tuple[PlannedFile, ...]:
    if not options.keep_split:
        name = f"{path.name}{gguf.SUFFIX}" if options.with_mmproj else path.name
        return (planned(name, gguf.layout(specs(tensors), inputs.keys), tensors),)
    stem = path.stem if path.suffix == gguf.SUFFIX else path.name
    files = []
    for shard in range(inputs.shards):
        part = {name: node for name, node in tensors.items() if inputs.shard_of[name] == shard}
        keys = gguf_keys.shard_keys(inputs.keys, shard, inputs.shards, len(tensors))
        layout = gguf.layout(specs(part), keys)
        files.append(planned(gguf.shard_name(stem, shard, inputs.shards), layout, part))
    return tuple(files)


def _losses(
    choice: ftypes.TypeChoice, inputs: QuantizeInputs, weights: Mapping[str, Any], options: QuantizeOptions
) -> list[Loss]:
    columns = {name: inputs.tensors[name].spec.shape[-1] for name in choice.fallbacks}
    losses = [Loss(message) for message in ftypes.unmatched_patterns(type_options(options), inputs.tensors)]
    losses += [
        Loss(f"row length {columns[name]} isn't a multiple of {dtype.block}; using {used} instead of {dtype}", name)
        for name, (dtype, used) in choice.fallbacks.items()
    ]
    losses += [
        Loss("quantized a second time", name)
        for name, node in inputs.tensors.items()
        if node.spec.dtype.kind is Kind.BLOCK and choice.types[name] != node.spec.dtype
    ]
    losses += [
        Loss(f"decoded from {packed.packing.name} and quantized", name)
        for name, node in inputs.tensors.items()
        if choice.types[name].kind is Kind.BLOCK and (packed := packed_in(node)) and not is_quantized(packed)
    ]
    if inputs.imatrix is not None:
        losses += [
            Loss("quantized without importance: the matrix has no entry of its size", name)
            for name, target in choice.types.items()
            if name not in weights and target.kind is Kind.BLOCK and target != inputs.tensors[name].spec.dtype
            and ftypes.role(name) not in ("embedding", "output")
        ]  # fmt: skip
    return losses


def _imatrix_notes(inputs: QuantizeInputs, entries: Collection[str], weights: Mapping[str, Any]) -> list[str]:
    matched = set(inputs.entries.values())
    notes = [f"importance matrix: {len(weights)} of {plural(len(entries), 'entry')} used"]
    if unmatched := [name for name in entries if name not in matched]:
        notes.append(f"{len(unmatched)} imatrix entries match no tensor, first {unmatched[0]}")
    return notes


# Rule of a refusal -> the option or the hint of the error.
_ADVICE: Final[Mapping[str, dict[str, str]]] = {
    "requantize": {"option": "--allow-requantize"},
    "imatrix-missing": {"hint": "pass one with --imatrix FILE, or choose a larger type"},
    "imatrix-size": {"hint": "it belongs to another model or version"},
    "unsupported": {"hint": "choose another type, or another for this tensor: --tensor-type NAME=TYPE"},
    "fallback": {"hint": "choose another type for it: --tensor-type NAME=TYPE"},
}
