"""Opens Megatron-LM's checkpoints in the format of torch: the whole parameters, joined from the parts of all ranks
while they are read.

    open_megatron(place, sources)    the index of the whole parameters, these as nodes, and the parts left out

Opening reads the pickles of all ranks. `containers/torch/megatron.py` describes the files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from weighbridge.base.errors import FormatError
from weighbridge.base.limits import CONFIG_JSON
from weighbridge.containers import opening
from weighbridge.containers.base import Entry, Index
from weighbridge.containers.torch import megatron, nemo
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

_OPTIMIZER = "optimizer"
_COPY = "a copy of the embedding on the last pipeline rank"


def read_ranks(indexes: Sequence[Index], config: str = "") -> list[megatron.RankStates]:
    """Reads the content of every rank's file. `config`: NeMo's settings."""
    settings = nemo.settings(config)
    folders = (Path(index.files[0].name).parent.name.rpartition("::")[2] for index in indexes)
    return [
        megatron.rank_states(i, n, folder, settings) for n, (i, folder) in enumerate(zip(indexes, folders, strict=True))
    ]


def config_of(folder: Path) -> str:
    """NeMo's settings in a folder; empty if there are none."""
    config = Place(folder, (), folder).read(nemo.CONFIG, CONFIG_JSON) or b""
    return config.decode("utf-8", "replace")


def open_megatron(place: Place, sources: Sequence[Source]) -> JoinedModel:
    """The whole parameters. `sources`: those of `place.weights`. FormatError if the files aren't one complete
    checkpoint."""
    return join_ranks(place, list(map(opening.parse, sources)), config_of(place.path))


def join_ranks(place: Place, indexes: Sequence[Index], config: str) -> JoinedModel:
    """The whole parameters of the ranks' files. `config`: NeMo's settings."""
    states = read_ranks(indexes, config)
    for fault in megatron.faults(states):
        raise FormatError(fault.message, path=fault.path or str(place.path), hint=megatron.AGAIN)
    joined = megatron.join(states)
    weights = {name: w for name, w in joined.items() if not megatron.is_copy(name, states[0].args)}
    firsts = ((name, weight.spec, *weight.parts[0]) for name, weight in weights.items())
    entries = ((n, msgspec.structs.replace(e, name=name, shape=spec.shape, nbytes=spec.nbytes, strides=None))
               for name, spec, n, e in firsts)  # fmt: skip
    copies = (Dropped(name, "copy", _COPY, 1, w.spec.nbytes) for name, w in joined.items() if name not in weights)
    tensors = JoinedTensors(weights, lambda weight: _node(weight, indexes))
    notes = (FROM_FIRST_RANK,) if len(states) > 1 else ()
    return JoinedModel(joined_index(indexes, entries), tensors, (*copies, *_left_out(place, indexes)), notes)


def _node(weight: megatron.MegatronWeight, indexes: Sequence[Index]) -> Node:
    from weighbridge.models.tensor_parallel.partition import gather_parts

    nodes = [node_builder(indexes[part.file])(part.entry) for part in weight.parts]
    return gather_parts(nodes, weight.axis, weight.sections)


def _left_out(place: Place, indexes: Sequence[Index]) -> Iterator[Dropped]:
    """The tensors outside the models, by key; the optimizers' files; the values next to the models."""
    groups: dict[str, list[Entry]] = {}
    for entry in chain.from_iterable(indexes):
        if group := megatron.group_of(entry.name):
            groups.setdefault(group, []).append(entry)
    for group, entries in groups.items():
        part = _OPTIMIZER if group == _OPTIMIZER else "value"
        size = sum(entry.spec.nbytes for entry in entries)
        yield Dropped(group, part, f"the key {group!r} of the ranks' files", len(entries), size)
    for name, size in _other_files(place.weights).items():
        yield Dropped(name, _OPTIMIZER, "files of the optimizer", 0, size)
    keys = dict.fromkeys(key.partition(".")[0] for index in indexes for key in index.metadata)
    yield from (Dropped(key, "value", "it isn't a tensor", 0, 0) for key in keys if key not in groups)


def _other_files(weights: Sequence[Path]) -> Mapping[str, int]:
    """The bytes of the files next to the ranks' models, by name."""
    sizes = Counter[str]()
    for folder in dict.fromkeys(path.parent for path in weights if path.name in megatron.FILES):
        for path in folder.iterdir():
            if path.name not in megatron.FILES and path.is_file():
                sizes[path.name] += path.stat().st_size
    return sizes
