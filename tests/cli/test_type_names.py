"""Types and targets as people name them: what isn't one of ours is answered with what is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.cli.test_options import sources  # noqa: F401  # the models

import weighbridge as wb
from weighbridge.base.errors import UsageError
from weighbridge.cli.main import main
from weighbridge.containers import target_of, writable
from weighbridge.conversion.options import FORMATS
from weighbridge.conversion.plan.target import WEIGHTS
from weighbridge.conversion.quantize.ftypes import parse_ftype
from weighbridge.conversion.quantize.type_hints import closest
from weighbridge.conversion.schemes.table import SCHEMES

Sources = Mapping[str, Path]
Captured = pytest.CaptureFixture[str]
#: Names that forks, publishers and other tools use.
OTHERS = (
    "UD-Q4_K_XL", "UD-IQ2_XXS", "Q3_K_XL", "Q6_K_L", "Q4_K_XL", "IQ4_KS", "IQ2_K", "Q4_0_R4", "Q6_0", "Q8_KV", "Q4_2",
    "Q4_0_4_4", "Q8_1", "nf4", "fp4", "fp8", "F8_E4M3", "float8_e5m2", "int8", "int4", "4bit", "exl3", "hqq",
    *SCHEMES,
)  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("line", ["quantize {m} {o}.gguf {t}", "quantize {m} {t}", "convert {m} {o}.gguf --dtype {t}"])
def test_a_type_of_others_is_answered_with_one_of_ours(
    line: str, name: str, sources: Sources, tmp_path: Path, capsys: Captured  # noqa: F811
) -> None:  # fmt: skip
    assert main(line.format(m=sources["folder"], o=tmp_path / "o", t=name).split()) == 2
    told = capsys.readouterr().err
    hint = told.partition("hint: ")[2]
    types = [word for word in re.findall(r"\b(?:I?Q|TQ)\d\w*|MXFP4_MOE", hint, re.IGNORECASE) if parse_ftype(word)]
    schemes = [word for word in re.findall(r"--scheme (\w+)", hint) if word in SCHEMES]
    assert types or schemes, told
    assert not re.search(r"unknown|known:", hint), told


def test_the_closest_type_has_as_many_bits() -> None:
    for name in OTHERS:
        assert (row := parse_ftype(closest(name.upper()))) is not None
        digit = re.match(r"(?:UD-)?I?Q([1-8])", name)
        assert digit is None or f"Q{digit[1]}" in row.name


@pytest.mark.parametrize("name", ["q4_k_m", "IQ2_XS", "awq", "nf4", "q4_9"])
def test_pythons_convert_says_what_a_type_is_of(name: str, sources: Sources, tmp_path: Path) -> None:  # noqa: F811
    for target in ("o.gguf", "o.safetensors", "o"):
        with pytest.raises(UsageError) as error:
            wb.plan_convert(sources["folder"], tmp_path / target, dtype=name)
        assert re.search("wb quantize|--scheme|did you mean|[.]gguf", str(error.value.hint))


def test_a_type_in_front_is_moved_to_the_end(sources: Sources, tmp_path: Path, capsys: Captured) -> None:  # noqa: F811
    assert main(["quantize", "q4_k_m", str(sources["folder"]), str(tmp_path / "o.gguf")]) == 2
    line = capsys.readouterr().err.partition("hint: ")[2].strip()
    assert line == f"wb quantize {sources['folder']} {tmp_path / 'o.gguf'} q4_k_m"
    assert main(line.split()[1:]) == 0


@pytest.mark.parametrize("kind", [*FORMATS, "pt", "st"])
@pytest.mark.parametrize("suffix", sorted({s for f in writable().values() for s in f.suffixes}))
def test_a_target_named_as_another_format_is_refused(
    kind: str, suffix: str, sources: Sources, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    try:
        plan = wb.plan_convert(sources["folder"], tmp_path / f"out{suffix}", to=kind)
    except wb.errors.WeighbridgeError:
        return
    assert plan.folder is (kind in WEIGHTS)
    assert kind not in WEIGHTS, "a folder with the name of a file"
    assert target_of(suffix) == plan.format
    slash = wb.plan_convert(sources["folder"], f"{tmp_path}/out{suffix}/", to="mlx")
    assert slash.folder
