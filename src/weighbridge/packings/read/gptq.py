"""GPTQ (AutoGPTQ, GPTQModel, auto-round, optimum): a module P of W[out, in] is stored as

    P.qweight  I32 [in * b / 32, out]   codes, a little-endian stream along `in`, so down the columns
    P.qzeros   I32 [groups, out * b / 32]   zero points, a stream along `out`; absent: 2 ** (b - 1)
    P.scales   F16 or BF16 [groups, out]
    P.g_idx    I32 [in]                 the group of each input; i // group size unless quantized in activation order

    W[o, i] = scales[g_idx[i], o] * (code[i, o] - zero[g_idx[i], o])

Of format 1 (`checkpoint_format: gptq`, or nothing said) the file has zero - 1, modulo 2 ** b; of format 2 (`gptq_v2`)
the zero itself. Labels lie (vLLM issue 38966): where every zero is the one of symmetric quantization, the numbers
decide. Transposed, `qweight` is the very same stream as MLX's and compressed-tensors' words.

Source: GPTQModel (nn_modules/qlinear/torch.py), AutoGPTQ (qlinear_cuda_old.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from weighbridge.base.dtypes import BF16, F16, F32, I32
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.spec import Spec
from weighbridge.packings.base import Config, Found, Nodes, described, members, need, settings, stored
from weighbridge.packings.int_quant import IntQuant
from weighbridge.tensors import nodes as n
from weighbridge.tensors.nodes import Node, QuantizedTensor

NAME: Final = "gptq"
KEYS: Final = (".qweight",)
_PARTS: Final = MappingProxyType({m: f".{m}" for m in ("qweight", "qzeros", "scales", "g_idx")})
_BITS: Final = (2, 3, 4, 5, 6, 7, 8)
# Bits that only gptq_p has, whose zeros are those of format 2.
_PLANAR: Final = (5, 6, 7)
_FORMATS: Final = ("gptq", "gptq_v2")
# Forms made for one kernel at run time: their codes are shuffled, and nothing in the file says how.
_SHUFFLED: Final = ("marlin", "exllama", "exllamav2", "bitblas", "machete")


def match(module: str, key: str, tensors: Nodes, config: Config) -> Found | None:
    """See `packings.base.Unpacker`."""
    parts = members(module, tensors, _PARTS)
    if "scales" not in parts or _columns(parts["qweight"]) != _columns(parts["scales"]):
        return None  # AWQ packs the columns
    told = _told(module, settings(config))
    form = str(told.get("checkpoint_format") or told.get("format") or "gptq")
    if form.lower() in _SHUFFLED:
        raise UnsupportedError(
            f"{module} is in {form}'s own order, made for a GPU kernel", hint="use the repository's plain GPTQ files"
        )
    return Found(f"{module}.weight", _packed(module, parts, told, form), stored(module, tensors, _PARTS.values()))


def _columns(node: Node) -> int:
    return node.spec.shape[-1] if len(node.spec.shape) == 2 else -1


def _told(module: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one module: GPTQModel's `dynamic` has regular expressions with settings of their own."""
    own = dict(told)
    dynamic = told.get("dynamic")
    for pattern, changes in dynamic.items() if isinstance(dynamic, Mapping) else ():
        if pattern.startswith("-:") or not isinstance(changes, Mapping):
            continue
        if _matches(pattern.removeprefix("+:"), module):
            return own | dict(changes)
    return own


def _matches(pattern: str, module: str) -> bool:
    """An expression of a config is untrusted: one that backtracks without end would hang, so only plain ones are
    run."""
    if len(pattern) > 200 or re.search(r"[)\]}*+?][*+?{]|\\[1-9]", pattern):
        return False
    try:
        return re.match(pattern, module) is not None
    except re.error:
        return False


