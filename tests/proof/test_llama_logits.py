"""What we write computes what the source computes: llama.cpp's logits of our GGUF against transformers' of the folder.

In f32 the two differ by rounding alone. Measured over these models: at most 5e-5 of the logits' spread (bert: 5e-4,
since ggml takes GELU from a table in f16), so the tolerance is ten times that. Every seeded fault must show a hundred
times over it, or make llama.cpp refuse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.oracles import faults, gguf_file, llamacpp, models
from tests.oracles.models import CASES, DECODERS, F32, WINDOW, probe_of

import weighbridge

pytestmark = pytest.mark.oracle

Maker = Callable[[str], Path]
Converter = Callable[[str, str], Path]
Expected = Callable[[str], F32]

TOLERANCE = 5e-4
BERT_TOLERANCE = 5e-3
GELU_TOLERANCE = 1e-2  # of decoders that use GELU; measured: 5e-3
VISIBLE = 0.05  # what a fault must change at least
# Narrow types, as root mean square: llama.cpp rounds activations too (q8_0 takes blocks of them), and an expert's
# choice may tip. Measured: f16 0.002, bf16 0.015, q8_0 0.08. test_reference_converter says that weights are bit-exact.
NARROW = {"f16": 0.006, "bf16": 0.04, "q8_0": 0.2}

# The same model by another road: its logits are those of the case it stands beside.
ROADS = [*DECODERS, "llama3@bfloat16", "mixtral-fused@bfloat16", "qwen2moe-fused@bfloat16", "qwen3moe-fused@bfloat16"]


def error(path: Path, name: str, expected: F32) -> float:
    with llamacpp.Model(path) as model:
        return models.relative_error(model.logits(probe_of(name)), expected)


@pytest.mark.parametrize("name", ROADS)
def test_f32_logits_equal_at_every_position(name: str, gguf_of: Converter, expected_logits: Expected) -> None:
    case = CASES[name.partition("@")[0]]
    bound = case.tolerance or (GELU_TOLERANCE if case.gelu else TOLERANCE)
    assert error(gguf_of(name, "f32"), name, expected_logits(name)) < bound


@pytest.mark.parametrize("dtype", ["f16", "bf16", "q8_0"])
@pytest.mark.parametrize("name", ["llama", "llama3", "mixtral", "qwen2", "qwen2moe", "qwen3", "qwen3moe"])
def test_narrow_types_stay_near(name: str, dtype: str, gguf_of: Converter, expected_logits: Expected) -> None:
    with llamacpp.Model(gguf_of(name, dtype)) as model:
        found = model.logits(probe_of(name))
    assert models.rms_error(found, expected_logits(name)) < NARROW[dtype]


@pytest.mark.parametrize("dtype", ["f32", "f16"])
# test_encoders.py has the one that llama.cpp computes otherwise
@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.bert and n != "distilbert-labels"])
def test_embedding_equals(name: str, dtype: str, gguf_of: Converter, folder_of: Maker) -> None:
    expected = models.embedding(folder_of(name), probe_of(name))
    with llamacpp.Model(gguf_of(name, dtype)) as model:
        found = model.embed(probe_of(name))
    assert models.relative_error(found, expected) < {"f32": BERT_TOLERANCE, "f16": 0.02}[dtype]


def test_probe_reaches_past_the_window(folder_of: Maker, gguf_of: Converter, expected_logits: Expected) -> None:
    """llama.cpp's "llama" architecture has no sliding window, so ours can't have one there: equal up to the window,
    equal to full attention past it. If llama.cpp learns the window, the second half of this fails, and should."""
    windowed = models.logits(folder_of("mistral"), probe_of("mistral"))
    with llamacpp.Model(gguf_of("mistral", "f32")) as model:
        found = model.logits(probe_of("mistral"))
    assert models.relative_error(found[:WINDOW], windowed[:WINDOW]) < TOLERANCE
    assert models.relative_error(found[WINDOW:], windowed[WINDOW:]) > VISIBLE
    assert models.relative_error(found, expected_logits("mistral")) < TOLERANCE


# --- the judge itself ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama3", "mixtral"])
def test_the_judge_accepts_the_reference(name: str, reference_of: Converter, expected_logits: Expected) -> None:
    assert error(reference_of(name, "f32"), name, expected_logits(name)) < TOLERANCE


# --- mutation: a fault in any row, key or layout shows ---------------------------------------------------------------


def _pairs(table: dict[str, dict[str, faults.Fault]]) -> list[tuple[str, str]]:
    return [(name, fault) for name, cases in table.items() for fault in cases]


@pytest.fixture(scope="session")
def distance(gguf_of: Converter, folder_of: Maker, expected_logits: Expected) -> Callable[[str, Path], float]:
    """How far a changed file's answer is from the right one; infinite where llama.cpp refuses (or dies)."""

    def measure(name: str, path: Path) -> float:
        bert = CASES[name].bert
        found = llamacpp.numbers_in_subprocess(path, probe_of(name), embeddings=bert)
        if isinstance(found, str):
            return float("inf")
        expected = models.embedding(folder_of(name), probe_of(name)) if bert else expected_logits(name)
        if found.size != expected.size or not np.isfinite(found).all():
            return float("inf")
        return models.relative_error(found.reshape(expected.shape), expected)

    return measure


