"""The files of all processes of a ZeRO checkpoint together: whether they are one checkpoint, and the whole weights,
as pieces of stored tensors. `files` reads the files."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias, TypeVar

from weighbridge.base.dtypes import F32
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import SHARDS
from weighbridge.base.spec import Shape, Spec
from weighbridge.containers.base import Entry
from weighbridge.containers.torch.zero.files import LayerCopies, ModelStates, OptimizerStates, numbers_of
from weighbridge.containers.torch.zero.parts import JoinedWeight, ZeroPiece, ZeroWeight, joined_parts, whole
from weighbridge.containers.torch.zero.rules import RULES

Weight = TypeVar("Weight")
_SHARDED: Final = 3
_ALIGNED: Final = 2  # x processes: the size that a group of stages 1 and 2 is padded to
# An expert of a process, which counts its own.
_LOCAL: Final = re.compile(r"(.*\bdeepspeed_experts\.)(\d{1,6})(\..*)", re.ASCII | re.DOTALL)
_TIED: Final = "tied_modules."
#: The hint of every fault.
AGAIN: Final = "copy the whole folder again, or use another step"


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
    numbers = sorted({numbers_of(path)[0] for path in paths})
    return [
        ZeroPart(
            number, tuple(model for model in models if numbers_of(model.path)[0] == number),
            {rank: state for state in states for part, rank in [numbers_of(state.path)] if part == number},
        )
        for number in numbers
    ]  # fmt: skip


def faults(parts: Sequence[ZeroPart]) -> Iterator[ZeroFault]:
    """The reasons for which the files aren't one checkpoint."""
    models = [model for part in parts for model in part.models]
    states = [state for part in parts for state in part.optimizer.values()]
    for state, first in ((state, states[0]) for state in states):
        if (state.stage, state.ranks) != (first.stage, first.ranks):
            message = f"stage {state.stage} of {state.ranks} processes, others are stage {first.stage} of {first.ranks}"
            yield ZeroFault("mixed", message, state.path)
        if state.step != first.step:
            yield ZeroFault("step", f"after {state.step} steps, {first.path} after {first.step}", state.path)
    for model in models:
        if model.step != models[0].step:
            yield ZeroFault("step", f"step {model.step}, {models[0].path} has step {models[0].step}", model.path)
    if len(parts) > 1 or (models and models[0].sizes is not None):
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


def stages_of(parts: Sequence[ZeroPart]) -> list[Sequence[ZeroPart]]:
    """The tensor-parallel parts of each stage of a pipeline. Without their numbers in the model states, parts with the
    weights of the first one are of its stage."""
    models = [part.models[0] for part in parts if part.models]
    if models and models[0].sizes is not None:
        tensor = models[0].sizes[1]
    else:
        names = [{name for shapes in model.shapes for name in shapes} for model in models]
        tensor = next((n for n, found in enumerate(names) if found != names[0]), len(parts))
    return [parts[at : at + tensor] for at in range(0, len(parts), max(tensor, 1))]


def _faults_between(parts: Sequence[ZeroPart]) -> Iterator[ZeroFault]:
    """The faults of several tensor-parallel parts, or stages of a pipeline."""
    models = [part.models[0] for part in parts if part.models]
    sizes = models[0].sizes if models else None
    expected = parts[-1].number + 1 if sizes is None else max(math.prod(sizes), parts[-1].number + 1)
    missing = sorted(set(range(expected)) - {part.number for part in parts}) if expected <= SHARDS else [expected]
    if missing:
        yield ZeroFault("missing", f"the files of mp_rank_{missing[0]:02} are missing", "")
    elif sizes is not None and expected != math.prod(sizes):
        yield ZeroFault("mixed", f"mp_rank_{expected - 1:02}, and {models[0].path} states fewer parts", "")
    for model in models:
        if model.sizes != sizes:
            yield ZeroFault("mixed", f"other numbers of stages or parts than in {models[0].path}", model.path)
    stages = stages_of(parts)
    if len(stages[0]) > 1 and models and models[0].rules is None:
        message = f"{len(stages[0])} tensor-parallel parts, and {RULES}, which states how to join them, is missing"
        yield ZeroFault("parts", message, models[0].path)
    if sizes is None and len(stages) > 1:
        names = [
            {name for shapes in stage[0].models[0].shapes for name in shapes} for stage in stages if stage[0].models
        ]
        for number, found in enumerate(names[1:], 1):
            if any(not name.startswith(_TIED) for name in found & names[0]):
                yield ZeroFault(
                    "parts", f"other weights than in {models[0].path}", models[number * len(stages[0])].path
                )
    for stage in stages:
        inside = [part.models[0] for part in stage if part.models]
        for model in inside[1:]:
            if [*map(list, model.shapes)] != [*map(list, inside[0].shapes)]:
                yield ZeroFault("parts", f"other weights than in {inside[0].path}", model.path)
        if len(stage) < len(stages[0]):
            yield ZeroFault("missing", f"{len(stage)} of {len(stages[0])} tensor-parallel parts of a stage", "")


