"""What is peculiar to encoders: one graph of llama.cpp runs several families, and some go without a tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file
from tests.oracles import llamacpp, models
from tests.oracles.families import encoders, nomic_jina

import weighbridge as api

pytestmark = pytest.mark.oracle

Maker = Callable[[str], Path]
Converter = Callable[[str, str], Path]
TOLERANCE = 5e-3  # as in test_llama_logits


@pytest.mark.parametrize("name", ["distilbert", "roberta"])
def test_embeddings_equal_without_a_tokenizer(name: str, tmp_path: Path) -> None:
    folder = models.build(encoders.CASES[name], tmp_path / name)
    api.convert(folder, tmp_path / "out.gguf", to="gguf", dtype="f32", tokenizer=False)
    ids = models.probe(600)
    with llamacpp.Model(tmp_path / "out.gguf") as model:
        found = model.embed(ids)
    assert models.relative_error(found, models.embedding(folder, ids)) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "classes"),
    [
        ("bert", "BertModel"),
        ("distilbert", "DistilBertModel"),
        ("roberta", "RobertaModel"),
        ("xlm-roberta", "XLMRobertaModel"),
        ("camembert", "CamembertModel"),
        ("bert-rank", "BertForSequenceClassification"),
        ("distilbert-labels", "DistilBertForSequenceClassification"),
        ("roberta-labels", "RobertaForSequenceClassification"),
        ("xlm-roberta-rank", "XLMRobertaForSequenceClassification"),
        ("camembert-labels", "CamembertForSequenceClassification"),
    ],
)
def test_a_gguf_of_one_graph_goes_back_to_its_own_class(
    name: str, classes: str, gguf_of: Converter, tmp_path: Path
) -> None:
    api.convert(gguf_of(name, "f32"), tmp_path / name, to="hf")
    assert json.loads((tmp_path / name / "config.json").read_text())["architectures"] == [classes]


def test_a_distilbert_classifier_is_all_there_but_for_its_activation(folder_of: Maker, gguf_of: Converter) -> None:
    """Its class has a ReLU in front of the output, for which llama.cpp has no word and takes tanh; a plan tells it."""
    import torch

    folder, ids = folder_of("distilbert-labels"), models.probe_of("distilbert-labels")
    model = models.load(folder, embedding=True)
    with torch.no_grad():
        first = model.distilbert(torch.tensor([list(ids)])).last_hidden_state[:, 0]
        numbers = model.classifier(torch.tanh(model.pre_classifier(first)))[0].numpy()
    with llamacpp.Model(gguf_of("distilbert-labels", "f32")) as judge:
        found = judge.embed(ids)
    assert models.relative_error(found, numbers) < TOLERANCE
    assert models.relative_error(found, models.embedding(folder, ids)) > 0.05
    assert any("ReLU" in loss.message for loss in api.plan_convert(folder, "elsewhere.gguf").losses)


@pytest.mark.parametrize("name", ["t5-first", "mt5"])
def test_how_a_tied_t5_s_logits_differ_is_told(name: str, gguf_of: Converter, folder_of: Maker) -> None:
    """They are sqrt(d_model) times those of the class, and an untied one's are equal, of which nothing is told."""
    told = [
        loss.message
        for loss in api.plan_convert(folder_of(name), "elsewhere.gguf").losses
        if "sqrt(d_model)" in loss.message
    ]
    ids = models.probe_of(name)
    with llamacpp.Model(gguf_of(name, "f32")) as judge:
        found = judge.logits(ids)
    times = 8.0 if told else 1.0  # of 64
    assert bool(told) == (name == "t5-first")
    assert models.relative_error(found, models.logits(folder_of(name), ids) * times) < 0.02


def test_dense_layers_behind_the_pooling_are_told_as_lost(tmp_path: Path) -> None:
    folder = models.build(encoders.CASES["distilbert"], tmp_path / "m")
    modules = json.loads((folder / "modules.json").read_text())
    more = [
        {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
        {"idx": 3, "name": "3", "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules + more))
    told = [
        loss.message for loss in api.plan_convert(folder, tmp_path / "x.gguf").losses if "modules.json" in loss.message
    ]
    assert len(told) == 1
    assert "2_Dense" in told[0]


def test_positions_that_no_token_takes_are_told_as_lost(folder_of: Callable[[str], Path]) -> None:
    losses = {loss.tensor: loss.message for loss in api.plan_convert(folder_of("roberta"), "elsewhere.gguf").losses}
    assert "rows that no token uses" in losses.pop("embeddings.position_embeddings.weight")
    assert losses.keys() == {"pooler.dense.weight", "pooler.dense.bias"}


def test_the_bias_that_follows_the_experts_is_told_as_lost(folder_of: Callable[[str], Path]) -> None:
    losses = {loss.tensor: loss.message for loss in api.plan_convert(folder_of("nomic-bert-moe"), "x.gguf").losses}
    assert losses.keys() == {f"encoder.layers.{i}.mlp.experts.bias" for i in (1, 3)}
    assert {*losses.values()} == {"left out: a nomic-bert-moe GGUF has no place for it"}


def test_the_adapters_of_tasks_are_told_as_lost(folder_of: Callable[[str], Path]) -> None:
    losses = {loss.tensor: loss.message for loss in api.plan_convert(folder_of("jina-bert-v3"), "x.gguf").losses}
    stored = nomic_jina.CASES["jina-bert-v3"].shapes
    adapters = {name for name in stored if name.endswith(("lora_A", "lora_B"))}
    assert losses.keys() == {*adapters, *(name for name in stored if name.startswith("roberta.pooler."))}
    assert {*losses.values()} == {"left out: a jina-bert-v3 GGUF has no place for it"}


@pytest.mark.parametrize(("name", "run"), [("camembert-labels", False), ("xlm-roberta-rank", True)])
def test_rows_of_positions_that_no_token_uses_make_no_other_model(
    name: str, run: bool, folder_of: Maker, gguf_of: Converter, tmp_path: Path
) -> None:
    """A GGUF lacks them, so that a folder made of it has zeros; and no text is longer than the positions."""
    folder, gguf = folder_of(name), gguf_of(name, "f32")
    api.convert(gguf, tmp_path / "back", to="hf")
    report = api.prove(folder, tmp_path / "back", tokens=4096, run=run)
    assert {check.name: check.verdict for check in report.checks if check.verdict != "same"} == {}
    assert any("no token uses" in note for note in report.notes)
    found = api.lineage([folder, gguf, tmp_path / "back"])
    assert {pair.relation for pair in found.pairs} == {"same"}
    changed = tmp_path / "changed"
    shutil.copytree(tmp_path / "back", changed)
    tensors = load_file(changed / "model.safetensors")
    (position,) = (key for key in tensors if key.endswith("position_embeddings.weight"))
    tensors[position][-1] += 1  # a row that tokens use
    save_file(tensors, changed / "model.safetensors")
    checks = api.prove(folder, changed, run=False).checks
    assert [check.name for check in checks if check.verdict == "different"] == ["tensors"]
