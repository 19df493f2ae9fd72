"""A packed matrix of each schema, module `m`, as its library stores it: random bytes in the right shapes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tests.packings import makers
from tests.packings.stored import of_numpy

from weighbridge.base.dtypes import BY_NAME, BY_NUMPY
from weighbridge.base.spec import Spec
from weighbridge.io.source import BytesSource
from weighbridge.packings.schema.base import PackingSchema
from weighbridge.packings.schema.registry import plugged
from weighbridge.tensors.nodes import Node, Stored

OUT, IN = 256, 512
Arrays = dict[str, tuple[NDArray[Any], str]]


class Example(NamedTuple):
    """Stored tensors, and the model's config."""

    tensors: Mapping[str, Node]
    config: Mapping[str, Any]


def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def raw(dtype: str, *shape: int, low: int = 0, high: int = 256) -> tuple[NDArray[Any], str]:
    """Random bytes of a tensor of small elements."""
    kind = {"U8": "u1", "I8": "i1"}.get(dtype, "u1")
    return rng().integers(low, high, shape, dtype=np.uint8).view(kind), dtype


def words(dtype: str, *shape: int) -> tuple[NDArray[Any], str]:
    return rng().integers(0, 1 << 32, shape, dtype=np.uint32).view({"U32": "<u4", "I32": "<i4"}[dtype]), dtype


def floats(dtype: str, *shape: int) -> tuple[NDArray[Any], str]:
    return rng().normal(size=shape).astype({"F16": "<f2", "F32": "<f4"}[dtype]), dtype


def numbers(*values: int) -> tuple[NDArray[Any], str]:
    return np.array(values, "<i8"), "I64"


def made(config: Mapping[str, Any] | None = None, /, **members: tuple[NDArray[Any], str]) -> Example:
    """Members by their names after `m.`; those of experts, after `m`."""
    return Example({_name(key): node(*member) for key, member in members.items()}, config or {})


def node(array: NDArray[Any], dtype: str) -> Node:
    """`TYPE:columns` for bytes of a type whose elements aren't bytes."""
    name, _, columns = dtype.partition(":")
    if not columns:
        return of_numpy(array, dtype)
    spec = Spec((*array.shape[:-1], int(columns)), BY_NAME[name])
    return Stored(spec, BytesSource(array.tobytes()), 0)


def _name(key: str) -> str:
    return f"m{key.removeprefix('experts')}" if key.startswith("experts") else f"m.{key}"


def fp8(ending: str, *scale: int, dtype: str = "F8_E4M3") -> Example:
    return made(**{"weight": raw(dtype, OUT, IN, high=120), ending: floats("F32", *scale)})