def join(parts: Sequence[ZeroPart], further: Sequence[LayerCopies] = ()) -> dict[str, JoinedWeight]:
    """The whole weights and buffers. FormatError if the sizes disagree."""
    weights: dict[str, JoinedWeight] = {}
    for stage in stages_of(parts):
        for name, weight in _joined_stage(stage).items():
            if weights.setdefault(name, weight).spec != weight.spec:  # tied weights
                raise FormatError("two stages have different shapes of a weight", path=stage[0].models[0].path,
                                  field=name, expected=str(weights[name].spec), found=str(weight.spec))  # fmt: skip
    _add_copies(weights, further, parts)
    return weights


def _joined_stage(parts: Sequence[ZeroPart]) -> dict[str, JoinedWeight]:
    """The weights and buffers of a stage."""
    first, *others = map(_joined_processes, parts)
    model = parts[0].models[0]
    for part, weights in zip(parts[1:], others, strict=True):
        if odd := weights.keys() ^ first.keys():
            raise FormatError("tensor-parallel parts have different weights", path=part.models[0].path, field=min(odd))
    joined = {
        name: _joined(name, [weight, *(weights[name] for weights in others)], model) for name, weight in first.items()
    }
    return with_aliases(model, joined)


def _joined(name: str, parts: Sequence[ZeroWeight], model: ModelStates) -> JoinedWeight:
    if len(parts) == 1 or model.rules is None or name in model.buffer_names:
        return whole(parts[0])
    return joined_parts(name, parts, model.rules, model.path)


def _add_copies(weights: dict[str, JoinedWeight], further: Sequence[LayerCopies], parts: Sequence[ZeroPart]) -> None:
    """Adds the buffers and frozen weights of a pipeline's layers."""
    tied = {name.split(".", 2)[2] for name in weights if name.startswith(_TIED) and name.count(".") > 1}
    layers: dict[int, list[LayerCopies]] = {}
    for file in further:
        if file.layer is not None:
            layers.setdefault(file.layer, []).append(file)
        elif lost := next((name for name in file.tensors if name not in weights), None):
            raise UnsupportedError(f"{file.path}: {lost} isn't one of the weights of the processes")
    models = [part.models[0] for part in parts]
    model, buffers = models[0], frozenset[str]().union(*(model.buffer_names for model in models))
    model = replace(model, buffer_names=buffers)
    for number, files in sorted(layers.items()):
        ordered = sorted(files, key=lambda file: file.part)
        names = {key: f"{number}.{key}" for key in ordered[0].tensors}
        rest = [key for key, name in names.items() if name not in weights and key not in tied]
        if rest and len(rest) == len(names) and model.sizes is None:
            raise FormatError("a layer without fp32 weights", path=ordered[0].path, field=rest[0],
                              hint=f"the files of its stage are missing: {AGAIN}")  # fmt: skip
        for key in rest:
            found = [(file, file.tensors.get(key)) for file in ordered]
            copied = [_copied(file.file, entry, names[key] in buffers) for file, entry in found if entry is not None]
            if len(copied) < len(stages_of(parts)[0]):
                raise FormatError("a part of a layer is missing", path=ordered[0].path, field=key, hint=AGAIN)
            weights[names[key]] = _joined(names[key], copied, model)


def _copied(file: int, entry: Entry, buffer: bool) -> ZeroWeight:
    """A stored tensor; buffers are fp32 if they are floats, as DeepSpeed's."""
    spec = Spec(entry.shape, F32 if buffer and entry.dtype.is_float else entry.dtype)
    pieces = (ZeroPiece(file, entry, 0, spec.elements),) if spec.elements else ()
    return ZeroWeight(spec, entry.dtype, pieces)


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
        out[name] = _copied(first.file, entry, True)
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
            out[name] = _copied(first.file, entry, False)
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
        gaps = _gaps_of(states[0], group, len(shapes))
        sharing = states[0].counts[group] if group < len(states[0].counts) else len(states)
        sets = len(states) // sharing  # of experts
        experts = [_LOCAL.fullmatch(name) if sets > 1 else None for name in shapes]
        local = Counter((match[1], match[3]) for match in experts if match)
        for number in range(sets):
            first, step = (number * sharing, 1) if model.experts_last else (number, sets)
            parts = _Parts([(state.file, state.parts[group]) for state in states[first::step][:sharing]])
            offset = 0
            for (name, shape), gap, match in zip(shapes.items(), gaps, experts, strict=True):
                if sets > 1 and match is None:
                    raise UnsupportedError(f"{model.path}: {name} is in a group of experts and isn't one")
                if match:
                    expert = number * local[match[1], match[3]] + int(match[2])
                    name = f"{match[1]}{expert}{match[3]}"
                count = math.prod(shape)
                yield name, shape, parts.range(offset, count)
                offset += count + gap
            align = _ALIGNED * sharing
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
