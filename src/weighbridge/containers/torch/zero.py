"""DeepSpeed's ZeRO checkpoints: the fp32 weights, cut evenly over the processes of a training run.

    mp_rank_00_model_states.pt                       names and shapes of the weights, buffers (stages 1 and 2)
    zero_pp_rank_1_mp_rank_00_model_states.pt        the same of process 1 (stage 3)
    zero_pp_rank_1_mp_rank_00_optim_states.pt        process 1's part of the weights and of the optimizer
    zero/<weight>/fp32.pt                            a universal checkpoint: one file a weight

    stage 1, 2   a vector per group of weights, one after the other, is cut into one part a process
    stage 3      each weight is cut into one part a process, padded to equal sizes; these are stored one after the other

The second number in names is the tensor-parallel part, whose processes have a part of each weight. The model states of
Megatron-DeepSpeed state how the parts of a weight are joined (`universal_checkpoint_info`).

Every file is a file of torch.save; an abstract machine reads its pickle, which is never unpickled. The functions here
turn the values of these files into weights, each a list of pieces of stored tensors. `models/zero` opens folders.
Reference: deepspeed/utils/zero_to_fp32.py and deepspeed/checkpoint of DeepSpeed 0.19; the values are those that
zero_to_fp32 computes. Frozen weights of stage 1, which that omits, are read from the model states.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from weighbridge.base.dtypes import F32
from weighbridge.base.errors import FormatError
from weighbridge.base.limits import DIMS, SHARDS, SIGNED_64
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Shape, Spec
from weighbridge.containers.base import Entry, Index
from weighbridge.containers.torch.zero_parts import (
    RULES,
    JoinedWeight,
    PartRules,
    ZeroPiece,
    ZeroWeight,
    joined_parts,
    part_rules,
    whole,
)
from weighbridge.unpickle.tree import TensorLeaf

#: The folder of a universal checkpoint's weights, and a weight's file in it.
UNIVERSAL, UNIVERSAL_FILE = "zero", "fp32.pt"
_MODEL: Final = re.compile(r"(?:zero_pp_rank_(?P<rank>\d{1,6})_)?mp_rank_(?P<part>\d{2,6})_model_states\.pt", re.ASCII)
_OPTIMIZER: Final = re.compile(
    r"(?:bf16_|fp16_)?zero_pp_rank_(?P<rank>\d{1,6})_mp_rank_(?P<part>\d{2,6})_optim_states\.pt", re.ASCII
)
_STATE: Final = "optimizer_state_dict"
# Stage -> the key of a process's parts of the weights.
_PARTS: Final = {1: "single_partition_of_fp32_groups", 2: "single_partition_of_fp32_groups", 3: "fp32_flat_groups"}
_SHARDED: Final = 3
Weight = TypeVar("Weight")
_ALIGNED: Final = 2  # x processes: the size that a group of stages 1 and 2 is padded to
#: The hint of every fault.
AGAIN: Final = "copy the whole folder again, or use another step"


def files_of(names: Collection[str]) -> list[str] | None:
    """The files of a ZeRO checkpoint: model states, then optimizer states, each by tensor-parallel part and process.
    None in a folder without the parts of its weights."""
    named = [(match, name) for name in names if (match := _MODEL.fullmatch(name) or _OPTIMIZER.fullmatch(name))]
    if not any(match.re is _OPTIMIZER or match["rank"] for match, _ in named):
        return None
    return [name for *_, name in sorted((m.re is _OPTIMIZER, *_numbers(name), name) for m, name in named)]


def _numbers(path: str) -> tuple[int, int]:
    """The tensor-parallel part and the process of a file."""
    name = path.rpartition("/")[2]
    match = _MODEL.fullmatch(name) or _OPTIMIZER.fullmatch(name)
    return (int(match["part"]), int(match["rank"] or 0)) if match else (0, 0)


@dataclass(frozen=True)
class ModelStates:
    """The content of a file of model states. `file`: the number of its index. `shapes`: of the weights, by group of the
    optimizer. `module`: the tensors used in training, in 16 bits; none in stage 3. `rules`: for its parts."""

    path: str
    file: int
    shapes: tuple[Mapping[str, Shape], ...]
    frozen: Mapping[str, Shape]
    fragments: Mapping[str, Entry]
    buffers: Mapping[str, Entry]
    shared: Mapping[str, str]
    module: Mapping[str, Entry]
    step: int | None = None
    rules: PartRules | None = None


@dataclass(frozen=True)
class OptimizerStates:
    """The content of a file of optimizer states. `parts`: the process's parts of the weights, by group. `gaps`: the
    padding after each weight of a group, if there is any."""

    path: str
    file: int
    stage: int
    ranks: int
    parts: tuple[Entry, ...]
    gaps: tuple[tuple[int, ...], ...] | None = None
    step: int | None = None


# ---- the values of one file ------------------------------------------------------------------------------------


def model_states(file: int, index: Index, value: Any) -> ModelStates:
    """`value`: the nested value of the file (`torch.tree`). FormatError if it isn't one of model states."""
    path = index.files[0].name
    top = _dict(value, path, "the file")
    if "param_shapes" not in top or "buffer_names" not in top:
        raise FormatError("not a file of DeepSpeed's model states", path=path, expected="param_shapes and buffer_names")
    groups = top["param_shapes"]
    shapes = [_shapes(group, path, "param_shapes") for group in (groups if isinstance(groups, list) else [groups])]
    names = top["buffer_names"] if isinstance(top["buffer_names"], list) else []
    module = top["module"] if isinstance(top.get("module"), dict) else {}
    fragments = top.get("frozen_param_fragments")
    shared = top.get("shared_params")
    pairs = shared.items() if isinstance(shared, dict) else [p for p in shared or () if isinstance(p, list | tuple)]
    step = top.get("global_steps")
    return ModelStates(
        path, file, tuple(shapes), _shapes(top.get("frozen_param_shapes") or {}, path, "frozen_param_shapes"),
        _entries(index, fragments if isinstance(fragments, dict) else {}),
        _entries(index, {name: module[name] for name in names if name in module}),
        {str(alias): str(source) for alias, source in pairs}, _entries(index, module),
        step if type(step) is int else None, part_rules(top.get(RULES), path),
    )  # fmt: skip


