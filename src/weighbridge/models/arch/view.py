"""A GGUF's key-values and tensors as a family's table speaks of them."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any


class ArchView(Mapping[str, Any]):
    """A GGUF's key-values by their names inside the architecture (`block_count` for `llama.block_count`); `@name`:
    whether it has that tensor."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str, names: Container[str] = ()) -> None:
        self._metadata, self._architecture, self._names = metadata, architecture, names

    def __getitem__(self, key: str) -> Any:
        if key.startswith("@"):
            return key[1:] in self._names
        return self._metadata[key if key.startswith(("general.", "tokenizer.")) else f"{self._architecture}.{key}"]

    def __iter__(self) -> Any:
        return iter(self._metadata)

    def __len__(self) -> int:
        return len(self._metadata)
