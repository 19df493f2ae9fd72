"""A language model's GGUF and an mmproj file: whether they belong together, by `wb verify` and `wb ship`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from tests.models.projector_cases import golden, write_folder

import weighbridge as wb
from weighbridge.base.errors import UsageError
from weighbridge.cli.main import main
from weighbridge.models.llamacpp import pair
from weighbridge.models.llamacpp.candidate import Candidate
from weighbridge.models.llamacpp.projectors import table as projector_table

#: Cases of different language models and projectors.
CASES: Final = ("gemma3", "qwen2-vl", "qwen3-vl", "glm-4v", "smolvlm", "voxtral", "qwen2-audio", "lightonocr")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[Path, Path]]:
    folder: Path = tmp_path_factory.mktemp("pairs")
    made = {}
    for name in CASES:
        source = write_folder(golden()[name], folder / name)
        made[name] = folder / f"{name}.gguf", folder / f"mmproj-{name}.gguf"
        wb.convert(source, made[name][0], tokenizer=False)
        wb.convert(source, made[name][1], mmproj=True)
    return made


def rules(path: Path, **options: Any) -> set[str]:
    return {finding.rule for finding in wb.verify(path, **options).findings if "mmproj" in finding.rule}


@pytest.mark.parametrize("text", CASES)
@pytest.mark.parametrize("towers", CASES)
def test_only_files_of_one_class_are_a_pair(text: str, towers: str, pairs: Mapping[str, tuple[Path, Path]]) -> None:
    found = rules(pairs[text][0], mmproj=pairs[towers][1])
    deep = (text == "qwen3-vl") != (towers == "qwen3-vl")  # its embeddings are repeated for two layers
    same = {"llamacpp/mmproj-width"} if deep else {"llamacpp/mmproj-base"}
    llamas = {"smolvlm", "voxtral"}  # by their language models; Sarashina 2.2 Vision has a Llama and Qwen2-VL's towers
    alike = text == towers or (text in llamas and towers in {*llamas, "qwen2-vl"})
    assert found == (set() if alike else same)


def test_both_numbers_are_in_the_error(pairs: Mapping[str, tuple[Path, Path]]) -> None:
    (finding,) = wb.verify(pairs["gemma3"][0], mmproj=pairs["qwen3-vl"][1]).findings
    assert finding.severity == "error"
    assert "width 192 (mm.2.bias x (1 + 2))" in finding.message
    assert "width 64 (gemma3.embedding_length)" in finding.message


@pytest.mark.costly
def test_a_folder_s_projector_needs_one_language_model(pairs: Mapping[str, tuple[Path, Path]], tmp_path: Path) -> None:
    """A projector in a folder is at fault if no language model there has its width."""
    text, wrong = pairs["qwen3-vl"][0], pairs["gemma3"][1]
    for path in (text, wrong):
        shutil.copy(path, tmp_path)
    assert rules(tmp_path) == {"llamacpp/mmproj-width"}
    shutil.copy(pairs["gemma3"][0], tmp_path)
    assert rules(tmp_path) == set()


def test_the_command_takes_two_files(
    pairs: Mapping[str, tuple[Path, Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    text, towers = pairs["qwen3-vl"][0], pairs["gemma3"][1]
    for words in ([text, towers], [towers, text], [text, "--mmproj", towers]):
        assert main(["verify", *map(str, words), "--json"]) == 1
        reports = json.loads(capsys.readouterr().out)
        findings = [f for r in (reports if isinstance(reports, list) else [reports]) for f in r["findings"]]
        assert [f["path"] for f in findings if f["rule"] == "llamacpp/mmproj-width"] == [str(towers)]
    assert main(["verify", *map(str, pairs["gemma3"])]) == 0


def test_a_projector_that_is_none_is_refused(pairs: Mapping[str, tuple[Path, Path]], tmp_path: Path) -> None:
    text, towers = pairs["gemma3"]
    with pytest.raises(UsageError, match="isn't an mmproj file"):
        wb.verify(text, mmproj=text)
    with pytest.raises(UsageError, match="isn't an mmproj file: No such file"):
        wb.verify(text, mmproj=tmp_path / "none.gguf")
    with pytest.raises(UsageError, match="no language model's GGUF"):
        wb.verify(towers, mmproj=towers)


@pytest.mark.parametrize(
    ("text", "towers", "fault"),
    [
        ({"general.base_model.0.repo_url": "https://a/B"}, {"general.base_model.0.repo_url": "https://a/b"}, None),
        ({"general.base_model.0.repo_url": "https://a/b"}, {"general.base_model.0.repo_url": "https://c/d"}, "base"),
        ({"general.basename": "Gemma-3"}, {"general.basename": "gemma-3"}, None),
        ({"general.basename": "gemma-3"}, {"general.basename": "gemma-2"}, "general.basename"),
        ({"general.basename": "gemma-3"}, {}, None),
    ],
)  # fmt: skip
def test_names_that_contradict(text: dict[str, Any], towers: dict[str, Any], fault: str | None) -> None:
    clip = {"general.architecture": "clip", "clip.projector_type": "gemma3", **towers}
    found = pair.base_fault({"general.architecture": "gemma3", **text}, Candidate(clip, {}))
    assert found is None if fault is None else fault in str(found)


def plan(text: Path) -> Any:
    with wb.plan_ship("llama-server", text, device="8GB") as plan:
        return plan.report


def test_the_server_gets_the_projector_of_its_width(pairs: Mapping[str, tuple[Path, Path]], tmp_path: Path) -> None:
    text = Path(shutil.copy(pairs["qwen3-vl"][0], tmp_path))
    shutil.copy(pairs["gemma3"][1], tmp_path)
    report = plan(text)
    assert "--mmproj" not in str(report.run)
    assert any("mmproj-gemma3.gguf isn't used: the mmproj file computes" in note for note in report.notes)
    right = shutil.copy(pairs["qwen3-vl"][1], tmp_path)
    assert f"--mmproj {right}" in str(plan(text).run)
    shutil.copy(right, tmp_path / "mmproj-twin.gguf")
    twice = plan(text)
    assert "--mmproj" not in str(twice.run)
    assert any("chooses one of mmproj-qwen3-vl.gguf, mmproj-twin.gguf" in note for note in twice.notes)


ROWS: Final = [
    (tensor, named, axis)
    for axis, names in ((0, pair.table().first), (1, pair.table().last))
    for tensor, types in names.items()
    for named in types
]


@pytest.mark.parametrize(("tensor", "named", "axis"), ROWS)
def test_each_row_s_tensor_has_the_width(tensor: str, named: str, axis: int) -> None:
    """The tensor counts, not the key, as in llama.cpp; with a fault in the row the key would."""
    assert named in projector_table().types
    assert sum(named == other for _, other, _ in ROWS) == 1
    modality = "audio" if ".a." in tensor or tensor.startswith("a.") else "vision"
    shape = (48,) if tensor.endswith(".bias") else (48, 24)
    keys = {"general.architecture": "clip", f"clip.has_{modality}_encoder": True, "clip.projector_type": named}
    towers = Candidate({**keys, f"clip.{modality}.projection_dim": 7}, {tensor: shape})
    assert [width.size for width in pair.projected_widths(towers)] == [shape[axis]]
    assert [width.size for width in pair.projected_widths(Candidate(towers.metadata, {}))] == [7]
