"""What reaches the screen: plain where it is piped, escaped where it comes from a file, valid where it is JSON."""

from __future__ import annotations

import enum
import io
import json
import re
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.base import native as base_native
from weighbridge.base.errors import UsageError
from weighbridge.base.native import SLOW_JOB
from weighbridge.base.plain import plain
from weighbridge.cli import render
from weighbridge.cli.render import Column, Progress, Styled, clean, human_bytes, human_count, human_time
from weighbridge.cli.values import parse_size

SIZES = [
    ("5GB", 5 * 10**9),
    ("5G", 5 * 10**9),
    ("5g", 5 * 10**9),
    ("5GiB", 5 * 2**30),
    ("5gi", 5 * 2**30),
    ("1.5 MB", 1_500_000),
    ("0.1GB", 100_000_000),
    (".5k", 500),
    ("4096", 4096),
    ("4096b", 4096),
    ("2T", 2 * 10**12),
    ("0.3KiB", 307),
]


@pytest.mark.parametrize(("text", "expected"), SIZES)
def test_sizes_as_people_write_them(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "G", "5X", "-1", "5ib", "1e9", "5 G B", "five", "5GBB", "٥"])
def test_what_is_no_size_is_refused(text: str) -> None:
    if text == "٥":  # a digit of another script is a digit
        assert parse_size(text) == 5
        return
    with pytest.raises(UsageError):
        parse_size(text)


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (4_702_341_120, "4.7 GB"),
        (10**15, "1.0 PB"),
        (10**21, "1000.0 EB"),
    ],
)
def test_bytes_for_people(n: int, text: str) -> None:
    assert human_bytes(n) == text
    assert n < 1000 or human_bytes(n, exact=True) == f"{text} ({n:,} bytes)"


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0"), (999, "999"), (22_713_216, "22.7M"), (8_030_261_248, "8.03B"), (999_960, "1M"), (70e9, "70B")],
)
def test_counts_for_people(n: int, text: str) -> None:
    assert human_count(int(n)) == text


@pytest.mark.parametrize(
    ("s", "text"), [(0.44, "0.4s"), (9.96, "10s"), (61, "1m01s"), (3600, "1h00m"), (7530, "2h05m")]
)
def test_time_for_people(s: float, text: str) -> None:
    assert human_time(s) == text


@given(st.text(st.characters()))
def test_cleaned_text_can_not_act(text: str) -> None:
    cleaned = clean(text)
    assert cleaned.isprintable()
    assert clean(cleaned) == cleaned
    assert not text.isprintable() or cleaned == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("a\u202eb", "a\\u202eb"),
        ("\u200b", "\\u200b"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\udc80", "\\udc80"),
        ("\U000e0041", "\\U000e0041"),
        ("naïve 模型", "naïve 模型"),
    ],
)
def test_what_escapes_look_like(text: str, shown: str) -> None:
    assert clean(text) == shown


class Colour(enum.StrEnum):
    RED = "red"


@dataclass
class Answer:
    a: Any
    b: Any = None


VALUES = [
    (Answer(1), {"a": 1, "b": None}),
    (Answer(Answer((1, 2)), {3: Colour.RED}), {"a": {"a": [1, 2], "b": None}, "b": {"3": "red"}}),
    ([float("nan"), float("inf"), -float("inf"), 0.5], ["NaN", "Infinity", "-Infinity", 0.5]),
    (b"\x00\xff", "00ff"),
    (np.float32(0.5), 0.5),
    (np.arange(3), [0, 1, 2]),
    ({"\udc80": "\ud800"}, {"\udc80": "\ud800"}),
    (True, True),
    (2**70, 2**70),
]


@pytest.mark.parametrize(("value", "expected"), VALUES, ids=range(len(VALUES)))
def test_any_answer_is_json(value: Any, expected: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert plain(value) == expected
    render.emit_json(value)
    out = capsys.readouterr().out
    assert json.loads(out) == expected
    assert out.count("\n") == 1, "one line where it is piped"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Terminal]:
    """Makes a terminal of both streams. The test itself calls it: pytest puts its own streams in place after set-up."""
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")

    def install() -> Terminal:
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", terminal)
        return terminal

    return install


ROWS: list[list[render.Cell]] = [["a\x1b[31m", 5], [Styled("b", "error"), 1234], [None, None]]


def test_a_piped_table_is_aligned_and_plain(capsys: pytest.CaptureFixture[str]) -> None:
    render.table(["name", Column("bytes", right=True)], ROWS)
    assert capsys.readouterr().out == "name       bytes\na\\x1b[31m      5\nb           1234\n\n"


def test_a_table_on_a_terminal_has_colours_but_not_those_of_the_file(screen: Callable[[], Terminal]) -> None:
    terminal = screen()
    render.table(["name", Column("bytes", right=True)], ROWS)
    shown = terminal.getvalue()
    assert "\x1b[31mb" not in shown.replace("\x1b[1;31mb", "")
    assert "\\x1b[31m" in shown
    assert "\x1b[" in shown


