"""What people type out of habit, from other tools or in a hurry: it works, or the answer is the command that does."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests import system
from tests.llama import make_folder

import weighbridge as wb
from weighbridge.cli.habits import OPTIONS, WORDS
from weighbridge.cli.main import BY_NAME, COMMANDS, load, main
from weighbridge.cli.values import NamedPath

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "m.safetensors"
    save_file({"a.w": np.ones((4, 64), np.float32), "b.w": np.zeros((2, 3), np.float16), "c": np.ones(3, "f4")}, path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "llama", words=True)


def run(*words: object) -> int:
    return main([str(word) for word in words])


def test_convert_with_a_type_of_quantize_quantizes(folder: Path, tmp_path: Path) -> None:
    assert run("convert", folder, tmp_path / "a.gguf", "--outtype", "q4_0", "--allow-requantize") == 0
    wb.quantize(folder, tmp_path / "b.gguf", "Q4_0")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert run("convert", folder, tmp_path / "c.gguf", "--quant", "Q5_0", "-n") == 0
    assert not (tmp_path / "c.gguf").exists()


@pytest.mark.parametrize("flags", [["--force"], ["-f"], ["--overwrite"]])
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
    assert run("split", source, tmp_path / "s", "--max-shard-tensors", 1) == 0
    shards = sorted((tmp_path / "s").glob("*.safetensors"))
    assert run("merge", *shards, tmp_path / "whole.safetensors") == 0
    assert load_file(tmp_path / "whole.safetensors").keys() == load_file(source).keys()
    assert run("merge", shards[0], source, tmp_path / "x.safetensors") == 2
    assert "not a shard of the set" in capsys.readouterr().err


def test_q_is_quiet_and_never_mlx_lms(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    """In mlx_lm.convert it quantizes: for an MLX target that nothing else quantizes it is refused, not misread."""
    options = ["--allow-requantize"] * (wb.inspect(folder).model.quantization is not None)
    capsys.readouterr()
    for name in ("convert", "plan"):
        assert run(name, folder, tmp_path / "a", "--to", "mlx", "-q", *options) == 2
        told = capsys.readouterr().err
        assert "-q means quiet" in told
        assert "--q-bits 4" in told
    for quiet in ("-q", "--quiet"):
        assert run("convert", folder, tmp_path / f"b{quiet}", "--to", "mlx", quiet, "--quantize", *options) == 0
        assert run("convert", folder, tmp_path / f"c{quiet}.gguf", quiet) == 0
        assert capsys.readouterr().err == ""
    assert run("-q", "convert", folder, tmp_path / "d.gguf") == 0


def test_int8_is_answered_with_the_very_command(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    for target, way in (("o.gguf", []), ("o", ["--to", "mlx"])):
        assert run("convert", folder, tmp_path / target, *way, "--dtype", "int8") == 2
        hint = next(line for line in capsys.readouterr().err.splitlines() if "hint: wb convert" in line)
        assert run(*hint.split("wb ")[1].split(), "--allow-requantize") == 0


HABITS = [*OPTIONS.items(), *((("", word), line) for word, line in WORDS.items())]


@pytest.mark.parametrize(("habit", "line"), HABITS, ids=lambda x: x if isinstance(x, str) else " ".join(x))
def test_a_habit_is_answered_with_the_command_line_that_does_it(
    habit: tuple[str, str], line: str, capsys: Captured
) -> None:
    command, word = habit
    words = [word] if not word.startswith("-") else [command or "inspect", "x", word, "y"]
    assert run(*words) == 2
    assert line in capsys.readouterr().err


def test_a_context_of_a_conversion_is_that_of_a_text(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    assert run("convert", folder, tmp_path / "o.gguf", "--ctx", "4096") == 2
    assert "--context-length" in capsys.readouterr().err


@pytest.mark.parametrize("line", sorted({line for _, line in HABITS if line.startswith("wb ")}))
def test_the_answer_is_a_command_line(line: str) -> None:
    """Its commands and options are there; words in capitals stand for files."""
    for name, rest in re.findall(r"wb (\w+)([^,]*)", line):
        command = load(BY_NAME[name])
        if isinstance(command, click.Group):
            continue
        known = {name for option in command.params for name in (*option.opts, *getattr(option, "aliases", ()))}
        assert set(re.findall(r"(?<=\s)--?[a-z][\w-]*", rest)) <= known, line


@pytest.mark.parametrize("path", ["org/name", "hf:org/name"])
def test_a_missing_path_may_be_a_repository(path: str, capsys: Captured) -> None:
    assert run("inspect", path) == 2
    assert "hf://org/name" in capsys.readouterr().err


def test_a_type_behind_the_target_is_answered(capsys: Captured) -> None:
    assert run("convert", "model", "o.gguf", "q4_k_m") == 2
    assert "--outtype q4_k_m" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--vram", "8GB", "--ctx", "4k"], ["--gpu", "8GB", "--ctx-size", "4k"]])
def test_fit_knows_the_words_of_others(words: list[str], folder: Path, capsys: Captured) -> None:
    assert run("fit", folder, "--device", "8GB", "--context", "4k") == run("fit", folder, *words)
    out = capsys.readouterr().out
    assert out[: len(out) // 2] == out[len(out) // 2 :]


@pytest.mark.parametrize("word", ["HuggingFace", "transformers", "HF"])
def test_a_target_by_nickname(word: str, folder: Path, tmp_path: Path) -> None:
    assert run("convert", folder, tmp_path / "o", "--to", word) == 0
    assert (tmp_path / "o" / "config.json").exists()


# ------------------------------------------------------------------------------------------------ targets

WRITERS: dict[str, list[str]] = {
    "convert": ["convert", "SRC", "DST"],
    "quantize": ["quantize", "SRC", "DST", "Q8_0"],
    "imatrix": ["imatrix", "SRC", "DST", "--text", "SRC"],
    "split": ["split", "SRC", "DST", "--max-shard-size", "1k"],
    "merge": ["merge", "SRC", "DST"],
    "extract-lora": ["extract-lora", "SRC", "SRC", "DST"],
    "strip": ["strip", "SRC", "DST"],
    "rename": ["rename", "SRC", "DST", "--add-prefix", "x."],
    "slice": ["slice", "SRC", "DST", "--keep", "a*"],
    "edit": ["edit", "SRC", "--set", "a=b", "-o", "DST"],
    "quality": ["quality", "SRC", "--text", "SRC", "--save", "DST"],
    "get": ["get", "SRC", "a.w", "-o", "DST"],
    "hash": ["hash", "SRC", "--manifest", "DST"],
    "sign": ["sign", "SRC", "--key", "SRC", "--signature", "DST"],
    "sbom": ["sbom", "SRC", "-o", "DST"],
    "diff": ["diff", "SRC", "SRC", "--html", "DST"],
    "lineage": ["lineage", "SRC", "SRC", "--svg", "DST"],
    "scan": ["scan", "SRC", "--sarif", "DST"],
    "fetch": ["fetch", "SRC", "DST"],
    "pack": ["pack", "SRC", "DST"],
    "unpack": ["unpack", "SRC", "DST"],
    "view": ["view", "SRC", "-o", "DST"],
    "ship": ["ship", "llama-server", "SRC", "-o", "DST"],
}


def words_of(verb: str, source: object, target: object) -> list[object]:
    return [{"SRC": source, "DST": target}.get(word, word) for word in WRITERS[verb]]


def test_every_command_that_writes_is_here() -> None:
    writing = {row.name for row in COMMANDS if any(p.name == "overwrite" for p in load(row).params)}
    assert writing - {"plan"} == set(WRITERS)


@pytest.mark.parametrize("verb", WRITERS)
def test_what_stands_in_the_way_is_said_before_any_work(
    verb: str, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source isn't even there: it would be missed as soon as it is opened."""
    (tmp_path / "there.npy").write_bytes(b"mine")
    assert run(*words_of(verb, tmp_path / "none", tmp_path / "there.npy")) == 2
    assert "exists already" in capsys.readouterr().err
    assert run(*words_of(verb, tmp_path / "none", tmp_path / "a" / "b" / "c.npy")) == 2
    assert "new folders above it" in capsys.readouterr().err
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    assert run(*words_of(verb, tmp_path / "none", tmp_path / "c.npy")) == 2
    assert "Permission denied" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["there.npy"]
    assert (tmp_path / "there.npy").read_bytes() == b"mine"


