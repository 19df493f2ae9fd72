"""The same codes and parameters laid otherwise, in plain numpy: ggml's blocks, which hold both, and the parts that MLX
stores, codes as one bit stream and beside it a scale, and a bias, for each group. Nothing is quantized again. See
`reference.py`; drawings of the blocks are in native/.

    split(name, blocks) -> codes, scales, biases        join(name, bits, group, codes, scales, offsets) -> blocks
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weighbridge.tensors.reference.kquants_encode import unpack_q4_scales
from weighbridge.tensors.reference.lowbit import crumbs, trits
from weighbridge.tensors.reference.simple import (
    Bytes,
    Floats,
    fifth_bits,
    half,
    narrow,
    nibbles,
    pack_5bit,
    pack_codes,
    pack_nibbles,
    quiet,
    unpack_codes,
)

Ints = NDArray[np.int32]
# Blocks [n, size] -> scales and biases [n, groups], as f32 or the very bytes; of FP4 no biases.
Parameters = Callable[[Bytes], tuple[NDArray[Any], NDArray[Any] | None]]


class Form(NamedTuple):
    """A block type: its elements and bytes; bits of a code in the stream, elements that share parameters, the type of
    these; its codes [n, elements], as far above zero as its own lie below; its parameters."""

    elements: int
    size: int
    bits: int
    group: int
    parameter: str
    codes: Callable[[Bytes], NDArray[Any]]
    parameters: Parameters
    # codes [n, elements] of the stream -> what follows the parameters in a block; None: isn't offered
    stored: Callable[[Ints], Bytes] | None = None
    zero: int = 0  # the code of the stream that means zero, where the type has no minimum

    @property
    def minimum(self) -> bool:
        return self.parameter == "F16" and not self.zero


def _with_offset(zero: int) -> Parameters:
    """d at the start of a block; value = d * (code - zero), of which -d * zero is the bias."""

    def parameters(block: Bytes) -> tuple[NDArray[Any], Floats]:
        with quiet():
            return block[:, :2], half(block[:, :2]) * np.float32(-zero)

    return parameters


def _negated(block: Bytes) -> Bytes:
    return block[:, :2] ^ np.array([0, 0x80], np.uint8)


def _both_signs(block: Bytes) -> tuple[Floats, Bytes]:
    """d for a set bit, -d for another: 2 * d * bit - d."""
    with quiet():
        return half(block[:, :2]) * np.float32(2), _negated(block)


def _around_one(block: Bytes) -> tuple[Bytes, Bytes]:
    """d * (code - 1)."""
    return block[:, :2], _negated(block)


def _with_minimum(block: Bytes) -> tuple[Bytes, Bytes]:
    """d and m at the start."""
    return block[:, :2], block[:, 2:4]


def _of_super_block(block: Bytes) -> tuple[Floats, Floats]:
    """Q4_K, Q5_K: products of an f16 and 6 bits."""
    scales, minima = unpack_q4_scales(block[:, 4:16])
    with quiet():
        return half(block[:, :2]) * scales.astype(np.float32), -half(block[:, 2:4]) * minima.astype(np.float32)


def _ternary(at: int) -> Parameters:
    """d * (code - 1), d at `at`, for both halves of a block."""

    def parameters(block: Bytes) -> tuple[Bytes, Bytes]:
        d = np.tile(block[:, at : at + 2], 2)
        return d, d ^ np.array([0, 0x80, 0, 0x80], np.uint8)

    return parameters


def _crumbs(block: Bytes) -> NDArray[Any]:
    """TQ2_0: two runs of 32 bytes of four codes, 32 apart."""
    return crumbs(block[:, :64].reshape(-1, 2, 32)).reshape(len(block), -1)


def _stream(bits: int) -> Callable[[Bytes], Bytes]:
    return lambda block: unpack_codes(bits, block[:, 2:].reshape(-1)).reshape(len(block), -1)


def _super_codes(at: int) -> Callable[[Bytes], NDArray[Any]]:
    """32 bytes are 64 elements, low nibbles first; bit p of byte l is the fifth bit of element l of group p."""

    def codes(block: Bytes) -> NDArray[Any]:
        pairs = block[:, at:].reshape(-1, 4, 1, 32)
        found = np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 8, 32)
        if at > 16:
            found = found | (block[:, None, 16:at] >> np.arange(8, dtype=np.uint8)[:, None] & 1) << 4
        return found.reshape(len(block), -1)

    return codes


def _fives(at: int) -> Callable[[Bytes], NDArray[Any]]:
    """The fifth bits, then nibbles."""
    return lambda block: nibbles(block[:, at + 4 :]) | fifth_bits(block[:, at : at + 4])


def _nibble_parts(at: int, group: int) -> Callable[[Bytes], NDArray[Any]]:
    """Groups of nibbles in halves: byte j has element j low, and the one half a group on high."""

    def codes(block: Bytes) -> NDArray[Any]:
        parts = block[:, at:].reshape(-1, group // 2)
        return np.concatenate([parts & 15, parts >> 4], axis=1).reshape(len(block), -1)

    return codes


def _in_halves(group: int) -> Callable[[Ints], Bytes]:
    def stored(codes: Ints) -> Bytes:
        parts = codes.reshape(-1, 2, group // 2)
        return (parts[:, 0] | parts[:, 1] << 4).astype(np.uint8).reshape(len(codes), -1)

    return stored


def _bytes_of(codes: Ints) -> Bytes:
    """Two's complement of code - 128."""
    return (codes & 255).astype(np.uint8) ^ np.uint8(128)