@pytest.mark.mutation
@pytest.mark.parametrize(("name", "fault"), _pairs(faults.LAYOUTS) + _pairs(faults.KEYS))
def test_a_fault_shows(
    name: str,
    fault: str,
    gguf_of: Converter,
    parsed: Callable[[Path], gguf_file.File],
    distance: Callable[[str, Path], float],
    tmp_path: Path,
) -> None:
    seeded = {**faults.LAYOUTS.get(name, {}), **faults.KEYS.get(name, {})}[fault]
    path = gguf_file.mutate(parsed(gguf_of(name, "f32")), tmp_path / "fault.gguf", seeded)
    assert distance(name, path) > VISIBLE


def test_an_unchanged_copy_shows_nothing(
    gguf_of: Converter, parsed: Callable[[Path], gguf_file.File], distance: Callable[[str, Path], float], tmp_path: Path
) -> None:
    """The road that faults take (read, copy, write, another process) adds no difference of its own."""
    for name in ("llama3", "bert"):
        path = gguf_file.mutate(parsed(gguf_of(name, "f32")), tmp_path / f"{name}.gguf", lambda file: None)
        assert distance(name, path) < (BERT_TOLERANCE if name == "bert" else TOLERANCE)


ENCODERS = [
    "modernbert-labels",
    "roberta-labels",
    "nomic-bert",
    "nomic-bert-moe",
    "jina-bert-v3",
    "t5",
    "gemmaembedding",
]


@pytest.mark.mutation
@pytest.mark.parametrize(
    "name", ["llama", "llama3", "llama-bias", "mixtral", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "bert", *ENCODERS]
)
def test_every_tensor_matters(
    name: str,
    gguf_of: Converter,
    folder_of: Maker,
    parsed: Callable[[Path], gguf_file.File],
    expected_logits: Expected,
    tmp_path: Path,
) -> None:
    """Rows moved by one in any single tensor show: no row of a table could be mapped to a wrong name unseen."""
    right, unseen = parsed(gguf_of(name, "f32")), []
    ids = probe_of(name)
    expected = models.embedding(folder_of(name), ids) if CASES[name].bert else expected_logits(name)
    for tensor in right.tensors:
        path = gguf_file.mutate(right, tmp_path / "shifted.gguf", faults.shifted(tensor))
        with llamacpp.Model(path) as model:
            found = model.embed(ids) if CASES[name].bert else model.logits(ids)
        if models.relative_error(found, expected) < VISIBLE:
            unseen.append(tensor)
    assert set(unseen) == faults.INVISIBLE.get(name, set())


@pytest.mark.parametrize(("factor", "told"), [(1.0, True), (1.138629436111989, False)])
def test_an_attention_factor_that_llama_cpp_does_not_read_is_told(factor: float, told: bool, tmp_path: Path) -> None:
    """yarn's: llama.cpp computes the usual one, 0.1 ln(factor) + 1, whatever the file says."""
    rope = CASES["llama-yarn"].options["rope_parameters"] | {"attention_factor": factor}
    case = replace(CASES["llama-yarn"], options=CASES["llama-yarn"].options | {"rope_parameters": rope})
    folder = models.build(case, tmp_path / "yarn")
    with weighbridge.plan_convert(folder, tmp_path / "yarn.gguf", dtype="f32") as plan:
        assert any("rope.attention_factor = " in str(loss) for loss in plan.losses) == told
        plan.run()
    difference = error(tmp_path / "yarn.gguf", "llama-yarn", models.logits(folder, probe_of("llama-yarn")))
    assert (difference > VISIBLE) == told
