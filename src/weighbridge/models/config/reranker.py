"""Rerankers: the marks of a folder whose config.json looks like any model of the family (`meta.rerank`).

As in conversion/qwen.py `Qwen3Model` (llama.cpp b11549): by a heading of README.md, or by a name, either the folder's
or `_name_or_path` of config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weighbridge.models.config.pooling import pooling_type
from weighbridge.models.llamacpp import RANK

if TYPE_CHECKING:
    from weighbridge.models.arch.family import Family
    from weighbridge.models.arch.tables.schema import RerankEntry
    from weighbridge.models.model import OpenModel


def rerank_of(family: Family) -> RerankEntry | None:
    """Returns how models of a family rank, or None if llama.cpp has no rerankers of it."""
    return family.document.meta.rerank if family.document.meta else None


def mark(metadata: Mapping[str, Any], family: Family) -> dict[str, str]:
    """Returns the config.json keys that mark a folder as a reranker, if the GGUF it is made from is one."""
    entry = rerank_of(family)
    ranks = entry is not None and metadata.get(f"{family.gguf}.pooling_type") == RANK
    return {"_name_or_path": entry.names[0]} if entry is not None and ranks else {}


def is_named(config: Mapping[str, Any], family: Family) -> bool:
    """Whether a config.json names a reranker."""
    entry, name = rerank_of(family), str(config.get("_name_or_path", "")).lower()
    return entry is not None and any(word in name for word in entry.names)


def is_reranker(model: OpenModel, by_folder: bool = True) -> bool:
    """Whether a folder's README.md, config.json or, with `by_folder`, name marks it as a reranker."""
    if model.format == "gguf" or (entry := rerank_of(model.family)) is None:
        return False
    readme = (model.place.read("README.md") or b"").decode("utf-8", "replace").lower()
    folder = model.place.folder.resolve().name.lower() if by_folder else ""
    return any(f"# {word}" in readme or word in folder for word in entry.names) or is_named(model.config, model.family)


def pooling_of(model: OpenModel, by_folder: bool = True) -> int | None:
    """Returns llama.cpp's number for a folder's pooling, or None if the folder declares none. `by_folder`: also by its
    name."""
    return RANK if is_reranker(model, by_folder) else pooling_type(model.place.read)
