"""Nodes: lazily read tensors, and the functions that build them.

base, compute, elementwise     nodes
quantized                      tensors in several stored ones
packed                         the stored tensors that a packing makes
logical                        logical tensors, which may be quantized: questions, decoding, casts
moves                          reshape, slice, join, gather
builders                       nodes that compute
linear                         rows through a layer of a network
"""

from __future__ import annotations

from weighbridge.tensors.nodes.base import (
    Bitcast,
    Concat,
    Const,
    Gather,
    Node,
    RowOrder,
    RowRange,
    Slice,
    Stored,
    Strided,
    walk,
)
from weighbridge.tensors.nodes.builders import (
    abs_max,
    add_position,
    apply_function,
    awq_by_rows,
    centered,
    codes,
    divide_rows,
    low_rank,
    normalize_rows,
    pack,
    pack_with_global,
    pairwise,
    rescale_rows,
    round_ternary,
    scaled,
    shift,
    spread_ternary,
    transcode,
    upgrade_blocks,
)
from weighbridge.tensors.nodes.compute import (
    AbsMax,
    Cast,
    CastReport,
    Decode,
    Encode,
    LowRank,
    Transpose,
    UnpackBits,
    UpgradeBlocks,
)
from weighbridge.tensors.nodes.elementwise import (
    Elementwise,
    IntCast,
    NormalizeRows,
    Pairwise,
    RescaleRows,
    Scaled,
    Shift,
)
from weighbridge.tensors.nodes.linear import linear
from weighbridge.tensors.nodes.logical import (
    T,
    as_node,
    cast,
    decode,
    is_plain,
    is_stored_as,
    needs_decoding,
    packed_in,
    provisional,
    storage_name,
    stored_bytes,
    swap_bytes,
)
from weighbridge.tensors.nodes.moves import (
    as_bytes,
    bitcast,
    concat,
    const,
    flat_range,
    gather,
    reshape,
    slice_rows,
    stack,
    strided,
    transpose,
    zeros,
)
from weighbridge.tensors.nodes.packed import GlobalScalePacker, PackedMember, PackedMemberWithGlobal, Packer
from weighbridge.tensors.nodes.quantized import (
    DecodePacked,
    LogicalTensor,
    PackedSource,
    Packing,
    QuantizedTensor,
    Transcode,
)

__all__ = [
    "AbsMax", "Bitcast", "Cast", "CastReport", "Concat", "Const", "Decode", "DecodePacked", "Elementwise", "Encode",
    "Gather", "GlobalScalePacker", "IntCast", "LogicalTensor", "LowRank", "Node", "NormalizeRows", "PackedMember",
    "PackedMemberWithGlobal", "PackedSource", "Packer", "Packing", "Pairwise", "QuantizedTensor", "RescaleRows",
    "RowOrder", "RowRange", "Scaled", "Shift", "Slice", "Stored", "Strided", "T", "Transcode", "Transpose",
    "UnpackBits", "UpgradeBlocks", "abs_max", "add_position", "apply_function", "as_bytes", "as_node",
    "awq_by_rows", "bitcast", "cast", "centered", "codes", "concat", "const", "decode", "divide_rows", "flat_range",
    "gather", "is_plain", "is_stored_as", "linear", "low_rank", "needs_decoding", "normalize_rows", "pack",
    "pack_with_global", "packed_in", "pairwise", "provisional", "rescale_rows", "reshape", "round_ternary",
    "scaled", "shift", "slice_rows", "spread_ternary", "stack", "storage_name", "stored_bytes", "strided",
    "swap_bytes", "transcode", "transpose", "upgrade_blocks", "walk", "zeros",
]  # fmt: skip