def bnb(kind: str) -> Example:
    state = json.dumps({"shape": [OUT, IN], "blocksize": 64}).encode()
    return made(**{"weight": raw("U8", OUT * IN // 2, 1), "weight.absmax": floats("F32", OUT * IN // 64),
                   "weight.quant_map": floats("F32", 16),
                   f"weight.quant_state.bitsandbytes__{kind}": (np.frombuffer(state, np.uint8), "U8")})  # fmt: skip


def comfy(settings: Mapping[str, Any], **members: tuple[NDArray[Any], str]) -> Example:
    return made(**members, comfy_quant=(np.frombuffer(json.dumps(settings).encode(), np.uint8), "U8"))


def aqlm(dtype: str, books: int, entries: int, high: int, wide: int) -> Example:
    """Indices are stored as signed numbers: those of the upper half as negative ones."""
    codes = rng().integers(0, entries, (OUT // high, IN // wide, books))
    codes[codes >= entries // 2] -= entries
    kind = {"I8": "i1", "I16": "<i2"}[dtype]
    return made(codes=(codes.astype(kind), dtype), codebooks=floats("F16", books, entries, high, wide),
                scales=floats("F16", OUT // high, 1, 1, 1))  # fmt: skip


def exl2(bits: int, outer: int = OUT, inner: int = IN) -> Example:
    groups = inner // 64
    return made(q_weight=words("I32", inner * bits // 32, outer), q_scale=words("I32", groups, outer // 8),
                q_scale_max=floats("F16", groups), q_groups=(np.zeros(2 * groups, "<i2"), "I16"),
                q_invperm=(np.arange(inner, dtype="<i2"), "I16"))  # fmt: skip


def exl3(bits: float, book: str = "", *, signs: bool = False, outer: int = OUT, inner: int = IN) -> Example:
    size = (inner // 16, outer // 16, int(16 * bits))
    tiles = rng().integers(-(1 << 15), 1 << 15, size).astype("<i2"), "I16"
    marker = {book: (np.array(1, "<i4"), "I32")} if book else {}
    if signs:
        su, sv = (rng().integers(-(1 << 15), 1 << 15, n // 16).astype("<i2") for n in (inner, outer))
        return made(trellis=tiles, su=(su, "I16"), sv=(sv, "I16"), **marker)
    return made(trellis=tiles, suh=floats("F16", inner), svh=floats("F16", outer), **marker)


def qtip(bits: int, outer: int = OUT, inner: int = IN) -> Example:
    tiles = rng().integers(-(1 << 15), 1 << 15, (inner * outer // 256, 16 * bits)).astype("<i2"), "I16"
    return made(trellis=tiles, SU=floats("F16", inner), SV=floats("F32", outer), rcp=numbers(0), tp_rank=numbers(8))


def gpt_oss(codes: str, scales: str) -> Example:
    return made(**{codes: raw("U8", 2, OUT, IN // 32, 16), scales: raw("U8", 2, OUT, IN // 32, low=110, high=140)})


def compressed(bits: int = 4, **more: tuple[NDArray[Any], str]) -> Example:
    config = {"quantization_config": {"config_groups": {"a": {"weights": {"num_bits": bits}}}}}
    return made(config, weight_packed=words("I32", OUT, IN * bits // 32), weight_scale=floats("F16", OUT, IN // 64),
                weight_shape=numbers(OUT, IN), **more)  # fmt: skip


def gptq(bits: int, **options: Any) -> Example:
    return Example(makers.gptq(bits, outer=OUT, inner=IN, **options).tensors, {})


MLX = {"quantization": {"bits": 4, "group_size": 64}}
SCALES = {"scales": floats("F16", OUT, IN // 64), "biases": floats("F16", OUT, IN // 64)}
#: Schema -> packed matrices of it.
EXAMPLES: dict[str, list[Callable[[], Example]]] = {
    "mlx-affine": [
        lambda: made(MLX, weight=words("U32", OUT, IN // 8), **SCALES),
        lambda: made({"quantization": {"bits": 3, "group_size": 64}}, weight=words("U32", OUT, IN * 3 // 32), **SCALES),
    ],
    "exl3": [
        *(partial(exl3, bits) for bits in (2, 3, 4, 6, 8)), partial(exl3, 4, "mcg"), partial(exl3, 5, "mul1"),
        partial(exl3, 3, signs=True),
    ],
    "gptq": [
        lambda: gptq(4), lambda: gptq(3), lambda: gptq(8, symmetric=True), lambda: gptq(5, stored_zero=0),
        lambda: gptq(4, order=True),
    ],
    "awq": [
        lambda: Example(makers.awq(outer=OUT, inner=IN).tensors, {}),
        lambda: Example(makers.awq(outer=OUT, inner=IN, zeros=False).tensors, {}),
    ],
    "ggml-nvfp4": [lambda: made(weight=(rng().integers(0, 100, (OUT, IN // 64 * 36), np.uint8), f"NVFP4:{IN}"),
                                scale=floats("F32", 1))],
    "mlx-fp4": [
        lambda: made(weight=words("U32", OUT, IN // 8), scales=raw("U8", OUT, IN // 32, low=110, high=140)),
        lambda: made(weight=words("U32", OUT, IN // 8), scales=raw("U8", OUT, IN // 16, low=40, high=80)),
    ],
    "gpt-oss_blocks": [lambda: gpt_oss("experts_blocks", "experts_scales")],
    "gpt-oss.blocks": [lambda: gpt_oss("blocks", "scales")],
    "compressed-fp4": [
        lambda: made(weight_packed=raw("U8", OUT, IN // 2), weight_scale=raw("F8_E4M3", OUT, IN // 16, high=100),
                     weight_global_scale=floats("F32", 1)),
        lambda: made(weight_packed=raw("U8", OUT, IN * 3 // 4),
                     weight_scale=raw("U8", OUT, IN // 32, low=110, high=140)),
    ],
    "fp4.scale": [lambda: made(weight=raw("I8", OUT, IN // 2), scale=raw("F8_E8M0", OUT, IN // 32, low=110, high=140))],
    "modelopt-nvfp4": [lambda: made(weight=raw("U8", OUT, IN // 2),
                                    weight_scale=raw("F8_E4M3", OUT, IN // 16, high=100),
                                    weight_scale_2=floats("F32", 1), input_scale=floats("F32", 1))],
    "compressed-packed": [
        compressed, lambda: compressed(weight_zero_point=words("I32", OUT // 8, IN // 64)),
        lambda: compressed(weight_g_idx=(np.repeat(np.arange(IN // 64), 64).astype("<i4"), "I32")),
        lambda: compressed(3),
    ],
    "compressed-int8": [
        lambda: made(weight=raw("I8", OUT, IN), weight_scale=floats("F32", OUT, 1)),
        lambda: made(weight=raw("I8", OUT, IN), weight_scale=floats("F32", OUT, IN // 64),
                     weight_zero_point=raw("I8", OUT, IN // 64)),
    ],
    "hqq": [
        lambda: made(W_q=raw("U8", OUT * IN // 128, 64), scale=floats("F32", OUT * IN // 64, 1),
                     zero=floats("F32", OUT * IN // 64, 1), nbits=numbers(4), shape=numbers(OUT, IN)),
        lambda: made(W_q=words("I32", -(-OUT * IN // 64 // 10), 64), scale=floats("F32", OUT * IN // 64, 1),
                     zero=floats("F32", OUT * IN // 64, 1), nbits=numbers(3), shape=numbers(OUT, IN)),
    ],
    "bitnet": [lambda: Example(makers.bitnet(outer=OUT, inner=IN).tensors,
                               {"quantization_config": {"quant_method": "bitnet"}})],
    "fp8.weight_scale_inv": [lambda: fp8("weight_scale_inv", OUT // 128, IN // 128)],
    "fp8.weight_scale": [
        lambda: fp8("weight_scale", OUT, 1), lambda: fp8("weight_scale", 1),
        lambda: fp8("weight_scale", OUT // 128, IN // 128, dtype="F8_E4M3FNUZ"),
    ],
    "comfy-quant": [
        lambda: comfy({"format": "float8_e4m3fn"}, weight=raw("F8_E4M3", OUT, IN, high=120),
                      weight_scale=floats("F32")),
        lambda: comfy({"format": "mxfp8"}, weight=raw("F8_E4M3", OUT, IN, high=120),
                      weight_scale=raw("U8", -(-OUT // 128) * 128, -(-IN // 128) * 4, low=110, high=140)),
        lambda: comfy({"format": "int8_tensorwise"}, weight=raw("I8", OUT, IN), weight_scale=floats("F32", OUT, 1)),
        lambda: comfy({"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 64},
                      weight=raw("I8", OUT, IN), weight_scale=floats("F32", OUT, 1)),
        lambda: comfy({"format": "nvfp4"}, weight=raw("U8", OUT, IN // 2),
                      weight_scale=raw("F8_E4M3", -(-OUT // 128) * 128, -(-IN // 64) * 4, high=120),
                      weight_scale_2=floats("F32")),
        lambda: comfy({"format": "convrot_w4a4", "convrot_groupsize": 64}, weight=raw("I8", OUT, IN // 2),
                      weight_scale=floats("F32", OUT)),
        lambda: comfy({"format": "awq_w4a16"}, weight=raw("I8", OUT, IN // 2),
                      weight_scale=floats("F16", IN // 64, OUT), weight_zeros=floats("F16", IN // 64, OUT)),
    ],
    "comfy-svdquant.weight_proj_down": [
        lambda: comfy({"format": "svdquant_w4a4"}, weight=raw("I8", OUT, IN // 2),
                      weight_scale=floats("F32", IN // 64, OUT), weight_smooth_factor=floats("F32", IN),
                      weight_proj_down=floats("F32", IN, 4), weight_proj_up=floats("F32", OUT, 4)),
    ],
    "comfy-svdquant.proj_down": [
        lambda: comfy({"format": "svdquant_w4a4"}, weight=raw("I8", OUT // 128, IN // 64, 32, 128),
                      weight_scale=floats("F16", OUT // 128, IN // 64, 128), smooth_factor=floats("F16", IN),
                      proj_down=floats("F16", IN, 4), proj_up=floats("F16", OUT // 128, 4, 128)),
    ],
    "comfy-nvfp4": [
        lambda: comfy({"format": "nvfp4"}, weight=raw("U8", OUT, IN // 2), weight_scale_2=floats("F32"),
                      weight_scale=raw("F8_E4M3", -(-OUT // 128) * 128, -(-IN // 64) * 4, high=120)),
    ],
    "comfy-w4a8": [
        lambda: comfy({"format": "asym_w4a8_int8", "convrot_groupsize": 64}, weight=raw("I8", OUT, IN // 2),
                      weight_s_rel=raw("F8_E4M3", OUT, IN // 16, high=120), weight_s_channel=floats("F32", OUT),
                      weight_codebook=floats("F32", 16)),
    ],
    "fp8.scale_weight": [lambda: fp8("scale_weight", 1)],
    "fp8.qscale_weight": [lambda: fp8("qscale_weight", 1)],
    "fp8.scale": [lambda: fp8("scale", OUT // 128, IN // 128)],
    "fp8-experts": [lambda: made(experts=raw("F8_E4M3", 2, OUT, IN, high=120),
                                 experts_scale_inv=floats("F32", 2, OUT // 128, IN // 128))],
    "mlx-fp8": [lambda: made(weight=raw(f"U32:{IN // 4}", OUT, IN, high=120),
                             scales=raw("U8", OUT, IN // 32, low=110, high=140))],
    "bnb-nf4": [lambda: bnb("nf4")],
    "bnb-fp4": [lambda: bnb("fp4")],
    "bnb-int8": [lambda: made(weight=raw("I8", OUT, IN), SCB=floats("F32", OUT))],
    "torchao-int": [
        lambda: made(_weight_qdata=raw("I8", OUT, IN), _weight_scale=floats("F32", OUT, 1)),
        lambda: made(_weight_qdata=raw("I8", OUT, IN), _weight_scale=floats("F32", OUT, IN // 64),
                     _weight_zero_point=raw("I8", OUT, IN // 64)),
    ],
    "torchao-fp4": [lambda: made(_weight_qdata=raw("U8", OUT, IN // 2),
                                 _weight_scale=raw("F8_E4M3", OUT, IN // 16, high=100))],
    "torchao-fp8": [lambda: made(_weight_qdata=raw("F8_E4M3", OUT, IN, high=120), _weight_scale=floats("F32", OUT, 1))],
    "aqlm": [
        lambda: aqlm("I8", 2, 256, 1, 8), lambda: aqlm("I16", 1, 4096, 1, 8), lambda: aqlm("I16", 1, 1024, 2, 4),
        lambda: aqlm("I8", 1, 128, 1, 16),
    ],
    "toy": [lambda: made(toy_codes=raw("U8", OUT, IN), toy_scale=floats("F32", OUT, 1))],
    "strips": [lambda: made(strip_codes=raw("U8", IN // 2, OUT), strip_scale=floats("F16", IN // 32, OUT),
                            strip_zero=raw("U8", 1, OUT, high=16))],
}  # fmt: skip

#: Schema -> packed matrices of it (rows and columns are arguments), and the bits of a code. They are recognised and
#: counted, not decoded.
UNDECODED: dict[str, list[tuple[Callable[..., Example], int]]] = {
    "exl2": [(partial(exl2, bits), bits) for bits in (2, 4, 8)],
    "qtip": [(partial(qtip, bits), bits) for bits in (2, 3, 4)],
}


def of_plugin(schema: PackingSchema) -> Example:
    """The example of an installed plug-in: its reader's `example()` returns stored arrays by name, of a module `m`."""
    example = getattr(import_module(schema.reader), "example", None)
    assert example, f"{schema.reader} has no function example(): see docs/extending.md"
    return Example({name: of_numpy(array, BY_NUMPY[str(array.dtype)].name) for name, array in example().items()}, {})


EXAMPLES |= {schema.name: [partial(of_plugin, schema)] for schema in plugged()}
