"""The nested structure of a PyTorch checkpoint, zip, legacy or distributed: see `unpickle.tree`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from weighbridge.base.errors import UnsupportedError
from weighbridge.containers.archive import zip as zips
from weighbridge.containers.base import Index
from weighbridge.containers.formats import DISTRIBUTED
from weighbridge.unpickle.machine import Machine
from weighbridge.unpickle.tree import Gap, TensorLeaf, tree

if TYPE_CHECKING:
    from weighbridge.containers.torch.dcp import DcpIndex

_BEFORE_OBJECT: Final = 3  # pickles of a legacy file: magic number, protocol, system


def read_tree(index: Index) -> Any:
    """The value in the file of an index; its tensors are `TensorLeaf`s with the names of the index."""
    source, format = index.files[0], index.format
    if format == "torch-zip":
        member = next(m for m in zips.read(source).members if m.name.partition("/")[2] == "data.pkl")
        with zips.open_member(source, member) as inner:
            machine = Machine(inner)
            return tree(machine, machine.run())
    if format == DISTRIBUTED:
        return _distributed(cast("DcpIndex", index))
    if format != "torch-legacy":
        raise UnsupportedError(f"{source.name} is a {format} file, whose tensors have no structure")
    at = 0
    for _ in range(_BEFORE_OBJECT + 1):
        machine = Machine(source, at)
        value = machine.run()
        at = machine.end
    return tree(machine, value)


def _distributed(index: DcpIndex) -> dict[Any, Any]:
    """The saved dict, by the keys that the planner stored. Lists are dicts with their positions as keys. The name of a
    tensor without keys is its key."""
    top: dict[Any, Any] = {}
    leaves: list[tuple[str, Any]] = [(entry.name, TensorLeaf(entry.name)) for entry in index]
    leaves += [(name, Gap(name, "a pickled object")) for name in index.metadata]
    for name, leaf in leaves:
        *above, last = index.paths.get(name, (name,))
        inside = top
        for key in above:
            inner = inside.setdefault(key, {})
            if not isinstance(inner, dict):  # a tensor and a dict under one key
                inner = inside[f"{key}"] = {"": inner}
            inside = inner
        inside[last] = leaf
    return top
