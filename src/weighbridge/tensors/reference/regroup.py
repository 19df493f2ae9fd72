"""Rearranges codes and parameters in plain numpy, between ggml's blocks, which contain both, and the parts that MLX
stores: codes as one bit stream, and a scale and a bias per group. Nothing is quantized again.

    split(name, blocks) -> codes, scales, biases        join(name, bits, group, codes, scales, offsets) -> blocks
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.base.dtypes import BY_BLOCK, BY_NAME
from weighbridge.tensors.reference.affine import pack_codes, unpack_codes
from weighbridge.tensors.reference.blocks32 import fifth_bits, nibbles, pack_fifth_bits, pack_nibbles
from weighbridge.tensors.reference.codec import pack, view
from weighbridge.tensors.reference.floats import Array, Bytes, Floats, half, ignore_fp_warnings, narrow
from weighbridge.tensors.reference.kquants_encode import unpack_q4_scales
from weighbridge.tensors.reference.lowbit import trits, two_bit_codes

Ints = NDArray[np.int32]
# Blocks [n] -> scales and biases [n, groups], in F32 or the stored type; FP4 has no biases.
Parameters = Callable[[Array], tuple[Array, Array | None]]


class RegroupForm(NamedTuple):
    """A block type: bits of a code in the stream, elements per parameter, the parameters' type, the codes [n,
    elements] shifted to be unsigned, and the parameters."""

    name: str
    bits: int
    group: int
    parameter: str
    codes: Callable[[Array], Array]
    parameters: Parameters
    # codes [n, elements] of the stream -> the fields that store them; None: not supported
    stored: Callable[[Ints], dict[str, Array]] | None = None
    zero: int = 0  # the stream's code for zero, if the type has no minimum

    @property
    def elements(self) -> int:
        return BY_NAME[self.name].block

    @property
    def minimum(self) -> bool:
        return self.parameter == "F16" and not self.zero


def _bits(scales: Array) -> Array:
    """f16 scales as words, so that NaN keep their payloads."""
    return np.ascontiguousarray(scales).view(np.uint16)


def _negated(d: Array) -> Array:
    return _bits(d) ^ np.uint16(0x8000)


def _with_offset(zero: int) -> Parameters:
    """d * (code - zero): the bias is -d * zero."""

    def parameters(blocks: Array) -> tuple[Array, Array]:
        with ignore_fp_warnings():
            return _bits(blocks["d"]), half(blocks["d"]) * np.float32(-zero)

    return parameters


def _both_signs(blocks: Array) -> tuple[Array, Array]:
    """d for a set bit, -d for a clear one: 2 * d * bit - d."""
    with ignore_fp_warnings():
        return half(blocks["d"]) * np.float32(2), _negated(blocks["d"])


def _around_one(blocks: Array) -> tuple[Array, Array]:
    """d * (code - 1)."""
    return _bits(blocks["d"]), _negated(blocks["d"])


def _with_minimum(blocks: Array) -> tuple[Array, Array]:
    return _bits(blocks["d"]), _bits(blocks["m"])


def _of_super_block(blocks: Array) -> tuple[Floats, Floats]:
    """Q4_K, Q5_K: products of an f16 and 6 bits."""
    scales, minima = unpack_q4_scales(blocks["scales"])
    with ignore_fp_warnings():
        d, least = half(blocks["d"]), -half(blocks["dmin"])
        return d * scales.astype(np.float32), least * minima.astype(np.float32)


def _ternary(blocks: Array) -> tuple[Array, Array]:
    """d * (code - 1) for both halves of a block."""
    return np.repeat(_bits(blocks["d"]), 2), np.repeat(_negated(blocks["d"]), 2)


def _tq2_0_codes(blocks: Array) -> Array:
    """Two runs of 32 bytes with four codes each; a byte's codes belong to every 32nd element."""
    return two_bit_codes(blocks["qs"].reshape(-1, 2, 32)).reshape(len(blocks), -1)


def _stream(bits: int) -> Callable[[Array], Array]:
    return lambda blocks: unpack_codes(bits, blocks["qs"].reshape(-1)).reshape(len(blocks), -1)


def _super_codes(blocks: Array) -> Array:
    """32 bytes are 64 elements, low nibbles first; bit p of byte l of `qh` is the fifth bit of element l of group p."""
    pairs = blocks["qs"].reshape(-1, 4, 1, 32)
    codes = np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 8, 32)
    if "qh" in (blocks.dtype.names or ()):
        codes = codes | (blocks["qh"][:, None] >> np.arange(8, dtype=np.uint8)[:, None] & 1) << 4
    return codes.reshape(len(blocks), -1)


def _fours(blocks: Array) -> Array:
    return nibbles(blocks["qs"])


def _fives(blocks: Array) -> Array:
    return nibbles(blocks["qs"]) | fifth_bits(blocks["qh"])


