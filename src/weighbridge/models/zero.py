"""Opens DeepSpeed's ZeRO checkpoints: the fp32 weights, joined from the parts of all processes during reading.

    open_zero(place, sources)    the index of the whole weights, these as nodes, and the parts that aren't weights

Opening reads the pickles of all files. `containers/torch/zero` describes the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weighbridge.base.dtypes import F32
from weighbridge.base.errors import FormatError
from weighbridge.containers import opening
from weighbridge.containers.base import Entry, Index
from weighbridge.containers.boxes import BoxPart
from weighbridge.containers.formats import ZERO_OPTIMIZER
from weighbridge.containers.torch.tree import read_tree
from weighbridge.containers.torch.zero import files as zero
from weighbridge.containers.torch.zero import join
from weighbridge.containers.torch.zero.parts import JoinedWeight, ZeroPiece, ZeroWeight, whole
from weighbridge.io.source import Source
from weighbridge.models.locate import Place
from weighbridge.models.stored_tensors import (
    FROM_FIRST_RANK,
    Dropped,
    JoinedModel,
    JoinedTensors,
    joined_index,
    node_builder,
)

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

# The values of model states that describe the weights.
_DESCRIBING = frozenset(
    {"module", "param_shapes", "buffer_names", "shared_params", "frozen_param_shapes", "frozen_param_fragments"}
)
# A weight in its file of a universal checkpoint: under this key, or the whole value.
_KEYS = ("param", "tensor")


class ZeroStates(NamedTuple):
    """The content of a folder's files. `indexes`: of the files, those with model states first."""

    indexes: tuple[Index, ...]
    values: tuple[Any, ...]
    models: tuple[zero.ModelStates, ...]
    optimizer: tuple[zero.OptimizerStates, ...]
    copies: tuple[zero.LayerCopies, ...]

    def parts(self) -> list[join.ZeroPart]:
        """The files of each tensor-parallel part."""
        return join.parts_of(self.models, self.optimizer)


def read_states(indexes: Sequence[Index]) -> ZeroStates:
    """Reads the values of a ZeRO checkpoint's files. FormatError for a file with other content."""
    values = tuple(map(read_tree, indexes))
    models: list[zero.ModelStates] = []
    optimizer: list[zero.OptimizerStates] = []
    copies: list[zero.LayerCopies] = []
    for number, (index, value) in enumerate(zip(indexes, values, strict=True)):
        path = index.files[0].name
        if path.endswith(ZERO_OPTIMIZER):
            optimizer.append(zero.optimizer_states(number, index, value))
        elif zero.is_model(path):
            models.append(zero.model_states(number, index, value))
        else:
            copies.append(zero.copies(number, index, value))
    return ZeroStates(tuple(indexes), values, tuple(models), tuple(optimizer), tuple(copies))


def open_zero(place: Place, sources: Sequence[Source]) -> JoinedModel:
    """The whole weights. `sources`: those of `place.weights`. FormatError if the files aren't one complete
    checkpoint."""
    universal = [s for s in sources if Path(s.name).name == zero.UNIVERSAL_FILE]
    states = read_states([opening.parse(s) for s in sources if Path(s.name).name != zero.UNIVERSAL_FILE])
    if not states.models:
        raise FormatError("the files of model states are missing", path=str(place.path),
                          expected="a file *_model_states.pt")  # fmt: skip
    indexes = (*states.indexes, *map(opening.parse, universal))
    weights = _universal(states, indexes) if universal else join_states(place.path, states)
    tensors = JoinedTensors(weights, lambda weight: node_of(weight, indexes))
    entries = (_entry(name, weight) for name, weight in weights.items())
    notes = (FROM_FIRST_RANK,) if len(states.parts()) > 1 else ()
    return JoinedModel(joined_index(indexes, entries), tensors, tuple(_left_out(states, weights)), notes)


def join_states(folder: Path, states: ZeroStates) -> dict[str, JoinedWeight]:
    """The weights of stages 1 to 3. FormatError for the first reason for which the files aren't one checkpoint."""
    for fault in join.faults(states.parts()):
        raise FormatError(fault.message, path=fault.path or str(folder), hint=join.AGAIN)
    return join.join(states.parts(), states.copies)


