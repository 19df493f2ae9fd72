"""bitsandbytes. A module P of W[out, in], 4 bits (nf4, fp4):

    P.weight                    U8 [n / 2, 1], or of another type with the same bytes: codes of the flat matrix, two a
                                byte, the first in the high nibble
    P.weight.quant_map          F32 [16]
    P.weight.absmax             F32 [n / blocksize], or of nested statistics U8 of the same length, and then
    P.weight.nested_quant_map   F32 [256], P.weight.nested_absmax F32 [blocks / nested_blocksize]
    P.weight.quant_state.bitsandbytes__nf4 (or __fp4)   U8: a JSON object with shape, blocksize, nested_offset ...

    value = quant_map[code] * absmax,   absmax = nested_quant_map[byte] * nested_absmax + nested_offset

and 8 bits:  P.weight I8 [out, in], P.SCB F32 [out], value = code * SCB * (1 / 127), as `int8_vectorwise_dequant`
computes it. FP4 here isn't E2M1: the map of the file is what counts. Source: bitsandbytes/functional.py (0.4x).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import BY_NAME, F32, U8
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.limits import MIB
from weighbridge.base.spec import Spec
from weighbridge.packings.base import Config, Found, NoBlockForm, Nodes, described, members, need, stored
from weighbridge.tensors import kernels
from weighbridge.tensors import nodes as n
from weighbridge.tensors.nodes import QuantizedTensor
from weighbridge.tensors.nodes.base import Bytes, Node

NAME: Final = "bitsandbytes"
_STATES: Final = (".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4")
KEYS: Final = (*_STATES, ".SCB")
_I8: Final = BY_NAME["I8"]
_PARTS: Final = MappingProxyType(
    {"codes": "", "absmax": ".absmax", "map": ".quant_map", "nested_absmax": ".nested_absmax",
     "nested_map": ".nested_quant_map"}
)  # fmt: skip
# As bitsandbytes spells 1 / 127, in f32.
_INVERSE: Final = np.float32(7.874015718698502e-3)


@dataclass(frozen=True)
class Bnb4Bit(NoBlockForm):
    """The parameters of a 4-bit tensor whose rows are whole blocks; `nested`: blocks that share a nested_absmax."""

    block: int
    nested: int = 0
    offset: float = 0.0
    name: str = field(default=NAME, init=False)
    bits: int = field(default=4, init=False)

    @property
    def row_map(self) -> Mapping[str, int]:
        own = {"codes": 1, "absmax": 1, "map": 0}
        return MappingProxyType(own | ({"nested_absmax": 0, "nested_map": 0} if self.nested else {}))

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        scales = self._absmax(parts, lo * spec.shape[-1] // self.block)
        kernels.table_decode(parts["map"].view(np.float32), self.block, parts["codes"], scales, out, high_first=True)

    def _absmax(self, parts: Mapping[str, Bytes], first: int) -> NDArray[np.float32]:
        if not self.nested:
            return parts["absmax"].view(np.float32)
        codes = parts["absmax"]
        at = np.arange(first, first + len(codes)) // self.nested
        found: NDArray[np.float32] = (
            parts["nested_map"].view(np.float32)[codes] * parts["nested_absmax"].view(np.float32)[at]
        )
        return found + np.float32(self.offset)


@dataclass(frozen=True)
class Bnb8Bit(NoBlockForm):
    """The parameters of an 8-bit tensor."""

    name: str = field(default=NAME, init=False)
    bits: int = field(default=8, init=False)

    @property
    def row_map(self) -> Mapping[str, int]:
        return MappingProxyType({"codes": 1, "scales": 1})

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        rows = out.reshape(hi - lo, -1)
        rows[:] = parts["codes"].view(np.int8).reshape(rows.shape)
        rows *= parts["scales"].view(np.float32)[:, None]
        rows *= _INVERSE


def match(module: str, key: str, tensors: Nodes, config: Config) -> Found | None:
    """See `packings.base.Unpacker`. In 4 bits `module` is the weight's own name."""
    if key == ".SCB":
        return _int8(module, tensors)
    nodes = members(module, tensors, _PARTS)
    node = _four_bits(module, nodes, tensors[module + key])
    return Found(module, node, stored(module, tensors, (*_PARTS.values(), key)))


