"""The nested structure of a PyTorch checkpoint, zip or legacy: see `unpickle.tree`."""

from __future__ import annotations

from typing import Any, Final

from weighbridge.base.errors import UnsupportedError
from weighbridge.containers.archive import zip as zips
from weighbridge.io.source import Source
from weighbridge.unpickle.machine import Machine
from weighbridge.unpickle.tree import tree

FORMATS: Final = frozenset({"torch-zip", "torch-legacy"})
_BEFORE_OBJECT: Final = 3  # pickles of a legacy file: magic number, protocol, system


def read_tree(source: Source, format: str) -> Any:
    """The value in the file; its tensors are `TensorLeaf`s with the names of the file's index."""
    if format == "torch-zip":
        member = next(m for m in zips.read(source).members if m.name.partition("/")[2] == "data.pkl")
        with zips.open_member(source, member) as inner:
            machine = Machine(inner)
            return tree(machine, machine.run())
    if format != "torch-legacy":
        raise UnsupportedError(f"{source.name} is a {format} file, whose tensors have no structure")
    at = 0
    for _ in range(_BEFORE_OBJECT):
        machine = Machine(source, at)
        machine.run()
        at = machine.end
    machine = Machine(source, at)
    return tree(machine, machine.run())