def _universal(states: ZeroStates, indexes: Sequence[Index]) -> dict[str, JoinedWeight]:
    """The weights of a universal checkpoint: a file each, the others as in the model states. The files have whole
    weights, the model states the shapes of a tensor-parallel part."""
    parts, weights = states.parts(), dict[str, ZeroWeight]()
    files = {Path(index.files[0].name).parent.name: n for n, index in enumerate(indexes) if n >= len(states.indexes)}
    stages = join.stages_of(parts)
    for (part, *_), first in ((stage, stage[0].models[0]) for stage in stages):
        weights |= join.untrained(part, len(part.models) > 1)
        listed = {name: shape for shapes in first.shapes for name, shape in shapes.items()}
        if missing := listed.keys() - files.keys():
            raise FormatError("weights without a file", path=first.path, found=", ".join(sorted(missing)[:4]),
                              hint=join.AGAIN)  # fmt: skip
        for name, shape in listed.items():
            index = indexes[files[name]]
            entry = next((index.by_name[key] for key in _KEYS if key in index), None)
            if entry is None:
                raise FormatError("the file has no weight", path=index.files[0].name, expected=" or ".join(_KEYS))
            piece = ZeroPiece(files[name], entry, 0, entry.spec.elements)
            stored = entry.shape if len(stages[0]) > 1 else shape
            weights[name] = join.weight(name, stored, [piece], index.files[0].name)
        weights = join.with_aliases(first, weights)
    return {name: whole(weight) for name, weight in weights.items()}


def _entry(name: str, weight: JoinedWeight) -> tuple[int, Entry]:
    """A weight at its first piece, and the number of its index."""
    spec, first = weight.spec, next(iter(weight.parts), None)
    if first is None or not first.pieces:
        return 0, Entry(name, spec.dtype, spec.shape, 0, spec.nbytes)
    piece = first.pieces[0]
    offset = piece.entry.offset + piece.start * first.stored.size
    return piece.file, Entry(name, spec.dtype, spec.shape, offset, spec.nbytes, piece.entry.file)


def node_of(weight: JoinedWeight, indexes: Sequence[Index]) -> Node:
    from weighbridge.models.distributed import node_of_tile
    from weighbridge.tensors.nodes import Const, pairwise, reshape, scaled, strided, zeros

    nodes = [_node_of_part(part, indexes) for part in weight.parts]
    if len(nodes) == 1 and weight.tiles is None:
        return nodes[0]
    if weight.tiles is None:  # the sum begins with 0, as Python's
        total = reduce(lambda node, part: pairwise(node, part, "plus"), nodes, zeros(weight.spec.shape, F32))
        return scaled(total, len(nodes), over=True) if nodes else Const(weight.spec, b"")
    flat = [reshape(node, (node.spec.elements,)) for node in nodes]

    def build(piece: BoxPart) -> Node:
        block = weight.blocks[piece.number]
        start = block.start + sum(at * step for at, step in zip(piece.starts, block.strides, strict=True))
        return scaled(strided(flat[block.part], start, piece.shape, block.strides), block.scale, over=True)

    return node_of_tile(weight.tiles, build)


def _node_of_part(weight: ZeroWeight, indexes: Sequence[Index]) -> Node:
    from weighbridge.tensors.nodes import Const, cast, concat, flat_range, reshape

    if not weight.pieces:
        return Const(weight.spec, b"")
    parts = []
    for piece in weight.pieces:
        flat = reshape(node_builder(indexes[piece.file])(piece.entry), (piece.entry.spec.elements,))
        parts.append(flat_range(flat, piece.start, (piece.length,)))
    node = flat_range(concat(parts), 0, weight.spec.shape)
    return node if weight.stored is weight.spec.dtype else cast(node, weight.spec.dtype)


def _left_out(states: ZeroStates, weights: Mapping[str, JoinedWeight]) -> Iterator[Dropped]:
    """The tensors that aren't part of the weights, by kind, and the values next to them."""
    used = {(p.file, p.entry.name) for weight in weights.values() for part in weight.parts for p in part.pieces}
    names = {model.path for model in states.models} | {file.path for file in states.copies}
    for name, part, reason, copies in (
        ("optimizer_state_dict", "optimizer", "states of the optimizer", False),
        ("module", "copy", "the weights as they are trained, in 16 bits", True),
    ):
        kept = ((n, e) for n, i in enumerate(states.indexes) if (i.files[0].name in names) == copies for e in i)
        unused = [entry for number, entry in kept if (number, entry.name) not in used]
        if unused:
            yield Dropped(name, part, reason, len(unused), sum(entry.spec.nbytes for entry in unused))
    buffers = {name for model in states.models for name in model.buffer_names}
    yield from (Dropped(n, "buffer", "no file has this buffer", 0, 0) for n in sorted(buffers - weights.keys()))
    yield from (Dropped(str(k), "value", "it isn't a tensor", 0, 0) for k in states.values[0] if k not in _DESCRIBING)
