"""AWQ (AutoAWQ, llm-awq's GEMM form): a module P of W[out, in] is stored as

    P.qweight  I32 [in, out / 8]        eight outputs a word, nibbles in the order 0 2 4 6 1 3 5 7
    P.qzeros   I32 [groups, out / 8]    in the same order; absent: 8
    P.scales   F16 [groups, out]

    W[o, i] = scales[i // group, o] * (code[i, o] - zero[i // group, o])

The scaling by activations is folded into the weights and the norms before them. Source: AutoAWQ
(modules/linear/gemm.py, utils/packing_utils.py).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from weighbridge.base.dtypes import BF16, F16, F32, I32
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.spec import Spec
from weighbridge.packings.base import Config, Found, Nodes, described, members, need, settings, stored
from weighbridge.packings.int_quant import IntQuant
from weighbridge.tensors import nodes as n
from weighbridge.tensors.nodes import Node, QuantizedTensor

NAME: Final = "awq"
KEYS: Final = (".qweight",)
_PARTS: Final = MappingProxyType({m: f".{m}" for m in ("qweight", "qzeros", "scales")})
_BITS: Final = 4


def match(module: str, key: str, tensors: Nodes, config: Config) -> Found | None:
    """See `packings.base.Unpacker`."""
    parts = members(module, tensors, _PARTS)
    if "scales" not in parts or not _columns_are_packed(parts):
        return None
    version = str(settings(config).get("version") or "gemm").lower()
    if version != "gemm":
        raise UnsupportedError(
            f"{module} is in AWQ's {version} order, made for one kernel", hint="use the repository's GEMM files"
        )
    return Found(f"{module}.weight", _packed(module, parts), stored(module, tensors, _PARTS.values()))


def _columns_are_packed(parts: dict[str, Node]) -> bool:
    words, scales = parts["qweight"].spec.shape, parts["scales"].spec.shape
    return len(words) == len(scales) == 2 and words[1] != scales[1]


def _packed(module: str, parts: dict[str, Node]) -> QuantizedTensor:
    words, scales = parts["qweight"].spec, parts["scales"].spec
    inner, (groups, outer) = words.shape[0], scales.shape
    fits = (
        words.dtype is I32 and scales.dtype in (F16, BF16, F32) and groups and inner % groups == 0
        and words.shape[1] * 32 == outer * _BITS
        and ("qzeros" not in parts or (parts["qzeros"].spec.dtype, parts["qzeros"].spec.shape)
             == (I32, (groups, words.shape[1])))
    )  # fmt: skip
    need(bool(fits), module, "qweight, qzeros and scales don't belong together",
         "I32 [in, out / 8], I32 [groups, out / 8], floats [groups, out]", described(parts))  # fmt: skip
    nodes = {"codes": _codes(parts["qweight"], outer), "scales": n.transpose(parts["scales"])}
    if "qzeros" in parts:
        nodes["zeros"] = _codes(parts["qzeros"], outer)
    zero = None if "qzeros" in parts else 1 << (_BITS - 1)
    return QuantizedTensor(
        Spec((outer, inner), F32), IntQuant(NAME, 8, _BITS, inner // groups, scales.dtype, zero), nodes
    )


def _codes(words: Node, columns: int) -> Node:
    return n.transpose(n.codes(words, "awq", _BITS, columns))
