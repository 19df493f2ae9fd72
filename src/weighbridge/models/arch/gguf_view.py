"""A GGUF's key-values and tensors by the names that family tables use."""

from __future__ import annotations

import ast
from collections.abc import Container, Mapping
from typing import Any

from weighbridge.models.arch.tables import expression


class ArchView(Mapping[str, Any]):
    """A GGUF's key-values by their names without the architecture (`block_count` for `llama.block_count`). `@NAME` is
    whether it has that tensor. `layer_sets`: the sets of its layers, once they are computed."""

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
        """Whether a condition such as `key and not tensor("x")` holds: the key is set and not 0, the tensor exists."""
        return self._holds(expression.parse(mark))

    def _holds(self, node: ast.expr) -> bool:
        if isinstance(node, ast.BoolOp):
            return (all if isinstance(node.op, ast.And) else any)(map(self._holds, node.values))
        if isinstance(node, ast.UnaryOp):
            return bool(self._names) and not self._holds(node.operand)
        if (called := expression.call(node)) is not None:
            return expression.constant(called[1][0]) in self._names
        value = self.get(expression.path(node) or "")
        return value is not None and not (isinstance(value, int | float) and value == 0)
