"""Invariant: names, types, shapes and what a config says of a quantization are logical tensors, or refused.

An input is JSON: {"config": config.json, "tensors": {name: [type, shape]}}. A logical tensor has a shape whose numbers
are as many as its parts can hold.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import harness
import msgspec

from weighbridge.base.dtypes import BY_NAME
from weighbridge.base.spec import Spec
from weighbridge.io.source import BytesSource
from weighbridge.packings.unpacking import groups, unpack
from weighbridge.tensors.nodes import Node, QuantizedTensor, Stored

NOTHING = BytesSource(b"")


def target(data: bytes) -> None:
    try:
        said = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(said, dict) or not isinstance(said.get("tensors"), dict):
        return
    nodes = {name: node for name, told in said["tensors"].items() if (node := _node(told)) is not None}
    config = said["config"] if isinstance(said.get("config"), dict) else {}
    assert set(groups(nodes, config)) <= set(nodes)
    for name, tensor in unpack(nodes, config).items():
        if isinstance(tensor, QuantizedTensor):
            assert all(n >= 0 for n in tensor.spec.shape), name


def _node(told: Any) -> Node | None:
    kind, shape = told if isinstance(told, list) and len(told) == 2 else (None, None)
    dtype = BY_NAME.get(kind) if isinstance(kind, str) else None
    if dtype is None or not isinstance(shape, list) or len(shape) > 4:
        return None
    if not all(type(n) is int and 0 <= n < 1 << 20 for n in shape) or (shape or [1])[-1] % dtype.block:
        return None
    return Stored(Spec(tuple(shape), dtype), NOTHING, 0) if math.prod(shape) < 1 << 40 else None


def _file(method: dict[str, Any], tensors: dict[str, Any], key: str = "quantization_config") -> bytes:
    named = {f"m.{name.replace('__', '.')}": [kind, shape] for name, (kind, shape) in tensors.items()}
    return json.dumps({"config": {key: method}, "tensors": named}, separators=(",", ":")).encode()


def seeds() -> list[bytes]:
    """One layer of each scheme."""
    weights = {"weights": {"num_bits": 4, "group_size": 32, "type": "int", "symmetric": True, "strategy": "group"}}
    ct = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": weights}}
    scale = {"weight_packed": ("I32", [64, 8]), "weight_scale": ("F16", [64, 2]), "weight_shape": ("I64", [2])}
    gptq = {"qweight": ("I32", [8, 64]), "qzeros": ("I32", [2, 8]), "scales": ("F16", [2, 64]), "g_idx": ("I32", [64])}
    awq = {"qweight": ("I32", [64, 8]), "qzeros": ("I32", [2, 8]), "scales": ("F16", [2, 64])}
    affine = {"weight": ("U32", [64, 8]), "scales": ("F16", [64, 2]), "biases": ("F16", [64, 2])}
    fp8 = {"weight": ("F8_E4M3", [128, 128]), "weight_scale_inv": ("F32", [1, 1])}
    nf4 = {"weight": ("U8", [2048, 1]), "weight__absmax": ("F32", [64]), "weight__quant_map": ("F32", [16]),
           "weight__quant_state__bitsandbytes__nf4": ("U8", [90])}  # fmt: skip
    mxfp4 = {"experts__down_proj_blocks": ("U8", [2, 64, 2, 16]), "experts__down_proj_scales": ("U8", [2, 64, 2])}
    whole = [
        _file({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}, gptq),
        _file({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}, awq),
        _file({"bits": 4, "group_size": 32, "mode": "affine", "m.x": {"bits": 8}}, affine, "quantization"),
        _file({"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}, fp8),
        _file({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, nf4),
        _file({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, mxfp4),
        _file(ct, scale),
    ]
    return whole + [data for file in whole for data in harness.odd(json.loads(file), 30)]


if __name__ == "__main__":
    sys.exit(harness.main(target, seeds()))
