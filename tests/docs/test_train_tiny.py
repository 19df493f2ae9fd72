"""The example that trains a small Llama: a few steps of it, and its folder becomes GGUF files that llama.cpp runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.oracles import llamacpp
from tests.programs import load_program

import weighbridge as wb

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.oracle
EXAMPLE = Path(__file__).parents[2] / "examples" / "train_tiny.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps, on a few hundred kilobytes."""
    path = tmp_path_factory.mktemp("trained") / "tiny"
    module = load_program(EXAMPLE)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        loss = module.make(path, 3, most=300_000)
    finally:
        torch.set_num_threads(threads)
    # A model that knows nothing loses log(VOCABULARY).
    assert loss < np.log(module.VOCABULARY) - 0.3
    return path


@pytest.mark.slow
def test_the_folder_converts_and_runs_as_transformers_runs_it(folder: Path) -> None:
    target = folder.parent / "f32.gguf"
    wb.convert(folder, target, dtype="f32")
    text = (folder / "heldout.txt").read_text("utf-8")[:400]
    ids = transformers.AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
    with llamacpp.Model(target) as model:
        assert model.tokenize(text, add_special=False) == ids
        found = model.logits(ids)
    with torch.no_grad():
        own = transformers.AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([ids])).logits[0].numpy()
    assert np.abs(found - own).max() < 1e-3 * max(1, np.abs(own).max())


@pytest.mark.costly
def test_every_row_is_whole_blocks(folder: Path) -> None:
    plan = wb.plan_quantize(folder, folder.parent / "q.gguf", "Q4_K_M")
    assert {row.wanted for row in plan.rows} == {None}
    assert {row.target for row in plan.rows} >= {"Q4_K", "Q6_K"}


@pytest.mark.costly
def test_what_is_held_out_was_not_trained_on() -> None:
    texts = load_program(EXAMPLE).standard_library(200_000)
    assert texts.training
    assert texts.held_out
    assert not set(texts.training) & set(texts.held_out)


@pytest.mark.costly
def test_the_config_is_what_the_page_says(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    assert {key: config[key] for key in load_program(EXAMPLE).SHAPE} == load_program(EXAMPLE).SHAPE