@pytest.mark.parametrize("verb", ["quantize", "edit", "get", "hash", "diff", "scan"])
def test_a_file_is_not_written_under_a_folder_s_name(verb: str, source: Path, tmp_path: Path, capsys: Captured) -> None:
    assert run(*words_of(verb, source, f"{tmp_path}/x.npy/")) == 2
    assert "names a folder" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == [source.name]


@pytest.mark.parametrize("verb", ["convert", "split", "merge", "strip", "rename", "slice"])
def test_a_slash_at_the_end_means_a_folder(verb: str, source: Path, tmp_path: Path) -> None:
    assert run(*words_of(verb, source, f"{tmp_path}/x.safetensors/")) == 0
    assert list((tmp_path / "x.safetensors").glob("*.safetensors"))


# ------------------------------------------------------------------------------------------------ standard input


@pytest.mark.parametrize(
    ("verb", "piped"), [("inspect", True), ("scan", True), ("hash", True), ("diff", True), ("hash", False)]
)
def test_dash_is_standard_input(verb: str, piped: bool, source: Path, tmp_path: Path) -> None:
    """Redirected or piped; a pipe is kept in a temporary file, which is gone afterwards."""
    command = [sys.executable, "-m", "weighbridge", verb, "-", *([str(source)] if verb == "diff" else [])]
    (scratch := tmp_path / "scratch").mkdir()
    with source.open("rb") as file:
        given: dict[str, Any] = {"input": file.read()} if piped else {"stdin": file}
        done = subprocess.run(
            command, **given, capture_output=True, env={**os.environ, "TMPDIR": str(scratch)}, check=False
        )
    assert not list(scratch.iterdir())
    assert done.returncode == 0, done.stderr
    if verb == "hash":
        assert done.stdout.decode() == f"{hashlib.sha256(source.read_bytes()).hexdigest()}  -\n"


