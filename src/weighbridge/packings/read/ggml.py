"""NVFP4 blocks with a scale for the whole tensor (`schema/microscaled.py` describes their form in a file)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from weighbridge.base.dtypes import BY_BLOCK, E4M3, F32, NVFP4, U8
from weighbridge.packings.read.microscaled import Microscaled
from weighbridge.packings.schema.base import Match
from weighbridge.tensors import nodes, np
from weighbridge.tensors.nodes import QuantizedTensor
from weighbridge.tensors.nodes.base import Node

#: The architectures whose graphs apply this scale everywhere. llama.cpp loads it for all, but most graphs (gemma,
#: qwen2, phi3, granite ...) silently ignore it in their feed-forward layers.
GRAPHS: Final = ("cohere2", "llama", "mistral3", "qwen3", "qwen3moe")
#: The tensors that llama.cpp multiplies by such a scale, by the end of their names before `.weight`.
SCALED: Final = (
    "attn_q", "attn_k", "attn_v", "attn_output", "attn_qkv", "attn_gate", "ffn_gate", "ffn_down", "ffn_up",
    "ffn_gate_shexp", "ffn_down_shexp", "ffn_up_shexp", "ffn_gate_exps", "ffn_down_exps", "ffn_up_exps", "output",
)  # fmt: skip


def split_blocks(node: Node) -> tuple[Node, Node]:
    """The codes U8 [.., in / 2] of MXFP4 or NVFP4 blocks, two per byte in the order of the columns, and their scales,
    U8 [.., in / 32] or E4M3 [.., in / 16]."""
    from weighbridge.packings.write.packers import BlocksOf  # late: numpy

    parts = nodes.pack(node, BlocksOf(node.spec.dtype))
    codes, scales = parts["weight"], parts["scales"]
    dtype = E4M3 if BY_BLOCK[node.spec.dtype] is NVFP4 else U8
    return nodes.bitcast(codes, U8, codes.spec.row_bytes), nodes.bitcast(scales, dtype, scales.spec.shape[-1])


def build(match: Match[int], stored: Mapping[str, Node]) -> QuantizedTensor:
    """See `packings.schema.base.PackingSchema`."""
    count = match.layout
    codes, scales = split_blocks(stored["codes"])
    members = {"codes": codes, "scales": scales, "global": nodes.reshape(stored["global"], (count, 1))}
    packing = Microscaled(NVFP4, overall=True, each=match.spec.rows // count if count > 1 else 0)
    return QuantizedTensor(match.spec, packing, members)


class SplitGlobalScale(NamedTuple):
    """NVFP4 without whole-matrix scales, and these scales as F32 [matrices]."""

    blocks: QuantizedTensor
    scale: Node


def split_global_scale(architecture: str, name: str, node: QuantizedTensor) -> SplitGlobalScale | None:
    """A tensor under a GGUF name as llama.cpp stores it; None if it has no such scales, or llama.cpp doesn't apply
    them."""
    packing, module = node.packing, name.removesuffix(".weight")
    if not isinstance(packing, Microscaled) or not packing.overall or packing.type is not NVFP4:
        return None
    if (
        architecture not in GRAPHS
        or module == name
        or module.rpartition(".")[2] not in SCALED
        or (NVFP4.block and node.spec.shape[-1] % NVFP4.block.block)
    ):
        return None
    factors = packing.factor(node.members["global"].read_all())
    bare = replace(packing, overall=False, divided=False, each=0)
    members = {m: x for m, x in node.members.items() if m != "global"}
    return SplitGlobalScale(
        QuantizedTensor(node.spec, bare, members), nodes.const(np.asarray(factors, np.float32).reshape(-1), F32)
    )
