"""compressed-tensors (llm-compressor, vLLM), the integer formats. A module P of W[out, in]:

    pack-quantized    P.weight_packed      I32 [out, words]     code + 2 ** (b - 1), a stream along `in`
                      P.weight_scale       floats [out, groups]
                      P.weight_shape       I64 or I32 [2]
                      P.weight_zero_point  I32 [words, groups]  packed along `out`, with the same 2 ** (b - 1) added
                      P.weight_g_idx       I32 [in]             where columns were taken in activation order
    int-quantized,    P.weight             I8 [out, in]
    naive-quantized   P.weight_scale       floats [out, groups], [out, 1], [out] or one
                      P.weight_zero_point  I8, as the scales

    W[o, i] = (code[o, i] - zero[o, group of i]) * scale[o, group of i]

Up to 0.17 the codes of 3, 5, 6 and 7 bits were padded to whole words, since 0.18 they are dense; only the width of the
tensor tells. Source: compressed_tensors/compressors/quantized_compressors (0.17.1 and 0.18.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from weighbridge.base.dtypes import BF16, BY_NAME, F16, F32, I32
from weighbridge.base.errors import FormatError
from weighbridge.base.spec import Spec
from weighbridge.packings.base import Config, Found, Nodes, described, members, need, settings, stored
from weighbridge.packings.int_quant import IntQuant
from weighbridge.tensors import nodes as n
from weighbridge.tensors.nodes import Node, QuantizedTensor

NAME: Final = "compressed-tensors"
KEYS: Final = (".weight_packed", ".weight_scale")
_PARTS: Final = MappingProxyType(
    {"weight": ".weight", "packed": ".weight_packed", "scale": ".weight_scale", "shape": ".weight_shape",
     "zero": ".weight_zero_point", "g_idx": ".weight_g_idx"}
)  # fmt: skip
# Scales of activations and caches: nothing of the weight's value.
_BESIDE: Final = (".input_scale", ".input_zero_point", ".output_scale")
_BITS: Final = range(1, 9)
_I8: Final = BY_NAME["I8"]
_FLOATS: Final = (F16, BF16, F32)


def match(module: str, key: str, tensors: Nodes, config: Config) -> Found | None:
    """See `packings.base.Unpacker`."""
    parts = members(module, tensors, _PARTS)
    if key == ".weight_packed" and parts["packed"].spec.dtype is I32:
        node = _words(module, parts, config)
    elif key == ".weight_scale" and "weight" in parts and parts["weight"].spec.dtype is _I8:
        node = _bytes(module, parts)
    else:
        return None
    return Found(f"{module}.weight", node, stored(module, tensors, (*_PARTS.values(), *_BESIDE)))


def _words(module: str, parts: dict[str, Node], config: Config) -> QuantizedTensor:
    outer, inner = _shape(module, parts)
    words = parts["packed"].spec.shape[-1]
    bits, layout = _layout(module, words, inner, config)
    scales = _scales(module, parts, outer, inner)
    groups = scales.spec.shape[1]
    whole = layout == "stream" and inner * bits == words * 32
    codes = parts["packed"] if whole else n.codes(parts["packed"], layout, bits, inner)
    nodes = {"codes": codes, "scales": scales}
    if "zero" in parts:
        nodes["zeros"] = _packed_zeros(module, parts["zero"], layout, bits, outer, groups)
    order = _order(module, parts.get("g_idx"), inner, groups)
    if order is not None:
        nodes["g_idx"] = order
    zero = None if "zero" in parts else 1 << (bits - 1)
    packing = IntQuant(
        NAME, bits if whole else 8, bits, inner // groups, scales.spec.dtype, zero, ordered=order is not None
    )
    return QuantizedTensor(Spec((outer, inner), F32), packing, nodes)


def _shape(module: str, parts: Mapping[str, Node]) -> tuple[int, int]:
    need("scale" in parts and "shape" in parts, module, "weight_packed without its companions",
         "weight_scale and weight_shape", described(parts))  # fmt: skip
    node = parts["shape"]
    kind = {"I64": "<i8", "I32": "<i4"}.get(node.spec.dtype.name, "")
    need(bool(kind) and node.spec.elements == 2, module, "weight_shape is misshapen", "I64 [2]", node.spec)
    outer, inner = (int(x) for x in node.read_all().view(kind))
    packed = parts["packed"].spec
    need(packed.shape[:1] == (outer,) and len(packed.shape) == 2 and inner > 0, module,
         "weight_shape contradicts weight_packed", f"[{outer}, words]", packed)  # fmt: skip
    return outer, inner


def _layout(module: str, words: int, inner: int, config: Config) -> tuple[int, str]:
    """Bits and layout by the width; the config where several fit, as may be with few columns."""
    dense = [(b, "stream") for b in _BITS if -(-inner * b // 32) == words]
    padded = [(b, "padded") for b in _BITS if 32 % b and -(-inner // (32 // b)) == words]
    told = _told(config)
    fits = [f for f in (*dense, *padded) if told in (0, f[0])] or [*dense, *padded]
    if len(fits) == 1 or len({b for b, _ in fits}) == 1:
        return fits[0]
    raise FormatError(
        f"{module}: bits can't be told from {words} words for {inner} columns",
        expected=f"one of {sorted({b for b, _ in fits})} as num_bits in the config" if fits else "1 to 8 bits",
        found=told or "nothing",
    )


def _told(config: Config) -> int:
    """The bits that the config gives all its groups of layers; 0 where it doesn't say, or says several."""
    groups = settings(config).get("config_groups")
    weights = (
        [g.get("weights") for g in groups.values() if isinstance(g, Mapping)] if isinstance(groups, Mapping) else []
    )
    bits: set[Any] = {w.get("num_bits") for w in weights if isinstance(w, Mapping)}
    found = bits.pop() if len(bits) == 1 else 0
    return found if isinstance(found, int) else 0


