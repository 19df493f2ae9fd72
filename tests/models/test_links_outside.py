"""Training checkpoints with a link to something outside their folder: no command reads that, for any trainer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.containers import dcp_cases, megatron_cases, zero_cases
from tests.containers.framework_files import GOLDEN
from tests.golden_files import extracted

import weighbridge as wb
from weighbridge.base.errors import RefusedError
from weighbridge.reports.stores.duplicates import usage


def _dcp(folder: Path) -> tuple[Path, str]:
    return dcp_cases.unpack("one", folder), "__0_0.distcp"


def _zero(folder: Path) -> tuple[Path, str]:
    step = zero_cases.unpack(folder) / "stage2" / "global_step2"
    return step, next(path.name for path in sorted(step.iterdir()) if path.name.endswith("_optim_states.pt"))


def _megatron(folder: Path) -> tuple[Path, str]:
    run = megatron_cases.unpack(folder) / "tensor"
    rank = next(path.parent for path in sorted(run.rglob("model_optim_rng.pt")))
    return rank.parent, rank.name  # the whole folder of a rank


def _orbax(folder: Path) -> tuple[Path, str]:
    top = extracted(GOLDEN.with_name("orbax.zip"), folder) / "plain"
    return top, next(path.relative_to(top).as_posix() for path in sorted((top / "d").iterdir()))


TRAINERS: dict[str, Callable[[Path], tuple[Path, str]]] = {
    "dcp": _dcp, "deepspeed": _zero, "megatron": _megatron, "orbax": _orbax
}  # fmt: skip


@pytest.fixture(scope="module", params=TRAINERS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that is good but for one link."""
    top = tmp_path_factory.mktemp("links")
    folder, name = TRAINERS[request.param](top / "inside")
    with wb.open(folder) as model:
        assert len(model)
    outside = shutil.move(folder / name, top / "outside")
    (folder / name).symlink_to(outside)
    return folder


READERS: dict[str, Callable[[Path, Path], Any]] = {
    "open": lambda folder, _: wb.open(folder),
    "inspect": lambda folder, _: wb.inspect(folder),
    "get": lambda folder, _: wb.get(f"{folder}::w"),
    "stats": lambda folder, _: wb.stats(folder),
    "convert": lambda folder, target: wb.convert(folder, target / "out.safetensors"),
    "hash": lambda folder, _: wb.hash(folder),
    "all parts": lambda folder, target: wb.convert(folder, target / "out.safetensors", all_parts=True),
}


@pytest.mark.parametrize("reader", READERS)
def test_nothing_outside_is_read(reader: str, checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="outside the checkpoint's folder"):
        READERS[reader](checkpoint, tmp_path)
    assert not list(tmp_path.iterdir())


def test_reports_name_the_link(checkpoint: Path) -> None:
    assert "scan/link-outside" in {finding.rule for file in wb.scan(checkpoint).files for finding in file.findings}
    findings = wb.verify(checkpoint).findings
    assert any("outside" in finding.message or "leaves the folder" in finding.message for finding in findings)
    identity = wb.identify(checkpoint)
    assert not identity
    assert any("outside the checkpoint's folder" in damage for damage in identity.damage)
    assert any("outside the checkpoint's folder" in note for note in usage([checkpoint]).unreadable)


def test_a_step_outside_of_its_run_is_refused(tmp_path: Path) -> None:
    step = dcp_cases.unpack("one", tmp_path / "elsewhere")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "step-7").symlink_to(step)
    with pytest.raises(RefusedError, match="outside the checkpoint's folder"):
        wb.open(tmp_path / "run")
    with wb.open(step) as model:
        assert len(model)


def test_links_inside_are_followed(tmp_path: Path) -> None:
    folder = dcp_cases.unpack("one", tmp_path)
    (folder / "data").mkdir()
    inner = shutil.move(folder / "__0_0.distcp", folder / "data" / "0")
    (folder / "__0_0.distcp").symlink_to(inner)
    with wb.open(folder) as model:
        assert len(model)