MODELS: list[list[render.Cell]] = [
    ["ollama", "hf.co/bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q8_0", "gguf", "2026-11-23"],
    ["lmstudio", "publisher/tiny", "safetensors, damaged", "2026-11-24"],
]
#: Columns of the terminal -> the table's lines.
NARROW = {
    "100": ["store     name                                                  format                used",
            "ollama    hf.co/bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q8_0  gguf                  2026-11-23",
            "lmstudio  publisher/tiny                                        safetensors, damaged  2026-11-24"],
    "80": ["store     name                                  format                used",
           "ollama    hf.co/bartowski/Meta-Llama-3.1-8B-In  gguf                  2026-11-23",
           "          struct-GGUF:Q8_0",
           "lmstudio  publisher/tiny                        safetensors, damaged  2026-11-24"],
    "60": ["name", "  store     format                used",
           "hf.co/bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q8_0", "  ollama    gguf                  2026-11-23",
           "publisher/tiny", "  lmstudio  safetensors, damaged  2026-11-24"],
    "40": ["name", "  store     format            used", "hf.co/bartowski/Meta-Llama-3.1-8B-Instru", "ct-GGUF:Q8_0",
           "  ollama    gguf              2026-11-23", "publisher/tiny", "  lmstudio  safetensors,      2026-11-24",
           "            damaged"],
}  # fmt: skip


@pytest.mark.parametrize("columns", NARROW)
def test_a_narrow_terminal_breaks_one_column(
    columns: str, screen: Callable[[], Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = screen()
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("NO_COLOR", "1")
    render.table(["store", "name", "format", "used"], MODELS)
    lines = [line.rstrip() for line in re.sub("\x1b\\[[0-9;]*m", "", terminal.getvalue()).splitlines()]
    assert lines == NARROW[columns]


def test_json_on_a_terminal_is_indented_and_can_not_act(screen: Callable[[], Terminal]) -> None:
    terminal = screen()
    render.emit_json({"a": "\x9b2J\u202e", "b": [1]})
    shown = terminal.getvalue()
    assert json.loads(shown) == {"a": "\x9b2J\u202e", "b": [1]}
    assert "\n" in shown
    assert "\x9b" not in shown
    assert "\u202e" not in shown


COLOURS: list[tuple[dict[str, str], str, bool, bool]] = [
    ({}, "auto", True, True),
    ({}, "auto", False, False),
    ({"NO_COLOR": "1"}, "auto", True, False),
    ({"NO_COLOR": ""}, "auto", True, True),
    ({"FORCE_COLOR": "1"}, "auto", False, True),
    ({"FORCE_COLOR": "0"}, "auto", False, False),
    ({"CLICOLOR_FORCE": "1"}, "auto", False, True),
    ({"TERM": "dumb"}, "auto", True, False),
    ({"NO_COLOR": "1"}, "always", False, True),
    ({"FORCE_COLOR": "1"}, "never", True, False),
]


@pytest.mark.parametrize(("environment", "option", "terminal", "expected"), COLOURS, ids=range(len(COLOURS)))
def test_when_there_are_colours(
    environment: dict[str, str],
    option: str,
    terminal: bool,
    expected: bool,
    screen: Callable[[], Terminal],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(render.SCREEN, "color", option)
    assert render.colored(screen() if terminal else io.StringIO()) is expected


def test_progress_is_silent_where_nobody_watches() -> None:
    stream = io.StringIO()
    with Progress(stream) as progress:
        progress(1, 2, "x")
    assert stream.getvalue() == ""


def test_progress_shows_rate_and_time_left_and_goes_away(
    screen: Callable[[], Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = screen()
    clock = iter(range(100))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    with Progress() as progress:
        for done in (0, 10**9, 2 * 10**9):
            progress(done, 4 * 10**9, "wri\x1bting")
    shown = terminal.getvalue()
    assert "50%  2.0 GB of 4.0 GB  1.0 GB/s  2.0s left" in shown
    assert "\x1bting" not in shown
    assert shown.endswith("\r\x1b[K")


@pytest.mark.parametrize(
    ("computing", "kernels", "size", "warned"),
    [(True, False, SLOW_JOB, True), (True, False, SLOW_JOB - 1, False), (False, False, SLOW_JOB, False),
     (True, True, SLOW_JOB, False)],
)  # fmt: skip
def test_a_large_job_of_the_slow_version_warns_once(
    computing: bool, kernels: bool, size: int, warned: bool,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(base_native, "native", object() if kernels else None)
    monkeypatch.setattr(base_native, "reason", "no module \x1b[1m_native")
    with Progress(computing=computing) as progress:
        for done in (0, 1):
            progress(done, size)
    shown = capsys.readouterr().err
    assert shown.count("pure Python, about a hundred times slower than the kernels: no module") == int(warned)
    assert "\x1b" not in shown


def test_progress_is_quiet_when_told(screen: Callable[[], Terminal], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = screen()
    monkeypatch.setattr(render.SCREEN, "quiet", True)
    with Progress() as progress:
        progress(1, 2, "x")
    render.note("a note")
    render.warn("a warning")
    assert terminal.getvalue() == ""
    render.print_error("an error")
    assert "an error" in terminal.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (struct.unpack("f", struct.pack("f", 1e-12))[0], "1e-12"),
        (struct.unpack("f", struct.pack("f", 1e-5))[0], "1e-05"),
        (struct.unpack("f", b"\xff\xff\x7f\x7f")[0], "3.4028235e+38"),
        (10000.0, "10000.0"),
        (500000.0, "500000.0"),
        (0.1, "0.1"),  # an f64 that no f32 is
        (-0.0, "-0.0"),
        (1e300, "1e+300"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
    ],
)
def test_floats_have_the_digits_that_they_need(value: float, text: str) -> None:
    assert render.short_float(value) == text
