"""Layout changes that can't be undone: each tensor is listed when a GGUF is written, and the way back is refused.

The judge of the numbers is torch, by the operations of the reference converter.
"""

from __future__ import annotations

from fractions import Fraction
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tests.costs import traced_memory
from tests.models.projector_cases import golden, write_folder

import weighbridge as wb
from weighbridge.base.dtypes import BF16, F16, F32, Q8_0
from weighbridge.base.errors import FormatError, UnsupportedError
from weighbridge.models.arch.registry import projector_of_hf
from weighbridge.models.config.mapping import gguf_to_config
from weighbridge.models.open import open_model
from weighbridge.tensors import functions, layouts, nodes
from weighbridge.tensors.layout_table import LAYOUTS
from weighbridge.tensors.layouts import TensorLayout, layout
from weighbridge.tensors.nodes.reduced import resized_grid, summed_parts

ROWS = [row for row in LAYOUTS.values() if row.one_way]
#: The roles of each case that a GGUF has with fewer elements.
CASES = {
    name: reduced
    for name, case in golden().items()
    if (family := projector_of_hf(case["config"])) is not None
    if (reduced := {role: why for role, why in family.one_way.items() if family.rows[role].computed is None})
}


def reduced_by(name: str) -> TensorLayout:
    """The layout change of a row with 1 for each argument."""
    return layout(name, *[1] * len(signature(getattr(layouts, LAYOUTS[name].change)).parameters))


@pytest.mark.parametrize("name", [row.name for row in ROWS])
def test_a_one_way_change_is_never_exact_nor_undone(name: str) -> None:
    change = reduced_by(name)
    assert not change.exact
    with pytest.raises(UnsupportedError):
        change.apply(nodes.const(np.ones((4, 4), np.float32), F32))


def test_every_one_way_change_has_a_case() -> None:
    assert {change for case in CASES.values() for change in case.values()} == {row.one_way for row in ROWS}


@pytest.mark.parametrize("name", CASES)
def test_the_tensors_that_lose_elements_are_listed_and_no_folder_is_made(name: str, tmp_path: Path) -> None:
    source, towers, text = write_folder(golden()[name], tmp_path / "g"), tmp_path / "m.gguf", tmp_path / "t.gguf"
    with wb.plan_convert(source, towers, mmproj=True, dtype="f32") as plan:
        plan.run()
    stored, kept = load_file(source / "model.safetensors"), wb.open(towers)
    listed = [loss for loss in plan.losses if "no folder can be made again" in loss.message]
    assert len(listed) == len(CASES[name])
    for loss in listed:
        assert any(loss.message.startswith(change) for change in CASES[name].values())
        assert str(list(stored[loss.tensor].shape)) in loss.message
    wb.convert(source, text, tokenizer=False, dtype="f32")
    with pytest.raises(UnsupportedError, match="no folder can be made again") as caught:
        wb.convert(text, tmp_path / "back", to="hf", tokenizer=False, projector=towers)
    assert all(change in caught.value.message for change in CASES[name].values())
    assert not (tmp_path / "back").exists()
    # what the error's hint names
    wb.convert(text, tmp_path / "back", to="hf", tokenizer=False)
    wb.convert(towers, tmp_path / "m.safetensors")
    assert set(load_file(tmp_path / "m.safetensors")) == set(kept)
    with wb.plan_convert(source, f"{tmp_path}/both/", to="gguf", with_mmproj=True, tokenizer=False) as plan:
        assert {loss.tensor for loss in listed} <= {loss.tensor for loss in plan.losses}


@pytest.mark.parametrize("name", CASES)
def test_a_folder_and_its_file_are_compared_as_the_file_has_them(name: str, tmp_path: Path) -> None:
    source, towers = write_folder(golden()[name], tmp_path / "g"), tmp_path / "m.gguf"
    wb.convert(source, towers, mmproj=True, dtype="f32")
    assert all(check.verdict in ("same", "not-checked") for check in wb.prove(source, towers).checks)


PARTS = ("vision_config", "sound_config")


@pytest.mark.parametrize("name", CASES)
def test_the_config_of_a_file_has_what_its_keys_determine(name: str, tmp_path: Path) -> None:
    """What `wb view` shows of a file without its folder."""
    wb.convert(write_folder(golden()[name], tmp_path / "g"), tmp_path / "m.gguf", mmproj=True)
    with open_model(tmp_path / "m.gguf") as model:
        restored = gguf_to_config(model.metadata, model.family, model.index.by_name).config
    stated = golden()[name]["config"]
    pairs = [(restored, stated), *((restored.get(part, {}), stated.get(part, {})) for part in PARTS)]
    for found, original in pairs:
        plain = {key: value for key, value in found.items() if isinstance(value, int | float | str)}
        assert plain.items() <= original.items()


def test_a_grid_that_has_the_size_already_loses_nothing(tmp_path: Path) -> None:
    case = golden()["nemotron-vl"]
    case = {**case, "config": {**case["config"], "force_image_size": 112}}
    with wb.plan_convert(write_folder(case, tmp_path / "g"), tmp_path / "m.gguf", mmproj=True) as plan:
        assert not any("no folder" in loss.message for loss in plan.losses)
        plan.run()
    found = wb.open(tmp_path / "m.gguf")["v.position_embd.weight"].numpy()
    name = "vision_model.radio_model.model.patch_generator.pos_embed"
    assert np.array_equal(found, load_file(tmp_path / "g" / "model.safetensors")[name])