def optimizer_states(file: int, index: Index, value: Any) -> OptimizerStates:
    """`value`: the nested value of the file. FormatError if it isn't one of ZeRO's optimizer states."""
    path = index.files[0].name
    state = _dict(_dict(value, path, "the file").get(_STATE), path, _STATE)
    stage, ranks = state.get("zero_stage"), state.get("partition_count")
    if isinstance(ranks, list) and ranks and all(type(n) is int for n in ranks):
        ranks = max(ranks)  # with experts, groups are cut over different numbers of processes
    if type(stage) is not int or stage not in _PARTS:
        raise FormatError("not a stage of ZeRO", path=path, field="zero_stage", expected="1, 2 or 3", found=stage)
    if type(ranks) is not int or not 0 < ranks <= SHARDS:
        raise FormatError("not a number of processes", path=path, field="partition_count", found=ranks)
    parts = state.get(_PARTS[stage])
    listed = parts if isinstance(parts, list | tuple) else [parts]
    entries = [index.by_name.get(leaf.name) if isinstance(leaf, TensorLeaf) else None for leaf in listed]
    stored = tuple(entry for entry in entries if entry is not None)
    if len(stored) < len(entries):
        raise FormatError("the process's parts of the weights are missing", path=path, field=_PARTS[stage])
    for entry in stored:
        if len(entry.shape) != 1 or entry.strides is not None or not entry.dtype.plain:
            raise FormatError("a part of the weights isn't a plain vector", path=path, field=entry.name,
                              found=str(entry.spec))  # fmt: skip
    gaps = state.get("param_alignment_paddings")
    if gaps is not None:
        nested = isinstance(gaps, list | tuple) and all(isinstance(group, list | tuple) for group in gaps)
        if not nested or not all(type(n) is int and 0 <= n < SIGNED_64 for group in gaps for n in group):
            raise FormatError("not the padding after each weight", path=path, field="param_alignment_paddings")
        gaps = tuple(map(tuple, gaps))
    return OptimizerStates(path, file, stage, ranks, stored, gaps, _step(index, state))