@pytest.mark.parametrize(
    "line", ["identify -", "inspect -", "verify - --json", "scan - --json", "scan - --sarif -", "diff - {}"]
)
def test_nothing_names_the_file_that_standard_input_is_kept_in(line: str, source: Path, tmp_path: Path) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    command = [sys.executable, "-m", "weighbridge", *line.format(source).split()]
    done = subprocess.run(
        command, input=b"no model", capture_output=True, env={**os.environ, "TMPDIR": str(scratch)}, check=False
    )
    text = (done.stdout + done.stderr).decode()
    assert scratch.name not in text
    assert "weighbridge-" not in text
    assert re.search(r"""(^|[ "])-[:" \n]""", text), text


# ------------------------------------------------------------------------------------------------ get


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pt"])
def test_a_tensor_is_written_in_the_format_of_the_suffix(suffix: str, source: Path, tmp_path: Path) -> None:
    assert run("get", source, "a.w", "-o", tmp_path / f"t{suffix}") == 0
    with wb.open(tmp_path / f"t{suffix}") as model:
        assert {name: t.shape for name, t in model.items()} == {"a.w": (4, 64)}


def test_a_format_that_holds_no_tensor_is_refused(source: Path, tmp_path: Path, capsys: Captured) -> None:
    assert run("get", f"{source}::a.w", "-o", tmp_path / "t.csv") == 2
    assert ".npy, .npz, .safetensors, .pt, .pth or .bin" in capsys.readouterr().err
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
    judge = [str(system.require("sha256sum")), "-c", str(tmp_path / "SUMS")]
    assert subprocess.run(judge, capture_output=True, check=False).returncode == 0
    assert run("hash", "-c", tmp_path / "SUMS") == 0


def test_a_name_that_is_no_text_is_kept_byte_by_byte(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff\x80")).write_bytes(b"x")
    ours, theirs = [sys.executable, "-m", "weighbridge", "hash"], system.require("sha256sum")
    command = [*ours, os.fsdecode(b"\xff\x80")]
    (tmp_path / "SUMS").write_bytes(subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout)
    for check in ([theirs, "-c", "SUMS"], [*ours, "-c", "SUMS"]):
        assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ["-c", "-a", "md5", "SUMS"], ["-c", "--tensors", "SUMS"], ["-c", "-j", "2", "SUMS"], ["--overwrite", "SUMS"],
        ["--gguf-hash", "--tensors", "SUMS"], ["--gguf-hash", "-c", "SUMS"],
    ],
)  # fmt: skip
def test_hash_ignores_no_option(
    words: list[str], tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x").write_bytes(b"x")
    Path("SUMS").write_text(f"{hashlib.sha256(b'x').hexdigest()}  x\n")
    assert run("hash", *words) == 2
    assert "hint" in capsys.readouterr().err


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


EMPTY = [row.name for row in COMMANDS if any(isinstance(p.type, NamedPath) for p in load(row).params)]


@pytest.mark.parametrize("name", EMPTY)
def test_an_unset_variable_is_not_the_current_folder(name: str, capsys: Captured) -> None:
    """`wb hash "$MODEL"` without MODEL."""
    required = [p for p in load(BY_NAME[name]).params if isinstance(p, click.Argument)]
    words = ["ollama" if isinstance(p.type, click.Choice) else "" for p in required]
    assert main([name, *words]) == 2
    assert "the path is empty" in capsys.readouterr().err


def test_a_suffix_in_capitals(source: Path, tmp_path: Path) -> None:
    assert main(["convert", str(source), str(tmp_path / "OUT.SAFETENSORS")]) == 0
    assert sorted(load_file(tmp_path / "OUT.SAFETENSORS")) == ["a.w", "b.w", "c"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="Linux's /proc")
@pytest.mark.parametrize(("words", "code"), [(["hash"], 2), (["inspect"], 2), (["identify"], 2), (["scan"], 1)])
def test_a_file_that_says_it_is_empty_and_is_not(words: list[str], code: int, capsys: Captured) -> None:
    """The digest of nothing would be a false answer."""
    assert main([*words, "/proc/self/stat"]) == code
    out, err = capsys.readouterr()
    assert "has no size, and yet bytes" in out + err


def test_the_reason_in_a_list_is_one_line(tmp_path: Path, capsys: Captured) -> None:
    save_file({"a": np.ones(3, "f4")}, tmp_path / "m.safetensors")
    os.mkfifo(tmp_path / "pipe.gguf")
    assert main(["identify", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "is not a regular file" in out
    assert "hint" not in out


def test_a_name_that_would_be_dropped(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    target = str(tmp_path / "m.gguf")
    assert main(["convert", str(folder), target, "--name", "", "--no-tokenizer"]) == 2
    assert "--name is empty" in capsys.readouterr().err


def test_nothing_is_larger_than_nan(source: Path, capsys: Captured) -> None:
    """As a tolerance it would make any two models equal."""
    assert main(["diff", str(source), str(source), "--tolerance", "nan"]) == 2
    assert "a tolerance can't be nan" in capsys.readouterr().err
