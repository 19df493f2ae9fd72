"""Tensor-parallel parts of DeepSpeed's checkpoints: joined by the patterns in the model states, as Megatron-DeepSpeed
writes them. The files are made here by another implementation, whose cuts DeepSpeed's merge_tp_slices (0.19.8) joins to
the same weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weighbridge as wb
from weighbridge.base.errors import FormatError, UnsupportedError

torch = pytest.importorskip("torch")

LAYER = "language_model.encoder.layers.0"
MLP = f"{LAYER}.mlp"
#: The whole weights: how each is cut, and its shape.
WEIGHTS: dict[str, tuple[str, tuple[int, ...]]] = {
    "language_model.embedding.word_embeddings.weight": ("vocabulary", (12, 4)),
    f"{LAYER}.input_layernorm.weight": ("whole", (4,)),
    f"{LAYER}.self_attention.query_key_value.weight": ("rows", (12, 4)),
    f"{LAYER}.self_attention.dense.weight": ("columns", (4, 8)),
    f"{LAYER}.mlp.dense_h_to_4h.weight": ("halves", (16, 4)),
    f"{LAYER}.mlp.dense_4h_to_h.weight": ("columns", (4, 8)),
    "language_model.output_layer.weight": ("vocabulary", (12, 4)),
}
PADDED, VOCABULARY = 12, 11
INFO = {
    "universal_checkpoint_version": 0.2,
    "original_vocab_size": VOCABULARY,
    "vocabulary_parameter_patterns": [
        "language_model.embedding.word_embeddings.weight", "language_model.output_layer.weight"
    ],
    "tp_replicated_parameter_patterns": [r"language_model.encoder.layers.\d+.input_layernorm.weight"],
    "parameter_with_row_parallelism_patterns": [
        r"language_model.encoder.layers.\d+.mlp.dense_4h_to_h.weight",
        r"language_model\.encoder\.layers\.\d+\.self_attention\.dense\.weight",
    ],
    "parameter_with_2_sub_params_cat_dim_0": [r"language_model.encoder.layers.\d+.mlp.dense_h_to_4h.weight"],
}  # fmt: skip


def whole() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, (_, shape) in WEIGHTS.items()}


def cut(array: np.ndarray, kind: str, part: int, parts: int) -> np.ndarray:
    """A part of a weight."""
    if kind == "whole":
        return array
    if kind == "columns":
        return np.split(array, parts, axis=1)[part]
    if kind == "halves":
        return np.concatenate([np.split(half, parts)[part] for half in np.split(array, 2)])
    return np.split(array, parts)[part]


def write(folder: Path, parts: int, ranks: int, stage: int = 1, info: Mapping[str, Any] | None = INFO) -> Path:
    """A checkpoint of `parts` tensor-parallel parts, each with `ranks` processes."""
    folder.mkdir(parents=True)
    for part in range(parts):
        mine = {name: cut(array, WEIGHTS[name][0], part, parts) for name, array in whole().items()}
        model = {
            "module": {}, "buffer_names": [], "global_steps": 4, "shared_params": {},
            "param_shapes": [{name: torch.Size(array.shape) for name, array in mine.items()}],
            **({} if info is None else {"universal_checkpoint_info": info}),
        }  # fmt: skip
        vectors = _flat(list(mine.values()), ranks, stage)
        key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
        for rank, vector in enumerate(vectors):
            state = {"zero_stage": stage, "partition_count": ranks, key: [torch.from_numpy(vector)]}
            torch.save({"optimizer_state_dict": state},
                       folder / f"bf16_zero_pp_rank_{rank}_mp_rank_{part:02}_optim_states.pt")  # fmt: skip
            name = f"mp_rank_{part:02}_model_states.pt"
            if stage == 3:
                torch.save(model, folder / f"zero_pp_rank_{rank}_{name}")
        if stage != 3:
            torch.save(model, folder / name)
    return folder


def _flat(arrays: list[np.ndarray], ranks: int, stage: int) -> list[np.ndarray]:
    """The vectors of the processes."""

    def padded(values: np.ndarray, unit: int) -> np.ndarray:
        return np.concatenate([values.ravel(), np.zeros(-values.size % unit, np.float32)])

    if stage == 3:
        pieces = [np.split(padded(array, ranks), ranks) for array in arrays]
        return [np.concatenate([piece[rank] for piece in pieces]) for rank in range(ranks)]
    return np.split(padded(np.concatenate([array.ravel() for array in arrays]), 2 * ranks), ranks)


def tensors(path: Path) -> dict[str, np.ndarray]:
    with wb.open(path) as model:
        return {name: model[name].numpy() for name in model}


def expected() -> dict[str, np.ndarray]:
    return {n: a[:VOCABULARY] if WEIGHTS[n][0] == "vocabulary" else a for n, a in whole().items()}


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_parts_are_joined(tmp_path: Path, parts: int, ranks: int, stage: int) -> None:
    folder = write(tmp_path / "global_step4", parts, ranks, stage)
    found = tensors(folder)
    assert found.keys() == expected().keys()
    for name, array in expected().items():
        assert (found[name].shape, found[name].tobytes()) == (array.shape, array.tobytes()), name
    assert wb.verify(folder, values=True).verdict == "ok"
    with wb.open(folder) as model:
        node = model.source.stored[f"{LAYER}.mlp.dense_4h_to_h.weight"]
        assert node.read(1, 3).tobytes() == expected()[f"{LAYER}.mlp.dense_4h_to_h.weight"][1:3].tobytes()


def test_all_parts_are_those_of_each_file(tmp_path: Path) -> None:
    folder = write(tmp_path / "global_step4", 2, 2)
    with wb.open(folder, all_parts=True) as model:
        assert len(model) == 4
        assert all(name.startswith("bf16_zero_pp_rank_") for name in model)
    wb.convert(folder, tmp_path / "out.safetensors", all_parts=True)
    assert len(tensors(tmp_path / "out.safetensors")) == 4


def test_a_universal_checkpoint_has_whole_weights(tmp_path: Path) -> None:
    folder = write(tmp_path / "global_step4_universal", 2, 1)
    for path in folder.glob("*_optim_states.pt"):
        path.unlink()
    for name, array in expected().items():
        (folder / "zero" / name).mkdir(parents=True)
        torch.save({"param": torch.from_numpy(array.copy())}, folder / "zero" / name / "fp32.pt")
        torch.save({"param": torch.zeros(2)}, folder / "zero" / name / "exp_avg.pt")
    found = tensors(folder)
    assert {name: array.tobytes() for name, array in found.items()} == {n: a.tobytes() for n, a in expected().items()}
    with wb.open(folder, all_parts=True) as model:
        assert {name.rpartition(".fp32.")[2] for name in model if ".fp32." in name} == {"param"}
        assert len(model) == 2 * len(WEIGHTS)


def _change(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    saved = torch.load(path, weights_only=False)
    change(saved)
    torch.save(saved, path)


def _remove(pattern: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for path in folder.glob(pattern):
            path.unlink()

    return change


MODEL = "mp_rank_01_model_states.pt"
FAULTS: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "part": (_remove("*mp_rank_01*"), "zero/missing", "mp_rank_01 are missing"),
    "process": (_remove("*pp_rank_1_mp_rank_02*"), "zero/missing", "in mp_rank_02"),
    "model": (_remove(MODEL), "zero/missing", "1 of 1 files of model states"),
    "step": (lambda f: _change(f / MODEL, lambda s: s.update(global_steps=5)), "zero/step", "step 5"),
    "shape": (
        lambda f: _change(f / MODEL, lambda s: s["param_shapes"][0].update({f"{LAYER}.input_layernorm.weight": (5,)})),
        "zero/sizes", "too few elements",
    ),
    "other shape": (
        lambda f: _change(f / MODEL, lambda s: s["param_shapes"][0].update({f"{MLP}.dense_4h_to_h.weight": (2, 8)})),
        "zero/sizes", "different shapes",
    ),
    "name": (lambda f: _change(f / MODEL, lambda s: s["param_shapes"][0].pop(f"{LAYER}.input_layernorm.weight")),
             "zero/parts", "other weights than in"),
    "info": (
        lambda f: _change(f / "mp_rank_00_model_states.pt", lambda s: s.pop("universal_checkpoint_info")),
        "zero/parts", "universal_checkpoint_info",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named_and_refused(tmp_path: Path, fault: str) -> None:
    damage, rule, message = FAULTS[fault]
    folder = write(tmp_path / "global_step4", 4 if fault in ("part", "process") else 2, 2)
    damage(folder)
    assert rule in {f.rule for f in wb.verify(folder).findings}
    with pytest.raises(FormatError, match=message):
        wb.open(folder)


PATTERNS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "slow": ({"tp_replicated_parameter_patterns": ["(a+)+$"]}, UnsupportedError, "the pattern"),
    "not lists": (dict.fromkeys(["vocabulary_parameter_patterns", "parameter_to_average_patterns"], 7),
                  UnsupportedError, "the pattern"),
    "no text": ({"tp_replicated_parameter_patterns": [3]}, UnsupportedError, "the pattern"),
    "rows": ({"original_vocab_size": 13}, FormatError, "more rows"),
    "columns of a vector": (
        {"tp_replicated_parameter_patterns": [],
         "parameter_with_row_parallelism_patterns": [LAYER + ".input_layernorm.weight"]}, FormatError, "not a shape",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PATTERNS)
def test_patterns_that_join_nothing(tmp_path: Path, case: str) -> None:
    changed, error, message = PATTERNS[case]
    folder = write(tmp_path / "global_step4", 2, 2, info={**INFO, **changed})
    with pytest.raises(error, match=message):
        wb.open(folder)
    assert wb.verify(folder).verdict == "failed"
