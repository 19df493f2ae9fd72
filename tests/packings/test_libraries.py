"""Every scheme packed by its own library on the CPU, read by us to the very values that the library reads."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.packings.stored import members, of_numpy, of_torch, values
from tests.unpacked import unpack

from weighbridge.base.dtypes import BY_NAME
from weighbridge.packings import mlx_affine_bridge
from weighbridge.packings.write import packers
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import LogicalTensor, Node, QuantizedTensor, pack, transcode

for _library in ("torch", "compressed_tensors", "bitsandbytes", "hqq", "aqlm"):
    if os.environ.get("CI") != "true" and importlib.util.find_spec(_library) is None:
        pytest.skip(
            f"PACKINGS WERE NOT PROVED: no {_library}; install requirements/oracles.txt", allow_module_level=True
        )

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")

pytestmark = pytest.mark.oracle
Tensor = Any


def weight(rows: int = 96, columns: int = 128, seed: int = 1) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def only(tensors: Mapping[str, Node], config: Mapping[str, Any] | None = None) -> LogicalTensor:
    """The one logical tensor that all stored ones make."""
    found = dict(unpack(tensors, config or {}))
    assert list(found) == ["m.weight"]
    return found["m.weight"]


def equal(node: LogicalTensor, want: Tensor) -> None:
    np.testing.assert_array_equal(values(node), want.float().numpy())
    rows = node.spec.rows
    for lo, hi in ((0, 1), (rows // 3, rows // 2 + 1), (rows - 1, rows)):  # streamed, it is the same
        part = nodes.decode(node).read(lo, hi).view(np.float32)
        np.testing.assert_array_equal(part, want.float().numpy().reshape(rows, -1)[lo:hi].reshape(-1))


# ------------------------------------------------------------------------------------------------ bitsandbytes


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize(("columns", "block"), [(128, 64), (128, 128), (1024, 256)])
def test_bitsandbytes_four_bits(kind: str, nested: bool, columns: int, block: int) -> None:
    from bitsandbytes import functional as bnb

    codes, state = bnb.quantize_4bit(weight(128, columns), quant_type=kind, compress_statistics=nested, blocksize=block)
    tensors = {"weight": codes} | {f"weight.{k}": v for k, v in state.as_dict(packed=True).items()}
    equal(only(members("m", tensors)), bnb.dequantize_4bit(codes, state))


def test_bitsandbytes_blocks_that_cross_rows() -> None:
    """Its AVX-512 kernel (0.50.2) starts a block with every row, though it quantized the flat matrix: its values are
    further from the weights than ours. Without AVX-512 it decodes as we do."""
    from bitsandbytes import functional as bnb

    codes, state = bnb.quantize_4bit(weight(128, 96), quant_type="nf4", blocksize=64)
    tensors = {"weight": codes} | {f"weight.{k}": v for k, v in state.as_dict(packed=True).items()}
    node = only(members("m", tensors))
    high, low = state.code[(codes.reshape(-1) >> 4).long()], state.code[(codes.reshape(-1) & 15).long()]
    equal(node, (torch.stack([high, low], 1).reshape(-1, 64) * state.absmax[:, None]).reshape(128, 96))
    ours, theirs = torch.from_numpy(values(node)), bnb.dequantize_4bit(codes, state)
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        assert (theirs - weight(128, 96)).abs().mean() > 2 * (ours - weight(128, 96)).abs().mean()
    else:
        assert torch.equal(ours, theirs)


def test_bitsandbytes_four_bits_in_another_storage_type() -> None:
    from bitsandbytes import functional as bnb

    codes, state = bnb.quantize_4bit(weight(), quant_type="nf4", quant_storage=torch.bfloat16)
    tensors = {"weight": codes} | {f"weight.{k}": v for k, v in state.as_dict(packed=True).items()}
    equal(only(members("m", tensors)), bnb.dequantize_4bit(codes, state))


def test_bitsandbytes_int8() -> None:
    from bitsandbytes import functional as bnb

    codes, scales, _ = bnb.int8_vectorwise_quant(weight().half())
    tensors = {"weight": codes, "SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    equal(only(members("m", tensors)), bnb.int8_vectorwise_dequant(codes, scales))


# ------------------------------------------------------------------------------------------------ HQQ


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("bits", [8, 6, 5, 4, 3, 2, 1])
def test_hqq(bits: int, axis: int) -> None:
    from hqq.core.quantize import Quantizer

    packed, meta = Quantizer.quantize(
        weight(64, 256), nbits=bits, group_size=64, axis=axis, device="cpu", compute_dtype=torch.float32
    )
    tensors = {"W_q": packed, "scale": meta["scale"], "zero": meta["zero"], "axis": torch.tensor(axis)}
    tensors |= {"nbits": torch.tensor(meta["nbits"]), "shape": torch.tensor(list(meta["shape"]))}
    tensors["compute_dtype"] = torch.frombuffer(bytearray(b"__import__('os')"), dtype=torch.uint8)  # never looked at
    equal(only(members("m", tensors)), Quantizer.dequantize(packed, meta))


# ------------------------------------------------------------------------------------------------ compressed-tensors

Scheme = dict[str, Any]


def compressed(
    form: str, weights: Scheme, scale: Tensor, zero: Tensor | None = None, **more: Tensor
) -> tuple[Any, Any]:
    """(stored tensors, the library's own float weight)."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    compressor = BaseCompressor.get_value_from_registry(form)
    tensors = {
        "weight": weight(),
        "weight_scale": scale,
        **({} if zero is None else {"weight_zero_point": zero}),
        **more,
    }
    stored = compressor.compress(tensors, scheme)
    return {k: v for k, v in stored.items() if v is not None}, compressor.decompress(stored, scheme)["weight"]


def _scales(groups: int, seed: int = 5, rows: int = 96) -> Tensor:
    return torch.rand(rows, groups, generator=torch.Generator().manual_seed(seed)) * 0.2 + 0.01


# The schemes of the published models: 2 codebooks of 256 entries, 1 of 65,536, and blocks across rows.
@pytest.mark.parametrize(("books", "bits", "high", "wide"), [(2, 8, 1, 8), (1, 16, 1, 8), (1, 12, 1, 16), (3, 8, 2, 4)])
def test_aqlm(books: int, bits: int, high: int, wide: int) -> None:
    from aqlm.inference import QuantizedLinear
    from aqlm.utils import _dequantize_weight, pack_int_data, unpack_int_data

    draw = torch.Generator().manual_seed(bits)
    linear = QuantizedLinear(128, 96, wide, high, books, bits, bias=False, dtype=torch.float16)
    codes = torch.randint(0, 2**bits, linear.codes.shape, generator=draw)
    linear.codes.data = pack_int_data(codes, bits)
    for part in (linear.codebooks, linear.scales):
        part.data = torch.randn(part.shape, generator=draw).half()
    want = _dequantize_weight(unpack_int_data(linear.codes, bits), linear.codebooks.float(), linear.scales.float())
    stored = {f"m.{name}": of_torch(part) for name, part in linear.state_dict().items()}
    equal(only(stored, {"quantization_config": {"quant_method": "aqlm", "nbits_per_codebook": bits}}), want)


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("group", [32, 128])
def test_compressed_tensors_pack_quantized(bits: int, group: int, symmetric: bool) -> None:
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": group}
    half = 1 << (bits - 1)
    zero = torch.randint(-half, half, (96, 128 // group), dtype=torch.int8, generator=torch.Generator().manual_seed(2))
    scale = _scales(128 // group)
    stored, want = compressed("pack-quantized", weights, scale, None if symmetric else zero)
    config = {"quantization_config": {"config_groups": {"group_0": {"weights": weights}}}}
    node = only(members("m", stored), config)
    equal(node, want)
    assert mlx_affine_bridge.as_affine(node) is None  # type: ignore[arg-type]  # products of such scales are no F32 numbers
    stored, want = compressed("pack-quantized", weights, scale.bfloat16().float(), None if symmetric else zero)
    bits_, group_, parts = mlx_affine_bridge.as_affine(only(members("m", stored), config))  # type: ignore[arg-type, misc]
    told = {"quantization": {"bits": bits_, "group_size": group_}}
    equal(only({f"m.{name}": part for name, part in parts.items()}, told), want)  # as MLX, every value


@pytest.mark.parametrize(("bits", "symmetric", "block"), [(4, True, "Q4_0"), (4, False, "Q5_0"), (8, True, "Q8_0")])
def test_compressed_tensors_in_blocks(bits: int, symmetric: bool, block: str) -> None:
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": 32}
    half = 1 << (bits - 1)
    zero = torch.randint(-half, half, (96, 4), dtype=torch.int8, generator=torch.Generator().manual_seed(2))
    stored, want = compressed("pack-quantized", weights, _scales(4).half().float(), None if symmetric else zero)
    config = {"quantization_config": {"config_groups": {"group_0": {"weights": weights}}}}
    node: Any = only(members("m", stored), config)
    assert str(node.packing.blocks[0]) == block
    assert not node.packing.inexact(node.members, node.packing.blocks[0])
    equal(nodes.transcode(node, node.packing.blocks[0]), want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_compressed_tensors_scales_of_16_bits(dtype: torch.dtype) -> None:
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "channel"}
    stored, want = compressed("pack-quantized", weights, _scales(1).to(dtype))
    node = only(members("m", stored))
    # The library computes in the type of the scales; in f32 the same numbers, rounded once.
    np.testing.assert_array_equal(torch.from_numpy(values(node)).to(dtype).float().numpy(), want.float().numpy())


@pytest.mark.parametrize("strategy", ["tensor", "channel", "group"])
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
def test_compressed_tensors_int8(strategy: str, symmetric: bool) -> None:
    weights = {"num_bits": 8, "type": "int", "symmetric": symmetric, "strategy": strategy}
    weights |= {"group_size": 64} if strategy == "group" else {}
    groups = {"tensor": 0, "channel": 1, "group": 2}[strategy]
    scale = _scales(groups) if groups else torch.tensor([0.031])
    zero = torch.randint(-128, 128, scale.shape, dtype=torch.int8, generator=torch.Generator().manual_seed(2))
    stored, want = compressed("naive-quantized", weights, scale, None if symmetric else zero)
    equal(only(members("m", stored)), want)


@pytest.mark.parametrize("strategy", ["tensor", "channel", "block"])
def test_compressed_tensors_float8(strategy: str) -> None:
    weights: Scheme = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy}
    weights |= {"block_structure": [32, 32]} if strategy == "block" else {}
    scale = {"tensor": torch.tensor([0.01]), "channel": _scales(1), "block": _scales(4, rows=3)}[strategy]
    stored, want = compressed("naive-quantized", weights, scale)
    equal(only(members("m", stored)), want)


def test_compressed_tensors_mxfp8() -> None:
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32}
    stored, want = compressed("mxfp8-quantized", weights, 2.0 ** torch.randint(-6, 3, (96, 4)))
    assert stored["weight_scale"].dtype is torch.uint8
    equal(only(members("m", stored)), want)


def test_compressed_tensors_mxfp4() -> None:
    weights = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32}
    stored, want = compressed("mxfp4-pack-quantized", weights, 2.0 ** torch.randint(-6, 3, (96, 4)))
    equal(only(members("m", stored)), want)


def test_compressed_tensors_nvfp4() -> None:
    weights = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}
    scale = (_scales(8) * 400).to(torch.float8_e4m3fn).float()
    stored, want = compressed("nvfp4-pack-quantized", weights, scale, weight_global_scale=torch.tensor([731.5]))
    node = only(members("m", stored))
    # It computes in bf16; with a global scale of one, every value is one of bf16.
    np.testing.assert_allclose(values(node), want.float().numpy(), rtol=2**-7)
    stored, want = compressed("nvfp4-pack-quantized", weights, scale, weight_global_scale=torch.tensor([1.0]))
    equal(only(members("m", stored)), want)


