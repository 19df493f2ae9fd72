"""The few reads of data that a plan depends on, each small and declared here: scales, biases and vectors, never
matrices.

block_for       are a packed tensor's parameters exact in a block type?
rounding        how far are they from it?
narrowest       does the type of the matrices hold every vector exactly too?
nothing         is a vector all zeros?
numbers         what is in a tensor that becomes a key of a GGUF?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from weighbridge.base.dtypes import BF16, F16, F32, DType, Kind
from weighbridge.base.errors import FormatError
from weighbridge.tensors.nodes import LogicalTensor, Node, QuantizedTensor, cast, is_stored_as

# A vector of more bytes than this is neither a norm nor a bias, and isn't read while planning.
_LONGEST = 1 << 22


def block_for(node: QuantizedTensor, candidates: Iterable[DType]) -> tuple[DType | None, str]:
    """The smallest block type that stores a packed tensor's values exactly, and ""; or the smallest that can store
    its codes (None if there is none), and why it isn't exact. Reads its scales and biases."""
    wanted, why, near = set(candidates), "", None
    for block in node.packing.blocks:
        if block in wanted:
            reason = node.packing.inexact(node.members, block)
            if not reason:
                return block, ""
            near, why = near or block, why or reason
    return near, why or f"no block type has the codes of {node.packing.name}"


def rounding(node: QuantizedTensor) -> float:
    """The largest relative distance of a packed tensor's scales and biases from f16 numbers; Inf if one overflows."""
    return max((relative(node.members[member]) for member in node.packing.parameters), default=0.0)


def relative(part: Node) -> float:
    """As `relative`, for one tensor of parameters."""
    values, rounded = (n.read_all().view(np.float32) for n in (cast(part, F32), cast(cast(part, F16), F32)))
    with np.errstate(all="ignore"):
        error = np.abs(rounded - values) / np.maximum(np.abs(values), np.finfo(np.float32).tiny)
    return float(error[np.isfinite(values)].max(initial=0))


def narrowest(tensors: Mapping[str, LogicalTensor]) -> dict[str, DType]:
    """For F32 tensors whose every value the float matrices' own 16-bit type holds, that type.

    A GGUF keeps vectors in F32 whatever the model's type; a model that came in one type goes back in one type, if not
    a bit is lost by it.
    """
    matrices = Counter[DType]()
    for node in tensors.values():
        if len(node.spec.shape) > 1 and node.spec.dtype.kind is Kind.FLOAT:
            matrices[node.spec.dtype] += node.spec.elements
    main = matrices.most_common(1)[0][0] if matrices else F32
    if main not in (BF16, F16):
        return {}
    return {n: main for n, node in tensors.items() if is_stored_as(node, F32) and _holds(node, main)}


def nothing(node: LogicalTensor) -> bool:
    """Whether a tensor is a vector of zeros."""
    return isinstance(node, Node) and node.spec.nbytes <= _LONGEST and not any(node.read_all())


def numbers(name: str, node: LogicalTensor) -> list[float]:
    """A short vector's values, rounded to F32. FormatError for a longer one."""
    if node.spec.nbytes > _LONGEST:
        raise FormatError(
            "is too long for a key", field=name, expected=f"at most {_LONGEST} bytes", found=str(node.spec)
        )
    values: list[float] = cast(node, F32).read_all().view(np.float32).tolist()
    return values


def _holds(node: Node, dtype: DType) -> bool:
    if node.spec.nbytes > _LONGEST:
        return False
    values = node.read_all()
    return values.tobytes() == cast(cast(node, dtype), node.spec.dtype).read_all().tobytes()
