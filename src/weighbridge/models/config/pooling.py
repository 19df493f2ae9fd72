"""The modules of a sentence-transformers folder, and their keys in a GGUF: the pooling, and dense matrices behind it.

sentence-transformers lists modules in modules.json; the one whose type ends in `Pooling` has a folder with a
config.json (conversion/base.py `_try_set_pooling_type`, llama.cpp b11549). `read` returns a file's bytes, or None if it
doesn't exist. A module's path is untrusted and is refused unless it stays inside the folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.models.jsonfile import decode

if TYPE_CHECKING:
    from weighbridge.models.arch.family import Family


#: sentence-transformers' list of a model's modules, which are folders.
MODULES: Final = "modules.json"
Read = Callable[[str], bytes | None]

# llama.h `llama_pooling_type` -> the flag in 1_Pooling/config.json, in the order in which the reference checks them
POOLING: Final[Mapping[int, str]] = MappingProxyType(
    {1: "pooling_mode_mean_tokens", 2: "pooling_mode_cls_token", 3: "pooling_mode_lasttoken"}
)
_MODES: Final[Mapping[str, int]] = MappingProxyType({"mean": 1, "cls": 2, "lasttoken": 3})
_DENSE: Final = "Dense"
IDENTITY: Final = "torch.nn.modules.linear.Identity"  # the activation of a dense module that has none
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


def unheld(read: Read, carried: Collection[str] = (), hint: str = "") -> list[str]:
    """Returns, as losses, the modules after the pooling that a GGUF doesn't hold. `carried`: folders of modules that it
    holds. `hint`: appended to the loss of a dense module."""
    return [
        f"modules.json: {module.get('path')} ({module.get('type')}) isn't carried: embeddings are those before it"
        + (hint if str(module.get("type", "")).endswith(_DENSE) else "")
        for module in _modules(read)
        if not str(module.get("type", "")).endswith(("Transformer", "Pooling", "Normalize"))
        and module.get("path") not in carried
    ]


def dense_tensors(family: Family) -> dict[str, str]:
    """Returns the tensor of a GGUF for each folder of a dense module that the family's GGUFs can hold."""
    entry = family.document.meta.dense if family.document.meta else None
    names = [family.rows[role].names for role in entry.roles] if entry else []
    return {name["hf"].split(".")[0]: name["gguf"] for name in names}


def dense_keys(family: Family, name: str, rows: int = 0, columns: int = 0) -> dict[str, int]:
    """Returns the keys of a GGUF for the shape of one of its dense modules, the tensor `name`."""
    entry = family.document.meta.dense if family.document.meta else None
    stem = f"{family.gguf}.{name.removesuffix('.weight')}"
    keys = {
        "widths": {f"{stem}_feat_in": columns, f"{stem}_feat_out": rows},
        "length": {f"{family.gguf}.embedding_length_out": rows},
    }
    return keys[entry.keys] if entry else {}


def dense_keys_of(family: Family, tensors: Collection[str]) -> set[str]:
    """Returns the keys of a GGUF that describe those of its tensors that are dense modules."""
    return {key for name in dense_tensors(family).values() if name in tensors for key in dense_keys(family, name)}


def dense_folders(read: Read) -> list[str]:
    """Returns the folders of a model's dense modules, in order."""
    return [_folder(module.get("path")) for module in _modules(read) if str(module.get("type", "")).endswith(_DENSE)]


def _modules(read: Read) -> list[dict[str, Any]]:
    modules = _json(read, MODULES)
    return [module for module in modules if isinstance(module, dict)] if isinstance(modules, list) else []


def _folder(path: Any) -> str:
    parts = PurePosixPath(path).parts if isinstance(path, str) and "\\" not in path else ("..",)
    if not parts or ".." in parts or parts[0] == "/" or ":" in parts[0]:
        raise FormatError("a module's path leaves the folder", field=MODULES, found=repr(path)[:80])
    return "/".join(parts)


def _pooling_of_module(path: Any, read: Read) -> int:
    config = _json(read, f"{_folder(path)}/config.json")
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


def sentence_files(
    metadata: Mapping[str, Any], architecture: str, hidden: int, dense: Mapping[str, tuple[int, ...]] | None = None
) -> dict[str, bytes]:
    """Returns modules.json and the modules' config.json for a GGUF that declares its pooling or has dense modules,
    otherwise nothing. `dense`: the shape of the matrix (out, in) by its folder."""
    dense = dense or {}
    number = metadata.get(f"{architecture}.pooling_type")
    flag = POOLING.get(number) if isinstance(number, int) else None
    if flag is None and not dense:
        return {}
    folders = {"": "Transformer", **({"1_Pooling": "Pooling"} if flag else {}), **dict.fromkeys(dense, _DENSE)}
    files: dict[str, Any] = {
        "modules.json": [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(folders.items())
        ]
    }
    for folder, (rows, columns) in dense.items():
        files[f"{folder}/config.json"] = {
            "in_features": columns, "out_features": rows, "bias": False, "activation_function": IDENTITY,
        }  # fmt: skip
    if flag:
        flags = {name: name == flag for name in _FLAGS}
        files["1_Pooling/config.json"] = {"word_embedding_dimension": hidden, **flags}
    return {name: (json.dumps(value, indent=2) + "\n").encode() for name, value in files.items()}
