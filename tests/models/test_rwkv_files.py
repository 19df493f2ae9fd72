"""RWKV's own `.pth` files: every command reads them, and with a config they convert as transformers' folders do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.family_judges import golden

import weighbridge as wb
from weighbridge.base.errors import WeighbridgeError

FAMILIES = ("rwkv6", "rwkv7")
#: The names in transformers' folders -> those in RWKV's files (RWKV-LM, RWKV-v5/src/model.py and RWKV-v7/train_temp).
OWN = {
    "rwkv6": {
        r"^rwkv\.": "", r"^embeddings": "emb", r"\.pre_ln\.": ".ln0.", r"\.attention\.": ".att.",
        r"\.feed_forward\.": ".ffn.",
    },
    "rwkv7": {
        r"^lm_head": "head", r"^model\.norm": "ln_out", r"^model\.embeddings": "emb", r"^model\.layers": "blocks",
        r"pre_norm": "ln0", r"attn_norm": "ln1", r"ffn_norm": "ln2", r"attn\.g_norm": "att.ln_x",
        r"r_proj": "receptance", r"k_proj": "key", r"v_proj": "value", r"o_proj": "output", r"\.attn\.": ".att.",
        r"([wavg])_lora\.lora\.0\.weight": r"\g<1>1", r"([wavg])_lora\.lora\.2\.weight": r"\g<1>2",
        r"([wavg])_lora\.lora\.2\.bias": r"\g<1>0",
    },
}  # fmt: skip


def own(family: str, name: str, value: np.ndarray[Any, Any]) -> tuple[str, torch.Tensor]:
    """A tensor of transformers' folder as RWKV's file has it."""
    for pattern, new in OWN[family].items():
        name = re.sub(pattern, new, name)
    tensor = torch.from_numpy(value)
    if family == "rwkv7" and re.search(r"att\.[wavg][12]$", name):
        tensor = tensor.T.contiguous()
    if family == "rwkv7" and re.search(r"att\.([wav]0|k_k|k_a)$|ffn\.x_k$", name):
        tensor = tensor.reshape(1, 1, -1)
    return name, tensor


def make(family: str, folder: Path, **more: Any) -> tuple[Path, Path]:
    """A folder as of transformers, and RWKV's file with the same model. `more`: further tensors of the file."""
    case = golden()[family]
    rng = np.random.default_rng(7)
    arrays = {name: rng.standard_normal(shape, "f4") for name, shape in case["hf"].items()}
    hf = folder / "hf"
    hf.mkdir()
    wb.save(arrays, hf / "model.safetensors", metadata={"format": "pt"})
    (hf / "config.json").write_text(json.dumps(case["config"]))
    torch.save(dict(own(family, name, value) for name, value in arrays.items()) | more, folder / "RWKV.pth")
    return hf, folder / "RWKV.pth"


def tensors(path: Path) -> dict[str, Any]:
    with wb.open(path) as model:
        return {name: model[name].numpy() for name in model}


def same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return one.keys() == two.keys() and all(
        one[n].shape == two[n].shape and one[n].tobytes() == two[n].tobytes() for n in one
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_every_command_reads_a_file(family: str, tmp_path: Path) -> None:
    _, path = make(family, tmp_path)
    saved = torch.load(path, weights_only=True)
    assert (wb.identify(path).format, wb.identify(path).readable) == ("torch-zip", True)
    report = wb.inspect(path)
    assert {t.name: tuple(t.shape) for t in report.tensors} == {n: tuple(t.shape) for n, t in saved.items()}
    assert wb.verify(path).ok
    assert wb.scan(path).verdict == "data-only"
    assert np.array_equal(wb.get(f"{path}::blocks.1.ln1.weight"), saved["blocks.1.ln1.weight"].numpy())
    wb.convert(path, tmp_path / "out.safetensors")
    assert same(tensors(tmp_path / "out.safetensors"), {name: value.numpy() for name, value in saved.items()})


@pytest.mark.parametrize("target", ["out.gguf", "out"])
@pytest.mark.parametrize("family", FAMILIES)
def test_with_a_config_it_converts_as_transformers_folder(family: str, target: str, tmp_path: Path) -> None:
    hf, path = make(family, tmp_path)
    keywords: dict[str, Any] = {"tokenizer": False} if target.endswith("gguf") else {"to": "hf"}
    wb.convert(hf, tmp_path / f"theirs-{target}", **keywords)
    result = wb.convert(path, tmp_path / target, config=hf, **keywords)
    assert same(tensors(tmp_path / target), tensors(tmp_path / f"theirs-{target}"))
    assert any(f"the names of RWKV {family[-1]}'s own files" in note for note in result.notes)


def test_the_unused_tensors_of_the_first_layer_are_left_out(tmp_path: Path) -> None:
    extra = {f"blocks.0.att.v{n}": torch.ones(1, 1, 128) for n in "012"}
    hf, path = make("rwkv7", tmp_path, **extra)
    plan = wb.plan_convert(path, tmp_path / "out.gguf", config=hf, tokenizer=False)
    assert {str(loss.tensor) for loss in plan.losses if "used by no program" in loss.message} == set(extra)
    wb.convert(path, tmp_path / "out.gguf", config=hf, tokenizer=False)
    wb.convert(hf, tmp_path / "theirs.gguf", tokenizer=False)
    assert same(tensors(tmp_path / "out.gguf"), tensors(tmp_path / "theirs.gguf"))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_that_is_not_whole_is_refused(family: str, tmp_path: Path) -> None:
    hf, path = make(family, tmp_path)
    saved = torch.load(path, weights_only=True)
    for change in ({"blocks.0.att.more": torch.ones(2)}, {"blocks.1.ln2.weight": torch.ones(3)}):
        torch.save(saved | change, tmp_path / "changed.pth")
        with pytest.raises(WeighbridgeError):
            wb.convert(tmp_path / "changed.pth", tmp_path / "out.gguf", config=hf, tokenizer=False)
    torch.save({n: t for n, t in saved.items() if n != "blocks.1.ln2.weight"}, tmp_path / "less.pth")
    with pytest.raises(WeighbridgeError):
        wb.convert(tmp_path / "less.pth", tmp_path / "out.gguf", config=hf, tokenizer=False)
    assert not (tmp_path / "out.gguf").exists()
