"""Bits, group size and mode of a weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from weighbridge.base.dtypes import Kind
from weighbridge.tensors.nodes import LogicalTensor, QuantizedTensor


class WeightQuantization(NamedTuple):
    """`bits` of a code (of a ggml type: bits per weight, its scales included), columns that share a scale (`group`;
    None where all do), and `mode`: the packing or the block type."""

    bits: float
    group: int | None
    mode: str


def quantization_of(tensor: LogicalTensor) -> WeightQuantization | None:
    """Returns how one weight is quantized; None if it isn't."""
    if isinstance(tensor, QuantizedTensor):
        packing = tensor.packing
        return WeightQuantization(packing.code_bits, getattr(packing, "group", None) or None, packing.name)
    dtype = tensor.spec.dtype
    return WeightQuantization(dtype.bits, dtype.block, dtype.name) if dtype.kind is Kind.BLOCK else None


def most_common(tensors: Iterable[LogicalTensor]) -> WeightQuantization | None:
    """Returns the quantization of most elements of a model's quantized weights; None without quantized weights."""
    counts = Counter[WeightQuantization]()
    for tensor in tensors:
        if (found := quantization_of(tensor)) is not None:
            counts[found] += tensor.spec.elements
    return max(counts, key=counts.__getitem__) if counts else None
