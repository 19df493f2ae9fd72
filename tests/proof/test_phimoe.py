"""Phi-3.5-MoE in llama.cpp: everything is the model's but two rules of its graph.

Its SparseMixer chooses two experts one after the other, each by a softmax of its own, where llama.cpp takes the two
highest of one softmax in their shares; its LayerNorm takes the mean away, llama.cpp's doesn't. With those rules in
their place transformers computes what llama.cpp does; as it is it doesn't.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.oracles import faults, gguf_file, llamacpp, models
from tests.oracles.models import probe_of

pytestmark = pytest.mark.oracle
NAME = "phi-moe"
TOLERANCE = 5e-4  # as in test_llama_logits
VISIBLE = 0.05


def shares(scores: Any, jitter_eps: float, training: bool, top_k: int = 2) -> tuple[Any, Any]:
    """llama.cpp's rule in the place of transformers'."""
    weights, chosen = scores.softmax(-1).topk(top_k, -1)
    return weights / weights.sum(-1, keepdim=True), chosen


def rms(self: Any, x: Any) -> Any:
    """llama.cpp's norm in the place of LayerNorm: with its bias, without its mean."""
    return x * (x.pow(2).mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight + self.bias


def found(path: Path) -> models.F32:
    with llamacpp.Model(path) as model:
        return model.logits(probe_of(NAME))


@pytest.fixture(scope="module")
def expected(folder_of: Callable[[str], Path]) -> models.F32:
    """With the factors of long texts, too: transformers takes those of short ones whatever the length."""
    import torch
    from transformers.models.phimoe import modeling_phimoe

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.LayerNorm, "forward", rms)
        patch.setattr(modeling_phimoe, "sparsemixer", shares)
        rope = models.CASES[NAME].options["rope_parameters"]
        factors = {"rope_parameters": rope | {"short_factor": rope["long_factor"]}}
        return models.logits(folder_of(NAME), probe_of(NAME), **factors)


def test_equal_but_for_two_rules(
    expected: models.F32, gguf_of: Callable[[str, str], Path], folder_of: Callable[[str], Path]
) -> None:
    ours = found(gguf_of(NAME, "f32"))
    assert models.relative_error(ours, expected) < TOLERANCE
    assert models.relative_error(ours, models.logits(folder_of(NAME), probe_of(NAME))) > VISIBLE


def test_the_reference_scales_attention_otherwise(
    expected: models.F32, gguf_of: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """It takes Phi-3's rule where Phi-3.5-MoE has a number of its own."""
    by_rule = faults.set_key("phimoe.rope.scaling.attn_factor", 1.1547005)
    path = gguf_file.mutate(gguf_file.read(gguf_of(NAME, "f32")), tmp_path / "reference.gguf", by_rule)
    assert models.relative_error(found(path), expected) > VISIBLE


@pytest.mark.mutation
def test_every_tensor_matters(expected: models.F32, gguf_of: Callable[[str, str], Path], tmp_path: Path) -> None:
    right = gguf_file.read(gguf_of(NAME, "f32"))
    unseen = []
    for tensor in right.tensors:
        path = gguf_file.mutate(right, tmp_path / "shifted.gguf", faults.shifted(tensor))
        if models.relative_error(found(path), expected) < VISIBLE:
            unseen.append(tensor)
    assert unseen == ["rope_factors_short.weight"]  # the probe is long