# ------------------------------------------------------------------------------------------------ MLX's float modes


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8", "nvfp4"])
def test_mlx_float_modes(mode: str) -> None:
    mx = pytest.importorskip("mlx.core")
    group, bits = {"mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}[mode]
    with mx.stream(mx.cpu):
        words, scales = mx.quantize(mx.array(weight().numpy()), group_size=group, bits=bits, mode=mode)
        want = mx.dequantize(words, scales, group_size=group, bits=bits, mode=mode).astype(mx.float32)
        stored = {"m.weight": of_numpy(np.array(words), "U32"), "m.scales": of_numpy(np.array(scales), "U8")}
    equal(only(stored), torch.from_numpy(np.array(want)))


@pytest.mark.parametrize(("mode", "dtype"), [("mxfp4", "MXFP4"), ("nvfp4", "NVFP4")])
def test_ggml_blocks_are_mlx_words_again(mode: str, dtype: str) -> None:
    """What MLX has made, as ggml's blocks, is taken apart to the same bytes, in slabs too."""
    mx = pytest.importorskip("mlx.core")
    with mx.stream(mx.cpu):
        words, scales = mx.quantize(mx.array(weight().numpy()), mode=mode)
    stored = {"m.weight": of_numpy(np.array(words), "U32"), "m.scales": of_numpy(np.array(scales), "U8")}
    node = only(stored)
    assert isinstance(node, QuantizedTensor)
    blocks = transcode(node, BY_NAME[dtype])
    parts = pack(blocks, packers.BlocksOf(BY_NAME[dtype]))
    for part, want in (("weight", np.array(words)), ("scales", np.array(scales))):
        assert parts[part].spec == stored[f"m.{part}"].spec
        rows = [parts[part].read(lo, lo + 1).tobytes() for lo in range(len(want))]
        assert b"".join(rows) == want.tobytes() == parts[part].read_all().tobytes()


# ------------------------------------------------------------------------------------------------ gpt-oss


def test_gpt_oss_experts() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(3)
    blocks = torch.randint(0, 256, (3, 64, 4, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(118, 132, (3, 64, 4), dtype=torch.uint8, generator=generator)
    want = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16).transpose(
        1, 2
    )  # it gives [experts, in, out]
    for names in (("_blocks", "_scales"), (".blocks", ".scales")):
        stored = {f"mlp.gate_up_proj{names[0]}": of_torch(blocks), f"mlp.gate_up_proj{names[1]}": of_torch(scales)}
        found = unpack(stored, {})
        assert list(found) == [f"mlp.gate_up_proj{names[0]}"]
        equal(found[f"mlp.gate_up_proj{names[0]}"], want)
