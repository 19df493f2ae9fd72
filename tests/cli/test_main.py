"""The one boundary: every kind of error becomes words on standard error and its exit code, never a bare traceback."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import click
import pytest
from tests.sampling import ROOT

from weighbridge import __version__
from weighbridge.base import native as base_native
from weighbridge.base.errors import FormatError, RefusedError, UnsupportedError, UsageError
from weighbridge.cli import render
from weighbridge.cli.main import BY_NAME, COMMANDS, main
from weighbridge.containers.gguf import container as gguf
from weighbridge.containers.gguf.container import KV


def raising(error: BaseException) -> click.Command:
    def body() -> None:
        raise error

    return click.Command("fails", callback=body)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[click.Command], None]:
    """Put a command of our own in the place of `wb get`."""

    def put(command: click.Command) -> None:
        fake = ModuleType("weighbridge.cli.commands.get")
        fake.get = command  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, fake.__name__, fake)

    return put


#: The error that `threading.Event.wait` may raise at Ctrl-C.
UNLOCKED = RuntimeError("release unlocked lock")
UNLOCKED.__context__ = KeyboardInterrupt()

ERRORS = [
    (FormatError("bad", path="f", offset=7), 2, ["error: f, byte 7: bad"]),
    (UnsupportedError("can't", hint="try that"), 2, ["error: can't", "hint: try that"]),
    (RefusedError("no", option="--force"), 2, ["error: no", "use --force"]),
    (UsageError("what?"), 2, ["error: what?"]),
    (FileNotFoundError(errno.ENOENT, "No such file or directory", "/x/y"), 2, ["error: /x/y: no such file or folder"]),
    (OSError(errno.ENOSPC, "No space left on device"), 2, ["No space left", "free some space"]),
    (OSError(errno.EFBIG, "File too large", "m.gguf"), 2, ["m.gguf: File too large", "--max-shard-size"]),
    (OSError("odd"), 2, ["odd"]),
    (MemoryError(), 2, ["out of memory", "--max-memory"]),
    (KeyboardInterrupt(), 130, ["interrupted"]),
    (UNLOCKED, 130, ["interrupted"]),
    (RuntimeError("other"), 70, ["fault of weighbridge"]),
    (click.UsageError("odd option"), 2, ["odd option"]),
    (click.FileError("f", "gone"), 2, ["gone"]),
    (SystemExit(143), 143, []),
    (ZeroDivisionError("oops"), 70, ["fault of weighbridge", "ZeroDivisionError: oops at test_main.py", "--debug"]),
    (AssertionError("law"), 70, ["fault of weighbridge"]),
    (RecursionError(), 70, ["fault of weighbridge"]),
    (UsageError("name \x1b[31m\u202e"), 2, ["name \\x1b[31m\\u202e"]),
]


@pytest.mark.parametrize(("error", "code", "words"), ERRORS, ids=[type(e[0]).__name__ for e in ERRORS])
def test_errors_become_words_and_a_code(
    error: BaseException,
    code: int,
    words: list[str],
    command: Callable[[click.Command], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    command(raising(error))
    assert main(["get"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    for word in words:
        assert word in err


@pytest.mark.parametrize("how", ["--debug", "environment"])
def test_the_traceback_is_there_when_asked_for(
    how: str,
    command: Callable[[click.Command], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command(raising(ZeroDivisionError("oops")))
    if how == "environment":
        monkeypatch.setenv("WEIGHBRIDGE_DEBUG", "1")
    assert main(["get"] if how == "environment" else ["get", "--debug"]) == 70
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(("value", "code"), [(None, 0), (0, 0), (1, 1)])
def test_a_command_returns_its_code(value: int | None, code: int, command: Callable[[click.Command], None]) -> None:
    command(click.Command("fine", callback=lambda: value))
    assert main(["get"]) == code


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "Usage: wb"),
        (["--help"], 0, "Examples:"),
        (["-h"], 0, "Examples:"),
        (["--version"], 0, "weighbridge "),
        (["insect"], 2, "Did you mean 'inspect'?"),
        (["shrad"], 2, "Did you mean 'split'?"),
        (["zzzzz"], 2, "See wb --help"),
        (["model.gguf"], 2, "wb inspect model.gguf"),
        (["--nonsense"], 2, "No such option"),
        (["completion", "tcsh"], 2, "tcsh"),
        (["convert", "a"], 2, "no target"),
        (["convert", "a", "b", "--max-shard-size", "5 apples"], 2, "is not a size"),
        (["convert", "a", "b", "-o", "c"], 2, "two targets"),
        (["split", "a", "b"], 2, "--max-shard-size"),
        (["inspect", "/nonexistent/model"], 2, "/nonexistent/model"),
    ],
)
def test_usage(arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert words in (out if code == 0 else err)
    assert (err if code == 0 else out) == ""


@pytest.mark.parametrize("kernels", [True, False])
def test_the_version_names_the_slow_one(
    kernels: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(base_native, "native", object() if kernels else None)
    monkeypatch.setattr(base_native, "reason", None if kernels else "no module _native")
    assert main(["--version"]) == 0
    slow = "" if kernels else " (pure Python, about a hundred times slower than the kernels: no module _native)"
    assert capsys.readouterr().out == f"weighbridge {__version__}{slow}\n"


@pytest.mark.parametrize("name", BY_NAME)
def test_every_name_leads_to_its_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert "Examples:" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["before", "after"])
def test_common_options_stand_before_or_after_the_command(place: str, command: Callable[[click.Command], None]) -> None:
    options = ["-q", "-vv", "--color", "always", "--debug"]
    seen: list[tuple[object, ...]] = []
    screen = render.SCREEN
    command(
        click.Command("x", callback=lambda: seen.append((screen.quiet, screen.verbose, screen.color, screen.debug)))
    )
    assert main([*options, "get"] if place == "before" else ["get", *options]) == 0
    assert seen == [(True, 2, "always", True)]
    assert main(["get"]) == 0
    assert seen[1] == (False, 0, "auto", False), "one run's options don't reach the next"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "_WB_COMPLETE" in capsys.readouterr().out


def wb(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-m", "weighbridge", *arguments], env=env, capture_output=True, text=True, check=False
    )


def test_completion_of_commands_imports_none_of_them() -> None:
    done = wb(_WB_COMPLETE="bash_complete", COMP_WORDS="wb in", COMP_CWORD="1")
    assert done.stdout.split() == ["plain,inspect"]
    done = wb(_WB_COMPLETE="bash_complete", COMP_WORDS="wb convert --dt", COMP_CWORD="2")
    assert done.stdout.split() == ["plain,--dtype"]


def test_help_imports_no_command_and_nothing_heavy() -> None:
    """What keeps it under 0.1 s (the benchmarks show that): click and a handful of our own modules."""
    code = "import sys; from weighbridge.cli.main import main; main(['--help']); print('\\n', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert not loaded & {"numpy", "rich", "ml_dtypes", "torch", "asyncio", "weighbridge._native", "weighbridge.api"}
    assert {name for name in loaded if name.startswith("weighbridge.")} <= {
        "weighbridge.base", "weighbridge.base.errors", "weighbridge.base.options", "weighbridge.base.records",
        "weighbridge.cli", "weighbridge.cli.main", "weighbridge.cli.options", "weighbridge.cli.render",
    }  # fmt: skip


def test_a_process_collects_garbage_rarely_and_not_at_its_end() -> None:
    """A start takes a seventh less time so. In a program that only calls `main`, the collector stays as it is."""
    for name, expected in (("process.run", (100_000, True)), ("main.main", (gc.get_threshold()[0], False))):
        module, function = name.split(".")
        code = (
            f"import gc, sys; from weighbridge.cli.{module} import {function}; sys.argv[1:] = ['identify', '--help']\n"
            f"assert {function}() == 0; print((gc.get_threshold()[0], gc.get_freeze_count() > 10_000))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == str(expected)
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert set(scripts.values()) == {"weighbridge.cli.process:run"}


@pytest.mark.skipif(os.name != "posix", reason="signals and pipes of Unix")
@pytest.mark.parametrize("arguments", [["--help"], ["completion", "bash"]])
def test_a_reader_that_goes_away_is_no_error(arguments: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "weighbridge", *arguments], stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(os.name != "posix", reason="signals of Unix")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_unwinds(number: int, code: int, tmp_path: Path) -> None:
    program = (
        "import sys, time, types, click\n"
        "def body():\n"
        "    try:\n"
        "        print('ready', flush=True); time.sleep(30)\n"
        "    finally:\n"
        "        print('cleaned', flush=True)\n"
        "fake = types.ModuleType('weighbridge.cli.commands.get')\n"
        "fake.get = click.Command('x', callback=body)\n"
        "sys.modules[fake.__name__] = fake\n"
        "from weighbridge.cli.main import main\n"
        "sys.exit(main(['get']))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "cleaned\n")
    assert "Traceback" not in err


def test_the_table_has_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    shown = capsys.readouterr().out
    for row in COMMANDS:
        assert f"  {row.name} " in shown
        assert len(row.help) <= 66, "one line of help"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"general.tags": KV("arr[str]", ["a"]), "tokenizer.ggml.model": KV("str", "gpt2")}, None),  # not walked so far
        ({"tokenizer.ggml.model": KV("str", "gpt2")}, "yes"),
        ({"general.name": KV("str", "x")}, "no"),
    ],
)
def test_identify_says_of_a_vocabulary_what_it_knows(
    tmp_path: Path, keys: dict[str, KV], said: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.gguf"
    made = gguf.layout((), {"general.architecture": KV("str", "llama"), **keys})
    path.write_bytes(b"".join(data for _, data in made.pieces).ljust(made.size, b"\0"))
    assert main(["identify", str(path)]) == 0
    out = capsys.readouterr().out
    found = [line.split()[-1] for line in out.splitlines() if "has vocab" in line]
    assert found == ([said] if said else [])
    assert "byte order    little" in out


@pytest.mark.parametrize(("environment", "wait"), [({}, "20"), ({"OPENBLAS_THREAD_TIMEOUT": "7"}, "7")])
def test_threads_of_the_blas_sleep_soon_unless_the_user_wants_otherwise(environment: dict[str, str], wait: str) -> None:
    code = "import os, weighbridge.cli.process as p; p.run(); print(os.environ['OPENBLAS_THREAD_TIMEOUT'])"
    others = {k: v for k, v in os.environ.items() if k != "OPENBLAS_THREAD_TIMEOUT"}
    command = [sys.executable, "-c", code, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=others | environment)
    assert done.stdout.splitlines()[-1] == wait
