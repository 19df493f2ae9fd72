"""A GGUF's key-values and tensors as a family's table speaks of them."""

from __future__ import annotations

import ast
from collections.abc import Container, Mapping
from typing import Any

from weighbridge.models.arch.tables import expression


class ArchView(Mapping[str, Any]):
    """A GGUF's key-values by their names inside the architecture (`block_count` for `llama.block_count`); `@name`:
    whether it has that tensor. `layer_sets`: the sets of its layers, once they are known."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str, names: Container[str] = ()) -> None:
        self._metadata, self._architecture, self._names = metadata, architecture, names
        self.layer_sets: Mapping[str, frozenset[int]] = {}

    def __getitem__(self, key: str) -> Any:
        if key == "layer_sets":
            return self.layer_sets
        if key.startswith("@"):
            return key[1:] in self._names
        return self._metadata[key if key.startswith(("general.", "tokenizer.")) else f"{self._architecture}.{key}"]

    def __iter__(self) -> Any:
        return iter(self._metadata)

    def __len__(self) -> int:
        return len(self._metadata)

    def shows(self, mark: str) -> bool:
        """Whether a condition `key and not tensor("x")` holds: a tensor is there, a key has a value other than 0."""
        return self._holds(expression.parse(mark))

    def _holds(self, node: ast.expr) -> bool:
        if isinstance(node, ast.BoolOp):
            return (all if isinstance(node.op, ast.And) else any)(map(self._holds, node.values))
        if isinstance(node, ast.UnaryOp):
            return bool(self._names) and not self._holds(node.operand)
        if (called := expression.call(node)) is not None:
            return expression.constant(called[1][0]) in self._names
        return _filled(self.get(expression.path(node) or ""))


def _filled(value: Any) -> bool:
    """A key says something: it is there and not zero."""
    return value is not None and (value if isinstance(value, int | float) else True) not in (0, False)
