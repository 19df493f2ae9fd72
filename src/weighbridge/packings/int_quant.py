"""Integer codes with an integer zero point: value = (code - zero) * scale, scale and zero shared by a group of columns.

GPTQ, AWQ, compressed-tensors and the int8 schemes have this form once their words are unpacked and arranged in rows of
outputs. (code - zero) is exact in F32, so a value is rounded once; the libraries compute in F16 or BF16.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from weighbridge.base.dtypes import DType
from weighbridge.base.records import dataclass
from weighbridge.base.spec import Spec
from weighbridge.packings import ggml_blocks
from weighbridge.tensors import kernels, np
from weighbridge.tensors.nodes.base import Bytes, Node

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class IntQuant:
    """The parameters of one tensor. Members:

        codes    the row's codes, a little-endian stream of `storage_bits` each (8: any type of one byte)
        scales   [rows, groups] of `scale_dtype`
        zeros    U8 [rows, groups], if `zero` is None; `shift` is added to them, modulo 2 ** `code_bits`
        g_idx    I32 [columns], if `ordered`: the group of each column

    `code_bits`: bits of a code, however many it is stored in. `signed`: bytes are two's complement; `zero` is relative
    to them plus 128.
    """

    name: str
    storage_bits: int
    code_bits: int
    group: int
    scale_dtype: DType
    zero: int | None
    shift: int = 0
    ordered: bool = False
    signed: bool = False

    @property
    def row_map(self) -> Mapping[str, int]:
        zeros = {"zeros": 1} if self.zero is None else {}
        return MappingProxyType({"codes": 1, "scales": 1, **zeros, **({"g_idx": 0} if self.ordered else {})})

    def decode(self, spec: Spec, parts: Mapping[str, Bytes], lo: int, hi: int, out: NDArray[np.float32]) -> None:
        codes, zeros = self.codes(parts), self.zeros(parts)
        if not self.ordered:
            kernels.affine_decode(
                self.storage_bits, self.group, self.scale_dtype, codes, parts["scales"], zeros, True, out
            )
            return
        if self.storage_bits != 8:
            codes = kernels.unpack_codes(self.storage_bits, codes)
        scales = kernels.widened(self.scale_dtype, parts["scales"])
        kernels.ordered_decode(codes, scales, zeros, parts["g_idx"].view(np.int32), out)

    def codes(self, parts: Mapping[str, Bytes]) -> Bytes:
        """The codes as stored; signed ones with 128 added."""
        return parts["codes"] ^ np.uint8(128) if self.signed else parts["codes"]

    def zeros(self, parts: Mapping[str, Bytes]) -> Bytes:
        """The zero point of each group, a byte each."""
        if self.zero is not None:
            return np.full(parts["scales"].nbytes // self.scale_dtype.size, self.zero, np.uint8)
        if not self.shift:
            return parts["zeros"]
        return (parts["zeros"] + np.uint8(self.shift)) & np.uint8((1 << self.code_bits) - 1)

    @property
    def parameters(self) -> tuple[str, ...]:
        return ("scales",)

    @property
    def blocks(self) -> tuple[DType, ...]:
        """By the range of code - zero: a group with its own zero point may need almost twice the codes."""
        if self.ordered:
            return ()
        top = (1 << self.code_bits) - 1
        if self.zero is None:
            return ggml_blocks.types_that_fit(-top, top, False, self.group)
        return ggml_blocks.types_that_fit(-self.zero, top - self.zero, False, self.group)

    def inexact(self, members: Mapping[str, Node], dtype: DType) -> str:
        return "" if ggml_blocks.fits_f16(members["scales"]) else f"its {self.scale_dtype} scales are not f16 numbers"

    def transcode(self, spec: Spec, dtype: DType, parts: Mapping[str, Bytes], out: Bytes) -> None:
        scales = ggml_blocks.to_f16_bytes(self.scale_dtype, parts["scales"])
        if dtype is ggml_blocks.Q2_0:
            ggml_blocks.of_stream(dtype, scales, self.group, self._codes_around_one(parts), out)
            return
        zeros = self.zeros(parts) ^ np.uint8(128 * self.signed)  # codes stay unchanged: differences are modulo 256
        kernels.join_blocks(dtype, self.storage_bits, self.group, parts["codes"], scales, zeros, out)

    def _codes_around_one(self, parts: Mapping[str, Bytes]) -> Bytes:
        """A stream of 2-bit codes in which 1 means zero."""
        codes = self.codes(parts)
        if (self.storage_bits, self.zero) == (2, 1):
            return codes
        if self.storage_bits != 8:
            codes = kernels.unpack_codes(self.storage_bits, codes)
        return kernels.pack_codes(2, codes + np.uint8(1) - np.repeat(self.zeros(parts), self.group))
