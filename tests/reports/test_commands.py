"""The five commands that look: exit codes, JSON, what a terminal must never be sent."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.reports import makers as m

from weighbridge.cli.main import main

HOSTILE = "evil\x1b[2J\x1b]0;x\x07‮name"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "x.safetensors"
    path.write_bytes(m.safetensors({"a.weight": ("F32", (4, 4)), HOSTILE: ("F32", (2,))}, {HOSTILE: HOSTILE}))
    return path


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(list(args))
    out = capsys.readouterr()
    return code, out.out, out.err


COMMANDS = [
    ("identify",), ("identify", "-v"), ("inspect",), ("inspect", "--tensors"), ("inspect", "--tree"),
    ("inspect", "--metadata"),
    ("inspect", "--sort", "size:desc", "--limit", "1"), ("anatomy",), ("anatomy", "--map"), ("anatomy", "--at", "0x10"),
    ("anatomy", "--start", "8", "--end", "64"), ("verify",), ("verify", "--values"),
]  # fmt: skip


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_runs_and_sends_no_control_characters(
    args: tuple[str, ...], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *args, str(file))
    assert code == 0, err
    assert out
    for text in (out, err):
        assert all(c.isprintable() or c == "\n" for c in text), text


@pytest.mark.parametrize("args", [c for c in COMMANDS if c != ("identify", "-v")], ids=" ".join)
def test_json_keeps_names_raw(args: tuple[str, ...], file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *args, str(file), "--json")
    assert code == 0, err
    doc = json.loads(out)
    assert doc["schema"] == f"weighbridge/{args[0]}/1"
    if args == ("inspect",):
        assert HOSTILE in {t["name"] for t in doc["tensors"]}
        assert doc["metadata"] == {HOSTILE: HOSTILE}


def test_get(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "get", f"{file}::a.weight")[0] == 0
    assert run(capsys, "get", f"{file}::{HOSTILE}")[0] == 0
    code, out, _ = run(capsys, "get", f"{file}::a.weight", "--slice", "[0]", "--json")
    assert (code, json.loads(out)["count"]) == (0, 4)
    target = tmp_path / "o.npy"
    assert run(capsys, "get", f"{file}::a.weight", "-o", str(target))[0] == 0
    assert np.load(target).shape == (4, 4)
    code, _, err = run(capsys, "get", f"{file}::a.weight", "-o", str(target))
    assert code == 2
    assert "--overwrite" in err
    assert run(capsys, "get", f"{file}::a.weight", "-o", str(target), "--overwrite")[0] == 0


@pytest.mark.parametrize("raw", [False, True])
def test_get_into_a_pipe(file: Path, raw: bool) -> None:
    args = [sys.executable, "-m", "weighbridge", "get", f"{file}::a.weight", "-o", "-", *(["--raw"] if raw else [])]
    data = subprocess.run(args, check=True, capture_output=True).stdout
    assert len(data) == 64 if raw else np.load(io.BytesIO(data)).shape == (4, 4)


@pytest.mark.parametrize("command", ["identify", "inspect", "anatomy", "verify"])
def test_no_such_file(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, command, str(tmp_path / "none"))
    assert code == 2
    assert "none" in err
    assert "fault" not in err


@pytest.mark.parametrize(
    ("command", "code"), [("identify", 1), ("inspect", 2), ("anatomy", 2), ("verify", 1)], ids=lambda v: str(v)
)
@pytest.mark.parametrize("data", [m.POINTER, m.PAGE, b"", bytes(100)], ids=["pointer", "page", "empty", "zeros"])
def test_wrong_files(command: str, code: int, data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.safetensors").write_bytes(data)
    found, out, err = run(capsys, command, str(tmp_path / "x.safetensors"))
    assert found == code, (out, err)


def test_several_paths(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "identify", str(file), str(tmp_path), "--json")
    assert code == 0
    assert [doc["kind"] for doc in json.loads(out)] == ["file", "folder"]
    code, out, _ = run(capsys, "identify", str(file), str(tmp_path / "none"))
    assert code == 2
    assert "Safetensors" in out


def test_fail_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = m.llama_folder(tmp_path / "m")  # without a tokenizer: a warning
    assert run(capsys, "verify", str(folder))[0] == 0
    assert run(capsys, "verify", str(folder), "--fail-on", "warning")[0] == 1


def test_many_findings_are_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = m.llama_folder(tmp_path / "m")
    for i in range(30):
        (folder / f"{i}.incomplete").write_text("x")
    _, out, _ = run(capsys, "verify", str(folder))
    assert "20 more of these" in out
    _, out, _ = run(capsys, "verify", str(folder), "--verbose")
    assert "more of these" not in out
    _, out, _ = run(capsys, "verify", str(folder), "--json")
    assert sum(f["rule"] == "file/leftover" for f in json.loads(out)["findings"]) == 30


@pytest.mark.parametrize(
    "args",
    [
        ("inspect", "--filter", "nonsense"),
        ("inspect", "--sort", "colour"),
        ("anatomy", "--at", "99999999"),
        ("anatomy", "--start", "x"),
        ("get", "--slice", "[a]"),
        ("get", "--dtype", "q9"),
    ],
    ids=" ".join,
)
def test_usage(args: tuple[str, ...], file: Path, capsys: pytest.CaptureFixture[Any]) -> None:
    path = f"{file}::a.weight" if args[0] == "get" else str(file)
    code, _, err = run(capsys, args[0], path, *args[1:])
    assert code == 2
    assert "error" in err