def _step(index: Index, state: Mapping[Any, Any]) -> int | None:
    """The optimizer's steps, which every process counts: a number, or a tensor of one float."""
    inner: Any = state.get("base_optimizer_state") or state.get(_STATE)
    for key in ("state", 0, "step"):
        inner = inner.get(key) if isinstance(inner, dict) else None
    entry = index.by_name.get(inner.name) if isinstance(inner, TensorLeaf) else None
    if entry is not None and entry.dtype is F32 and entry.nbytes == F32.size:
        raw = index.files[entry.file].read(entry.offset, entry.nbytes)
        (number,) = struct.unpack(f"{index.byte_order}f", raw)
        return int(number) if number.is_integer() else None
    return inner if type(inner) is int else None


def _dict(value: Any, path: str, name: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise FormatError("not a dict, as DeepSpeed saves", path=path, field=name, found=type(value).__name__)
    return value


def _shapes(value: Any, path: str, name: str) -> dict[str, Shape]:
    out: dict[str, Shape] = {}
    for key, shape in _dict(value, path, name).items():
        good = isinstance(key, str) and isinstance(shape, list | tuple) and len(shape) <= DIMS
        if not good or not all(type(n) is int and 0 <= n < SIGNED_64 for n in shape):
            raise FormatError("not a weight's shape", path=path, field=f"{name}.{key}"[:200], found=repr(shape)[:80])
        out[key] = tuple(shape)
    return out


def _entries(index: Index, leaves: Mapping[Any, Any]) -> dict[str, Entry]:
    return {
        str(name): index.by_name[leaf.name]
        for name, leaf in leaves.items()
        if isinstance(leaf, TensorLeaf) and leaf.name in index.by_name
    }


# ---- the processes together ------------------------------------------------------------------------------------


class ZeroFault(NamedTuple):
    """A reason for which the files of a folder aren't one checkpoint. `rule`: its name in `reports/verify/runs`."""

    rule: str
    message: str
    path: str


class ZeroPart(NamedTuple):
    """The files of a tensor-parallel part. `optimizer`: by process."""

    number: int
    models: tuple[ModelStates, ...]
    optimizer: Mapping[int, OptimizerStates]


def parts_of(models: Sequence[ModelStates], states: Sequence[OptimizerStates]) -> list[ZeroPart]:
    """The files of each tensor-parallel part, in order."""
    paths = [*(model.path for model in models), *(state.path for state in states)]
    numbers = sorted({_numbers(path)[0] for path in paths})
    return [
        ZeroPart(
            number, tuple(model for model in models if _numbers(model.path)[0] == number),
            {rank: state for state in states for part, rank in [_numbers(state.path)] if part == number},
        )
        for number in numbers
    ]  # fmt: skip


def faults(parts: Sequence[ZeroPart]) -> Iterator[ZeroFault]:
    """The reasons for which the files aren't one checkpoint."""
    models = [model for part in parts for model in part.models]
    states = [state for part in parts for state in part.optimizer.values()]
    for state in states:
        first = states[0]
        if (state.stage, state.ranks) != (first.stage, first.ranks):
            message = f"stage {state.stage} of {state.ranks} processes, others are stage {first.stage} of {first.ranks}"
            yield ZeroFault("mixed", message, state.path)
        if state.step != first.step:
            yield ZeroFault("step", f"after {state.step} steps, {first.path} after {first.step}", state.path)
    for model in models:
        if model.step != models[0].step:
            yield ZeroFault("step", f"step {model.step}, {models[0].path} has step {models[0].step}", model.path)
    if len(parts) > 1:
        yield from _faults_between(parts)
    ranks = max((state.ranks for state in states), default=0)
    for part in parts:
        yield from _faults_of(part, ranks, states[0].stage if states else _SHARDED)


def _faults_of(part: ZeroPart, ranks: int, stage: int) -> Iterator[ZeroFault]:
    """The faults in the files of a tensor-parallel part."""
    name = f" in mp_rank_{part.number:02}" if part.number else ""
    missing = [n for n in range(ranks) if n not in part.optimizer]
    if missing or not part.optimizer:
        listed = f"{', '.join(map(str, missing[:8])) or 'all'} of {ranks or 'all'}"
        yield ZeroFault("missing", f"the parts of the weights of process {listed} are missing{name}", "")
    for rank, state in part.optimizer.items():
        if rank >= ranks:
            yield ZeroFault("mixed", f"of process {rank}, and the others are {ranks}: it is of another run", state.path)
    expected = ranks if stage == _SHARDED else 1
    if len(part.models) < expected or not part.models:
        message = f"{expected - len(part.models)} of {expected} files of model states are missing{name}"
        yield ZeroFault("missing", message, "")
    for model in part.models[1:]:
        if (model.shapes, model.frozen) != (part.models[0].shapes, part.models[0].frozen):
            yield ZeroFault("mixed", f"other weights than in {part.models[0].path}", model.path)


def _faults_between(parts: Sequence[ZeroPart]) -> Iterator[ZeroFault]:
    """The faults of several tensor-parallel parts."""
    missing = sorted(set(range(parts[-1].number)) - {part.number for part in parts})
    if missing:
        yield ZeroFault("missing", f"the files of mp_rank_{missing[0]:02} are missing", "")
    models = [part.models[0] for part in parts if part.models]
    first = models[0] if models else None
    if first is None or first.rules is None:
        message = f"{len(parts)} tensor-parallel parts, and {RULES}, which states how to join them, is missing"
        yield ZeroFault("parts", message, "" if first is None else first.path)
    for model in models[1:]:
        if first and [*map(list, model.shapes)] != [*map(list, first.shapes)]:
            yield ZeroFault(
                "parts", f"other weights than in {first.path}: stages of a pipeline aren't joined", model.path
            )


def join(parts: Sequence[ZeroPart]) -> dict[str, JoinedWeight]:
    """The whole weights and buffers. FormatError if the sizes disagree."""
    first, *others = map(_joined_processes, parts)
    model = parts[0].models[0]
    if not others or model.rules is None:
        return with_aliases(model, {name: whole(weight) for name, weight in first.items()})
    for part, weights in zip(parts[1:], others, strict=True):
        if odd := weights.keys() ^ first.keys():
            raise FormatError("tensor-parallel parts have different weights", path=part.models[0].path, field=min(odd))
    joined = {
        name: whole(weight) if name in model.buffers
        else joined_parts(name, [weight, *(weights[name] for weights in others)], model.rules, model.path)
        for name, weight in first.items()
    }  # fmt: skip
    return with_aliases(model, joined)


def _joined_processes(part: ZeroPart) -> dict[str, ZeroWeight]:
    """The weights and buffers of a tensor-parallel part."""
    states = [state for _, state in sorted(part.optimizer.items())]
    first = part.models[0]
    sharded = states[0].stage == _SHARDED
    weights = untrained(part, sharded)
    for name, shape, pieces in _partitioned(first, states) if sharded else _concatenated(first, states):
        weights[name] = weight(name, shape, pieces, first.path)
    return weights


def untrained(part: ZeroPart, sharded: bool) -> dict[str, ZeroWeight]:
    """The buffers, as fp32 if they are floats, and the frozen weights. `sharded`: these are cut into parts."""
    models = part.models
    first, out = models[0], dict[str, ZeroWeight]()
    for name, entry in first.buffers.items():
        dtype = F32 if entry.dtype.is_float else entry.dtype
        piece = ZeroPiece(first.file, entry, 0, entry.spec.elements)
        out[name] = ZeroWeight(Spec(entry.shape, dtype), entry.dtype, (piece,) if piece.length else ())
    for name, shape in first.frozen.items():
        owners = models if sharded else models[:1]
        found = [(model.file, model.fragments.get(name)) for model in owners]
        pieces = [ZeroPiece(file, entry, 0, entry.spec.elements) for file, entry in found if entry is not None]
        if len(pieces) < len(owners):
            raise FormatError("a part of a frozen weight is missing", path=first.path, field=name)
        out[name] = weight(name, shape, pieces, first.path)
    trained = {name for shapes in first.shapes for name in shapes}
    for name, entry in first.module.items():  # frozen in stage 1, where DeepSpeed lists no frozen weights
        if name not in out and name not in trained and name not in first.shared and entry.spec.elements:
            out[name] = ZeroWeight(entry.spec, entry.dtype, (ZeroPiece(first.file, entry, 0, entry.spec.elements),))
    return out


def with_aliases(model: ModelStates, weights: dict[str, Weight]) -> dict[str, Weight]:
    """The weights, with the further names of shared ones."""
    return weights | {alias: weights[source] for alias, source in model.shared.items() if source in weights}


def weight(name: str, shape: Shape, pieces: Sequence[ZeroPiece], path: str) -> ZeroWeight:
    """A weight of pieces, without the padding after it."""
    dtypes = {piece.entry.dtype for piece in pieces}
    if len(dtypes) > 1:
        raise FormatError("the parts of a weight have different types", path=path, field=name)
    spec = Spec(shape, dtypes.pop() if dtypes else F32)
    kept, left = [], spec.elements
    if sum(piece.length for piece in pieces) >= spec.elements + max(len(pieces), 1):  # more than padding
        raise FormatError("the parts of a weight have too many elements", path=path, field=name,
                          expected=spec.elements, found=sum(piece.length for piece in pieces))  # fmt: skip
    for piece in pieces:
        if left and piece.length:
            kept.append(piece._replace(length=min(piece.length, left)))
            left -= kept[-1].length
    if left:
        raise FormatError("the parts of a weight have too few elements", path=path, field=name,
                          expected=spec.elements, found=spec.elements - left)  # fmt: skip
    return ZeroWeight(spec, spec.dtype, tuple(kept))


_Pieces: TypeAlias = Iterator[tuple[str, Shape, Sequence[ZeroPiece]]]


def _concatenated(model: ModelStates, states: Sequence[OptimizerStates]) -> _Pieces:
    """Stages 1 and 2: each group is a vector of its weights, cut into one part a process."""
    counts = {len(state.parts) for state in states}
    if counts != {len(model.shapes)}:
        raise FormatError("the files have different numbers of groups of weights", path=states[0].path,
                          expected=len(model.shapes), found=sorted(counts))  # fmt: skip
    for group, shapes in enumerate(model.shapes):
        parts = _Parts([(state.file, state.parts[group]) for state in states])
        gaps = _gaps_of(states[0], group, len(shapes))
        offset = 0
        for (name, shape), gap in zip(shapes.items(), gaps, strict=True):
            count = math.prod(shape)
            yield name, shape, parts.range(offset, count)
            offset += count + gap
        align = _ALIGNED * len(states)
        if -(-offset // align) != -(-parts.size // align):
            _disagree(states[0].path, f"group {group}", offset, parts.size)


def _partitioned(model: ModelStates, states: Sequence[OptimizerStates]) -> _Pieces:
    """Stage 3: each weight is cut into one part a process; a process's parts are a vector in several groups."""
    vectors = [_Parts([(state.file, entry) for entry in state.parts]) for state in states]
    offset = 0
    for name, shape in ((name, shape) for shapes in model.shapes for name, shape in shapes.items()):
        count = -(-math.prod(shape) // len(states))
        yield name, shape, [piece for vector in vectors for piece in vector.range(offset, count)]
        offset += count
    for state, vector in zip(states, vectors, strict=True):
        if vector.size != offset:
            _disagree(state.path, "the weights of a process", offset, vector.size)


def _gaps_of(state: OptimizerStates, group: int, count: int) -> Sequence[int]:
    if state.gaps is None:
        return [0] * count
    if group >= len(state.gaps) or len(state.gaps[group]) != count:
        raise FormatError("not one padding per weight", path=state.path, field=f"param_alignment_paddings.{group}")
    return state.gaps[group]


def _disagree(path: str, name: str, expected: int, actual: int) -> None:
    raise FormatError(
        "the sizes of the weights and of the processes' parts disagree", path=path, field=name, expected=expected,
        found=actual, hint=f"files of two steps or runs in one folder: {AGAIN}",
    )  # fmt: skip


class _Parts:
    """Vectors one after the other; ranges are taken in rising order."""

    def __init__(self, parts: Sequence[tuple[int, Entry]]) -> None:
        self.parts = parts
        self.size = sum(entry.shape[0] for _, entry in parts)
        self.number = self.before = 0  # of the part that the last range began in, and of elements before it

    def range(self, start: int, count: int) -> list[ZeroPiece]:
        """The pieces of `count` elements; fewer at the end."""
        while self.number < len(self.parts) and self.before + self.parts[self.number][1].shape[0] <= start:
            self.before += self.parts[self.number][1].shape[0]
            self.number += 1
        out: list[ZeroPiece] = []
        number, before = self.number, self.before
        while count and number < len(self.parts):
            file, entry = self.parts[number]
            taken = min(before + entry.shape[0] - start, count)
            if taken:
                out.append(ZeroPiece(file, entry, start - before, taken))
            start, count, before, number = start + taken, count - taken, before + entry.shape[0], number + 1
        return out
