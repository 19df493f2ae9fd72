"""Names and texts of files that a terminal would obey, or that turn the reading order round: no command prints them as
they are, as JSON or for people."""

from __future__ import annotations

import json
import pickle
import time
import unicodedata
from pathlib import Path

import pytest
from tests.cli.every_command import commands, lines

from weighbridge.cli import render
from weighbridge.cli.main import main

ODD = "a\x9b31m\u202e\u2066\x1b[2J\x85b\x7f"


def _safetensors(names: list[str], metadata: dict[str, str]) -> bytes:
    entries = {n: {"dtype": "F32", "shape": [2], "data_offsets": [8 * i, 8 * i + 8]} for i, n in enumerate(names)}
    header = json.dumps({"__metadata__": metadata, **entries}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(8 * len(names))


def _folder(path: Path, text: str, file: str) -> Path:
    path.mkdir()
    (path / "model.safetensors").write_bytes(_safetensors(["a", text], {"format": "pt", f"k{text}": f"v{text}"}))
    (path / "config.json").write_text(
        json.dumps({"model_type": text, "architectures": [text], "torch_dtype": text, "auto_map": {"A": text}})
    )
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ x }}" + text, "bos_token": text}))
    (path / "x.pkl").write_bytes(pickle.dumps({text: text}) + f"c{text}\nx\n.".encode())
    (path / file).write_text("x")
    return path


def _acting(text: str) -> set[str]:
    """Control characters and those that change the order of others, but for the ends of lines."""
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in "\n\r\t"}


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("odd")
    return _folder(base / f"m{ODD}", ODD, f"w{ODD}.txt"), _folder(base / "plain", "b", "w.txt")


@pytest.mark.parametrize("command", commands())
def test_nothing_acts_on_a_terminal(
    command: str, odd: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for line in lines(command, *odd, tmp_path / "out", ("model.safetensors", "x.pkl")):
        main(line)
        shown = capfd.readouterr()
        assert _acting(shown.out) == set(), line
        assert _acting(shown.err) == set(), line


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("long")
    return _folder(base / "m", "ab" * 200_000, "w.txt"), _folder(base / "plain", "b", "w.txt")


@pytest.mark.costly
@pytest.mark.parametrize("command", commands())
def test_a_name_of_a_megabyte_costs_little_and_is_shortened(
    command: str, long: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for line in lines(command, *long, tmp_path / "out", ("model.safetensors",)):
        began = time.process_time()
        main(line)
        assert time.process_time() - began < 20, line
        assert len(capfd.readouterr().err) < 50_000, line


def test_a_terminal_shows_the_beginning_of_a_long_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "is_terminal", lambda stream: True)
    monkeypatch.setenv("NO_COLOR", "1")
    render.echo(f"a {'b' * 5000} c")
    assert capsys.readouterr().out == f"a {'b' * 500}... (5,000 characters) c\n"
