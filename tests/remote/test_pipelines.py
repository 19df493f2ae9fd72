"""A diffusers pipeline on the Hub is read, and converted, as the folder is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.oracles import pipelines
from tests.remote.servers import Hub

import weighbridge as wb

pytest.importorskip("huggingface_hub")


def test_it_is_read_from_the_hub(tmp_path: Path, connect: Callable[..., None]) -> None:
    folder = pipelines.write(tmp_path / "p", pipelines.PIPELINES["flux"]())
    with Hub(folder).running() as hub:
        connect(hub)
        here, there = wb.inspect(folder), wb.inspect("hf://org/model")
        assert [tensor.name for tensor in there.tensors] == [tensor.name for tensor in here.tensors]
        assert there.model.architecture == here.model.architecture
        wb.convert("hf://org/model", tmp_path / "remote.safetensors")
        wb.convert(folder, tmp_path / "local.safetensors")
        assert (tmp_path / "remote.safetensors").read_bytes() == (tmp_path / "local.safetensors").read_bytes()
        wb.convert("hf://org/model", f"{tmp_path}/out/", dtype="f16")
        wb.convert(folder, f"{tmp_path}/here/", dtype="f16")
    written = [
        {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}
        for out in (tmp_path / "out", tmp_path / "here")
    ]
    assert written[0] == written[1]
    assert "scheduler/scheduler_config.json" in written[0]


def test_the_configs_of_comfyui_files_are_on_the_hub(tmp_path: Path, connect: Callable[..., None]) -> None:
    """The files that are written are those of the pipeline."""
    folder = pipelines.write(tmp_path / "p", pipelines.PIPELINES["flux"]())
    wb.convert(folder, f"{tmp_path / 'set'}/", comfy_folders=True)
    with Hub(folder).running() as hub:
        connect(hub)
        wb.convert(tmp_path / "set", f"{tmp_path / 'back'}/", config="hf://org/model")
    written = {path.relative_to(tmp_path / "back") for path in (tmp_path / "back").rglob("*")}
    assert written == {path.relative_to(folder) for path in folder.rglob("*")}
