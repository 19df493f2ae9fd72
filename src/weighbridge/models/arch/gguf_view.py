"""A GGUF's key-values and tensors as a family's table speaks of them."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any


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
        """Whether all parts of a mark `A & !B` hold: a tensor, or a key that says something; `!`: neither."""
        return all(self._shows(part.strip()) for part in mark.split("&"))

    def _shows(self, part: str) -> bool:
        if part.startswith("!"):
            return bool(self._names) and not self._shows(part[1:])
        return part in self._names or _filled(self.get(part))


def _filled(value: Any) -> bool:
    """A key says something: it is there and not zero."""
    return value is not None and (value if isinstance(value, int | float) else True) not in (0, False)
