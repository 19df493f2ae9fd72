"""Modelfiles: the rows are what Ollama's own parser answered (ollama fb30760, parser/parser.go, compiled and run)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError, UsageError
from weighbridge.models.modelfile import Instruction, parse_modelfile, read_modelfile, write_modelfile

VALUES = [
    ("PARAMETER stop  two words  ", "two words"),
    ('SYSTEM """l1\nl "two" """', 'l1\nl "two" '),
    ('SYSTEM "x\ny"', "x\ny"),
    ("SYSTEM 'single'", "'single'"),
    ('SYSTEM she said "hi" twice', 'she said "hi" twice'),
    ('SYSTEM """x"""y"""', 'x"""y'),
    ('SYSTEM """ends with quote""""', 'ends with quote"'),
    ('SYSTEM """"hi"""', '"hi'),
    ('SYSTEM ""', ""),
    ('SYSTEM """"""', ""),
    ('PARAMETER stop "\\""', '\\"'),
    ('PARAMETER stop "a","b"', 'a","b'),
    ('MESSAGE user """a\nb"""', "a\nb"),
    ('LICENSE """\nMIT\n"""', "\nMIT\n"),
    ("system lower case\r", "lower case"),
]
REFUSED = [
    'SYSTEM "a" b',
    'TEMPLATE """x""" trailing',
    "SYSTEM\nPARAMETER top_k 1",
    "PARAMETER num-ctx 4",
    "PARAMETER temperature",
    "MESSAGE tool hi",
    "BOGUS x",
    'SYSTEM """never closed',
]
PARAMETERS = [
    ("PARAMETER temperature 0.7", {"temperature": 0.7}),
    ("PARAMETER stop a\nPARAMETER stop b", {"stop": ["a", "b"]}),
    ("PARAMETER num_ctx 8192\nPARAMETER use_mmap false", {"num_ctx": 8192, "use_mmap": False}),
    ("PARAMETER mirostat 1", {}),
]


@pytest.mark.parametrize(("line", "value"), VALUES)
def test_a_value_is_what_ollama_reads(line: str, value: str) -> None:
    first, second = parse_modelfile(f"# a comment\nFROM a # not a comment\n\n{line}\n").instructions
    assert (first.value, second.value) == ("a # not a comment", value)
    assert second.line == 4


@pytest.mark.parametrize("line", REFUSED)
def test_what_ollama_refuses_is_refused_with_the_line(line: str) -> None:
    with pytest.raises(FormatError, match="line 2"):
        parse_modelfile(f"FROM a\n{line}\n")


def test_a_modelfile_without_from_is_refused() -> None:
    with pytest.raises(FormatError, match="no FROM"):
        parse_modelfile("SYSTEM x\n")


@pytest.mark.parametrize(("lines", "expected"), PARAMETERS)
def test_parameters_have_types(lines: str, expected: object) -> None:
    assert parse_modelfile(f"FROM a\n{lines}\n").parameters == expected


@pytest.mark.parametrize("line", ["STOP x", "num_ctx 8k", "mirostatic 1", "use_mmap maybe", "temperature hot"])
def test_a_wrong_parameter_names_its_line(line: str) -> None:
    with pytest.raises(FormatError, match="line 2"):
        _ = parse_modelfile(f"FROM a\nPARAMETER {line}\n").parameters


@given(st.lists(st.sampled_from([*"\" \n\r\t#\\'a", '"""', "é", "FROM b"]), max_size=8).map("".join))
@example('"')
@example('a\n"""')
@example('"""\n')
@example("\ufeff")
def test_what_is_written_parses_back(value: str) -> None:
    rows = [Instruction("FROM", "a"), Instruction("SYSTEM", value), Instruction("PARAMETER", "1", "seed")]
    try:
        text = write_modelfile(rows)
    except UnsupportedError:
        assert any(line.rstrip().endswith('"""') for line in value.replace("\r", "\n").split("\n")[:-1])
        return
    found = [(i.command, i.value) for i in parse_modelfile(text).instructions]
    assert found == [("FROM", "a"), *([("SYSTEM", value)] if value else []), ("PARAMETER", "1")]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_marks_and_wide_characters_are_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "Modelfile"
    path.write_bytes("FROM ü\r\nSYSTEM x\r\n".encode(encoding))
    assert [i.value for i in read_modelfile(path).instructions] == ["ü", "x"]


# ------------------------------------------------------------------------------------------------ as a source


def test_a_modelfile_opens_the_model_it_is_from(gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "Modelfile"
    path.write_text(f"FROM {gguf}\nSYSTEM Be short.\nPARAMETER temperature 0.1\n")
    with wb.open(path) as model, wb.open(gguf) as plain:
        assert list(model) == list(plain)
    result = wb.convert(path, tmp_path / "out.safetensors")
    assert any("SYSTEM, PARAMETER" in note for note in result.notes)
    assert wb.verify(path).verdict == "ok"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("FROM ./missing.gguf\n", "missing file"),
        ("FROM {}\nPARAMETER bogus 1\n", "bogus"),
        ("FROM {}\nADAPTER ./no.gguf\n", "missing file"),
        ("FROM {}\nFROM s3://bucket/x y\n", "valid Ollama model name"),
    ],
)
def test_verify_reports_what_ollama_would(gguf: Path, tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "Modelfile"
    path.write_text(text.format(gguf))
    report = wb.verify(path)
    assert report.verdict == "failed"
    assert [words in f.message for f in report.findings if f.rule == "file/modelfile"] == [True]


def test_a_modelfile_from_another_is_refused(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "Modelfile").write_text(f"FROM {gguf}\n")
    (tmp_path / "b.modelfile").write_text("FROM ./Modelfile\n")
    with pytest.raises(UsageError, match="another Modelfile"):
        wb.open(tmp_path / "b.modelfile")