def _packed(module: str, parts: dict[str, Node], told: Mapping[str, Any], form: str) -> QuantizedTensor:
    words, scales = parts["qweight"].spec, parts["scales"].spec
    fits = words.dtype is I32 and scales.dtype in (F16, BF16, F32) and len(scales.shape) == 2 and scales.shape[0]
    need(bool(fits), module, "qweight and scales don't belong together", "I32 [words, out], floats [groups, out]",
         described(parts))  # fmt: skip
    groups, outer = scales.shape
    bits, inner = _sizes(module, parts, told)
    order = _order(module, parts, inner, groups)
    planar = form.lower() == "gptq_p" or bits in _PLANAR
    codes = n.transpose(parts["qweight"])
    if planar:
        codes = n.codes(codes, "planar", bits, inner)
    zero, shift, zeros = _zeros(module, parts, bits, planar, form)
    nodes = {"codes": codes, "scales": n.transpose(parts["scales"])}
    if zeros is not None:
        nodes["zeros"] = n.transpose(zeros)
    if order is not None:
        nodes["g_idx"] = order
    held = 8 if planar else bits
    packing = IntQuant(
        NAME, held, bits, -(-inner // groups), scales.dtype, zero, shift=shift, ordered=order is not None
    )
    return QuantizedTensor(Spec((outer, inner), F32), packing, nodes)


def _sizes(module: str, parts: Mapping[str, Node], told: Mapping[str, Any]) -> tuple[int, int]:
    """(bits, inputs): g_idx tells the inputs and qzeros the bits; a config is asked only where both are missing."""
    words, (groups, outer) = parts["qweight"].spec.shape[0], parts["scales"].spec.shape
    if "g_idx" in parts and parts["g_idx"].spec.elements:
        inner = parts["g_idx"].spec.elements
        bits = words * 32 // inner
    elif "qzeros" in parts:
        need(len(parts["qzeros"].spec.shape) == 2, module, "zeros are no matrix", "[groups, words]", described(parts))
        bits = parts["qzeros"].spec.shape[-1] * 32 // max(outer, 1)
        inner = words * 32 // max(bits, 1)
    else:
        said = told.get("bits")
        bits = said if isinstance(said, int) else 4
        inner = words * 32 // max(bits, 1)
    need(bits in _BITS and inner * bits == words * 32 and groups <= inner, module, "codes don't fill their words",
         f"inputs x bits = {words} x 32", f"{inner} inputs of {bits} bits")  # fmt: skip
    return bits, inner


def _order(module: str, parts: Mapping[str, Node], inner: int, groups: int) -> Node | None:
    """The group of each input where they aren't simply in turn (act-order), or the last group is short."""
    size = -(-inner // groups)
    turn = np.arange(inner, dtype=np.int32) // size
    if "g_idx" not in parts or not parts["g_idx"].spec.elements:
        return n.const(turn, I32) if inner % groups else None
    node = parts["g_idx"]
    need(node.spec.dtype is I32 and len(node.spec.shape) == 1, module, "g_idx is misshapen", "I32 [in]", node.spec)
    index = node.read_all().view(np.int32)
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < groups:
        raise FormatError("g_idx names a group that isn't there", field=f"{module}.g_idx",
                          expected=f"0 to {groups - 1}", found=f"{index.min()} to {index.max()}")  # fmt: skip
    return None if np.array_equal(index, turn) and inner % groups == 0 else node


def mislabelled(module: str, tensors: Nodes, config: Config) -> str:
    """What the config calls the format of a symmetric weight whose zero points are those of the other one; empty where
    it is right, or can't be told."""
    told = settings(config)
    form = str(told.get("checkpoint_format") or told.get("format") or "gptq").lower()
    parts = members(module, tensors, _PARTS)
    if form not in _FORMATS or "qzeros" not in parts or "scales" not in parts:
        return ""
    outer = parts["scales"].spec.shape[-1]
    bits = parts["qzeros"].spec.shape[-1] * 32 // max(outer, 1)
    zeros = n.codes(parts["qzeros"], "stream", bits, outer).read_all()
    other = (1 << (bits - 1)) - 1 + (form == "gptq")  # format 1 has zero - 1
    return form if zeros.size and (zeros == other).all() else ""


def _zeros(
    module: str, parts: Mapping[str, Node], bits: int, planar: bool, form: str
) -> tuple[int | None, int, Node | None]:
    """(zero for all, what to add to stored ones, stored ones as U8 [groups, out])."""
    groups, outer = parts["scales"].spec.shape
    if "qzeros" not in parts:
        return 1 << (bits - 1), 0, None
    node = parts["qzeros"]
    need(node.spec.dtype is I32 and node.spec.shape[:1] == (groups,) and len(node.spec.shape) == 2
         and node.spec.shape[1] * 32 >= outer * bits, module, "qzeros don't belong to the scales",
         f"I32 [{groups}, {outer * bits // 32}]", node.spec)  # fmt: skip
    zeros = n.codes(node, "planar" if planar else "stream", bits, outer)
    middle = 1 << (bits - 1)
    first = zeros.read(0, 1)
    for stored_as in (middle, middle - 1):  # symmetric: the numbers tell which format, whatever the label says
        if (first == stored_as).all() and (zeros.read_all() == stored_as).all():
            return middle, 0, None
    return None, 0 if planar or form.lower() == "gptq_v2" else 1, zeros
