"""Recipes of `wb quantize`: the types of a plan, saved and taken again, for every way to choose them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.llama import make_folder
from tests.oracles import pictures

import weighbridge as wb
from weighbridge.base.errors import RefusedError, UsageError
from weighbridge.base.limits import RECIPE_BYTES
from weighbridge.cli.main import main
from weighbridge.conversion.quantize.imatrix import ImatrixSums, ImportanceMatrix, encode

PARTS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
#: How types are chosen: TYPE and options.
CHOSEN: dict[str, tuple[str, dict[str, Any]]] = {
    "type": ("Q4_0", {}),
    "mixture with fallbacks": ("Q4_K_M", {}),
    "copy": ("COPY", {}),
    "options": ("Q5_1", {"tensor_type": ["attn_v=f16"], "output_tensor_type": "q8_0", "token_embedding_type": "q5_0"}),
    "bits": ("", {"target_bpw": 6}),
    "size": ("", {"target_size": 60_000}),
    "size and options": ("", {"target_bpw": 7, "tensor_type": ["ffn_up=q4_1"], "leave_output_tensor": True}),
    "importance": ("", {"target_bpw": 5, "imatrix": True}),
}


#: (source, way): all ways, but for an image model those whose options it has.
LAW = [
    *((source, way) for source in ("folder", "gguf") for way in CHOSEN),
    *(("image", way) for way in ("type", "mixture with fallbacks", "copy", "bits", "size")),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    here = tmp_path_factory.mktemp("recipes")
    make_folder(here / "folder", words=True)
    random = np.random.default_rng(1)
    wb.convert(here / "folder", here / "model.gguf", dtype="f16")
    for name, names in (
        ("imatrix", [f"blk.{n}.{part}.weight" for n in range(2) for part in PARTS]),
        ("other", ["blk.0.attn_k.weight"]),
    ):
        columns = {n: 96 if "ffn_down" in n else 64 for n in names if n.startswith("blk.")}
        sums = {n: random.random((1, c if name == "imatrix" else 4), np.float32) for n, c in columns.items()}
        entries = {n: ImatrixSums(s, np.ones(1, np.int64)) for n, s in sums.items()}
        (here / name).write_bytes(encode(ImportanceMatrix(entries, ("text",), 1, 512), "gguf"))
    pictures.save(here / "image.safetensors", pictures.values(pictures.flux(256, 32, 1)))
    found = {name: here / name for name in ("folder", "imatrix", "other")}
    return found | {"gguf": here / "model.gguf", "image": here / "image.safetensors"}


@pytest.mark.parametrize(("source", "way"), LAW)
def test_a_recipe_gives_the_same_tensors(models: dict[str, Path], tmp_path: Path, source: str, way: str) -> None:
    ftype, given = CHOSEN[way]
    options = {**given, **({"imatrix": models["imatrix"]} if "imatrix" in given else {})}
    if source == "image" and "target_size" in options:
        options["target_size"] = 6_000_000
    first, again = tmp_path / "first.gguf", tmp_path / "again.gguf"
    plan = wb.plan_quantize(models[source], first, ftype, **options)
    (tmp_path / "recipe").write_text(plan.recipe)
    plan.run()
    kept = {"imatrix": options["imatrix"]} if "imatrix" in options else {}
    other = wb.plan_quantize(models[source], again, recipe=tmp_path / "recipe", **kept)
    assert other.recipe == plan.recipe
    other.run()
    with wb.open(first) as a, wb.open(again) as b:
        assert {n: t.dtype for n, t in a.items()} == {n: t.dtype for n, t in b.items()}
        assert all(np.array_equal(a[name].raw(), b[name].raw()) for name in a)
    if not ftype:  # a mixture has a file type of its own
        assert again.read_bytes() == first.read_bytes()


def test_a_recipe_lists_each_quantizable_tensor_and_no_other(models: dict[str, Path]) -> None:
    plan = wb.plan_quantize(models["folder"], "out.gguf", "Q4_0")
    names = {line.split("=")[0][1:-1].replace("\\", "") for line in plan.recipe.splitlines()}
    assert names == {row.name for row in plan.rows if len(row.shape) == 2}


def test_the_first_match_counts_and_options_come_before(models: dict[str, Path], tmp_path: Path) -> None:
    recipe = tmp_path / "recipe"
    recipe.write_text("attn_k=q4_1\n  attn=q5_0 .*=Q8_0\n")
    plan = wb.plan_quantize(models["folder"], "out.gguf", recipe=recipe, tensor_type=["attn_q=q5_1"])
    types = {row.name: row.target for row in plan.rows}
    assert [types[f"blk.0.{part}.weight"] for part in ("attn_k", "attn_v", "attn_q", "ffn_up")] == \
        ["Q4_1", "Q5_0", "Q5_1", "Q8_0"]  # fmt: skip
    assert types["blk.0.attn_norm.weight"] == "F32"


def test_rows_that_are_not_whole_blocks_have_the_type_that_llama_quantize_takes(models: dict[str, Path]) -> None:
    """Rows have 64 and 96 elements: Q4_K becomes Q5_0, for a size as for a type."""
    sized = wb.plan_quantize(models["folder"], "out.gguf", target_bpw=9, tensor_type=["attn_k=q4_k"])
    typed = wb.plan_quantize(models["folder"], "out.gguf", "Q8_0", tensor_type=["attn_k=q4_k"])
    for plan in (sized, typed):
        row = next(row for row in plan.rows if row.name == "blk.0.attn_k.weight")
        assert (row.target, row.wanted) == ("Q5_0", "Q4_K")
    assert sized.bits <= 9


REFUSED: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "a tensor without a type": ("attn=q8_0", "", {}, r"no type for 8 tensors, first"),
    "a TYPE": (".*=q8_0", "Q4_0", {}, "mutually exclusive"),
    "a size": (".*=q8_0", "", {"target_bpw": 6}, "mutually exclusive"),
    "pure": (".*=q8_0", "", {"pure": True}, "pure=True applies to TYPE"),
    "an unknown type": (".*=q9_9", "", {}, "can't be quantized to 'q9_9'"),
    "no pair": ("all tensors", "", {}, "isn't of the form"),
    "a bad pattern": ("(=q8_0", "", {}, "isn't a regular expression"),
    "an empty file": ("", "", {}, "no type for"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_recipes(models: dict[str, Path], tmp_path: Path, case: str) -> None:
    content, ftype, options, words = REFUSED[case]
    (recipe := tmp_path / "recipe").write_text(content)
    with pytest.raises(UsageError, match=words):
        wb.plan_quantize(models["folder"], "out.gguf", ftype, recipe=recipe, **options)


def test_a_file_that_is_too_large_for_a_recipe(models: dict[str, Path], tmp_path: Path) -> None:
    with (recipe := tmp_path / "recipe").open("wb") as file:
        file.truncate(RECIPE_BYTES + 1)
    with pytest.raises(UsageError, match="too many for a recipe"):
        wb.plan_quantize(models["folder"], "out.gguf", recipe=recipe)


def test_a_pattern_that_matches_nothing_is_listed(models: dict[str, Path], tmp_path: Path) -> None:
    (recipe := tmp_path / "recipe").write_text("nix=q4_0 .*=q8_0")
    plan = wb.plan_quantize(models["folder"], "out.gguf", recipe=recipe)
    assert any("nix matches no tensor" in loss.message for loss in plan.losses)


@pytest.mark.parametrize("how", [{"target_bpw": 5}, {"recipe": True}])
def test_an_importance_matrix_of_another_model_is_refused(
    models: dict[str, Path], tmp_path: Path, how: dict[str, Any]
) -> None:
    (recipe := tmp_path / "recipe").write_text(".*=q4_0")
    options = {"recipe": recipe} if "recipe" in how else how
    with pytest.raises(RefusedError, match="has 4 values for it, not 64"):
        wb.quantize(models["folder"], tmp_path / "out.gguf", imatrix=models["other"], **options)


@pytest.mark.parametrize("how", [{"target_bpw": 5}, {"recipe": True}])
def test_a_quantized_source_is_not_quantized_again(
    models: dict[str, Path], tmp_path: Path, how: dict[str, Any]
) -> None:
    wb.quantize(models["folder"], quantized := tmp_path / "q.gguf", "Q8_0")
    (recipe := tmp_path / "recipe").write_text(".*=q4_0")
    options = {"recipe": recipe} if "recipe" in how else how
    with pytest.raises(RefusedError, match="already quantized to Q8_0"):
        wb.quantize(quantized, tmp_path / "out.gguf", **options)
    wb.quantize(quantized, tmp_path / "out.gguf", allow_requantize=True, **options)


def test_the_command_saves_and_takes_a_recipe(models: dict[str, Path], tmp_path: Path) -> None:
    folder, recipe = str(models["folder"]), tmp_path / "recipe"
    save = ["quantize", folder, str(tmp_path / "a.gguf"), "--target-bpw", "6", "--save-recipe", str(recipe)]
    assert main([*save, "--dry-run"]) == 0
    assert not (tmp_path / "a.gguf").exists()
    assert main(save) == 2  # the recipe is there
    assert main([*save, "--overwrite"]) == 0
    assert main(["quantize", folder, str(tmp_path / "b.gguf"), "--recipe", str(recipe)]) == 0
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert main(["quantize", folder, "--recipe", str(recipe)]) == 2  # no target
    assert main(["quantize", folder, str(tmp_path / "c.gguf"), "--recipe", str(tmp_path / "none")]) == 2
    assert main(["quantize", folder, str(tmp_path / "c.gguf"), "Q8_0", "--tensor-type-file", str(recipe)]) == 0
