"""Where llama.cpp's graphs of latent attention compute something else than the model's class, and that we say so.

The norms of the latent vectors have an epsilon of 1e-06 in DeepSeek's own code, transformers and mlx-lm; llama.cpp
takes the model's. Yarn sharpens attention by two numbers, of which llama.cpp knows one, and by one where there is none.
If llama.cpp learns better, the tests of its difference fail, and should.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.oracles import faults, gguf_file, llamacpp, models, ours

import weighbridge as api

pytestmark = pytest.mark.oracle

TOLERANCE = 5e-4  # as of test_llama_logits
VISIBLE = 0.05
EPSILON = 3e-3
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 64}


def made(name: str, folder: Path, **options: Any) -> tuple[Path, models.F32, list[str]]:
    """A model with other options: its folder, llama.cpp's logits of our GGUF, what the plan says is lost."""
    case = models.CASES[name]
    source = models.build(replace(case, options=case.options | options), folder / "hf")
    gguf = ours.to_gguf(source, folder / "model.gguf", "f32", pre=case.pre)
    losses = [
        loss.message
        for loss in api.plan_convert(source, folder / "other.gguf", to="gguf", dtype="f32", pre=case.pre).losses
    ]
    with llamacpp.Model(gguf) as model:
        return source, model.logits(models.probe_of(name)), losses


def theirs(folder: Path, name: str, epsilon: float | None = None) -> models.F32:
    """transformers' logits; with `epsilon` in every norm."""
    model = models.load(folder)
    norms = [module for module in model.modules() if hasattr(module, "variance_epsilon")]
    for norm in norms if epsilon else ():
        norm.variance_epsilon = epsilon
    assert norms
    with torch.no_grad():
        found: models.F32 = model(torch.tensor([list(models.probe_of(name))])).logits[0].numpy()
    return found


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v3.2-yarn", "minicpm3"])
def test_one_epsilon_for_all_norms_is_told(name: str, tmp_path: Path) -> None:
    folder, found, losses = made(name, tmp_path, rms_norm_eps=EPSILON, num_experts_per_tok=6)
    assert models.relative_error(found, theirs(folder, name, EPSILON)) < TOLERANCE
    assert models.relative_error(found, theirs(folder, name)) > 3 * TOLERANCE
    assert [f"config.json: rms_norm_eps = {EPSILON}: " in loss for loss in losses].count(True) == 1


@pytest.mark.mutation
def test_what_only_chooses_matters(tmp_path: Path) -> None:
    """The tensors of the indexer and the routers' bias: rows moved by one in any of them show."""
    name, unseen = "deepseek-v3.2-yarn", []
    folder, _, _ = made(name, tmp_path)
    right, expected = gguf_file.read(tmp_path / "model.gguf"), theirs(folder, name)
    chooses = [tensor for tensor in right.tensors if tensor.startswith(("blk.1.indexer.", "blk.1.exp_probs_b."))]
    assert len(chooses) == 6
    for tensor in chooses:
        path = gguf_file.mutate(right, tmp_path / "shifted.gguf", faults.shifted(tensor))
        with llamacpp.Model(path) as model:
            if models.relative_error(model.logits(models.probe_of(name)), expected) < VISIBLE:
                unseen.append(tensor)
    assert not unseen


SHARPENED = {
    "two numbers": ("deepseek-v3", {"mscale": 1.0, "mscale_all_dim": 0.707}, False),
    "none": ("deepseek-v3", {}, False),
    "one": ("deepseek-v3", {"mscale": 0.707, "mscale_all_dim": 0.707}, True),
    "V3.2, two": ("deepseek-v3.2", {"mscale": 1.0, "mscale_all_dim": 0.707}, False),
    "V3.2, one that isn't 1": ("deepseek-v3.2", {"mscale": 0.707, "mscale_all_dim": 0.707}, False),
}


@pytest.mark.parametrize("what", SHARPENED)
def test_a_yarn_that_the_graph_cannot_compute_is_told(what: str, tmp_path: Path) -> None:
    name, said, equal = SHARPENED[what]
    folder, found, losses = made(name, tmp_path, rope_parameters=YARN | said)
    error = models.relative_error(found, theirs(folder, name))
    assert (error < TOLERANCE) if equal else (error > VISIBLE)
    assert any("mscale" in loss for loss in losses) is not equal
