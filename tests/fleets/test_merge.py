"""`wb fleet merge`: what `wb merge` writes, by one task or by several, for each recipe."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from tests.conversion.merging_cases import RECIPES, write_models
from tests.fleets.inline import InlineRunner

import weighbridge as wb
from weighbridge.base.limits import MIB
from weighbridge.cli.main import main
from weighbridge.fleets.job import Job
from weighbridge.fleets.run import Fleet
from weighbridge.fleets.runners import LocalRunner
from weighbridge.io.sink import parallel

NAMES = ("slerp", "ties", "dare_ties of all")
MERGE = Job("merge", {"to": "safetensors", "suffix": ".safetensors"})


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    """Recipes next to their models, which they name relative to themselves."""
    folder = write_models(tmp_path / "recipes")
    for name in NAMES:
        (folder / f"{name.split()[0]}.yaml").write_text(yaml.safe_dump(dict(RECIPES[name])))
    return folder


def outputs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*.safetensors")}


@pytest.fixture
def expected(recipes: Path, tmp_path: Path) -> dict[str, bytes]:
    for path in recipes.glob("*.yaml"):
        wb.merge(path, tmp_path / "single" / f"{path.stem}.safetensors", parents=True)
    return outputs(tmp_path / "single")


@pytest.mark.costly
@pytest.mark.parametrize("runner", [InlineRunner(), LocalRunner(2)], ids=["inline", "processes"])
def test_each_recipe_is_the_single_merge(
    runner: Any, recipes: Path, tmp_path: Path, expected: dict[str, bytes]
) -> None:
    report = Fleet(MERGE, (str(recipes),), str(tmp_path / "out")).run(runner)
    assert report.exit == 0
    assert outputs(tmp_path / "out") == expected
    assert len(expected) == len(NAMES)


def test_parts_of_one_merge_are_the_whole(
    recipes: Path, tmp_path: Path, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "ALIGNMENT", 1 << 12)
    fleet = Fleet(MERGE, (str(recipes / "dare_ties.yaml"),), str(tmp_path / "out"), task_size=1 << 12)
    planned: list[Any] = []

    class Counting(InlineRunner):
        def map(self, function: Any, tasks: Any) -> Any:
            for task in tasks:
                planned.append(task)
                yield task, function(task)

    assert fleet.run(Counting()).exit == 0
    assert len(planned) > 1
    assert outputs(tmp_path / "out") == {"dare_ties.safetensors": expected["dare_ties.safetensors"]}


def test_a_changed_model_is_a_dead_letter(recipes: Path, tmp_path: Path) -> None:
    fleet = Fleet(MERGE, (str(recipes / "ties.yaml"),), str(tmp_path / "out"))
    fleet.manifest()
    os.utime(recipes / "two" / "model.safetensors", ns=(1, 1))
    assert fleet.run(InlineRunner()).exit == 2
    assert not outputs(tmp_path / "out")


def test_what_is_no_recipe_is_reported(recipes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (recipes / "broken.yml").write_text("a: [")
    (recipes / "lost.yml").write_text(json.dumps({"merge_method": "linear", "models": [{"model": "./nowhere"}]}))
    report = Fleet(MERGE, (str(recipes),), str(tmp_path / "out")).run(InlineRunner())
    assert report.exit == 2
    assert len(outputs(tmp_path / "out")) == len(NAMES)
    words = ["fleet", "merge", str(recipes / "one"), "-o", str(tmp_path / "none"), "--to", "safetensors"]
    assert main(words) == 2
    assert "has no recipes" in capsys.readouterr().err


@pytest.mark.costly
def test_the_command(recipes: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
    words = ["fleet", "merge", str(recipes / "*.yaml"), "-o", str(tmp_path / "out"), "--to", "safetensors"]
    assert main([*words, "--dry-run"]) == 0
    assert main([*words, "--task-size", str(MIB)]) == 0
    assert outputs(tmp_path / "out") == expected
