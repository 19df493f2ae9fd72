"""What a pickle says as nested plain values: dicts with their keys, lists, tuples, numbers, texts, tensors. For those
who need the structure that `torch.read` flattens into names; the tensors have the same names here.

What is no data (a class that isn't known, a call that isn't understood) is a `Gap`. Shared parts are shared in the
result. Depth and size are bounded as there.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    """Something at `name` that is no data, in words."""

    name: str
    words: str


def tree(machine: Machine, value: Any) -> Any:
    """The nested value. UnsupportedError where it is nested too deeply or repeats itself without end."""
    return _Tree(8 * machine.steps + 1024).made("", value, 0)


class _Tree:
    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.above: set[int] = set()

    def made(self, name: str, value: Any, depth: int) -> Any:
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
            return self.parts(name, value, depth + 1)
        finally:
            self.above.discard(id(value))

    def parts(self, name: str, value: Any, depth: int) -> Any:
        if isinstance(value, Dict):
            pairs = _last_of(value)
            return {key: self.made(_path(name, key), part, depth) for key, part in pairs}
        items = value.items if isinstance(value, Set) else value
        inner = [self.made(_path(name, i), part, depth) for i, part in enumerate(items)]
        return tuple(inner) if isinstance(value, tuple) else inner


def _path(name: str, key: Any) -> str:
    text = key if isinstance(key, str) else key.decode("utf-8", "replace") if isinstance(key, bytes) else preview(key)
    return f"{name}.{text}" if name else text


def _last_of(value: Dict) -> Iterator[tuple[Any, Any]]:
    """Pairs with plain keys, each key once, with its last value. Python holds 1 and True for the same key."""
    kept: dict[Any, tuple[Any, Any]] = {}
    for key, part in value.pairs:
        if isinstance(key, _KEYS):
            kept[type(key), key] = (key, part)
    return iter(kept.values())
