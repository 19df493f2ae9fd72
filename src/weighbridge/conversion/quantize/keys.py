"""The keys of a quantized GGUF in llama-quantize's order: a key that is set moves to the end.

the source's keys, without those of a split (`metadata.kept_keys`)
general.quantization_version, general.file_type
--override-kv, in the order given; then quantize.imatrix.*
ARCH.block_count                                            if layers were removed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from weighbridge.base.errors import UsageError
from weighbridge.containers.gguf.container import ALIGNMENT_KEY, KV
from weighbridge.containers.gguf.values import SCALARS, LazyArray, raw_text
from weighbridge.conversion.edit.values import coerce
from weighbridge.conversion.quantize.imatrix import ImportanceMatrix
from weighbridge.conversion.quantize.prune_layers import Pruned

FILE_TYPE: Final = "general.file_type"
_VERSION: Final = KV("u32", 2)  # GGML_QNT_VERSION
# llama.cpp's type names of --override-kv (an int is written as u32), and the GGUF types by name.
_KINDS: Final[Mapping[str, str]] = {"int": "u32", "float": "f32", "bool": "bool", "str": "str"} | {
    kind: kind for kind in SCALARS
}
# Bytes that llama-quantize keeps of a string in quantize.imatrix.* (`strncpy(kvo.val_str, ..., 127)`).
_TEXT: Final = 127


def keys(
    source: Mapping[str, KV],
    *,
    ftype: int,
    overrides: Mapping[str, KV] = {},
    imatrix: Mapping[str, KV] = {},
    layers: Pruned | None = None,
) -> dict[str, KV]:
    """All keys, in order."""
    kept = dict(source)
    if layers is not None:
        # llama-quantize keeps the values of removed layers in lists by layer, and llama.cpp then refuses the file
        for key in by_layer(source, layers)[1:]:
            values = [value for i, value in enumerate(source[key].value) if i not in layers.removed]
            kept[key] = KV(source[key].type, values)
    kept = _set(kept, {"general.quantization_version": _VERSION, FILE_TYPE: KV("u32", ftype)})
    kept = _set(kept, overrides)
    kept = _set(kept, imatrix)
    return _set(kept, {f"{_architecture(kept)}.block_count": KV("u32", layers.left)}) if layers else kept


def _set(keys: Mapping[str, KV], new: Mapping[str, KV]) -> dict[str, KV]:
    return {key: kv for key, kv in keys.items() if key not in new} | dict(new)


def _architecture(keys: Mapping[str, KV]) -> str:
    return str(keys["general.architecture"].value)


def parse_overrides(texts: Iterable[str]) -> dict[str, KV]:
    """Parses `KEY=TYPE:VALUE` strings; the last one of a key wins. Raises UsageError for an invalid one."""
    overrides: dict[str, KV] = {}
    for text in texts:
        key, equals, typed = text.partition("=")
        name, colon, value = typed.partition(":")
        kind = _KINDS.get(name)
        if not key or not equals or not colon or kind is None:
            raise UsageError(f"{text!r} isn't of the form KEY=TYPE:VALUE", hint="TYPE is int, float, bool or str")
        overrides.pop(key, None)
        overrides[key] = KV(kind, coerce(key, kind, value))
    return overrides


def imatrix_keys(matrix: ImportanceMatrix, path: str) -> dict[str, KV]:
    """The keys that describe the importance matrix; none if no entry of it is used."""
    if not matrix.entries:
        return {}
    described: dict[str, KV] = {"file": KV("str", _truncate(path))}
    if matrix.datasets:
        described["dataset"] = KV("str", _truncate(matrix.datasets[0]))
    described["entries_count"] = KV("u32", len(matrix.entries))
    if matrix.chunks > 0:
        described["chunks_count"] = KV("u32", matrix.chunks)
    return {f"quantize.imatrix.{key}": kv for key, kv in described.items()}


def _truncate(text: str) -> str:
    """Cuts a string to 127 bytes or the first NUL. May split a character, as the reference does."""
    return raw_text(text).split(b"\0")[0][:_TEXT].decode("utf-8", "surrogateescape")


def shard_keys(keys: Mapping[str, KV], shard: int, count: int, tensors: int) -> dict[str, KV]:
    """The keys of a shard: all keys in the first one, only those of the split and the alignment in the others."""
    kept = dict(keys) if shard == 0 else {k: kv for k, kv in keys.items() if k == ALIGNMENT_KEY}
    if count == 1:
        return kept
    return kept | {
        "split.no": KV("u16", shard),
        "split.count": KV("u16", count),
        "split.tensors.count": KV("i32", tensors),
    }


def by_layer(keys: Mapping[str, KV], layers: Pruned) -> list[str]:
    """The keys that removing layers changes: their number first, then lists with one value per layer."""
    arch = _architecture(keys) + "."
    lists = (
        key
        for key, kv in keys.items()
        if key.startswith(arch) and isinstance(kv.value, list | tuple | LazyArray) and len(kv.value) == layers.before
    )
    return [f"{arch}block_count", *lists]