# ---------------------------------------------------------------- numbers

GRIDS = [(128, 32, 64), (8, 12, 16), (7, 4, 64), (9, 7, 3), (5, 1, 16), (1, 3, 16)]


def grid(side: int, width: int) -> Any:
    return np.random.default_rng(side).normal(0, 0.25, (side * side, width)).astype(np.float32)


def interpolated(values: Any, before: int, after: int) -> Any:
    """As conversion/nemotron.py resizes (llama.cpp b11549)."""
    torch = pytest.importorskip("torch")
    image = torch.from_numpy(values).reshape(1, before, before, -1).permute(0, 3, 1, 2)
    resized = torch.nn.functional.interpolate(image, size=(after, after), mode="bilinear", align_corners=True)
    return resized.permute(0, 2, 3, 1).reshape(after * after, -1).numpy()


@pytest.mark.parametrize(("before", "after", "width"), GRIDS)
def test_a_resized_grid_is_torch_s(before: int, after: int, width: int) -> None:
    values = grid(before, width)
    found = resized_grid(nodes.const(values, F32), after).read_all().view(np.float32).reshape(-1, width)
    # the last bits of torch depend on whether the processor multiplies and adds in one step
    assert np.abs(found - interpolated(values, before, after)).max() <= 2.0**-23


@pytest.mark.parametrize("name", ["nemotron-vl", "nemotron-omni"])
def test_the_golden_of_the_reference_has_these_bits(name: str) -> None:
    """The digest that test_projectors.py compares is of a tensor that was resized."""
    (found,) = [t for t in golden()[name]["reference"]["f32"]["tensors"] if t[0] == "v.position_embd.weight"]
    assert (
        found[2] == [1, 16, 64] != golden()[name]["names"]["vision_model.radio_model.model.patch_generator.pos_embed"]
    )


@pytest.mark.parametrize("dtype", [F32, F16, BF16, Q8_0])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_summed_parts_are_torch_s(parts: int, dtype: Any) -> None:
    torch = pytest.importorskip("torch")
    source = nodes.cast(nodes.const(grid(6, 64 * parts), F32), dtype)
    kind = np.float16 if dtype is F16 else np.float32
    stored = nodes.cast(source, dtype if dtype is F16 else F32).read_all().view(kind).reshape(36, -1)
    node = summed_parts(source, parts)
    assert node.spec.dtype is (F16 if dtype is F16 else F32)
    want = torch.from_numpy(stored).view(36, parts, 64).sum(dim=1).numpy()
    assert node.read_all().tobytes() == want.tobytes()


@given(st.sampled_from(["resized", "summed"]), st.data())
def test_reads_are_additive_and_within_their_scratch(kind: str, data: st.DataObject) -> None:
    source = nodes.const(grid(9, 96), F32)
    node = resized_grid(source, 4) if kind == "resized" else summed_parts(source, 3)
    whole, width = node.read_all(), node.spec.row_bytes
    a, b = sorted(data.draw(st.integers(0, node.spec.rows)) for _ in range(2))
    out = np.empty((b - a) * width, np.uint8)
    with traced_memory() as memory:
        node.read(a, b, out)
    assert out.tobytes() == whole[a * width : b * width].tobytes()
    assert memory.peak <= node.scratch(a, b) + 64_000
    assert all(0 <= run.lo < run.hi <= source.spec.rows for run in node.needs(a, b))


def test_a_large_grid_is_read_line_by_line() -> None:
    """RADIO's grid is 84 MB; two of its lines are 1.3 MB."""
    node = resized_grid(nodes.zeros((128 * 128, 1280), F32), 32)
    assert node.scratch(0, node.spec.rows) < 4 << 20 < node.spec.nbytes


@given(*[st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**60), max_value=2.0**60)] * 3)
def test_a_product_and_a_sum_are_rounded_once(a: float, b: float, c: float) -> None:
    found = functions.multiply_add(np.array([a], np.float32), np.float32(b), np.array([c], np.float32))[0]
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    around = [np.nextafter(found, np.float32(end)) for end in (-np.inf, np.inf)]
    assert all(abs(Fraction(float(found)) - exact) <= abs(Fraction(float(near)) - exact) for near in around)


def test_a_product_and_a_sum_are_rounded_once_at_a_half() -> None:
    """The sum in F64 is half way between two F32: what it has lost decides."""
    first, second = (np.float32(2.0**-12 * (1 + sign * 2.0**-20)) for sign in (1, -1))
    for sign in (1, -1):
        to = np.array([sign * (1 + 2.0**-23)], np.float32)
        found = functions.multiply_add(np.array([sign * first], np.float32), second, to)
        assert found == to  # F64 alone would return the next number
        assert found != np.float32(np.float64(first) * second * sign + to.astype(np.float64))
    values = np.array([np.inf, -np.inf, np.nan], np.float32)
    assert functions.multiply_add(values, np.float32(1), np.ones(3, np.float32)).tobytes() == (values + 1).tobytes()


@pytest.mark.parametrize("build", [
    lambda t: resized_grid(t, 2), lambda t: resized_grid(nodes.slice_rows(t, 0, (4, 4)), 0),
    lambda t: summed_parts(t, 3), lambda t: summed_parts(t, 0),
])  # fmt: skip
def test_what_has_no_such_form_is_refused(build: Any) -> None:
    with pytest.raises(FormatError):
        build(nodes.const(np.ones((6, 4), np.float32), F32))
