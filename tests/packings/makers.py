"""GPTQ and AWQ matrices, packed as their own tools pack them (a loop over words, the way AutoGPTQ and AutoAWQ do it),
and the values that the formula gives for them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tests.packings.stored import of_numpy

from weighbridge.tensors.nodes import Node

UnpackBits = NDArray[np.uint32]


class Made(NamedTuple):
    tensors: dict[str, Node]
    values: NDArray[np.float32]


def down(codes: NDArray[Any], bits: int) -> NDArray[np.int32]:
    """[in, out] -> words [in * bits / 32, out]: bit by bit, the low ones first."""
    stream = ((codes[:, None, :] >> np.arange(bits, dtype=np.uint32)[None, :, None]) & 1).reshape(-1, codes.shape[1])
    words = stream.reshape(-1, 32, codes.shape[1]).astype(np.uint64) << np.arange(32, dtype=np.uint64)[None, :, None]
    return words.sum(axis=1, dtype=np.uint64).astype(np.uint32).view(np.int32)


def planar(codes: UnpackBits, bits: int) -> NDArray[np.int32]:
    """GPTQModel's gptq_p: of 32 rows, the words of the low plane, then those of the next."""
    planes = {3: (2, 1), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1)}[bits]
    chunks = codes.reshape(-1, 32, codes.shape[1])
    out = []
    for chunk in chunks:
        at = 0
        for plane in planes:
            out.append(down((chunk >> at) & ((1 << plane) - 1), plane))
            at += plane
    return np.concatenate(out)


def gptq(
    bits: int, *, inner: int = 256, outer: int = 96, group: int = 64, stored_zero: int = 1, order: bool = False,
    symmetric: bool = False, spread: float = 0.1, seed: int = 1,
) -> Made:  # fmt: skip
    """`stored_zero`: what the format takes from a zero before storing it (1: format 1, 0: format 2)."""
    rng = np.random.default_rng(seed)
    groups, top = inner // group, 1 << bits
    pack = planar if bits in (5, 6, 7) else down
    codes = rng.integers(0, top, (inner, outer), np.uint32)
    zeros = (
        np.full((groups, outer), top // 2, np.uint32) if symmetric else rng.integers(0, top, (groups, outer), np.uint32)
    )
    scales = rng.normal(0, spread, (groups, outer)).astype(np.float16)
    g_idx = np.repeat(np.arange(groups), group).astype(np.int32)
    if order:
        g_idx = rng.permutation(g_idx)
    kept = (zeros - np.uint32(stored_zero)) & np.uint32(top - 1)
    tensors = {
        "m.qweight": of_numpy(pack(codes, bits), "I32"),
        "m.qzeros": of_numpy(np.ascontiguousarray(pack(kept.T.copy(), bits).T), "I32"),
        "m.scales": of_numpy(scales, "F16"),
        "m.g_idx": of_numpy(g_idx, "I32"),
    }
    levels = codes.astype(np.float32) - zeros[g_idx].astype(np.float32)
    return Made(tensors, np.ascontiguousarray((levels * scales.astype(np.float32)[g_idx]).T))


def awq(
    *, inner: int = 256, outer: int = 96, group: int = 64, zeros: bool = True, spread: float = 0.1, seed: int = 1
) -> Made:
    """Nibble n of a word has the output 8c + ORDER[n]."""
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, (inner, outer), np.uint32)
    zero = (
        rng.integers(0, 16, (inner // group, outer), np.uint32)
        if zeros
        else np.full((inner // group, outer), 8, np.uint32)
    )
    scales = rng.normal(0, spread, (inner // group, outer)).astype(np.float16)

    def pack(x: UnpackBits) -> NDArray[np.int32]:
        words = np.zeros((len(x), x.shape[1] // 8), np.uint32)
        for nibble, output in enumerate(order):
            words |= x[:, output::8] << np.uint32(4 * nibble)
        return words.view(np.int32)

    tensors = {"m.qweight": of_numpy(pack(codes), "I32"), "m.scales": of_numpy(scales, "F16")}
    if zeros:
        tensors["m.qzeros"] = of_numpy(pack(zero), "I32")
    widened = np.repeat(scales.astype(np.float32), group, axis=0)
    levels = codes.astype(np.float32) - np.repeat(zero.astype(np.float32), group, axis=0)
    return Made(tensors, np.ascontiguousarray((levels * widened).T))


def bitnet(*, inner: int = 256, outer: int = 96, divided: bool = True, scale: float = 8.0, seed: int = 1) -> Made:
    """Ternary weights as transformers' `pack_weights` packs them: the rows of a quarter in two bits of each byte, the
    first quarter's lowest. The scale is one number, `divided` by unless the class is `autobitlinear`."""
    codes = np.random.default_rng(seed).integers(0, 3, (outer, inner), np.uint8)
    quarters = codes.reshape(4, outer // 4, inner)
    packed = sum(quarter << np.uint8(2 * i) for i, quarter in enumerate(quarters))
    tensors = {
        "m.weight": of_numpy(np.asarray(packed, np.uint8), "U8"),
        "m.weight_scale": of_numpy(np.array([scale], np.float32), "F32"),
    }
    factor = np.float32(1) / np.float32(scale) if divided else np.float32(scale)
    return Made(tensors, (codes.astype(np.float32) - 1) * factor)