def _int8(module: str, tensors: Nodes) -> Found | None:
    weight, scales = tensors.get(f"{module}.weight"), tensors[f"{module}.SCB"]
    if weight is None or weight.spec.dtype is not _I8:
        return None
    need(len(weight.spec.shape) == 2 and scales.spec.dtype is F32 and scales.spec.elements == weight.spec.rows, module,
         "SCB doesn't belong to the weight", "I8 [out, in] and F32 [out]", f"{weight.spec}, {scales.spec}")  # fmt: skip
    form = tensors.get(f"{module}.weight_format")
    need(form is None or not form.read_all().any(), module, "weight_format", "0 (rows)", "a tiled form for a GPU")
    nodes = {"codes": weight, "scales": n.reshape(scales, (weight.spec.rows, 1))}
    names = stored(module, tensors, (".weight", ".SCB", ".weight_format"))
    return Found(f"{module}.weight", QuantizedTensor(weight.spec.with_dtype(F32), Bnb8Bit(), nodes), names)


def _four_bits(name: str, nodes: dict[str, Node], state: Node) -> Node:
    told = _state(name, state)
    shape, block = told["shape"], told["blocksize"]
    elements = math.prod(shape)
    need({"codes", "absmax", "map"} <= set(nodes), name, "quant_state without its companions",
         "weight, absmax and quant_map", described(nodes))  # fmt: skip
    blocks = -(-elements // block)
    nested = told.get("nested_blocksize", 256) if "nested_absmax" in nodes else 0
    found = {m: x.spec.elements for m, x in nodes.items()} | {"codes": nodes["codes"].spec.nbytes}
    wanted = {"codes": -(-elements // 2), "absmax": blocks, "map": 16}
    wanted |= {"nested_absmax": -(-blocks // nested), "nested_map": 256} if nested else {}
    kinds = {m: (U8 if m == "absmax" and nested else F32) for m in wanted if m != "codes"}
    fits = found == wanted and all(nodes[m].spec.dtype is d for m, d in kinds.items())
    need(fits, name, "a 4-bit weight doesn't fit its shape", f"{wanted} for {list(shape)}", described(nodes))
    return _reshaped(nodes, tuple(shape), Bnb4Bit(block, nested, told.get("nested_offset", 0.0)))


def _reshaped(nodes: dict[str, Node], shape: tuple[int, ...], packing: Bnb4Bit) -> Node:
    """With rows that are whole blocks; a matrix whose blocks cross its rows is decoded as rows of one block."""
    elements, width = math.prod(shape), shape[-1]
    if width % packing.block and elements % packing.block:
        raise UnsupportedError("a 4-bit weight whose last block is short", hint="load and save it with bitsandbytes")
    columns = packing.block if width % packing.block else width
    rows = elements // columns
    spec = Spec((rows, columns) if columns != width else shape, F32)
    lead = spec.shape[:-1]
    nodes["codes"] = n.reshape(n.as_bytes(nodes["codes"]), (*lead, columns // 2))
    nodes["absmax"] = n.reshape(nodes["absmax"], (*lead, columns // packing.block))
    packed = QuantizedTensor(spec, packing, nodes)
    return packed if spec.shape == shape else n.reshape(n.decode(packed, "its blocks cross its rows"), shape)


def _state(name: str, node: Node) -> dict[str, Any]:
    """The JSON of a quant_state, checked."""
    need(node.spec.dtype is U8 and node.spec.nbytes < MIB, name, "quant_state is no text", "U8 [length]", node.spec)
    try:
        told = msgspec.json.decode(node.read_all().tobytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise FormatError(f"quant_state is no JSON: {error}", field=name) from None
    shape, block = told.get("shape"), told.get("blocksize")
    sound = (
        isinstance(shape, list) and shape and all(type(d) is int and d > 0 for d in shape)
        and type(block) is int and block > 0 and block % 16 == 0
        and type(told.get("nested_blocksize", 256)) is int and told.get("nested_blocksize", 256) > 0
        and isinstance(told.get("nested_offset", 0.0), int | float)
    )  # fmt: skip
    need(bool(sound), name, "quant_state lacks something", "shape, blocksize (and nested_*)", told)
    return told
