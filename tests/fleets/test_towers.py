"""Fleets that write the vision and audio towers, too: each output is that of the single command."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fleets.inline import InlineRunner
from tests.models.projector_cases import golden, write_folder
from tests.remote.test_towers import words

import weighbridge as wb
from weighbridge.base.errors import UsageError
from weighbridge.cli.main import main
from weighbridge.fleets.job import Job
from weighbridge.fleets.report import FleetReport
from weighbridge.fleets.run import Fleet
from weighbridge.io.sink import parallel

CONVERT = Job("convert", {"to": "gguf", "suffix": "/", "dtype": "f16", "with_mmproj": True})
QUANTIZE = Job("quantize", {"ftype": "Q8_0", "suffix": "-Q8_0/", "with_mmproj": True})
SINGLE: dict[str, tuple[Callable[[Path, str], Any], str]] = {
    "convert": (lambda source, out: wb.convert(source, out, dtype="f16", with_mmproj=True), "a.b/a.b.gguf"),
    "quantize": (lambda source, out: wb.quantize(source, out, "Q8_0", with_mmproj=True), "a.b-Q8_0/a.b-Q8_0.gguf"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that sees, whose folder is called like a file with a suffix."""
    root: Path = tmp_path_factory.mktemp("fleet") / "in"
    root.mkdir()
    words(write_folder(golden()["smolvlm"], root / "a.b"))
    return root


def outputs(target: Path) -> dict[str, bytes]:
    return {p.relative_to(target).as_posix(): p.read_bytes() for p in target.rglob("*") if p.is_file()
            and "_fleet" not in p.parts}  # fmt: skip


def single(op: str, models: Path, tmp_path: Path) -> dict[str, bytes]:
    """The files of the single command, by their names below a fleet's target."""
    run, text = SINGLE[op]
    run(models / "a.b", f"{tmp_path}/single/{Path(text).parent}/")
    return outputs(tmp_path / "single")


def rows(target: Path, report: FleetReport) -> list[dict[str, Any]]:
    lines = (target / "_fleet" / report.job / "report" / "00000.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("job", [CONVERT, QUANTIZE], ids=["convert", "quantize"])
def test_both_files_are_those_of_the_single_command(job: Job, models: Path, tmp_path: Path) -> None:
    expected, target = single(job.op, models, tmp_path), tmp_path / "out"
    report = Fleet(job, (str(models / "a.b"),), str(target)).run(InlineRunner())
    assert (report.failed, report.exit, report.written) == (0, 0, sum(map(len, expected.values())))
    assert outputs(target) == expected
    (row,) = rows(target, report)
    assert row["output"] == str(target / Path(SINGLE[job.op][1]).parent)
    assert {f"{Path(row['output']).name}/{name}" for name in row["details"]["files"]} == expected.keys()
    assert not [loss for loss in row["details"]["losses"] if "another part of the model" in loss]


def test_to_a_bucket_and_again_after_a_run_that_died(bucket: Any, models: Path, tmp_path: Path) -> None:
    expected = single("convert", models, tmp_path)
    here = Fleet(CONVERT, (str(models / "a.b"),), "s3://models/out")
    assert here.run(InlineRunner()).failed == 0

    def stored() -> dict[str, bytes]:
        listed = bucket.list_objects_v2(Bucket="models", Prefix="out/")["Contents"]
        return {r["Key"]: bucket.get_object(Bucket="models", Key=r["Key"])["Body"].read() for r in listed}

    before = stored()
    assert {name: before[f"out/{name}"] for name in expected} == expected
    for key in [key for key in before if "/journal/" in key]:
        bucket.delete_object(Bucket="models", Key=key)
    assert here.run(InlineRunner()).failed == 0
    assert stored() == before


def test_pairs_of_ggufs_are_quantized_as_pairs(models: Path, tmp_path: Path) -> None:
    pair = tmp_path / "pairs" / "a.b"
    wb.convert(models / "a.b", f"{pair}/", to="gguf", dtype="f16", with_mmproj=True)
    report = Fleet(QUANTIZE, (str(tmp_path / "pairs"),), str(tmp_path / "out")).run(InlineRunner())
    assert (report.failed, report.items) == (0, 1)
    wb.quantize(pair, f"{tmp_path}/single/a.b-Q8_0/", "Q8_0", with_mmproj=True)
    single, found = outputs(tmp_path / "single"), outputs(tmp_path / "out")
    assert {name.removeprefix("pairs/a.b/"): data for name, data in found.items()} == single
    (alone,) = pair.glob("mmproj*")
    with pytest.raises(UsageError, match="has no models"):
        Fleet(QUANTIZE, (str(alone),), str(tmp_path / "none")).run(InlineRunner())


def test_a_run_that_died_is_continued_in_a_folder(models: Path, tmp_path: Path) -> None:
    expected, target = single("convert", models, tmp_path), tmp_path / "out"
    here = Fleet(CONVERT, (str(models / "a.b"),), str(target))
    report = here.run(InlineRunner())
    shutil.rmtree(target / "_fleet" / report.job / "journal")
    (target / SINGLE["convert"][1]).unlink()
    assert here.run(InlineRunner()).failed == 0
    assert outputs(target) == expected


@pytest.mark.costly
def test_parts_of_both_files_are_the_whole(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "ALIGNMENT", 4096)
    expected, target, whole = single("convert", models, tmp_path), tmp_path / "out", tmp_path / "whole"
    report = Fleet(CONVERT, (str(models / "a.b"),), str(target), task_size=65536).run(InlineRunner())
    assert report.failed == 0
    assert outputs(target) == expected
    complete = Fleet(CONVERT, (str(models / "a.b"),), str(whole)).run(InlineRunner())
    (row,), (other,) = rows(target, report), rows(whole, complete)
    assert row | {"output": None} == other | {"output": None}


@pytest.mark.parametrize("op", ["convert", "quantize"])
def test_the_command_takes_the_option(op: str, models: Path, tmp_path: Path) -> None:
    kind = ["--to", "gguf", "--dtype", "f16"] if op == "convert" else ["--type", "q8_0"]
    command = ["fleet", op, str(models / "a.b"), "-o", str(tmp_path / "out"), "--with-mmproj", "--processes", "1"]
    assert main([*command, *kind]) == 0
    assert outputs(tmp_path / "out") == single(op, models, tmp_path)


def test_other_formats_are_refused(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["fleet", "convert", str(models / "a.b"), "-o", str(tmp_path / "out"), "--to", "hf", "--with-mmproj"]
    assert main(command) == 2
    assert "--with-mmproj doesn't apply to --to hf" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_model_without_towers_fails_as_the_single_command_does(tmp_path: Path) -> None:
    from tests.reports.makers import llama_folder

    model, target = llama_folder(tmp_path / "llama"), tmp_path / "out"
    with pytest.raises(wb.errors.WeighbridgeError) as error:
        wb.convert(model, f"{tmp_path}/single/", to="gguf", with_mmproj=True)
    report = Fleet(CONVERT, (str(model),), str(target)).run(InlineRunner())
    (row,) = rows(target, report)
    assert report.failed == 1
    assert error.value.message.split("class")[0] in row["error"]
    assert outputs(target) == {}