def _nibbles_of(codes: Ints) -> Bytes:
    return pack_nibbles(codes & 15)


def _fives_of(codes: Ints) -> Bytes:
    return pack_5bit(codes & 31)


def _leading(count: int) -> Parameters:
    """Bytes at the start of a block."""
    return lambda block: (block[:, :count], None)


FORMS: Final = MappingProxyType(
    {
        "Q1_0": Form(128, 18, 1, 128, "F16", _stream(1), _both_signs),
        "Q2_0": Form(64, 18, 2, 64, "F16", _stream(2), _around_one),
        "Q4_0": Form(32, 18, 4, 32, "F16", lambda b: nibbles(b[:, 2:]), _with_offset(8), _nibbles_of, 8),
        "Q4_1": Form(32, 20, 4, 32, "F16", lambda b: nibbles(b[:, 4:]), _with_minimum, _nibbles_of),
        "Q5_0": Form(32, 22, 5, 32, "F16", _fives(2), _with_offset(16), _fives_of, 16),
        "Q5_1": Form(32, 24, 5, 32, "F16", _fives(4), _with_minimum, _fives_of),
        "Q8_0": Form(32, 34, 8, 32, "F16", lambda b: b[:, 2:] ^ np.uint8(128), _with_offset(128), _bytes_of, 128),
        "TQ1_0": Form(256, 54, 2, 128, "F16", trits, _ternary(52)),
        "TQ2_0": Form(256, 66, 2, 128, "F16", _crumbs, _ternary(64)),
        "Q4_K": Form(256, 144, 4, 32, "F32", _super_codes(16), _of_super_block),
        "Q5_K": Form(256, 176, 5, 32, "F32", _super_codes(48), _of_super_block),
        "MXFP4": Form(32, 17, 4, 32, "F8_E8M0", _nibble_parts(1, 32), _leading(1), _in_halves(32)),
        "NVFP4": Form(64, 36, 4, 16, "F8_E4M3", _nibble_parts(4, 16), _leading(4), _in_halves(16)),
    }
)  # fmt: skip


def split(name: str, src: Bytes) -> tuple[Bytes, Bytes, Bytes]:
    """The codes as a stream, scales and biases (of FP4 none) in the form's type."""
    form = FORMS[name]
    block = src.reshape(-1, form.size)
    codes = pack_codes(form.bits, form.codes(block).astype(np.uint8).reshape(-1))
    scales, biases = (np.empty(0, np.uint8) if x is None else np.ascontiguousarray(x) for x in form.parameters(block))
    return codes, _kept(form, scales), _kept(form, biases)


def _kept(form: Form, parameters: NDArray[Any]) -> Bytes:
    flat = parameters.reshape(-1)
    return flat if flat.dtype == np.uint8 else narrow(form.parameter, flat).view(np.uint8)


def join(name: str, bits: int, group: int, codes: Bytes, scales: Bytes, offsets: Bytes) -> Bytes:
    """Blocks of codes of `bits` bits in groups of `group`. `scales` are of the form's type; `offsets` its minima, or a
    zero point of a byte for each group, or nothing (FP4)."""
    form, found = FORMS[name], unpack_codes(bits, codes).astype(np.int32)
    assert form.stored is not None
    if form.zero:
        found += form.zero - np.repeat(offsets.astype(np.int32), group)
    width = scales.size * group // found.size  # bytes of a parameter
    parameters = [scales.reshape(-1, width), *([offsets.reshape(-1, 2)] if form.minimum else [])]
    if group > form.elements:
        parameters = [np.repeat(x, group // form.elements, axis=0) for x in parameters]
    count = found.size // form.elements
    parts = [x.reshape(count, -1) for x in parameters]
    return np.concatenate([*parts, form.stored(found.reshape(count, -1))], axis=1).reshape(-1)
