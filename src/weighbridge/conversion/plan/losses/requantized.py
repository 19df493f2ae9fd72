"""The losses of a plan: quantized tensors that are decoded, or quantized again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from weighbridge.base.dtypes import F32, Kind
from weighbridge.base.errors import RefusedError
from weighbridge.conversion.plan.model import Loss, Move
from weighbridge.tensors.nodes import (
    Decode,
    DecodePacked,
    Encode,
    LogicalTensor,
    Node,
    PackedMember,
    PackedSource,
    QuantizedTensor,
    walk,
)


def losses_of(tensors: Mapping[str, Node], allow_requantize: bool = False) -> list[Loss]:
    """The losses of quantized tensors: decoded on the way, or quantized again, which is a RefusedError unless it is
    allowed."""
    computed = {name: [n for n in walk(root) if isinstance(n, _LOSSY)] for name, root in tensors.items()}
    again = [name for name, nodes in computed.items() if any(map(_requantizes, nodes))]
    if again and not allow_requantize:
        raise RefusedError(
            f"{len(again)} quantized tensor{'s' * (len(again) > 1)} would be quantized again, first {again[0]}",
            option="--allow-requantize",
        )
    decoded = [
        Loss(f"decoded to F32: {reason}", name)
        for name, nodes in computed.items()
        for reason in dict.fromkeys(n.reason for n in nodes if isinstance(n, Decode | DecodePacked))  # once
        if reason
    ]
    return [*(Loss("quantized a second time", name) for name in again), *decoded]


_LOSSY: Final = (Decode, DecodePacked, Encode, PackedMember)
# Packings in which models are released (DeepSeek V3, Kimi K2, Qwen3-FP8): quantizing them is quantizing the original.
RELEASED: Final = frozenset({"fp8"})


def is_quantized(node: LogicalTensor) -> bool:
    """Whether a tensor's values were rounded by quantizing, and not released like that."""
    if isinstance(node, PackedSource):
        return is_quantized(node.tensor)
    if isinstance(node, QuantizedTensor):
        return node.packing.name not in RELEASED
    return node.spec.dtype.kind is Kind.BLOCK


def _requantizes(node: Node) -> bool:
    if not (isinstance(node, Encode) or (isinstance(node, PackedMember) and node.packer.quantizes)):
        return False
    return any(map(is_quantized, walk(node.source)))


def check_lossless(tensors: Mapping[str, Node], moves: Iterable[Move]) -> None:
    """RefusedError if a tensor's values would change: quantized, or decoded to less than F32. Parts of a tensor
    whose move is known to be exact don't count."""
    exact = {move.tensor.removesuffix(".weight") for move in moves if move.kind == "exact"}
    for name, root in tensors.items():
        if name.rpartition(".")[0] in exact:
            continue
        below = {type(node) for node in walk(root)}
        if Encode in below or ({Decode, DecodePacked} & below and root.spec.dtype is not F32):
            raise RefusedError(
                f"{name} would lose by becoming {root.spec.dtype}", option="--inexact float", hint="or --dtype f32"
            )
