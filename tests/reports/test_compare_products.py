"""`wb diff`, `prove`, `lineage`, `stats` and `du` of every recorded model, also of those that see or hear: a model is
the same in each form, a changed tensor is found, and what a form can't hold is said by the conversion, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.conversion.product_models import (
    DRAFTS,
    SEEING,
    TEXT,
    errors,
    small_models,
    tensors_of,
    to_gguf,
    turn,
    with_fault,
    write_model,
    write_seeing,
)
from tests.models.family_judges import golden as families

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError, WeighbridgeError
from weighbridge.reports.stores.duplicates import usage

Write = Callable[..., Path]
CASES = [*((name, write_model) for name in TEXT), *((name, write_seeing) for name in SEEING)]
every_model = pytest.mark.parametrize(("name", "write"), CASES, ids=[f"{w.__name__[6:]}-{n}" for n, w in CASES])
GGUFS = sorted({*TEXT} - DRAFTS)
#: In MLX's form mlx-lm's class lacks a tensor that the family's needs, so names can't be mapped.
UNNAMED = {"ernie4.5-moe", "ernie4.5-moe-large"}
#: What mlx-lm can't compute, so that nothing is written.
REFUSED = {"ling3"}
IN_MLX = sorted(name for name in {*TEXT} - UNNAMED - REFUSED if families()[name].get("mlx"))


def changes(report: Any) -> list[tuple[str, str]]:
    return [(change.name, change.kind) for change in report.tensors if change.kind not in ("equal", "type")]


def assert_proven(report: Any, losses: Iterable[Any]) -> None:
    """All tensors are the same. Settings are, too, or the conversion said that results change."""
    said = [loss.message for loss in losses if loss.effect == "results" or "won't load" in loss.message]
    for check in report.checks:
        if check.name == "settings" and check.verdict == "different":
            assert said, check.details
        elif check.name != "loads":  # a model this small may be one that its program refuses
            assert check.verdict == "same", (check.name, check.message, check.details[:3])


def written(source: Path, target: Path | str, **options: Any) -> Any:
    """The losses of a conversion."""
    with small_models(), wb.plan_convert(source, target, **options) as plan:
        plan.run()
        return plan.losses


@every_model
def test_a_model_equals_itself_and_one_changed_tensor_is_found(name: str, write: Write, tmp_path: Path) -> None:
    a = write(name, tmp_path / "a")
    assert wb.diff(a, a)
    fault, changed = with_fault(tmp_path / "fault", a, name)
    assert changes(wb.diff(a, fault)) == [(changed, "values")]
    report = wb.prove(a, fault, run=False)
    assert [check.verdict for check in report.checks if check.name == "tensors"] == ["different"]


@every_model
def test_every_parameter_is_counted(name: str, write: Write, tmp_path: Path) -> None:
    heat: Any = wb.stats(write(name, tmp_path / "a"), statistic="parameters")
    stored = sum(tensor.size for tensor in tensors_of(tmp_path / "a").values())
    assert sum(cell for row in heat.cells for cell in row if cell is not None) == stored
    assert heat.skipped == ()


#: Models of which a GGUF has other values than the folder, which the conversion says: summed experts' biases, adapters
#: whose product it has, padded rows.
OTHER_VALUES = {"nomic-bert-moe", "jina-bert-v3", "gemma3n-padded"}
#: Rows of positions that no token uses. A GGUF has none of them, so they are zeros there, as the conversion says.
UNUSED = "position.unused.weight"
#: A change of the last bits, of norms that one form has plus 1.
ROUNDING = 1e-14


def assert_same(report: Any, losses: Iterable[Any]) -> None:
    """All tensors are equal, apart from those that the conversion left out."""
    missing = [name for name, kind in changes(report) if kind == "only in a"]
    assert not missing or any(loss.tensor for loss in losses), missing
    changed = [c for c in report.tensors if c.name != UNUSED or not any("no token uses" in x.message for x in losses)]
    assert [c for c in changed if c.kind in ("only in b", "renamed", "shape")] == []
    assert [c for c in changed if c.kind == "values" and (c.nmse or 0) > ROUNDING] == []


@pytest.mark.parametrize("name", sorted({*GGUFS} - OTHER_VALUES))
def test_a_gguf_is_the_same_model(name: str, tmp_path: Path) -> None:
    a = write_model(name, tmp_path / "a")
    losses = written(a, tmp_path / "whole.gguf", dtype="f32", tokenizer=False)
    assert_same(wb.diff(a, tmp_path / "whole.gguf"), losses)


@pytest.mark.parametrize("name", sorted({*GGUFS} - OTHER_VALUES))
def test_a_gguf_is_proven_and_a_fault_is_found(name: str, tmp_path: Path) -> None:
    a, target = write_model(name, tmp_path / "a"), tmp_path / "out.gguf"
    losses = written(a, target, dtype=turn(name, ["f32", "bf16", "q8_0"]), tokenizer=False)
    assert_proven(wb.prove(a, target, run=False), losses)
    fault, changed = with_fault(tmp_path / "fault", a, name)
    report = wb.prove(fault, target, run=False)
    found = {check.name: check.verdict for check in report.checks}["tensors"] == "different"
    assert found or report.notes, changed  # the notes name tensors that a GGUF doesn't have


#: Models whose linear attention, experts or mixers a GGUF has in other layouts: a type is that of the stored tensor.
LAID_OUT = ["dbrx", "qwen35", "qwen35moe", "rwkv6", "arwkv7", "plamo", "bitnet", "deepseek-v3", "gpt2", "mamba2"]


@pytest.mark.parametrize("ftype", ["Q8_0", "Q4_K_M", "IQ4_XS", "MXFP4_MOE", "Q2_K"])
@pytest.mark.parametrize("name", LAID_OUT)
def test_quantized_layouts_are_proven(name: str, ftype: str, tmp_path: Path) -> None:
    a = write_model(name, tmp_path / "a")
    with small_models():
        wb.quantize(a, tmp_path / "out.gguf", ftype, tokenizer=False)
    report = wb.prove(a, tmp_path / "out.gguf", run=False)
    assert [check.details[:3] for check in report.checks if check.name == "tensors" and check.verdict != "same"] == []


@pytest.mark.parametrize("name", IN_MLX)
def test_a_folder_of_mlx_is_the_same_model(name: str, tmp_path: Path) -> None:
    a, target = write_model(name, tmp_path / "a"), tmp_path / "mlx"
    losses = written(a, target, to="mlx")
    assert_same(wb.diff(a, target), losses)
    assert_proven(wb.prove(a, target, run=False), losses)
    fault, changed = with_fault(tmp_path / "fault", a, name)
    report = wb.prove(fault, target, run=False)
    found = {check.name: check.verdict for check in report.checks}["tensors"] == "different"
    assert found or report.notes, changed
    pair = wb.lineage([a, target]).pairs[0]  # without layers that MLX lacks, or with factors multiplied in and rounded
    assert pair.relation in ("same", "pruned", "slices") or (pair.distance or 1) < 1e-7


@pytest.mark.parametrize("name", IN_MLX)
def test_a_folder_made_of_mlx_is_proven(name: str, tmp_path: Path) -> None:
    """Settings that mlx-lm doesn't read are said in this direction, too."""
    losses = written(write_model(name, tmp_path / "a"), tmp_path / "mlx", to="mlx")
    wb.convert(tmp_path / "mlx", tmp_path / "back", to="hf")
    assert_proven(wb.prove(tmp_path / "mlx", tmp_path / "back", run=False), losses)
    settings = {check.name: check for check in wb.prove(tmp_path / "mlx", tmp_path / "back", static=True).checks}
    assert all("mlx-lm doesn't read it" in text for text in settings["settings"].details)


