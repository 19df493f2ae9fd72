"""Layers that predict further tokens: whatever a config says of them, and in whichever form they are published."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.oracles import llamacpp, models, ours

import weighbridge as api
from weighbridge.base.errors import FormatError

pytestmark = pytest.mark.oracle

Maker = Callable[[str], Path]
Tensors = dict[str, torch.Tensor]
NAME = "qwen35moe-further"
KEY = "mtp_num_hidden_layers"


def changed(folder: Path, out: Path, tensors: Callable[[Tensors], Tensors], **config: Any) -> Path:
    """The folder with other tensors, and with keys of its config said otherwise (None: not said)."""
    out = out / "model"  # a GGUF has the folder's name
    shutil.copytree(folder, out)
    save_file(tensors(load_file(folder / "model.safetensors")), out / "model.safetensors", {"format": "pt"})
    said = json.loads((folder / "config.json").read_text()) | config
    (out / "config.json").write_text(json.dumps({k: v for k, v in said.items() if v is not None}))
    return out


def fused(begun: str) -> Callable[[Tensors], Tensors]:
    """Experts of the layers whose names begin so stacked, gate and up in one, as the model's class has them."""

    def fuse(tensors: Tensors) -> Tensors:
        out = dict(tensors)
        for block in sorted({n.split("experts.")[0] for n in tensors if ".experts.0." in n and n.startswith(begun)}):
            each = [
                [out.pop(f"{block}experts.{e}.{part}_proj.weight") for part in ("gate", "up", "down")]
                for e in range(sum(n.startswith(f"{block}experts.") and "gate_proj" in n for n in tensors))
            ]
            out[f"{block}experts.gate_up_proj"] = torch.stack([torch.cat((gate, up)) for gate, up, _ in each])
            out[f"{block}experts.down_proj"] = torch.stack([down for _, _, down in each])
        return out

    return fuse  # fmt: skip


def without(begun: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {n: t for n, t in tensors.items() if not n.startswith(begun)}


def gguf(folder: Path) -> Path:
    return ours.to_gguf(folder, folder.with_suffix(".gguf"), "f32", pre=models.CASES[NAME].pre)


@pytest.mark.costly
def test_tensors_tell_how_many_there_are(folder_of: Maker, tmp_path: Path) -> None:
    """As Qwen3-Next is published, whose config doesn't say it, and as a model that somebody trained on: it says 1."""
    folder = folder_of(NAME)
    whole = gguf(changed(folder, tmp_path / "whole", dict)).read_bytes()
    assert gguf(changed(folder, tmp_path / "unsaid", dict, **{KEY: None})).read_bytes() == whole
    plain = gguf(changed(folder, tmp_path / "plain", without("mtp."), **{KEY: None})).read_bytes()
    assert gguf(changed(folder, tmp_path / "left out", without("mtp."), **{KEY: 1})).read_bytes() == plain != whole
    report = api.verify(tmp_path / "unsaid" / "model")
    assert not [f for f in report.findings if f.rule.startswith("model.")], report.findings


@pytest.mark.parametrize("begun", ["model.", ""], ids=["all but the further layer", "everywhere"])
def test_fused_experts_are_the_same(begun: str, folder_of: Maker, tmp_path: Path) -> None:
    folder = folder_of(NAME)
    whole = gguf(changed(folder, tmp_path / "whole", dict))
    assert gguf(changed(folder, tmp_path / "fused", fused(begun))).read_bytes() == whole.read_bytes()


def test_llama_cpp_loads_them(folder_of: Maker, tmp_path: Path) -> None:
    path = gguf(changed(folder_of(NAME), tmp_path / "whole", dict))
    ids = models.probe_of(NAME, 8)
    with llamacpp.Model(path, further=True) as model, llamacpp.Model(path) as plain:
        assert (model.logits(ids) == plain.logits(ids)).all()


def test_part_of_one_is_refused(folder_of: Maker, tmp_path: Path) -> None:
    folder = changed(folder_of(NAME), tmp_path / "part", without("mtp.fc."))
    with pytest.raises(FormatError, match=r"mtp\.fc\.weight"):
        gguf(folder)
    assert not folder.with_suffix(".gguf").exists()
