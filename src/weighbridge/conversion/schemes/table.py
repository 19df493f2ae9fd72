"""The quantization schemes of model folders: how each reads quantized sources, rounds floats and stores codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from weighbridge.base.dtypes import F16, MXFP4, DType
from weighbridge.base.spec import Spec
from weighbridge.packings import canonical
from weighbridge.packings.canonical import IntQuantMatrix, MicroscaledMatrix, ScaledFloatMatrix
from weighbridge.packings.write import rounding, schemes
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import LogicalTensor, Node

Form = IntQuantMatrix | MicroscaledMatrix | ScaledFloatMatrix


class Settings(NamedTuple):
    """The parameters of one module; `group` 0: one group per row."""

    bits: int
    group: int
    symmetric: bool


class Scheme(NamedTuple):
    """A quantization scheme.

    `method`: its name in a config. `read`: converts a quantized tensor to the form that the scheme stores, or returns
    why it can't. `round`: rounds floats to that form. `write`: makes the stored tensors of a form, given whether the
    whole model is symmetric. `group`: columns that share a scale; 0: all of a row. `block`: rows and columns that do;
    `WHOLE`: all of a matrix. `takes`: the options that change it. `calibration`: the method that a text applies; "" if
    none does (`BY_TEXT`). `needs_text`: there is no other way.
    """

    method: str
    read: Callable[[LogicalTensor], Form | str]
    round: Callable[[str, Node, Scheme, DType, Node], Form]
    write: Callable[[Any, bool], schemes.Stored]
    bits: int
    group: int = 0
    symmetric: bool = True
    block: tuple[int, int] | None = None
    format: str = ""
    activations: Mapping[str, Any] | None = None
    takes: tuple[str, ...] = ()
    calibration: Literal["", "gptq", "awq", "smooth", "ranges"] = ""
    needs_text: bool = False

    def block_of(self, spec: Spec) -> tuple[int, int]:
        """Rows and columns of a matrix of 8-bit floats that share a scale."""
        rows, columns = spec.shape
        return (rows, columns) if self.block == WHOLE else self.block or (1, columns)


# ------------------------------------------------------------------------------------------------ rounding


def integer_rule(name: str, node: Node, scheme: Scheme, dtype: DType) -> rounding.RoundToIntQuant:
    """How a scheme of integers rounds a matrix whose weights have this type."""
    group = scheme.group or node.spec.shape[-1]
    rule, scales = (COMPRESSED, dtype) if scheme.method == COMPRESSED else ("gptq", F16)
    return rounding.RoundToIntQuant(rule, scheme.bits, group, scheme.symmetric, dtype, scales, name)


def _round_integers(name: str, node: Node, scheme: Scheme, dtype: DType, peak: Node) -> IntQuantMatrix:
    rule = integer_rule(name, node, scheme, dtype)
    parts = nodes.pack(node, rule)
    return IntQuantMatrix(scheme.bits, rule.group, parts["codes"], parts["scales"], parts.get("zeros"))


def _round_floats(name: str, node: Node, scheme: Scheme, dtype: DType, peak: Node) -> ScaledFloatMatrix:
    block = scheme.block_of(node.spec)
    rule = rounding.RoundToScaledFloat(block, node.spec.shape[-1], dtype, scheme.method == "fp8", name)
    if scheme.block == WHOLE:
        scale = nodes.pack(peak, rounding.E4M3Scale(dtype))["scale"]
        return ScaledFloatMatrix(block, nodes.pack_with_global(node, rule, scale)["weight"], scale)
    parts = nodes.pack(node, rule, block[0])
    return ScaledFloatMatrix(block, parts["weight"], parts["scales"])


def _round_microscaled(name: str, node: Node, scheme: Scheme, dtype: DType, peak: Node) -> MicroscaledMatrix:
    if scheme.group == MXFP4.group:
        parts = nodes.pack(node, rounding.RoundToMicroscaled(scheme.bits, dtype, name=name))
        return MicroscaledMatrix(scheme.bits, parts["codes"], parts["scales"], None)
    overall = nodes.pack(peak, rounding.GlobalScale(dtype))["overall"]
    wide = nodes.pack_with_global(node, rounding.RoundToMicroscaled(4, dtype, overall=True, name=name), overall)
    return MicroscaledMatrix(4, wide["codes"], wide["scales"], overall)


# ------------------------------------------------------------------------------------------------ the schemes

#: The block of a scheme with one scale per matrix.
WHOLE: Final = (0, 0)
#: The method of most schemes.
COMPRESSED: Final = "compressed-tensors"
_TOKEN: Final = MappingProxyType({"group_size": None, "strategy": "token"})
_INT: Final = partial(Scheme, COMPRESSED, canonical.int_quant, _round_integers, calibration="gptq")
_MX: Final = partial(Scheme, COMPRESSED, canonical.microscaled, _round_microscaled, schemes.microscaled)
_FP8: Final = partial(
    Scheme, COMPRESSED, canonical.scaled_float, _round_floats, schemes.scaled_float, 8, format="float-quantized"
)
_GROUPS: Final = ("group_size", "symmetric")
_GPTQ: Final = ("act_order", "damp")

#: Schemes: llm-compressor's presets in lower case, and the other methods.
SCHEMES: Final[Mapping[str, Scheme]] = MappingProxyType(
    {
        **{f"w{b}a16": _INT(schemes.packed, b, 128, format="pack-quantized", takes=_GROUPS) for b in range(2, 9)},
        "w8a8": _INT(
            schemes.int8,
            8,
            format="int-quantized",
            activations={"num_bits": 8, "type": "int", **_TOKEN},
            calibration="smooth",
        ),
        "fp8_dynamic": _FP8(activations={"num_bits": 8, "type": "float", **_TOKEN}),
        "fp8_block": _FP8(
            block=(128, 128), activations={"num_bits": 8, "type": "float", "group_size": 128, "strategy": "group"}
        ),
        "fp8_static": _FP8(
            block=WHOLE,
            calibration="ranges",
            needs_text=True,
            activations={
                "num_bits": 8,
                "type": "float",
                "group_size": None,
                "strategy": "tensor",
                "dynamic": False,
                "observer": "static_minmax",
            },
        ),
        "mxfp4a16": _MX(4, 32, format="mxfp4-pack-quantized"),
        "mxfp6a16": _MX(6, 32, format="mxfp6-pack-quantized"),
        "mxfp8a16": _MX(8, 32, format="mxfp8-quantized"),
        "nvfp4a16": _MX(4, 16, format="nvfp4-pack-quantized"),
        "gptq": Scheme(
            "gptq",
            canonical.int_quant,
            _round_integers,
            schemes.gptq,
            4,
            128,
            takes=("bits", *_GROUPS),
            calibration="gptq",
        ),
        "awq": Scheme(
            "awq",
            canonical.int_quant,
            _round_integers,
            schemes.awq,
            4,
            128,
            False,
            takes=("group_size",),
            calibration="awq",
        ),
        "fp8": Scheme("fp8", canonical.scaled_float, _round_floats, schemes.scaled_float_blocks, 8, block=(128, 128)),
    }
)
#: Use of a text -> the options that change it: GPTQ, alone or after the factors of AWQ or SmoothQuant; scales of
#: inputs, with weights rounded to nearest.
BY_TEXT: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"gptq": _GPTQ, "awq": _GPTQ, "smooth": (*_GPTQ, "smooth"), "ranges": ()}
)
#: Code widths that GPTQ's readers support.
GPTQ_BITS: Final = (2, 3, 4, 8)
