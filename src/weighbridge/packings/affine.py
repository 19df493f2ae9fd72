"""MLX affine quantization: a module P is stored as three tensors.

    P.weight  U32 [..., out, in*bits/32]   codes, a little-endian bit stream along the row
    P.scales  T   [..., out, in/group]     T is F16, BF16 or F32
    P.biases  T   [..., out, in/group]     (not to be confused with P.bias, an ordinary linear bias)

    value = scale * code + bias            the scale may be negative

Source: mlx/backend/cpu/quantized.cpp (0.32), mlx.nn.QuantizedLinear. MLX computes the value in T; here it is computed
in F32, which rounds less. Bits and group follow from the shapes up to their product; the config settles the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import BF16, F16, F32, Q4_1, U32, DType
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.base.spec import Spec
from weighbridge.tensors import kernels
from weighbridge.tensors.kinds import Bytes
from weighbridge.tensors.nodes import Node, Packed, cast

NAME: Final = "mlx-affine"
BITS: Final = (2, 3, 4, 5, 6, 8)
GROUPS: Final = (32, 64, 128)
_SCALES: Final = (F16, BF16, F32)
_ROWS: Final = MappingProxyType({"weight": 1, "scales": 1, "biases": 1})


@dataclass(frozen=True)
class Affine:
    """The parameters of one tensor's affine quantization. Two tensors join only where these are equal."""

    bits: int
    group: int
    scale_dtype: DType
    name: str = field(default=NAME, init=False)

    @property
    def row_map(self) -> Mapping[str, int]:
        return _ROWS

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        kernels.affine_decode(
            self.bits, self.group, self.scale_dtype, parts["weight"], parts["scales"], parts["biases"], out
        )

    def transcode(self, spec: Spec, dtype: DType, parts: Mapping[str, Bytes], out: Bytes) -> None:
        """To Q4_1 (f16 d, f16 m, 16 bytes of nibbles): the same codes in ggml's order, scale and bias once a block.
        Exact only where every scale and bias is an f16 number: see `exact`."""
        blocks = out.reshape(-1, Q4_1.size)
        repeat = self.group // Q4_1.block
        for at, part in ((0, parts["scales"]), (2, parts["biases"])):
            blocks[:, at : at + 2] = np.repeat(_as_f16(self.scale_dtype, part).reshape(-1, 2), repeat, axis=0)
        pairs = parts["weight"].reshape(-1, 16)  # byte k: code 2k low, 2k+1 high; ggml: code j low, j+16 high
        codes = np.empty((len(pairs), 32), np.uint8)
        codes[:, 0::2], codes[:, 1::2] = pairs & 15, pairs >> 4
        blocks[:, 4:] = codes[:, :16] | (codes[:, 16:] << 4)


def _as_f16(dtype: DType, part: Bytes) -> Bytes:
    if dtype is F16:
        return part
    out = np.empty(len(part) // dtype.size * 2, np.uint8)
    kernels.cast(dtype, F16, part, out)
    return out


def exact(node: Packed, dtype: DType) -> bool:
    """True where `dtype` holds the very same parameters: a probe that reads the scales and biases, nothing else."""
    packing = node.packing
    if not isinstance(packing, Affine) or dtype is not Q4_1 or packing.bits != 4:
        return False
    return packing.scale_dtype is F16 or all(_fits_f16(node.members[m]) for m in ("scales", "biases"))


def _fits_f16(node: Node) -> bool:
    there_and_back = cast(cast(node, F16), node.spec.dtype)
    step = max(1, (1 << 20) // max(node.spec.row_bytes, 1))
    return all(
        np.array_equal(node.read(lo, hi), there_and_back.read(lo, hi))
        for lo in range(0, node.spec.rows, step)
        for hi in (min(lo + step, node.spec.rows),)
    )


def unpack(tensors: Mapping[str, Node], config: Mapping[str, Any]) -> Mapping[str, Node]:
    """See `packings.base.Unpacker`."""
    if ".scales\0" not in "\0".join((*tensors, "")):  # one search over all names: most models have none
        return tensors
    out: dict[str, Node] = {}
    taken: set[str] = set()
    for name in tensors:
        module = name.removesuffix(".weight")
        if name.endswith(".weight") and _is_group(tensors, module):
            out[name] = _packed(module, tensors, config)
            taken |= {f"{module}.scales", f"{module}.biases"}
        else:
            out[name] = tensors[name]
    return {name: node for name, node in out.items() if name not in taken}


def _is_group(tensors: Mapping[str, Node], module: str) -> bool:
    weight, scales = tensors[f"{module}.weight"], tensors.get(f"{module}.scales")
    if scales is None or weight.spec.dtype is not U32:
        return False
    if f"{module}.biases" not in tensors:
        raise UnsupportedError(
            f"{module}: packed weights with scales but no biases (MLX's mxfp4, mxfp8 or nvfp4 mode)",
            hint="convert it with MLX to affine or to float first",
        )
    return True


def _packed(module: str, tensors: Mapping[str, Node], config: Mapping[str, Any]) -> Packed:
    members = {m: tensors[f"{module}.{m}"] for m in _ROWS}
    weight, scales, biases = (members[m].spec for m in _ROWS)
    same = scales.shape == biases.shape and scales.dtype == biases.dtype and scales.shape[:-1] == weight.shape[:-1]
    if not same or len(weight.shape) < 2 or scales.dtype not in _SCALES or 0 in scales.shape:
        raise FormatError(
            "weight, scales and biases don't belong together", field=module,
            expected=f"scales and biases [{', '.join(map(str, weight.shape[:-1]))}, groups] of {_SCALES}",
            found=f"{weight}, {scales}, {biases}",
        )  # fmt: skip
    bits, group = _parameters(module, weight.shape[-1], scales.shape[-1], config)
    spec = Spec((*weight.shape[:-1], weight.shape[-1] * 32 // bits), F32)
    return Packed(spec, Affine(bits, group, scales.dtype), members)


def _parameters(module: str, words: int, groups: int, config: Mapping[str, Any]) -> tuple[int, int]:
    """Bits and group of a row of `words` u32 words in `groups` groups: bits * group = 32 * words / groups."""
    fits = [(b, g) for b in BITS for g in GROUPS if b * g * groups == 32 * words]
    told = _told(module, config)
    if told in fits:
        return told
    if len(fits) == 1:
        return fits[0]
    raise FormatError(
        f"{module}: bits and group size can't be told from {words} words in {groups} groups a row",
        expected=f"one of {fits} in config.json's quantization" if fits else "a whole number of groups",
        found=told if told != (0, 0) else "nothing",
    )


def _told(module: str, config: Mapping[str, Any]) -> tuple[int, int]:
    """What config.json says of a module; an override's null group size means MLX's default of 64."""
    top = config.get("quantization") or config.get("quantization_config") or {}
    own = top.get(module) if isinstance(top, Mapping) else None
    table = own if isinstance(own, Mapping) else top
    if not isinstance(table, Mapping):
        return 0, 0
    bits, group = table.get("bits", top.get("bits")), table.get("group_size", top.get("group_size"))
    return (bits if isinstance(bits, int) else 0), (group if isinstance(group, int) else 64 if bits else 0)
