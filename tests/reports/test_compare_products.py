"""`wb diff`, `prove`, `lineage`, `stats` and `du` of every recorded model, also of those that see or hear: a model is
the same in each form, a changed tensor is found, and what a form can't hold is said by the conversion, too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
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
from weighbridge.models.open import open_model
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
    assert wb.lineage([a, target]).pairs[0].relation in ("same", "pruned", "slices")  # without layers that MLX lacks


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


def with_other_setting(folder: Path, name: str) -> str:
    """Changes one number in config.json, and returns its path. `name`: chooses it."""
    config = json.loads((folder / "config.json").read_text())
    numbers = sorted(path for path, value in numbers_in(config) if abs(value) < 1e6)  # which F32 tells from the next
    steps = turn(name, numbers).split(".")
    part = reduce(lambda value, key: value[key], steps[:-1], config)
    part[steps[-1]] += 1
    (folder / "config.json").write_text(json.dumps(config))
    return ".".join(steps)


def numbers_in(value: dict[str, Any], start: str = "") -> Iterator[tuple[str, float]]:
    for key, below in value.items():
        if isinstance(below, dict):
            yield from numbers_in(below, f"{start}{key}.")
        elif isinstance(below, int | float) and not isinstance(below, bool):
            yield f"{start}{key}", below


@pytest.mark.parametrize("name", sorted({*SEEING} - UNCLEAR))
def test_a_folder_of_mlx_vlm_is_the_same_model(name: str, tmp_path: Path) -> None:
    """With its towers, and every setting that mlx-vlm may read; a changed one is found."""
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
    assert {*verdicts[0].values()} == {"same"}
    changed_key = with_other_setting(target, name)
    found = {check.name: check.verdict for check in wb.prove(a, target, static=True).checks}
    assert found["settings"] != "same", changed_key
    assert [each["tensors"] for each in verdicts] == ["same", "different"], changed


@pytest.mark.parametrize("name", ["gemma3", "internvl-chat", "qwen2.5-omni", "qwen2-audio"])
def test_towers_that_are_missing_or_changed_are_found(name: str, tmp_path: Path) -> None:
    """As a whole, too: a folder of a class that sees isn't the same model without them."""
    a = write_seeing(name, tmp_path / "a")
    with open_model(a) as model:
        towers = model.resolved.report.apart
    tensors = tensors_of(a)
    for kind, kept in (
        ("only in a", {n: tensor for n, tensor in tensors.items() if n not in towers}),
        ("values", {n: tensor * np.float32(1.5) if n in towers else tensor for n, tensor in tensors.items()}),
    ):
        b = copytree(a, tmp_path / kind)
        save_file(kept, b / "model.safetensors", {"format": "pt"})
        assert {row[1] for row in changes(wb.diff(a, b))} == {kind}
        assert wb.prove(a, b, run=False).verdict == "different"
        lineage = wb.lineage([a, b])
        assert lineage.pairs[0].relation == ("fine-tuned" if kind == "values" else "same")
        assert bool(lineage.notes) == (kind != "values")  # on the towers that aren't compared


def with_modules(folder: Path) -> Path:
    """The dense modules of sentence-transformers behind a model of width 64."""
    rng, kind = np.random.default_rng(7), "sentence_transformers.models."
    listed = [{"idx": 0, "name": "0", "path": "", "type": f"{kind}Transformer"}]
    for name, shape in (("2_Dense", (96, 64)), ("3_Dense", (64, 96))):
        listed.append({"idx": len(listed), "name": name, "path": name, "type": f"{kind}Dense"})
        (folder / name).mkdir()
        weight = rng.normal(0, 0.3, shape).astype(np.float32)
        save_file({"linear.weight": weight}, folder / name / "model.safetensors")
        sizes = {"in_features": shape[1], "out_features": shape[0], "bias": False}
        (folder / name / "config.json").write_text(json.dumps(sizes))
    (folder / "modules.json").write_text(json.dumps(listed))
    return folder


