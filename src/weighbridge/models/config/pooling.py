"""The pooling that a folder or a GGUF declares: of sentence embeddings, or of a reranker.

sentence-transformers lists modules in modules.json; the one whose type ends in `Pooling` has a folder with a
config.json (conversion/base.py `_try_set_pooling_type`, llama.cpp b11549). `read` returns a file's bytes, or None if it
doesn't exist. A module's path is untrusted and is refused unless it stays inside the folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.models.jsonfile import decode

if TYPE_CHECKING:
    from weighbridge.models.arch.family import Family
    from weighbridge.models.arch.tables.schema import RerankEntry
    from weighbridge.models.model import OpenModel


Read = Callable[[str], bytes | None]

# llama.h `llama_pooling_type` -> the flag in 1_Pooling/config.json, in the order in which the reference checks them
POOLING: Final[Mapping[int, str]] = MappingProxyType(
    {1: "pooling_mode_mean_tokens", 2: "pooling_mode_cls_token", 3: "pooling_mode_lasttoken"}
)
_MODES: Final[Mapping[str, int]] = MappingProxyType({"mean": 1, "cls": 2, "lasttoken": 3})
_FLAGS: Final = (
    "pooling_mode_cls_token", "pooling_mode_mean_tokens", "pooling_mode_max_tokens",
    "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken",
)  # fmt: skip


def pooling_type(read: Read) -> int | None:
    """Returns llama.cpp's number for the folder's pooling, or None if the folder declares none."""
    for module in _modules(read):
        if str(module.get("type", "")).endswith("Pooling"):
            return _pooling_of_module(module.get("path"), read)
    embedding = _json(read, "embedding_config.json")
    declared = embedding.get("pooling") if isinstance(embedding, dict) else None
    if declared in (None, "last_token"):
        return None if declared is None else 3
    raise UnsupportedError(f"embedding_config.json pools by {declared!r}, for which GGUF has no key")


def unheld(read: Read) -> list[str]:
    """Returns, as losses, the modules after the pooling that a GGUF can't hold: dense layers."""
    return [
        f"modules.json: {module.get('path')} ({module.get('type')}) isn't carried: embeddings are those before it"
        for module in _modules(read)
        if not str(module.get("type", "")).endswith(("Transformer", "Pooling", "Normalize"))
    ]


def _modules(read: Read) -> list[dict[str, Any]]:
    modules = _json(read, "modules.json")
    return [module for module in modules if isinstance(module, dict)] if isinstance(modules, list) else []


def _pooling_of_module(path: Any, read: Read) -> int:
    parts = PurePosixPath(path).parts if isinstance(path, str) and "\\" not in path else ("..",)
    if not parts or ".." in parts or parts[0] == "/" or ":" in parts[0]:
        raise FormatError("a module's path leaves the folder", field="modules.json", found=repr(path)[:80])
    config = _json(read, f"{'/'.join(parts)}/config.json")
    if not isinstance(config, dict):
        raise FormatError(
            "modules.json names a pooling module without a config.json, so the kind of pooling is unknown",
            hint="download the module's folder (1_Pooling); without modules.json nothing is pooled",
        )
    for number, flag in POOLING.items():
        if config.get(flag):
            return number
    if (mode := str(config.get("pooling_mode"))) in _MODES:
        return _MODES[mode]
    raise UnsupportedError(
        "the folder pools in a way GGUF has no number for", hint="GGUF knows mean, cls and last token"
    )


def _json(read: Read, name: str) -> Any:
    raw = read(name)
    return None if raw is None else decode(raw, name)


def sentence_files(metadata: Mapping[str, Any], architecture: str, hidden: int) -> dict[str, bytes]:
    """Returns modules.json and 1_Pooling/config.json for a GGUF that declares its pooling, otherwise nothing."""
    number = metadata.get(f"{architecture}.pooling_type")
    if not isinstance(number, int) or number not in POOLING:
        return {}
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    config = {"word_embedding_dimension": hidden, **{flag: flag == POOLING[number] for flag in _FLAGS}}
    files = {"modules.json": modules, "1_Pooling/config.json": config}
    return {name: (json.dumps(value, indent=2) + "\n").encode() for name, value in files.items()}


# ---------------------------------------------------------------------- rerankers
#
# How a folder shows that its model is a reranker, if config.json looks like any model of the family (`meta.rerank`).
# As in conversion/qwen.py `Qwen3Model` (llama.cpp b11549): by a heading of README.md, or by a name, either the folder's
# or `_name_or_path` of config.json.


RANK: Final = 4  # llama.h `LLAMA_POOLING_TYPE_RANK`


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


def is_reranker(model: OpenModel) -> bool:
    """Whether a folder's README.md or name marks it as a reranker."""
    if model.format == "gguf" or (entry := rerank_of(model.family)) is None:
        return False
    readme = (model.place.read("README.md") or b"").decode("utf-8", "replace").lower()
    folder = model.place.folder.resolve().name.lower()
    by_folder = any(f"# {word}" in readme or word in folder for word in entry.names)
    return by_folder or is_named(model.config, model.family)


def pooling_of(model: OpenModel) -> int | None:
    """Returns llama.cpp's number for a folder's pooling, or None if the folder declares none."""
    return RANK if is_reranker(model) else pooling_type(model.place.read)
