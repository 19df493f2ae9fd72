"""llama-quantize's work, straight from whatever the weights are in: its types, its order, its keys, its bytes.

    plan = build(model, "out.gguf", "Q4_K_M", QuantizeOptions(imatrix="imatrix.gguf"))
    plan.rows         tensor by tensor: from which type to which, and why
    plan.refusals     what stands in the way (`run` goes no further; `--dry-run` shows them)

Any other source than a GGUF is first the GGUF that the converter would write of it, in the type it is stored in, and
that only as a plan: no value is read twice, no file lies in between. What differs from llama-quantize's output is a
closed list in docs/quantize-equality.md. Reference: src/llama-quant.cpp and tools/quantize/quantize.cpp of llama.cpp
b11549.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from weighbridge.base.dtypes import F32, DType, Kind
from weighbridge.base.errors import RefusedError, UnsupportedError, UsageError
from weighbridge.containers.gguf import container as gguf
from weighbridge.conversion.options import WriteOptions
from weighbridge.conversion.plan import build as building
from weighbridge.conversion.plan.fingerprint import state_of
from weighbridge.conversion.plan.model import Loss, Plan, PlannedFile
from weighbridge.conversion.plan.writers import planned
from weighbridge.conversion.quantize import ftypes as mixtures
from weighbridge.conversion.quantize import keys as quantize_keys
from weighbridge.conversion.quantize import size_target as budget
from weighbridge.conversion.quantize.inputs import Prepared, QuantizeOptions, prepare, specs
from weighbridge.conversion.result import Progress, Result
from weighbridge.models.checkpoint import Checkpoint
from weighbridge.tensors import kernels
from weighbridge.tensors.nodes import CastReport, Encode, Node, QuantizedTensor, cast, walk


@dataclass(frozen=True, slots=True)
class TensorRow:
    """What happens to one tensor. `wanted`: the type that its rows were no whole blocks of; `weighted`: the importance
    matrix has an entry that its encoder uses."""

    name: str
    shape: tuple[int, ...]
    source: str
    target: str
    source_bytes: int
    target_bytes: int
    wanted: str | None = None
    weighted: bool = False


@dataclass(frozen=True)
class QuantizePlan(Plan):
    """A plan, and how its types came about. `entries`: how many of the importance matrix are used, of how many."""

    ftype: str = ""
    rows: tuple[TensorRow, ...] = ()
    refusals: tuple[mixtures.Refusal, ...] = ()
    entries: tuple[int, int] | None = None
    #: the tensors before they are quantized, and the weights of their columns, for a report
    originals: Mapping[str, Node] = field(default_factory=dict)
    weights: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bits(self) -> float:
        """Bits per weight over all tensors."""
        elements = sum(n.spec.elements for f in self.files for n in f.nodes)
        return 8 * sum(r.target_bytes for r in self.rows) / elements if elements else 0.0

    def check(self) -> None:
        """An error where something stands in the way."""
        if self.refusals:
            raise _refused(self.refusals)

    def run(self, progress: Progress | None = None) -> Result:
        self.check()
        return super().run(progress)

    def describe(self) -> dict[str, Any]:
        data = super().describe() | {"schema": "weighbridge/quantize/1", "type": self.ftype}
        names = TensorRow.__slots__
        return data | {
            "bits_per_weight": round(self.bits, 4),
            "imatrix": self.entries and {"used": self.entries[0], "entries": self.entries[1]},
            "tensors": [{name: getattr(row, name) for name in names} for row in self.rows],
            "refusals": [r._asdict() for r in self.refusals],
        }


def default_target(source: Path, ftype: str, keep_split: bool = False) -> Path:
    """Where llama-quantize writes when it isn't told: `ggml-model-TYPE.gguf` beside the source's weights."""
    row = mixtures.ftype(ftype)
    folder = source if source.is_dir() else source.parent
    return folder / f"ggml-model-{row.name if row else mixtures.COPY}{'' if keep_split else '.gguf'}"


def build(
    model: Checkpoint, target: str | Path, ftype: str, options: QuantizeOptions, write: WriteOptions = WriteOptions()
) -> QuantizePlan:
    """The plan of quantizing `model` to `target`. UsageError for options that make no sense, UnsupportedError for a
    model we can't make a GGUF of; what llama-quantize would stop at is told in `refusals`."""
    path = Path(target)
    if options.keep_split and path.suffix == gguf.SUFFIX:
        path = path.with_suffix("")  # a folder of shards
    building.check_target(path, model, options.keep_split)
    if options.target_bpw is not None or options.target_size is not None:
        return _for_a_size(model, path, ftype, options, write)
    wanted = mixtures.ftype(ftype)
    prepared = prepare(model, wanted, options)
    choice = prepared.choose(wanted, options.types())
    return finish(model, path, wanted.name if wanted else mixtures.COPY, prepared, choice, options, write)


