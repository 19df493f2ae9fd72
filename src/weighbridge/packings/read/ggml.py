"""ggml's NVFP4 with a scale for the whole tensor beside it, as llama.cpp (b11549) has it:

    P.weight       NVFP4 [.., out, in]
    P.scale        F32 [1], of a stack of experts [experts]: what the product of the matrix is multiplied with
    P.input_scale  F32: of the activations, says nothing of the weights (and no graph of b11549 looks at it)

Source: conversion/base.py (`_repack_nvfp4`), llama-model.cpp (`load_tensors`), llama-graph.cpp (`build_lora_mm`).
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from weighbridge.base.dtypes import F32, U8
from weighbridge.base.spec import Spec
from weighbridge.packings.base import Config, Found, Nodes, need, stored
from weighbridge.packings.read.microfloat import E4M3, MXFP4, NVFP4, Microscaled
from weighbridge.packings.read.scaled import E8M0
from weighbridge.packings.write import packers as makers
from weighbridge.tensors import nodes as n
from weighbridge.tensors.nodes import QuantizedTensor
from weighbridge.tensors.nodes.base import Node

NAME: Final = "ggml-nvfp4"
KEYS: Final = (".scale",)
_SCALES: Final = MappingProxyType({MXFP4: E8M0, NVFP4: E4M3})
#: The architectures whose graphs multiply with it everywhere. llama.cpp loads it for all, but most graphs (gemma,
#: qwen2, phi3, granite ...) leave it out of their feed-forward layers without a word: there it says something else.
GRAPHS: Final = ("cohere2", "llama", "mistral3", "qwen3", "qwen3moe")
#: The tensors that llama.cpp multiplies with such a scale, by the end of their names before `.weight`.
SCALED: Final = (
    "attn_q", "attn_k", "attn_v", "attn_output", "attn_qkv", "attn_gate", "ffn_gate", "ffn_down", "ffn_up",
    "ffn_gate_shexp", "ffn_down_shexp", "ffn_up_shexp", "ffn_gate_exps", "ffn_down_exps", "ffn_up_exps", "output",
)  # fmt: skip


def parts_of(node: Node) -> tuple[Node, Node]:
    """The codes U8 [.., in / 2], two a byte in the order of the columns, and the scales of MXFP4 or NVFP4 blocks."""
    parts = n.made(node, makers.BlocksOf(node.spec.dtype))
    codes, scales = parts["weight"], parts["scales"]
    kind = U8 if node.spec.dtype is MXFP4 else E4M3
    return n.retyped(codes, U8, codes.spec.row_bytes), n.retyped(scales, kind, scales.spec.shape[-1])


def match(module: str, key: str, tensors: Nodes, config: Config) -> Found | None:
    """See `packings.base.Unpacker`."""
    weight, scale = tensors.get(f"{module}.weight"), tensors[module + key]
    if weight is None or weight.spec.dtype is not NVFP4 or scale.spec.dtype is not F32:
        return None
    count = weight.spec.shape[0] if len(weight.spec.shape) > 2 else 1
    need(scale.spec.elements == count, module, "the scale doesn't belong to the weight", f"F32 [{count}]", scale.spec)
    codes, scales = parts_of(weight)
    held = {"codes": codes, "scales": scales, "global": n.reshape(scale, (count, 1))}
    packing = Microscaled("nvfp4", E4M3, overall=True, each=weight.spec.rows // count if count > 1 else 0)
    names = stored(module, tensors, (".weight", ".scale", ".input_scale"))
    return Found(f"{module}.weight", QuantizedTensor(Spec(weight.spec.shape, F32), packing, held), names)


class SplitGlobalScale(NamedTuple):
    """NVFP4 without scales of whole matrices, and these, F32 [matrices]."""

    blocks: QuantizedTensor
    scale: Node


def apart(architecture: str, name: str, node: QuantizedTensor) -> SplitGlobalScale | None:
    """A tensor of a GGUF's name as what llama.cpp has of it; None where it has no such scales, or they no place
    there."""
    how, module = node.packing, name.removesuffix(".weight")
    if not isinstance(how, Microscaled) or not how.overall or how.scale_dtype is not E4M3:
        return None
    if (
        architecture not in GRAPHS
        or module == name
        or module.rpartition(".")[2] not in SCALED
        or node.spec.shape[-1] % NVFP4.block
    ):
        return None
    factors = how.factor(node.members["global"].read_all())
    bare = replace(how, overall=False, divided=False, each=0)
    members = {m: x for m, x in node.members.items() if m != "global"}
    return SplitGlobalScale(
        QuantizedTensor(node.spec, bare, members), n.const(np.asarray(factors, np.float32).reshape(-1), F32)
    )
