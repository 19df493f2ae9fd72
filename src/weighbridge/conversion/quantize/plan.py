"""Plans what llama-quantize writes, byte for byte, from a model in any format.

    plan = build(model, "out.gguf", "Q4_K_M", QuantizeOptions(imatrix="imatrix.gguf"))
    plan.rows         the source and target type of each tensor, and why
    plan.refusals     reasons not to write it (`check` raises the first, `--dry-run` shows them all)

A source in another format goes through the plan of its conversion to GGUF; no intermediate file is written and each
value is read once. docs/quantize-equality.md lists all differences from llama-quantize's output. Reference:
src/llama-quant.cpp and tools/quantize/quantize.cpp of llama.cpp b11549.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from weighbridge.adapters.remote.schemes import resolve_target
from weighbridge.base.dtypes import F32, DType, Kind
from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError
from weighbridge.containers.gguf import container as gguf
from weighbridge.conversion.gguf.loadable import check_loadable
from weighbridge.conversion.options import WriteOptions
from weighbridge.conversion.plan.fingerprint import state_of
from weighbridge.conversion.plan.losses.requantized import is_quantized
from weighbridge.conversion.plan.losses.ties import copied
from weighbridge.conversion.plan.model import Loss, Plan, PlannedFile
from weighbridge.conversion.plan.target import check_target
from weighbridge.conversion.plan.writers import planned
from weighbridge.conversion.quantize import ftypes, size_target
from weighbridge.conversion.quantize import keys as gguf_keys
from weighbridge.conversion.quantize.inputs import QuantizeInputs, QuantizeOptions, prepare, refuse_unreadable, specs
from weighbridge.io.location import RemotePath
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.tensors import kernels
from weighbridge.tensors.nodes import CastReport, Encode, Node, cast, packed_in


@dataclass(frozen=True, slots=True)
class QuantizeRow:
    """What happens to one tensor. `wanted`: the type that was replaced because the rows aren't whole blocks of it.
    `weighted`: the encoder uses an entry of the importance matrix."""

    name: str
    shape: tuple[int, ...]
    source: str
    target: str
    source_bytes: int
    target_bytes: int
    wanted: str | None = None
    weighted: bool = False


@dataclass(frozen=True, repr=False)
class QuantizePlan(Plan):
    """A plan, and how its types were chosen. `entries`: how many entries of the importance matrix are used, and their
    total. `originals`, `weights`: tensors before quantization and the importance of their columns, for reports."""

    ftype: str = ""
    rows: tuple[QuantizeRow, ...] = ()
    refusals: tuple[ftypes.Refusal, ...] = ()
    entries: tuple[int, int] | None = None
    originals: Mapping[str, Node] = field(default_factory=dict)
    weights: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bits(self) -> float:
        """Bits per weight over all tensors."""
        elements = sum(n.spec.elements for f in self.files for n in f.nodes)
        return 8 * sum(r.target_bytes for r in self.rows) / elements if elements else 0.0

    def check(self) -> None:
        """RefusedError or UnsupportedError for the first refusal."""
        if self.refusals:
            raise _refused(self.refusals)

    def describe(self) -> dict[str, Any]:
        data = super().describe() | {"schema": "weighbridge/quantize/1", "type": self.ftype}
        names = QuantizeRow.__slots__
        return data | {
            "bits_per_weight": round(self.bits, 4),
            "imatrix": self.entries and {"used": self.entries[0], "entries": self.entries[1]},
            "tensors": [{name: getattr(row, name) for name in names} for row in self.rows],
            "refusals": [r._asdict() for r in self.refusals],
        }


def default_target(source: Path, ftype: str, keep_split: bool = False) -> Path:
    """llama-quantize's default target: `ggml-model-TYPE.gguf` beside the source's weights; here, where
    the source is elsewhere."""
    row = ftypes.parse_ftype(ftype)
    folder = Path() if isinstance(source, RemotePath) else source if source.is_dir() else source.parent
    return folder / f"ggml-model-{row.name if row else ftypes.COPY}{'' if keep_split else '.gguf'}"


def build(
    model: Checkpoint,
    target: str | os.PathLike[str],
    ftype: str,
    options: QuantizeOptions,
    write: WriteOptions = WriteOptions(),
) -> QuantizePlan:
    """The plan of quantizing `model` to `target`. UsageError for options that contradict each other, UnsupportedError
    for a model that can't become a GGUF. What llama-quantize would stop at is in `refusals`."""
    path = resolve_target(target)
    if os.fspath(target).endswith(("/", os.sep)) and not options.keep_split:
        raise UsageError(
            f"{os.fspath(target)} names a folder, but a file is written", hint=f"write {path}, or --keep-split"
        )
    if options.keep_split and path.suffix == gguf.SUFFIX:
        path = path.with_suffix("")  # a folder of shards
    refuse_unreadable(model)
    check_target(path, model, options.keep_split)
    if options.target_bpw is not None or options.target_size is not None:
        return _for_a_size(model, path, ftype, options, write)
    wanted = ftypes.parse_ftype(ftype)
    inputs = prepare(model, wanted, options)
    choice = inputs.choose(wanted, options.types())
    return finish(model, path, wanted.name if wanted else ftypes.COPY, inputs, choice, options, write)


