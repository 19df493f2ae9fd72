"""Models under the names of Flax and TensorFlow, as transformers 4.57 writes or reads them
(`record_framework_names.py`), become those that PyTorch saves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.golden_files import extracted, tensor_bytes

import weighbridge as wb
from weighbridge.base.errors import UsageError, WeighbridgeError
from weighbridge.models.framework_names import FRAMEWORKS

GOLDEN = Path(__file__).with_name("golden") / "framework_names.zip"
FILES = {"flax": "flax/flax_model.msgpack", "tf": "tf/tf_model.h5", "ckpt": "ckpt/model.ckpt.index"}
CASES = [("gpt2", "flax"), ("gpt2", "tf"), ("gpt2", "ckpt"), ("bert", "flax"), ("bert", "tf"), ("bert", "ckpt"),
         ("llama", "flax")]  # fmt: skip
NO_TOKENIZER: Mapping[str, Any] = {"tokenizer": False}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return extracted(GOLDEN, tmp_path_factory.mktemp("frameworks"))


def tied(model: str) -> set[str]:
    """Tensors that PyTorch's file may lack, since they are others' copies."""
    return {"bert": {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}}.get(model, {"lm_head.weight"})


@pytest.mark.parametrize(("model", "form"), CASES)
def test_a_folder_has_the_tensors_that_pytorch_saves(model: str, form: str, root: Path, tmp_path: Path) -> None:
    result = wb.convert(root / model / FILES[form], tmp_path / "out", to="hf", config=root / model)
    mine, theirs = tensor_bytes(tmp_path / "out"), tensor_bytes(root / model)
    mine = {name.removeprefix("bert.") if model == "bert" else name: data for name, data in mine.items()}
    theirs = {name.removeprefix("bert.") if model == "bert" else name: data for name, data in theirs.items()}
    assert mine.keys() ^ theirs.keys() <= tied(model)
    assert all(mine[name] == theirs[name] for name in mine.keys() & theirs.keys())
    assert json.loads((tmp_path / "out/config.json").read_text())["model_type"] == model
    assert any("are replaced by those of the family" in note for note in result.notes)


@pytest.mark.parametrize(("model", "form"), [case for case in CASES if case[0] != "bert"])
def test_a_gguf_is_that_of_pytorch_s_file(model: str, form: str, root: Path, tmp_path: Path) -> None:
    wb.convert(root / model, tmp_path / "theirs.gguf", **NO_TOKENIZER)
    wb.convert(root / model / FILES[form], tmp_path / "mine.gguf", config=root / model, **NO_TOKENIZER)
    assert tensor_bytes(tmp_path / "mine.gguf") == tensor_bytes(tmp_path / "theirs.gguf")


def test_an_mlx_folder_is_that_of_pytorch_s_file(root: Path, tmp_path: Path) -> None:
    wb.convert(root / "llama", tmp_path / "theirs", to="mlx")
    wb.convert(root / "llama" / FILES["flax"], tmp_path / "mine", to="mlx", config=root / "llama")
    assert tensor_bytes(tmp_path / "mine") == tensor_bytes(tmp_path / "theirs")


def test_the_config_of_the_folder_is_used(root: Path, tmp_path: Path) -> None:
    wb.convert(root / "gpt2/flax", tmp_path / "out.gguf", **NO_TOKENIZER)
    assert tensor_bytes(tmp_path / "out.gguf")


def test_the_optimizer_is_left_out_and_listed(root: Path, tmp_path: Path) -> None:
    plan = wb.plan_convert(root / "bert" / FILES["ckpt"], tmp_path / "out", to="hf", config=root / "bert")
    names = {str(loss.tensor) for loss in plan.losses if "optimizer" in loss.message}
    assert {name.rpartition("/")[2] for name in names} == {"adam_m", "global_step"}
    assert len(names) == 3


def test_names_that_no_rule_fits_are_kept(root: Path, tmp_path: Path) -> None:
    with wb.open(root / "gpt2" / FILES["flax"]) as model:
        arrays = {name: model[name].numpy() for name in model}
    wb.save({**arrays, "transformer.more.kernel": np.zeros((2, 2), np.float32)}, tmp_path / "more.safetensors")
    with pytest.raises(WeighbridgeError):
        wb.convert(tmp_path / "more.safetensors", tmp_path / "out.gguf", config=root / "gpt2", **NO_TOKENIZER)
    wb.save({**arrays, "params.transformer.ln_f.bias": arrays["transformer.ln_f.bias"]}, tmp_path / "twice.safetensors")
    with pytest.raises(WeighbridgeError):
        wb.convert(tmp_path / "twice.safetensors", tmp_path / "out.gguf", config=root / "gpt2", **NO_TOKENIZER)


def test_a_folder_needs_a_config(root: Path, tmp_path: Path) -> None:
    (tmp_path / "bare.msgpack").write_bytes((root / "gpt2" / FILES["flax"]).read_bytes())
    with pytest.raises(UsageError, match="has no config, which a model folder needs") as error:
        wb.plan_convert(tmp_path / "bare.msgpack", tmp_path / "out", to="hf")
    assert "--config" in str(error.value.hint) or "config" in str(error.value.hint)


NAMES = {
    "model/h11/attn/c_attn/w": "h.11.attn.c_attn.weight",
    "model/wte": "wte.weight",
    "bert/encoder/layer_3/output/LayerNorm/gamma": "bert.encoder.layer.3.output.LayerNorm.weight",
    "bert/embeddings/word_embeddings": "bert.embeddings.word_embeddings.weight",
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "transformer/tfgpt2/transformer/h_._1/attn/c_proj/weight:0": "transformer.h.1.attn.c_proj.weight",
    "mlm___cls/tf_bert/mlm___cls/predictions/bias:0": "cls.predictions.bias",
    "params.model.layers.0.mlp.up_proj.kernel": "model.layers.0.mlp.up_proj.weight",
}


@pytest.mark.parametrize("name", NAMES)
def test_each_rule(name: str) -> None:
    """Without a rule, or with another framework's, the name would be another."""
    assert NAMES[name] in {framework.renamed(name) for framework in FRAMEWORKS}
