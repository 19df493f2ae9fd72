"""The losses of quantized tensors: decoded, or quantized again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from weighbridge.base.dtypes import F32, Kind
from weighbridge.base.errors import RefusedError
from weighbridge.base.words import plural
from weighbridge.conversion.result import Loss, Move
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

_LOSSY: Final = (Decode, DecodePacked, Encode, PackedMember)
# Packings in which models are released (DeepSeek V3, Kimi K2, Qwen3-FP8): quantizing them is quantizing the original.
RELEASED: Final = frozenset({"fp8"})


def losses_of(tensors: Mapping[str, Node], allow_requantize: bool = False) -> list[Loss]:
    """The losses of quantized tensors. Raises RefusedError if one is quantized again, unless that is allowed."""
    computed = {name: [n for n in walk(root) if isinstance(n, _LOSSY)] for name, root in tensors.items()}
    requantized = [
        name
        for name, nodes in computed.items()
        if any(
            any(map(is_quantized, walk(node.source)))
            for node in nodes
            if isinstance(node, Encode) or (isinstance(node, PackedMember) and node.packer.quantizes)
        )
    ]
    if requantized and not allow_requantize:
        count = plural(len(requantized), "quantized tensor")
        raise RefusedError(f"{count} would be quantized again, first {requantized[0]}", option="--allow-requantize")
    decoded = [
        Loss(f"decoded to F32: {reason}", name)
        for name, nodes in computed.items()
        for reason in dict.fromkeys(n.reason for n in nodes if isinstance(n, Decode | DecodePacked))  # once
        if reason
    ]
    return [*(Loss("quantized a second time", name, "results") for name in requantized), *decoded]


def is_quantized(node: LogicalTensor) -> bool:
    """Whether a tensor's values were rounded by quantizing, and not released in that form."""
    if isinstance(node, PackedSource):
        return is_quantized(node.tensor)
    if isinstance(node, QuantizedTensor):
        return node.packing.name not in RELEASED
    return node.spec.dtype.kind is Kind.BLOCK


def check_lossless(tensors: Mapping[str, Node], moves: Iterable[Move], losses: Iterable[Loss]) -> None:
    """Raises RefusedError if results or a tensor's values would change: quantized, or decoded to less than F32.

    Parts of a tensor with an exact move don't count.
    """
    if (loss := next((loss for loss in losses if loss.effect == "results"), None)) is not None:
        raise RefusedError(f"the target would compute something else: {loss.message}", option="--inexact float")
    exact = {move.tensor.removesuffix(".weight") for move in moves if move.kind == "exact"}
    for name, root in tensors.items():
        if name.rpartition(".")[0] in exact:
            continue
        types = {type(node) for node in walk(root)}
        if Encode in types or ({Decode, DecodePacked} & types and root.spec.dtype is not F32):
            raise RefusedError(
                f"{name} would lose by becoming {root.spec.dtype}", option="--inexact float", hint="or --dtype f32"
            )
