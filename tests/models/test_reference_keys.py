"""Settings by which our key-values differ from the reference's: exactly those that the page lists."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.models.record_reference import record, write
from tests.models.reference_cases import golden
from tests.models.reference_settings import CASES
from tests.oracles.published_configs import make_folder, ours, published
from tests.oracles.reference_page import PAGE

import weighbridge as wb

_ROW = re.compile(r"^\| `(?P<class_>\w+)` \| [^|]+ \| `(?P<key>[^`]+)` \|", re.MULTILINE)


def listed() -> set[tuple[str, str]]:
    return {(m["class_"], m["key"]) for m in _ROW.finditer(PAGE.read_text("utf-8"))}


@pytest.mark.parametrize("name", CASES)
def test_the_page_lists_what_differs(name: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="NOTHING HERE WAS PROVED: install requirements/oracles.txt")
    case = CASES[name]
    wb.convert(write(case, tmp_path), tmp_path / "ours.gguf", dtype="f32", tokenizer=False)
    ours, reference = (
        {key: (kind, value) for key, kind, value in found["keys"]}
        for found in (record(gguf, tmp_path / "ours.gguf"), golden("reference_settings")[name])
    )
    differ = {key for key in {*ours, *reference} if ours.get(key) != reference.get(key)}
    # The tokenizer's half is left out of both: its keys, and the vocabulary's size.
    differ = {key for key in differ if not key.startswith(("general.", "tokenizer.")) and "vocab_size" not in key}
    assert differ
    assert differ == {key for class_, key in listed() if class_ == case.config["architectures"][0]}


def test_every_row_has_a_case() -> None:
    assert {class_ for class_, _ in listed()} == {case.config["architectures"][0] for case in CASES.values()}


# Published models at their real size: what we would write is what the reference converter would, as recorded of it.


MODELS = published()


@pytest.mark.costly
@pytest.mark.parametrize("name", ["DeepSeek-V3.2", "Ling-mini-2.0"])
def test_further_layers_that_were_left_out_are_not_counted(name: str, tmp_path: Path) -> None:
    """The reference counts what config.json says, and llama.cpp misses the tensors."""
    config = MODELS[name]["config"]
    without = {**config, "num_nextn_predict_layers": 0}
    stale = make_folder(without, tmp_path / "stale")
    (stale / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1, "torch_dtype": "bfloat16"}))
    assert ours(stale) == ours(make_folder(without, tmp_path / "tidy"))
    with wb.plan_convert(stale, tmp_path / "m.gguf", dtype="bf16", tokenizer=False) as plan:
        assert "num_nextn_predict_layers is 1" in " ".join(plan.notes)


@pytest.mark.parametrize("name", MODELS)
def test_a_published_model_is_written_as_the_reference_writes_it(name: str, tmp_path: Path) -> None:
    made = ours(make_folder(MODELS[name]["config"], tmp_path / "model", MODELS[name].get("groups", ())))
    reference = MODELS[MODELS[name].get("same_as", name)]["reference"]
    same = made.digest == reference["digest"]
    assert len(made.tensors) == reference["tensors"]
    assert same == ("differs" not in MODELS[name]), made.keys
