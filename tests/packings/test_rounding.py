"""What we round and pack is, byte for byte, what each library makes of the same weights, and it reads ours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.packings import rounded
from tests.packings.stored import of_torch, values
from tests.unpacked import unpack

from weighbridge.base.dtypes import F16, F32
from weighbridge.base.errors import RefusedError
from weighbridge.conversion.options import SchemeOptions
from weighbridge.conversion.schemes import plan as schemes
from weighbridge.conversion.schemes.plan import choose_scheme
from weighbridge.packings.canonical import MicroscaledMatrix
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import Node, walk
from weighbridge.tensors.nodes.compute import AbsMax

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch")

pytestmark = pytest.mark.oracle
Tensor = Any


def group(bits: int, size: int, symmetric: bool = True) -> dict[str, Any]:
    return {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": size}


def micro(bits: int) -> dict[str, Any]:
    return {"num_bits": bits, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": torch.uint8}


def small(strategy: str, **more: Any) -> dict[str, Any]:
    return {"num_bits": 8, "type": "float", "strategy": strategy, **more}


NVFP4: dict[str, Any] = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
                         "scale_dtype": torch.float8_e4m3fn, "zp_dtype": torch.float8_e4m3fn}  # fmt: skip

# Our scheme and its options -> the library's format and arguments.
CASES: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    **{f"w{b}a16": (f"w{b}a16", {"q_group_size": 32}, "pack-quantized", group(b, 32)) for b in range(2, 9)},
    **{f"w{b}a16 asymmetric": (f"w{b}a16", {"q_group_size": 64, "sym": False}, "pack-quantized",
                               group(b, 64, symmetric=False)) for b in range(2, 9)},
    "w4a16 a row": ("w4a16", {"q_group_size": -1}, "pack-quantized",
                    {"num_bits": 4, "type": "int", "strategy": "channel"}),
    "w8a8": ("w8a8", {}, "int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
    "fp8_dynamic": ("fp8_dynamic", {}, "float-quantized", small("channel")),
    "fp8_static": ("fp8_static", {}, "float-quantized", small("tensor")),
    "fp8_block": ("fp8_block", {}, "float-quantized", small("block", block_structure=[128, 128])),
    "mxfp4a16": ("mxfp4a16", {}, "mxfp4-pack-quantized", micro(4)),
    "mxfp6a16": ("mxfp6a16", {}, "mxfp6-pack-quantized", micro(6)),
    "mxfp8a16": ("mxfp8a16", {}, "mxfp8-quantized", micro(8)),
    "nvfp4a16": ("nvfp4a16", {}, "nvfp4-pack-quantized", NVFP4),
}  # fmt: skip
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def weights(dtype: Any, seed: int = 1, rows: int = 130, columns: int = 192) -> Tensor:
    """Normal ones; and among them groups of zeros, of one sign, tiny ones, ties."""
    w = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    w[0] = 0
    w[1] = w[1].abs() + 0.5
    w[2] = -w[2].abs()
    w[3] *= 2.0**-12
    w[4] = torch.arange(columns) % 15 - 7.0
    w[5] = (torch.arange(columns) % 33 - 16.0) / 4
    w[6, :64], w[6, 64:] = 0, 3.0
    return w.to(dtype)


def made(scheme: str, options: dict[str, Any], weight: Tensor) -> dict[str, Node]:
    """The stored tensors of one module, as the conversion makes them, by their names behind the module's."""
    how = choose_scheme(SchemeOptions(scheme=scheme, **options))
    node = of_torch(weight)
    form = how.round("m", nodes.cast(node, F32), how, node.spec.dtype, nodes.abs_max([node]))
    return {suffix.removeprefix("."): node for suffix, node in how.write(form, how.symmetric).items()}


