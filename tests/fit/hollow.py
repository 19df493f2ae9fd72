"""GGUFs without data of the small models whose conversion by the reference converter is recorded."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from tests.models.reference_cases import GOLDEN
from tests.oracles.llamacpp_memory import write_hollow

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.spec import Spec
from weighbridge.containers.gguf.container import KV

FAMILIES = GOLDEN / "families"
NAMES = tuple(sorted(path.stem for path in FAMILIES.glob("*.json")))


def recorded(name: str) -> tuple[dict[str, KV], list[tuple[str, Spec]]]:
    """The key-values and tensors of a record; without a tokenizer."""
    record = json.loads((FAMILIES / f"{name}.json").read_text())
    keys = {key: KV(kind, decoded(kind, value)) for key, kind, value in record["keys"]}
    architecture = keys["general.architecture"].value
    keys.setdefault(f"{architecture}.vocab_size", KV("u32", record["config"].get("vocab_size", 704)))
    tensors = [(tensor, Spec(tuple(shape), BY_NAME[dtype])) for tensor, dtype, shape, _ in record["gguf"]]
    kinds = next((spec.shape[0] for tensor, spec in tensors if tensor == "token_types.weight"), 2)
    keys |= {"tokenizer.ggml.model": KV("str", "none"), "tokenizer.ggml.token_type_count": KV("u32", kinds)}
    return keys, tensors


def decoded(kind: str, value: Any) -> Any:
    """Floats are recorded by their bits."""
    if kind == "f32":
        return struct.unpack("<f", bytes.fromhex(value))[0]
    return value


def write(folder: Path, name: str) -> Path:
    """The record's GGUF, its data a hole."""
    keys, tensors = recorded(name)
    return write_hollow(folder / f"{name}.gguf", tensors, keys)
