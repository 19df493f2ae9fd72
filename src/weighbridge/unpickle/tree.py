"""A pickle's value as nested plain values: dicts with their keys, lists, tuples, numbers, text, tensors. It keeps the
structure that `torch.read` flattens into names; tensors have the same names here.

Anything that isn't data (an unknown class or call) becomes a `Gap`. Shared parts are shared in the result. Depth and
size have the limits of `torch.read`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from weighbridge.base.errors import UnsupportedError
from weighbridge.base.limits import PICKLE_DEPTH
from weighbridge.unpickle.libraries.torch_calls import interpret
from weighbridge.unpickle.libraries.torch_types import SavedTensor
from weighbridge.unpickle.machine import Machine
from weighbridge.unpickle.values import Dict, Global, Object, Persistent, Set, UnexpectedOpcode, preview

_KEYS: Final = (str, int, bool, float, type(None), bytes)


class TensorLeaf(NamedTuple):
    """A tensor, by its name in the file's index."""

    name: str


class Gap(NamedTuple):
    """A description of something at `name` that isn't data."""

    name: str
    reason: str


def tree(machine: Machine, value: Any) -> Any:
    """The nested value. UnsupportedError if it is nested too deeply or repeats its own parts endlessly."""
    return _Tree(8 * machine.steps + 1024).plain("", value, 0)


class _Tree:
    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.above: set[int] = set()  # ids of the values around the current one

    def plain(self, name: str, value: Any, depth: int) -> Any:
        """Recursive: no deeper than `PICKLE_DEPTH`."""
        self.budget -= 1
        if self.budget < 0 or depth > PICKLE_DEPTH:
            raise UnsupportedError(f"the checkpoint is nested too deeply at {name[:100]!r}, or repeats its own parts")
        if isinstance(value, Object | Persistent | Global):
            try:
                value = interpret(value)
            except UnexpectedOpcode as odd:
                return Gap(name, str(odd))
        if isinstance(value, SavedTensor):
            return TensorLeaf(name or "tensor")
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return value
        if not isinstance(value, list | tuple | Dict | Set):
            return Gap(name, preview(value))
        if id(value) in self.above:
            return Gap(name, "a part of itself")
        self.above.add(id(value))
        try:
            return self._parts(name, value, depth + 1)
        finally:
            self.above.discard(id(value))

    def _parts(self, name: str, value: Any, depth: int) -> Any:
        if isinstance(value, Dict):
            # Each plain key once, with its last value. Python treats 1 and True as the same key.
            last = {(type(key), key): (key, part) for key, part in value.pairs if isinstance(key, _KEYS)}
            return {key: self.plain(_path(name, key), part, depth) for key, part in last.values()}
        items = value.items if isinstance(value, Set) else value
        inner = [self.plain(_path(name, i), part, depth) for i, part in enumerate(items)]
        return tuple(inner) if isinstance(value, tuple) else inner


def _path(name: str, key: Any) -> str:
    text = key if isinstance(key, str) else key.decode("utf-8", "replace") if isinstance(key, bytes) else preview(key)
    return f"{name}.{text}" if name else text