def raw(tensor: Tensor) -> np.ndarray:
    return np.frombuffer(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(), np.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_compressed_tensors_makes_the_same(case: str, dtype: str) -> None:
    scheme, options, form, arguments = CASES[case]
    weight = weights(DTYPES[dtype])
    if case == "nvfp4a16" and dtype == "f16":
        weight *= 8  # the library's global scale overflows f16 for smaller peaks: see below
    want, value = rounded.compressed(form, arguments, weight)
    found = made(scheme, options, weight)
    assert sorted(found) == sorted(want)
    for name, tensor in want.items():
        assert found[name].spec.shape == tuple(tensor.shape), name
        np.testing.assert_array_equal(found[name].read_all(), raw(tensor), err_msg=name)
    node = unpack({f"m.{name}": part for name, part in found.items()}, {"quantization_config": {"config_groups": {
        "group_0": {"weights": {"num_bits": arguments["num_bits"]}}}}})["m.weight"]  # fmt: skip
    np.testing.assert_allclose(values(node), value.float().numpy(), rtol=2**-7, atol=0 if dtype != "f16" else 2**-24)


@pytest.mark.parametrize("case", CASES)
def test_a_part_is_the_part_of_the_whole(case: str) -> None:
    """Slabs of any rows, whatever blocks they cut."""
    scheme, options, _, _ = CASES[case]
    for name, node in made(scheme, options, weights(torch.bfloat16)).items():
        whole, width = node.read_all(), node.spec.row_bytes
        for lo, hi in ((0, 1), (node.spec.rows // 3, node.spec.rows // 2 + 1), (node.spec.rows - 1, node.spec.rows)):
            np.testing.assert_array_equal(node.read(lo, hi), whole[lo * width : hi * width], err_msg=name)


# ------------------------------------------------------------------------------------------------ GPTQModel's rule


def gptqmodel(weight: Tensor, bits: int, size: int, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(codes [out, in], scales, zeros) as GPTQModel 7.7 writes it down (quantization/quantizer.py, `find_params` and
    `quantize`), in torch."""
    x = weight.float().unflatten(-1, (-1, size))
    low, high = x.amin(-1).clamp(max=0), x.amax(-1).clamp(min=0)
    top = 2**bits - 1
    if symmetric:
        high = torch.maximum(low.abs(), high)
        low = torch.where(low < 0, -high, low)
    empty = high == 0 if symmetric else (low == 0) & (high == 0)
    low, high = torch.where(empty, low - 1, low), torch.where(empty, high + 1, high)
    scale = (high - low) / top
    zero = torch.full_like(scale, (top + 1) / 2) if symmetric else torch.round(-low / scale)
    codes = torch.clamp(torch.round(x / scale[..., None]) + zero[..., None], 0, top)
    return codes.flatten(1), scale, zero


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq_and_awq_round_as_gptqmodel_does(bits: int, symmetric: bool) -> None:
    weight = weights(torch.bfloat16, columns=128, rows=96)
    weight[0], weight[1] = weight[10], weight[11]  # neither empty nor of one sign: those we take otherwise, see below
    weight[6] = weight[12]
    codes, scale, zero = gptqmodel(weight, bits, 32, symmetric)
    found = made("gptq", {"q_bits": bits, "q_group_size": 32, "sym": symmetric}, weight)
    node = unpack({f"m.{name}": part for name, part in found.items()}, {"quantization_config": {
        "bits": bits, "checkpoint_format": "gptq" if symmetric else "gptq_v2"}})["m.weight"]  # fmt: skip
    spread = [t.repeat_interleave(32, dim=1) for t in (scale.half().float(), zero)]
    np.testing.assert_array_equal(values(node), ((codes - spread[1]) * spread[0]).numpy())
    if bits == 4 and not symmetric:
        awq = unpack({f"m.{n_}": p for n_, p in made("awq", {"q_group_size": 32}, weight).items()}, {})["m.weight"]
        np.testing.assert_array_equal(values(awq), values(node))


def test_a_group_of_one_sign_is_not_clipped() -> None:
    """GPTQModel's symmetric codes of a group without negative weights reach to 7 of 15 scales, and the rest is cut."""
    weight = weights(torch.float32, rows=8, columns=64)[1:2]
    codes, scale, zero = gptqmodel(weight, 4, 64, True)
    theirs = (codes - zero) * scale
    (parts,) = unpack({f"m.{n_}": p for n_, p in made("gptq", {"q_group_size": 64}, weight.expand(8, 64)).items()},
                      {"quantization_config": {"bits": 4}}).values()  # fmt: skip
    ours = values(parts)[:1]
    assert np.abs(ours - weight.numpy()).max() < 0.6 * weight.max().item() / 7.5
    assert (theirs - weight).abs().max() > weight.max() / 3


def test_nvfp4_of_a_small_f16_matrix() -> None:
    """The library's global scale overflows f16, so it takes 1, and the scales of groups become subnormal or zero."""
    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(4)).mul(0.002).half()
    _, theirs = rounded.compressed("nvfp4-pack-quantized", NVFP4, weight)
    found = made("nvfp4a16", {}, weight)
    ours = values(unpack({f"m.{name}": part for name, part in found.items()}, {})["m.weight"])
    want = weight.float().numpy()
    assert np.linalg.norm(theirs.float().numpy() - want) > 0.9 * np.linalg.norm(want)
    assert np.linalg.norm(ours - want) < 0.11 * np.linalg.norm(want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fp8_is_what_transformers_makes(dtype: str) -> None:
    from types import SimpleNamespace

    from transformers.integrations.finegrained_fp8 import Fp8Quantize

    weight = weights(DTYPES[dtype], rows=256, columns=384)
    told = SimpleNamespace(weight_block_size=(128, 128), scale_fmt="float")
    want = Fp8Quantize(SimpleNamespace(quantization_config=told)).convert({"m.weight": weight})
    found = made("fp8", {}, weight)
    assert {f"m.{name}" for name in found} == set(want)
    for name, tensor in want.items():
        np.testing.assert_array_equal(found[name.removeprefix("m.")].read_all(), raw(tensor), err_msg=name)


@pytest.mark.parametrize("scheme", ["w4a16", "gptq", "fp8", "fp8_dynamic", "mxfp4a16", "nvfp4a16"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_none_are_refused(scheme: str, value: float) -> None:
    weight = weights(torch.float32, rows=128, columns=128)
    weight[70, 3] = value
    for node in made(scheme, {}, weight).values():
        below = [x for x in nodes.walk(node) if isinstance(x, nodes.PackedMember) and x.packer.quantizes]
        if below and node.spec.shape != (1,):
            with pytest.raises(RefusedError, match="m has values that aren't finite"):
                node.read_all()


# ------------------------------------------------------------------------------------------------ memory


def test_transposed_parts_of_wide_rows_take_little_memory() -> None:
    """A band of narrow scales isn't as many rows as of wide weights: those have to be there to make it."""
    weight = np.random.default_rng(5).normal(size=(192, 16384)).astype(np.float32)
    parts = made("gptq", {"q_group_size": 128}, torch.from_numpy(weight))
    for name in ("scales", "qweight"):
        part = parts[name]
        assert part.scratch(0, part.spec.rows) < 3 << 20, name
    peaks = np.abs(weight.reshape(192, 128, 128)).max(axis=2)
    want = (2 * peaks / np.float32(15)).astype(np.float16).T
    np.testing.assert_array_equal(parts["scales"].read_all().view(np.float16).reshape(want.shape), want)


def test_a_plan_asks_a_peak_for_little() -> None:
    """Its memory is that of a first band, however many there are; layers that engines run as one share one peak, so
    their weights are read once for it."""
    whole = nodes.abs_max([nodes.const(np.ones((1 << 12, 1 << 10), np.float16), F16)])
    asked = []

    class Asked(type(whole.over[0])):  # type: ignore[misc]
        def _scratch(self, lo: int, hi: int) -> int:
            asked.append((lo, hi))
            return 0

    wide = Asked(whole.over[0].spec, *whole.over[0].sources)
    found = nodes.abs_max([wide])
    assert found.over == (wide,)
    assert found.scratch(0, 1) == found.scratch(0, 1) == 2 << 20
    assert len(asked) == 1
    how = choose_scheme(SchemeOptions(scheme="nvfp4a16"))
    members = {f"l.{name}_proj.weight": nodes.const(np.ones((4, 64), np.float32), F32) for name in "qkvo"}
    work = SimpleNamespace(floats=members, scheme=how, draft=SimpleNamespace(notes=[]))
    forms = schemes.round_layers(work, list(members))  # type: ignore[arg-type]
    overall = [
        form.overall for form in forms.values() if isinstance(form, MicroscaledMatrix) and form.overall is not None
    ]
    q, k, v, o = (next(x for x in walk(node) if isinstance(x, AbsMax)) for node in overall)
    assert q is k is v is not o
    assert (len(q.over), len(o.over)) == (3, 1)
