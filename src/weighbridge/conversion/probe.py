"""The few looks at data that a plan rests on, each small and declared here: scales, biases and vectors, never matrices.

exact_blocks    are a packed tensor's parameters exact in a block type?
narrowest       does the type of the matrices hold every vector exactly too?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from weighbridge.base.dtypes import BF16, F16, F32, DType
from weighbridge.tensors.nodes import Node, Packed, cast

# A vector longer than this is no norm and no bias, and isn't read to plan.
_LONGEST = 1 << 22


def exact_blocks(node: Node, candidates: Iterable[DType]) -> DType | None:
    """The smallest block type that holds a packed tensor's very values; reads its scales and biases."""
    if not isinstance(node, Packed):
        return None
    wanted = set(candidates)
    return next((d for d in node.packing.blocks if d in wanted and not node.packing.inexact(node.members, d)), None)


def narrowest(tensors: Mapping[str, Node]) -> dict[str, DType]:
    """For F32 tensors whose every value the matrices' own 16-bit type holds, that type.

    A GGUF keeps vectors in F32 whatever the model's type; a model that came in one type goes back in one type, if not
    a bit is lost by it.
    """
    matrices = Counter[DType]()
    for node in tensors.values():
        if len(node.spec.shape) > 1:
            matrices[node.spec.dtype] += node.spec.elements
    main = matrices.most_common(1)[0][0] if matrices else F32
    if main not in (BF16, F16):
        return {}
    return {n: main for n, node in tensors.items() if node.spec.dtype is F32 and _holds(node, main)}


def _holds(node: Node, dtype: DType) -> bool:
    if node.spec.nbytes > _LONGEST:
        return False
    values = node.read_all()
    return values.tobytes() == cast(cast(node, dtype), node.spec.dtype).read_all().tobytes()
