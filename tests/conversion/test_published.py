"""Checkpoints as they are published: sizes left to the class, weights released in FP8."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.llama import CONFIG, llama_tensors, make_folder
from tests.oracles.published_configs import make_folder as make_sparse_folder

import weighbridge as wb
from weighbridge.base.dtypes import F32
from weighbridge.base.errors import FormatError, RefusedError
from weighbridge.containers.gguf.container import KV
from weighbridge.conversion.gguf.metadata import check_vocabulary
from weighbridge.tensors import nodes

DEFAULT_VOCABULARY = 32000  # LlamaConfig


def test_a_vocabulary_size_left_to_the_class_pads_the_tokens(tmp_path: Path) -> None:
    embeddings = np.zeros((DEFAULT_VOCABULARY, 64), ml_dtypes.bfloat16)
    tensors = llama_tensors() | dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), embeddings)
    config = {key: value for key, value in CONFIG.items() if key != "vocab_size"}
    folder = make_folder(tmp_path / "llama", config, tensors, words=True)
    wb.convert(folder, tmp_path / "m.gguf")
    with wb.open(tmp_path / "m.gguf") as model:
        assert len(model.metadata["tokenizer.ggml.tokens"]) == DEFAULT_VOCABULARY
    assert not [f for f in wb.verify(tmp_path / "m.gguf").findings if "token_embd" in f.message]


def test_a_tokenizer_that_does_not_fit_is_never_written() -> None:
    keys, embedding = (
        {"tokenizer.ggml.tokens": KV("arr[str]", ["a", "b"])},
        nodes.const(np.zeros((3, 4), np.float32), F32),
    )
    with pytest.raises(FormatError, match="doesn't fit the embedding"):
        check_vocabulary(keys, {"token_embd.weight": embedding})
    check_vocabulary(keys, {"token_embd.weight": nodes.slice_rows(embedding, 0, (2, 4))})
    check_vocabulary({}, {"token_embd.weight": embedding})


@pytest.fixture
def fp8(tmp_path: Path) -> Path:
    """A folder as DeepSeek V3 and Qwen3-FP8 are published: blocks of 128 x 128 with a scale each."""
    tensors: dict[str, np.ndarray] = {}
    for name, values in llama_tensors().items():
        if "proj" in name:
            tensors[name] = values.astype(ml_dtypes.float8_e4m3fn)
            tensors[f"{name}_scale_inv"] = np.full((1, 1), 0.5, np.float32)
        else:
            tensors[name] = values
    return make_folder(
        tmp_path / "fp8", {**CONFIG, "quantization_config": {"quant_method": "fp8"}}, tensors, words=True
    )


@pytest.mark.parametrize("dtype", ["q8_0", "f16"])
def test_released_fp8_weights_are_decoded_and_listed(fp8: Path, tmp_path: Path, dtype: str) -> None:
    result = wb.convert(fp8, tmp_path / "m.gguf", dtype=dtype)
    assert {move.kind for move in result.moves} == {"decoded"}
    listed = {move.tensor for move in result.moves} | {
        loss.tensor for loss in result.losses if "decoded" in loss.message
    }
    assert len(listed) == 14


def test_released_fp8_weights_can_be_quantized(fp8: Path, tmp_path: Path) -> None:
    plan = wb.plan_quantize(fp8, tmp_path / "q.gguf", "Q8_0")
    plan.check()
    assert len({loss.tensor for loss in plan.losses if "fp8" in loss.message}) == 14
    wb.convert(fp8, tmp_path / "mlx", to="mlx", q_bits=4, q_group_size=32)


def test_weights_quantized_by_others_stay_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "llama", words=True)
    wb.convert(folder, tmp_path / "mlx", to="mlx", q_bits=4, q_group_size=32)
    with pytest.raises(RefusedError, match="allow_requantize=True"):
        wb.convert(tmp_path / "mlx", tmp_path / "m.gguf", dtype="q8_0")


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("BertModel", {"model_type": "bert", "type_vocab_size": 2, "layer_norm_eps": 1e-12}),
        ("NeoBERT", {"model_type": "neobert", "norm_eps": 1e-5, "max_length": 64}),
    ],
)
def test_an_encoder_with_labels_comes_back_without_a_head(name: str, config: dict[str, object], tmp_path: Path) -> None:
    """BGE's config names a label, which its GGUF has too; only tensors make a classifier."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 2}
    rest = {"max_position_embeddings": 64, "vocab_size": 80, "id2label": {"0": "LABEL_0"}}
    folder = make_sparse_folder({"architectures": [name], **config, **sizes, **rest}, tmp_path / "model")
    wb.convert(folder, tmp_path / "m.gguf", tokenizer=False)
    wb.convert(tmp_path / "m.gguf", tmp_path / "back", to="hf")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["architectures"] == [name]
