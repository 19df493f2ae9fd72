"""The bytes of the weights in every type are those of the plans of `wb quantize`, without reading a tensor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.fit.hollow import FAMILIES, NAMES
from tests.models.record_families import CONSTANTS, values

import weighbridge as wb
from weighbridge.base.ftypes import FILE_TYPES
from weighbridge.fitting.weights import gguf_model
from weighbridge.models.open import open_headers


def write_folder(folder: Path, name: str) -> Path:
    record = json.loads((FAMILIES / f"{name}.json").read_text())
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(record["config"]))
    tensors = {tensor: np.zeros(shape, np.float32) for tensor, shape in record["hf"].items()}
    tensors |= {name: np.arange(*shape) for name, shape in record["hf"].items() if name.endswith("d2t")}
    tensors |= {name: values(name, (shape[0],)) for name, shape in record["hf"].items() if name.endswith(CONSTANTS)}
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_those_of_the_plans(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path / "model", name)
    draft: dict[str, Any] = {}
    if (target := json.loads((folder / "config.json").read_text()).get("target")) is not None:
        draft = {"target_model": tmp_path / "target"}
        draft["target_model"].mkdir()
        (draft["target_model"] / "config.json").write_text(json.dumps(target))
    assert_planned(folder, ("F16", "Q4_K_M", "IQ3_M"), monkeypatch, **draft)


def assert_planned(folder: Path, types: Sequence[str], monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    with open_headers(folder).model as opened:
        model = gguf_model(opened)
    # A small model may be one that llama.cpp has another graph for; one that speaks counts its codes in the tokenizer.
    monkeypatch.setattr("weighbridge.conversion.quantize.plan.check_loadable", lambda files, source: [])
    monkeypatch.setattr("weighbridge.conversion.quantize.inputs.check_settings", lambda *_: [])
    for ftype in types:
        plan = wb.plan_quantize(folder, folder.parent / "out.gguf", ftype, tokenizer=False, **options)
        with plan:
            planned = {row.name: (row.target, tuple(row.shape)) for row in plan.rows}
        found = {tensor: (spec.dtype.name, spec.shape) for tensor, spec in model.as_type(FILE_TYPES[ftype]).items()}
        assert found == planned


#: Forms of a folder, with the runtime that loads it as it is.
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "bf16": ("vllm", {"dtype": "bf16"}),
    "f16": ("transformers", {"dtype": "f16"}),
    "w4a16": ("vllm", {"scheme": "w4a16", "q_group_size": 32}),
    "fp8": ("vllm", {"scheme": "fp8_dynamic"}),
    "nvfp4": ("vllm", {"scheme": "nvfp4a16"}),
    "mlx": ("mlx", {"to": "mlx"}),
    "mlx-4": ("mlx", {"to": "mlx", "quantize": True, "q_group_size": 32}),
    "mlx-mxfp4": ("mlx", {"to": "mlx", "quantize": True, "q_mode": "mxfp4"}),
}
#: A reranker's output is one row, so a vector in a GGUF: of the type of a matrix.
OF_FORMS = [*(("smollm3", form) for form in FORMS), *(("gpt-oss", form) for form in ("bf16", "mlx-4", "fp8")),
            ("bert-rank", "bf16"), ("falcon-h1", "mlx-4"), ("qwen35moe", "w4a16")]  # fmt: skip


@pytest.mark.parametrize(("name", "form"), OF_FORMS)
def test_sizes_of_other_forms(name: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp's are those of the plans; other runtimes load the stored bytes, and nothing else of the file."""
    runtime, options = FORMS[form]
    wb.convert(write_folder(tmp_path / "model", name), tmp_path / form, **{"to": "hf", **options})
    assert_planned(tmp_path / form, ("F16", "Q4_K_M"), monkeypatch)
    (weights,) = (row for row in wb.fit(tmp_path / form, device="8GB", runtime=runtime).memory if row.part == "weights")
    stored = {name: tensor for path in (tmp_path / form).glob("*.safetensors") for name, tensor in headers(path)}
    assert weights.nbytes == sum(stop - start for start, stop in stored.values())
    assert weights.basis == "as stored"


def headers(path: Path) -> list[tuple[str, tuple[int, int]]]:
    """Names and extents, without a reader of our own."""
    data = path.read_bytes()
    rows = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return [(name, tuple(row["data_offsets"])) for name, row in rows.items() if name != "__metadata__"]