#: Configs that tie the head for the whole model and not for its language model, and one without a table of its text.
UNCLEAR = {"internvl-silu", "mistral3", "qwen2-vl-model", "phi4-vision"}


@pytest.mark.parametrize("name", sorted({*SEEING} - UNCLEAR))
def test_a_folder_of_mlx_vlm_is_the_same_model(name: str, tmp_path: Path) -> None:
    """With its towers. Which settings mlx-vlm reads isn't known, so they are never called the same."""
    a, target = write_seeing(name, tmp_path / "a"), tmp_path / "mlx"
    try:
        losses = written(a, target, to="mlx", towers=True)
    except UnsupportedError:
        return
    assert errors(target) <= errors(a)
    assert_same(wb.diff(a, target), losses)
    assert wb.lineage([a, target]).pairs[0].relation in ("same", "pruned")
    fault, changed = with_fault(tmp_path / "fault", a, name)
    verdicts = [
        {check.name: check.verdict for check in wb.prove(source, target, run=False).checks} for source in (a, fault)
    ]
    assert verdicts[0]["settings"] == "not-checked"
    assert [each["tensors"] for each in verdicts] == ["same", "different"], changed


@pytest.mark.parametrize("name", sorted({*SEEING} - {"mistral3"}))  # whose record has a tokenizer without tokens
def test_a_pair_of_ggufs_is_the_same_model(name: str, tmp_path: Path) -> None:
    a = write_seeing(name, tmp_path / "a")
    try:
        losses = written(a, f"{tmp_path / 'pair'}/", to="gguf", with_mmproj=True, dtype="f32", tokenizer=False)
    except WeighbridgeError:
        return
    for path in (tmp_path / "pair").iterdir():
        assert_proven(wb.prove(a, path, run=False), losses)
        assert_same(wb.diff(a, path), losses)


def test_du_names_a_model_in_several_forms(tmp_path: Path) -> None:
    a = write_model("olmoe", tmp_path / "a")
    write_model("olmoe", tmp_path / "copy")
    to_gguf(a, tmp_path / "whole.gguf", "f32")
    wb.convert(a, tmp_path / "shards", max_shard_tensors=5)
    report = usage([str(tmp_path)])
    on_disk = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert report.bytes <= on_disk
    assert [len(duplicate.paths) for duplicate in report.duplicates if duplicate.wasted > 10_000] == [2]
