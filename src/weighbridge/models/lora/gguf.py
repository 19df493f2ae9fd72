"""llama.cpp's adapters: a GGUF of `general.type` "adapter" with `NAME.lora_a` and `NAME.lora_b` for each tensor.

src/llama-adapter.cpp (b11549): a pair is scaled by alpha/rank, or by 1 if alpha is 0. For `token_embd.weight`, A is
[vocabulary, rank] and B [hidden, rank]. Norms are skipped; any other name is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.models.arch.tables.values import number
from weighbridge.models.lora.pairs import LoraPair
from weighbridge.models.lora.peft import LoraAdapter, token_ids
from weighbridge.models.model import OpenModel

if TYPE_CHECKING:
    from weighbridge.tensors.nodes import Node

TYPE, KIND, ALPHA, TOKENS = "general.type", "adapter.type", "adapter.lora.alpha", "adapter.alora.invocation_tokens"
EMBEDDING: Final = "token_embd.weight"
_A, _B = ".lora_a", ".lora_b"


def tensors(pairs: Mapping[str, LoraPair], whole: Mapping[str, Node]) -> dict[str, Node]:
    """Returns the tensors of an adapter's GGUF."""
    from weighbridge.tensors.nodes import transpose

    out = dict(whole)
    for name, pair in pairs.items():
        turned = name == EMBEDDING  # looked up by token, so A has one row per token
        out[f"{name}{_A}"] = pair.b if turned else pair.a
        out[f"{name}{_B}"] = transpose(pair.a) if turned else pair.b
    return out


def read(model: OpenModel) -> LoraAdapter:
    """Reads the adapter in a GGUF, with its pairs under the GGUF's names. Raises FormatError if half of a pair is
    missing."""
    kind = model.metadata.get(KIND)
    if kind != "lora":
        raise UnsupportedError(f"{model.place.path}: an adapter of type {kind!r}, not lora")
    halves: dict[str, dict[str, Node]] = {}
    whole: dict[str, Node] = {}
    for name, node in model.stored.items():
        end = name[-len(_A) :]
        if end in (_A, _B):
            halves.setdefault(name[: -len(end)], {})[end] = node
        else:
            whole[name] = node
    pairs = {name: _pair(name, parts) for name, parts in halves.items()}
    declared = number(model.metadata.get(ALPHA, 0.0), ALPHA)
    alpha = declared or float(max((pair.rank for pair in pairs.values()), default=1))
    if not declared and len({pair.rank for pair in pairs.values()}) > 1:
        raise UnsupportedError(f"{model.place.path}: no {ALPHA}, and different ranks, which no single alpha can scale")
    base = model.metadata.get("general.base_model.0.repo_url") or model.metadata.get("general.base_model.0.name")
    tokens = token_ids(model.metadata.get(TOKENS), str(model.place.path), TOKENS)
    return LoraAdapter(pairs, whole, alpha, base if isinstance(base, str) else None, tokens)


def _pair(name: str, halves: Mapping[str, Node]) -> LoraPair:
    from weighbridge.tensors.nodes import transpose

    if set(halves) != {_A, _B}:
        raise FormatError("half of an adapter's pair is missing", field=name, found=f"{name}{next(iter(halves))}")
    a, b = halves[_A], halves[_B]
    error = FormatError("A and B have different ranks", field=name, found=f"{a.spec} and {b.spec}")
    if len(a.spec.shape) < 2 or len(a.spec.shape) != len(b.spec.shape):
        raise error
    pair = LoraPair(transpose(b), a) if name == EMBEDDING else LoraPair(a, b)
    if not pair.rank or pair.a.spec.shape[-2] != pair.rank or pair.a.spec.shape[:-2] != pair.b.spec.shape[:-2]:
        raise error
    return pair
