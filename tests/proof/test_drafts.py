"""Models that only run beside another, as drafts of its tokens: the reference's very file, one that llama.cpp loads,
and the same tensors after the way back. What they compute can't be asked of either without the other model."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.oracles import families, gguf_file, models, ours, reference_converter
from tests.oracles.folders import tensors
from tests.oracles.llama_loads import Judge

pytestmark = pytest.mark.oracle

DRAFTS = ("gemma4-assistant", "gemma4-unified-assistant")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    parent = tmp_path_factory.mktemp("drafts")
    return cache(lambda name: models.build(families.CASES[name], parent / name))


@pytest.mark.parametrize("name", DRAFTS)
def test_the_file_is_the_reference_s_and_leads_back(name: str, folder: Callable[[str], Path], tmp_path: Path) -> None:
    case = families.CASES[name]
    mine = ours.to_gguf(folder(name), tmp_path / "mine" / f"{name}.gguf", "f32", pre=case.pre)
    (tmp_path / "theirs").mkdir()
    theirs = reference_converter.convert(folder(name), tmp_path / "theirs" / f"{name}.gguf", "f32", pre=case.pre)
    found, expected = gguf_file.read(mine), gguf_file.read(theirs)
    assert gguf_file.differences(found, expected) == []
    judge = Judge()
    assert judge.refusal(mine) is None
    judge.close()
    back = ours.to_folder(mine, tmp_path / name)
    original, returned = tensors(folder(name)), tensors(back)
    assert returned.keys() == original.keys()
    assert [n for n in original if not returned[n].equal(original[n])] == []
    config = json.loads((back / "config.json").read_text())
    assert config["backbone_hidden_size"] == case.options["backbone_hidden_size"]
    assert "backbone_hidden_size" not in config["text_config"]