def _for_a_size(
    model: Checkpoint, path: Path, ftype: str, options: QuantizeOptions, write: WriteOptions
) -> QuantizePlan:
    """The plan for --target-bpw or --target-size."""
    bits, size = options.target_bpw, options.target_size
    if ftype or (bits is not None and size is not None):
        raise UsageError("TYPE, --target-bpw and --target-size are mutually exclusive", hint="give one of them")
    if options.pure:
        raise UsageError("--pure doesn't apply to a file of a given size", hint="its types are chosen for each tensor")
    inputs = prepare(model, None, options)
    header = gguf.header_size(specs(inputs.tensors), inputs.keys)
    align = inputs.keys[gguf.ALIGNMENT_KEY].value if gguf.ALIGNMENT_KEY in inputs.keys else gguf.DEFAULT_ALIGNMENT
    overhead = header + align * len(inputs.tensors)
    inputs, choice = size_target.types_for_size(inputs, options.types(), bits=bits, size=size, overhead=overhead)
    return finish(model, path, "", inputs, choice, options, write)


# -- the types applied -----------------------------------------------------------------------------------------------


def finish(
    model: Checkpoint,
    path: Path,
    ftype: str,
    inputs: QuantizeInputs,
    choice: ftypes.TypeChoice,
    options: QuantizeOptions,
    write: WriteOptions,
) -> QuantizePlan:
    """The plan that gives each tensor its chosen type."""
    made: dict[str, Node] = {}
    reports: dict[str, CastReport] = {}
    weights: dict[str, Any] = {}
    rows: list[QuantizeRow] = []
    refusals = list(choice.refusals)
    for name, node in inputs.tensors.items():
        target = choice.types[name]
        found = inputs.weights(name) if target.kind is Kind.BLOCK and target != node.spec.dtype else None
        if found is not None:
            weights[name] = found
        if target.kind is Kind.BLOCK and target != node.spec.dtype and not kernels.encodes(target):
            refusals.append(ftypes.Refusal(name, "unsupported", f"{target} can't be written by this version"))
        made[name] = _encode_as(name, node, target, found, reports)
        if target.importance == "required" and target != node.spec.dtype and found is None:
            refusals.append(
                ftypes.Refusal(name, "imatrix-missing", f"{target} needs an importance matrix' entry for it")
            )
        wanted = choice.fallbacks.get(name)
        rows.append(_row(name, node, made[name], wanted and wanted[0].name, found is not None))
        refusals += _packed_refusal(name, node, target, options)
    files = _files(path, made, inputs, options)
    return QuantizePlan(
        source=str(model.place.path),
        target=path,
        format="gguf",
        folder=options.keep_split,
        files=files,
        losses=(*inputs.losses, *_losses(choice, inputs, weights), *copied(model, made)),
        notes=(
            *model.oddities,
            *_notes(inputs, weights),
            *(line for f in files for line in f.layout.notes),
            *check_loadable(((f.name, f.layout) for f in files), model),
        ),
        write=write,
        model=model,
        reports=reports,
        sources=_sources(model, inputs),
        ftype=ftype,
        rows=tuple(rows),
        refusals=tuple(dict.fromkeys(refusals)),
        entries=(len(inputs.imatrix.matrix.entries), inputs.imatrix.total) if inputs.imatrix else None,
        originals=inputs.tensors,
        weights=weights,
    )


def _encode_as(name: str, node: Node, target: DType, weights: Any, reports: dict[str, CastReport]) -> Node:
    """The tensor as `target`; losses of the cast or of scales are counted in a report."""
    if node.spec.dtype is target:
        return node
    report = reports[name] = CastReport(name)
    if target.kind is not Kind.BLOCK:
        return cast(node, target, report)
    source = cast(node, F32)  # (whether it can be written is in the refusals)
    return Encode(source.spec.with_dtype(target), source, report, weights)


