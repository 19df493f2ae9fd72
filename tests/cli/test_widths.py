"""What commands print fits a terminal of 60, 80 and 120 columns, and nothing of a table is cut."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.cli.test_matrix import expanded, words  # noqa: F401  # the models
from tests.cli.test_options import sources  # noqa: F401

from weighbridge.cli import render
from weighbridge.cli.main import main

VIEWS = (
    "inspect FOLDER", "inspect GGUF --tensors", "inspect FOLDER --tree", "inspect GGUF --metadata", "inspect ADAPTER",
    "anatomy GGUF --map", "get ST::a", "diff FOLDER ST --limit 5", "arch list", "arch show llama",
    "convert FOLDER OUT.gguf -n", "quantize FOLDER OUT.gguf Q4_0 -n", "split FOLDER OUT --max-shard-tensors 1 -n",
    "rename ST OUT.safetensors --add-prefix x. -n", "slice FOLDER OUT --layers 0 -n", "edit GGUF",
)  # fmt: skip


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("view", VIEWS)
def test_no_line_is_wider_than_the_terminal(
    view: str, columns: int, words: Mapping[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    argv = expanded(view, words, tmp_path)
    assert main([*argv, "--color", "never"]) in (0, 1)
    piped = capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(render, "is_terminal", lambda stream: True)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((columns, 24)))
    assert main([*argv, "--color", "never"]) in (0, 1)
    lines = capsys.readouterr().out.splitlines()
    tables = [line for line in lines if str(tmp_path.parent) not in line]
    assert max(map(len, tables)) <= columns, max(tables, key=len)
    if view.startswith("inspect") and "--metadata" not in view:  # a row is a line
        rows = [line for line in lines if ".weight" in line and line.strip().endswith(".weight")]
        assert rows == [], rows
    if view.startswith(("inspect", "edit")) and columns >= 80 and "--tensors" not in view:
        assert {w for w in piped.split() if w.endswith(".weight")} <= {w for line in lines for w in line.split()}
