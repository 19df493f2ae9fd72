"""A format that a package adds with one file and one entry point is in every command, as a built-in one is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.architecture.house import ROOT
from tests.conformance import test_formats as laws
from tests.conformance.samples import METADATA, TENSORS, contents, own, written
from tests.fuzz.test_fuzz import harness
from tests.plugins import TOYS, environment, installed, toy_format, write_package

import weighbridge as wb
from weighbridge.base.errors import UnsupportedError
from weighbridge.base.plugins import FORMATS
from weighbridge.containers import Format, every, find, reader
from weighbridge.containers.sniff.detect import sniff
from weighbridge.io.source import BytesSource


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Format]:
    with installed(toy_format(tmp_path / "packages")):
        yield reader("tnsr")


def wb_(tmp_path: Path, *arguments: str) -> str:
    """What the command prints, run in a process that has the plug-in installed."""
    done = subprocess.run(
        [sys.executable, "-m", "weighbridge", *arguments], env=environment(tmp_path / "packages"), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def file(toy: Format, tmp_path: Path) -> Path:
    layout = toy.layout(TENSORS["several"], METADATA)
    (tmp_path / "x.tnsr").write_bytes(written(layout, contents(layout)))
    return tmp_path / "x.tnsr"


def test_it_costs_one_file_and_one_entry_point(tmp_path: Path) -> None:
    """The numbers that docs/extending.md quotes."""
    lines = (TOYS / "toy_tnsr.py").read_text("utf-8").splitlines()
    assert len([line for line in lines if line.strip()]) <= 70
    folder = toy_format(tmp_path)
    assert [p.name for p in folder.glob("*.py")] == ["toy_tnsr.py"]
    assert (folder / "toy_tnsr-1.0.dist-info/entry_points.txt").read_text().splitlines() == [
        "[weighbridge.formats]",
        "tnsr = toy_tnsr:FORMAT",
    ]


# ---- the laws ----

LAWS = [law for name, law in vars(laws).items() if name.startswith("test_") and "format" in law.__annotations__]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_the_laws_of_formats_hold(law: object, toy: Format) -> None:
    if law in (laws.test_names_lead_back, laws.test_pickles_are_named, laws.test_recognising_agrees_with_parsing):
        return  # of built-in tables; see below
    takes = law.__annotations__
    for tensors in TENSORS.values() if "tensors" in takes else [None]:
        law(toy, tensors) if "tensors" in takes else law(toy)  # type: ignore[operator]


def test_names_lead_to_it(toy: Format) -> None:
    from weighbridge.containers import by_suffix, by_target, target_of

    assert by_suffix(".tnsr") == by_target("TNSR") == find("tnsr") == toy
    assert target_of(".tnsr") == "tnsr"
    assert toy in every()
    for data in own(toy):
        assert sniff(BytesSource(data)).format == "tnsr"


def test_the_fuzzer_finds_it(toy: Format) -> None:
    fuzzer = harness.load(harness.HERE / "fuzz_formats.py")
    assert any(data.startswith(b"TNSR") for data in fuzzer.seeds())
    assert harness.run(fuzzer.target, own(toy), iterations=100) >= 100


# ---- the commands ----


def test_every_command_knows_it(file: Path, tmp_path: Path) -> None:
    identity = json.loads(wb_(tmp_path, "identify", str(file), "--json"))
    assert (identity["format"], identity["title"], identity["readable"]) == ("tnsr", "Toy tensors", True)
    assert "b.weight" in wb_(tmp_path, "inspect", str(file))
    assert json.loads(wb_(tmp_path, "verify", str(file), "--json"))["findings"] == []
    anatomy = json.loads(wb_(tmp_path, "anatomy", str(file), "--json"))
    assert {"magic", "length", "header", "tensor"} == {part["kind"] for part in anatomy["parts"]}


def test_conversion_to_and_from_it(file: Path, tmp_path: Path) -> None:
    there, back = tmp_path / "y.safetensors", tmp_path / "z.out"
    wb_(tmp_path, "convert", str(file), str(there))
    wb_(tmp_path, "convert", str(there), str(back), "--to", "TNSR")
    with installed(tmp_path / "packages"), wb.open(file) as source, wb.open(there) as middle, wb.open(back) as end:
        for name in ("a", "b.weight", "c", "d"):
            expected = source[name].numpy()
            assert np.array_equal(middle[name].numpy(), expected, equal_nan=True)
            assert np.array_equal(end[name].numpy(), expected, equal_nan=True)


def test_the_docs_generator_lists_it(toy: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import generate  # type: ignore[import-not-found]

    assert any("| Toy tensors | reads | writes |" in line for line in generate.containers_part({}))


# ---- faults of plug-ins ----


def broken(folder: Path, text: str) -> Path:
    return write_package(folder, "bad", {"bad_format.py": text}, {FORMATS: {"bad": "bad_format:FORMAT"}})


HEAD = "from weighbridge.containers.format import Format\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("FORMAT = 1", "bad_format:FORMAT is a int, not a Format"),
        ("import no_such_module", "ModuleNotFoundError"),
        (HEAD + "FORMAT = Format('gguf', 'X')", "a plug-in registers a format 'gguf', which is built in"),
        (
            HEAD + "FORMAT = Format('bad', 'Bad', module=__name__)\ndef recognise(probe): 1 / 0",
            "plug-in 'bad' can't recognise <bytes>: ZeroDivisionError",
        ),
    ],
)
def test_a_broken_plugin_is_an_error_that_names_it(tmp_path: Path, text: str, words: str) -> None:
    noise = BytesSource(bytes(range(200, 256)) * 3)
    with installed(broken(tmp_path, text)):
        assert sniff(BytesSource(b"GGUF")).format == "gguf"  # nobody asks the plug-in
        with pytest.raises(UnsupportedError, match=words):
            sniff(noise)