def _row(name: str, node: Node, made: Node, wanted: str | None, weighted: bool) -> QuantizeRow:
    packed = packed_in(node)
    stored = sum(m.spec.nbytes for m in packed.members.values()) if packed else node.spec.nbytes
    source = packed.packing.name if packed else node.spec.dtype.name
    target = made.spec
    return QuantizeRow(name, target.shape, source, target.dtype.name, stored, target.nbytes, wanted, weighted)


def _packed_refusal(name: str, node: Node, target: DType, options: QuantizeOptions) -> list[ftypes.Refusal]:
    """The refusal to quantize a tensor that another tool has quantized; not where its codes stay as they are."""
    packed = packed_in(node)
    if (
        packed is None
        or node.spec.dtype is target
        or not is_quantized(packed)
        or options.allow_requantize
        or target.kind is not Kind.BLOCK
    ):
        return []
    return [ftypes.Refusal(name, "requantize", f"it is already quantized ({packed.packing.name})")]


def _files(
    path: Path, tensors: Mapping[str, Node], inputs: QuantizeInputs, options: QuantizeOptions
) -> tuple[PlannedFile, ...]:
    if not options.keep_split:
        return (planned(path.name, gguf.layout(specs(tensors), inputs.keys), tensors),)
    stem = path.stem if path.suffix == gguf.SUFFIX else path.name
    files = []
    for shard in range(inputs.shards):
        part = {name: node for name, node in tensors.items() if inputs.shard_of[name] == shard}
        keys = gguf_keys.shard_keys(inputs.keys, shard, inputs.shards, len(tensors))
        layout = gguf.layout(specs(part), keys)
        files.append(planned(gguf.shard_name(stem, shard, inputs.shards), layout, part))
    return tuple(files)


def _sources(model: Checkpoint, inputs: QuantizeInputs) -> tuple[str, ...]:
    """What the result depends on besides headers: the state of the files, and the importance matrix."""
    files = tuple(map(state_of, model.place.files))
    return files + ((f"importance matrix: {inputs.imatrix.digest}",) if inputs.imatrix else ())


def _losses(choice: ftypes.TypeChoice, inputs: QuantizeInputs, weights: Mapping[str, Any]) -> list[Loss]:
    rows = {name: inputs.tensors[name].spec.shape[-1] for name in choice.fallbacks}
    losses = [
        Loss(f"row length {rows[name]} isn't a multiple of {wanted.block}; using {got} instead of {wanted}", name)
        for name, (wanted, got) in choice.fallbacks.items()
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


def _notes(inputs: QuantizeInputs, weights: Mapping[str, Any]) -> list[str]:
    if inputs.imatrix is None:
        return []
    used, entries = len(weights), inputs.imatrix.matrix.entries
    known = set(inputs.entries.values())
    unknown = [name for name in entries if name not in known]
    notes = [f"importance matrix: {used} of {len(entries)} entries used"]
    if unknown:
        notes.append(f"{len(unknown)} imatrix entries match no tensor, first {unknown[0]}")
    return notes


# -- refusals as errors ----------------------------------------------------------------------------------------------

# Rule -> the option or the hint of the error.
_ADVICE: Final[Mapping[str, dict[str, str]]] = {
    "requantize": {"option": "--allow-requantize"},
    "imatrix-missing": {"hint": "pass one with --imatrix FILE, or choose a larger type"},
    "imatrix-size": {"hint": "it belongs to another model or version"},
    "unsupported": {"hint": "choose another type, or another for this tensor: --tensor-type NAME=TYPE"},
    "fallback": {"hint": "choose another type for it: --tensor-type NAME=TYPE"},
}


def _refused(refusals: Sequence[ftypes.Refusal]) -> RefusedError | UnsupportedError:
    first = refusals[0]
    same = [r for r in refusals if r.rule == first.rule]
    more = f" (and {len(same) - 1:,} more tensors)" if len(same) > 1 else ""
    advice = _ADVICE.get(first.rule, {"hint": "leave it as it is: --tensor-type NAME=f16"})
    message = f"{first.tensor}: {first.message}{more}"
    if first.rule == "unsupported":
        return UnsupportedError(message, **advice)
    return RefusedError(message, **advice)