def _for_a_size(
    model: Checkpoint, path: Path, ftype: str, options: QuantizeOptions, write: WriteOptions
) -> QuantizePlan:
    """The plan with types chosen for a size."""
    bits, size = options.target_bpw, options.target_size
    if ftype or (bits is not None and size is not None):
        raise UsageError("a type, --target-bpw and --target-size exclude each other", hint="give one of them")
    prepared = prepare(model, None, options)
    header = gguf.header_size(specs(prepared.tensors), prepared.keys)
    align = prepared.keys[gguf.ALIGNMENT_KEY].value if gguf.ALIGNMENT_KEY in prepared.keys else gguf.DEFAULT_ALIGNMENT
    overhead = header + align * len(prepared.tensors)
    prepared, choice = budget.budgeted(prepared, options.types(), bits=bits, size=size, overhead=overhead)
    return finish(model, path, "", prepared, choice, options, write)


# -- the types applied -----------------------------------------------------------------------------------------------


def finish(
    model: Checkpoint,
    path: Path,
    ftype: str,
    prepared: Prepared,
    choice: mixtures.Choice,
    options: QuantizeOptions,
    write: WriteOptions,
) -> QuantizePlan:
    """The plan of giving each tensor the type that was chosen for it."""
    made: dict[str, Node] = {}
    reports: dict[str, CastReport] = {}
    weights: dict[str, Any] = {}
    rows: list[TensorRow] = []
    refusals = list(choice.refusals)
    for name, node in prepared.tensors.items():
        target = choice.types[name]
        found = prepared.weights(name) if target.kind is Kind.BLOCK and target != node.spec.dtype else None
        if found is not None:
            weights[name] = found
        if target.kind is Kind.BLOCK and target != node.spec.dtype and not kernels.encodes(target):
            refusals.append(mixtures.Refusal(name, "unsupported", f"{target} can't be written by this version"))
        made[name] = _retyped(name, node, target, found, reports)
        if target.importance == "required" and target != node.spec.dtype and found is None:
            refusals.append(
                mixtures.Refusal(name, "imatrix-missing", f"{target} needs an importance matrix' entry for it")
            )
        wanted = choice.fallbacks.get(name)
        rows.append(_row(name, node, made[name], wanted and wanted[0].name, found is not None))
        refusals += _packed_refusal(name, node, target, options)
    files = _files(path, made, prepared, options)
    return QuantizePlan(
        source=str(model.place.path),
        target=path,
        format="gguf",
        folder=options.keep_split,
        files=files,
        losses=(*prepared.losses, *_losses(choice, prepared, weights)),
        notes=(*_notes(prepared, weights), *(line for f in files for line in f.layout.notes)),
        write=write,
        model=model,
        reports=reports,
        sources=_sources(model, prepared),
        ftype=ftype,
        rows=tuple(rows),
        refusals=tuple(dict.fromkeys(refusals)),
        entries=(len(prepared.imatrix.matrix.entries), prepared.imatrix.total) if prepared.imatrix else None,
        originals=prepared.tensors,
        weights=weights,
    )


def _retyped(name: str, node: Node, target: DType, weights: Any, reports: dict[str, CastReport]) -> Node:
    """The tensor in its type; what its cast or its scales lose is counted."""
    if node.spec.dtype == target and not isinstance(node, QuantizedTensor):
        return node
    report = reports[name] = CastReport(name)
    if target.kind is not Kind.BLOCK:
        return cast(node, target, report)
    source = cast(node, F32)  # (whether it can be written is told by the refusals)
    return Encode(source.spec.with_dtype(target), source, report, weights)


def _row(name: str, node: Node, made: Node, wanted: str | None, weighted: bool) -> TensorRow:
    packed = next((n for n in walk(node) if isinstance(n, QuantizedTensor)), None)
    stored = sum(m.spec.nbytes for m in packed.members.values()) if packed else node.spec.nbytes
    source = packed.packing.name if packed else node.spec.dtype.name
    target = made.spec
    return TensorRow(name, target.shape, source, target.dtype.name, stored, target.nbytes, wanted, weighted)