def test_dense_modules_are_tensors_of_the_model(tmp_path: Path) -> None:
    """Whether they are in files of their own or in a GGUF."""
    a = with_modules(write_model("gemmaembedding", tmp_path / "a"))
    for target, options in (("with.gguf", {"dense_modules": True}), ("without.gguf", {})):
        to_gguf(a, tmp_path / target, "f32", **options)
    wb.convert(tmp_path / "with.gguf", tmp_path / "back", to="hf")
    for b in (tmp_path / "with.gguf", tmp_path / "back"):
        assert changes(wb.diff(a, b)) == []
        assert tensors_verdict(a, b) == "same"
    assert {pair.relation for pair in wb.lineage([a, tmp_path / "with.gguf", tmp_path / "back"]).pairs} == {"same"}
    assert changes(wb.diff(a, tmp_path / "without.gguf")) == [(f"dense.{n}.weight", "only in a") for n in (2, 3)]
    path = a / "2_Dense" / "model.safetensors"
    save_file({name: -tensor for name, tensor in load_file(path).items()}, path)
    assert changes(wb.diff(a, tmp_path / "with.gguf")) == [("dense.2.weight", "values")]
    assert [tensors_verdict(a, b) for b in (tmp_path / "with.gguf", tmp_path / "back")] == ["different"] * 2


def tensors_verdict(a: Path, b: Path) -> str:
    return next(check.verdict for check in wb.prove(a, b, run=False).checks if check.name == "tensors")


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
        assert wb.lineage([a, path]).pairs[0].relation in ("same", "quantized")  # convolutions in F16


def every_form(folder: Path) -> None:
    """A model as folders, shards, GGUFs and MLX, one that sees as a pair of files, and names of files that exist."""
    a = write_model("olmoe", folder / "a")
    write_model("olmoe", folder / "copy")
    to_gguf(a, folder / "whole.gguf", "f32")
    wb.convert(a, folder / "shards", max_shard_tensors=5)
    wb.convert(a, folder / "mlx", to="mlx")
    seeing = write_seeing("gemma3", folder / "nested" / "seeing")
    with small_models():
        wb.convert(seeing, f"{folder / 'nested' / 'pair'}/", to="gguf", with_mmproj=True, tokenizer=False)
    (folder / "linked.gguf").hardlink_to(folder / "whole.gguf")
    (folder / "nested" / "elsewhere").symlink_to(folder / "a", target_is_directory=True)
    with (folder / "sparse.gguf").open("wb") as file:
        file.truncate(3 << 20)


def bytes_of(paths: Iterable[Path]) -> int:
    """Of regular files, each once however many names it has."""
    files = (path.stat() for path in paths if path.is_file() and not path.is_symlink())
    return sum({(stat.st_dev, stat.st_ino): stat.st_size for stat in files}.values())


def test_du_counts_every_byte_once(tmp_path: Path) -> None:
    """However the folders are given: whole, with a part of it, or its parts."""
    (tmp_path / "nested").mkdir()
    every_form(tmp_path)
    whole = bytes_of(tmp_path.rglob("*"))
    nested = bytes_of(path for path in (tmp_path / "nested").rglob("*") if "elsewhere" not in path.parts)
    for roots in ([tmp_path], [tmp_path, tmp_path / "nested"], [tmp_path / "nested", tmp_path], [tmp_path, tmp_path]):
        report = usage(roots)
        assert report.bytes == sum(row.bytes for row in report.usage) == whole, roots
    assert usage([tmp_path / "nested"]).bytes == nested
    assert {row.path: row.bytes for row in usage([tmp_path, tmp_path / "nested"]).usage} == {
        str(tmp_path): whole - nested, str(tmp_path / "nested"): nested,
    }  # fmt: skip
    (tmp_path / "a" / "config.json").write_bytes(b"{}")  # a file of a few bytes counts, too
    assert usage([tmp_path]).bytes == bytes_of(tmp_path.rglob("*")) != whole


def test_du_names_a_model_in_several_forms(tmp_path: Path) -> None:
    a = write_model("olmoe", tmp_path / "a")
    write_model("olmoe", tmp_path / "copy")
    to_gguf(a, tmp_path / "whole.gguf", "f32")
    wb.convert(a, tmp_path / "shards", max_shard_tensors=5)
    report = usage([str(tmp_path)])
    on_disk = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert report.bytes <= on_disk
    assert [len(duplicate.paths) for duplicate in report.duplicates if duplicate.wasted > 10_000] == [2]
