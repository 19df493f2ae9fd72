"""What people type out of habit, from other tools or in a hurry: it works, or the answer is the command that does."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.api.test_provider import CONFIG, llama_tensors, write
from tests.conversion.test_build import tokenizer

import weighbridge as wb
from weighbridge.cli.main import main

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "m.safetensors"
    save_file({"a.w": np.ones((4, 64), np.float32), "b.w": np.zeros((2, 3), np.float16), "c": np.ones(3, "f4")}, path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "llama"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "tokenizer.json").write_text(json.dumps(tokenizer()))
    write(path / "model.safetensors", llama_tensors())
    return path


def run(*words: object) -> int:
    return main([str(word) for word in words])


def test_convert_with_a_type_of_quantize_quantizes(folder: Path, tmp_path: Path) -> None:
    assert run("convert", folder, tmp_path / "a.gguf", "--outtype", "q4_0", "--allow-requantize") == 0
    wb.quantize(folder, tmp_path / "b.gguf", "Q4_0")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert run("convert", folder, tmp_path / "c.gguf", "--quant", "Q5_0", "-n") == 0
    assert not (tmp_path / "c.gguf").exists()


@pytest.mark.parametrize("flags", [["--force"], ["-f"], ["-y"], ["--overwrite"]])
def test_overwriting_by_any_name(flags: list[str], source: Path, tmp_path: Path) -> None:
    for more in ([], [*flags, "-t", "2"]):
        assert run("convert", source, tmp_path / "o.npz", *more) == 0
    assert run("convert", source, tmp_path / "o.npz") == 2


def test_int8_is_answered_with_what_works(folder: Path, capsys: Captured) -> None:
    assert run("convert", folder, "o.gguf", "--dtype", "int8") == 2
    assert "--dtype q8_0" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["help"], ["help", "convert"], ["version"], ["-V"]])
def test_help_and_version(words: list[str], capsys: Captured) -> None:
    assert run(*words) == 0
    assert ("weighbridge 0" if words[0] in ("version", "-V") else "Usage: wb") in capsys.readouterr().out


def test_offline_a_remote_path_is_one_of_the_cache(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # set by the option
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert run("--offline", "inspect", "hf://org/name") == 2
    assert "--offline" in capsys.readouterr().err


@pytest.mark.parametrize("verb", [["convert"], ["rename", "--add-prefix", "x"], ["slice", "--keep", "a*"], ["merge"]])
def test_no_file_is_called_dash(
    verb: list[str], source: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(verb[0], source, "-", *verb[1:]) == 2
    assert "standard output" in capsys.readouterr().err
    assert not Path("-").exists()


def test_shards_may_be_named_one_by_one(source: Path, tmp_path: Path, capsys: Captured) -> None:
    assert run("split", source, tmp_path / "s", "--max-tensors", 1) == 0
    shards = sorted((tmp_path / "s").glob("*.safetensors"))
    assert run("merge", *shards, tmp_path / "whole.safetensors") == 0
    assert load_file(tmp_path / "whole.safetensors").keys() == load_file(source).keys()
    assert run("merge", shards[0], source, tmp_path / "x.safetensors") == 2
    assert "not a shard of the set" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ get


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pt"])
def test_a_tensor_is_written_in_the_format_of_the_suffix(suffix: str, source: Path, tmp_path: Path) -> None:
    assert run("get", source, "a.w", "-o", tmp_path / f"t{suffix}") == 0
    with wb.open(tmp_path / f"t{suffix}") as model:
        assert {name: t.shape for name, t in model.items()} == {"a.w": (4, 64)}


def test_a_format_that_holds_no_tensor_is_refused(source: Path, tmp_path: Path, capsys: Captured) -> None:
    assert run("get", f"{source}::a.w", "-o", tmp_path / "t.csv") == 2
    assert ".npy, .npz, .safetensors, .pt or .bin" in capsys.readouterr().err
    assert not (tmp_path / "t.csv").exists()


def test_the_bytes_of_a_slice_are_those_of_the_slice(source: Path, capsys: Captured) -> None:
    assert run("get", f"{source}::a.w", "--slice", "[0:2, 0:5]", "--json") == 0
    assert json.loads(capsys.readouterr().out)["nbytes"] == 2 * 5 * 4


# ------------------------------------------------------------------------------------------------ edit, hash, filters


def test_an_array_may_be_set_as_json(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    wb.convert(folder, model := tmp_path / "m.gguf", dtype="f16")
    assert run("edit", model, "--set", 'general.tags=["a","b"]', "--set", "general.x=[INST]") == 0
    capsys.readouterr()
    assert run("edit", model, "--get", "general.tags", "--get", "general.x") == 0
    assert capsys.readouterr().out == '["a", "b"]\n[INST]\n'


@pytest.mark.parametrize("name", ["plain", "back\\slash", "line\nbreak"])
def test_sha256sum_checks_what_hash_prints(name: str, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / name).write_bytes(b"x")
    assert run("hash", tmp_path / name) == 0
    (tmp_path / "SUMS").write_text(capsys.readouterr().out)
    assert subprocess.run(["sha256sum", "-c", tmp_path / "SUMS"], capture_output=True, check=False).returncode == 0
    assert run("hash", "-c", tmp_path / "SUMS") == 0


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("dtype=F16", {"b.w"}),
        ("dtype=fp16", {"b.w"}),
        ("size>100 and dtype=f32", {"a.w"}),
        ("rank=1", {"c"}),
        ("name~.w", {"a.w", "b.w"}),
        ("name~a.*", {"a.w"}),
    ],
)
def test_filters_that_people_write(text: str, names: set[str], source: Path, capsys: Captured) -> None:
    assert run("inspect", source, "--filter", text, "--json") == 0
    assert {t["name"] for t in json.loads(capsys.readouterr().out)["tensors"]} == names


def test_a_filter_that_nothing_passes_is_an_answer_of_its_own(source: Path, capsys: Captured) -> None:
    assert run("inspect", source, "--filter", "size>1TB") == 1
    assert "no tensor of" in capsys.readouterr().err
    assert run("inspect", source, "--filter", "dtype=q9_z") == 2
    assert run("inspect", source, "--filter", "size is large") == 2


def test_several_paths_are_inspected(source: Path, capsys: Captured) -> None:
    assert run("inspect", source, source) == 0
    assert capsys.readouterr().out.count("safetensors\n") >= 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device here")
def test_a_full_disk_is_an_error_even_without_buffers(source: Path) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "weighbridge", "inspect", source, "--json"], stdout=full, check=False,
            stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    assert done.returncode == 2
    assert b"No space left" in done.stderr


def test_a_partial_write_is_gone_on_with(monkeypatch: pytest.MonkeyPatch, source: Path) -> None:
    """A raw stream that takes a few bytes at a time, as a nearly full disk or a signal makes it do."""

    class Slow(io.RawIOBase):
        taken = b""

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            part = bytes(memoryview(data)[:100])
            Slow.taken += part
            return len(part)

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(Slow(), encoding="utf-8", write_through=True))  # type: ignore[type-var]
    assert run("inspect", source, "--json") == 0
    assert len(json.loads(Slow.taken)["tensors"]) == 3


@pytest.mark.parametrize("columns", [60, 80])
def test_rows_fit_the_terminal(columns: int, source: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    from weighbridge.cli.views import inspect as view

    monkeypatch.setattr(view, "width", lambda: columns)
    assert run("inspect", source, "--tensors") == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert "offset" not in head
    assert max(map(len, (head, *lines))) <= columns
