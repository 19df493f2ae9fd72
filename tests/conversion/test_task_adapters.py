"""The adapters of Jina v3's tasks, each as a GGUF: those that the reference converter writes next to the model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file
from tests.oracles import gguf_file, llamacpp, models
from tests.oracles.families import CASES
from tests.oracles.reference_converter import Job, convert_apart

import weighbridge as wb
from weighbridge.base.errors import UsageError

CASE = replace(CASES["jina-bert-v3"], spreads=(*CASES["jina-bert-v3"].spreads[:3], (("lora_A", "lora_B"), (0.0, 0.3))))
TASKS: list[str] = (
    CASE.said["lora_adaptations"] if "lora_adaptations" in CASE.said else CASE.options["lora_adaptations"]
)
PROMPTS = {"task_instructions": {task: f"{task}: " for task in TASKS}}


@pytest.fixture(scope="module")
def jina(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.build(CASE, tmp_path_factory.mktemp("jina") / "model")


def said(folder: Path, **more: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | more))


@pytest.mark.costly
@pytest.mark.oracle
@pytest.mark.parametrize("more", [{}, PROMPTS], ids=["plain", "prompts"])
def test_each_is_the_reference_s(more: dict[str, Any], jina: Path, tmp_path: Path) -> None:
    said(jina, **more)
    job = Job(str(jina), str(tmp_path / "m.gguf"), "f32", CASE.pre, CASE.hparams, ())
    assert convert_apart(job) is None
    for task in TASKS:
        wb.convert(jina, tmp_path / "ours.gguf", task_adapter=task, overwrite=True)
        theirs = next(tmp_path.glob(f"*lora-{task}-*"))
        assert gguf_file.differences(gguf_file.read(tmp_path / "ours.gguf"), gguf_file.read(theirs)) == []
        assert (tmp_path / "ours.gguf").read_bytes() == theirs.read_bytes()


def test_all_that_is_left_out_is_listed(jina: Path, tmp_path: Path) -> None:
    with wb.plan_convert(jina, tmp_path / "a.gguf", task_adapter="separation") as plan:
        listed = {loss.tensor for loss in plan.losses if loss.tensor}
        changed = {loss.tensor for loss in plan.losses if loss.effect == "results"}
    at = "parametrizations.weight.0.lora_"
    assert changed == {f"roberta.embeddings.token_type_embeddings.{at}{half}" for half in "AB"}
    assert listed - changed == {f"roberta.pooler.dense.{at}{half}" for half in "AB"}


def test_another_task_is_refused(jina: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no adapter of a task 'clustering'") as caught:
        wb.convert(jina, tmp_path / "a.gguf", task_adapter="clustering")
    assert "retrieval.query, retrieval.passage" in str(caught.value.hint)


@pytest.mark.parametrize(
    "other", [{"dtype": "q8_0"}, {"with_mmproj": True}, {"vocab_only": True}, {"rerank": True}, {"pre": "x"}], ids=str
)
def test_options_of_the_model_are_refused(other: dict[str, Any], jina: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"in F32, not Q8_0|doesn't apply|applies"):
        wb.convert(jina, tmp_path / "a.gguf", task_adapter="separation", **other)
    assert not [*tmp_path.iterdir()]


def test_name_and_alignment_apply(jina: Path, tmp_path: Path) -> None:
    wb.convert(jina, tmp_path / "a.gguf", task_adapter="separation", name="Mine", align=64)
    keys = wb.inspect(tmp_path / "a.gguf").metadata
    assert (keys["general.name"], keys["general.alignment"]) == ("Mine", 64)


def test_a_model_without_tasks_is_refused(tmp_path: Path) -> None:
    folder = models.build(CASES["xlm-roberta"], tmp_path / "m")
    with pytest.raises(UsageError, match="no adapter of a task"):
        wb.convert(folder, tmp_path / "a.gguf", task_adapter="separation")


@pytest.mark.costly
@pytest.mark.oracle
def test_llama_cpp_computes_the_merged_model(jina: Path, tmp_path: Path) -> None:
    """The publisher's code (jinaai/xlm-roberta-flash-implementation) has W + B A alpha/rank, for embeddings W + A B.
    But llama.cpp's graph adds the model's own embedding of types (bert.cpp, b11549), as the plan says."""
    task, ids = "text-matching", models.probe_of("jina-bert-v3")
    wb.convert(jina, tmp_path / "m.gguf", dtype="f32", pre=CASE.pre)
    wb.convert(jina, tmp_path / "a.gguf", task_adapter=task)
    with llamacpp.Model(tmp_path / "m.gguf") as model:
        bare = model.embed(ids)
        model.adapt(tmp_path / "a.gguf")
        adapted = model.embed(ids)
    for name, left_out in (("as-computed", ("pooler", "token_type")), ("whole", ("pooler",))):
        shutil.copytree(jina, folder := tmp_path / name)
        tensors = load_file(folder / "model.safetensors")
        for weight in [w for w in tensors if w.endswith(".original") and not any(part in w for part in left_out)]:
            a, b = (tensors[f"{weight.removesuffix('.original')}.0.lora_{half}"][TASKS.index(task)] for half in "AB")
            tensors[weight] = tensors[weight] + (a @ b if "embeddings" in weight else b @ a) / 4
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        wb.convert(folder, tmp_path / f"{name}.gguf", dtype="f32", pre=CASE.pre)
        with llamacpp.Model(tmp_path / f"{name}.gguf") as model:
            merged = model.embed(ids)
        assert models.relative_error(bare, merged) > 0.1
        assert (models.relative_error(adapted, merged) < 1e-3) is (name == "as-computed")


@pytest.mark.oracle
def test_llama_cpp_s_verdict_is_that_of_an_adapter(jina: Path, tmp_path: Path) -> None:
    wb.convert(jina, tmp_path / "a.gguf", task_adapter="separation")
    assert {finding.rule for finding in wb.verify(tmp_path / "a.gguf").findings} == {"llamacpp/companion"}