def _packed_refusal(name: str, node: Node, target: DType, options: QuantizeOptions) -> list[mixtures.Refusal]:
    """A tensor that another tool quantized would be quantized a second time, as one of a GGUF would be."""
    packed = next((n for n in walk(node) if isinstance(n, QuantizedTensor)), None)
    if packed is None or options.allow_requantize or target.kind is not Kind.BLOCK:
        return []
    return [mixtures.Refusal(name, "requantize", f"it is quantized already, to {packed.packing.name}")]


def _files(
    path: Path, tensors: Mapping[str, Node], prepared: Prepared, options: QuantizeOptions
) -> tuple[PlannedFile, ...]:
    if not options.keep_split:
        return (planned(path.name, gguf.layout(specs(tensors), prepared.keys), tensors),)
    stem = path.stem if path.suffix == gguf.SUFFIX else path.name
    files = []
    for shard in range(prepared.shards):
        part = {name: node for name, node in tensors.items() if prepared.places[name] == shard}
        keys = quantize_keys.shard_keys(prepared.keys, shard, prepared.shards, len(tensors))
        layout = gguf.layout(specs(part), keys)
        files.append(planned(gguf.shard_name(stem, shard, prepared.shards), layout, part))
    return tuple(files)


def _sources(model: Checkpoint, prepared: Prepared) -> tuple[str, ...]:
    """What the result depends on besides headers: the files, as they are now, and the importance matrix."""
    files = tuple(map(state_of, model.place.weights))
    return files + ((f"importance matrix: {prepared.imatrix.digest}",) if prepared.imatrix else ())


def _losses(choice: mixtures.Choice, prepared: Prepared, weights: Mapping[str, Any]) -> list[Loss]:
    rows = {name: prepared.tensors[name].spec.shape[-1] for name in choice.fallbacks}
    told = [
        Loss(f"its rows of {rows[name]} are no whole blocks of {wanted}: {got} instead", name)
        for name, (wanted, got) in choice.fallbacks.items()
    ]
    told += [
        Loss("quantized a second time", name)
        for name, node in prepared.tensors.items()
        if node.spec.dtype.kind is Kind.BLOCK and choice.types[name] != node.spec.dtype
    ]
    if prepared.imatrix is not None:
        told += [
            Loss("the importance matrix has no entry for it that fits: quantized without", name)
            for name, target in choice.types.items()
            if name not in weights and target.kind is Kind.BLOCK and target != prepared.tensors[name].spec.dtype
            and mixtures.role(name) not in ("embedding", "output")
        ]  # fmt: skip
    return told


def _notes(prepared: Prepared, weights: Mapping[str, Any]) -> list[str]:
    if prepared.imatrix is None:
        return []
    used, entries = len(weights), prepared.imatrix.matrix.entries
    known = set(prepared.entries.values())
    strange = [name for name in entries if name not in known]
    notes = [f"importance matrix: {len(entries)} entries, {used} of them used"]
    if strange:
        notes.append(f"{len(strange)} entries of the importance matrix are no tensor here, first {strange[0]}")
    return notes


# -- refusals as errors ----------------------------------------------------------------------------------------------

# Rule -> the option or the hint that leads on.
_WAYS: Final[Mapping[str, dict[str, str]]] = {
    "requantize": {"option": "--allow-requantize"},
    "imatrix-missing": {"hint": "give one with --imatrix FILE, or choose a larger type"},
    "imatrix-size": {"hint": "it was made for another model, or another version of it"},
    "unsupported": {"hint": "choose another type, or another for this tensor: --tensor-type NAME=TYPE"},
    "fallback": {"hint": "choose another type for it: --tensor-type NAME=TYPE"},
}


def _refused(refusals: Sequence[mixtures.Refusal]) -> RefusedError | UnsupportedError:
    first = refusals[0]
    same = [r for r in refusals if r.rule == first.rule]
    more = f" (and {len(same) - 1:,} more tensors)" if len(same) > 1 else ""
    way = _WAYS.get(first.rule, {"hint": "leave it as it is: --tensor-type NAME=f16"})
    message = f"{first.tensor}: {first.message}{more}"
    if first.rule == "unsupported":
        return UnsupportedError(message, **way)
    return RefusedError(message, **way)