def _eights(blocks: Array) -> Array:
    """Two's complement of code - 128."""
    return blocks["qs"].view(np.uint8) ^ np.uint8(128)


def _nibble_parts(group: int) -> Callable[[Array], Array]:
    """Groups of nibbles in halves: byte j has element j low, and the one half a group on high."""

    def codes(blocks: Array) -> Array:
        parts = blocks["qs"].reshape(-1, group // 2)
        return np.concatenate([parts & 15, parts >> 4], axis=1).reshape(len(blocks), -1)

    return codes


def _in_halves(group: int) -> Callable[[Ints], dict[str, Array]]:
    def stored(codes: Ints) -> dict[str, Array]:
        parts = codes.reshape(-1, 2, group // 2)
        return {"qs": parts[:, 0] | parts[:, 1] << 4}

    return stored


def _fours_of(codes: Ints) -> dict[str, Array]:
    return {"qs": pack_nibbles(codes & 15)}


def _fives_of(codes: Ints) -> dict[str, Array]:
    return {"qh": pack_fifth_bits(codes), "qs": pack_nibbles(codes & 15)}


def _eights_of(codes: Ints) -> dict[str, Array]:
    return {"qs": (codes & 255).astype(np.uint8) ^ np.uint8(128)}


def _floats(field: str) -> Parameters:
    return lambda blocks: (blocks[field], None)


FORMS: Final = MappingProxyType(
    {
        form.name: form
        for form in (
            RegroupForm("Q1_0", 1, 128, "F16", _stream(1), _both_signs),
            RegroupForm("Q2_0", 2, 64, "F16", _stream(2), _around_one),
            RegroupForm("Q4_0", 4, 32, "F16", _fours, _with_offset(8), _fours_of, 8),
            RegroupForm("Q4_1", 4, 32, "F16", _fours, _with_minimum, _fours_of),
            RegroupForm("Q5_0", 5, 32, "F16", _fives, _with_offset(16), _fives_of, 16),
            RegroupForm("Q5_1", 5, 32, "F16", _fives, _with_minimum, _fives_of),
            RegroupForm("Q8_0", 8, 32, "F16", _eights, _with_offset(128), _eights_of, 128),
            RegroupForm("TQ1_0", 2, 128, "F16", trits, _ternary),
            RegroupForm("TQ2_0", 2, 128, "F16", _tq2_0_codes, _ternary),
            RegroupForm("Q4_K", 4, 32, "F32", _super_codes, _of_super_block),
            RegroupForm("Q5_K", 5, 32, "F32", _super_codes, _of_super_block),
            *(
                RegroupForm(
                    block.name,
                    row.bits,
                    row.group,
                    row.scale.name,
                    _nibble_parts(row.group),
                    _floats(block.fields[0].name),
                    _in_halves(row.group),
                )
                for block, row in BY_BLOCK.items()
            ),
        )
    }
)


def split(name: str, src: Bytes) -> tuple[Bytes, Bytes, Bytes]:
    """The codes as a stream, scales and biases (of FP4 none) in the form's type."""
    form, blocks = FORMS[name], view(name, src)
    codes = pack_codes(form.bits, form.codes(blocks).astype(np.uint8).reshape(-1))
    scales, biases = form.parameters(blocks)
    return codes, _stored(form, scales), _stored(form, biases)


def _stored(form: RegroupForm, parameters: Array | None) -> Bytes:
    """f32 in the form's dtype; stored bytes unchanged."""
    if parameters is None:
        return np.empty(0, np.uint8)
    flat = np.ascontiguousarray(parameters).reshape(-1)
    return (narrow(form.parameter, flat) if flat.dtype == np.float32 else flat).view(np.uint8)


def join(name: str, bits: int, group: int, codes: Bytes, scales: Bytes, offsets: Bytes) -> Bytes:
    """Blocks from codes of `bits` bits in groups of `group`. `scales` have the form's dtype; `offsets`: its minima,
    or one U8 zero point per group, or empty (FP4)."""
    form, unpacked = FORMS[name], unpack_codes(bits, codes).astype(np.int32)
    assert form.stored is not None
    if form.zero:
        unpacked += form.zero - np.repeat(offsets.astype(np.int32), group)
    scale, *minimum = BY_NAME[name].fields[: 2 if form.minimum else 1]
    repeats = max(1, group // form.elements)
    width = BY_NAME[form.parameter].size
    parameters = {scale.name: np.repeat(scales.reshape(-1, width), repeats, axis=0).reshape(-1)}
    parameters |= {f.name: np.repeat(offsets.reshape(-1, width), repeats, axis=0).reshape(-1) for f in minimum}
    typed = {key: x.view(np.float16) if form.parameter == "F16" else x for key, x in parameters.items()}
    return pack(name, **typed, **form.stored(unpacked.reshape(-1, form.elements)))
