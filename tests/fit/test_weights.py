"""The bytes of the weights in every type are those of the plans of `wb quantize`, without reading a tensor."""

from __future__ import annotations

import json
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
    with open_headers(folder).model as opened:
        model = gguf_model(opened)
    # A small model may be one that llama.cpp has another graph for; one that speaks counts its codes in the tokenizer.
    monkeypatch.setattr("weighbridge.conversion.quantize.plan.check_loadable", lambda files, source: [])
    monkeypatch.setattr("weighbridge.conversion.quantize.inputs.check_settings", lambda *_: [])
    draft: dict[str, Any] = {}
    if (target := json.loads((folder / "config.json").read_text()).get("target")) is not None:
        draft = {"target_model": tmp_path / "target"}
        draft["target_model"].mkdir()
        (draft["target_model"] / "config.json").write_text(json.dumps(target))
    for ftype in ("F16", "Q4_K_M", "IQ3_M"):
        plan = wb.plan_quantize(folder, tmp_path / "out.gguf", ftype, tokenizer=False, **draft)
        with plan:
            planned = {row.name: (row.target, tuple(row.shape)) for row in plan.rows}
        found = {tensor: (spec.dtype.name, spec.shape) for tensor, spec in model.as_type(FILE_TYPES[ftype]).items()}
        assert found == planned