def _scales(module: str, parts: Mapping[str, Node], outer: int, inner: int) -> Node:
    """[out, groups], whatever was left out of it: one scale for all is spread over the rows."""
    node = parts["scale"]
    shape = node.spec.shape
    fits = shape == (outer, shape[-1]) if len(shape) == 2 else node.spec.elements in (1, outer)
    need(fits and node.spec.dtype in _FLOATS and node.spec.elements > 0 and inner % _groups(shape, outer) == 0,
         module, "weight_scale doesn't belong to the weight", f"floats [{outer}, groups]", node.spec)  # fmt: skip
    return _spread(node, outer)


def _groups(shape: tuple[int, ...], outer: int) -> int:
    return max(shape[1], 1) if len(shape) == 2 and shape[0] == outer else 1


def _spread(node: Node, outer: int) -> Node:
    if len(node.spec.shape) == 2 and node.spec.shape[0] == outer:
        return node
    if node.spec.elements == outer:
        return n.reshape(node, (outer, 1))
    return n.strided(n.reshape(node, (1,)), 0, (outer, 1), (0, 0))


def _packed_zeros(module: str, node: Node, layout: str, bits: int, outer: int, groups: int) -> Node:
    each = 32 // bits
    words = -(-outer // each) if layout == "padded" else -(-outer * bits // 32)
    need(node.spec.dtype is I32 and node.spec.shape == (words, groups), module,
         "weight_zero_point doesn't belong to the weight", f"I32 [{words}, {groups}]", node.spec)  # fmt: skip
    return n.transpose(n.codes(n.transpose(node), layout, bits, outer))


def _order(module: str, node: Node | None, inner: int, groups: int) -> Node | None:
    if node is None:
        return None
    need(node.spec.dtype is I32 and node.spec.shape == (inner,), module, "weight_g_idx is misshapen",
         f"I32 [{inner}]", node.spec)  # fmt: skip
    index = node.read_all().view(np.int32)
    turn = np.arange(inner) // (inner // groups)
    if (index == -1).all() or np.array_equal(index, turn):  # -1: never set
        return None
    if not 0 <= int(index.min()) <= int(index.max()) < groups:
        raise FormatError("weight_g_idx names a group that isn't there", field=module,
                          expected=f"0 to {groups - 1}", found=f"{index.min()} to {index.max()}")  # fmt: skip
    return node


def _bytes(module: str, parts: dict[str, Node]) -> QuantizedTensor:
    weight = parts["weight"].spec
    need(len(weight.shape) == 2 and weight.elements > 0, module, "weight is no matrix", "I8 [out, in]", weight)
    outer, inner = weight.shape
    scales = _scales(module, parts, outer, inner)
    nodes = {"codes": parts["weight"], "scales": scales}
    if "zero" in parts:
        zero = parts["zero"].spec
        fits = zero.dtype is _I8 and zero.elements == parts["scale"].spec.elements
        need(fits, module, "weight_zero_point is not like weight_scale", f"I8 {list(parts['scale'].spec.shape)}", zero)
        nodes["zeros"] = _spread(parts["zero"], outer)
    offset = None if "zero" in parts else 128
    packing = IntQuant(
        NAME, 8, 8, inner // scales.spec.shape[1], scales.spec.dtype, offset, shift=128 * (offset is None), signed=True
    )
    return QuantizedTensor(Spec((outer, inner), F32), packing, nodes)
