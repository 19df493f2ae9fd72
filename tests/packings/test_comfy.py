"""ComfyUI's quantized layers: matrices that comfy-kitchen quantized and its values (golden/comfy.npz, by
record_comfy.py), and the formulas."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.packings.record_comfy import SHAPES, source
from tests.packings.stored import of_numpy, values
from tests.unpacked import unpack

from weighbridge.base.dtypes import BY_NAME, F32, NVFP4
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError
from weighbridge.conversion import comfy as writer
from weighbridge.packings import canonical, hadamard
from weighbridge.packings.read import comfy as reader
from weighbridge.packings.schema import comfy as schema
from weighbridge.packings.schema.base import METADATA
from weighbridge.packings.write import comfy as write
from weighbridge.packings.write import schemes
from weighbridge.tensors import nodes
from weighbridge.tensors.nodes import Node, QuantizedTensor

FLOATS = {"float8_e4m3fn": ("F8_E4M3", ml_dtypes.float8_e4m3fn), "float8_e5m2": ("F8_E5M2", ml_dtypes.float8_e5m2)}


def settings(**config: Any) -> Node:
    return of_numpy(np.frombuffer(json.dumps(config).encode(), np.uint8), "U8")


def floats(*shape: int, seed: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def tiled(scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The scales as cuBLAS's tiles: padded to 128 x 4, each tile with the rows of a quarter side by side."""
    rows, groups = scales.shape
    padded = np.zeros((-(-rows // 128) * 128, -(-groups // 4) * 4), np.uint8)
    padded[:rows, :groups] = scales
    tiles = [
        np.concatenate([padded[r + 32 * a : r + 32 * a + 32, c : c + 4] for a in range(4)], axis=1)
        for r in range(0, padded.shape[0], 128)
        for c in range(0, padded.shape[1], 4)
    ]
    return np.concatenate([tile.reshape(-1) for tile in tiles]).reshape(padded.shape)


@pytest.mark.parametrize("name", FLOATS)
def test_floats_with_one_scale(name: str) -> None:
    dtype, scalar = FLOATS[name]
    weight, scale = floats(24, 40).astype(scalar), np.float32(0.37)
    tensors = {"m.weight": of_numpy(weight, dtype), "m.weight_scale": of_numpy(np.asarray(scale), "F32")}
    found = unpack({**tensors, "m.comfy_quant": settings(format=name)}, {})
    assert list(found) == ["m.weight"]
    np.testing.assert_array_equal(values(found["m.weight"]), weight.astype(np.float32) * scale)


def judge_tiles(rows: int, columns: int) -> None:
    weight = floats(rows, columns).astype(ml_dtypes.float8_e4m3fn)
    scales = np.random.default_rng(2).integers(100, 150, (rows, columns // 32)).astype(np.uint8)
    stored = {"m.weight": of_numpy(weight, "F8_E4M3"), "m.weight_scale": of_numpy(tiled(scales), "U8")}
    found = unpack({**stored, "m.comfy_quant": settings(format="mxfp8")}, {})["m.weight"]
    factors = np.exp2(scales.astype(np.float32) - 127).repeat(32, axis=1)
    np.testing.assert_array_equal(values(found), weight.astype(np.float32) * factors)


@pytest.mark.parametrize(("rows", "columns"), [(128, 128), (64, 96), (256, 320), (160, 32), (384, 1024)])
def test_scales_in_tiles(rows: int, columns: int) -> None:
    judge_tiles(rows, columns)


@pytest.mark.mutation
@pytest.mark.parametrize("tile", [(64, 4), (128, 8), (128, 2)])
def test_the_size_of_a_tile_is_seen(tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "TILE", tile)
    monkeypatch.setattr(reader, "TILE", tile)
    with pytest.raises((AssertionError, FormatError)):
        judge_tiles(160, 320)


@pytest.mark.parametrize("shape", [(), (24, 1)])
def test_integers_with_a_scale_a_row(shape: tuple[int, ...]) -> None:
    weight = np.random.default_rng(3).integers(-127, 128, (24, 64)).astype(np.int8)
    scale = np.abs(floats(*shape, seed=4))
    tensors = {"m.weight": of_numpy(weight, "I8"), "m.weight_scale": of_numpy(np.asarray(scale), "F32")}
    found = unpack({**tensors, "m.comfy_quant": settings(format="int8_tensorwise")}, {})
    np.testing.assert_array_equal(values(found["m.weight"]), weight.astype(np.float32) * scale)


@cache
def golden() -> dict[str, NDArray[Any]]:
    with np.load(Path(__file__).parent / "golden" / "comfy.npz") as file:
        return dict(file)


def recorded(name: str) -> dict[str, Node]:
    """The stored tensors of comfy-kitchen."""
    out = {"m.comfy_quant": settings(**json.loads(str(golden()[f"{name}/settings"])))}
    for key, raw in golden().items():
        part, _, kind = key.removeprefix(f"{name}/").partition(":")
        if key.startswith(f"{name}/") and kind:
            viewed = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}.get(kind, raw.dtype)
            out[f"m.{part}"] = of_numpy(raw.view(viewed) if raw.dtype == np.uint8 else raw, kind)
    return out


def differs(name: str, tensors: dict[str, Node] | None = None) -> str:
    """How the values of a recorded matrix differ from comfy-kitchen's. Two formats round in another order there: it
    multiplies the two scales of nvfp4 first, and adds the products of a rotation in F32."""
    expected = golden()[f"{name}/values"]
    found = values(unpack(tensors or recorded(name), {})["m.weight"])
    rotated = "convrot" in name or "rotated" in name or "w4a8" in name
    largest = np.abs(expected).max(axis=1, keepdims=True)
    bound = (
        1e-5 * largest
        if rotated
        else 1e-6 * largest
        if "svdquant" in name
        else 2.0**-22 * np.abs(expected)
        if "nvfp4" in name
        else 0 * largest
    )
    return "" if found.shape == expected.shape and (np.abs(found - expected) <= bound).all() else f"{found - expected}"


@pytest.mark.parametrize("name", SHAPES)
def test_the_values_are_comfy_kitchen_s(name: str) -> None:
    assert differs(name) == ""
    assert golden()[f"{name}/values"].any()


@pytest.mark.mutation
@pytest.mark.parametrize(("name", "place", "attribute", "wrong"), [
    ("nvfp4", reader, "swapped", lambda codes: codes),
    ("nvfp4-smooth", reader, "_SMOOTHING", None),
    ("int8_tensorwise-rotated", schema, "_ROTATED", None),
    ("int8_tensorwise-rotated", hadamard, "_STEP", 16),
    ("convrot_w4a4", reader, "SubtractModulo", lambda by, bits, dtype: canonical.SubtractModulo(0, bits, dtype)),
    ("asym_w4a8_int8-even", reader, "_EVEN", np.arange(16, dtype=np.float32)),
    ("awq_w4a16", schema, "_AWQ_GROUP", 32),
])  # fmt: skip
def test_a_wrong_order_or_constant_is_seen(
    name: str, place: Any, attribute: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = recorded(name)
    if attribute == "_SMOOTHING":
        tensors.pop("m.pre_quant_scale")
    elif attribute == "_ROTATED":
        tensors["m.comfy_quant"] = settings(format="int8_tensorwise", convrot=True)
        assert differs(name, tensors) == ""
        monkeypatch.setattr(place, attribute, 64)
    else:
        monkeypatch.setattr(place, attribute, wrong)
    with suppress(FormatError):  # or the shapes don't fit any more
        assert differs(name, tensors) != ""


def test_the_settings_may_be_among_params() -> None:
    tensors = recorded("int8_tensorwise-rotated16")
    tensors["m.comfy_quant"] = settings(format="int8_tensorwise", params={"convrot": True, "convrot_groupsize": 16})
    assert differs("int8_tensorwise-rotated16", tensors) == ""


def test_the_rotation_is_the_hadamard_matrix() -> None:
    four = np.array([[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]]) / 2
    matrix: NDArray[np.float64] = four
    for size in (4, 16, 64, 256):
        x = floats(8, 2 * size)
        rows = x.copy()
        hadamard.rotate(rows.reshape(-1), size)
        exact = (x.reshape(-1, size).astype(np.float64) @ matrix).astype(np.float32).reshape(x.shape)
        np.testing.assert_allclose(rows, exact, rtol=0, atol=1e-6)
        hadamard.rotate(rows.reshape(-1), size)
        np.testing.assert_allclose(rows, x, rtol=0, atol=1e-6)
        matrix = np.kron(matrix, four).astype(np.float64)


WRITTEN = {
    "nvfp4": "nvfp4", "mxfp8": "mxfp8", "int8_tensorwise": "int8_tensorwise", "int8_convrot": "int8_tensorwise-rotated",
}  # fmt: skip


def stored_bytes(tensors: dict[str, Node]) -> dict[str, bytes]:
    return {name: node.read_all().tobytes() for name, node in tensors.items()}


def written(form: str) -> dict[str, bytes]:
    matrix = nodes.const(source(WRITTEN[form]), F32)
    return stored_bytes(dict(writer.stored_parts("m", writer.FORMATS[form].parts(matrix, "m.weight"), form)))


def unlike(form: str) -> set[str]:
    """The stored tensors that aren't comfy-kitchen's. Sums of a rotation have another order there, so a rotated code
    may differ by 1, and a scale in its last place."""
    mine, theirs = written(form), stored_bytes(recorded(WRITTEN[form]))
    out = {name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name)}
    if form == "int8_convrot" and out <= {"m.weight", "m.weight_scale"}:
        codes = [np.frombuffer(each["m.weight"], np.int8).astype(int) for each in (mine, theirs)]
        scales = [np.frombuffer(each["m.weight_scale"], np.float32) for each in (mine, theirs)]
        near = np.abs(codes[0] - codes[1]).max() <= 1 and (codes[0] != codes[1]).mean() < 1e-3
        out = set() if near and np.allclose(scales[0], scales[1], rtol=1e-6) else out
    return out


@pytest.mark.parametrize("form", WRITTEN)
def test_the_stored_tensors_are_comfy_kitchen_s(form: str) -> None:
    assert unlike(form) == set()
    assert any(written(form)["m.weight"])


def plain_rows(scales: NDArray[np.uint8], groups: int) -> NDArray[np.uint8]:
    """Scales in rows, padded, and not in tiles."""
    rows = scales.reshape(-1, groups)
    out = np.zeros((-(-len(rows) // 128) * 128, -(-groups // 4) * 4), np.uint8)
    out[: len(rows), :groups] = rows
    return out.reshape(-1)


@pytest.mark.mutation
@pytest.mark.parametrize(("form", "attribute", "wrong"), [
    ("nvfp4", "NVFP4_LARGEST", 448.0), ("nvfp4", "_in_tiles", plain_rows), ("mxfp8", "_POWERS", (-127, -5)),
    ("mxfp8", "_in_tiles", plain_rows), ("nvfp4", "E4M3", BY_NAME["F8_E5M2"]),
    ("int8_tensorwise", "_LEAST", 1e-3),
])  # fmt: skip
def test_a_wrong_constant_of_a_writer_is_seen(
    form: str, attribute: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, attribute, wrong)
    assert unlike(form)


@pytest.mark.parametrize("form", ["nvfp4", "mxfp8", "int8_tensorwise", "int8_convrot"])
def test_a_source_of_the_same_form_keeps_its_bytes(form: str) -> None:
    tensors = recorded(WRITTEN[form])
    parts = writer.FORMATS[form].kept(unpack(tensors, {})["m.weight"])
    assert parts is not None
    assert stored_bytes(dict(writer.stored_parts("m", parts, form))) == stored_bytes(tensors)


@pytest.mark.parametrize("form", writer.FORMATS)
def test_another_form_is_not_kept(form: str) -> None:
    for name in SHAPES:
        kept = writer.FORMATS[form].kept(unpack(recorded(name), {})["m.weight"])
        same = json.loads(str(golden()[f"{name}/settings"])) == writer.FORMATS[form].config(form)
        if kept is not None:
            assert same
            assert "smooth" not in name


def test_nvfp4_of_other_tools_keeps_its_values() -> None:
    """ModelOpt's, compressed-tensors' and ggml's blocks to ComfyUI's form and back, without a loss."""
    tensor = unpack(recorded("nvfp4"), {})["m.weight"]
    assert isinstance(tensor, QuantizedTensor)
    parts = {role: tensor.members[role] for role in ("codes", "scales", "global")}
    modelopt = {"m.weight": parts["codes"], "m.weight_scale": parts["scales"], "m.weight_scale_2": parts["global"]}
    inverse = nodes.const(np.float32(1) / parts["global"].read_all().view(np.float32), F32)
    compressed = {
        "m.weight_packed": parts["codes"], "m.weight_scale": parts["scales"], "m.weight_global_scale": inverse,
    }  # fmt: skip
    one = nodes.const(np.ones(1, np.float32), F32)
    plain = QuantizedTensor(tensor.spec, tensor.packing, {**parts, "global": one})
    assert NVFP4.block is not None
    block = nodes.transcode(plain, NVFP4.block)
    for node in (unpack(modelopt, {})["m.weight"], unpack(compressed, {})["m.weight"], block):
        kept = write.kept_nvfp4(node)
        assert kept is not None
        stored = dict(writer.stored_parts("m", kept, "nvfp4"))
        np.testing.assert_array_equal(values(unpack(stored, {})["m.weight"]), values(node))
    form = canonical.microscaled(tensor)
    if not isinstance(form, str):  # its scale is the inverse of an F32
        back = {f"m{suffix}": node for suffix, node in schemes.microscaled(form, True).items()}
        np.testing.assert_array_equal(values(unpack(back, {})["m.weight"]), values(tensor))


def test_values_that_are_not_finite_are_refused() -> None:
    for form in WRITTEN:
        matrix = np.full((128, 256), np.nan, np.float32)
        parts = writer.FORMATS[form].parts(nodes.const(matrix, F32), "m.weight")
        with pytest.raises(RefusedError, match=r"m\.weight"):
            parts["weight"].read_all()


def test_int8_in_blocks() -> None:
    weight = np.random.default_rng(5).integers(-127, 128, (256, 384)).astype(np.int8)
    scale = np.abs(floats(2, 3, seed=6))
    tensors = {"m.weight": of_numpy(weight, "I8"), "m.weight_scale": of_numpy(scale, "F32")}
    found = unpack({**tensors, "m.comfy_quant": settings(format="int8_blockwise", group_size=128)}, {})["m.weight"]
    grid = scale.repeat(128, axis=0).repeat(128, axis=1)
    np.testing.assert_array_equal(values(found), weight.astype(np.float32) * grid)
    np.testing.assert_array_equal(
        nodes.decode(found).read(120, 140).view(np.float32).reshape(20, -1), (weight * grid)[120:140]
    )


@pytest.mark.parametrize(("form", "shape"), [("rowwise", (24, 1)), ("blockwise", (1, 2))])
def test_floats_with_several_scales(form: str, shape: tuple[int, int]) -> None:
    weight, scale = floats(24, 256).astype(ml_dtypes.float8_e4m3fn), np.abs(floats(*shape, seed=7))
    tensors = {"m.weight": of_numpy(weight, "F8_E4M3"), "m.weight_scale": of_numpy(scale, "F32")}
    found = unpack({**tensors, "m.comfy_quant": settings(format=f"float8_e4m3fn_{form}")}, {})["m.weight"]
    grid = scale if form == "rowwise" else scale.repeat(128, axis=1)
    np.testing.assert_array_equal(values(found), weight.astype(np.float32) * grid)


@pytest.mark.parametrize(("name", "part", "wrong"), [
    ("nvfp4", "weight_scale_2", (np.ones(2, np.float32), "F32")),
    ("nvfp4-smooth", "pre_quant_scale", (np.ones(3, np.float32), "F32")),
    ("nvfp4", "weight_scale", (np.ones((48, 16), np.uint8), "U8")),
    ("nvfp4", "weight", (np.ones((48, 12), np.uint8), "U8")),
    ("nvfp4", "weight", (np.ones((48, 128), np.int8), "I8")),
    ("convrot_w4a4", "weight_scale", (np.ones(3, np.float32), "F32")),
    ("awq_w4a16", "weight_zeros", (np.ones((4, 16), np.float32), "F32")),
    ("asym_w4a8_int8", "weight_codebook", (np.ones(15, np.float32), "F32")),
    ("asym_w4a8_int8", "weight_s_channel", (np.ones(15, np.float32), "F32")),
    ("svdquant_w4a4", "weight", (np.ones((20, 90), np.int8), "I8")),
    ("svdquant_w4a4", "weight", (np.ones((20, 96), np.int16), "I16")),
    ("svdquant_w4a4", "weight", (np.ones((0, 96), np.int8), "I8")),
    ("svdquant_w4a4", "weight_scale", (np.ones((20, 3), np.float32), "F32")),
    ("svdquant_w4a4", "weight_scale", (np.ones((3, 20), np.uint8), "U8")),
    ("svdquant_w4a4", "weight_proj_down", (np.ones((), np.float32), "F32")),
    ("svdquant_w4a4", "weight_proj_down", (np.ones((192, 6), np.float32), "F32")),
    ("svdquant_w4a4", "weight_proj_down", (np.ones((192, 5), np.int8), "I8")),
    ("svdquant_w4a4", "weight_proj_up", (np.ones((5, 20), np.float32), "F32")),
    ("svdquant_w4a4", "weight_smooth_factor", (np.ones(191, np.float32), "F32")),
    ("svdquant_w4a4-none", "weight_proj_up", (np.ones((12, 1), np.float32), "F32")),
    ("svdquant_w4a4-tiles", "weight", (np.ones((2, 2, 128, 32), np.int8), "I8")),
    ("svdquant_w4a4-tiles", "weight_scale", (np.ones((2, 256), np.float32), "F32")),
    ("svdquant_w4a4-tiles", "proj_up", (np.ones((256, 3), np.float32), "F32")),
    ("svdquant_w4a4", "comfy_quant", {"format": "svdquant_w4a4", "group_size": 32}),
    ("svdquant_w4a4", "comfy_quant", {"format": "svdquant_w4a4", "layout": "kitchen_tile_packed_w4a4"}),
    ("int8_tensorwise-rotated", "comfy_quant", {"convrot_groupsize": 32}),
    ("int8_tensorwise-rotated", "comfy_quant", {"convrot_groupsize": 1024}),
    ("int8_tensorwise-rotated", "comfy_quant", {"convrot_groupsize": 0}),
])  # fmt: skip
def test_parts_that_do_not_fit_are_faults_of_the_file(name: str, part: str, wrong: Any) -> None:
    tensors = recorded(name)
    if isinstance(wrong, dict):
        tensors["m.comfy_quant"] = settings(**{"format": "int8_tensorwise", "convrot": True, **wrong})
    else:
        tensors[f"m.{part}"] = of_numpy(*wrong)
    with pytest.raises(FormatError):
        unpack(tensors, {})


def nvfp4() -> dict[str, Node]:
    return {
        "m.weight": of_numpy(np.zeros((128, 32), np.uint8), "U8"),
        "m.weight_scale": of_numpy(np.ones((128, 4), np.uint8), "F8_E4M3"),
        "m.weight_scale_2": of_numpy(np.ones((), np.float32), "F32"),
    }


SVD = ("svdquant_w4a4", "svdquant_w4a4-tiles")


@pytest.mark.mutation
@pytest.mark.parametrize("name", SVD)
def test_each_stored_tensor_of_svdquant_is_read(name: str) -> None:
    """Without one of them the file is faulty, and with the numbers of another order its values differ."""
    parts = [part for part in recorded(name) if part != "m.comfy_quant"]
    assert len(parts) == 5
    for part in parts:
        tensors = recorded(name)
        node = tensors.pop(part)
        if part != "m.weight" and "_scale" not in part:
            with pytest.raises(FormatError, match=r"without .*proj_|without smooth"):
                unpack(tensors, {})
        bits = np.roll(node.read_all().view(f"V{node.spec.dtype.size}"), 1)
        tensors[part] = of_numpy(bits.reshape(node.spec.shape), node.spec.dtype)
        assert differs(name, tensors) != "", part


@pytest.mark.mutation
@pytest.mark.parametrize(("attribute", "wrong"), [
    ("SubtractModulo", lambda by, bits, dtype: canonical.SubtractModulo(0, bits, dtype)),
    ("_tile_rows", lambda node, shape: nodes.reshape(node, (shape[0] * shape[1], shape[2] * shape[3]))),
])  # fmt: skip
def test_a_wrong_order_of_svdquant_is_seen(attribute: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, attribute, wrong)
    assert differs("svdquant_w4a4-tiles") != ""


@pytest.mark.mutation
@pytest.mark.parametrize(("attribute", "wrong"), [("_SVD_GROUP", 32), ("_SVD_ROWS", 64), ("_SVD_TILES", "tiles")])
def test_a_wrong_constant_of_svdquant_is_seen(attribute: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, attribute, wrong)
    with pytest.raises((FormatError, UnsupportedError)):
        unpack(recorded("svdquant_w4a4-tiles"), {})


@pytest.mark.parametrize("name", SVD)
def test_rows_of_svdquant_do_not_depend_on_others(name: str) -> None:
    node = nodes.decode(unpack(recorded(name), {})["m.weight"])
    rows = [node.read(row, row + 1) for row in range(node.spec.rows)]
    np.testing.assert_array_equal(np.concatenate(rows), node.read_all())


@pytest.mark.parametrize(("config", "reason"), [
    ({"act_unsigned": True}, "shifted bias"), ({"params": {"act_unsigned": True}}, "shifted bias"),
    ({"lowrank_branch_input_basis": "post_smoothing"}, "smoothed inputs"), ({"layout": "other"}, "the layout 'other'"),
    ({"format": "int8_tensorwise"}, "with a low-rank product"),
])  # fmt: skip
def test_layers_of_svdquant_with_another_meaning_are_refused(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedError, match=f"^m is quantized by ComfyUI.*{reason}"):
        unpack({**recorded("svdquant_w4a4"), "m.comfy_quant": settings(**{"format": "svdquant_w4a4", **config})}, {})


@pytest.mark.parametrize(("part", "array"), [
    ("pre_quant_scale", np.ones(192, np.float32)), ("weight", np.ones((2, 10, 96), np.float32)),
])  # fmt: skip
def test_stored_tensors_that_svdquant_does_not_have_are_refused(part: str, array: NDArray[np.float32]) -> None:
    with pytest.raises(UnsupportedError, match=r"^m is quantized by ComfyUI as 'svdquant_w4a4'"):
        unpack({**recorded("svdquant_w4a4"), f"m.{part}": of_numpy(array, "F32")}, {})


def test_svdquant_without_a_low_rank_product_is_a_fault_of_the_file() -> None:
    with pytest.raises(FormatError, match="without proj_down"):
        unpack({**nvfp4(), "m.comfy_quant": settings(format="svdquant_w4a4")}, {})


@pytest.mark.parametrize("config", [{"format": "int8_other"}, {"format": None}, {}])
def test_other_formats_are_refused_and_not_read_as_those_of_other_tools(config: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="ComfyUI"):
        unpack({**nvfp4(), "m.comfy_quant": settings(**config)}, {})


def int8(shape: tuple[int, ...], scale: tuple[int, ...], **config: Any) -> dict[str, Node]:
    codes = np.random.default_rng(7).integers(-128, 128, shape).astype(np.int8)
    tensors = {"m.weight": of_numpy(codes, "I8"), "m.weight_scale": of_numpy(floats(*scale, seed=8), "F32")}
    return {**tensors, "m.comfy_quant": settings(format="int8_tensorwise", **config)}


@pytest.mark.parametrize(("shape", "scale"), [
    ((6, 4, 3, 3), ()), ((6, 4, 3, 3), (1,)), ((6, 4, 3, 3), (6, 1, 1, 1)), ((6, 4, 3, 3), (6, 4, 3, 1)),
    ((5, 4, 1, 2, 2), (5, 1, 1, 1, 1)), ((5, 4, 7), (5, 1, 1)), ((3, 8, 16), (3, 8, 1)), ((6, 8, 1, 1), (6, 1, 1, 1)),
])  # fmt: skip
def test_convolutions_and_stacks_in_int8(shape: tuple[int, ...], scale: tuple[int, ...]) -> None:
    """comfy-kitchen's dequantize_int8_simple: codes * scale, which numpy broadcasts as torch does."""
    tensors = int8(shape, scale)
    codes = tensors["m.weight"].read_all().view(np.int8).reshape(shape)
    expected = codes.astype(np.float32) * tensors["m.weight_scale"].read_all().view(np.float32).reshape(scale)
    read = nodes.cast(unpack(tensors, {})["m.weight"], F32)
    assert read.spec.shape == shape
    np.testing.assert_array_equal(read.read_all().view(np.float32).reshape(shape), expected)


@pytest.mark.parametrize(("shape", "scale"), [
    ((6, 4, 3, 3), (6,)), ((6, 4, 3, 3), (6, 1)), ((6, 4, 3, 3), (5, 1, 1, 1)), ((6, 4, 3, 3), (1, 4, 1, 1)),
    ((6, 4, 3, 3), (6, 4, 3, 3)), ((3, 8, 16), (8, 1)), ((0, 4, 3, 3), ()),
])  # fmt: skip
def test_scales_of_other_axes_are_refused(shape: tuple[int, ...], scale: tuple[int, ...]) -> None:
    with pytest.raises(FormatError, match="weight_scale"):
        unpack(int8(shape, scale), {})


def test_rotated_convolutions_and_other_stacks_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="a rotated 'int8_tensorwise' in the shape"):
        unpack(int8((16, 16, 3, 3), (16, 1, 1, 1), convrot=True, convrot_groupsize=16), {})
    stack = {**nvfp4(), "m.weight": of_numpy(np.zeros((2, 128, 32), np.uint8), "U8")}
    with pytest.raises(UnsupportedError, match="in the shape"):
        unpack({**stack, "m.comfy_quant": settings(format="nvfp4")}, {})


@pytest.mark.parametrize(("module", "layer"), [
    ("m", "m"), ("model.diffusion_model.m", "m"), ("m", "model.diffusion_model.m"),
])  # fmt: skip
def test_the_metadata_of_the_file_counts_too(module: str, layer: str) -> None:
    """Some tools write the names of layers without the file's prefix, or with it."""
    layers = {layer: {"format": "nvfp4"}}
    metadata = {"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": layers})}
    tensors = {name.replace("m.", f"{module}.", 1): node for name, node in recorded("nvfp4").items()}
    tensors.pop(f"{module}.comfy_quant")
    found = values(unpack(tensors, {METADATA: metadata})[f"{module}.weight"])
    np.testing.assert_allclose(found, golden()["nvfp4/values"], rtol=2.0**-22)
    modelopt = unpack(nvfp4(), {METADATA: {"_quantization_metadata": "[]"}})["m.weight"]
    assert isinstance(modelopt, QuantizedTensor)


def test_settings_that_are_no_json_are_a_fault_of_the_file() -> None:
    broken = of_numpy(np.frombuffer(b"{", np.uint8), "U8")
    with pytest.raises(FormatError, match="comfy_quant"):
        unpack({**nvfp4(), "m.comfy_quant": broken}, {})
