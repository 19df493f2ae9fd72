"""A format that a package adds with one file and one entry point is in every command, as a built-in one is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.architecture.house import ROOT
from tests.conformance import test_formats as laws
from tests.conformance.samples import METADATA, TENSORS, accepted, contents, own, samples, written
from tests.fuzz.test_fuzz import harness
from tests.plugins import TOYS, environment, installed, toy_crate, toy_format, write_package

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.base.plugins import FORMATS
from weighbridge.containers import Format, every, find, reader
from weighbridge.containers.formats import READ
from weighbridge.containers.opening import format_of
from weighbridge.containers.sniff.detect import sniff
from weighbridge.containers.sniff.probe import Probe
from weighbridge.io.source import BytesSource


@pytest.fixture(params=["tnsr", "crate"])
def toy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Format]:
    """A format with a magic, and one in a zip."""
    install = {"tnsr": toy_format, "crate": toy_crate}[request.param]
    with installed(install(tmp_path / "packages")):
        yield reader(request.param)


def wb_(tmp_path: Path, *arguments: str) -> str:
    """The output of a command in a process with the plug-in."""
    done = subprocess.run(
        [sys.executable, "-m", "weighbridge", *arguments], env=environment(tmp_path / "packages"), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def file(toy: Format, tmp_path: Path) -> Path:
    layout = toy.layout(TENSORS["several"], METADATA)
    path = tmp_path / f"x{toy.suffix}"
    path.write_bytes(written(layout, contents(layout)))
    return path


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
    for tensors in accepted(toy).values() if "tensors" in takes else [None]:
        law(toy, tensors) if "tensors" in takes else law(toy)  # type: ignore[operator]


def test_names_lead_to_it(toy: Format) -> None:
    from weighbridge.containers import by_suffix, by_target, target_of

    assert by_suffix(toy.suffix) == by_target(toy.target.upper()) == find(toy.name) == toy
    assert target_of(toy.suffix) == toy.target
    assert toy in every()


def test_it_is_recognised_whole_and_damaged(toy: Format) -> None:
    for data in own(toy):
        for size in (len(data), len(data) - 1, len(data) // 2):
            assert sniff(BytesSource(data[:size])).format == toy.name, size
    damaged = own(toy)[1][:-1]
    with pytest.raises(FormatError, match="<bytes>"):
        format_of(BytesSource(damaged)).parse(BytesSource(damaged))


def test_it_claims_no_file_of_a_built_in_format(toy: Format) -> None:
    for other in READ:
        for data in samples(other):
            assert toy.recognise(Probe(BytesSource(data))) is None


@pytest.mark.costly
def test_the_fuzzer_finds_it(toy: Format) -> None:
    fuzzer = harness.load(harness.HERE / "fuzz_formats.py")
    assert any(sniff(BytesSource(data)).format == toy.name for data in fuzzer.seeds())
    assert harness.run(fuzzer.target, own(toy), iterations=100) >= 100


# ---- the commands ----


@pytest.mark.costly
def test_every_command_knows_it(toy: Format, file: Path, tmp_path: Path) -> None:
    identity = json.loads(wb_(tmp_path, "identify", str(file), "--json"))
    assert (identity["format"], identity["title"], identity["readable"]) == (toy.name, toy.title, True)
    assert "b.weight" in wb_(tmp_path, "inspect", str(file))
    assert json.loads(wb_(tmp_path, "verify", str(file), "--json"))["findings"] == []
    anatomy = json.loads(wb_(tmp_path, "anatomy", str(file), "--json"))
    assert {"header", "tensor"} <= {part["kind"] for part in anatomy["parts"]}


@pytest.mark.costly
def test_conversion_to_and_from_it(toy: Format, file: Path, tmp_path: Path) -> None:
    there, back = tmp_path / "y.safetensors", tmp_path / "z.out"
    wb_(tmp_path, "convert", str(file), str(there))
    wb_(tmp_path, "convert", str(there), str(back), "--to", toy.target.upper())
    with installed(tmp_path / "packages"), wb.open(file) as source, wb.open(there) as middle, wb.open(back) as end:
        for name in ("a", "b.weight", "c", "d"):
            expected = source[name].numpy()
            assert np.array_equal(middle[name].numpy(), expected, equal_nan=True)
            assert np.array_equal(end[name].numpy(), expected, equal_nan=True)


def test_a_type_that_it_does_not_declare_is_refused(toy: Format, file: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{toy.target} files can't store F8_E4M3"):
        wb.convert(file, tmp_path / f"f8{toy.suffix}", dtype="f8_e4m3")


def test_the_docs_generator_lists_it(toy: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import generate  # type: ignore[import-not-found]

    assert any(f"| {toy.title} | reads | writes |" in line for line in generate.containers_part({}))


# ---- faults of plug-ins ----


def broken(folder: Path, text: str) -> Path:
    return write_package(folder, "bad", {"bad_format.py": text}, {FORMATS: {"bad": "bad_format:FORMAT"}})


HEAD = "from weighbridge.containers.format import Format\n"


MAGIC = HEAD.replace("Format\n", "Format, Magic, Rank, Recogniser\n") + (
    "FORMAT = Format('bad', 'Bad', ('.bad',), magics=(Magic(0, b'BAD!'),), module=__name__, target='bad',\n"
    "                dtypes=frozenset({'F32'}))\n"
)
FUNCTIONS = "".join(f"def {name}(*arguments): return {name.upper()}()\n" for name in ("parse", "regions", "layout"))
RECOGNISE = HEAD.replace("Format\n", "Format, Rank, Recogniser\n") + (
    "FORMAT = Format('bad', 'Bad', module=__name__, recognisers=(Recogniser('bad_format:recognise', Rank.{rank}),))\n"
    "parse = regions = None.__class__\ndef recognise(probe): {act}\n"
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("FORMAT = 1", "bad_format:FORMAT is a int, not a Format"),
        ("import no_such_module", "ModuleNotFoundError"),
        (HEAD + "FORMAT = Format('gguf', 'X')", "a plug-in registers a format 'gguf', which exists already"),
        (HEAD + "FORMAT = Format('x', 'X', target='st', dtypes={'F32'}, module='m')", "a format 'st', which exists"),
        (HEAD + "FORMAT = Format('x', 'X', ('bad',))", "the format 'x' has a suffix unlike .abc"),
        (HEAD + "FORMAT = Format('x', 'X', target='x', module='m')", "is written but declares no dtypes"),
        (HEAD + "FORMAT = Format('x', 'X', target='x', module='m', dtypes=frozenset({'F3'}))", "unknown dtypes"),
        (MAGIC + "parse = len", "the plug-in 'bad' failed: its module has no function regions, layout"),
        (RECOGNISE.format(rank="LAST", act="1 / 0"), "the plug-in 'bad' failed: ZeroDivisionError"),
        (RECOGNISE.format(rank="LAST", act="return True"), "its recogniser returned True, no Hit of this format"),
        (RECOGNISE.format(rank="FIRST", act="pass"), "only built-in formats have recognisers of rank FIRST"),
    ],
)
def test_a_broken_plugin_is_an_error_that_names_it(tmp_path: Path, text: str, words: str) -> None:
    """For files that no built-in format has; the others are recognised as ever."""
    noise = BytesSource(bytes(range(200, 256)) * 3)
    with installed(broken(tmp_path, text)):
        assert sniff(BytesSource(b"GGUF")).format == "gguf"
        assert sniff(BytesSource(b"%PDF-1.7")).format == "pdf"
        with pytest.raises(UnsupportedError, match=words):
            sniff(noise)


@pytest.mark.parametrize(
    ("result", "why"), [("1 / 0", "ZeroDivisionError: division by zero"), ("None", "returned None, not a")]
)
@pytest.mark.parametrize("command", ["inspect", "anatomy", "convert"])
def test_a_failing_plugin_is_no_fault_of_weighbridge(tmp_path: Path, command: str, result: str, why: str) -> None:
    """Exit code 2, and the name of the plug-in, whichever of its functions fails."""
    text = MAGIC + FUNCTIONS.replace("PARSE()", result).replace("REGIONS()", "1 / 0").replace("LAYOUT()", result)
    broken(tmp_path / "packages", text)
    (tmp_path / "x.bad").write_bytes(b"BAD! and more")
    save_file({"a": np.ones(3, np.float32)}, tmp_path / "a.safetensors")
    arguments = {"convert": ["a.safetensors", "new.bad"]}.get(command, ["x.bad"])
    done = subprocess.run(
        [sys.executable, "-m", "weighbridge", command, *arguments],
        env=environment(tmp_path / "packages"), cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "the plug-in 'bad' failed: " in done.stderr
    assert command == "anatomy" or why in done.stderr
    assert "the module bad_format" in done.stderr
