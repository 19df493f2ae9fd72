"""Each constant of a packing, changed, turns a check red: layouts of bits, offsets, tables of values, rooms."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from tests.conformance import test_packings as conformance
from tests.conformance.packing_examples import UNDECODED
from tests.kernels.data import running
from tests.mutation import Check, Fault, assert_seen
from tests.packings import makers as packed
from tests.packings import test_integers as integers
from tests.packings import test_makers as made
from tests.packings import test_rounding as rounds
from tests.packings import test_scaled as scaled
from tests.packings import test_ternary as ternary
from tests.packings import test_trellis as trellises
from tests.packings.stored import of_numpy, values
from tests.unpacked import unpack

from weighbridge.base.dtypes import BY_NAME, F32, FOUR_BITS, Q4_0, Q4_1
from weighbridge.packings import ggml_blocks, trellis
from weighbridge.packings.read import awq as awq_reader
from weighbridge.packings.read import bitplanes as planes
from weighbridge.packings.read import microscaled
from weighbridge.packings.schema import bitplanes as planes_schema
from weighbridge.packings.schema import codebooks, gptq
from weighbridge.packings.schema import microscaled as fp4_schema
from weighbridge.packings.schema import scaled_float as fp8
from weighbridge.packings.write import packers, rounding
from weighbridge.tensors import bits, nodes
from weighbridge.tensors.reference import registry as codecs
from weighbridge.tensors.reference import regroup as reference_regroup
from weighbridge.tensors.reference import rounding as reference_rounding


def fp4(scale: str) -> None:
    """Random codes against the table of OCP MX, spelled out."""
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    rng = np.random.default_rng(1)
    raw = rng.integers(0, 256, (4, 64), np.uint8)
    codes = np.stack([raw & 15, raw >> 4], axis=-1).reshape(4, 128)
    want = np.where(codes & 8, -1, 1) * table[codes & 7]
    group = {"U8": 32, "F8_E4M3": 16}[scale]
    held = {"U8": 130, "F8_E4M3": 0x48}[scale]  # 2 ** 3; 4.0
    scales = np.full((4, 128 // group), held, np.uint8)
    stored = {"m.weight_packed": of_numpy(raw, "U8"), "m.weight_scale": of_numpy(scales, scale)}
    found = values(unpack(stored, {})["m.weight"])
    np.testing.assert_array_equal(found, want.astype(np.float32) * {"U8": 8, "F8_E4M3": 4}[scale])


def fp4_made(mode: str) -> None:
    """Values that E2M1 holds come back as they were."""
    x = np.tile(np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6, 0], np.float32), (2, 4))
    parts = nodes.pack(nodes.const(x, F32), packers.FloatOf(mode, F32))
    np.testing.assert_array_equal(values(unpack({f"m.{k}": v for k, v in parts.items()}, {})["m.weight"]), x)


def counted(name: str) -> None:
    for make, width in UNDECODED[name]:
        conformance.test_weights_that_are_not_decoded_are_counted(name, make, width)


def room(dtype: Any) -> None:
    """What is said of a block type is what its decoder reads, where d is one and m zero, out of all codes."""
    raw = np.random.default_rng(6).integers(0, 256, (256, dtype.size), np.uint8)
    raw[:, : 4 if ggml_blocks.CODE_RANGES[dtype].minimum else 2] = [0, 0x3C, 0, 0][
        : 4 if ggml_blocks.CODE_RANGES[dtype].minimum else 2
    ]
    found = codecs.DECODE[dtype.name](raw.reshape(-1))
    assert (found.min(), found.max()) == ggml_blocks.CODE_RANGES[dtype][:2]


def repacked(name: str) -> None:
    """A block type as MLX affine decodes to what the block decodes to."""
    dtype = BY_NAME[name]
    x = np.random.default_rng(3).normal(size=(2, 512)).astype(np.float32)
    node, packer = nodes.cast(nodes.const(x, F32), dtype), packers.BlocksOf(dtype)
    parts = {f"m.{k}": v for k, v in nodes.pack(node, packer).items()}
    told = {"quantization": {"bits": packer.bits, "group_size": packer.group}}
    np.testing.assert_array_equal(values(unpack(parts, told)["m.weight"]), values(node) + 0.0)  # -0 is 0 in ggml's FP4


def hqq(width: int) -> None:
    rng = np.random.default_rng(4)
    parts = {4: 2, 2: 4, 1: 8}[width]
    codes = rng.integers(0, 1 << width, (64, 32), np.uint8)
    packed = np.zeros((64 // parts, 32), np.uint8)
    for i in range(parts):
        packed |= codes[i * 64 // parts : (i + 1) * 64 // parts] << np.uint8(8 - width * (i + 1))
    scale, zero = rng.normal(size=(2, 64, 1)).astype(np.float32)
    stored = {"m.W_q": of_numpy(packed, "U8"), "m.scale": of_numpy(scale, "F32"), "m.zero": of_numpy(zero, "F32"),
              "m.nbits": of_numpy(np.array(width), "I64"), "m.shape": of_numpy(np.array([64, 32]), "I64")}  # fmt: skip
    np.testing.assert_array_equal(values(unpack(stored, {})["m.weight"]), (codes.astype(np.float32) - zero) * scale)


def unlabelled() -> None:
    """Five bits are planar whatever the config says."""
    five = packed.gptq(5, stored_zero=0)
    np.testing.assert_array_equal(values(integers.only(five.tensors)), five.values)


def in_numpy(check: Check) -> Check:
    """The same by the reference alone."""

    def run() -> None:
        with running("reference"):
            check()

    return run


def _in_f32(rule: str) -> Any:
    """A rule whose own steps aren't rounded to the weights' type."""
    codes = reference_rounding.RULES[rule].codes
    return lambda x, step: codes(x, step._replace(dtype="F32"))


def _with(table: Any, **changes: Any) -> Any:
    return MappingProxyType({**table, **changes})


_Q4_0, _Q4_1, _Q5_0 = (ggml_blocks.CODE_RANGES[BY_NAME[name]] for name in ("Q4_0", "Q4_1", "Q5_0"))
_SWAPPED = [microscaled.VALUES[n] for n in (0, 1, 3, 2, *range(4, 16))]

# what is changed: (where, its name, the wrong value, the check that sees it)
FAULTS: dict[str, tuple[Any, str, Any, Check]] = {
    "planes of 6 bits": (bits, "_PLANES", MappingProxyType({**bits._PLANES, 6: (2, 4)}),
                         lambda: integers.test_gptq_planes(6)),
    "planes of 5 bits": (bits, "_PLANES", MappingProxyType({**bits._PLANES, 5: (1, 4)}),
                         lambda: integers.test_gptq_planes(5)),
    "planes of 7 bits": (bits, "_PLANES", MappingProxyType({**bits._PLANES, 7: (4, 1, 2)}),
                         lambda: integers.test_gptq_planes(7)),
    "AWQ's order": (bits, "LAYOUTS", _with(bits.LAYOUTS, awq=bits.LAYOUTS["stream"]),
                    lambda: integers.test_awq_reads_as_the_formula_says(True)),
    "AWQ's zero": (awq_reader, "BITS", 3, lambda: integers.test_awq_reads_as_the_formula_says(False)),
    "bits that are planar": (gptq, "_PLANAR", (), unlabelled),
    "E2M1 of MXFP4": (microscaled, "VALUES", microscaled.VALUES[::-1], lambda: fp4("U8")),
    "E2M1 of NVFP4": (microscaled, "VALUES", microscaled.VALUES[::-1], lambda: fp4("F8_E4M3")),
    "group of NVFP4": (fp4_schema, "FOUR_BITS", {
                           scale: row._replace(group=32) for scale, row in FOUR_BITS.items()},
                       lambda: fp4("F8_E4M3")),
    "E2M1 of MLX": (reference_rounding, "E2M1", reference_rounding.E2M1 + np.float32(0.26),
                    in_numpy(lambda: fp4_made("mxfp4"))),
    "ties of MLX": (packers, "_RULES", {4: "e2m1", 8: "e4m3"},
                    lambda: made.test_float_modes_equal_mlx("mxfp4", F32, "halves")),
    "largest of a mode": (packers, "MODES", _with(packers.MODES, nvfp4=packers.MODES["nvfp4"]._replace(largest=4.0)),
                          lambda: fp4_made("nvfp4")),
    "codes of Q4_0": (ggml_blocks, "CODE_RANGES",
                    MappingProxyType({**ggml_blocks.CODE_RANGES, Q4_0: _Q4_0._replace(low=-7)}),
                     lambda: room(Q4_0)),
    "codes of Q4_1": (ggml_blocks, "CODE_RANGES",
                    MappingProxyType({**ggml_blocks.CODE_RANGES, Q4_1: _Q4_1._replace(low=1)}),
                     lambda: room(Q4_1)),
    "codes of Q5_0": (ggml_blocks, "CODE_RANGES",
                    MappingProxyType({**ggml_blocks.CODE_RANGES, ggml_blocks.Q5_0: _Q5_0._replace(low=-15)}),
                     lambda: room(ggml_blocks.Q5_0)),
    "codes of Q2_0": (ggml_blocks, "CODE_RANGES",
                    MappingProxyType({**ggml_blocks.CODE_RANGES, ggml_blocks.Q2_0: _Q4_0._replace(low=-2)}),
                     lambda: room(ggml_blocks.Q2_0)),
    "fields of BitNet": (planes, "FIELDS", (6, 4, 2, 0), ternary.check_bitnet),
    "shifts of 4 bits": (planes, "SHIFTS", MappingProxyType({**planes_schema.SHIFTS, 4: (0, 4)}), lambda: hqq(4)),
    "shifts of 2 bits": (planes, "SHIFTS", MappingProxyType({**planes_schema.SHIFTS, 2: (6, 4, 0, 2)}), lambda: hqq(2)),
    "shifts of 1 bit": (planes, "SHIFTS", MappingProxyType({**planes_schema.SHIFTS, 1: tuple(range(8))}),
                        lambda: hqq(1)),
    **{f"EXL3: {name}": (trellis, name, value, check) for name, value, check in (
        ("_3INST", (89_226_355, 64_248_484), lambda: trellises.test_tiles_are_those_of_exllamav3(4, "3inst")),
        ("_MCG", (0xCBAC1FEF, 0), lambda: trellises.test_tiles_are_those_of_exllamav3(4, "mcg")),
        ("_KEPT_BITS", 0x8FFF8FFE, lambda: trellises.test_tiles_are_those_of_exllamav3(4, "mcg")),
        ("_EXPONENTS", 0x3B603B61, lambda: trellises.test_tiles_are_those_of_exllamav3(4, "mcg")),
        ("_MUL1", 0x83DCD12F, lambda: trellises.test_tiles_are_those_of_exllamav3(4, "mul1")),
        ("_MUL1_SCALE", 0.00677, lambda: trellises.test_tiles_are_those_of_exllamav3(4, "mul1")),
        ("_MUL1_SHIFT", -10.39, lambda: trellises.test_tiles_are_those_of_exllamav3(4, "mul1")),
        ("_MUL1_BASE", 1023, lambda: trellises.test_tiles_are_those_of_exllamav3(4, "mul1")),
        ("_STATE_BITS", 15, lambda: trellises.test_tiles_are_those_of_exllamav3(4, "mcg")),
        ("ROTATED", 64, trellises.check_matrix),
        ("_SIGNS", 8, lambda: trellises.check_matrix(signs=True)),
    )},
    "words of QTIP": (codebooks, "_SIXTEEN", 8, lambda: counted("qtip")),
    "words of EXL2": (codebooks, "_WORD", 16, lambda: counted("exl2")),
    "scales of EXL2": (codebooks, "_SCALES", 4, lambda: counted("exl2")),
    "sides of FP8 blocks": (fp8, "_SIDES", ((64, 64),),
                            lambda: scaled.test_a_scale_for_each_block(128, (300, 200), "F8_E4M3", ".scale")),
}  # fmt: skip


def same(case: str, dtype: str = "bf16") -> Check:
    return lambda: rounds.test_compressed_tensors_makes_the_same(case, dtype)


def _element(bits: int, **changes: Any) -> Any:
    return {**rounding._ELEMENTS, bits: rounding._ELEMENTS[bits]._replace(**changes)}


# The constants of rounding to nearest: each against the library that it is taken from.
FAULTS |= {
    **{f"epsilon of {d}": (rounding, "_EPSILON", {**rounding._EPSILON, d: 0.5}, same("w4a16", str(d).lower()))
       for d in rounding._EPSILON},
    "epsilon of NVFP4": (rounding, "_EPSILON_E4M3", np.float32(0.25), same("nvfp4a16")),
    "largest E4M3": (rounding, "_LARGEST", np.float32(240), same("fp8_dynamic")),
    **{f"mantissa of {d}": (rounding, "_MANTISSA", {**rounding._MANTISSA, d: rounding._MANTISSA[d] - 1},
                            same("mxfp4a16", str(d).lower())) for d in rounding._MANTISSA},
    **{f"exponent of {b} bits": (rounding, "_ELEMENTS", _element(b, exponent=rounding._ELEMENTS[b].exponent + 1),
                                 same(f"mxfp{b}a16")) for b in (4, 6, 8)},
    **{f"mantissa of {b} bits": (rounding, "_ELEMENTS", _element(b, mantissa=4 - rounding._ELEMENTS[b].mantissa),
                                 same(f"mxfp{b}a16", "f32")) for b in (4, 6, 8)},
    "largest of E2M1": (rounding, "_E2M1_LARGEST", np.float32(3), same("nvfp4a16")),
    "the rule of MXFP4": (rounding, "_ELEMENTS", {**rounding._ELEMENTS, 4: rounding._ELEMENTS[8]}, same("mxfp4a16")),
    "the rule of MXFP6": (rounding, "_ELEMENTS", {**rounding._ELEMENTS, 6: rounding._ELEMENTS[8]}, same("mxfp6a16")),
    "values of E2M1": (reference_rounding, "E2M1", reference_rounding.E2M1 + np.float32(0.5),
                       in_numpy(same("mxfp4a16"))),
    "values of E2M3": (reference_rounding, "E2M3", reference_rounding.E2M3[::-1], in_numpy(same("mxfp6a16"))),
    "largest code of E4M3": (reference_rounding, "_LARGEST", np.float32(240), in_numpy(same("fp8_dynamic"))),
    "far from every number": (reference_rounding, "_FAR", np.float32(2),
                              in_numpy(lambda: rounds.test_gptq_and_awq_round_as_gptqmodel_does(4, True))),
    **{f"steps of {rule}": (
        reference_rounding, "RULES",
        _with(reference_rounding.RULES, **{rule: reference_rounding.RULES[rule]._replace(codes=_in_f32(rule))}),
        in_numpy(same(case)),
    ) for rule, case in (("int", "w8a16 asymmetric"),)},
    "E2M3 read": (microscaled, "_SIX", microscaled._SIX[::-1], same("mxfp6a16")),
    "AWQ's order written": (bits, "_ORDERS", {**bits._ORDERS, "awq": (0, 1, 2, 3, 4, 5, 6, 7)},
                            lambda: rounds.test_gptq_and_awq_round_as_gptqmodel_does(4, False)),
    "the rule of GPTQ": (rounding, "RULES", {**rounding.RULES, "gptq": rounding.RULES["compressed-tensors"]},
                         lambda: rounds.test_gptq_and_awq_round_as_gptqmodel_does(4, True)),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_constant_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_seen(Fault(*FAULTS[fault]), monkeypatch)


@pytest.mark.parametrize("name", [d.name for d in packers.EXACT])
@pytest.mark.parametrize("part", ["codes", "parameters"])
def test_a_form_with_wrong_parts_is_seen(name: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with running("reference"):
        repacked(name)
        form = reference_regroup.FORMS[name]
        wrong = {
            "codes": form._replace(codes=lambda block: form.codes(block)[:, ::-1]),
            "parameters": form._replace(parameters=lambda block: form.parameters(np.roll(block, 1, axis=0))),
        }
        monkeypatch.setattr(reference_regroup, "FORMS", {**reference_regroup.FORMS, name: wrong[part]})
        with pytest.raises(AssertionError):
            repacked(name)


def test_every_room_is_filled() -> None:
    for dtype in ggml_blocks.CODE_RANGES:
        room(dtype)
