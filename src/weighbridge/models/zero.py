"""Opens DeepSpeed's ZeRO checkpoints: the fp32 weights, joined from the parts of all processes during reading.

    open_zero(place, sources)    the index of the whole weights, these as nodes, and the parts that aren't weights

Opening reads the pickles of all files. `containers/torch/zero.py` describes the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weighbridge.base.errors import FormatError
from weighbridge.containers import opening
from weighbridge.containers.base import Entry, Index
from weighbridge.containers.torch import zero
from weighbridge.containers.torch.tree import read_tree
from weighbridge.io.source import Source
from weighbridge.models.locate import ZERO_MODEL, ZERO_OPTIMIZER, Place
from weighbridge.models.stored_tensors import Dropped, node_builder

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

_FORMAT = "torch-zip"
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


def read_states(indexes: Sequence[Index]) -> ZeroStates:
    """Reads the values of a ZeRO checkpoint's files. FormatError for a file with other content."""
    values = tuple(map(read_tree, indexes))
    pairs = list(zip(indexes, values, strict=True))
    models = tuple(zero.model_states(i, v) for i, v in pairs if i.files[0].name.endswith(ZERO_MODEL))
    optimizer = tuple(zero.optimizer_states(i, v) for i, v in pairs if i.files[0].name.endswith(ZERO_OPTIMIZER))
    return ZeroStates(tuple(indexes), values, models, optimizer)


def open_zero(place: Place, sources: Sequence[Source]) -> tuple[Index, ZeroTensors, tuple[Dropped, ...]]:
    """The whole weights. `sources`: those of `place.weights`. FormatError if the files aren't one complete
    checkpoint."""
    states = read_states([opening.parse(s) for s in sources if s.name.endswith((ZERO_MODEL, ZERO_OPTIMIZER))])
    if not states.models:
        raise FormatError("the files of model states are missing", path=str(place.path),
                          expected=f"a file *{ZERO_MODEL}")  # fmt: skip
    universal = [s for s in sources if Path(s.name).name == zero.UNIVERSAL_FILE]
    indexes = (*states.indexes, *map(opening.parse, universal))
    if universal:
        weights = _universal(states, indexes)
    else:
        weights = join_states(place.path, states)
    files = tuple(source for index in indexes for source in index.files)
    entries = tuple(_entries(weights, indexes))
    findings = tuple(finding for index in indexes for finding in index.findings)
    index = Index(_FORMAT, files, entries, data_start=(0,) * len(files), findings=findings)
    return index, ZeroTensors(indexes, weights), tuple(_left_out(states, weights))


def join_states(folder: Path, states: ZeroStates) -> dict[str, zero.ZeroWeight]:
    """The weights of stages 1 to 3. FormatError for the first reason for which the files aren't one checkpoint."""
    files = zero.files_of([p.name for p in folder.iterdir()])
    assert files is not None
    for fault in zero.faults(files, states.models, states.optimizer):
        raise FormatError(fault.message, path=fault.path or str(folder), hint=zero.AGAIN)
    return zero.join(states.models, states.optimizer)


def _universal(states: ZeroStates, indexes: Sequence[Index]) -> dict[str, zero.ZeroWeight]:
    """The weights of a universal checkpoint: a file each, the others as in the model states."""
    first = states.models[0]
    weights = zero.untrained(states.models, len(states.models) > 1)
    files = {Path(index.files[0].name).parent.name: n for n, index in enumerate(indexes) if n >= len(states.indexes)}
    listed = {name: shape for shapes in first.shapes for name, shape in shapes.items()}
    if missing := listed.keys() - files.keys():
        raise FormatError("weights without a file", path=first.path, found=", ".join(sorted(missing)[:4]),
                          hint=zero.AGAIN)  # fmt: skip
    for name, shape in listed.items():
        index = indexes[files[name]]
        entry = next((index.by_name[key] for key in _KEYS if key in index), None)
        if entry is None:
            raise FormatError("the file has no weight", path=index.files[0].name, expected=" or ".join(_KEYS))
        piece = zero.ZeroPiece(files[name], entry, 0, entry.spec.elements)
        weights[name] = zero.weight(name, shape, [piece], index.files[0].name)
    return zero.with_aliases(first, weights)


def _entries(weights: Mapping[str, zero.ZeroWeight], indexes: Sequence[Index]) -> Iterator[Entry]:
    """The weights as entries, each at its first piece."""
    starts = [0]
    for index in indexes:
        starts.append(starts[-1] + len(index.files))
    for name, weight in weights.items():
        file = offset = 0
        if weight.pieces:
            first = weight.pieces[0]
            file = starts[first.file] + first.entry.file
            offset = first.entry.offset + first.start * weight.stored.size
        yield Entry(name, weight.spec.dtype, weight.spec.shape, offset, weight.spec.nbytes, file)


def _left_out(states: ZeroStates, weights: Mapping[str, zero.ZeroWeight]) -> Iterator[Dropped]:
    """The tensors that aren't part of the weights, by kind, and the values next to them."""
    used = {(piece.file, piece.entry.name) for weight in weights.values() for piece in weight.pieces}
    names = {model.path for model in states.models}
    for name, part, reason, copies in (
        ("optimizer_state_dict", "optimizer", "states of the optimizer", False),
        ("module", "copy", "the weights as they are trained, in 16 bits", True),
    ):
        unused = [
            entry
            for number, index in enumerate(states.indexes)
            for entry in index
            if (number, entry.name) not in used and (index.files[0].name in names) == copies
        ]
        if unused:
            yield Dropped(name, part, reason, len(unused), sum(entry.spec.nbytes for entry in unused))
    further = (key for key in states.values[0] if key not in _DESCRIBING)
    yield from (Dropped(str(key), "value", "it isn't a tensor", 0, 0) for key in further)


class ZeroTensors(Mapping[str, "Node"]):
    """Weights by name. Each node is built on first access."""

    def __init__(self, indexes: Sequence[Index], weights: Mapping[str, zero.ZeroWeight]) -> None:
        self.indexes, self.weights = indexes, weights
        self._nodes: dict[str, Node] = {}

    def __getitem__(self, name: str) -> Node:
        if name in self._nodes:
            return self._nodes[name]
        from weighbridge.tensors.nodes import Const, cast, concat, flat_range, reshape

        weight, parts = self.weights[name], []
        for piece in weight.pieces:
            stored = node_builder(self.indexes[piece.file])(piece.entry)
            flat = reshape(stored, (piece.entry.spec.elements,))
            parts.append(flat_range(flat, piece.start, (piece.length,)))
        node: Node = flat_range(concat(parts), 0, weight.spec.shape) if parts else Const(weight.spec, b"")
        if parts and weight.stored is not weight.spec.dtype:
            node = cast(node, weight.spec.dtype)
        self._nodes[name] = node
        return node

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)

    def __contains__(self, name: object) -> bool:
        return name in self.weights
